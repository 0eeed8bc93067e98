"""Draws of the kernel against its twin, the event table and the law; Philox against its authors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from smcprog.gpu import sampling as host
from smcprog.inference.interface import EventSpace
from smcprog.vocabulary import Vocabulary, pack

triton = pytest.importorskip("triton")
sampling = pytest.importorskip("smcprog.gpu.triton.sampling")
tl = triton.language

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's log of 0
NEVER = float("-inf")


def arguments(device: torch.device, size: int, dtype: torch.dtype, rows: int = 6) -> list[Tensor]:
    """Random logits and masks; the rows go through the four kinds of spaces."""
    generator = torch.Generator().manual_seed(size)
    logits = 3 * torch.randn(rows, size, generator=generator)
    logits[logits < -7] = NEVER
    mask = torch.randint(-(2**31), 2**31, (rows, -(-size // 32)), generator=generator)
    row = torch.arange(rows)
    listed = [
        logits.to(dtype),
        mask.to(torch.int32),
        row % 2 == 1,
        row // 2 % 2 == 1,
        torch.tensor([2, size - 1]),
        torch.linspace(0.5, 1.5, rows),
        torch.linspace(2.0, 0.5, rows),
        10**12 * row - 3,
        row + 2**33,
    ]
    return [x.to(device) for x in listed]


def assert_same(actual: host.Draws, expected: host.Draws, tolerance: float = 2e-5) -> None:
    assert actual.events.tolist() == expected.events.tolist()
    for a, b in zip(actual[1:], expected[1:], strict=True):
        assert a.dtype == torch.float64
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance, equal_nan=True)


def by_event_table(logits, mask, eos, leave, eos_ids, temperature, power, *_) -> Tensor:
    """power * log w of all events, by `EventTable`."""
    size = logits.shape[1]
    table = host.EventTable(Vocabulary([b"x"] * size, eos_ids.tolist()), torch.device("cpu"))
    words = mask.cpu().numpy().view(np.uint32)
    spaces = [
        EventSpace(words[i % len(words)], bool(eos[i]), bool(leave[i])) for i in range(len(logits))
    ]
    log_w = torch.log_softmax(logits.cpu().double() / temperature.cpu()[:, None], -1)
    return table.collapse(log_w, spaces) * power.cpu()[:, None]


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(1003, torch.float32), (5001, torch.bfloat16), (4096, torch.float16), (333, torch.float64)],
)
def test_kernel_twin_and_event_table_agree(device, size, dtype):
    given = arguments(device, size, dtype)
    draws = sampling.sample(*given)
    assert_same(draws, sampling.sample_twin(*given))
    log_w = by_event_table(*given)
    log_total = torch.logsumexp(log_w, -1)
    log_q = log_w.gather(1, draws.events.cpu()[:, None])[:, 0] - log_total
    torch.testing.assert_close(draws.log_total.cpu(), log_total, rtol=0, atol=2e-5)
    torch.testing.assert_close(draws.log_p.cpu(), log_q, rtol=0, atol=2e-5)


def test_one_mask_for_all_rows_of_a_slice_of_logits(device):
    given = arguments(device, 70, torch.float32)
    wide = torch.cat([given[0], given[0] + 50], dim=1)
    given[1] = given[1][:1]
    repeated = [*given]
    repeated[1] = given[1].repeat(len(wide), 1).view(torch.uint32)
    assert_same(sampling.sample(wide[:, :70], *given[1:]), sampling.sample(*repeated))
    assert_same(sampling.sample_twin(wide[:, :70], *given[1:]), sampling.sample_twin(*repeated))


def test_rows_without_an_event_or_without_a_number(device):
    given = arguments(device, 40, torch.float32, rows=7)
    logits, mask, eos, leave = given[:4]
    eos[:], leave[:], mask[:] = False, False, 0
    mask[1, 0] = 1 << 7  # one token, of probability 0
    logits[1, 7] = NEVER
    eos[2] = True  # EOS, of probability 0
    logits[2, given[4]] = NEVER
    leave[3] = True  # certain: nothing is allowed
    mask[4:] = -1
    logits[4, 9], logits[5, 9] = float("nan"), float("inf")
    logits[6] = NEVER
    for draws in (sampling.sample(*given), sampling.sample_twin(*given)):
        assert draws.events.tolist()[:4] == [-1, -1, -1, 41]
        assert draws.events.tolist()[4:] == [-1, -1, -1]
        assert draws.log_p.isnan().tolist() == [True, True, True, False, True, True, True]
        assert draws.log_total.tolist()[:3] == [NEVER] * 3
        assert draws.log_total[3].item() == pytest.approx(0, abs=1e-6)
        assert draws.log_total[4:].isnan().all()


def test_a_vocabulary_without_eos_and_no_rows(device):
    given = arguments(device, 65, torch.float32)
    given[4] = given[4][:0]
    draws = sampling.sample(*given)
    assert_same(draws, sampling.sample_twin(*given))
    assert 65 not in draws.events.tolist()
    empty = [x[:0] if i != 4 else x for i, x in enumerate(given)]
    for function in (sampling.sample, sampling.sample_twin):
        assert [len(x) for x in function(*empty)] == [0, 0, 0]


def chi_square_limit(freedom: int) -> float:
    """The 1 - 1e-5 quantile (Wilson and Hilferty 1931): z = 4.265."""
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + 4.265 * spread**0.5) ** 3


def frequencies(draw, device: torch.device, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts and expected counts of the events of one row's law, drawn with ``rows`` counters."""
    size = 37
    allowed = np.arange(size) % 3 == 1
    logits = torch.linspace(-1, 1.5, size).expand(rows, -1)
    yes, one = torch.ones(rows, dtype=torch.bool), torch.ones(rows)
    mask = torch.from_numpy(pack(allowed).view(np.int32))[None]
    eos_ids = torch.tensor([3, 30])
    counters = torch.arange(rows)
    given = [
        logits,
        mask,
        yes,
        yes,
        eos_ids,
        1.3 * one,
        0.6 * one,
        torch.full((rows,), 7),
        counters,
    ]
    draws = draw(*(x.to(device) for x in given))
    law = torch.softmax(by_event_table(*(x[:1] if len(x) == rows else x for x in given)), -1)[0]
    counts = np.bincount(draws.events.cpu().numpy(), minlength=size + 2)
    return counts, rows * law.numpy()


def test_frequencies_follow_the_law(device):
    """False alarms: at most 1e-5, were the seed drawn; it is fixed."""
    counts, expected = frequencies(sampling.sample_twin, device, 100_000)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    assert statistic < chi_square_limit(int(possible.sum()) - 1)


def test_the_kernel_draws_what_the_twin_draws(device, monkeypatch):
    """So its frequencies are the twin's. Small blocks, for the interpreter's sake."""
    monkeypatch.setattr(sampling, "_BLOCK", 32)
    ours, _ = frequencies(sampling.sample, device, 20)
    theirs, _ = frequencies(sampling.sample_twin, device, 20)
    assert ours.tolist() == theirs.tolist()


def test_philox_gives_its_authors_known_answers():
    """From kat_vectors of Random123."""
    known = [
        ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ]
    for counter, key, random in known:
        counter, key, random = (
            tuple(torch.tensor(int(word, 16)) for word in words.split())
            for words in (counter, key, random)
        )
        assert sampling.philox(counter, key) == random


def test_uniforms_belong_to_seed_counter_and_event(device):
    seeds = torch.tensor([5, 5, 6, 5], device=device)
    counters = torch.tensor([1, 2, 1, 1 + 2**32], device=device)
    u = sampling.uniforms(seeds, counters, 9)
    assert torch.equal(u[1:2, :4], sampling.uniforms(seeds[1:2], counters[1:2], 4))
    assert len(set(u.flatten().tolist())) == u.numel()
    assert u.dtype == torch.float32
    assert 0 < u.min() < u.max() < 1


@triton.jit
def _exponential_kernel(u, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, sampling._exponential(tl.load(u + at)))


def test_exponentials_are_precise_down_to_the_smallest_uniform(device):
    u = torch.cat([torch.logspace(-65, 0, 1000, base=2) * (1 - 2**-24), torch.rand(24)]).to(device)
    out = torch.empty_like(u)
    _exponential_kernel[(1,)](u, out, BLOCK=1024)
    torch.testing.assert_close(out.double(), -torch.log1p(-u.double()), rtol=5e-7, atol=0)
