"""How a statement in a program becomes a request to its run.

Awaiting a statement yields an `Ask` to the `Host`: one execution of a program's code, which a
`Process` drives by hand. There is no event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from smcprog.dsl.requests import EnterAside, LeaveAside, Request, Twist
from smcprog.dsl.site import Site
from smcprog.errors import ProgramError


class Invocation:
    """One call of a program within a run: the run's own program, or one inlined into it."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine
        self.twist = 0.0
        self.twist_site: Site | None = None
        # Calls whose arguments are being evaluated: site number -> name of the appending statement.
        self.open: dict[int, str] = {}
        # Those of `aside`: the programs called in their arguments are held, not run.
        self.holding: set[int] = set()

    def twisted(self, new: float, site: Site) -> None:
        """The twist has moved."""
        self.twist, self.twist_site = new, site


class Host(Protocol):
    """One execution of a program's host code, as the runtime sees it."""

    invocations: list[Invocation]
    closing: bool
    started: dict[int, tuple[object, Site]]

    def ask(self, ask: Ask) -> Generator[Any, Any, Any]:
        """Yield the request to the driver, or answer it from the journal."""
        ...

    def recall(self, site: Site, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The recorded value of this statement, or `NOT_RECORDED`."""
        ...


NOT_RECORDED = object()


class _Now(threading.local):
    host: Host | None = None


now = _Now()
"""The host code that runs on this thread, if any."""


def current() -> Host:
    """The host code that runs on this thread.

    Raises:
        ProgramError: if there is none.
    """
    if now.host is None:
        raise ProgramError("programs run in Engine.run(...): this one was awaited outside a run")
    return now.host


def started(call: object, site: Site) -> None:
    """Note a call of hand-written code, which is to be awaited."""
    current().started[id(call)] = (call, site)


def awaited(call: object) -> None:
    """The call is awaited."""
    current().started.pop(id(call), None)


@dataclass(frozen=True)
class Asked:
    """What a statement's function returns: the request, and how to read its answer."""

    request: Request
    read: Callable[[Ask, Any], Any] | None = None


class Ask:
    """One execution of a statement, to be awaited."""

    __slots__ = ("args", "kwargs", "read", "request", "site")

    def __init__(
        self,
        site: Site,
        asked: Asked,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.site = site
        self.request = asked.request
        self.read = asked.read
        self.args = args
        self.kwargs = kwargs

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited(self)
        return current().ask(self)


class Inlinable:
    """A program, as the runtime sees it. (No ABC: `Runtime.at` tests every callee against it.)"""

    name: str

    def start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        """A new coroutine of the program's code."""
        raise NotImplementedError


class ProgramCall(Protocol):
    """A program and its arguments."""

    @property
    def program(self) -> Inlinable: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...


class Inline:
    """A program called in a program, to be awaited: it shares the caller's context."""

    __slots__ = ("args", "kwargs", "program")

    def __init__(
        self, program: Inlinable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.program = program
        self.args = args
        self.kwargs = kwargs

    def __await__(self) -> Generator[Any, Any, Any]:
        return invoke(self.program, self.args, self.kwargs).__await__()


class Held(Inline):
    """A program called in the arguments of `aside`: not to be awaited there."""

    __slots__ = ()


class Aside:
    """A program call to be run in a context of its own; awaited, it gives the call's value."""

    __slots__ = ("called", "inherit", "site")

    def __init__(self, site: Site, called: ProgramCall, inherit: bool) -> None:
        self.site = site
        self.called = called
        self.inherit = inherit

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited(self)
        return self._run().__await__()

    async def _run(self) -> Any:
        host = current()
        await Ask(self.site, Asked(EnterAside(self.inherit)))
        try:
            return await invoke(self.called.program, self.called.args, self.called.kwargs)
        finally:
            if not host.closing:
                await Ask(self.site, Asked(LeaveAside()))


@dataclass(frozen=True)
class AsideAsked:
    """What `aside`'s function returns."""

    called: ProgramCall
    inherit: bool


async def invoke(program: Inlinable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a program in the current host, and take its last twist back when it is left."""
    host = current()
    invocation = Invocation(program.start(args, kwargs))
    host.invocations.append(invocation)
    try:
        return await invocation.coroutine
    finally:
        if not host.closing:
            if invocation.twist and invocation.twist_site is not None:
                await Ask(invocation.twist_site, Asked(Twist(invocation.twist, 0.0)))
            host.invocations.pop()
