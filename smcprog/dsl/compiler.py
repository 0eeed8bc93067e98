"""From Python source to awaited statements.

A program's ``def`` becomes an ``async def`` in which each call ``f(args)`` of its own body reads

    await runtime.settle(runtime.at(i, f)(args))

so that evaluation order is Python's, and what ``f`` is gets decided when it is called, by the
object (`smcprog.dsl.runtime`). Only calls of Python's own builtins stay as they are. What is known
about the names when the program is decorated serves to refuse early what could not work.
"""

from __future__ import annotations

import ast
import copy
import types
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from smcprog.dsl.checks import check_decorators, check_hidden_names
from smcprog.dsl.marker import Statement, register
from smcprog.dsl.names import UNKNOWN, Names, bound_names, role
from smcprog.dsl.runtime import Runtime, nested
from smcprog.dsl.site import Places, Site
from smcprog.dsl.source import Definition, Source, locate
from smcprog.errors import ProgramError

Node = TypeVar("Node", bound=ast.AST)

# The code refers to its runtime by a constant, put in the place of this one after compilation: a
# global or a closure variable would show in the user's globals() or locals().
_RUNTIME = "\0smcprog runtime"

_GENERATORS = 0x20 | 0x200  # CO_GENERATOR, CO_ASYNC_GENERATOR
_COROUTINE = 0x80  # CO_COROUTINE


@dataclass(frozen=True)
class Compiled:
    """A program's code.

    Attributes:
        code: of an ``async def``, to be given the function's own globals and closure.
        definition: the ``def`` as the user wrote it, None without source.
        places: makes the sites of its nodes, None without source.
    """

    code: types.CodeType
    definition: Definition | None = None
    places: Places | None = None


_cache: dict[int, tuple[types.CodeType, Compiled]] = {}


def compile_program(
    function: types.FunctionType,
    name: str,
    outer: Mapping[str, Any],
    decorators: Collection[object],
) -> Compiled:
    """Compile a function to a program.

    Args:
        name: the program's, for messages.
        outer: the local variables around the definition.
        decorators: the only ones that may stand above it.

    Raises:
        ProgramError: with file, line, caret and remedy.
    """
    # A program defined inside another is defined again in every replay, of the same code object.
    cached = _cache.get(id(function.__code__))
    if cached is None:
        compiled = _compile(function, name, outer, decorators)
        cached = _cache[id(function.__code__)] = (function.__code__, compiled)
    return cached[1]


def _compile(
    function: types.FunctionType,
    name: str,
    outer: Mapping[str, Any],
    decorators: Collection[object],
) -> Compiled:
    code = function.__code__
    source = locate(function)
    if source is None:
        if not code.co_flags & _COROUTINE:
            raise ProgramError(_no_source(code))
        register(code, name, by_hand=True)
        return Compiled(code)
    definition = copy.deepcopy(source.definition)
    places = Places(name, source.file, source.lines)
    check_decorators(source, function, places, outer, decorators)
    check_hidden_names(source, function, places, outer)
    local = frozenset(bound for bound, _ in bound_names(source.definition))
    by_hand = isinstance(source.definition, ast.AsyncFunctionDef)
    rewriter = _Rewriter(places, Names(function, local), source, by_hand, decorators)
    rewriter.rewrite_body()
    if by_hand:
        register(code, name, by_hand=True, sites=rewriter.sites)
        return Compiled(code, definition, places)
    _make_async(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's code was compiled, and warned about, before
        rewritten = source.compile()
    rewritten = _with_runtime(rewritten, Runtime(rewriter.sites, rewriter.within))
    register(rewritten, name, by_hand=False)
    return Compiled(rewritten, definition, places)


def _no_source(code: types.CodeType) -> str:
    return (
        f"the source of {code.co_name}() cannot be read, so it cannot be compiled to a program\n"
        f'  File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}\n'
        f"  Put it in a file, or in a notebook cell without a magic such as %%time, or write the "
        f"awaited form by hand:\n"
        f"      @smc_program\n"
        f"      async def {code.co_name}(...):\n"
        f"          x = await gen(...)"
    )


def _make_async(source: Source) -> None:
    """Turn the source's ``def`` into an ``async def``, in its place."""
    old = source.definition
    new = ast.AsyncFunctionDef(**{field: getattr(old, field) for field in old._fields})
    ast.copy_location(new, old)

    class Replace(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            return new if node is old else self.generic_visit(node)

    source.statement = Replace().visit(source.statement)
    source.definition = new


def _with_runtime(code: types.CodeType, runtime: Runtime) -> types.CodeType:
    def put(constant: object) -> object:
        if isinstance(constant, types.CodeType):
            return _with_runtime(constant, runtime)
        return runtime if constant == _RUNTIME and isinstance(constant, str) else constant

    return code.replace(co_consts=tuple(map(put, code.co_consts)))


# --- the rewriting ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Around:
    """A call in whose arguments we are: its number, its name where it is known to append, and
    whether it holds the programs that are called there (`aside`)."""

    number: int
    appending: str | None
    holds: bool


class _Rewriter(ast.NodeTransformer):
    """Awaits the calls of a program's own body, and refuses what cannot be awaited.

    With ``by_hand`` (the source is an ``async def``) it only checks.
    """

    def __init__(
        self,
        places: Places,
        names: Names,
        source: Source,
        by_hand: bool,
        decorators: Collection[object],
    ) -> None:
        self.sites: list[Site] = []
        self.within: list[tuple[int, ...]] = []
        self._places = places
        self._names = names
        self._source = source
        self._by_hand = by_hand
        self._decorators = decorators
        self._around: list[_Around | ast.JoinedStr] = []
        self._variable: str | None = None
        self._awaited: ast.expr | None = None

    def rewrite_body(self) -> None:
        definition = self._source.definition
        definition.body = [self.visit(statement) for statement in definition.body]

    def _refuse(self, node: ast.AST, message: str, remedy: str) -> NoReturn:
        raise ProgramError(self._places.site(node, within=self._fstring()).located(message, remedy))

    def _fstring(self) -> ast.JoinedStr | None:
        return next((a for a in self._around if isinstance(a, ast.JoinedStr)), None)

    # calls

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self._names.is_builtin(node.func) or _is_method_of_literal(node.func):
            return self.generic_visit(node)
        known = role(self._names.expression(node.func))
        appending = self._appending(node, known)
        innermost = self._around[-1] if self._around else None
        held = isinstance(innermost, _Around) and innermost.holds
        if appending and not (held and not isinstance(known, Statement)):
            self._check_nesting(node, appending)
        if self._by_hand and isinstance(known, Statement) and node is not self._awaited:
            source = self._places.site(node).source
            self._refuse(node, f"{known.name}() is not awaited", f"Write instead: await {source}")
        number = len(self.sites)
        self.sites.append(
            self._places.site(
                node, known.name if known else "", self._variable, within=self._fstring()
            )
        )
        self.within.append(tuple(a.number for a in self._around if isinstance(a, _Around)))
        func = self.visit(node.func)
        holds = isinstance(known, Statement) and known.holds
        self._around.append(_Around(number, appending, holds))
        args = [self.visit(arg) for arg in node.args]
        keywords = [self.visit(keyword) for keyword in node.keywords]
        self._around.pop()
        if self._by_hand:
            return _at(ast.Call(func, args, keywords), node)
        resolved = _runtime_call("at", [_at(ast.Constant(number), node), func], node)
        called = _at(ast.Call(resolved, args, keywords), node)
        return _at(ast.Await(_runtime_call("settle", [called], node)), node)

    def _appending(self, node: ast.Call, known: Any) -> str | None:
        if known is None:
            # A program that calls itself is not bound to its name yet when it is compiled.
            own = self._source.definition.name
            unbound = isinstance(node.func, ast.Name) and self._names.name(own) is UNKNOWN
            if unbound and node.func.id == own and own not in self._names.local:  # type: ignore[attr-defined]
                return own
            return None
        if isinstance(known, Statement):
            return known.name if known.appends else None
        return str(known.name)

    def _check_nesting(self, node: ast.Call, name: str) -> None:
        for depth, outer in enumerate(self._around):
            if not isinstance(outer, _Around) or outer.appending is None:
                continue
            site = self._places.site(node, within=self._fstring())
            message, remedy = nested(name, outer.appending, site.source)
            if any(isinstance(a, ast.JoinedStr) for a in self._around[depth:]):
                message = (
                    f"{name}() stands inside an f-string in the arguments of {outer.appending}(): "
                    f"it would run, and append its text, before the text around it"
                )
            raise ProgramError(site.located(message, remedy))

    def visit_Await(self, node: ast.Await) -> ast.AST:
        self._awaited = node.value
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        self._around.append(node)
        self.generic_visit(node)
        self._around.pop()
        return node

    # what a value is assigned to

    def _assigned(self, value: Node, target: ast.expr) -> Node:
        before, self._variable = self._variable, ast.unparse(target)
        visited: Node = self.visit(value)
        self._variable = before
        return visited

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        pair = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        if pair and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]
            values, targets = node.value.elts, target.elts  # type: ignore[attr-defined]
            node.value.elts = list(map(self._assigned, values, targets))  # type: ignore[attr-defined]
        else:
            node.value = self._assigned(node.value, target)
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        node.value = self._assigned(node.value, node.target)
        node.target = self.visit(node.target)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:  # the annotation of a local variable is never evaluated
            node.value = self._assigned(node.value, node.target)
        node.target = self.visit(node.target)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        node.value = self._assigned(node.value, node.target)
        return node

    # other scopes: what they evaluate in ours is rewritten, their bodies are searched

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        node.defaults = [self.visit(default) for default in node.defaults]
        node.kw_defaults = [default and self.visit(default) for default in node.kw_defaults]
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        self.visit(node.args)
        fix = "Write it in the program's own body, or as a def decorated with @smc_program."
        self._search([node.body], _bound_in(node), "a lambda", fix)
        return node

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> ast.AST:
        first = node.generators[0]
        first.iter = self.visit(first.iter)
        bound = {name for part in node.generators for name, _ in bound_names(part.target)}
        inside: list[ast.AST] = [node.elt, *first.ifs, *node.generators[1:]]
        fix = "Write a list comprehension: [... for ... in ...]"
        self._search(inside, bound, "a generator expression", fix)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def _function(self, node: Definition) -> ast.AST:
        if not self._is_program(node):
            fix = f"Decorate {node.name}() with @smc_program."
            self._search(node.body, _bound_in(node), f"the nested function {node.name}()", fix)
        node.decorator_list = [self.visit(decorator) for decorator in node.decorator_list]
        self.visit(node.args)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._search(node.body, (), "a class body", "Run it before the class, and use its result.")
        node.decorator_list = [self.visit(decorator) for decorator in node.decorator_list]
        node.bases = [self.visit(base) for base in node.bases]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        return node

    def visit_TypeAlias(self, node: ast.AST) -> ast.AST:
        return node  # Python 3.12: evaluated lazily, in a scope of its own

    def _is_program(self, node: Definition) -> bool:
        return any(
            self._names.expression(decorator) is one
            for decorator in node.decorator_list
            for one in self._decorators
            if one not in (classmethod, staticmethod)
        )

    def _search(
        self, nodes: Iterable[ast.AST], bound: Collection[str], where: str, remedy: str
    ) -> None:
        """Refuse statements, and changes of shared variables, in a scope inside the program."""
        names = self._names.hiding(bound)
        todo = list(nodes)
        while todo:
            node = todo.pop(0)
            if isinstance(node, Definition):
                todo[:0] = [*node.decorator_list, node.args]
                if self._is_program(node):
                    continue
                fix = f"Decorate {node.name}() with @smc_program."
                place = f"the nested function {node.name}()"
                self._search(node.body, {*bound, *_bound_in(node)}, place, fix)
                continue
            if isinstance(node, ast.Lambda):
                bound = {*bound, *_bound_in(node)}
                names = self._names.hiding(bound)
            if isinstance(node, ast.Global):
                self.visit_Global(node)
            if isinstance(node, ast.Nonlocal):
                shared = set(self._source.code.co_freevars)
                if shared.intersection(node.names):
                    self.visit_Nonlocal(node)
            if isinstance(node, ast.Call):
                known = role(names.expression(node.func))
                if known is not None:
                    self._refuse(node, f"{known.name}() cannot stand in {where}", remedy)
            todo[:0] = ast.iter_child_nodes(node)

    # what has no place in a program

    def visit_Yield(self, node: ast.Yield) -> ast.AST:
        self._refuse(node, "a program cannot yield", "Collect the values in a list and return it.")

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.AST:
        self._refuse(node, "a program cannot yield", "Collect the values in a list and return it.")

    def visit_Global(self, node: ast.Global) -> ast.AST:
        return self._shared(node, "global")

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        return self._shared(node, "nonlocal")

    def _shared(self, node: ast.Global | ast.Nonlocal, word: str) -> ast.AST:
        self._refuse(
            node,
            f"a program cannot declare `{word} {', '.join(node.names)}`: all particles share that "
            f"variable, and every replay would change it again",
            "Keep the value in a local variable and return it, or change shared state in call().",
        )


def _bound_in(node: ast.AST) -> set[str]:
    return {name for name, _ in bound_names(node)}


def _is_method_of_literal(func: ast.expr) -> bool:
    return isinstance(func, ast.Attribute) and isinstance(func.value, (ast.Constant, ast.JoinedStr))


def _at(new: Node, old: ast.AST) -> Node:
    return ast.copy_location(new, old)


def _runtime_call(method: str, args: list[ast.expr], at: ast.AST) -> ast.Call:
    func = _at(ast.Attribute(_at(ast.Constant(_RUNTIME), at), method, ast.Load()), at)
    return _at(ast.Call(func, args, []), at)
