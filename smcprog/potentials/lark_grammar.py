"""Hard constraints that are grammars of lark-parser.

lark itself reads the source, so that its syntax, its imports and its errors are lark's. The
language is then translated (`lark_translate`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import lark
from lark.lexer import TerminalDef
from lark.load_grammar import REPEAT_BREAK_THRESHOLD, load_grammar

from smcprog.errors import GrammarError
from smcprog.potentials.lark_terminal import Pattern, Unsupported
from smcprog.potentials.lark_translate import Definition, EmptyLanguage, translate
from smcprog.potentials.matcher import CompiledConstraint

_LONGEST_SOURCE = 40_000
_MOST_RULES = 20_000
_MOST_TEMPLATES = 2_000
_LONGEST_TEMPLATE = 2_000


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
        shown = self.source if len(self.source) <= 60 else f"{self.source[:57]}..."
        return f"grammar({shown!r}, start={self.start_rule!r})"

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

    ``source`` is a grammar, or the path of one, beside which ``%import`` looks first.

    Supported is what lark reads: rules, terminals, templates, repeats, aliases, modifiers, flags,
    ``%import``, ``%ignore``, ``%extend``, ``%override``. Refused are a ``%declare``d terminal that
    is used, and lookaheads, backreferences, anchors, word boundaries, atomic groups, possessive
    repeats and lookbehinds of more than one character within terminals.

    Raises:
        GrammarError: if lark cannot read it, if it uses one of those, if it has no text at all, or
            if it is too large; with the line and column in the grammar.

    >>> sums = grammar('start: NUMBER ("+" NUMBER)*\n%import common.NUMBER')
    >>> sums == grammar('start: NUMBER ("+" NUMBER)*\n%import common.NUMBER')
    True
    """
    path: Path | None = None
    if isinstance(source, os.PathLike):
        path = Path(source)
        text = path.read_text(encoding="utf-8")
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
        return _built(text, start)
    return _Source(text, start, path).built()


@lru_cache(maxsize=64)
def _built(text: str, start: str) -> Grammar:
    return _Source(text, start, None).built()


class _Source:
    """A grammar's text, and how errors are placed in it."""

    def __init__(self, text: str, start: str, path: Path | None) -> None:
        self._text = text
        self._start = start
        self._path = path
        self._code = _TEXTUAL.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)

    def built(self) -> Grammar:
        if len(self._text) > _LONGEST_SOURCE:
            raise self._error(
                f"it has {len(self._text)} characters, more than {_LONGEST_SOURCE}; "
                "choice(...) takes thousands of strings, regex(...) long patterns",
                0,
            )
        if lone := re.search("[\ud800-\udfff]", self._text):
            raise self._error("a lone surrogate is no text; remove it", lone.start())
        definition = self._definition(*self._read())
        try:
            translation = translate(definition)
        except EmptyLanguage as error:
            raise self._error(
                f"{self._start!r} matches no text at all; give each of its rules a way to end",
                self._place(self._start),
            ) from error
        except Unsupported as error:
            name = error.args[1] if len(error.args) > 1 else None
            if name is None:
                raise self._error(error.args[0], self._place(self._start)) from error
            raise self._terminal_error(self._terminals[name], f"holds {error.args[0]}") from error
        return Grammar(self._text, self._start, translation, definition)

    def _error(self, reason: str, at: int) -> GrammarError:
        line = self._text.count("\n", 0, at) + 1
        start = self._text.rfind("\n", 0, at) + 1
        return self._error_at(reason, line, at - start + 1)

    def _error_at(self, reason: str, line: int, column: int) -> GrammarError:
        lines = self._text.split("\n")
        shown = lines[line - 1] if line <= len(lines) else ""
        first = max(column - 80, 0)
        shown = shown[first : column + 80].encode(errors="backslashreplace").decode()
        return GrammarError(
            f"grammar, line {line}, column {column}: {reason}\n"
            f"    {shown}\n    {' ' * (column - 1 - first)}^"
        )

    def _place(self, name: str, *, use: bool = False) -> int:
        """Where a name is defined, or (``use``) where it is first used; 0 if nowhere."""
        word = rf"(?<!\w){re.escape(name)}(?!\w)"
        definition = re.compile(rf"^[ \t]*[!?]*({word})[^:\n|]*:", re.MULTILINE)
        found = definition.search(self._code)
        if use or not found:
            uses = re.compile(word).finditer(self._code)
            defined = found.start(1) if found else -1
            places = [match.start() for match in uses if match.start() != defined]
            return places[0] if places else max(defined, 0)
        return found.start(1)

    def _terminal_error(self, terminal: TerminalDef, reason: str, within: int = 0) -> GrammarError:
        raw = terminal.pattern.raw
        at = self._text.find(raw) if raw else -1
        if at < 0:
            at = self._place(terminal.name)
            within = 0
        return self._error(f"the terminal {raw or terminal.name} {reason}", at + within)

    def _read(self) -> tuple[list[TerminalDef], list[Any], list[str]]:
        """What lark makes of the text: terminals, rules in Backus-Naur form, ignored terminals."""
        imports = [str(self._path.parent)] if self._path else []
        try:
            name = str(self._path) if self._path else "<string>"
            loaded, _ = load_grammar(self._text, name, imports, False)
            self._check_templates(loaded.rule_defs)
            for rule, _, tree, _ in loaded.rule_defs:
                if _ways(tree) > _MOST_RULES:
                    raise self._unfolded(rule)
            return loaded.compile([self._start], set())
        except lark.exceptions.UnexpectedInput as error:
            reason = str(error).split(" at line")[0].split(", at line")[0]
            raise self._error_at(reason, max(error.line, 1), max(error.column, 1)) from error
        except lark.exceptions.LarkError as error:
            raise self._lark_error(error) from error
        except OSError as error:
            name = Path(error.filename or "").stem
            raise self._error(
                f"%import: there is no grammar {name!r}; lark brings common, unicode, python and "
                "lark, and for a file of your own pass the path of the grammar beside it",
                self._place(name, use=True),
            ) from error
        except RecursionError as error:
            raise self._error("it is nested too deeply; name some of its parts", 0) from error

    def _unfolded(self, rule: str) -> GrammarError:
        return self._error(
            f"the rule {rule} unfolds into more than {_MOST_RULES} alternatives, since each ? and *"
            " doubles them; move some of its parts into rules of their own",
            self._place(rule),
        )

    def _lark_error(self, error: Exception) -> GrammarError:
        message = str(error)
        reason = message.split("\n")[0]
        if found := re.search(r",? (?:at )?line (\d+),? column (\d+)", message):
            reason = reason.replace(found[0], "").removesuffix(": ")
            return self._error_at(reason.strip(), int(found[1]), int(found[2]))
        names = re.findall(r"'(\w+)'", message) or re.findall(r"\b(?:in|for) (\w+)", message)
        at = 0
        if names:
            at = self._place(names[0], use="not defined" in message)
        elif (found := re.search(r"\((.+)\)", message)) and found[1] in self._text:
            at = self._text.index(found[1])
        return self._error(reason.strip(), at)

    def _check_templates(self, definitions: Iterable[tuple[Any, Any, Any, Any]]) -> None:
        """Refuse templates that call for ever larger ones: lark would expand them without end."""
        templates = {str(name): (params, tree) for name, params, tree, _ in definitions if params}
        if not templates:
            return
        known: set[str] = set()
        queue: list[tuple[Any, Mapping[str, str], str]] = [
            (tree, {}, str(name)) for name, params, tree, _ in definitions if not params
        ]

        def called(node: Any, names: Mapping[str, str]) -> str:
            """The name of an argument, or of a template's instance, which is queued."""
            if not isinstance(node, lark.Tree):
                name = str(getattr(node, "name", node))
                return names.get(name, name)
            if node.data != "template_usage":
                return ",".join(called(child, names) for child in node.children)
            name, *given = (called(child, names) for child in node.children)
            instance = f"{name}{{{','.join(given)}}}"
            if len(known) > _MOST_TEMPLATES or len(instance) > _LONGEST_TEMPLATE:
                raise self._error(
                    f"the template {name} is expanded without end, or too often; write a rule",
                    self._place(name),
                )
            if instance not in known and name in templates:
                known.add(instance)
                params, tree = templates[name]
                queue.append((tree, dict(zip(params, given, strict=False)), name))
            return instance

        while queue:
            tree, names, _ = queue.pop()
            for usage in tree.find_data("template_usage"):
                called(usage, names)

    def _definition(
        self, terminals: list[TerminalDef], found: list[Any], ignored: list[str]
    ) -> Definition:
        """The rules and patterns, with rules and terminals renamed apart."""
        if len(found) > _MOST_RULES:
            raise self._error(f"it has {len(found)} rules, more than {_MOST_RULES}", 0)
        self._terminals = {f"t:{terminal.name}": terminal for terminal in terminals}
        rules = []
        for rule in found:
            body = tuple(f"{'t' if s.is_term else 'r'}:{s.name}" for s in rule.expansion)
            for symbol in body:
                if symbol[0] == "t" and symbol not in self._terminals:
                    raise self._error(
                        f"%declare leaves the terminal {symbol[2:]} without a pattern; define it",
                        self._place(symbol[2:], use=True),
                    )
            rules.append((f"r:{rule.origin.name}", body))
        if not any(name == f"r:{self._start}" for name, _ in rules):
            raise self._error(f"there is no rule {self._start!r} to start from; define it", 0)
        patterns = {}
        for name, terminal in self._terminals.items():
            source = terminal.pattern.to_regexp()
            try:
                pattern = patterns[name] = Pattern(source)
            except Unsupported as error:
                raise self._terminal_error(terminal, f"holds {error}") from error
            except re.error as error:
                raise self._terminal_error(
                    terminal, f"is no pattern of re: {error.msg}", _broken_at(terminal)
                ) from error
            if pattern.width == 0:
                raise self._terminal_error(
                    terminal,
                    "can match the empty text, which lark allows in rules only; "
                    "let it match at least one character, and write ? where it is used",
                )
        left_out = dict.fromkeys(f"t:{name}" for name in ignored)
        return Definition(
            f"r:{self._start}", tuple(dict.fromkeys(rules)), patterns, tuple(left_out)
        )


def _broken_at(terminal: TerminalDef) -> int:
    """Where in its source a pattern is broken."""
    raw = terminal.pattern.raw or ""
    try:
        re.compile(raw[1 : raw.rindex("/")] if raw.startswith("/") else "")
    except re.error as error:
        return 1 + (error.pos or 0)
    return 0


def _ways(tree: Any) -> int:
    """How many alternatives lark unfolds a part of a rule into; at most one more than allowed."""
    if not isinstance(tree, lark.Tree) or tree.data in ("template_usage", "literal", "range"):
        return 1
    if tree.data == "alias":
        return _ways(tree.children[0])
    if tree.data == "expr":
        op, *counts = map(str, tree.children[1:])
        ways = _ways(tree.children[0])
        if op == "~" and int(counts[-1]) < REPEAT_BREAK_THRESHOLD:
            ways = sum(ways**n for n in range(int(counts[0]), int(counts[-1]) + 1))
        elif op in "?*":
            ways += 1
    elif tree.data in ("expansion", "value"):
        ways = prod(map(_ways, tree.children))
    else:
        ways = sum(map(_ways, tree.children)) + (tree.data == "maybe")
    return min(ways, _MOST_RULES + 1)


_TEXTUAL = re.compile(
    r'"(?:\\.|[^"\\\n])*"i?|//[^\n]*|#[^\n]*|/(?!/)(?:\\.|[^/\\])*?/[imslux]*', re.DOTALL
)
"""Strings, comments and patterns of a grammar: where names are no names."""
