"""What a terminal of lark's matches, as a finite automaton.

lark's Earley parser asks Python's ``re.match`` for the one match of a terminal at a place, and
``re`` prefers: the first alternative, the greedy or the lazy repeat. That preference is kept here.
A backtracking match is a list of threads in order of preference, and the list is the state of an
automaton D: threads after one that has matched are dropped, since they can never win. So

    re.match(pattern, text) ends at the LAST prefix of text that D accepts,

for every pattern without lookahead. Greedy ``[0-9]+`` accepts at each digit, lazy ``".*?"`` at its
first closing quote and nowhere later, ``a|ab`` at "a" alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from re import _constants as sre
from re import _parser
from typing import Any

import numpy as np

from smcprog.potentials.pattern import character_set

Ranges = tuple[tuple[int, int], ...]

_MOST_NODES = 20_000
_MOST_STATES = 3_000
_MOST_WORK = 3_000_000

_REFUSED = {
    sre.GROUPREF: ("a backreference", "write the text again"),
    sre.GROUPREF_EXISTS: ("a conditional group", "write both cases as alternatives"),
    sre.ASSERT: ("a lookahead", "write what may follow as a part of the rule"),
    sre.ASSERT_NOT: ("a lookahead", "write what may follow as a part of the rule"),
    sre.AT: ("an anchor or a word boundary", "write the characters that may stand there"),
    sre.ATOMIC_GROUP: ("an atomic group", "write (?:...)"),
    sre.POSSESSIVE_REPEAT: ("a possessive quantifier", "drop the +"),
}


class Unsupported(Exception):
    """A terminal that cannot be translated: what it holds, and what to write instead."""


# --- Characters -----------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _ranges(source: str, flags: int) -> Ranges:
    """The characters that a one-character pattern matches; ``re`` is asked."""
    shown = character_set(source, flags)
    return tuple(
        (int(low, 16), int(high, 16))
        for low, high in re.findall(r"\\x\{(\w+)\}-\\x\{(\w+)\}", shown)
    )


def characters(text: str) -> list[Ranges]:
    """Each character of a text as a set of one."""
    return [((ord(char), ord(char)),) for char in text]


def spelled(ranges: Iterable[tuple[int, int]]) -> str:
    """A set of characters in the Rust dialect. Of none, it matches nothing."""
    inner = "".join(rf"\x{{{low:x}}}-\x{{{high:x}}}" for low, high in ranges)
    return f"[{inner or 'a&&b'}]"


class Alphabet:
    """The characters up to what a grammar can tell apart: classes ``0 .. n - 1``.

    ``of[ranges]`` is the set of classes of a set of characters that it was made of.
    """

    def __init__(self, sets: Iterable[Ranges]) -> None:
        distinct = sorted(set(sets))
        cuts = sorted(
            {cut for ranges in distinct for low, high in ranges for cut in (low, high + 1)}
        )
        member = np.zeros((len(cuts), len(distinct)), bool)
        for column, ranges in enumerate(distinct):
            for low, high in ranges:
                start, stop = np.searchsorted(cuts, (low, high + 1))
                member[start:stop, column] = True
        self.ranges: list[list[tuple[int, int]]] = []
        self.of: dict[Ranges, frozenset[int]] = {}
        classes: dict[bytes, int] = {}
        columns: list[set[int]] = [set() for _ in distinct]
        for row, low in enumerate(cuts):
            if member[row].any():
                number = classes.setdefault(member[row].tobytes(), len(classes))
                if number == len(self.ranges):
                    self.ranges.append([])
                    for column in np.flatnonzero(member[row]).tolist():
                        columns[column].add(number)
                self.ranges[number].append((low, cuts[row + 1] - 1))
        self.of = {ranges: frozenset(columns[i]) for i, ranges in enumerate(distinct)}
        self.leads = [_leads(ranges) for ranges in self.ranges]

    def spelled(self, classes: Iterable[int]) -> str:
        """Some classes as one set of characters in the Rust dialect."""
        merged: list[tuple[int, int]] = []
        for low, high in sorted(pair for number in classes for pair in self.ranges[number]):
            if merged and merged[-1][1] + 1 == low:
                merged[-1] = (merged[-1][0], high)
            else:
                merged.append((low, high))
        return spelled(merged)


def _leads(ranges: Iterable[tuple[int, int]]) -> frozenset[int]:
    """The first bytes of the UTF-8 of longer than one byte."""
    found: set[int] = set()
    for low, high in ranges:
        if high >= 0x80:
            found.update(range(_lead(max(low, 0x80)), _lead(high) + 1))
    return frozenset(found)


def _lead(code: int) -> int:
    if code < 0x800:
        return 0xC0 | code >> 6
    return 0xE0 | code >> 12 if code < 0x10000 else 0xF0 | code >> 18


# --- The pattern, as nodes that a backtracking matcher visits -------------------------------------


@dataclass(frozen=True)
class _Char:
    ranges: Ranges
    then: int


@dataclass(frozen=True)
class _Split:
    ways: tuple[int, ...]


@dataclass(frozen=True)
class _Loop:
    body: int
    then: int
    lazy: bool


@dataclass(frozen=True)
class _Behind:
    ranges: Ranges
    negated: bool
    then: int


_Node = _Char | _Split | _Loop | _Behind | None


class Pattern:
    """A pattern of ``re``, read.

    ``expression`` has the language of ``re.fullmatch`` in the Rust dialect, or is None where that
    dialect has no such expression; ``width`` is the least number of characters.

    Raises:
        re.error: if it is malformed.
        Unsupported: where no automaton has its meaning, or only one that is too large.
    """

    def __init__(self, source: str) -> None:
        try:
            tree = _parser.parse(source)
            self.width: int = tree.getwidth()[0]
            self.nodes: list[_Node] = [None]  # node 0: a match
            self.start = self._sequence(tree, tree.state.flags, 0)
            self.expression = _expression(tree, tree.state.flags)
        except RecursionError as error:
            raise Unsupported("groups that are nested too deeply; use rules") from error
        except (OverflowError, ValueError) as error:
            raise Unsupported("a repetition number that is too large") from error

    @property
    def sets(self) -> set[Ranges]:
        return {node.ranges for node in self.nodes if isinstance(node, _Char | _Behind)}

    def _add(self, node: _Node) -> int:
        if len(self.nodes) >= _MOST_NODES:
            raise Unsupported("too large an automaton; write fewer or smaller repeats")
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _sequence(self, items: Sequence[Any], flags: int, then: int) -> int:
        for item in reversed(list(items)):
            then = self._item(item, flags, then)
        return then

    def _item(self, item: tuple[Any, Any], flags: int, then: int) -> int:
        op, value = item
        if op is sre.BRANCH:
            return self._add(_Split(tuple(self._sequence(way, flags, then) for way in value[1])))
        if op is sre.SUBPATTERN:
            _, on, off, inner = value
            return self._sequence(inner, _flags(flags, on, off), then)
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            return self._repeat(value, flags, then, lazy=op is sre.MIN_REPEAT)
        if op in (sre.ASSERT, sre.ASSERT_NOT) and value[0] < 0:
            if len(value[1]) == 1 and value[1][0][0] in _LEAVES:
                ranges = _leaf(value[1][0], flags)
                return self._add(_Behind(ranges, op is sre.ASSERT_NOT, then))
            raise Unsupported("a lookbehind of more than one character; write what comes before")
        if op in _REFUSED:
            raise Unsupported("{}; {}".format(*_REFUSED[op]))
        return self._add(_Char(_leaf(item, flags), then))

    def _repeat(self, value: tuple[Any, Any, Any], flags: int, then: int, lazy: bool) -> int:
        low, high, inner = value
        if high == sre.MAXREPEAT:
            loop = self._add(None)
            self.nodes[loop] = _Loop(self._sequence(inner, flags, loop), then, lazy)
            last = loop
        else:
            last = then
            for _ in range(high - low):
                body = self._sequence(inner, flags, last)
                last = self._add(_Split((then, body) if lazy else (body, then)))
        for _ in range(low):
            last = self._sequence(inner, flags, last)
        return last


_LEAVES = (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN)


def _flags(flags: int, on: int, off: int) -> int:
    if on & re.ASCII:
        flags &= ~re.UNICODE
    if on & re.UNICODE:
        flags &= ~re.ASCII
    return (flags | on) & ~off


def _leaf(item: tuple[Any, Any], flags: int) -> Ranges:
    relevant = flags & (re.ASCII | re.IGNORECASE | re.DOTALL)
    return _ranges(_leaf_source(item), int(relevant))


def _leaf_source(item: tuple[Any, Any]) -> str:
    op, value = item
    if op is sre.ANY:
        return "."
    if op is sre.LITERAL:
        return _code(value)
    if op is sre.NOT_LITERAL:
        return f"[^{_code(value)}]"
    assert op is sre.IN, op
    parts = []
    for kind, part in value:
        if kind is sre.NEGATE:
            parts.append("^")
        elif kind is sre.LITERAL:
            parts.append(_code(part))
        elif kind is sre.RANGE:
            parts.append(f"{_code(part[0])}-{_code(part[1])}")
        else:
            parts.append(_CATEGORIES[part])
    return f"[{''.join(parts)}]"


_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
}


def _code(code: int) -> str:
    return f"\\U{code:08x}"


def _expression(items: Sequence[Any], flags: int) -> str | None:
    parts: list[str | None] = [_item_expression(item, flags) for item in items]
    return None if None in parts else "".join(map(str, parts))


def _item_expression(item: tuple[Any, Any], flags: int) -> str | None:
    op, value = item
    if op is sre.BRANCH:
        ways = [_expression(way, flags) for way in value[1]]
        return None if None in ways else f"(?:{'|'.join(map(str, ways))})"
    if op is sre.SUBPATTERN:
        _, on, off, inner = value
        found = _expression(inner, _flags(flags, on, off))
        return None if found is None else f"(?:{found})"
    if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
        low, high, inner = value
        found = _expression(inner, flags)
        if found is None:
            return None
        return f"(?:{found}){{{low},{'' if high == sre.MAXREPEAT else high}}}"
    return spelled(_leaf(item, flags)) if op in _LEAVES else None


# --- The automaton --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Automaton:
    """A minimal automaton over the classes of an alphabet, every state of which can accept.

    ``moves[state][class]`` is the next state; state 0 is the start. Without a state it matches
    nothing. ``expression`` has its language in the Rust dialect.
    """

    moves: tuple[Mapping[int, int], ...]
    accepting: frozenset[int]
    expression: str


def automaton(pattern: Pattern, alphabet: Alphabet) -> Automaton:
    """The automaton D of a pattern: see the module.

    Raises:
        Unsupported: if it is too large, or looks behind its own start.
    """
    threads = _Threads(pattern, alphabet)
    first = threads.closure((pattern.start,), None)
    number = {first: 0}
    moves: list[dict[int, int]] = []
    order = [first]
    work = 0
    for state in order:
        row: dict[int, int] = {}
        for letter in threads.letters(state[1]):
            work += len(state[1]) + 1
            following = threads.step(state, letter)
            if following not in number:
                number[following] = len(order)
                order.append(following)
            row[letter] = number[following]
        moves.append(row)
        if len(order) > _MOST_STATES or work > _MOST_WORK:
            raise Unsupported("too large an automaton; write fewer or smaller repeats")
    accepting = {number[state] for state in order if 0 in state[0]}
    plain = {number[state] for state in order if 0 in state[1]}
    rows, ends = minimal(moves, accepting)
    if plain == accepting and pattern.expression is not None:
        return Automaton(rows, ends, pattern.expression)
    return Automaton(rows, ends, expression(rows, ends, alphabet))


_State = tuple[tuple[int, ...], frozenset[int]]


class _Threads:
    """States: the threads in order of preference, up to a match; and those of no preference."""

    def __init__(self, pattern: Pattern, alphabet: Alphabet) -> None:
        self._nodes = pattern.nodes
        self._of = alphabet.of

    def letters(self, threads: Iterable[int]) -> set[int]:
        sets = [self._of[node.ranges] for i in threads if isinstance(node := self._nodes[i], _Char)]
        return set().union(*sets)

    def step(self, state: _State, letter: int) -> _State:
        preferred = self.closure(self._after(state[0], letter), letter)[0]
        return preferred, self.closure(self._after(sorted(state[1]), letter), letter)[1]

    def _after(self, threads: Iterable[int], letter: int) -> tuple[int, ...]:
        nodes = (self._nodes[i] for i in threads)
        return tuple(
            node.then
            for node in nodes
            if isinstance(node, _Char) and letter in self._of[node.ranges]
        )

    def closure(self, nodes: Sequence[int], before: int | None) -> _State:
        """The threads that wait for a character (or have matched), after the character before."""
        waiting: dict[int, None] = {}
        seen: set[tuple[int, frozenset[int]]] = set()
        no_loops: frozenset[int] = frozenset()
        stack = [(node, no_loops) for node in reversed(nodes)]
        while stack:
            at, loops = stack.pop()
            if (at, loops) in seen:
                continue
            seen.add((at, loops))
            node = self._nodes[at]
            if isinstance(node, _Split):
                stack.extend((way, loops) for way in reversed(node.ways))
            elif isinstance(node, _Loop):
                # An iteration that matched nothing is the last one, as in `re`.
                if at in loops:
                    stack.append((node.then, loops))
                else:
                    ways = [(node.then, loops), (node.body, loops | {at})]
                    stack.extend(reversed(ways) if node.lazy else ways)
            elif isinstance(node, _Behind):
                if before is None:
                    raise Unsupported("a lookbehind at its start; write what comes before")
                if (before in self._of[node.ranges]) != node.negated:
                    stack.append((node.then, loops))
            else:
                waiting.setdefault(at)
        order = tuple(waiting)
        return order[: order.index(0) + 1] if 0 in waiting else order, frozenset(order)


def minimal(
    moves: Sequence[Mapping[int, int]], accepting: Iterable[int]
) -> tuple[tuple[Mapping[int, int], ...], frozenset[int]]:
    """The minimal automaton of the same language from state 0, in a canonical numbering."""
    ends = set(accepting)
    before: list[set[int]] = [set() for _ in moves]
    for state, row in enumerate(moves):
        for target in row.values():
            before[target].add(state)
    live, queue = set(ends), list(ends)
    while queue:
        for state in before[queue.pop()] - live:
            live.add(state)
            queue.append(state)
    if 0 not in live:
        return (), frozenset()
    block = {state: int(state in ends) for state in live}
    while True:
        keys: dict[object, int] = {}
        refined = {}
        for state in sorted(live):
            targets = frozenset((k, block[to]) for k, to in moves[state].items() if to in live)
            refined[state] = keys.setdefault((block[state], targets), len(keys))
        if len(keys) == len(set(block.values())):
            break
        block = refined
    number = {block[0]: 0}
    order = [0]
    rows: list[Mapping[int, int]] = []
    for state in order:
        row = {}
        for letter, target in sorted(moves[state].items()):
            if target in live:
                if block[target] not in number:
                    number[block[target]] = len(order)
                    order.append(target)
                row[letter] = number[block[target]]
        rows.append(row)
    return tuple(rows), frozenset(number[block[state]] for state in order if state in ends)


def expression(
    moves: Sequence[Mapping[int, int]], accepting: Iterable[int], alphabet: Alphabet
) -> str:
    """A regular expression (Rust dialect) of an automaton: its states are eliminated.

    Raises:
        Unsupported: if it would be too long.
    """
    last = len(moves)
    edges: dict[int, dict[int, str]] = {-1: {0: ""}}
    for state, row in enumerate(moves):
        letters: dict[int, set[int]] = {}
        for letter, target in row.items():
            letters.setdefault(target, set()).add(letter)
        edges[state] = {target: alphabet.spelled(found) for target, found in letters.items()}
    for state in accepting:
        edges[state][last] = ""
    sources: dict[int, set[int]] = {}
    for state, targets in edges.items():
        for target in targets:
            sources.setdefault(target, set()).add(state)
    remaining = set(range(len(moves)))
    while remaining:
        state = min(remaining, key=lambda s: (len(sources.get(s, ())) * len(edges[s]), s))
        remaining.discard(state)
        out = edges.pop(state)
        loop = f"(?:{out.pop(state)})*" if state in out else ""
        for source in sources.pop(state, set()) - {state}:
            lead = edges[source].pop(state)
            for target, tail in out.items():
                path = f"{lead}{loop}{tail}"
                known = edges[source].get(target)
                edges[source][target] = path if known is None else f"(?:{known}|{path})"
                sources[target].add(source)
        for target in out:
            sources[target].discard(state)
        if sum(len(text) for targets in edges.values() for text in targets.values()) > 2_000_000:
            raise Unsupported("too large an automaton; write fewer or smaller repeats")
    return edges[-1].get(last, "[a&&b]")
