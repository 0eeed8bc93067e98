"""A context-free grammar over lark's terminals, translated for the automaton library.

The language is the one of lark's Earley parser with its dynamic lexer. It expects some terminals at
a place, and each of them matches there as far as it goes, whatever the others do:

    text = I* t1 I* t2 .. I* tn I*,   I the ignored terminals, t1 .. tn a sentence of the grammar,

where each match is the longest prefix *of the rest of the text* that the terminal's automaton
accepts (`lark_terminal`). llguidance instead has one lexer: it goes on while any expected lexeme
can, and all paths share its boundaries. A terminal becomes one lexeme where that is the same:
all ways to read a text have been followed (`Lexing`, an approximation from above by what may
follow each terminal), and on none does another terminal begin while this one could go on. All
other terminals are spelled out as rules over single characters, which have no such trouble.

A terminal must be kept from ending where it could have matched more. That is a *guard*: an
automaton that must not accept what comes next. The grammar is multiplied with its guards
(Bar-Hillel): each symbol X becomes the symbols X[g, h], its texts that may stand after guard g and
leave guard h. (The lexer would see to it that a lexeme does not end early, but not that a text can
be completed.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from smcprog.potentials.lark_lexing import Language, Lexing, Rule
from smcprog.potentials.lark_terminal import (
    Alphabet,
    Automaton,
    Pattern,
    Ranges,
    Unsupported,
    automaton,
    characters,
    expression,
    minimal,
)
from smcprog.potentials.matcher import ANYTHING

_MOST_ITEMS = 400_000
"""The work allowed for the product with the guards."""

_IGNORED = "%ignored"
_TOP = "%top"


@dataclass(frozen=True)
class Definition:
    """A grammar as lark reads it, in Backus-Naur form.

    ``rules`` and ``terminals`` (their patterns by name) do not share names.
    """

    start: str
    rules: tuple[Rule, ...]
    terminals: Mapping[str, Pattern] = field(repr=False)
    ignored: tuple[str, ...] = ()


class EmptyLanguage(Exception):
    """The grammar has no text at all."""


def translate(definition: Definition, followed_by: tuple[str, ...] = ()) -> str:
    """The grammar of R, or of R.(s1|..|sn).Sigma*, in llguidance's Lark dialect.

    Raises:
        EmptyLanguage: if R has no text.
        Unsupported: if the result would be too large; its second argument, if any, names a
            terminal.
    """
    sets: set[Ranges] = set().union(*(p.sets for p in definition.terminals.values()))
    sets.update(one for stop in followed_by for one in characters(stop))
    alphabet = Alphabet(sets)
    terminals = {}
    for name, pattern in definition.terminals.items():
        try:
            terminals[name] = automaton(pattern, alphabet)
        except Unsupported as error:
            raise Unsupported(str(error), name) from error
    language = Language(
        definition.start,
        _useful(definition, terminals),
        terminals,
        [name for name in definition.ignored if terminals[name].moves],
        {f"%stop{i}": _chain(stop, alphabet) for i, stop in enumerate(followed_by)},
        alphabet,
    )
    # The same terminal may be a lexeme in one place and not in another.
    apart = _told_apart(language)
    lexing = Lexing(apart)
    return _Product(_joined(apart, lexing), lexing).text


def _told_apart(language: Language) -> Language:
    """With a name for each occurrence of a terminal in the rules: ``t`` becomes ``t @ number``."""
    machines = dict(language.terminals)
    apart = []
    for name, body in language.rules:
        named = []
        for symbol in body:
            if symbol in language.terminals:
                machine, symbol = machines[symbol], f"{symbol} @ {len(machines)}"
                machines[symbol] = machine
            named.append(symbol)
        apart.append((name, tuple(named)))
    return replace(language, rules=apart, terminals=machines)


def _joined(language: Language, lexing: Lexing) -> Language:
    """Undo `_told_apart`, but for lexemes ``t`` and spelled ``t spelled``; ``lexing`` follows."""
    joined = {}
    for name in language.terminals:
        base = name.split(" @ ")[0]
        joined[name] = f"{base} spelled" if name in lexing.spelled and base != name else base
    lexing.guarded |= {(joined[name], state) for name, state in lexing.guarded}
    lexing.spelled |= {joined[name] for name in lexing.spelled if name in joined}
    machines = {joined[name]: machine for name, machine in language.terminals.items()}
    written = [(name, tuple(joined.get(s, s) for s in body)) for name, body in language.rules]
    return replace(language, rules=list(dict.fromkeys(written)), terminals=machines)


def _chain(text: str, alphabet: Alphabet) -> Automaton:
    letters = [next(iter(alphabet.of[one])) for one in characters(text)]
    rows: list[Mapping[int, int]] = [{letter: i + 1} for i, letter in enumerate(letters)]
    written = "".join(alphabet.spelled([letter]) for letter in letters)
    return Automaton((*rows, {}), frozenset([len(letters)]), written)


def _useful(definition: Definition, terminals: Mapping[str, Automaton]) -> list[Rule]:
    """The rules that can produce a text; those of what the start does not reach come along."""
    productive = {name for name, machine in terminals.items() if machine.moves}
    waiting: dict[str, list[int]] = {}
    missing = []
    ready: list[str] = []
    for i, (name, body) in enumerate(definition.rules):
        lacking = {symbol for symbol in body if symbol not in productive}
        missing.append(len(lacking))
        for symbol in lacking:
            waiting.setdefault(symbol, []).append(i)
        if not lacking:
            ready.append(name)
    while ready:
        name = ready.pop()
        if name not in productive:
            productive.add(name)
            for i in waiting.get(name, ()):
                missing[i] -= 1
                if not missing[i]:
                    ready.append(definition.rules[i][0])
    if definition.start not in productive:
        raise EmptyLanguage
    kept = [rule for rule, lacking in zip(definition.rules, missing, strict=True) if not lacking]
    bodies: dict[str, list[tuple[str, ...]]] = {}
    for name, body in kept:
        bodies.setdefault(name, []).append(body)
    reached, queue = {definition.start}, [definition.start]
    while queue:
        for body in bodies.get(queue.pop(), ()):
            queue.extend(set(body) - reached)
            reached.update(body)
    return [rule for rule in kept if rule[0] in reached]


# --- Guards ---------------------------------------------------------------------------------------

_Guard = frozenset[int]
_NONE: _Guard = frozenset()
_Rows = tuple[tuple[tuple[int, int], ...], ...]


class _Guards:
    """What must not come next: numbered automata, none of which may accept (but at once)."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[_Rows, frozenset[int]], int] = {}
        self._machines: list[tuple[tuple[Mapping[int, int], ...], frozenset[int]]] = []
        self._steps: dict[tuple[_Guard, int], _Guard | None] = {}

    def of(
        self, moves: Sequence[Mapping[int, int]], accepting: Iterable[int], state: int
    ) -> _Guard:
        """The guard after a match that ends in this state."""
        rows = [moves[state], *moves]
        shifted = [{letter: target + 1 for letter, target in row.items()} for row in rows]
        machine = minimal(shifted, {end + 1 for end in accepting})
        if not machine[0]:
            return _NONE
        key = (tuple(tuple(sorted(row.items())) for row in machine[0]), machine[1])
        number = self._numbers.setdefault(key, len(self._machines))
        if number == len(self._machines):
            self._machines.append(machine)
        return frozenset([number])

    def step(self, guard: _Guard, letter: int) -> _Guard | None:
        """The guard after one more character; None where it forbids that."""
        if (guard, letter) not in self._steps:
            self._steps[guard, letter] = self._stepped(guard, letter)
        return self._steps[guard, letter]

    def _stepped(self, guard: _Guard, letter: int) -> _Guard | None:
        left = _NONE
        for number in guard:
            moves, accepting = self._machines[number]
            target = moves[0].get(letter)
            if target is not None:
                if target in accepting:
                    return None
                left |= self.of(moves, accepting, target)
        return left


@dataclass(frozen=True)
class _Variant:
    """A terminal after a guard: an automaton, and by guard left behind, where it ends."""

    moves: tuple[Mapping[int, int], ...]
    ends: Mapping[_Guard, tuple[int, ...]]


# --- The translation ------------------------------------------------------------------------------

_Item = tuple[int, _Guard, int, _Guard]
"""A rule, the guard before it, how much of its body has been read, and the guard there."""


class _Product:
    """The grammar times the guards, as ``text``."""

    def __init__(self, language: Language, lexing: Lexing) -> None:
        self._terminals = language.terminals
        self._lexing = lexing
        self._alphabet = language.alphabet
        self._guards = _Guards()
        self._variants: dict[tuple[str, _Guard], _Variant] = {}
        self._rules = list(_with_ignored(language))
        self._by_name: dict[str, list[int]] = {}
        for i, (name, _) in enumerate(self._rules):
            self._by_name.setdefault(name, []).append(i)
        self._exits: dict[tuple[str, _Guard], dict[_Guard, None]] = {}
        self._before: dict[_Item, dict[_Guard, None]] = {}
        self._multiply()
        self._names: dict[object, str] = {}
        self._lines: list[str] = []
        self._pending: list[tuple[str, tuple]] = []
        self.text = self._written(language.stops)

    def _multiply(self) -> None:
        """Find all items, and which guards each symbol leaves after each guard before it."""
        waiting: dict[tuple[str, _Guard], list[_Item]] = {}
        queue: list[_Item] = []

        def advance(item: _Item, guard: _Guard) -> None:
            rule, first, at, before = item
            following = (rule, first, at + 1, guard)
            if following not in self._before:
                self._before[following] = {}
                queue.append(following)
            self._before[following][before] = None

        def ask(name: str, guard: _Guard) -> None:
            if (name, guard) in self._exits:
                return
            self._exits[name, guard] = {}
            waiting[name, guard] = []
            if name in self._terminals:
                self._exits[name, guard] = dict.fromkeys(self._variant(name, guard).ends)
            for rule in self._by_name.get(name, ()):
                queue.append((rule, guard, 0, guard))

        ask(_TOP, _NONE)
        while queue:
            if len(self._before) > _MOST_ITEMS:
                raise Unsupported(
                    "too many terminals may run into each other; put separators between them"
                )
            item = queue.pop()
            rule, first, at, guard = item
            name, body = self._rules[rule]
            if at < len(body):
                ask(body[at], guard)
                waiting[body[at], guard].append(item)
                for left in list(self._exits[body[at], guard]):
                    advance(item, left)
            elif guard not in self._exits[name, first]:
                self._exits[name, first][guard] = None
                for waiter in list(waiting[name, first]):
                    advance(waiter, guard)

    def _variant(self, name: str, guard: _Guard) -> _Variant:
        if (name, guard) not in self._variants:
            self._variants[name, guard] = self._guarded(name, guard)
        return self._variants[name, guard]

    def _guarded(self, name: str, guard: _Guard) -> _Variant:
        machine = self._terminals[name]
        number = {(0, guard): 0}
        order = [(0, guard)]
        rows = []
        ends: dict[_Guard, list[int]] = {}
        for state, held in order:  # grows
            if state in machine.accepting:
                left = held
                if (name, state) in self._lexing.guarded:
                    left |= self._guards.of(machine.moves, machine.accepting, state)
                ends.setdefault(left, []).append(number[state, held])
            row = {}
            for letter, target in machine.moves[state].items():
                still = self._guards.step(held, letter)
                if still is not None:
                    if (target, still) not in number:
                        number[target, still] = len(order)
                        order.append((target, still))
                    row[letter] = number[target, still]
            rows.append(row)
        return _Variant(tuple(rows), {left: tuple(found) for left, found in ends.items()})

    # Writing: names are made up on demand, so that only what is used is written.

    def _name(self, kind: str, key: tuple) -> str:
        if (kind, key) not in self._names:
            self._names[kind, key] = f"r{len(self._names)}"
            self._pending.append((kind, key))
        return self._names[kind, key]

    def _lexeme(self, source: str) -> str:
        if source not in self._names:
            self._names[source] = f"L{len(self._names)}"
            self._lines.append(f"{self._names[source]}: {source}")
        return self._names[source]

    def _letters(self, letters: Iterable[int]) -> str:
        return self._lexeme(f"/{self._alphabet.spelled(letters)}/")

    def _written(self, stops: Mapping[str, Automaton]) -> str:
        if not self._exits[_TOP, _NONE]:
            raise EmptyLanguage
        tops = [self._symbol(_TOP, _NONE, left) for left in self._exits[_TOP, _NONE]]
        if stops:
            ends = [self._stop(name, machine) for name, machine in stops.items()]
            tops = [f"{top} {end}" for top in tops for end in ends]
        writers: dict[str, Callable[..., Iterator[str]]]
        writers = {"symbol": self._symbol_ways, "item": self._item_ways, "state": self._state_ways}
        rules = [f"start: {' | '.join(tops)}"]
        while self._pending:
            kind, key = self._pending.pop()
            ways = dict.fromkeys(way or '""' for way in writers[kind](*key))
            rules.append(f"{self._names[kind, key]}: {' | '.join(ways)}")
        return "\n".join([*rules, *self._lines])

    def _stop(self, name: str, machine: Automaton) -> str:
        if name not in self._lexing.spelled:
            return self._lexeme(f"/{machine.expression}/ {ANYTHING}")
        letters = [next(iter(row)) for row in machine.moves[:-1]]
        last = self._lexeme(f"/{self._alphabet.spelled(letters[-1:])}/ {ANYTHING}")
        return " ".join([*(self._letters([letter]) for letter in letters[:-1]), last])

    def _symbol(self, name: str, guard: _Guard, left: _Guard) -> str:
        if name in self._terminals and name not in self._lexing.spelled:
            return self._lexeme(f"/{self._whole(name, guard, left)}/")
        return self._name("symbol", (name, guard, left))

    def _whole(self, name: str, guard: _Guard, left: _Guard) -> str:
        """A terminal that is a lexeme, between two guards."""
        machine, variant = self._terminals[name], self._variant(name, guard)
        if not guard and len(variant.ends) == 1:
            return machine.expression
        rows, ends = minimal(variant.moves, variant.ends[left])
        if (rows, ends) == (machine.moves, machine.accepting):
            return machine.expression
        return expression(rows, ends, self._alphabet)

    def _symbol_ways(self, name: str, guard: _Guard, left: _Guard) -> Iterator[str]:
        if name in self._terminals:
            for state in self._variant(name, guard).ends[left]:
                yield self._name("state", (name, guard, state))
            return
        for rule in self._by_name[name]:
            item = (rule, guard, len(self._rules[rule][1]), left)
            if item in self._before or item[2] == 0 and guard == left:
                yield self._prefix(item)

    def _prefix(self, item: _Item) -> str:
        """What has been read where an item stands."""
        rule, first, at, guard = item
        parts = []
        while at:
            before = self._before[rule, first, at, guard]
            if len(before) > 1:
                parts.append(self._name("item", (rule, first, at, guard)))
                break
            (previous,) = before
            at -= 1
            parts.append(self._symbol(self._rules[rule][1][at], previous, guard))
            guard = previous
        return " ".join(reversed(parts))

    def _item_ways(self, rule: int, first: _Guard, at: int, guard: _Guard) -> Iterator[str]:
        for previous in self._before[rule, first, at, guard]:
            symbol = self._symbol(self._rules[rule][1][at - 1], previous, guard)
            yield f"{self._prefix((rule, first, at - 1, previous))} {symbol}"

    def _state_ways(self, name: str, guard: _Guard, state: int) -> Iterator[str]:
        """The non-empty texts that lead a spelled terminal to a state, with their last letter."""
        moves = self._variant(name, guard).moves
        entered = any(0 in row.values() for row in moves)
        for source, row in enumerate(moves):
            letters = [letter for letter, target in row.items() if target == state]
            if letters:
                last = self._letters(letters)
                if source == 0:
                    yield last
                if source or entered:
                    yield f"{self._name('state', (name, guard, source))} {last}"


def _with_ignored(language: Language) -> Iterator[Rule]:
    """The rules with the ignored terminals written out, below one top."""
    if not language.ignored:
        yield _TOP, (language.start,)
        yield from language.rules
        return
    yield _TOP, (language.start, _IGNORED)
    yield _IGNORED, ()
    for name in language.ignored:
        yield _IGNORED, (_IGNORED, name)
    for name, body in language.rules:
        woven = [(_IGNORED, s) if s in language.terminals else (s,) for s in body]
        yield name, tuple(symbol for some in woven for symbol in some)
