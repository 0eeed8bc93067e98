"""What compiled code calls.

The compiler turns each call ``f(args)`` of a program's own body into

    await runtime.settle(runtime.at(i, f)(args))

`Runtime.at` looks at the object ``f``: a statement or a program becomes something to await,
anything else is called directly, from the program's own frame.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from smcprog.dsl.asking import NOT_RECORDED, Aside, Ask, Held, Inlinable, Inline, current
from smcprog.dsl.marker import Statement, build_ask
from smcprog.dsl.site import Site
from smcprog.errors import ProgramError

_NOTHING = object()


async def _ready(value: Any) -> Any:
    return value


class Runtime:
    """The object that one compiled program's code refers to.

    Args:
        sites: the calls of the program's own body.
        within: for each, the calls in whose arguments it stands.
    """

    def __init__(self, sites: Sequence[Site], within: Sequence[tuple[int, ...]]) -> None:
        self._sites = list(sites)
        self._within = tuple(within)
        self._around = frozenset(outer for enclosing in within for outer in enclosing)
        # What each site called last, where that is a statement, and what stands for it.
        self._known: list[tuple[object, Any]] = [(_NOTHING, None)] * len(sites)

    def at(self, number: int, callee: Any) -> Any:
        """What to call in place of ``callee`` at site ``number``."""
        known, meant = self._known[number]
        if callee is known:
            return meant
        if not isinstance(callee, _DISPATCHED) or (
            type(callee) is types.MethodType and type(callee.__func__) is types.FunctionType
        ):
            if number in self._around:
                self._enter(number, None, False)
            return callee
        return self._dispatched(number, callee)

    @staticmethod
    def settle(called: Any) -> Any:
        """Await what `at` made of a statement or program; any other value is there already."""
        if type(called) in _AWAITED:
            return called
        return _ready(called)

    def _dispatched(self, number: int, callee: Any) -> Callable[..., Any]:
        original = callee
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        while True:
            if isinstance(callee, types.MethodType):
                callee, args = callee.__func__, (callee.__self__, *args)
            elif isinstance(callee, functools.partial):
                args, kwargs = callee.args + args, {**callee.keywords, **kwargs}
                callee = callee.func
            else:
                break
        if isinstance(callee, Statement):
            name = callee.name if callee.appends else None
            meant = functools.partial(self._perform, number, callee)
        elif isinstance(callee, Inlinable):
            name = callee.name
            meant = functools.partial(self._inline, number, callee)
        else:
            name, meant = None, original
            args, kwargs = (), {}
        if number in self._around:
            self._enter(number, name, isinstance(callee, Statement) and callee.holds)
        elif isinstance(original, Statement):
            self._known[number] = (original, meant)
        return functools.partial(meant, *args, **kwargs) if args or kwargs else meant

    @staticmethod
    def _enter(number: int, appending: str | None, holds: bool) -> None:
        """The arguments of a call are about to be evaluated."""
        invocation = current().invocations[-1]
        if appending is None:
            invocation.open.pop(number, None)
        else:
            invocation.open[number] = appending
        (invocation.holding.add if holds else invocation.holding.discard)(number)

    def _perform(self, number: int, statement: Statement, /, *args: Any, **kwargs: Any) -> Any:
        site = self._sites[number]
        if site.statement != statement.name:
            site = self._sites[number] = replace(site, statement=statement.name)
        host = current()
        value = host.recall(site, args, kwargs)
        if value is not NOT_RECORDED:
            return value
        if statement.appends:
            self._check_nesting(number, statement.name)
        return build_ask(statement, site, args, kwargs)

    def _inline(self, number: int, program: Inlinable, /, *args: Any, **kwargs: Any) -> Inline:
        within = self._within[number]
        if within and within[-1] in current().invocations[-1].holding:
            return Held(program, args, kwargs)
        self._check_nesting(number, program.name)
        return Inline(program, args, kwargs)

    def _check_nesting(self, number: int, name: str) -> None:
        """Most nesting is refused by the compiler; this finds callees known only now."""
        if self._within[number]:
            opened = current().invocations[-1].open
            for outer in self._within[number]:
                if outer in opened:
                    site = self._sites[number]
                    raise ProgramError(site.located(*nested(name, opened[outer], site.source)))


_AWAITED = (Ask, Inline, Aside)
_DISPATCHED = (Statement, Inlinable, types.MethodType, functools.partial)


def nested(inner: str, outer: str, source: str) -> tuple[str, str]:
    """Message and remedy for an appending statement in the arguments of another."""
    return (
        f"{inner}() stands inside the arguments of {outer}(): it would run, and append its text, "
        f"before {outer}() begins",
        f"Write it first, on a line of its own: x = {source}",
    )
