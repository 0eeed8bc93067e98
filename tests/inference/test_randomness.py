import numpy as np
import pytest

from smcprog.inference.randomness import Philox, fold, inverse_cdf


def test_a_number_depends_on_its_whole_key_and_on_nothing_else():
    source = Philox(7)
    keys = [
        (round, slot, purpose, counter)
        for round in range(3)
        for slot in range(3)
        for purpose in ("draft", "bonus", "resample", "draw")
        for counter in range(3)
    ]

    def number(seed, round, slot, purpose, counter):
        return Philox(seed).stream(round, slot, purpose).uniform(counter)

    numbers = {key: source.stream(*key[:3]).uniform(key[3]) for key in keys}
    assert len(set(numbers.values())) == len(keys)
    assert all(number(7, *key) == numbers[key] for key in reversed(keys))
    assert all(number(8, *key) != numbers[key] for key in keys)
    assert all(0 <= u < 1 for u in numbers.values())


def test_uniforms_are_uniform():
    stream = Philox(1).stream(0, 0, "draft")
    u = np.sort([stream.uniform(i) for i in range(4000)])
    # Kolmogorov-Smirnov: P(sup > 2.5 / sqrt(n)) is below 1e-5; the seed is fixed.
    assert np.max(np.abs(u - (np.arange(4000) + 0.5) / 4000)) < 2.5 / np.sqrt(4000)


def test_folded_seeds_differ_and_survive_json():
    seeds = [fold(seed, i) for seed in (0, 1, 2**127) for i in range(50)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("u", [0.0, 0.25, 0.5, 0.75, 1 - 2**-53])
def test_inverse_cdf_never_takes_a_zero(u):
    p = np.array([0.0, 0.5, 0.0, 1.5, 0.0])
    assert inverse_cdf(p, u) == (1 if u < 0.25 else 3)
