"""Copies that keep particles apart: of arguments, defaults, recorded answers and return values."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from smcprog.dsl.compare import ATOMS
from smcprog.errors import ProgramError


def copied(value: Any) -> Any:
    """A deep copy; immutable atoms are themselves.

    Raises:
        Exception: whatever ``copy.deepcopy`` raises for what cannot be copied.
    """
    return value if type(value) in ATOMS else copy.deepcopy(value)


def copied_argument(value: Any, name: str, program: str, memo: dict[int, Any]) -> Any:
    """A deep copy of an argument. ``memo`` is shared by the arguments of one call, which keeps
    two names of one object two names of one object.

    What cannot be copied (modules, locks, sessions, engines) is shared by all particles, and so
    must be read only; the containers around it are still copied.

    Raises:
        ProgramError: for an iterator that cannot be copied: the first particle would use it up.
    """
    if type(value) in ATOMS:
        return value
    trial = dict(memo)  # a copy that fails half-way leaves halves in its memo
    try:
        twin = copy.deepcopy(value, trial)
    except Exception:
        pass
    else:
        memo.update(trial)
        return twin
    if isinstance(value, Iterator):
        raise ProgramError(
            f"argument {name!r} of {program}() is a {type(value).__name__}, which cannot be copied "
            f"for each particle\n  Write instead: {name}=list(...), or make it inside the program."
        )
    kind = type(value)
    if kind is list or kind is tuple or kind is set:
        return kind(copied_argument(item, name, program, memo) for item in value)
    if kind is dict:
        return {
            copied_argument(k, name, program, memo): copied_argument(v, name, program, memo)
            for k, v in value.items()
        }
    return value


def copied_exception(error: BaseException) -> BaseException:
    """A copy of a recorded exception, so that tracebacks and notes of particles do not mix."""
    try:
        twin = copy.copy(error)
    except Exception:
        return error
    if type(twin) is not type(error):
        return error
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    if hasattr(error, "__notes__"):
        twin.__notes__ = list(error.__notes__)
    return twin.with_traceback(error.__traceback__)
