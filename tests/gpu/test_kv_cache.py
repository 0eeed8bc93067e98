"""The page pool against a plain model: rows are lists of tokens, writes are (prefix -> value)."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    precondition,
    rule,
)

from smcprog.errors import KVPoolError
from smcprog.gpu import kv_cache
from smcprog.gpu.kv_cache import SCRATCH_PAGE, KVStore, PagedRow, PagePool, settle

SIZE = 4
MODELS = 2
TOKENS = st.lists(st.integers(0, 1), max_size=2 * SIZE + 1)
MODEL = st.integers(0, MODELS - 1)


class PoolMachine(RuleBasedStateMachine):
    """Random use of a pool, with a store that holds at each slot what its prefix deserves."""

    rows = Bundle("rows")

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(MODELS, limit=12, page_size=SIZE)
        self.expected: dict[PagedRow, list[int]] = {}
        self.codes: dict[tuple[int, ...], float] = {}
        self.stores = [
            KVStore(1, 1, 1, 1, SIZE, torch.float64, torch.device("cpu")) for _ in range(MODELS)
        ]
        for store in self.stores:
            store.fix(12)

    def code(self, prefix: list[int]) -> float:
        """The key of a token: a function of all that comes before it."""
        return self.codes.setdefault(tuple(prefix), float(len(self.codes) + 1))

    @rule(target=rows, tokens=TOKENS)
    def open(self, tokens: list[int]) -> object:
        try:
            row = self.pool.open(tokens)
        except KVPoolError:
            return multiple()
        self.expected[row] = list(tokens)
        return row

    @rule(target=rows, row=rows)
    def fork(self, row: PagedRow) -> PagedRow:
        new = self.pool.fork(row)
        self.expected[new] = list(self.expected[row])
        return new

    @rule(row=consumes(rows))
    def free(self, row: PagedRow) -> None:
        self.pool.free(row)
        del self.expected[row]

    @rule(row=rows, data=st.data())
    def truncate(self, row: PagedRow, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, row.length))
        self.pool.truncate(row, length)
        del self.expected[row][length:]

    @rule(row=rows, other=rows, tokens=TOKENS, more=TOKENS)
    def append(self, row: PagedRow, other: PagedRow, tokens: list[int], more: list[int]) -> None:
        self.try_append({row: tokens, other: more})

    def try_append(self, pairs: dict[PagedRow, list[int]]) -> None:
        held = self.pool.held(self.expected)
        try:
            self.pool.append(list(pairs), list(pairs.values()))
        except KVPoolError as error:
            assert self.pool.held(self.expected) == held
            needed = int(str(error).split(", and ")[1].split()[0])
            assert needed > 12 * SIZE
            return
        for one, ids in pairs.items():
            self.expected[one] += ids

    @rule(row=rows, back=st.integers(1, 2 * SIZE), tokens=TOKENS)
    def redo(self, row: PagedRow, back: int, tokens: list[int]) -> None:
        """Roll back and go on differently, as a rejected block does."""
        length = max(row.length - back, 0)
        self.pool.truncate(row, length)
        del self.expected[row][length:]
        self.try_append({row: tokens})

    @rule(row=rows, other=rows, model=MODEL, end=st.none() | st.integers(1, 3 * SIZE))
    def write(self, row: PagedRow, other: PagedRow, model: int, end: int | None) -> None:
        """A pass of one model over two rows, to their ends or not as far."""
        for one in (row, other):
            self.write_to(one, model, one.length if end is None else min(end, one.length))

    def write_to(self, row: PagedRow, model: int, end: int) -> None:
        settle(self.pool, self.stores)
        slots = self.stores[model].keys.flatten(1, 2)[0, :, 0, 0]
        written = self.pool.written(row, model)
        if end > written:
            self.pool.mark(row, model, end)
        for at in range(written, end):
            slot = row.pages[at // SIZE] * SIZE + at % SIZE
            slots[slot] = self.code(row.tokens[: at + 1])

    @precondition(lambda self: self.expected)
    @rule(model=MODEL)
    def write_all(self, model: int) -> None:
        for row in self.expected:
            self.write_to(row, model, row.length)

    @rule(row=rows, other=rows, model=MODEL)
    def fail(self, row: PagedRow, other: PagedRow, model: int) -> None:
        """A pass that fails before it writes."""
        before = [self.pool.written(one, model) for one in self.expected]
        marks = []
        for one in (row, other):
            if one.length:
                marks += self.pool.mark(one, model, one.length)
        self.pool.unmark(model, marks)
        assert [self.pool.written(one, model) for one in self.expected] == before

    @invariant()
    def tokens_are_spelled(self) -> None:
        for row, tokens in self.expected.items():
            assert row.tokens == tokens
            assert len(row.pages) == -(-len(tokens) // SIZE)
            for i, number in enumerate(row.pages):
                seen = tokens[i * SIZE : (i + 1) * SIZE]
                assert self.pool.pages[number].tokens[: len(seen)] == seen

    @invariant()
    def references_are_exact(self) -> None:
        counts = Counter(number for row in self.expected for number in row.pages)
        assert counts == {number: page.refs for number, page in self.pool.pages.items()}
        assert SCRATCH_PAGE not in counts

    @invariant()
    def registered_pages_are_full_and_unique(self) -> None:
        for row in self.expected:
            for i in range(row.length // SIZE):
                assert self.pool.pages[row.pages[i]].serial
        keys = [page.key for page in self.pool.pages.values() if page.key is not None]
        assert len(keys) == len(set(keys))
        for page in self.pool.pages.values():
            assert page.key is None or page.key[1] == tuple(page.tokens)

    @invariant()
    def what_is_written_belongs_to_the_prefix(self) -> None:
        """Read as a pass would, with the waiting copies applied to a scratch store."""
        sources = dict(zip(*reversed(self.pool_copies()), strict=True))
        for model, store in enumerate(self.stores):
            for row in self.expected:
                for at in range(self.pool.written(row, model)):
                    number = row.pages[at // SIZE]
                    value = store.keys[0, sources.get(number, number), at % SIZE, 0, 0]
                    assert float(value) == self.code(row.tokens[: at + 1])

    def pool_copies(self) -> tuple[list[int], list[int]]:
        copies = self.pool._copies
        return list(copies.values()), list(copies)

    def teardown(self) -> None:
        for row in self.expected:
            self.pool.free(row)
        assert not self.pool.pages
        assert not self.pool._by_key
        assert sorted(self.pool._free) == list(range(2, self.pool.size))
        assert self.pool.take_copies() == ([], [])


PoolMachine.TestCase.settings = settings(max_examples=70, stateful_step_count=30, deadline=None)
TestPool = PoolMachine.TestCase


def test_rows_that_append_one_prompt_separately_share_its_full_pages() -> None:
    pool = PagePool(1, page_size=4)
    rows = [pool.open([1, 2]) for _ in range(3)]
    assert pool.held(rows) == 6
    pool.append(rows, [[3, 4, 5, 6, 7]] * 3)
    assert pool.held(rows) == 4 + 3 * 3
    pool.append(rows, [[8], [8], [9]])
    assert pool.held(rows) == 4 + 4 + 4


def test_forks_share_a_page_until_they_differ() -> None:
    pool = PagePool(1, page_size=4)
    row = pool.open([1, 2])
    pool.mark(row, 0, 2)
    forks = [pool.fork(row) for _ in range(2)]
    pool.append([row, *forks], [[3], [3], [9]])
    assert row.pages == forks[0].pages
    assert forks[1].pages != row.pages
    assert [r.copied for r in (row, *forks)] == [0, 0, 2]
    assert pool.written(forks[1], 0) == 2


def test_a_page_that_is_written_anew_forgets_what_was_beyond() -> None:
    pool = PagePool(2, page_size=4)
    row = pool.open([1, 2, 3, 4])
    pool.mark(row, 0, 4)
    pool.mark(row, 1, 1)
    pool.truncate(row, 3)
    assert pool.written(row, 0) == 3
    pool.append([row], [[9]])
    assert [pool.written(row, model) for model in (0, 1)] == [3, 1]
    again = pool.open([1, 2, 3, 4])
    assert again.pages != row.pages and pool.written(again, 0) == 0


def test_a_copy_of_a_copy_reads_the_first_source() -> None:
    pool = PagePool(1, page_size=4)
    a = pool.open([1, 2, 3])
    pool.mark(a, 0, 3)
    b = pool.fork(a)
    pool.append([b, a], [[5], [7]])
    c = pool.fork(a)
    pool.truncate(c, 3)
    pool.append([c], [[6]])
    source = b.pages[0]
    assert pool.take_copies() == ([source, source], [a.pages[0], c.pages[0]])


def test_a_full_pool_names_the_number_that_would_do_and_changes_nothing() -> None:
    pool = PagePool(1, limit=3, page_size=4)
    rows = [pool.open([1, 2, 3, 4]), pool.open([5, 6])]
    with pytest.raises(KVPoolError, match="kv_tokens=12, and 20 would have been enough"):
        pool.append(rows, [[1], [7] * 7])
    assert [row.tokens for row in rows] == [[1, 2, 3, 4], [5, 6]]
    assert pool.held(rows) == 6
    pool.append(rows, [[1], [7, 7]])


def test_sharing_counts_before_a_pool_is_full() -> None:
    pool = PagePool(1, limit=2, page_size=4)
    rows = [pool.open([1, 2, 3, 4, 1, 2, 3, 4]) for _ in range(5)]
    assert pool.held(rows) == 8


def test_a_store_grows_by_doubling_and_keeps_its_content() -> None:
    store = KVStore(2, 1, 3, 5, 4, torch.float32, torch.device("cpu"))
    store.reserve(3)
    store.keys[:, 2] = 7
    store.reserve(65)
    assert store.keys.shape == (2, 128, 4, 1, 3)
    assert store.values.shape == (2, 128, 4, 1, 5)
    assert bool((store.keys[:, 2] == 7).all()) and float(store.keys[:, 3:].abs().sum()) == 0


def test_a_device_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    store = KVStore(1, 1, 1, 1, 4, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(kv_cache, "_grown", full)
    with pytest.raises(KVPoolError, match="no memory for a KV pool of 400 tokens"):
        store.reserve(100)
