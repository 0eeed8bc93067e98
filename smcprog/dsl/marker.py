"""What a statement such as `gen` is: an object that means something in a program alone."""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from smcprog.dsl.asking import Aside, AsideAsked, Ask, Asked, now, started
from smcprog.dsl.requests import Request
from smcprog.dsl.site import Site
from smcprog.errors import ProgramError, WeightError

F = TypeVar("F", bound=Callable[..., Any])


class Statement:
    """A marker such as `gen`: means something in a program, and raises anywhere else.

    Made by `statement` from a function that checks its arguments and returns an `Asked`.
    """

    def __init__(
        self, build: Callable[..., Any], appends: bool, spelled: Mapping[str, str], holds: bool
    ) -> None:
        functools.update_wrapper(self, build)
        self.name = build.__name__
        self.appends = appends
        self.holds = holds
        self._build = build
        self._spelled = spelled
        self._signature = inspect.signature(build)
        self._keywords = frozenset(
            name
            for name, parameter in self._signature.parameters.items()
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        )
        self._any_keyword = any(
            p.kind is p.VAR_KEYWORD for p in self._signature.parameters.values()
        )

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if handwritten(frame.f_code):
            site = site_of_frame(frame, self.name)
            ask = build_ask(self, site, args, kwargs)
            started(ask, site)
            return ask
        raise _outside(self.name, frame)

    def __repr__(self) -> str:
        return f"<statement {self.name}>"

    def __reduce__(self) -> str:
        return self.name

    def ask(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Asked | AsideAsked:
        """Check the arguments and build the request.

        Raises:
            ProgramError, WeightError: without a place; the caller knows it.
        """
        if kwargs and not self._any_keyword and not self._keywords.issuperset(kwargs):
            raise ProgramError(self._misspelled(kwargs))
        try:
            return cast("Asked | AsideAsked", self._build(*args, **kwargs))
        except TypeError as error:
            try:
                self._signature.bind(*args, **kwargs)
            except TypeError as reason:
                raise ProgramError(f"{self.name}(): {reason}") from None
            raise error

    def _misspelled(self, kwargs: Mapping[str, Any]) -> str:
        word = next(word for word in kwargs if word not in self._keywords)
        if word in self._spelled:
            return f"{self.name}() has no keyword {word!r}\n  Write instead: {self._spelled[word]}"
        known = ", ".join(
            f"{p.name}=" for p in self._signature.parameters.values() if p.name in self._keywords
        )
        takes = f"its keywords are {known}" if known else "it takes no keywords"
        return f"{self.name}() has no keyword {word!r}; {takes}"


def statement(
    *, appends: bool = False, spelled: Mapping[str, str] | None = None, holds: bool = False
) -> Callable[[F], F]:
    """Make a `Statement` of a function. To a type checker it stays that function.

    Args:
        appends: whether it moves the context, so that its place among others matters.
        spelled: keywords that people try, and the right way to write each.
        holds: whether programs called in its arguments are handed to it, not run there.
    """

    def decorate(build: F) -> F:
        return cast(F, Statement(build, appends, spelled or {}, holds))

    return decorate


def ask(request: Request, read: Callable[[Ask, Any], Any] | None = None) -> Any:
    """What a statement's function returns. ``read(ask, answer)`` makes its value of the answer.

    Typed Any, since the function is declared to return the value of the statement.
    """
    return Asked(request, read)


def build_ask(
    statement: Statement, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Ask | Aside:
    """Execute a statement at its place.

    Raises:
        ProgramError, WeightError: for arguments that it does not take, with the place.
    """
    try:
        asked = statement.ask(args, kwargs)
    except (ProgramError, WeightError) as error:
        message, _, remedy = str(error).partition("\n  ")
        raise type(error)(site.located(message, remedy or None)) from None
    if isinstance(asked, AsideAsked):
        return Aside(site, asked.called, asked.inherit)
    return Ask(site, asked, args, kwargs)


# --- where it was called from ---

_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


@dataclass(frozen=True)
class _ProgramCode:
    """A code object known to be a program's own. (Holding it keeps its id its own, too.)"""

    code: types.CodeType
    program: str
    by_hand: bool
    sites: tuple[Site, ...]


_known: dict[int, _ProgramCode] = {}


def register(code: types.CodeType, program: str, by_hand: bool, sites: Sequence[Site] = ()) -> None:
    """Know a program's code, and the comprehensions in it, by identity.

    Args:
        by_hand: whether it is an ``async def`` as the user wrote it.
        sites: its calls, where its source is known.
    """
    _known[id(code)] = _ProgramCode(code, program, by_hand, tuple(sites))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType) and constant.co_name in _COMPREHENSIONS:
            register(constant, program, by_hand, sites)


def program_of(code: types.CodeType) -> str | None:
    """The name of the program whose own code this is, or None."""
    known = _known.get(id(code))
    return None if known is None else known.program


def _outside(name: str, frame: types.FrameType) -> ProgramError:
    """Why a statement cannot be called from this frame, and what to decorate."""
    function, code = frame.f_code.co_name, frame.f_code
    place = f'  File "{code.co_filename}", line {frame.f_lineno}, in {function}'
    if id(code) in _known:
        return ProgramError(
            f"{name}() was called by another function (map, sorted, a decorator, ...)\n{place}\n"
            f"  Call it directly in the program, in a loop or a list comprehension."
        )
    if function == "<module>":
        fix = f"Write a function around it: @smc_program def program(): {name}(...)"
    elif function == "<lambda>":
        fix = "Statements cannot stand in a lambda: write a def decorated with @smc_program."
    elif function == "<genexpr>":
        fix = "Statements cannot stand in a generator expression: write a list comprehension."
    else:
        fix = (
            f"Decorate {function}() with @smc_program: a program calls it like any function, and "
            f"it shares the caller's context."
        )
    return ProgramError(f"{name}() works only inside a program\n{place}\n  {fix}")


def check_program_call(name: str, frame: types.FrameType, call: object) -> None:
    """Allow a program call from ``frame``: outside a run, or in hand-written code (awaited there).

    Raises:
        ProgramError: within a run, from code that is not a program's own.
    """
    if now.host is None:
        return
    if not handwritten(frame.f_code):
        raise _outside(name, frame)
    started(call, site_of_frame(frame, name))


def handwritten(code: types.CodeType) -> bool:
    """Whether this is the code of an ``async def`` program."""
    known = _known.get(id(code))
    return known is not None and known.by_hand


_frame_sites: dict[tuple[int, int, str], Site] = {}


def site_of_frame(frame: types.FrameType, statement: str) -> Site:
    """The call that a frame of hand-written code is executing."""
    code = frame.f_code
    key = (id(code), frame.f_lasti, statement)
    site = _frame_sites.get(key)
    if site is None:
        site = _frame_sites[key] = _site_of_frame(frame, statement)
    return site


def _site_of_frame(frame: types.FrameType, statement: str) -> Site:
    code, known = frame.f_code, _known[id(frame.f_code)]
    line, end, start, stop = list(code.co_positions())[frame.f_lasti // 2]
    line = line or frame.f_lineno
    text = linecache.getline(code.co_filename, line, frame.f_globals).rstrip("\n")
    column = len(text.encode()[: start or 0].decode(errors="replace"))
    for site in known.sites:
        if (site.line, site.column) == (line, column):
            return replace(site, statement=statement)
    source = f"{statement}(...)"
    if text and end == line and stop is not None:
        source = text.encode()[start:stop].decode(errors="replace")
    return Site(known.program, code.co_filename, line, column, source, statement, None, text)


def never_awaited(site: Site) -> ProgramError:
    """The error for a call in hand-written code that was not awaited: a slip."""
    message = f"{site.statement}() was not awaited"
    return ProgramError(site.located(message, f"Write instead: await {site.source}"))
