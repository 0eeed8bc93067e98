"""What is refused by the look of a definition: decorators, and variables that hide our names."""

from __future__ import annotations

import ast
import types
from collections.abc import Collection, Mapping
from typing import Any

from smcprog.dsl.marker import Statement
from smcprog.dsl.names import PUBLIC, STATEMENTS, UNKNOWN, Names, bound_names, is_ours
from smcprog.dsl.site import Places
from smcprog.dsl.source import Source
from smcprog.errors import ProgramError


def _look_up(node: ast.expr, names: Names, outer: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name) and node.id in outer:
        return outer[node.id]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return getattr(_look_up(node.value, names, outer), node.attr, UNKNOWN)
    return names.expression(node)


def check_decorators(
    source: Source,
    function: types.FunctionType,
    places: Places,
    outer: Mapping[str, Any],
    allowed: Collection[object],
) -> None:
    """Refuse decorators other than ``allowed``.

    Raises:
        ProgramError: with the decorator's place.
    """
    names = Names(function)
    for decorator in source.definition.decorator_list:
        if not any(_look_up(decorator, names, outer) is one for one in allowed):
            raise ProgramError(
                places.site(decorator).located(
                    f"a program cannot have the decorator @{ast.unparse(decorator)}: it would be "
                    f"given awaited code",
                    "Only @classmethod and @staticmethod may stand beside @smc_program. Leave it "
                    "out, or decorate a plain function that the program calls.",
                )
            )


def check_hidden_names(
    source: Source, function: types.FunctionType, places: Places, outer: Mapping[str, Any]
) -> None:
    """Refuse variables that hide a name of the language.

    A name is hidden where it means smcprog's object outside the function, or where a variable of a
    statement's name is called: anyone would read it as the statement.

    Raises:
        ProgramError: with the place where the variable is bound.
    """
    called = {
        node.func.id
        for node in ast.walk(source.definition)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    for name, node in bound_names(source.definition):
        if isinstance(node, ast.ImportFrom):
            continue
        meant = outer.get(name, function.__globals__.get(name, UNKNOWN))
        hides = isinstance(meant, Statement) or (name in PUBLIC and is_ours(meant))
        if hides or (name in STATEMENTS and name in called):
            kind = "parameter" if isinstance(node, ast.arg) else "variable"
            public = getattr(meant, "name", name)
            raise ProgramError(
                places.site(node).located(
                    f"the {kind} `{name}` hides smcprog's `{public}`",
                    f"Rename the {kind}, for example to `{name}_`, so that `{name}` means "
                    f"smcprog.{public} in the whole program.",
                )
            )
