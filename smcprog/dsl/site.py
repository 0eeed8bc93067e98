"""Where a statement stands in the user's source, and how an error shows it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Site:
    """The place of one call in a program.

    Attributes:
        program: name of the program.
        file, line, column: where the call begins; lines count from 1, columns from 0.
        source: the call's own text.
        statement: name of the statement, "" where it is only known at run time.
        variable: what the result is assigned to, or None.
        text: the whole source line, "" without source.
    """

    program: str
    file: str
    line: int
    column: int
    source: str
    statement: str = ""
    variable: str | None = None
    text: str = field(default="", compare=False, repr=False)

    def located(self, message: str, remedy: str | None = None) -> str:
        """``message`` with file, line, a caret under the call, and what to write instead."""
        out = f'{message}\n  File "{self.file}", line {self.line}, in {self.program}'
        code = self.text.strip()
        if code:
            indent = len(self.text) - len(self.text.lstrip())
            start = max(self.column - indent, 0)
            width = len(self.source.splitlines()[0]) if self.source else 1
            width = max(1, min(width, len(code) - start))
            out += f"\n    {code}\n    {' ' * start}{'^' * width}"
        if remedy:
            out += f"\n  {remedy}"
        return out


class Places:
    """Makes the sites of one program's source."""

    def __init__(self, program: str, file: str, lines: Sequence[str]) -> None:
        self._program = program
        self._file = file
        self._lines = lines

    def site(
        self,
        node: ast.AST,
        statement: str = "",
        variable: str | None = None,
        within: ast.JoinedStr | None = None,
    ) -> Site:
        """The place of a node. ``within``: the f-string around it, whose place is the better one
        where the parser is not sure (inside f-strings, before Python 3.12)."""
        where, source = node, self._segment(node)
        if within is not None and not _reads_as(source, node):
            where, source = within, ast.unparse(node)
        line: int = getattr(where, "lineno", 1)
        text = self.line(line)
        column = len(text.encode()[: getattr(where, "col_offset", 0)].decode(errors="replace"))
        return Site(self._program, self._file, line, column, source, statement, variable, text)

    def line(self, number: int) -> str:
        """A source line, without its end."""
        return self._lines[number - 1].rstrip("\r\n") if 0 < number <= len(self._lines) else ""

    def source(self, node: ast.AST) -> str:
        """The node's own text, on one line."""
        return " ".join(self._segment(node).split()) or ast.unparse(node)

    def _segment(self, node: ast.AST) -> str:
        first, last = getattr(node, "lineno", 1), getattr(node, "end_lineno", None)
        start, stop = getattr(node, "col_offset", 0), getattr(node, "end_col_offset", None)
        if last is None or stop is None:
            return ""
        lines = [self.line(number).encode() for number in range(first, last + 1)]
        lines[-1] = lines[-1][:stop]
        lines[0] = lines[0][start:]
        return b"\n".join(lines).decode(errors="replace")


def _reads_as(source: str, node: ast.AST) -> bool:
    try:
        return ast.dump(ast.parse(source, mode="eval").body) == ast.dump(node)
    except SyntaxError:
        return False
