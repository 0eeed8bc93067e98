"""Pages of keys and values: who holds which, what is written on them, and the tensors.

A row is a list of tokens and a list of page numbers, sixteen tokens a page. All models share one
page table per row: each has its own tensors, indexed by the same page numbers, and each page
remembers how many of its leading positions every model has written. So rows that share a page
share what is computed on it.

Rows form a trie of pages. A row sees the first so many tokens of its last page, and another row
may see more of the same page. Three rules keep this right:

- *Copy on write.* A row that would put a token where the page already has another one takes a
  copy first, unless no other row holds the page.
- *Full pages are addressed by content*: by the page before and their own tokens. A row that
  completes a page that already lives elsewhere moves over to that one, so a prompt that N rows
  append separately is held and computed once.
- A page that is registered under its content never changes while it is registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from smcprog.errors import KVPoolError

PAD_PAGE = 0
"""Always zero: what padding reads (stale NaNs would survive a mask)."""
SCRATCH_PAGE = 1
"""Where a token goes that is fed again for its logits alone."""
_RESERVED = 2
_FIRST_PAGES = 64

Key = tuple[int, tuple[int, ...]]


@dataclass(eq=False)
class Page:
    """What is known of one page.

    Attributes:
        filled: per model, how many leading positions have keys and values.
        serial: names the content for the keys of the pages that follow; 0 while not registered.
    """

    filled: list[int]
    refs: int = 1
    tokens: list[int] = field(default_factory=list)
    serial: int = 0
    key: Key | None = None


@dataclass(eq=False)
class PagedRow:
    """One token context. ``copied`` counts the tokens copied on its behalf (copy on write)."""

    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    copied: int = 0

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.tokens)


class PagePool:
    """The bookkeeping of pages, free of tensors.

    Args:
        models: how many models write on each page.
        limit: the most pages that may be in use; None grows on demand.
        page_size: tokens a page.
    """

    def __init__(self, models: int, limit: int | None = None, page_size: int = 16) -> None:
        self.page_size = page_size
        self.limit = limit
        self.pages: dict[int, Page] = {}
        self._models = models
        self._free: list[int] = []
        self._end = _RESERVED
        self._peak = 0
        self._by_key: dict[Key, int] = {}
        self._serials = 0
        self._copies: dict[int, int] = {}

    def add_model(self) -> None:
        """Let one more model write on the pages; it has written on none."""
        self._models += 1
        for page in self.pages.values():
            page.filled.append(0)

    # Rows

    def open(self, tokens: Sequence[int]) -> PagedRow:
        """A new row. Raises KVPoolError."""
        row = PagedRow()
        self.append([row], [tokens])
        return row

    def fork(self, row: PagedRow) -> PagedRow:
        """A row with the same tokens on the same pages."""
        for number in row.pages:
            self.pages[number].refs += 1
        return PagedRow(list(row.tokens), list(row.pages))

    def free(self, row: PagedRow) -> None:
        """Give the row's pages back; it has no tokens afterwards."""
        self.truncate(row, 0)

    def truncate(self, row: PagedRow, length: int) -> None:
        """Keep the first ``length`` tokens. The last page keeps what others may see of it."""
        if not 0 <= length <= row.length:
            raise ValueError(f"cannot truncate a row of {row.length} tokens to {length}")
        keep = -(-length // self.page_size)
        for number in reversed(row.pages[keep:]):
            self._release(number)
        del row.pages[keep:]
        del row.tokens[length:]

    def append(self, rows: Sequence[PagedRow], tokens: Sequence[Sequence[int]]) -> None:
        """Append tokens, any number per row.

        Raises:
            KVPoolError: if the pool is fixed and too small; all rows are then as before.
        """
        if self.limit is None or len(self.pages) + self._most_new_pages(tokens) <= self.limit:
            for row, ids in zip(rows, tokens, strict=True):
                self._append(row, ids)
            return
        # Sharing may still make it fit, so try, and go back where it does not.
        pool_before = self._snapshot()
        rows_before = [(list(row.tokens), list(row.pages), row.copied) for row in rows]
        self._peak = len(self.pages)
        for row, ids in zip(rows, tokens, strict=True):
            self._append(row, ids)
        if self._peak > self.limit:
            needed = self._peak * self.page_size
            self.__dict__.update(pool_before)
            for row, before in zip(rows, rows_before, strict=True):
                row.tokens, row.pages, row.copied = before
            raise KVPoolError(
                f"the KV pool is full: it has kv_tokens={self.limit * self.page_size}, and "
                f"{needed} would have been enough for this step; pass Engine(..., "
                f"kv_tokens={needed}) or more, or None to let it grow"
            )

    def held(self, rows: Iterable[PagedRow]) -> int:
        """Tokens that these rows hold together, each shared page counted once."""
        seen: dict[int, int] = {}
        for row in rows:
            left = row.length
            for number in row.pages:
                seen[number] = max(seen.get(number, 0), min(left, self.page_size))
                left -= self.page_size
        return sum(seen.values())

    # What is written

    def written(self, row: PagedRow, model: int) -> int:
        """How many leading tokens of the row have keys and values of ``model``."""
        for i in range(len(row.pages) - 1, -1, -1):
            filled = self.pages[row.pages[i]].filled[model]
            if filled:
                return min(i * self.page_size + filled, row.length)
        return 0

    def mark(self, row: PagedRow, model: int, end: int) -> list[tuple[Page, int]]:
        """Note that the first ``end`` tokens are written; returns what `unmark` needs."""
        before: list[tuple[Page, int]] = []
        for i in range((end - 1) // self.page_size, -1, -1):
            page = self.pages[row.pages[i]]
            filled = min(end - i * self.page_size, self.page_size)
            if page.filled[model] >= filled:
                break
            before.append((page, page.filled[model]))
            page.filled[model] = filled
        return before

    @staticmethod
    def unmark(model: int, before: Iterable[tuple[Page, int]]) -> None:
        """Take `mark` back: the pass that was to write them failed."""
        for page, filled in before:
            page.filled[model] = min(page.filled[model], filled)

    def take_copies(self) -> tuple[list[int], list[int]]:
        """Sources and destinations of the page copies that must be made before the next write.

        Read all sources before writing any destination: a page may be both.
        """
        copies, self._copies = self._copies, {}
        return list(copies.values()), list(copies)

    @property
    def size(self) -> int:
        """One more than the largest page number that was ever in use."""
        return self._end

    # Pages

    def _append(self, row: PagedRow, tokens: Sequence[int]) -> None:
        at = 0
        while at < len(tokens):
            used = row.length % self.page_size
            chunk = list(tokens[at : at + self.page_size - used])
            at += len(chunk)
            key = self._key_if_full(row, used, chunk)
            shared = None if key is None else self._by_key.get(key)
            if shared is not None:
                self._move_to(row, used, shared)
            elif used == 0:
                number = self._allocate()
                self.pages[number].tokens = chunk
                row.pages.append(number)
            else:
                self._write(row, used, chunk)
            if key is not None and shared is None:
                self._register(row.pages[-1], key)
            row.tokens.extend(chunk)

    def _key_if_full(self, row: PagedRow, used: int, chunk: list[int]) -> Key | None:
        if used + len(chunk) < self.page_size:
            return None
        before = row.length // self.page_size - 1
        parent = self.pages[row.pages[before]].serial if before >= 0 else 0
        return parent, tuple(row.tokens[row.length - used :] + chunk)

    def _move_to(self, row: PagedRow, used: int, number: int) -> None:
        """Go on with a live page that has the content this one is about to have."""
        self.pages[number].refs += 1
        if used:
            self._release(row.pages.pop())
        row.pages.append(number)

    def _write(self, row: PagedRow, used: int, chunk: list[int]) -> None:
        """Put ``chunk`` after the ``used`` tokens that the row sees of its last page."""
        number = row.pages[-1]
        page = self.pages[number]
        ahead = page.tokens[used:]
        same = 0
        while same < min(len(ahead), len(chunk)) and ahead[same] == chunk[same]:
            same += 1
        keep = used + same
        if same < len(ahead) and same < len(chunk):
            if page.refs == 1:
                self._unregister(page)
                del page.tokens[keep:]
                page.filled = [min(filled, keep) for filled in page.filled]
            else:
                page = self._copy(row, number, keep)
        page.tokens.extend(chunk[len(page.tokens) - used :])

    def _copy(self, row: PagedRow, number: int, keep: int) -> Page:
        """Give the row a page of its own with the first ``keep`` tokens of the last one."""
        old = self.pages[number]
        new = self._allocate()
        page = self.pages[new]
        page.tokens = old.tokens[:keep]
        page.filled = [min(filled, keep) for filled in old.filled]
        if any(page.filled):
            # The source may itself wait for its copy: nothing is on it that is not on its source.
            self._copies[new] = self._copies.get(number, number)
            row.copied += max(page.filled)
        self._release(number)
        row.pages[-1] = new
        return page

    def _allocate(self) -> int:
        if self._free:
            number = self._free.pop()
        else:
            number = self._end
            self._end += 1
        self.pages[number] = Page([0] * self._models)
        self._peak = max(self._peak, len(self.pages))
        return number

    def _release(self, number: int) -> None:
        page = self.pages[number]
        page.refs -= 1
        if page.refs == 0:
            self._unregister(page)
            self._copies.pop(number, None)
            del self.pages[number]
            self._free.append(number)

    def _register(self, number: int, key: Key) -> None:
        self._serials += 1
        page = self.pages[number]
        page.serial, page.key = self._serials, key
        self._by_key[key] = number

    def _unregister(self, page: Page) -> None:
        if page.key is not None:
            del self._by_key[page.key]
            page.serial, page.key = 0, None

    def _most_new_pages(self, tokens: Sequence[Sequence[int]]) -> int:
        return sum(len(ids) // self.page_size + 2 for ids in tokens)

    def _snapshot(self) -> dict[str, object]:
        state = {name: copy(value) for name, value in self.__dict__.items()}
        state["pages"] = {
            number: Page(list(p.filled), p.refs, list(p.tokens), p.serial, p.key)
            for number, p in self.pages.items()
        }
        return state


class KVStore:
    """The keys and values of one model.

    Attributes:
        keys: [layers, pages, page_size, kv_heads, key_dim]
        values: [layers, pages, page_size, kv_heads, value_dim]
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        key_dim: int,
        value_dim: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.keys = torch.zeros(
            (layers, 0, page_size, kv_heads, key_dim), dtype=dtype, device=device
        )
        self.values = torch.zeros(
            (layers, 0, page_size, kv_heads, value_dim), dtype=dtype, device=device
        )

    def reserve(self, pages: int) -> None:
        """Have room for at least ``pages`` pages; doubles, so that growth is rare.

        Raises:
            KVPoolError: if the device has no memory for them.
        """
        have = self.keys.shape[1]
        if pages > have:
            self._resize(max(pages, 2 * have, _FIRST_PAGES), pages)

    def fix(self, pages: int) -> None:
        """Allocate exactly ``pages`` pages of a pool that will not grow. Raises KVPoolError."""
        self._resize(pages + _RESERVED)

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy whole pages, reading all before writing any."""
        device = self.keys.device
        source = torch.tensor(sources, device=device)
        destination = torch.tensor(destinations, device=device)
        for tensor in (self.keys, self.values):
            tensor.index_copy_(1, destination, tensor.index_select(1, source))

    def _resize(self, *sizes: int) -> None:
        """Take the first of these numbers of pages that the device has memory for."""
        for pages in sizes:
            try:
                self.keys, self.values = _grown(self.keys, pages), _grown(self.values, pages)
                return
            except torch.OutOfMemoryError as error:
                cause = error
        raise KVPoolError(
            f"no memory for a KV pool of {sizes[-1] * self.keys.shape[2]} tokens; take fewer "
            "particles or runs at a time, or a smaller model"
        ) from cause


def settle(pool: PagePool, stores: Iterable[KVStore]) -> None:
    """Make room for every page in use and carry out the waiting copies: before each pass."""
    sources, destinations = pool.take_copies()
    for store in stores:
        store.reserve(pool.size)
        if sources:
            store.copy(sources, destinations)


def _grown(old: Tensor, pages: int) -> Tensor:
    new = old.new_zeros((old.shape[0], pages, *old.shape[2:]))
    new[:, : old.shape[1]] = old
    return new
