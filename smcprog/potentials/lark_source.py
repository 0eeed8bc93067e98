"""The source of a lark grammar: what lark reads in it, and where its errors are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import lark
from lark.lexer import TerminalDef
from lark.load_grammar import REPEAT_BREAK_THRESHOLD, load_grammar

from smcprog.errors import GrammarError
from smcprog.potentials.lark_terminal import Pattern, Unsupported
from smcprog.potentials.lark_translate import Definition, EmptyLanguage, translate
from smcprog.potentials.pattern import no_utf8, shortened

_LONGEST_SOURCE = 40_000
_MOST_RULES = 20_000
_MOST_TEMPLATES = 2_000
_LONGEST_TEMPLATE = 2_000
_LONGEST_TERMINAL = 200_000
_MOST_WRITTEN_OUT = 1_000_000
_MOST_IMPORTS = 100


class Source:
    """A grammar's text, and how errors are placed in it.

    Args:
        text: lark source.
        start: the name of a rule.
        path: the file that it comes from, beside which ``%import`` looks first.
    """

    def __init__(self, text: str, start: str, path: Path | None) -> None:
        self._text = text
        self._start = start
        self._path = path
        self._imported: list[str] = []
        self._written_out = 1

    @cached_property
    def _code(self) -> str:
        return _code(self._text)

    def translated(self) -> tuple[str, Definition]:
        """The language in llguidance's Lark dialect, and what it was translated from.

        Raises:
            GrammarError
        """
        if len(self._text) > _LONGEST_SOURCE:
            raise self._error(
                f"it has {len(self._text)} characters, more than {_LONGEST_SOURCE}; "
                "choice(...) takes thousands of strings, regex(...) long patterns",
                0,
            )
        if lone := re.search("[\ud800-\udfff]", self._text):
            raise self._error("a lone surrogate is no text; remove it", lone.start())
        if null := re.search("\0", self._text):
            raise self._error("a null character is not read; write \\x00", null.start())
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
        return translation, definition

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
        return self._error(f"the terminal {shortened(raw or terminal.name)} {reason}", at + within)

    def _read(self) -> tuple[list[TerminalDef], list[Any], list[str]]:
        """What lark makes of the text: terminals, rules in Backus-Naur form, ignored terminals."""
        try:
            name = str(self._path) if self._path else "<string>"
            self._check_code(self._code, 0)
            loaded, _ = load_grammar(self._text, name, [self._import], False)
            self._check_templates(loaded.rule_defs)
            self._check_terminals(loaded.term_defs)
            for rule, _, tree, _ in loaded.rule_defs:
                if _ways(tree) > _MOST_RULES:
                    raise self._unfolded(rule)
            return loaded.compile([self._start], set())
        except lark.exceptions.UnexpectedInput as error:
            reason = str(error).split(" at line")[0].split(", at line")[0]
            raise self._error_at(reason, max(error.line, 1), max(error.column, 1)) from error
        except lark.exceptions.VisitError as error:
            if isinstance(error.orig_exc, RecursionError):
                raise self._too_deep() from error
            raise self._lark_error(error.orig_exc) from error
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
            raise self._too_deep() from error
        except GrammarError:
            raise
        except Exception as error:  # where lark's own checks of a malformed grammar fail
            reason = f"lark cannot read it ({type(error).__name__}: {shortened(str(error))})"
            raise self._error(reason, 0) from error

    def _too_deep(self) -> GrammarError:
        return self._error("it is nested too deeply; name some of its parts", 0)

    def _import(self, base: str | None, name: str) -> tuple[str, str]:
        """Find an imported grammar beside this one: its path and its text (a hook of lark's).

        Raises:
            OSError: if there is none; lark then looks among its own.
        """
        folders = [self._path.parent] if self._path else []
        for folder in [*folders, *([Path(base)] if base else [])]:
            path = folder / name
            try:
                data = path.read_bytes()
            except OSError:
                continue
            at = self._place(path.stem, use=True)
            self._imported.append(str(path))
            if len(self._imported) > _MOST_IMPORTS:
                raise self._error("%import: it imports itself, or too many grammars", at)
            if len(data) > _LONGEST_SOURCE:
                raise self._error(f"%import: {path} has more than {_LONGEST_SOURCE} bytes", at)
            try:
                text = data.decode()
            except UnicodeDecodeError as error:
                raise self._error(f"%import: {path}: {no_utf8(error)}", at) from error
            self._check_code(_code(text), at)
            return str(path), text
        raise FileNotFoundError(name)

    def _unfolded(self, rule: str) -> GrammarError:
        return self._error(
            f"the rule {rule} unfolds into more than {_MOST_RULES} alternatives, since each ? and *"
            " doubles them; move some of its parts into rules of their own",
            self._place(rule),
        )

    def _lark_error(self, error: BaseException) -> GrammarError:
        if isinstance(error.args[-1], SyntaxError):  # a literal's escapes, as Python reads them
            text, reason = error.args
            at = max(self._text.find(text), 0)
            return self._error(f"{shortened(text)!r} is no literal: {reason.msg}", at)
        message = str(error)
        reason = message.split("\n")[0]
        if found := re.search(r",? (?:at )?line (\d+),? column (\d+)", message):
            if self._imported:  # the last text to be read
                path = self._imported[-1]
                at = self._place(Path(path).stem, use=True)
                return self._error(f"%import: {path}: {shortened(reason, 200).rstrip(': ')}", at)
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

    def _check_code(self, code: str, at: int) -> None:
        """Refuse what lark would choke on, in this grammar or one that it imports at a place.

        Such are terminals that use others that use others: lark visits each use of each use. The
        uses of imported ones multiply those here.
        """
        if digits := re.search(r"\d{100}", code):
            raise self._error("a number of too many digits", at or digits.start())
        self._written_out *= _uses(code)
        if self._written_out > _MOST_WRITTEN_OUT:
            raise self._error(
                "the terminals use each other over and over, a million times; write rules", at
            )

    def _check_terminals(self, definitions: Iterable[tuple[str, tuple[Any, int]]]) -> None:
        """Refuse terminals that are too long once they are written out."""
        lengths: dict[int, int] = {}

        def length(node: Any) -> int:
            if not isinstance(node, lark.Tree):
                return len(str(node))
            if id(node) not in lengths:
                lengths[id(node)] = 4 + sum(map(length, node.children))
            return lengths[id(node)]

        for name, (tree, _) in definitions:
            if length(tree) > _LONGEST_TERMINAL:
                raise self._error(
                    f"the terminal {name} is a pattern of more than {_LONGEST_TERMINAL} characters,"
                    " with the terminals that it uses; write a rule",
                    self._place(name),
                )

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


def _code(text: str) -> str:
    """The text with blanks for strings, comments and patterns, in which names are no names."""
    return _TEXTUAL.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def _uses(code: str) -> int:
    """How many terminals the largest terminal of a source uses, itself and repetitions included."""
    definitions = [*_DEFINITION.finditer(code)]
    ends = [match.start() for match in definitions] + [len(code)]
    used = {
        match[1]: _TERMINAL.findall(code[match.end() : end])
        for match, end in zip(definitions, ends[1:], strict=True)
        if match[1].isupper()
    }
    total: dict[str, int] = {}
    for name in used:
        stack = [name]
        while stack:
            top = stack[-1]
            total.setdefault(top, 0)  # a terminal that uses itself is lark's error
            missing = [other for other in used[top] if other in used and other not in total]
            if missing:
                stack.append(missing[0])
            else:
                stack.pop()
                total[top] = 1 + sum(total.get(other, 1) for other in used[top])
    return max(total.values(), default=1)


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


_DEFINITION = re.compile(r"^[ \t]*[!?]*(\w+)(?:\{[^}\n]*\})?(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_TERMINAL = re.compile(r"(?<!\w)_*[A-Z][_A-Z0-9]*(?!\w)")
_TEXTUAL = re.compile(
    r'"(?:\\.|[^"\\\n])*"i?|//[^\n]*|#[^\n]*|/(?!/)(?:\\.|[^/\\])*?/[imslux]*', re.DOTALL
)
"""Strings, comments and patterns of a grammar."""
