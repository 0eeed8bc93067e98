"""The plan of a program: its statements, the control flow around them, where each is evaluated.

It is read off the program's source, with what its names mean at the time: potentials that are made
of constants and globals are shown as what they are, the others as decided at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from smcprog.dsl.asking import Inlinable
from smcprog.dsl.marker import Statement
from smcprog.dsl.names import UNKNOWN, Names, bound_names, role
from smcprog.dsl.program import Program
from smcprog.dsl.site import Places, Site
from smcprog.dsl.stages import LATER, WHERE, Factor, PotentialReader

__all__ = ["Block", "Factor", "Plan", "Planned", "Site", "make_plan"]


@dataclass(frozen=True)
class Planned:
    """A statement of the plan. ``stop`` says in words what ends a `gen`'s text."""

    site: Site
    potentials: tuple[Factor, ...] = ()
    stop: str | None = None


@dataclass(frozen=True)
class Block:
    """Control flow around statements.

    ``kind`` is "if", "for", "while", "try", "with", "match", "comprehension", "call" (a program
    that is inlined here) or "aside"; ``header`` the source that opens it.
    """

    kind: str
    header: str
    line: int
    children: tuple[Planned | Block, ...]


@dataclass(frozen=True, repr=False)
class Plan:
    """A program's plan: a tree of blocks and statements. ``print(plan)`` shows it."""

    program: str
    header: str
    file: str
    line: int
    children: tuple[Planned | Block, ...]
    note: str = ""

    @property
    def statements(self) -> tuple[Planned, ...]:
        """Every statement in source order, those of inlined programs at their call."""
        return tuple(_statements(self.children))

    def explain(self, costs: object | None = None) -> str:
        """Each statement with its source line, the control flow around it, and its potentials.

        Args:
            costs: what `Engine.roofline` returns, to add what rounds cost on that machine and the
                speed-up that this predicts.

        >>> @smc_program
        ... def twice():
        ...     for _ in range(2):
        ...         gen(stop=".")
        >>> print(twice.plan().explain())  # doctest: +ELLIPSIS
        twice()   File "...", line 2
           3  for _ in range(2):
           4      gen(stop=".")
                      lm    score   in the target's batched pass
                      stop  '.' or EOS (the model's end tokens); at most 512 tokens
        """
        lines = [f'{self.header}   File "{self.file}", line {self.line}']
        if self.note:
            lines.append(f"      {self.note}")
        seen: set[tuple[str, int]] = set()
        for child in self.children:
            lines += _rendered(child, 0, seen)
        if costs is not None:
            lines += ["", str(costs)]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from smcprog.notebook.plan import plan_html

        return plan_html(self)


def _statements(children: Sequence[Planned | Block]) -> Iterator[Planned]:
    for child in children:
        if isinstance(child, Planned):
            yield child
        else:
            yield from _statements(child.children)


def make_plan(program: Program[Any]) -> Plan:
    """Read the plan off a program's source."""
    return _plan(program, ())


def _plan(program: Program[Any], callers: tuple[Program[Any], ...]) -> Plan:
    code = program.function.__code__
    header = f"{program.name}{program.signature}"
    definition, places = program.compiled.definition, program.compiled.places
    if definition is None or places is None:
        note = "(its source cannot be read: its statements are known when it runs)"
        return Plan(program.name, header, code.co_filename, code.co_firstlineno, (), note)
    reader = _PlanReader(program, places, (*callers, program))
    children = tuple(reader.body(definition.body))
    return Plan(program.name, header, code.co_filename, definition.lineno, children)


class _PlanReader:
    """Walks a definition in the order of evaluation, and keeps what holds statements."""

    def __init__(
        self, program: Program[Any], places: Places, callers: tuple[Program[Any], ...]
    ) -> None:
        definition = program.compiled.definition
        assert definition is not None
        local = frozenset(name for name, _ in bound_names(definition))
        self._program = program
        self._places = places
        self._callers = callers
        self._names = Names(program.function, local)
        self._first = next(iter(program.signature.parameters), None)
        self._variable: str | None = None

    def body(self, statements: Sequence[ast.stmt]) -> Iterator[Planned | Block]:
        for statement in statements:
            yield from self._statement(statement)

    def _block(
        self,
        kind: str,
        header: str,
        node: ast.AST,
        children: Sequence[Planned | Block] | Iterator[Planned | Block],
    ) -> Iterator[Block]:
        held = tuple(children)
        if held:
            yield Block(kind, header, getattr(node, "lineno", 0), held)

    # statements of Python

    def _statement(self, node: ast.stmt) -> Iterator[Planned | Block]:
        match node:
            case ast.If():
                yield from self._if(node, "if")
            case ast.For() | ast.AsyncFor():
                yield from self._expression(node.iter)
                bound, values = self._places.source(node.target), self._places.source(node.iter)
                header = f"for {bound} in {values}:"
                yield from self._block("for", header, node, self.body(node.body))
                yield from self._else("for", node.orelse)
            case ast.While():
                inside = [*self._expression(node.test), *self.body(node.body)]
                header = f"while {self._places.source(node.test)}:"
                yield from self._block("while", header, node, inside)
                yield from self._else("while", node.orelse)
            case ast.Try() | ast.TryStar():
                yield from self._block("try", "try:", node, self.body(node.body))
                for handler in node.handlers:
                    header = ast.unparse(handler).splitlines()[0]
                    yield from self._block("try", header, handler, self.body(handler.body))
                yield from self._else("try", node.orelse)
                first = node.finalbody[0] if node.finalbody else node
                yield from self._block("try", "finally:", first, self.body(node.finalbody))
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    yield from self._expression(item.context_expr)
                header = f"with {', '.join(map(ast.unparse, node.items))}:"
                yield from self._block("with", header, node, self.body(node.body))
            case ast.Match():
                yield from self._expression(node.subject)
                cases = [block for case in node.cases for block in self._case(case)]
                header = f"match {self._places.source(node.subject)}:"
                yield from self._block("match", header, node, cases)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                for part in [*node.decorator_list, *_defaults(node)]:
                    yield from self._expression(part)
            case ast.Assign() | ast.AugAssign() | ast.AnnAssign() if node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                yield from self._assigned(node.value, target)
            case _:
                yield from self._expression(node)

    def _if(self, node: ast.If, word: str) -> Iterator[Planned | Block]:
        test = tuple(self._expression(node.test))
        yield from test
        header = f"{word} {self._places.source(node.test)}:"
        yield from self._block("if", header, node, self.body(node.body))
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            yield from self._if(node.orelse[0], "elif")
        else:
            yield from self._else("if", node.orelse)

    def _else(self, kind: str, statements: Sequence[ast.stmt]) -> Iterator[Block]:
        if statements:
            yield from self._block(kind, "else:", statements[0], self.body(statements))

    def _case(self, case: ast.match_case) -> Iterator[Block]:
        guard = tuple(self._expression(case.guard)) if case.guard else ()
        header = ast.unparse(case).splitlines()[0]
        yield from self._block("match", header, case.pattern, [*guard, *self.body(case.body)])

    def _assigned(self, value: ast.expr, target: ast.expr) -> Iterator[Planned | Block]:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            if len(target.elts) == len(value.elts):
                for one, name in zip(value.elts, target.elts, strict=True):
                    yield from self._assigned(one, name)
                return
        before, self._variable = self._variable, ast.unparse(target)
        yield from self._expression(value)
        self._variable = before

    # expressions

    def _expression(self, node: ast.AST) -> Iterator[Planned | Block]:
        match node:
            case ast.Lambda():
                for part in _defaults(node):
                    yield from self._expression(part)
            case ast.GeneratorExp():
                yield from self._expression(node.generators[0].iter)
            case ast.ListComp() | ast.SetComp():
                yield from self._comprehension(node.generators, [node.elt])
            case ast.DictComp():
                yield from self._comprehension(node.generators, [node.key, node.value])
            case ast.IfExp():
                yield from self._expression(node.test)
                header = f"if {self._places.source(node.test)}:"
                yield from self._block("if", header, node, self._expression(node.body))
                yield from self._block("if", "else:", node, self._expression(node.orelse))
            case ast.NamedExpr():
                yield from self._assigned(node.value, node.target)
            case ast.Call():
                parts = (node.func, *node.args, *node.keywords)
                inner = [found for part in parts for found in self._expression(part)]
                known = role(self._callee(node.func))
                if isinstance(known, Statement) and known.holds:
                    yield Block("aside", self._header(node), node.lineno, tuple(inner))
                else:
                    yield from inner
                    yield from self._call(node, known)
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from self._expression(child)

    def _comprehension(
        self, generators: Sequence[ast.comprehension], values: Sequence[ast.expr]
    ) -> Iterator[Planned | Block]:
        if not generators:
            for value in values:
                yield from self._expression(value)
            return
        first, *rest = generators
        yield from self._expression(first.iter)
        inside = [found for test in first.ifs for found in self._expression(test)]
        inside += self._comprehension(rest, values)
        header = ast.unparse(first).strip()
        yield from self._block("comprehension", header, first.target, inside)

    def _header(self, node: ast.Call) -> str:
        """A call's source, with what it is assigned to."""
        source = self._places.source(node)
        return f"{self._variable} = {source}" if self._variable else source

    def _call(
        self, node: ast.Call, known: Statement | Inlinable | None
    ) -> Iterator[Planned | Block]:
        if isinstance(known, Statement):
            site = self._places.site(node, known.name, self._variable)
            if known.name == "gen":
                potentials, stop = PotentialReader(self._names, self._places).of_gen(node)
                yield Planned(site, potentials, stop)
            elif known.name == "observe":
                yield Planned(site, PotentialReader(self._names, self._places).of_observe(node))
            else:
                yield Planned(site)
        elif isinstance(known, Program):
            header = self._header(node)
            if known in self._callers:
                yield Block("call", f"{header}   (recursion)", node.lineno, ())
            else:
                inner = _plan(known, self._callers)
                if inner.note:
                    header = f"{header}   {inner.note}"
                yield Block("call", header, node.lineno, inner.children)

    def _callee(self, func: ast.expr) -> Any:
        on_self = isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name)
        owner = self._program.owner
        if on_self and owner is not None and func.value.id == self._first:  # type: ignore[attr-defined]
            return getattr(owner, func.attr, UNKNOWN)  # type: ignore[attr-defined]
        return self._names.expression(func)


def _defaults(node: ast.AST) -> list[ast.expr]:
    args = getattr(node, "args", None)
    if not isinstance(args, ast.arguments):
        return [*getattr(node, "bases", []), *(k.value for k in getattr(node, "keywords", []))]
    return [*args.defaults, *(default for default in args.kw_defaults if default is not None)]


# --- showing -------------------------------------------------------------------------------------


def _rendered(node: Planned | Block, depth: int, seen: set[tuple[str, int]]) -> list[str]:
    indent = "    " * depth
    if isinstance(node, Block):
        lines = [f"{node.line:>4}  {indent}{node.header}"]
        inner = set(seen) if node.kind == "call" else seen
        for child in node.children:
            lines += _rendered(child, depth + 1, inner)
        return lines
    lines = [f"{node.site.line:>4}  {indent}{source_line(node.site, seen)}"]
    rows = details(node)
    width = max([len(source) for source, _, _ in rows], default=0)
    for source, stage, note in rows:
        stage = f"{stage:<6}  " if stage else ""
        lines.append(f"      {indent}    {source:<{width}}  {stage}{note}".rstrip())
    return lines


def details(statement: Planned) -> list[tuple[str, str, str]]:
    """Source, stage and remark of each potential of a statement, and last what ends its text."""
    rows = [
        (f.source, f.stage or LATER, ", ".join(filter(None, [WHERE.get(f.stage or ""), f.note])))
        for f in statement.potentials
    ]
    return rows if statement.stop is None else [*rows, ("stop", "", statement.stop)]


def source_line(site: Site, seen: set[tuple[str, int]]) -> str:
    """The statement's source line; of a second one on a line, or a longer one, its own text."""
    key = (site.file, site.line)
    source = " ".join(site.source.split())
    fresh, short = key not in seen, "\n" not in site.source
    seen.add(key)
    if fresh and short and not site.text.strip().startswith(("if ", "elif ", "while ", "for ")):
        return site.text.strip()
    shown = f"{site.variable} = {source}" if site.variable else source
    return shown if len(shown) <= 100 else f"{shown[:97]}..."
