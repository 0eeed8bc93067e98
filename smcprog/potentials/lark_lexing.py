"""Which terminals of lark's may be lexemes of a lexer with longest match.

A terminal becomes one lexeme where that changes nothing: all ways to read a text have been followed
(an approximation from above by what may follow each terminal), and on none does another terminal
begin while this one could go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from smcprog.potentials.lark_terminal import Alphabet, Automaton

Rule = tuple[str, tuple[str, ...]]
"""A left-hand side, and symbols: names of terminals or of rules."""

_MOST_STEPS = 400_000
"""The work allowed for finding which terminals may be lexemes. Beyond, all are spelled."""


@dataclass(frozen=True)
class Language:
    """A definition with its automata: those of its terminals and of the stop strings after it.

    ``ignored`` has only terminals that match some text.
    """

    start: str
    rules: Sequence[Rule]
    terminals: Mapping[str, Automaton]
    ignored: Sequence[str]
    stops: Mapping[str, Automaton]
    alphabet: Alphabet


_Occurrence = tuple[int, int]
_END: _Occurrence = (-1, 0)


class _Follow:
    """For each occurrence of a terminal in the rules, what may come next.

    A *place* is a set of occurrences that may come next, the end of the text among them; places
    are numbered. ``begins[place]`` has the terminals that may begin there, each with the place
    after it; ``ends[place]`` says whether the text may end there.

    Raises:
        _TooMuch: if that is too much work.
    """

    def __init__(self, rules: Sequence[Rule], start: str, terminals: Iterable[str]) -> None:
        self._rules = rules
        self._terminals = set(terminals)
        self._nullable = _nullable(rules)
        self._sets: dict[tuple[str, str], set[_Occurrence]] = {}
        self._solve(start)
        self._numbers: dict[frozenset[_Occurrence], int] = {}
        self._places: list[frozenset[_Occurrence]] = []
        initial = set(self._sets.get(("first", start), ()))
        if start in self._nullable:
            initial.add(_END)
        self.initial = self._place(initial)
        self.begins: list[list[tuple[str, int]]] = []
        self.ends: list[bool] = []
        after: dict[_Occurrence, int] = {}
        for found in self._places:  # grows
            begins: dict[tuple[str, int], None] = {}
            for i, at in sorted(found - {_END}):
                if (i, at) not in after:
                    after[i, at] = self._place(self._next(i, at))
                begins[rules[i][1][at], after[i, at]] = None
            self.begins.append(list(begins))
            self.ends.append(_END in found)

    def _place(self, found: Iterable[_Occurrence]) -> int:
        place = frozenset(found)
        if place not in self._numbers:
            self._numbers[place] = len(self._places)
            self._places.append(place)
        return self._numbers[place]

    def _ahead(self, i: int, at: int) -> Iterator[tuple[str, _Occurrence | tuple[str, str]]]:
        """What may begin the rest of rule i: occurrences, and names of sets of them."""
        name, body = self._rules[i]
        for position in range(at, len(body)):
            symbol = body[position]
            if symbol in self._terminals:
                yield "one", (i, position)
                return
            yield "set", ("first", symbol)
            if symbol not in self._nullable:
                return
        if at:
            yield "set", ("follow", name)

    def _next(self, i: int, at: int) -> set[_Occurrence]:
        found: set[_Occurrence] = set()
        for kind, what in self._ahead(i, at + 1):
            found.update([what] if kind == "one" else self._sets.get(what, ()))  # type: ignore
        return found

    def _solve(self, start: str) -> None:
        """The least sets that hold what `_ahead` says."""
        edges: dict[tuple[str, str], set[tuple[str, str]]] = {}
        queue: list[tuple[tuple[str, str], _Occurrence]] = []
        for i, (name, body) in enumerate(self._rules):
            targets = [(("first", name), 0)]
            targets += [
                (("follow", symbol), at + 1)
                for at, symbol in enumerate(body)
                if symbol not in self._terminals
            ]
            for target, at in targets:
                for kind, what in self._ahead(i, at):
                    if kind == "one":
                        queue.append((target, what))  # type: ignore[arg-type]
                    elif what != target:
                        edges.setdefault(what, set()).add(target)  # type: ignore[arg-type]
        queue.append((("follow", start), _END))
        steps = 0
        while queue:
            target, occurrence = queue.pop()
            known = self._sets.setdefault(target, set())
            if occurrence not in known:
                known.add(occurrence)
                further = edges.get(target, ())
                queue.extend((other, occurrence) for other in further)
                steps += len(further)
                if steps > _MOST_STEPS:
                    raise _TooMuch


class _TooMuch(Exception):
    pass


def _nullable(rules: Sequence[Rule]) -> set[str]:
    nullable: set[str] = set()
    while True:
        found = {name for name, body in rules if nullable.issuperset(body)}
        if found == nullable:
            return nullable
        nullable = found


_Reading = tuple[str, int, int]
"""A way to read a text: it ends within a terminal, in a state of it, and a place comes after."""


class Lexing:
    """All ways to read the texts at once, and what they say about the terminals.

    ``spelled``: the terminals that cannot be lexemes. ``guarded``: the accepting states of
    terminals where what follows may be what they could go on with.
    """

    def __init__(self, language: Language) -> None:
        self._language = language
        self._machines = {**language.terminals, **language.stops}
        self._entries: dict[int, dict[int, tuple[frozenset[_Reading], frozenset[_Reading]]]] = {}
        self.spelled: set[str] = set()
        self.guarded: set[tuple[str, int]] = set()
        self._seen: set[tuple[tuple[int, frozenset[str], bool], ...]] = set()
        try:
            self._follow = _Follow(language.rules, language.start, language.terminals)
            self._read()
            self._settle()
        except _TooMuch:
            # Always right, and slower.
            self.spelled = set(self._machines)
            self.guarded = {
                (name, state)
                for name, machine in language.terminals.items()
                for state in machine.accepting
                if machine.moves[state]
            }

    def _entry(self, place: int) -> dict[int, tuple[frozenset[_Reading], frozenset[_Reading]]]:
        """By character: the readings that begin at a place, and those of them in a stop."""
        if place not in self._entries:
            begins = [*self._follow.begins[place]]
            begins += [(name, place) for name in self._language.ignored]
            if self._follow.ends[place]:
                begins += [(name, -1) for name in self._language.stops]
            found: dict[int, set[_Reading]] = {}
            for name, after in begins:
                for letter, state in self._machines[name].moves[0].items():
                    found.setdefault(letter, set()).add((name, state, after))
            self._entries[place] = {
                letter: (frozenset(some), frozenset(r for r in some if r[2] == -1))
                for letter, some in found.items()
            }
        return self._entries[place]

    def _read(self) -> None:
        first: dict[int, set[_Reading]] = {
            letter: set(found) for letter, (found, _) in self._entry(self._follow.initial).items()
        }
        queue = [frozenset(found) for found in first.values()]
        known = set(queue)
        steps = 0
        while queue:
            readings = queue.pop()
            going: dict[int, set[_Reading]] = {}
            beginning: dict[int, set[_Reading]] = {}
            for name, state, after in readings:
                machine = self._machines[name]
                for letter, target in machine.moves[state].items():
                    going.setdefault(letter, set()).add((name, target, after))
                    steps += 1
                # After a stop anything may follow; whether it is one, only the grammar knows.
                if state in machine.accepting and after != -1:
                    for letter, found in self._beginning(name, state, after):
                        beginning.setdefault(letter, set()).update(found)
                        steps += len(found)
            if steps > _MOST_STEPS:
                raise _TooMuch
            self._seen.add(
                tuple(
                    (letter, frozenset(r[0] for r in going.get(letter, ())), letter in beginning)
                    for letter in sorted({*going, *beginning})
                )
            )
            for letter in {*going, *beginning}:
                following = frozenset({*going.get(letter, ()), *beginning.get(letter, ())})
                if following not in known:
                    known.add(following)
                    queue.append(following)

    def _beginning(
        self, name: str, state: int, after: int
    ) -> Iterator[tuple[int, frozenset[_Reading]]]:
        """By character: what begins where a terminal ends in this state."""
        machine = self._machines[name]
        for letter, (found, in_stops) in self._entry(after).items():
            target = machine.moves[state].get(letter)
            if target is not None and len(found) > len(in_stops):
                self.guarded.add((name, state))
            if target is not None and target in machine.accepting:
                found = in_stops  # the terminal would match more; before a stop, R is at its end
            if found:
                yield letter, found

    def _settle(self) -> None:
        """Spell each terminal that could go on where, on another reading, a lexeme begins."""
        leads = self._language.alphabet.leads
        while True:
            before = len(self.spelled)
            for seen in self._seen:
                edges = {k for k, going, begins in seen if begins or going & self.spelled}
                bytes_ = frozenset[int]().union(*(leads[k] for k in edges))
                for letter, going, _ in seen:
                    if letter in edges or leads[letter] & bytes_:
                        self.spelled |= going
            if len(self.spelled) == before:
                return
