"""Hard constraints that are grammars of lark-parser.

lark itself reads the source (`lark_source`), so that its syntax, its imports and its errors are
lark's. The language is then translated (`lark_translate`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from smcprog.errors import GrammarError
from smcprog.potentials.lark_terminal import Unsupported
from smcprog.potentials.lark_translate import Definition, translate
from smcprog.potentials.matcher import CompiledConstraint
from smcprog.potentials.pattern import no_utf8, shortened


@dataclass(frozen=True)
class Grammar(CompiledConstraint):
    """The texts of a lark grammar. Build it with `grammar`.

    Compared by source, start and translation (which holds what was imported).
    """

    source: str
    start_rule: str
    translation: str = field(repr=False)
    definition: Definition = field(repr=False, compare=False)

    def __repr__(self) -> str:
        return f"grammar({shortened(self.source)!r}, start={self.start_rule!r})"

    def compiled(self, followed_by: tuple[str, ...]) -> str:
        if not followed_by:
            return self.translation
        for stop in followed_by:
            if not stop:
                raise GrammarError("a stop string is empty")
            if not stop.isascii() and re.search("[\ud800-\udfff]", stop):
                raise GrammarError(f"{stop!r} holds a lone surrogate; it is no text")
        try:
            return translate(self.definition, followed_by)
        except Unsupported as error:
            raise GrammarError(f"{self!r} before the stop strings: {error.args[0]}") from error


def grammar(source: str | os.PathLike[str], start: str = "start") -> Grammar:
    r"""Constrain the text to those that ``lark.Lark(source, start=start)`` parses.

    That is lark's default parser: Earley with ``lexer="dynamic"``, in which each terminal matches
    at a place what ``re.match`` does, alone among the terminals. ``NAME NAME`` with
    ``NAME: /[a-z]+/`` never splits "ab", while ``"not" NAME`` reads "notx". (It is not
    ``dynamic_complete``, which tries the shorter matches too.) Priorities choose among trees, never
    among texts, and play no part.

    ``source`` is a grammar, or the ``pathlib.Path`` of one, beside which ``%import`` looks first.

    Supported is what lark reads: rules, terminals, templates, repeats, aliases, modifiers, flags,
    ``%import``, ``%ignore``, ``%extend``, ``%override``. Refused are a ``%declare``d terminal that
    is used, and lookaheads, backreferences, anchors, word boundaries, atomic groups, possessive
    repeats and lookbehinds of more than one character within terminals.

    Raises:
        GrammarError: if lark cannot read it, if it uses one of those, if it has no text at all, or
            if it is too large; with the line and column in the grammar.

    >>> sums = grammar('start: NUMBER ("+" NUMBER)~1..3\nNUMBER: /[1-9][0-9]?/')
    >>> @smc_program
    ... def total():
    ...     prompt("A sum: ")
    ...     return sum(map(int, gen(sums).split("+")))
    >>> 2 <= engine.run(total(), particles=4, seed=0).best <= 4 * 99
    True
    """
    path: Path | None = None
    if isinstance(source, os.PathLike):
        path = Path(source)
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise GrammarError(f"grammar {path}: {no_utf8(error)}") from error
    elif isinstance(source, str):
        text = source
    else:
        raise TypeError(
            f"grammar() takes lark source as a str or its path, not {source!r} "
            f"({type(source).__name__})"
        )
    if not isinstance(start, str):
        raise TypeError(f"start is the name of one rule, not {start!r}")
    if path is None and "%import" not in text:
        return _remembered(text, start)
    return _built(text, start, path)


@lru_cache(maxsize=64)
def _remembered(text: str, start: str) -> Grammar:
    return _built(text, start, None)


def _built(text: str, start: str, path: Path | None) -> Grammar:
    from smcprog.potentials.lark_source import Source  # which imports lark

    return Grammar(text, start, *Source(text, start, path).translated())
