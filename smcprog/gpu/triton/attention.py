"""Paged attention of packed, ragged rows, split over the keys, with shared trunks.

A pass carries the tokens of many rows laid end to end. Its work is cut into *items*: a tile of
queries against a run of consecutive keys of one page table. An item gives each of its
queries a partial output, softmax over the keys it saw, and their log-sum-exp; a second kernel
merges the partial outputs of each query by their log-sum-exps ("flash-decoding": Dao, Haziza,
Massa and Sizov 2023; inside an item the softmax is online as in FlashAttention-2, Dao 2023).

A *trunk* is a run of full pages that several rows share (`smcprog.gpu.sharing`). All their queries
attend to it together, many a tile, so its keys are read once a tile and not once a row; each row
alone attends to its *tail*. To the kernels both are items like any other.

Query heads that share a key head are packed: they are rows of the same tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from smcprog.gpu.sharing import Span, Trunk

# Keys are split so that about so many programs run, which fills any GPU, but no finer than this.
_PROGRAMS = 512
_LEAST_KEYS = 256
_MOST_TILE_ROWS = 64
_KEY_BYTES = 1 << 14
_MERGED_AT_ONCE = 16
_NO_WINDOW = 1 << 30


@dataclass(frozen=True)
class Plan:
    """The items of one pass, for all of its layers.

    Attributes:
        tables: int32[rows, max_pages], page numbers.
        positions: int32[T], where each packed query stands in its row.
        partials: int32[T], how many partial outputs each query gets.
        most_partials: the largest of these.
        queries: int32[any], packed queries, in the order of the items that they are in.
        items: for each number of rows in a tile, int32[items, 6]: first entry of ``queries``,
            number of queries, row of ``tables``, first key, end of the keys, which of the partial
            outputs it is.
    """

    tables: Tensor
    positions: Tensor
    partials: Tensor
    most_partials: int
    queries: Tensor
    items: dict[int, Tensor]


@dataclass(frozen=True)
class _Part:
    """Some queries against consecutive keys of one page table."""

    queries: Sequence[int]
    row: int
    begin: int
    end: int


def plan(
    spans: Sequence[Span],
    heads: int,
    kv_heads: int,
    page_size: int,
    device: torch.device,
    trunks: Sequence[Trunk] = (),
) -> Plan:
    """Cut a pass into items.

    Args:
        spans: the rows' parts, in packed order; the query at position t sees the keys 0 .. t.
        heads: query heads, a multiple of ``kv_heads``.
        trunks: what rows share, as `smcprog.gpu.sharing.shared` lists it.

    Raises:
        ValueError: if a trunk does not begin where the trunks before it leave off in all its rows.
    """
    sharing = heads // kv_heads
    parts = _parts(spans, trunks, page_size)
    tiles = [_tile_rows(len(part.queries) * sharing, sharing) for part in parts]
    pairs = sum(
        -(-len(part.queries) // (rows // sharing)) * (part.end - part.begin)
        for part, rows in zip(parts, tiles, strict=True)
    )
    keys = max(-(-pairs * kv_heads // _PROGRAMS), _LEAST_KEYS)

    partials = [0] * sum(span.count for span in spans)
    queries: list[int] = []
    items: dict[int, list[tuple[int, ...]]] = {}
    for part, rows in zip(parts, tiles, strict=True):
        count = rows // sharing
        first, last = len(queries), len(queries) + len(part.queries)
        queries.extend(part.queries)
        which = partials[part.queries[0]]
        for begin in range(part.begin, part.end, keys):
            end = min(begin + keys, part.end)
            items.setdefault(rows, []).extend(
                (at, min(count, last - at), part.row, begin, end, which)
                for at in range(first, last, count)
            )
            which += 1
        for query in part.queries:
            partials[query] = which

    positions = [t for span in spans for t in range(span.start, span.end)]
    used = [span.pages[: -(-span.end // page_size)] for span in spans]
    width = max(map(len, used), default=0)
    tables = [[*pages, *[0] * (width - len(pages))] for pages in used]
    return Plan(
        _int32(tables, device).reshape(len(spans), width),
        _int32(positions, device),
        _int32(partials, device),
        max(partials, default=0),
        _int32(queries, device),
        {rows: _int32(listed, device) for rows, listed in items.items()},
    )


def _parts(spans: Sequence[Span], trunks: Sequence[Trunk], page_size: int) -> list[_Part]:
    """The trunks, then the tails; those without queries or keys are left out."""
    firsts = list(accumulate((span.count for span in spans), initial=0))
    taken = [0] * len(spans)
    parts = []
    for trunk in trunks:
        end = trunk.begin + len(trunk.pages) * page_size
        if any(taken[i] != trunk.begin for i in trunk.members):
            raise ValueError("a trunk must begin where the trunks before it leave off in its rows")
        for i in trunk.members:
            taken[i] = end
        queries = [q for i in trunk.members for q in range(firsts[i], firsts[i + 1])]
        parts.append(_Part(queries, trunk.members[0], trunk.begin, end))
    for i, (span, begin) in enumerate(zip(spans, taken, strict=True)):
        parts.append(_Part(range(firsts[i], firsts[i + 1]), i, begin, span.end))
    return [part for part in parts if part.queries and part.begin < part.end]


def _tile_rows(wanted: int, sharing: int) -> int:
    """Rows of a tile, a power of two: at least 16, which matrix units want, and one query."""
    most = max(_MOST_TILE_ROWS, triton.next_power_of_2(sharing))
    return min(max(triton.next_power_of_2(wanted), 16), most)


def _int32(values: Sequence[object], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32).to(device, non_blocking=True)


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: Plan,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Attention of one layer: every packed query to the keys of its row, up to its own.

    Scores, softmax and sums are in float32; the softmax is rounded to the dtype of the values
    before it multiplies them, which changes nothing in float32.

    Args:
        query: [T, heads, d], of float32, bfloat16 or float16 as are all three.
        keys: [pages, page_size, kv_heads, d], with this pass's own keys written.
        values: [pages, page_size, kv_heads, d_value].
        plan: of this pass, made by `plan` for these numbers of heads.
        scale: multiplies the scores.
        window: a query at position t sees the keys t - window + 1 .. t.
        softcap: scores become softcap * tanh(score / softcap) before they are masked.

    Returns:
        [T, heads, d_value], contiguous, of the dtype of ``query``.

    Raises:
        ValueError: if query, keys or values are not contiguous in their last dimension.
    """
    if any(x.stride(-1) != 1 for x in (query, keys, values)):
        raise ValueError("query, keys and values must be contiguous in their last dimension")
    tokens, heads, dim = query.shape
    page_size, kv_heads, value_dim = values.shape[1:]
    output = query.new_empty((tokens, heads, value_dim))
    if tokens == 0:
        return output
    lse = query.new_empty((plan.most_partials, tokens, heads), dtype=torch.float32)
    alone = plan.most_partials == 1
    partial = output[None] if alone else lse.new_empty((*lse.shape, value_dim))
    widest = max(triton.next_power_of_2(x) for x in (dim, value_dim, 16))
    for rows, items in plan.items.items():
        _partial_kernel[(len(items), kv_heads)](
            query,
            keys,
            values,
            plan.tables,
            plan.positions,
            plan.queries,
            items,
            partial,
            lse,
            scale,
            _NO_WINDOW if window is None else window,
            tokens,
            heads,
            plan.tables.stride(0),
            *query.stride()[:2],
            *keys.stride()[:3],
            *values.stride()[:3],
            SOFTCAP=softcap,
            SHARING=heads // kv_heads,
            PAGE_SIZE=page_size,
            DIM=dim,
            VALUE_DIM=value_dim,
            BLOCK_DIM=max(triton.next_power_of_2(dim), 16),
            BLOCK_VALUE_DIM=max(triton.next_power_of_2(value_dim), 16),
            ROWS=rows,
            KEYS=min(max(_KEY_BYTES // (widest * keys.element_size()), 16), 64),
            # Products in float32 are made without matrix units, and need the registers.
            num_warps=8 if keys.dtype == torch.float32 else 4,
            num_stages=1 if keys.dtype == torch.float32 else 3,
        )
    if not alone:
        _merge_kernel[(tokens, heads)](
            partial,
            lse,
            plan.partials,
            output,
            tokens,
            heads,
            VALUE_DIM=value_dim,
            BLOCK_VALUE_DIM=triton.next_power_of_2(value_dim),
            PARTIALS=triton.next_power_of_2(plan.most_partials),
            AT_ONCE=_MERGED_AT_ONCE,
            num_warps=1,
        )
    return output


def attend_twin(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: Plan,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """What `attend` computes, but for the rounding of the softmax."""
    tokens, heads, _ = query.shape
    page_size, kv_heads, value_dim = values.shape[1:]
    never = float("-inf")
    lse = torch.full((plan.most_partials, tokens, heads), never, device=query.device)
    partial = torch.zeros((*lse.shape, value_dim), device=query.device)
    for items in plan.items.values():
        for first, count, row, begin, end, which in items.tolist():
            tile = plan.queries[first : first + count]
            position = torch.arange(begin, end, device=query.device)
            page, offset = plan.tables[row, position // page_size], position % page_size
            k, v = keys[page, offset].float(), values[page, offset].float()  # [n, kv_heads, d]
            q = query[tile].float().unflatten(1, (kv_heads, -1))  # [queries, kv_heads, sharing, d]
            score = torch.einsum("qhsd,nhd->qhsn", q, k) * scale
            if softcap is not None:
                score = softcap * torch.tanh(score / softcap)
            at = plan.positions[tile][:, None]
            seen = position <= at
            if window is not None:
                seen &= position > at - window
            score = score.masked_fill(~seen[:, None, None], never)
            log_sum = torch.logsumexp(score, dim=-1)
            p = torch.exp(score - _finite(log_sum)[..., None])
            lse[which, tile] = log_sum.flatten(1)
            partial[which, tile] = torch.einsum("qhsn,nhd->qhsd", p, v).flatten(1, 2)
    share = torch.exp(lse - _finite(torch.logsumexp(lse, dim=0)))
    return (share[..., None] * partial).sum(0).to(query.dtype)


def _finite(log_sum: Tensor) -> Tensor:
    """0 for -inf: nothing was seen, and exp(-inf - 0) = 0."""
    return torch.where(torch.isneginf(log_sum), 0.0, log_sum)


@triton.jit(do_not_specialize=["tokens", "table_stride"])
def _partial_kernel(
    query,
    keys,
    values,
    tables,
    positions,
    queries,
    items,
    partial,
    lse,
    scale,
    window,
    tokens,
    heads,
    table_stride,
    query_stride,
    query_head_stride,
    key_page_stride,
    key_stride,
    key_head_stride,
    value_page_stride,
    value_stride,
    value_head_stride,
    SOFTCAP: tl.constexpr,
    SHARING: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """One item of one key head: row i of the tile is query i // SHARING, head i % SHARING.

    ``partial`` [partials, T, heads, d_value] (0 where nothing is seen) and ``lse`` float32
    [partials, T, heads].
    """
    item = items + tl.program_id(0) * 6
    kv_head = tl.program_id(1).to(tl.int64)
    first = tl.load(item)
    table = tables + tl.load(item + 2).to(tl.int64) * table_stride
    begin, end = tl.load(item + 3), tl.load(item + 4)

    i = tl.arange(0, ROWS)
    exists = i < tl.load(item + 1) * SHARING
    token = tl.load(queries + first + i // SHARING, mask=exists, other=0).to(tl.int64)
    head = kv_head * SHARING + i % SHARING
    position = tl.load(positions + token, mask=exists, other=-1)
    begin = tl.maximum(begin, tl.min(tl.where(exists, position, end), axis=0) - window + 1)
    end = tl.minimum(end, tl.max(position, axis=0) + 1)

    d = tl.arange(0, BLOCK_DIM)
    dv = tl.arange(0, BLOCK_VALUE_DIM)
    q = tl.load(
        query + token[:, None] * query_stride + head[:, None] * query_head_stride + d[None, :],
        mask=exists[:, None] & (d < DIM)[None, :],
        other=0.0,
    )
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    sums = tl.zeros((ROWS, BLOCK_VALUE_DIM), tl.float32)
    for start in range(begin, end, KEYS):
        at = start + tl.arange(0, KEYS)
        inside = at < end
        page = tl.load(table + at // PAGE_SIZE, mask=inside, other=0).to(tl.int64)
        k_at = page * key_page_stride + at % PAGE_SIZE * key_stride + kv_head * key_head_stride
        k = tl.load(
            keys + k_at[None, :] + d[:, None],
            mask=inside[None, :] & (d < DIM)[:, None],
            other=0.0,
        )
        score = tl.dot(q, k, input_precision="ieee") * scale
        if SOFTCAP is not None:
            score = SOFTCAP * (2 * tl.sigmoid(2 * score / SOFTCAP) - 1)  # tanh
        seen = inside[None, :] & (at[None, :] <= position[:, None])
        seen = seen & (at[None, :] > position[:, None] - window)
        score = tl.where(seen, score, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(score, axis=1))
        finite = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        p = tl.exp(score - finite[:, None])
        decay = tl.exp(peak - finite)
        v_at = (
            page * value_page_stride + at % PAGE_SIZE * value_stride + kv_head * value_head_stride
        )
        v = tl.load(
            values + v_at[:, None] + dv[None, :],
            mask=inside[:, None] & (dv < VALUE_DIM)[None, :],
            other=0.0,
        )
        total = total * decay + tl.sum(p, axis=1)
        sums = sums * decay[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        peak = new_peak

    to = (tl.load(item + 5).to(tl.int64) * tokens + token) * heads + head
    mean = sums / tl.where(total == 0, 1.0, total)[:, None]
    tl.store(
        partial + to[:, None] * VALUE_DIM + dv[None, :],
        mean,
        mask=exists[:, None] & (dv < VALUE_DIM)[None, :],
    )
    tl.store(lse + to, peak + tl.log(total), mask=exists)


@triton.jit(do_not_specialize=["tokens"])
def _merge_kernel(
    partial,
    lse,
    partials,
    output,
    tokens,
    heads,
    VALUE_DIM: tl.constexpr,
    BLOCK_VALUE_DIM: tl.constexpr,
    PARTIALS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """One query of one head: its partial outputs, weighted by exp(lse)."""
    to = tl.program_id(0).to(tl.int64) * heads + tl.program_id(1)
    stride = tokens.to(tl.int64) * heads
    count = tl.load(partials + tl.program_id(0))
    which = tl.arange(0, PARTIALS)
    every = tl.load(lse + which * stride + to, mask=which < count, other=float("-inf"))
    peak = tl.max(every, axis=0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp(every - peak), axis=0)

    dv = tl.arange(0, BLOCK_VALUE_DIM)
    sums = tl.zeros((BLOCK_VALUE_DIM,), tl.float32)
    for start in range(0, count, AT_ONCE):
        some = start + tl.arange(0, AT_ONCE)
        weight = tl.exp(
            tl.load(lse + some * stride + to, mask=some < count, other=float("-inf")) - peak
        )
        part = tl.load(
            partial + (some * stride + to)[:, None] * VALUE_DIM + dv[None, :],
            mask=(some < count)[:, None] & (dv < VALUE_DIM)[None, :],
            other=0.0,
        )
        sums += tl.sum(weight[:, None] * part, axis=0)
    mean = sums / tl.where(total == 0, 1.0, total)
    tl.store(output + to * VALUE_DIM + dv, mean, mask=dv < VALUE_DIM)
