"""What a name in a program means, as far as it can be told before the program runs."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import types
from collections.abc import Iterable, Mapping
from typing import Any, Final

from smcprog.dsl.asking import Inlinable
from smcprog.dsl.marker import Statement
from smcprog.potentials.base import Potential
from smcprog.text import StopEvent

UNKNOWN: Final = object()

STATEMENTS = frozenset(
    "prompt chat gen observe logprob factor condition twist sync draw call aside context".split()
)
PUBLIC = STATEMENTS | frozenset(
    "lm model regex grammar json_schema choice reward from_genlm special EOS LEAVE".split()
)
"""Names of the language: a program's own variable of such a name would hide it."""


def is_ours(value: object) -> bool:
    """Whether the object is one of smcprog's own."""
    if isinstance(value, (Statement, StopEvent, Potential)):
        return True
    return str(getattr(value, "__module__", "")).startswith("smcprog.")


class Names:
    """Looks names up as a function's code will: its closure, its globals, builtins.

    Args:
        function: whose names.
        local: what the function binds itself; nothing is known of those.
    """

    def __init__(self, function: types.FunctionType, local: frozenset[str] = frozenset()) -> None:
        self._globals: Mapping[str, Any] = function.__globals__
        cells = function.__closure__ or ()
        self._cells = dict(zip(function.__code__.co_freevars, cells, strict=True))
        self.local = local

    def hiding(self, local: Iterable[str]) -> Names:
        """The same names, seen from a scope inside that binds ``local``."""
        inner = copy.copy(self)
        inner.local = self.local | frozenset(local)
        return inner

    def name(self, name: str) -> Any:
        """The object that a free name stands for now, or `UNKNOWN`."""
        if name in self.local:
            return UNKNOWN
        if name in self._cells:
            try:
                return self._cells[name].cell_contents
            except ValueError:
                return UNKNOWN
        if name in self._globals:
            return self._globals[name]
        return getattr(builtins, name, UNKNOWN)

    def expression(self, node: ast.expr) -> Any:
        """The object of a name, or of a chain of attributes, none of which is computed."""
        if isinstance(node, ast.Name):
            return self.name(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.expression(node.value)
            if isinstance(owner, types.ModuleType):
                return vars(owner).get(node.attr, UNKNOWN)
            if owner is not UNKNOWN:
                return unwrapped(inspect.getattr_static(owner, node.attr, UNKNOWN))
        return UNKNOWN

    def is_builtin(self, node: ast.expr) -> bool:
        """Whether the callee is Python's own, to be called as it is (``super``, ``locals``)."""
        return (
            isinstance(node, ast.Name)
            and node.id not in self.local
            and node.id not in self._cells
            and node.id not in self._globals
            and hasattr(builtins, node.id)
        )


def unwrapped(value: Any) -> Any:
    """The statement or program inside a classmethod, staticmethod, bound method or partial."""
    while isinstance(value, (classmethod, staticmethod, types.MethodType, functools.partial)):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    return value


def role(value: Any) -> Statement | Inlinable | None:
    """The statement or program that a callee is, or None."""
    value = unwrapped(value)
    return value if isinstance(value, (Statement, Inlinable)) else None


def bound_names(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """Each name that a function binds in its own scope, comprehensions included, with its node.

    For imports from smcprog the node is the whole ImportFrom: they bind a name to what it means.
    """
    found: list[tuple[str, ast.AST]] = []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        found += [(a.arg, a) for a in all_arguments(node.args)]
        body: list[ast.AST] = [node.body] if isinstance(node, ast.Lambda) else list(node.body)
    else:
        body = [node]
    while body:
        at = body.pop(0)
        match at:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                found.append((at.name, at))
                body[:0] = at.decorator_list
                continue
            case ast.Lambda():
                continue
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.append((name, at))
            case ast.ExceptHandler(name=str(name)):
                found.append((name, at))
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.append((name, at))
            case ast.MatchMapping(rest=str(name)):
                found.append((name, at))
            case ast.Import() | ast.ImportFrom():
                module = getattr(at, "module", None) or ""
                ours = module.startswith("smcprog")
                for alias in at.names:
                    name = (alias.asname or alias.name).split(".")[0]
                    found.append((name, at if ours else alias))
                continue
        body[:0] = ast.iter_child_nodes(at)
    return found


def all_arguments(args: ast.arguments) -> list[ast.arg]:
    """Every parameter, in order."""
    named = [*args.posonlyargs, *args.args]
    if args.vararg:
        named.append(args.vararg)
    named += args.kwonlyargs
    if args.kwarg:
        named.append(args.kwarg)
    return named
