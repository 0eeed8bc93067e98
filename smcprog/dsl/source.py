"""Finding a function's definition, and being sure that it is the one that runs.

The whole file or notebook cell is parsed and the ``def`` found by line and name. Then the top-level
statement around it is compiled again and compared with the function's code object: a file that was
edited after its import must not be compiled in the function's place. Compiling that whole statement
(rather than the ``def`` alone) keeps closures, ``__class__`` and private names as they are.
"""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import linecache
import types
from dataclasses import dataclass
from typing import Any

from smcprog.errors import ProgramError

Definition = ast.FunctionDef | ast.AsyncFunctionDef

_FUTURE = functools.reduce(
    lambda flags, name: flags | getattr(__future__, name).compiler_flag,
    __future__.all_feature_names,
    0,
)


@dataclass
class Source:
    """A function's definition within its file. The trees are this object's own to change.

    Attributes:
        definition: the ``def``, a node within ``statement``.
        statement: the top-level statement of the file that holds it.
        lines: the file's lines.
    """

    code: types.CodeType
    definition: Definition
    statement: ast.stmt
    lines: list[str]

    @property
    def file(self) -> str:
        return self.code.co_filename

    def compile(self) -> types.CodeType:
        """The function's code object, compiled from ``statement`` as it is now."""
        flags = _flags(self.code)
        tree = ast.Module([self.statement], [])
        module = compile(tree, self.file, "exec", flags=flags, dont_inherit=True)
        code = _find_code(module, self.code)
        assert code is not None, "the definition is in the statement that was compiled"
        return code


def locate(function: types.FunctionType) -> Source | None:
    """The function's source, or None where there is none to be had (``-c``, a bare prompt).

    Raises:
        ProgramError: if the source is not that of the function any more.
    """
    code = function.__code__
    file = code.co_filename
    linecache.checkcache(file)
    for attempt in ("as cached", "as read again"):
        if attempt == "as read again":
            entry = linecache.cache.get(file)
            if entry is None or len(entry) == 1 or entry[1] is None:
                break  # a notebook cell, or a lazy entry: nothing on disk that could be newer
            del linecache.cache[file]
        lines = linecache.getlines(file, function.__globals__)
        if not lines:
            return None
        source = _locate_in(function, lines)
        if source is not None:
            return source
    if file in ("<string>", "<stdin>"):
        return None  # these name any code that is executed, and with it anybody's source
    raise ProgramError(
        f"the source of {code.co_name}() changed after it was imported\n"
        f'  File "{file}", line {code.co_firstlineno}, in {code.co_name}\n'
        f"  Import it again (importlib.reload, or restart the kernel), so that what is compiled is "
        f"what you see. A tool that rewrites source on import has the same effect."
    )


def _locate_in(function: types.FunctionType, lines: list[str]) -> Source | None:
    text = "".join(lines)
    try:
        tree = _parsed(text)
    except SyntaxError:
        return None
    code = function.__code__
    rewritten = "@pytest_ar" in function.__globals__
    for statement in tree.body:
        if not _holds(statement, code.co_firstlineno):
            continue
        own = copy.deepcopy(statement)
        for node in ast.walk(own):
            if (
                isinstance(node, Definition)
                and node.name == code.co_name
                and first_line(node) == code.co_firstlineno
            ):
                source = Source(code, node, own, lines)
                # The compiler treats calls through imported modules its own way. A file is compiled
                # as a whole; a notebook compiles the statements of a cell one by one.
                if same_code(code, source.compile(), rewritten):
                    return source
                whole = _find_code(_compiled(text, code.co_filename, _flags(code)), code)
                if whole is not None and same_code(code, whole, rewritten):
                    return source
    return None


@functools.lru_cache(maxsize=32)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


@functools.lru_cache(maxsize=32)
def _compiled(text: str, file: str, flags: int) -> types.CodeType:
    module: types.CodeType = compile(_parsed(text), file, "exec", flags=flags, dont_inherit=True)
    return module


def _flags(code: types.CodeType) -> int:
    """The future features of the function's module, and what notebooks allow."""
    return (code.co_flags & _FUTURE) | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def first_line(node: Definition) -> int:
    """The line that a code object calls its first: that of the first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _holds(statement: ast.stmt, line: int) -> bool:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    return first <= line <= (statement.end_lineno or statement.lineno)


def _find_code(module: types.CodeType, like: types.CodeType) -> types.CodeType | None:
    for constant in module.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_name == like.co_name and (
                constant.co_firstlineno == like.co_firstlineno
            ):
                return constant
            found = _find_code(constant, like)
            if found is not None:
                return found
    return None


def same_code(a: types.CodeType, b: types.CodeType, asserts_rewritten: bool = False) -> bool:
    """Whether two code objects do the same at the same lines.

    Under pytest, ``asserts_rewritten`` (its import hook rewrites every ``assert``), ``a`` may do
    more than ``b``: then names, constants and extent are compared.
    """
    if asserts_rewritten and not same_code(a, b):
        return (
            _shape(a)[:-1] == _shape(b)[:-1]
            and set(b.co_names) <= {*a.co_names, "AssertionError"}
            and a.co_varnames[: len(b.co_varnames)] == b.co_varnames
            and _constants(b) <= _constants(a)
        )
    return (
        _shape(a) == _shape(b)
        and a.co_code == b.co_code
        and a.co_names == b.co_names
        and a.co_varnames == b.co_varnames
        and [line for _, _, line in a.co_lines()] == [line for _, _, line in b.co_lines()]
        and len(a.co_consts) == len(b.co_consts)
        and all(map(_same_constant, a.co_consts, b.co_consts))
    )


def _shape(code: types.CodeType) -> tuple[Any, ...]:
    return (
        code.co_name,
        code.co_firstlineno,
        code.co_argcount,
        code.co_posonlyargcount,
        code.co_kwonlyargcount,
        code.co_flags,
        code.co_freevars,
        code.co_cellvars,
    )


def _constants(code: types.CodeType) -> set[str]:
    return {repr(c) for c in code.co_consts if not isinstance(c, types.CodeType)}


def _same_constant(a: object, b: object) -> bool:
    if isinstance(a, types.CodeType) and isinstance(b, types.CodeType):
        return same_code(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same_constant, a, b))
    return type(a) is type(b) and (a == b if isinstance(a, frozenset) else repr(a) == repr(b))
