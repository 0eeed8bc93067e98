import json

import numpy as np
import pytest

from smcprog import Posterior, factor, gen, smc_program
from smcprog.inference.posterior import Stats
from tests.inference import tables

STATS = Stats(1, 0, 0, 0, 0, 0, 0, 0, 0, 0.1)


def posterior(values, weights):
    n = len(values)
    with np.errstate(divide="ignore"):
        log_weights = np.log(np.array(weights, dtype=np.float64))
    return Posterior(
        values=values,
        texts=[""] * n,
        tokens=[[]] * n,
        log_weights=log_weights,
        roots=list(range(n)),
        truncated=[False] * n,
        traces=[[]] * n,
        rounds=[],
        deaths=[],
        stats=STATS,
        seed=3,
    )


def test_equal_values_are_pooled():
    p = posterior(["x", "y", "y", "z"], [0.4, 0.35, 0.25, 0.0])
    assert p.best == "y"
    assert p.marginal() == pytest.approx({"y": 0.6, "x": 0.4})
    assert list(p.marginal()) == ["y", "x"]
    assert p.weights.sum() == pytest.approx(1)
    assert p.log_evidence == pytest.approx(np.log(0.25))
    assert p.unique_roots == 3


def test_marginals_by_key_function_and_of_what_cannot_be_hashed():
    p = posterior([{"k": [1], "n": 2}, {"k": [1], "n": 3}, {"k": [2], "n": 3}], [1, 1, 2])
    assert p.marginal("n") == pytest.approx({3: 0.75, 2: 0.25})
    assert p.marginal("k") == pytest.approx({"[2]": 0.5, "[1]": 0.5})
    assert p.marginal(lambda v: v["n"] > 2) == pytest.approx({True: 0.75, False: 0.25})
    assert p.best == {"k": [2], "n": 3}
    with pytest.raises(KeyError):
        p.marginal("absent")
    assert posterior([("a", 1), ("b", 1)], [1, 3]).marginal(0) == pytest.approx(
        {"b": 0.75, "a": 0.25}
    )


def test_expectations_and_samples():
    p = posterior([1.0, 5.0], [3, 1])
    assert p.expect(lambda v: v) == pytest.approx(2.0)
    np.testing.assert_allclose(p.expect(lambda v: [v, v * v]), [2.0, 7.0])
    assert p.sample(5, seed=1) == p.sample(5, seed=1)
    assert np.mean(p.sample(4000, seed=0)) == pytest.approx(2.0, abs=5 * np.sqrt(3 / 4000))


def test_a_dead_particle_is_never_asked():
    p = posterior([None, 2.0], [0, 1])
    assert p.expect(lambda v: v + 1) == 3.0
    assert p.marginal() == {2.0: 1.0}


@smc_program
def small():
    word = gen(max_tokens=2)
    factor(-np.inf if word == "b" else 0.0)
    return {"word": word}


def test_saved_and_loaded(tmp_path):
    first = tables.engine().run(small(), particles=16, seed=5, ess_threshold=0.0)
    first.save(tmp_path / "p.json")
    again = Posterior.load(tmp_path / "p.json")
    np.testing.assert_array_equal(first.log_weights, again.log_weights)
    assert first.values == again.values
    assert first.traces == again.traces
    assert first.rounds == again.rounds
    assert first.stats == again.stats
    assert (first.seed, first.deaths) == (again.seed, again.deaths)
    data = json.loads((tmp_path / "p.json").read_text())
    assert data["log_evidence"] == first.log_evidence


def test_an_empty_posterior_survives(tmp_path):
    p = posterior([], [])
    p.save(tmp_path / "p.json")
    assert Posterior.load(tmp_path / "p.json").log_evidence == -np.inf
    assert repr(p) == "Posterior(no particles, log_evidence=-inf)"


def test_what_is_no_posterior(tmp_path):
    with pytest.raises(TypeError, match="particle 1"):
        posterior([1, {1, 2}], [1, 1]).to_dict()
    for text in ("{", "[]", '{"format": "x"}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ValueError, match=r"bad\.json"):
            Posterior.load(tmp_path / "bad.json")
    with pytest.raises(FileNotFoundError):
        Posterior.load(tmp_path / "absent.json")


def test_what_looks_alike_is_not_pooled_and_what_is_equal_is():
    p = posterior([[1], "[1]", [1.0], float("nan"), float("nan")], [1, 1, 1, 1, 1])
    marginal = p.marginal()
    assert sorted(marginal.values()) == pytest.approx([0.2, 0.4, 0.4])
    assert marginal["[1]"] + marginal["[1] (2)"] == pytest.approx(0.6)
    big = [np.zeros(2000), np.zeros(2000), np.ones(2000)]
    big[1][1000] = 1.0
    assert len(posterior(big, [1, 1, 1]).marginal()) == 3
    assert posterior([np.array([3, 4])], [1]).marginal(0) == {3: 1.0}
    assert posterior([{"n": 2.0}], [1]).expect("n") == 2.0
