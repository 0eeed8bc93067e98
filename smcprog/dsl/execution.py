"""One execution of a program's code: the first one, or a replay of a journal."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from smcprog.dsl.asking import NOT_RECORDED, Ask, Invocation, invoke, now
from smcprog.dsl.compare import Given, same_request
from smcprog.dsl.copying import copied, copied_exception
from smcprog.dsl.marker import program_of, site_of_frame
from smcprog.dsl.program import BoundProgram
from smcprog.dsl.requests import Request, Twist
from smcprog.dsl.site import Site
from smcprog.errors import ProgramError


@dataclass(frozen=True)
class Finished:
    """The program has returned."""

    value: Any


@dataclass(slots=True)
class Entry:
    """A statement and its answer.

    ``arguments`` is the fingerprint of what the program may change later. ``given`` and ``value``
    let a replay be quick about a statement of plain arguments; ``given`` is None for others.
    """

    site: Site
    request: Request
    arguments: Hashable
    answer: Any
    failed: bool
    given: Given | None
    value: Any


_GIVE_UP = 1000  # statements that a program may try while it is closed, before it is put away

# Coroutines that catch even GeneratorExit, in a loop around a statement: there is no ending them.
_undead: list[Coroutine[Any, Any, Any]] = []


@dataclass(frozen=True)
class Diverged:
    """A replay's statement that is not the recorded one."""

    recorded: Entry | Ask
    ask: Ask


class Execution:
    """One execution of the program's code: the first one, or a replay (`asking.Host`)."""

    def __init__(self, bound: BoundProgram, journal: list[Entry]) -> None:
        self.invocations: list[Invocation] = []
        self.closing = False
        self.started: dict[int, tuple[object, Site]] = {}
        self.cursor = 0
        self.watch: Callable[[Site], None] | None = None
        self._bound = bound
        self._journal = journal
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._refused = 0

    def advance(
        self, answer: Any = None, error: BaseException | None = None
    ) -> Ask | Diverged | Finished:
        """Run to the next statement that the journal does not answer.

        Raises:
            BaseException: what the program raises.
        """
        if self._coroutine is None:
            self._coroutine = invoke(self._bound.program, *self._bound.copied_arguments())
        before, now.host = now.host, self
        try:
            reached = self._coroutine.throw(error) if error else self._coroutine.send(answer)
        except StopIteration as stop:
            return Finished(stop.value)
        finally:
            now.host = before
        if isinstance(reached, (Ask, Diverged)):
            return reached
        raise self._foreign()

    def ask(self, ask: Ask) -> Generator[Any, Any, Any]:
        """Yield the request to the driver, or answer it from the journal (`asking.Host`)."""
        if self.closing:
            self._refused += 1
            if self._refused < _GIVE_UP:
                raise GeneratorExit
        if self.watch is not None:
            self.watch(ask.site)
        if self.cursor < len(self._journal):
            entry = self._journal[self.cursor]
            if entry.site != ask.site or not same_request(
                entry.request, entry.arguments, ask.request
            ):
                yield Diverged(entry, ask)
            self.cursor += 1
            if entry.failed:
                raise copied_exception(entry.answer)
            answer = copied(entry.answer)
        else:
            answer = yield ask
        return answer if ask.read is None else ask.read(ask, answer)

    def recall(self, site: Site, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The recorded value of this statement, or `NOT_RECORDED` (`asking.Host`)."""
        if self.cursor >= len(self._journal) or self.closing or self.watch is not None:
            return NOT_RECORDED
        entry = self._journal[self.cursor]
        try:
            if entry.site is not site or entry.given != (args, kwargs):
                return NOT_RECORDED
        except Exception:  # a comparison of the user's own; the slow path knows what to do
            return NOT_RECORDED
        self.cursor += 1
        if type(entry.request) is Twist:
            self.invocations[-1].twisted(entry.request.new, site)
        return entry.value

    def close(self) -> None:
        """Drop the coroutine. Its finally blocks run; a statement in one ends it."""
        coroutine, self._coroutine = self._coroutine, None
        if coroutine is None:
            return
        self.closing = True
        before, now.host = now.host, self
        try:
            coroutine.close()
        except RuntimeError as error:
            if "ignored GeneratorExit" not in str(error):
                raise
            _undead.extend(invocation.coroutine for invocation in self.invocations)
        finally:
            now.host = before

    def _foreign(self) -> ProgramError:
        """The program awaited something that is not a statement."""
        site = None
        inner: Any = self._coroutine
        while inner is not None:
            frame = getattr(inner, "cr_frame", None)
            if frame is not None and program_of(frame.f_code):
                site = site_of_frame(frame, "await")
            inner = getattr(inner, "cr_await", None)
        self.close()
        message = "a program can await statements and programs only"
        remedy = "Run asynchronous code through call(): result = await call(fetch, url)"
        return ProgramError(site.located(message, remedy) if site else f"{message}\n  {remedy}")
