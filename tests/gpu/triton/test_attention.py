"""Paged attention against its twin and against plain attention of each row alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from smcprog.gpu.sharing import Span, Trunk

attention = pytest.importorskip("smcprog.gpu.triton.attention")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's log of 0
PAGE_SIZE = 16
KV_HEADS = 2
TRUNK = [7, 3, 5]

# Rows with the same three pages first, and different tails; 1 and 5 queries.
SHARING = [
    Span([*TRUNK, 9], 60, 61),
    Span([*TRUNK, 10, 11], 62, 67),
    Span([*TRUNK, 12], 48, 49),
    Span([*TRUNK], 47, 48),  # no tail
]
# Others: one that is alone, one that begins with two pages of the trunk, a first token.
OTHERS = [Span([20, 21], 16, 21), Span([7, 3, 22], 40, 41), Span([23], 0, 1)]


def stores(dim: int, value_dim: int, dtype: torch.dtype, spans: list[Span]) -> tuple[Tensor, ...]:
    """Keys and values, with NaN wherever no row has a token."""
    generator = torch.Generator().manual_seed(dim)
    written = torch.zeros(30, PAGE_SIZE, dtype=torch.bool)
    for span in spans:
        for t in range(span.end):
            written[span.pages[t // PAGE_SIZE], t % PAGE_SIZE] = True
    pair = []
    for width in (dim, value_dim):
        store = torch.randn(30, PAGE_SIZE, KV_HEADS, width, generator=generator)
        store[~written] = float("nan")
        pair.append(store.to(dtype))
    return tuple(pair)


def dense(query, keys, values, spans, scale, window, softcap) -> Tensor:
    """Each row by itself, in float64."""
    outputs = []
    rows = query.double().split([span.count for span in spans])
    for q, span in zip(rows, spans, strict=True):
        pages = torch.tensor(span.pages)
        k, v = (x[pages].flatten(0, 1)[: span.end].double() for x in (keys, values))
        k, v = (x.repeat_interleave(q.shape[1] // KV_HEADS, 1) for x in (k, v))
        score = torch.einsum("qhd,nhd->hqn", q, k) * scale
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        t = torch.arange(span.start, span.end)[:, None]
        n = torch.arange(span.end)
        hidden = n > t
        if window is not None:
            hidden |= n <= t - window
        weight = score.masked_fill(hidden, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("hqn,nhd->qhd", weight, v))
    return torch.cat(outputs)


def check(
    device: torch.device,
    spans: list[Span],
    trunks: tuple = (),
    heads: int = 6,
    dims: tuple[int, int] = (48, 80),
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    softcap: float | None = None,
) -> attention.Plan:
    keys, values = stores(*dims, dtype, spans)
    tokens = sum(span.count for span in spans)
    generator = torch.Generator().manual_seed(tokens)
    query = 2 * torch.randn(tokens, heads, dims[0], generator=generator).to(dtype)
    expected = dense(query, keys, values, spans, 0.3, window, softcap)
    plan = attention.plan(spans, heads, KV_HEADS, PAGE_SIZE, device, trunks)
    given = (query.to(device), keys.to(device), values.to(device), plan, 0.3, window, softcap)
    tolerance = 1e-5 if dtype == torch.float32 else 3e-2
    for function in (attention.attend, attention.attend_twin):
        output = function(*given)
        assert output.dtype == dtype
        torch.testing.assert_close(output.cpu().double(), expected, rtol=tolerance, atol=tolerance)
    return plan


@pytest.fixture(params=[16, 256], ids=["split", "whole"])
def least_keys(request, monkeypatch) -> int:
    monkeypatch.setattr(attention, "_LEAST_KEYS", request.param)
    return request.param


def test_ragged_rows(device, least_keys):
    plan = check(device, SHARING[:2] + OTHERS[:2])
    assert plan.most_partials == (5 if least_keys == 16 else 1)


@pytest.mark.parametrize("window", [None, 14])
def test_a_trunk_with_tails_of_their_own(device, window):
    """The window hides the trunk from the first two rows, or part of it, and not from the last."""
    spans = SHARING + OTHERS[:1]
    plan = check(device, spans, (Trunk(TRUNK, 0, (0, 1, 2, 3)),), window=window)
    assert plan.partials.tolist() == [2] * 7 + [1] + [1] * 5
    assert len(plan.items[32]) == 1  # 8 queries of 3 heads, together


def test_a_trunk_beyond_the_window(device):
    spans = [Span([*TRUNK, 9, 13], 70, 71), Span([*TRUNK, 10, 11], 66, 68)]
    check(device, spans, (Trunk(TRUNK, 0, (0, 1)),), window=4)


def test_trunks_after_trunks_of_scattered_rows_in_bfloat16(device, least_keys):
    spans = [OTHERS[1], SHARING[1], OTHERS[0], SHARING[0], Span([7, 3], 31, 32)]
    trunks = (Trunk(TRUNK[:2], 0, (0, 1, 3, 4)), Trunk(TRUNK[2:], 32, (1, 3)))
    check(device, spans, trunks, dims=(64, 64), dtype=torch.bfloat16)


def test_soft_cap_and_window_of_one_row(device):
    check(device, OTHERS[:1], softcap=2.0, window=7)


def test_one_query_of_one_key(device):
    check(device, OTHERS[2:], heads=2, dims=(16, 16))


def test_more_heads_than_a_tile_has_rows(device):
    plan = check(device, [Span([20, 21], 18, 20)], heads=2 * 67, dims=(16, 16))
    assert len(plan.items[128]) == 2


def test_trunk_only(device):
    spans = [Span([*TRUNK], 46, 48), Span([*TRUNK], 47, 48)]
    plan = check(device, spans, (Trunk(TRUNK, 0, (0, 1)),))
    assert [items.tolist() for items in plan.items.values()] == [[[0, 3, 0, 0, 48, 0]]]


def test_no_rows(device):
    keys, values = (x.to(device) for x in stores(16, 32, torch.float32, []))
    plan = attention.plan([], 4, KV_HEADS, PAGE_SIZE, device)
    query = torch.zeros(0, 4, 16, device=device)
    for function in (attention.attend, attention.attend_twin):
        assert function(query, keys, values, plan, 1.0).shape == (0, 4, 32)


def test_queries_may_be_strided_but_not_in_their_last_dimension(device):
    spans = OTHERS[:1]
    keys, values = (x.to(device) for x in stores(16, 16, torch.float32, spans))
    plan = attention.plan(spans, 4, KV_HEADS, PAGE_SIZE, device)
    query = torch.randn(4, 5, 16, device=device)
    expected = attention.attend(query.transpose(0, 1).contiguous(), keys, values, plan, 1.0)
    actual = attention.attend(query.transpose(0, 1), keys, values, plan, 1.0)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    with pytest.raises(ValueError, match="contiguous"):
        attention.attend(query.permute(1, 2, 0), keys, values, plan, 1.0)


def test_a_plan_covers_every_query_and_key_once(monkeypatch):
    monkeypatch.setattr(attention, "_LEAST_KEYS", 24)
    spans = SHARING + OTHERS
    trunks = (Trunk(TRUNK[:1], 0, (0, 2, 3)), Trunk(TRUNK[1:], 16, (0, 2)))
    plan = attention.plan(spans, 40, KV_HEADS, PAGE_SIZE, torch.device("cpu"), trunks)
    rows = [i for i, span in enumerate(spans) for _ in range(span.count)]
    seen, which = [], []
    for items in plan.items.values():
        for first, count, row, begin, end, partial in items.tolist():
            for query in plan.queries[first : first + count].tolist():
                used = range(begin // PAGE_SIZE, -(-end // PAGE_SIZE))
                for i in used:
                    assert plan.tables[row, i] == spans[rows[query]].pages[i]
                seen.extend((query, key) for key in range(begin, end))
                which.append((query, partial))
    assert sorted(seen) == [(q, t) for q, row in enumerate(rows) for t in range(spans[row].end)]
    assert sorted(which) == [(q, i) for q, n in enumerate(plan.partials.tolist()) for i in range(n)]


def test_trunks_that_do_not_follow_one_another():
    outer, inner = Trunk(TRUNK[:1], 0, (0, 1, 2)), Trunk(TRUNK[1:], 16, (1, 2))
    attention.plan(SHARING, 4, KV_HEADS, PAGE_SIZE, torch.device("cpu"), [outer, inner])
    with pytest.raises(ValueError, match="leave off"):
        attention.plan(SHARING, 4, KV_HEADS, PAGE_SIZE, torch.device("cpu"), [inner, outer])
