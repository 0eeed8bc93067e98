"""Attention over pages, as an attention implementation of transformers.

A forward pass carries the tokens of many rows laid end to end. In each layer the pass writes
its keys and values into their page slots and then lets every row's queries attend to the
row's own pages, causally by position: to what several rows share together, to the rest row by row,
merged by their log-sum-exps (Juravsky et al. 2024, "Hydragen"; Dao et al. 2023, "Flash-Decoding").
What is the same for all layers (slots, masks) is built once a pass; the pass in progress is the one
context that the attention function reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from smcprog.errors import ModelError
from smcprog.gpu.kernels import kernels_serve
from smcprog.gpu.kv_cache import PAD_PAGE, KVStore
from smcprog.gpu.sharing import Span, Trunk, shared

NAME = "smcprog_paged"

# Rows are padded to common lengths in groups. A group may waste half of its query-key pairs, or
# this many, and gathers at most so many keys at a time.
_SLACK_PAIRS = 1 << 14
_MOST_KEYS = 1 << 17
# Up to so many queries a row, query heads are packed on their key head, which then is read once.
_PACKED_QUERIES = 16

Ints = NDArray[np.int64]


class Rule(NamedTuple):
    """How a layer's scores are made: what they are multiplied by, how many positions back they
    reach (a query's own counted; None for all), and their soft cap (Gemma 2)."""

    scale: float
    window: int | None
    softcap: float | None


class Attending(Protocol):
    """What the attention function asks of a pass: to write its keys and values, and attend."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rule: Rule,
    ) -> Tensor:
        """query [1, heads, T, d], key and value [1, kv_heads, T, d] to [1, T, heads, d_value]."""
        ...


_current: Attending | None = None


@contextmanager
def attending(current: Attending) -> Iterator[None]:
    """Make ``current`` the pass that attention layers read."""
    global _current
    _current = current
    try:
        yield
    finally:
        _current = None


def paged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls in each layer (`AttentionInterface`)."""
    if _current is None:
        raise RuntimeError(f"attention {NAME!r} runs inside an Engine only")
    for unsupported in ("s_aux", "position_bias"):
        if kwargs.get(unsupported) is not None:
            raise ModelError(f"its attention needs {unsupported!r}, which paged attention lacks")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = Rule(scale, sliding_window, softcap)
    output = _current.attend(module.layer_idx, query, key, value, rule)
    return output, None


def register() -> None:
    """Make `paged_attention` known to transformers, which takes seconds to import."""
    from transformers import AttentionInterface

    # No mask at all is built for an implementation that is registered here alone.
    AttentionInterface.register(NAME, paged_attention)


def attention_pass(store: KVStore, spans: Sequence[Span], write_slots: Tensor) -> Attending:
    """One forward pass: where its keys and values go, and what its queries see.

    Args:
        store: the model's keys and values.
        spans: the rows' parts, in packed order.
        write_slots: int64[T], a flat slot (page * page_size + offset) for each packed token.
    """
    chosen = KernelPass if kernels_serve(store.keys) else AttentionPass
    return chosen(store, spans, write_slots)


def _write(keys: Tensor, values: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Put a layer's new keys and values [1, kv_heads, T, d] into their slots of it."""
    keys.index_copy_(0, slots, key[0].transpose(0, 1))
    values.index_copy_(0, slots, value[0].transpose(0, 1))


class KernelPass:
    """A pass by the Triton kernels: see `attention_pass`."""

    def __init__(self, store: KVStore, spans: Sequence[Span], write_slots: Tensor) -> None:
        self._store = store
        self._spans = spans
        self._write_slots = write_slots
        self._plan: Any = None

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rule: Rule,
    ) -> Tensor:
        from smcprog.gpu.triton import attention as kernels

        keys, values = self._store.keys[layer], self._store.values[layer]
        _write(keys.flatten(0, 1), values.flatten(0, 1), self._write_slots, key, value)
        packed = query[0].transpose(0, 1)
        if self._plan is None:
            page_size, kv_heads = keys.shape[1:3]
            trunks, _ = shared(self._spans, page_size)
            self._plan = kernels.plan(
                self._spans, packed.shape[1], kv_heads, page_size, packed.device, trunks
            )
        return kernels.attend(packed, keys, values, self._plan, *rule)[None]


class AttentionPass:
    """A pass by PyTorch's own attention: see `attention_pass`."""

    def __init__(self, store: KVStore, spans: Sequence[Span], write_slots: Tensor) -> None:
        self._keys = store.keys.flatten(1, 2)
        self._values = store.values.flatten(1, 2)
        self._write_slots = write_slots
        page_size = store.keys.shape[2]
        starts = np.cumsum([0] + [span.count for span in spans])
        trunks, begins = shared(spans, page_size)
        self._trunks = [_Trunk(trunk, spans, starts, page_size, store.keys) for trunk in trunks]
        self._groups = [
            _Group(
                [spans[i] for i in members],
                starts[members],
                np.array(begins)[members],
                page_size,
                store.keys,
                bool(trunks),
            )
            for members in _grouped(spans, begins)
        ]
        self._restore: Tensor | None = None
        if len(self._groups) > 1 or self._groups[0].ragged:
            self._restore = _restoring(self._groups, int(starts[-1]), store.keys.device)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rule: Rule,
    ) -> Tensor:
        keys, values = self._keys[layer], self._values[layer]
        _write(keys, values, self._write_slots, key, value)
        packed = query[0].transpose(0, 1)
        parts = [group.attend(packed, keys, values, rule) for group in self._groups]
        output, log_sum = self._restored([part.output for part in parts]), None
        if self._trunks:
            log_sum = self._restored([part.log_sum for part in parts if part.log_sum is not None])
            for trunk in self._trunks:
                output, log_sum = trunk.merge(packed, keys, values, rule, output, log_sum)
        return output.unsqueeze(0)

    def _restored(self, parts: Sequence[Tensor]) -> Tensor:
        """The groups' outputs in packed order: [T, ...]."""
        if self._restore is None:
            return parts[0]
        return torch.cat(list(parts)).index_select(0, self._restore)


class _Part(NamedTuple):
    """Attention to some of the keys: ``output`` [n, heads, d_value], and ``log_sum`` [n, heads],
    the log-sum-exp of the scores, where it is wanted."""

    output: Tensor
    log_sum: Tensor | None


class _Trunk:
    """Pages that several rows see: their queries attend to them as one long row."""

    def __init__(
        self, trunk: Trunk, spans: Sequence[Span], starts: Ints, page_size: int, like: Tensor
    ) -> None:
        index = [np.arange(starts[i], starts[i + 1]) for i in trunk.members]
        position = [np.arange(spans[i].start, spans[i].end) for i in trunk.members]
        flat = np.concatenate(index)
        self._index: Tensor | None = None  # of its queries; None for all, in order
        if len(flat) < starts[-1] or (flat != np.arange(len(flat))).any():
            self._index = torch.from_numpy(flat).to(like.device)
        self._position = np.concatenate(position)
        self._begin = trunk.begin
        slots = np.array(trunk.pages)[:, None] * page_size + np.arange(page_size)
        self._slots = torch.from_numpy(slots.ravel()).to(like.device)
        self._like = like
        self._seen: dict[int | None, tuple[Tensor, Tensor | None]] = {}

    def merge(
        self,
        packed: Tensor,
        keys: Tensor,
        values: Tensor,
        rule: Rule,
        output: Tensor,
        log_sum: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Add the trunk's keys to what the queries have attended to: ``output`` [T, heads, d_value]
        and ``log_sum`` [T, heads] to the same."""
        heads, kv_heads = packed.shape[1], keys.shape[1]
        sharing = heads // kv_heads
        if rule.window not in self._seen:
            self._seen[rule.window] = self._view(rule.window, sharing)
        slots, mask = self._seen[rule.window]
        if not len(slots):
            return output, log_sum
        index = self._index
        query = packed if index is None else packed.index_select(0, index)
        count = len(query)
        query = query.unflatten(1, (kv_heads, sharing)).transpose(0, 1).flatten(1, 2)[None]
        key = keys.index_select(0, slots).transpose(0, 1)[None]
        value = values.index_select(0, slots).transpose(0, 1)[None]
        out, total = _attention(query, key, value, mask, rule)
        out = out[0].unflatten(1, (count, sharing)).transpose(0, 1).flatten(1, 2)
        total = total[0].unflatten(1, (count, sharing)).transpose(0, 1).flatten(1, 2)
        if index is None:
            return _merged(output, log_sum, out, total)
        merged = _merged(output.index_select(0, index), log_sum.index_select(0, index), out, total)
        return output.index_copy(0, index, merged[0]), log_sum.index_copy(0, index, merged[1])

    def _view(self, window: int | None, sharing: int) -> tuple[Tensor, Tensor | None]:
        """The slots of the keys that some query sees, and an additive mask [1, 1, queries *
        sharing, keys] of those that it does not see, None for none."""
        if window is None:
            return self._slots, None
        oldest = self._position - window + 1 - self._begin  # the first key that each query sees
        first = min(max(int(oldest.min()), 0), len(self._slots))
        slots = self._slots[first:]
        hidden = np.arange(first, len(self._slots)) < oldest[:, None]
        if not hidden.any():
            return slots, None
        mask = torch.zeros(hidden.shape, dtype=self._like.dtype)
        # A query may see no key at all: its log-sum-exp has to be small, and not undefined.
        mask.masked_fill_(torch.from_numpy(hidden), torch.finfo(mask.dtype).min)
        return slots, mask.repeat_interleave(sharing, 0)[None, None].to(self._like.device)


def _merged(output: Tensor, log_sum: Tensor, out: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Attention to the keys of two parts together: [n, heads, d_value] and [n, heads] of each."""
    weight = torch.sigmoid(total - log_sum).to(output.dtype)
    return torch.lerp(output, out, weight[..., None]), torch.logaddexp(log_sum, total)


class _Group:
    """Tails of rows that are padded to one number of queries and one number of keys.

    Padding queries repeat their row's last query, padding keys are read from the pad page.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        starts: Ints,
        begins: Ints,
        page_size: int,
        like: Tensor,
        log_sums: bool,
    ) -> None:
        counts = np.array([span.count for span in spans])
        self.rows = len(spans)
        self.queries = int(counts.max())
        within = np.minimum(np.arange(self.queries), counts[:, None] - 1)
        self.index: Ints = starts[:, None] + within  # [rows, queries]
        self.ragged = bool(counts.min() < self.queries)
        first = int(starts[0])
        self._contiguous = bool(
            (self.index.ravel() == np.arange(first, first + self.index.size)).all()
        )
        self._first = first
        self._begin = begins
        self._log_sums = log_sums
        self._start = np.array([span.start for span in spans])
        self._end = np.array([span.end for span in spans])
        self._position = self._start[:, None] + within
        self._page_size = page_size
        self._spans = spans
        self._like = like
        self._seen: dict[int | None, tuple[Tensor, Tensor]] = {}

    def attend(
        self,
        packed: Tensor,
        keys: Tensor,
        values: Tensor,
        rule: Rule,
    ) -> _Part:
        """packed [T, heads, d], keys and values [slots, kv_heads, d] to [rows * queries, ...]."""
        if self._contiguous:
            flat = packed[self._first : self._first + self.rows * self.queries]
        else:
            flat = packed.index_select(0, self._index_tensor)
        heads, kv_heads = flat.shape[1], keys.shape[1]
        sharing = heads // kv_heads
        packing = sharing if self.queries <= _PACKED_QUERIES else 1
        if rule.window not in self._seen:
            self._seen[rule.window] = self._view(rule.window, packing)
        slots, mask = self._seen[rule.window]

        query = flat.unflatten(0, (self.rows, self.queries)).transpose(1, 2)
        key = keys.index_select(0, slots).unflatten(0, (self.rows, -1)).transpose(1, 2)
        value = values.index_select(0, slots).unflatten(0, (self.rows, -1)).transpose(1, 2)
        if packing < sharing:
            key = key.repeat_interleave(sharing, 1)
            value = value.repeat_interleave(sharing, 1)
        query = query.reshape(self.rows, heads // packing, packing * self.queries, -1)
        if self._log_sums or rule.softcap is not None:
            output, total = _attention(query, key, value, mask, rule)
            log_sum = total.reshape(self.rows, heads, self.queries).transpose(1, 2).flatten(0, 1)
        else:
            output = scaled_dot_product_attention(query, key, value, mask, scale=rule.scale)
            log_sum = None
        output = output.reshape(self.rows, heads, self.queries, -1)
        return _Part(output.transpose(1, 2).flatten(0, 1), log_sum)

    @cached_property
    def _index_tensor(self) -> Tensor:
        return torch.from_numpy(self.index.ravel()).to(self._like.device)

    def _view(self, window: int | None, packing: int) -> tuple[Tensor, Tensor]:
        """The keys that a layer with this window can see.

        Returns:
            int64[rows * keys] slots, and an additive mask [rows, 1, packing * queries, keys], or
            [rows, 1, 1, keys] for one query.
        """
        begin = self._begin
        if window is not None:
            begin = np.maximum(self._start - window + 1, begin)
        width = int((self._end - begin).max())
        position = begin[:, None] + np.arange(width)  # [rows, keys]
        most_pages = max(-(-span.end // self._page_size) for span in self._spans)
        table = np.full((self.rows, most_pages), PAD_PAGE)
        for i, span in enumerate(self._spans):
            used = -(-span.end // self._page_size)
            table[i, :used] = span.pages[:used]
        inside = position < self._end[:, None]
        page = np.take_along_axis(
            table, np.minimum(position // self._page_size, most_pages - 1), axis=1
        )
        slots = np.where(inside, page * self._page_size + position % self._page_size, PAD_PAGE)
        query = self._position[:, :, None]
        seen = position[:, None, :] <= query
        if window is not None:
            seen &= position[:, None, :] > query - window
        mask = torch.zeros(
            (self.rows, 1, self.queries, width), dtype=self._like.dtype, device=self._like.device
        )
        hidden = torch.from_numpy(~seen[:, None]).to(self._like.device)
        mask.masked_fill_(hidden, float("-inf"))
        if self.queries > 1:  # one query's mask broadcasts
            mask = mask.repeat(1, 1, packing, 1)
        return torch.from_numpy(slots.ravel()).to(self._like.device), mask


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rule: Rule
) -> tuple[Tensor, Tensor]:
    """Attention [rows, heads, queries, d_value] with its log-sum-exp [rows, heads, queries], with
    the scores' soft cap (Gemma 2) where there is one; softmax in float32 or wider."""
    if rule.softcap is None and query.device.type == "cpu" and query.shape[-1] == value.shape[-1]:
        # The kernel behind scaled_dot_product_attention, which alone does not return the log-sum.
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, total = flash(query, key, value, attn_mask=mask, scale=rule.scale)
        return output, total
    scores = query @ key.transpose(-1, -2) * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is not None:
        scores = scores + mask
    total = torch.logsumexp(scores, dim=-1, keepdim=True)
    return torch.exp(scores - total).to(value.dtype) @ value, total[..., 0]


def _grouped(spans: Sequence[Span], begins: Sequence[int]) -> list[list[int]]:
    """Split spans' tails into groups of like sizes; packed order is kept where one group will
    do."""
    lengths = [span.end - begin for span, begin in zip(spans, begins, strict=True)]
    order = sorted(range(len(spans)), key=lambda i: (spans[i].count, lengths[i]), reverse=True)
    groups: list[list[int]] = []
    queries = keys = pairs = 0
    for i in order:
        span, length = spans[i], lengths[i]
        if groups:
            rows = len(groups[-1]) + 1
            widest = max(keys, length)
            padded = rows * queries * widest
            fits = padded <= 2 * (pairs + span.count * length) + _SLACK_PAIRS
            if fits and rows * widest <= _MOST_KEYS:
                groups[-1].append(i)
                keys, pairs = widest, pairs + span.count * length
                continue
        groups.append([i])
        queries, keys, pairs = span.count, length, span.count * length
    return [sorted(group) for group in groups]


def _restoring(groups: Sequence[_Group], tokens: int, device: torch.device) -> Tensor:
    """Where each packed token's output lies in the groups' outputs, laid end to end: int64[T]."""
    index = np.empty(tokens, dtype=np.int64)
    at = 0
    for group in groups:
        flat = group.index.ravel()  # padding repeats a query: either will do
        index[flat] = np.arange(at, at + len(flat))
        at += len(flat)
    return torch.from_numpy(index).to(device)
