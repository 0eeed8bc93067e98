"""A particle's host state: a program's coroutine, driven by hand from statement to statement.

A `Process` keeps a *journal* of the answers that its statements were given. That is all of its
state: a clone copies the journal and, when it is next stepped, runs the program again from its
start and is fed what was recorded. So clones share nothing that the program made, and forking is
cheap where a clone is never stepped.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from smcprog.dsl import asking, execution, marker, runtime
from smcprog.dsl.asking import Ask
from smcprog.dsl.compare import ATOMS, fingerprint, recorded_arguments, same_request, snapshot
from smcprog.dsl.copying import copied, copied_exception
from smcprog.dsl.execution import Diverged, Entry, Execution, Finished
from smcprog.dsl.marker import never_awaited, program_of
from smcprog.dsl.plan import Site
from smcprog.dsl.program import BoundProgram
from smcprog.dsl.quiet import muted, random_states
from smcprog.dsl.requests import (
    Call,
    Context,
    Draw,
    Factor,
    Gen,
    LogProb,
    Observe,
    Prompt,
    Request,
    Sync,
    Twist,
)
from smcprog.errors import ProgramError

__all__ = ["Finished", "Pending", "Process", "Step"]


@dataclass(frozen=True)
class Pending:
    """The program waits at a statement."""

    site: Site
    request: Request


Step = Pending | Finished

# Statements that a replay can be quick about, where their arguments and answers are plain.
_QUICK = (Prompt, Gen, Observe, LogProb, Factor, Twist, Sync, Draw, Context)


class Process:
    """A particle's host code, stopped at a statement.

    Example::

        process = Process(review("Great phone"))
        step = process.step()                 # Pending(site, Prompt(...))
        step = process.step(None)             # the answer to it; now Pending(site, Gen(...))
        clone = process.fork()
        process.step(Text(" positive"))
        clone.step(Text(" negative"))
    """

    def __init__(self, bound: BoundProgram) -> None:
        self.bound = bound
        self.finished: Finished | None = None
        """The return value, once there is one."""
        self._journal: list[Entry] = []
        # The pending statement, and the fingerprint of its arguments. In a clone it is the
        # original's, until the clone replays.
        self._ask: Ask | None = None
        self._arguments: Hashable = None
        self._host: Execution | None = None
        self._failed = False

    @property
    def pending(self) -> Pending | None:
        """The request that waits for its answer, if one does."""
        if self._ask is not None and self._host is None and isinstance(self._ask.request, Call):
            self._live_host()  # what its function is given, and may change, is the clone's own
        return None if self._ask is None else Pending(self._ask.site, self._ask.request)

    def step(self, answer: Any = None) -> Step:
        """Answer the pending request (the first call starts the program), and run to the next.

        Raises:
            ProgramError: if a replay differs from what was recorded, or an answer cannot be copied.
            BaseException: what the program raises, with a note of program and line.
        """
        host = self._live_host()
        if self._ask is None:
            return self._advance(host)
        try:
            handed = copied(answer)
        except Exception as error:
            site = self._ask.site
            raise ProgramError(
                site.located(
                    f"the result of {site.statement}() cannot be copied for each "
                    f"particle: {type(error).__name__}: {error}",
                    "Return plain data from the function, and keep handles and sessions inside it.",
                )
            ) from error
        self._record(host, answer, failed=False)
        return self._advance(host, answer=handed)

    def fail(self, error: BaseException) -> Step:
        """Answer the pending request with an exception: it is raised at the statement."""
        host = self._live_host()
        if self._ask is None:
            raise RuntimeError("the program has not asked for anything yet")
        self._record(host, error, failed=True)
        return self._advance(host, error=copied_exception(error))

    def fork(self) -> Process:
        """A clone at the same statement. Nothing runs: it replays when it is next stepped."""
        if self._failed:
            raise RuntimeError("a program that raised cannot be forked")
        clone = Process(self.bound)
        clone._journal = list(self._journal)
        clone._ask, clone._arguments = self._ask, self._arguments
        if self.finished is not None:
            try:
                clone.finished = Finished(copied(self.finished.value))
            except Exception:  # it holds what cannot be copied: make it again
                replayed = clone._replay()
                assert isinstance(replayed, Finished)
                clone.finished = replayed
        return clone

    def close(self) -> None:
        """Drop the coroutine; its finally blocks run. The journal stays."""
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def __del__(self) -> None:
        self.close()

    def check(self) -> None:
        """Replay from the start, against everything recorded; thrice, since chance may agree once.

        Raises:
            ProgramError: if the host code is not deterministic: another line, statement, argument
                or return value, or global random numbers were used.
        """
        if self._failed or (self._ask is None and self.finished is None):
            return
        states = random_states()
        moved = set(states)
        for last in (False, False, True):
            watch = _Moved(states)
            self._same_value(self._replay(watch=watch.look if last and moved else None))
            after = random_states()
            # A program that seeds the generators leaves the same state each time, and another
            # thread will hardly be at them every time.
            moved = {name for name in moved if after[name] != states[name]}
            states = after
        if moved:
            self._random(min(moved), watch.site)

    # --- running ---

    def _live_host(self) -> Execution:
        if self._failed or self.finished is not None:
            raise RuntimeError("the program has ended")
        if self._host is None:
            host = Execution(self.bound, self._journal)
            if self._ask is not None:
                self._replay(host)
            self._host = host
        return self._host

    def _record(self, host: Execution, answer: Any, failed: bool) -> None:
        ask = self._ask
        assert ask is not None
        given, value = None, None
        if not failed and isinstance(ask.request, _QUICK) and ask.kwargs is not None:
            if ask.read is not None and not isinstance(ask.request, Twist):
                value = ask.read(ask, answer)
            else:
                value = answer
            if type(value) in ATOMS:
                given = snapshot(ask.args, ask.kwargs)
        self._journal.append(
            Entry(ask.site, ask.request, self._arguments, answer, failed, given, value)
        )
        host.cursor += 1
        self._ask = None

    def _advance(
        self, host: Execution, answer: Any = None, error: BaseException | None = None
    ) -> Step:
        try:
            reached = host.advance(answer, error)
            if isinstance(reached, Finished) and host.started:
                raise _never_awaited(host)
        except BaseException as raised:
            self._failed, self._host = True, None
            if host.started and isinstance(raised, Exception):
                raise _never_awaited(host) from raised
            _tell_where(raised)
            raise
        if isinstance(reached, Finished):
            self.finished, self._host = reached, None
            return reached
        assert isinstance(reached, Ask)
        self._ask, self._arguments = reached, recorded_arguments(reached.request)
        return Pending(reached.site, reached.request)

    def _replay(
        self, host: Execution | None = None, watch: Callable[[Site], None] | None = None
    ) -> Finished | None:
        """Run from the start to the end of the journal, and compare; a given host is kept there."""
        scratch = host is None
        host = host or Execution(self.bound, self._journal)
        host.watch = watch
        with muted():
            try:
                reached = host.advance()
            except Exception as error:
                raise ProgramError(self._message(f"a replay raised {error!r}")) from error
            host.watch = None
            expected = self._ask
            if isinstance(reached, Finished):
                if expected is not None or host.cursor < len(self._journal):
                    raise ProgramError(self._message("a replay returned early"))
                return reached
            if isinstance(reached, Ask) and expected is not None:
                if reached.site == expected.site and same_request(
                    expected.request, self._arguments, reached.request
                ):
                    if scratch:
                        _close_quietly(host)
                    else:
                        self._ask = reached
                    return None
                reached = Diverged(expected, reached)
            _close_quietly(host)
        if isinstance(reached, Ask):
            message = f"a replay came to {reached.site.statement}() instead of returning"
            raise ProgramError(self._message(message, reached.site))
        raise ProgramError(self._message(_difference(reached), reached.ask.site))

    def _same_value(self, replayed: Finished | None) -> None:
        if replayed is None or self.finished is None:
            return
        if fingerprint(replayed.value) != fingerprint(self.finished.value):
            raise ProgramError(
                self._message(
                    f"a replay returned {replayed.value!r:.100} instead of "
                    f"{self.finished.value!r:.100}"
                )
            )

    # --- what to say ---

    def _message(self, what: str, site: Site | None = None) -> str:
        if site is None:
            if self._ask is not None:
                site = self._ask.site
            elif self._journal:
                site = self._journal[-1].site
        message = f"host code is not deterministic; use draw() or call(): {what}"
        remedy = (
            "Randomness belongs in draw(values); what may change from one run to the next (time, "
            "ids, files, networks) in call(function)."
        )
        if site is None:
            code = self.bound.program.function.__code__
            place = f'  File "{code.co_filename}", line {code.co_firstlineno}, in {self.bound.name}'
            return f"{message}\n{place}\n  {remedy}"
        return site.located(message, remedy)

    def _random(self, name: str, site: Site | None) -> None:
        where = "before this statement" if site is not None else "after this statement"
        raise ProgramError(
            self._message(f"it used the global random numbers of `{name}` {where}", site)
        )


class _Moved:
    """Finds the first statement before which a global random generator moved."""

    def __init__(self, states: dict[str, object]) -> None:
        self._states = states
        self.site: Site | None = None

    def look(self, site: Site) -> None:
        if self.site is None and random_states() != self._states:
            self.site = site


def _difference(diverged: Diverged) -> str:
    recorded, ask = diverged.recorded, diverged.ask
    if recorded.site != ask.site:
        return (
            f"a replay came to {ask.site.statement}() on line {ask.site.line}, where "
            f"{recorded.site.statement}() on line {recorded.site.line} was recorded"
        )
    return f"a replay asked for {ask.request!r:.200}, where {recorded.request!r:.200} was recorded"


def _never_awaited(host: Execution) -> ProgramError:
    _, site = next(iter(host.started.values()))
    return never_awaited(site)


def _close_quietly(host: Execution) -> None:
    try:
        host.close()
    except Exception:
        pass  # nobody waits for it, and an error about to be raised says more


_INTERNAL = {asking.__file__, execution.__file__, marker.__file__, runtime.__file__, __file__}


def _tell_where(error: BaseException) -> None:
    """Note program and line, and take this package's own frames out of the traceback."""
    frames: list[types.TracebackType] = []
    where = None
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename not in _INTERNAL:
            frames.append(trace)
        program = program_of(code)
        if program:
            where = f"in program {program}, {code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    if where and isinstance(error, Exception) and not isinstance(error, ProgramError):
        error.add_note(where)
    rest: types.TracebackType | None = None
    for frame in reversed(frames):
        rest = types.TracebackType(rest, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    error.__traceback__ = rest
