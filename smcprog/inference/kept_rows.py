"""Rows of an engine that outlive a call, so that the contexts of the next one only extend them."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from smcprog.errors import KVPoolError
from smcprog.inference.interface import EngineInterface, Row

KEPT = 256
"""How many contexts are remembered."""

Ids = tuple[int, ...]
T = TypeVar("T")


class Kept(Generic[T]):
    """States of token contexts, of which the last used stay; that of the empty one always does."""

    def __init__(self) -> None:
        self.states: OrderedDict[Ids, T] = OrderedDict()

    def longest(self, context: Ids) -> Ids:
        """The longest beginning of a context that has a state."""
        length = next(n for n in range(len(context), -1, -1) if context[:n] in self.states)
        self.states.move_to_end(context[:length])
        return context[:length]

    def evict(self, but: int) -> list[T]:
        """Take out the states that were not used last, but so many."""
        self.states.move_to_end(())
        return [self.states.popitem(last=False)[1] for _ in range(len(self.states) - but)]


@dataclass(eq=False)
class Read:
    """A context at the engine, and its log probability where it is known."""

    row: Row
    log_p: float | None = None


_left: WeakKeyDictionary[EngineInterface, deque[Read]] = WeakKeyDictionary()
"""What was garbage before it was closed. The collector may strike while the engine works on its
pages, so these rows wait until the next call that reads anything."""


class KeptRows:
    """The rows of the contexts that were read last, all of them after the same opening tokens.

    Kept are 256, or those of the last call where it read more. They take no memory that others
    need: where a fixed pool is full, they are given up first.
    """

    def __init__(self, engine: EngineInterface, opening: Sequence[int]) -> None:
        self._engine = engine
        self._opening = tuple(opening)
        self._kept: Kept[Read] = Kept()
        self._left = _left.setdefault(engine, deque())
        weakref.finalize(self, _leave, self._left, self._kept).atexit = False

    def reach(self, contexts: Iterable[Ids]) -> dict[Ids, Read]:
        """The rows of different contexts.

        Raises:
            KVPoolError, ContextLengthError
        """
        self._free_left()
        distinct = list(dict.fromkeys(contexts))
        try:
            self._extend(distinct)
        except KVPoolError:
            self.close()
            self._extend(distinct)
        for read in self._kept.evict(but=max(KEPT, len(distinct) + 1)):
            self._engine.free(read.row)
        return {context: self._kept.states[context] for context in distinct}

    def known(self, context: Ids) -> tuple[int, float]:
        """The longest beginning whose log probability is known: its length, and that."""
        for length in range(len(context), 0, -1):
            read = self._kept.states.get(context[:length])
            if read is not None and read.log_p is not None:
                return length, read.log_p
        return 0, 0.0

    def close(self) -> None:
        """Free all rows. They are made again where they are asked for."""
        while self._kept.states:
            self._engine.free(self._kept.states.popitem()[1].row)
        self._free_left()

    def _free_left(self) -> None:
        while self._left:
            self._engine.free(self._left.popleft().row)

    def _extend(self, contexts: Iterable[Ids]) -> None:
        states = self._kept.states
        if () not in states:
            states[()] = Read(self._engine.open(self._opening))
        forks: dict[Ids, Row] = {}
        rests: list[Ids] = []
        for context in contexts:
            beginning = self._kept.longest(context)
            if beginning != context:
                forks[context] = self._engine.fork(states[beginning].row)
                rests.append(context[len(beginning) :])
        try:
            self._engine.append([*forks.values()], rests)
        except BaseException:
            for row in forks.values():
                self._engine.free(row)
            raise
        states.update((context, Read(row)) for context, row in forks.items())


def _leave(left: deque[Read], kept: Kept[Read]) -> None:
    left.extend(kept.states.values())
