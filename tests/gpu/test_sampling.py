"""Event arithmetic against simple NumPy, and the edge cases of the inverse CDF."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from smcprog.errors import NaNLogitsError, WeightError
from smcprog.gpu.sampling import (
    EventTable,
    checked,
    draw,
    fit_width,
    product_of_powers,
    token_log_p,
    variant,
)
from smcprog.inference.interface import EventSpace
from smcprog.potentials.base import LM
from smcprog.vocabulary import Vocabulary, pack

INF = float("inf")
SIZE = 37
VOCABULARY = Vocabulary([b"x"] * SIZE, eos_ids=(3, 30), control_ids=(4,))
CPU = torch.device("cpu")


def random_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, SIZE, generator=torch.Generator().manual_seed(seed))


def probabilities(logits: torch.Tensor) -> NDArray[np.float64]:
    p = np.exp(logits.double().numpy())
    return p / p.sum(-1, keepdims=True)


def a_mask(seed: int) -> NDArray[np.bool_]:
    allowed = np.random.default_rng(seed).random(SIZE) < 0.5
    allowed[list(VOCABULARY.control_ids)] = False
    return allowed


def collapsed(p: NDArray[np.float64], allowed: NDArray[np.bool_], eos: bool, leave: bool) -> object:
    events = np.zeros(SIZE + 2)
    events[:SIZE][allowed] = p[allowed]
    is_eos = np.isin(np.arange(SIZE), VOCABULARY.eos_ids)
    if eos:
        events[SIZE] = p[is_eos].sum()
    if leave:
        events[SIZE + 1] = p[~allowed & ~(is_eos & eos)].sum()
    return events


def test_collapse_of_every_kind_of_space() -> None:
    logits = random_logits(5)
    masks = [a_mask(i) for i in range(5)]
    kinds = [(False, False), (True, False), (False, True), (True, True), (True, True)]
    spaces = [EventSpace(pack(m), *kind) for m, kind in zip(masks, kinds, strict=True)]
    table = EventTable(VOCABULARY, CPU)
    log_p = torch.log_softmax(logits, -1)
    events = table.collapse(log_p, spaces).exp().numpy()
    for row, p, mask, kind in zip(events, probabilities(logits), masks, kinds, strict=True):
        np.testing.assert_allclose(row, collapsed(p, mask, *kind), rtol=1e-5, atol=1e-9)
        if kind == (True, True):
            assert row.sum() == pytest.approx(1, abs=1e-6)


def test_a_shared_mask_gives_what_separate_ones_give() -> None:
    log_p = torch.log_softmax(random_logits(3), -1)
    table = EventTable(VOCABULARY, CPU)
    shared = pack(a_mask(0))
    for mask in (shared, VOCABULARY.ordinary):
        kinds = [(True, True), (False, True), (False, False)]
        one = table.collapse(log_p, [EventSpace(mask, *kind) for kind in kinds])
        many = table.collapse(log_p, [EventSpace(mask.copy(), *kind) for kind in kinds])
        assert torch.equal(one, many)


def test_leave_keeps_a_mass_that_a_difference_would_lose() -> None:
    logits = torch.zeros(1, SIZE)
    logits[0, 5] = 60.0
    space = EventSpace(pack(np.arange(SIZE) == 5), leave=True)
    events = EventTable(VOCABULARY, CPU).collapse(torch.log_softmax(logits, -1), [space])
    assert float(events[0, SIZE + 1]) == pytest.approx(np.log(SIZE - 1) - 60, abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 5, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.7, 1e-9])
def test_variants(temperature: float, top_k: int | None, top_p: float) -> None:
    logits = random_logits(4)
    lm = LM(1.0, temperature, top_p, top_k)
    expected = probabilities(logits / temperature)
    for p in expected:
        order = np.argsort(-p, kind="stable")
        p[order[top_k:] if top_k else []] = 0
        p /= p.sum()
        below = np.cumsum(p[order]) - p[order]
        p[order[below >= top_p]] = 0
        p /= p.sum()
    np.testing.assert_allclose(variant(logits, lm).exp().numpy(), expected, rtol=2e-5, atol=1e-9)
    rows, tokens = torch.tensor([0, 3, 3]), torch.tensor([7, 0, int(logits[3].argmax())])
    assert torch.equal(
        token_log_p(logits, lm, rows, tokens).isinf(), variant(logits, lm)[rows, tokens].isinf()
    )
    torch.testing.assert_close(
        token_log_p(logits, lm, rows, tokens), variant(logits, lm)[rows, tokens]
    )


def test_ties_go_to_the_lower_id() -> None:
    kept = variant(torch.zeros(1, 8), LM(top_k=3))[0]
    assert torch.isfinite(kept).tolist() == [True] * 3 + [False] * 5
    kept = variant(torch.zeros(1, 8), LM(top_p=0.5))[0]
    assert torch.isfinite(kept).tolist() == [True] * 4 + [False] * 4


def test_draw_at_the_edges() -> None:
    log_w = torch.tensor([-INF, 3.0, -INF, 3.0, -INF])
    below_half, last = np.nextafter(0.5, 0), np.nextafter(1.0, 0)
    uniforms = torch.tensor([0.0, below_half, 0.5, last, 1.0], dtype=torch.float64)
    draws = draw(log_w.expand(5, -1), uniforms)
    assert draws.events.tolist() == [1, 1, 3, 3, 3]
    np.testing.assert_allclose(draws.log_p, np.log(0.5), rtol=1e-12)
    np.testing.assert_allclose(draws.log_total, 3 + np.log(2), rtol=1e-12)


def test_a_row_without_mass() -> None:
    log_w = torch.tensor([[-INF, -INF], [-INF, 0.0]])
    draws = draw(log_w, torch.zeros(2, dtype=torch.float64))
    assert draws.log_total.tolist() == [-INF, 0.0]
    assert int(draws.events[1]) == 1


def test_draw_never_gives_an_event_without_mass() -> None:
    generator = torch.Generator().manual_seed(0)
    log_w = torch.randn(2000, 50, generator=generator)
    log_w[torch.rand(2000, 50, generator=generator) < 0.9] = -INF
    log_w[:, 17] = 0.0
    for u in (0.0, 1 - 2.0**-53):
        draws = draw(log_w, torch.full((2000,), u, dtype=torch.float64))
        assert bool(torch.isfinite(draws.log_p).all())


def test_draws_follow_the_law() -> None:
    log_p = torch.log_softmax(random_logits(1)[:, :6], -1)
    grid = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    counts = torch.bincount(draw(log_p.expand(10_000, -1), grid).events, minlength=6)
    torch.testing.assert_close(counts / 10_000, log_p[0].exp(), atol=2e-4, rtol=0)


def test_half_precision_is_widened() -> None:
    logits = random_logits(2)
    wide = checked(logits.bfloat16(), "target")
    assert wide.dtype == torch.float32
    assert checked(logits.double(), "target").dtype == torch.float64


@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_bad_logits_are_counted(bad: float) -> None:
    logits = random_logits(4)
    logits[1, 5] = logits[1, 6] = logits[3, 0] = bad
    with pytest.raises(NaNLogitsError, match="the draft model .* in 2 of 4 rows"):
        checked(logits, "draft")
    logits[:] = -INF
    logits[:, 2] = 1.0
    assert torch.equal(checked(logits, "draft"), logits)


def test_the_draft_is_normalised_over_the_targets_columns() -> None:
    logits = random_logits(2)
    narrow = torch.softmax(fit_width(logits[:, :30], SIZE), -1)
    np.testing.assert_allclose(narrow[:, :30].numpy(), probabilities(logits[:, :30]), rtol=1e-5)
    assert float(narrow[:, 30:].sum()) == 0
    wide = torch.softmax(fit_width(logits, 30), -1)
    np.testing.assert_allclose(wide.numpy(), probabilities(logits[:, :30]), rtol=1e-5)


def test_a_product_of_powers() -> None:
    a, b = random_logits(2), random_logits(2, seed=1)
    a[0, 3] = -INF
    product = product_of_powers([a, b], [LM(0.5), LM(2.0, 0.7)])
    torch.testing.assert_close(product, 0.5 * a + 2 * b)
    assert torch.isneginf(product).nonzero().tolist() == [[0, 3]]
    contrast = product_of_powers([a, b], [LM(), LM(-0.5, text="")])
    torch.testing.assert_close(contrast, a - 0.5 * b)
    assert torch.isneginf(contrast).nonzero().tolist() == [[0, 3]]
    b[0, 3] = -INF  # impossible under the positive factor anyway
    assert product_of_powers([a, b], [LM(), LM(-0.5, text="")])[0, 3] == -INF
    b[1, 4] = -INF
    with pytest.raises(WeightError, match=r"lm.given\(''\)\*\*-0.5: an event that the other"):
        product_of_powers([a, b], [LM(), LM(-0.5, text="")])
