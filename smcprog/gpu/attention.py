"""Attention over pages, as an attention implementation of transformers.

A forward pass carries the tokens of many rows laid end to end. In each layer `AttentionPass` writes
this pass's keys and values into their page slots and then lets every row's queries attend to the
row's own pages, causally by position. What is the same for all layers (slots, masks) is built
once a pass; the pass in progress is the one context that the attention function reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from smcprog.errors import ModelError
from smcprog.gpu.kv_cache import PAD_PAGE, KVStore

NAME = "smcprog_paged"

# Rows are padded to common lengths in groups. A group may waste half of its query-key pairs, or
# this many, and gathers at most so many keys at a time.
_SLACK_PAIRS = 1 << 14
_MOST_KEYS = 1 << 17
# Up to so many queries a row, query heads are packed on their key head, which then is read once.
_PACKED_QUERIES = 16

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of one row in a pass: positions ``start`` .. ``end`` - 1."""

    pages: Sequence[int]
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


class Attending(Protocol):
    """What the attention function asks of the pass in progress."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
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
    output = _current.attend(module.layer_idx, query, key, value, scale, sliding_window, softcap)
    return output, None


def register() -> None:
    """Make `paged_attention` known to transformers, which takes seconds to import."""
    from transformers import AttentionInterface

    # No mask at all is built for an implementation that is registered here alone.
    AttentionInterface.register(NAME, paged_attention)


class AttentionPass:
    """One forward pass: where its keys and values go, and what its queries see.

    Args:
        store: the model's keys and values.
        spans: the rows' parts, in packed order.
        write_slots: int64[T], a flat slot (page * page_size + offset) for each packed token.
    """

    def __init__(self, store: KVStore, spans: Sequence[Span], write_slots: Tensor) -> None:
        self._keys = store.keys.flatten(1, 2)
        self._values = store.values.flatten(1, 2)
        self._write_slots = write_slots
        page_size = store.keys.shape[2]
        starts = np.cumsum([0] + [span.count for span in spans])
        self._groups = [
            _Group([spans[i] for i in members], starts[members], page_size, store.keys)
            for members in _grouped(spans)
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
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        keys, values = self._keys[layer], self._values[layer]
        keys.index_copy_(0, self._write_slots, key[0].transpose(0, 1))
        values.index_copy_(0, self._write_slots, value[0].transpose(0, 1))
        packed = query[0].transpose(0, 1)
        outputs = [
            group.attend(packed, keys, values, scale, window, softcap) for group in self._groups
        ]
        if self._restore is None:
            return outputs[0].unsqueeze(0)
        return torch.cat(outputs).index_select(0, self._restore).unsqueeze(0)


class _Group:
    """Rows that are padded to one number of queries and one number of keys.

    Padding queries repeat their row's last query, padding keys are read from the pad page.
    """

    def __init__(self, spans: Sequence[Span], starts: Ints, page_size: int, like: Tensor) -> None:
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
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """packed [T, heads, d], keys and values [slots, kv_heads, d] to [rows * queries, ...]."""
        if self._contiguous:
            flat = packed[self._first : self._first + self.rows * self.queries]
        else:
            flat = packed.index_select(0, self._index_tensor)
        heads, kv_heads = flat.shape[1], keys.shape[1]
        sharing = heads // kv_heads
        packing = sharing if self.queries <= _PACKED_QUERIES else 1
        if window not in self._seen:
            self._seen[window] = self._view(window, packing)
        slots, mask = self._seen[window]

        query = flat.unflatten(0, (self.rows, self.queries)).transpose(1, 2)
        key = keys.index_select(0, slots).unflatten(0, (self.rows, -1)).transpose(1, 2)
        value = values.index_select(0, slots).unflatten(0, (self.rows, -1)).transpose(1, 2)
        if packing < sharing:
            key = key.repeat_interleave(sharing, 1)
            value = value.repeat_interleave(sharing, 1)
        query = query.reshape(self.rows, heads // packing, packing * self.queries, -1)
        if softcap is None:
            output = scaled_dot_product_attention(query, key, value, mask, scale=scale)
        else:
            output = _capped(query, key, value, mask, scale, softcap)
        output = output.reshape(self.rows, heads, self.queries, -1)
        return output.transpose(1, 2).flatten(0, 1)

    @cached_property
    def _index_tensor(self) -> Tensor:
        return torch.from_numpy(self.index.ravel()).to(self._like.device)

    def _view(self, window: int | None, packing: int) -> tuple[Tensor, Tensor]:
        """The keys that a layer with this window can see.

        Returns:
            int64[rows * keys] slots, and an additive mask [rows, 1, packing * queries, keys], or
            [rows, 1, 1, keys] for one query.
        """
        begin = np.zeros_like(self._start)
        if window is not None:
            begin = np.maximum(self._start - window + 1, 0)
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


def _capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    """Attention with the scores' soft cap (Gemma 2), softmax in float32 or wider."""
    scores = query @ key.transpose(-1, -2) * scale
    scores = softcap * torch.tanh(scores / softcap) + mask
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.softmax(scores, dim=-1, dtype=wide).to(value.dtype) @ value


def _grouped(spans: Sequence[Span]) -> list[list[int]]:
    """Split spans into groups of like sizes; packed order is kept where one group will do."""
    order = sorted(range(len(spans)), key=lambda i: (spans[i].count, spans[i].end), reverse=True)
    groups: list[list[int]] = []
    queries = keys = pairs = 0
    for i in order:
        span = spans[i]
        if groups:
            rows = len(groups[-1]) + 1
            widest = max(keys, span.end)
            padded = rows * queries * widest
            fits = padded <= 2 * (pairs + span.count * span.end) + _SLACK_PAIRS
            if fits and rows * widest <= _MOST_KEYS:
                groups[-1].append(i)
                keys, pairs = widest, pairs + span.count * span.end
                continue
        groups.append([i])
        queries, keys, pairs = span.count, span.end, span.count * span.end
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
