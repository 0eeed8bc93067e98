"""Running `call`: slow, asynchronous or effectful host functions, once for each particle."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Coroutine, Hashable, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

from smcprog.dsl.compare import fingerprint
from smcprog.dsl.requests import Call
from smcprog.errors import ProgramError
from smcprog.inference.population import Particle, Run


@dataclass(frozen=True)
class Outcome:
    """What a call gave: a value, or the exception that is raised at the statement."""

    value: Any = None
    error: BaseException | None = None


def call_alone(particle: Particle, request: Call) -> None:
    """Run a plain `call`."""
    try:
        value = request.fn(*request.args)
    except Exception as error:
        settle(particle, Outcome(error=error))
    else:
        if inspect.isawaitable(value):
            (outcome,) = run_together([outcome_of(value)])
            settle(particle, outcome)
        else:
            settle(particle, Outcome(value))


def answer(run: Run) -> bool:
    """Run the batched and asynchronous calls at which particles of a run wait, those of one
    statement together. Whether there were any."""
    waiting: dict[Hashable, list[tuple[Particle, Call]]] = {}
    for particle in run.particles:
        request = particle.request
        if isinstance(request, Call):
            key = (particle.site, identity(request.fn))
            waiting.setdefault(key, []).append((particle, request))
    for group in waiting.values():
        requests = [request for _, request in group]
        if requests[0].batch:
            outcomes = call_batch(requests)
        else:
            outcomes = run_together([call_async(request) for request in requests])
        for (particle, _), outcome in zip(group, outcomes, strict=True):
            settle(particle, outcome)
    return bool(waiting)


def identity(fn: Any) -> Hashable:
    """Equal for the same function: each particle may have made its own object of it."""
    if isinstance(fn, MethodType):
        return (identity(fn.__func__), id(fn.__self__))
    return fingerprint(fn) if isinstance(fn, FunctionType) else id(fn)


def settle(particle: Particle, outcome: Outcome) -> None:
    """Hand an outcome to the program."""
    if outcome.error is not None:
        particle.fail(outcome.error)
    else:
        particle.answer(outcome.value)


def call_batch(requests: Sequence[Call]) -> Sequence[Outcome]:
    """One call on lists; an exception is every particle's."""
    fn = requests[0].fn
    try:
        columns = [list(column) for column in zip(*(r.args for r in requests), strict=True)]
        results = fn(*columns)
        if inspect.isawaitable(results):
            (outcome,) = run_together([outcome_of(results)])
            if outcome.error is not None:
                raise outcome.error
            results = outcome.value
        results = list(results)
    except (Exception, asyncio.CancelledError) as error:
        return [Outcome(error=error)] * len(requests)
    if len(results) != len(requests):
        raise ProgramError(
            f"call(…, batch=True): {fn!r} returned {len(results)} results for "
            f"{len(requests)} particles; it gets lists and must return one result for each entry"
        )
    return [Outcome(result) for result in results]


async def call_async(request: Call) -> Outcome:
    """Call a coroutine function and wait for it."""
    try:
        return await outcome_of(request.fn(*request.args))
    except Exception as error:
        return Outcome(error=error)


async def outcome_of(awaitable: Any) -> Outcome:
    """Wait for a result."""
    try:
        return Outcome(await awaitable)
    except (Exception, asyncio.CancelledError) as error:
        return Outcome(error=error)


def run_together(coroutines: Sequence[Coroutine[Any, Any, Outcome]]) -> Sequence[Outcome]:
    """Run to completion in an event loop of their own, and raise what stops that loop.

    In a thread, since the caller may itself be inside a running loop (Jupyter is).
    """

    async def gather() -> Sequence[Outcome]:
        return await asyncio.gather(*coroutines)

    outcomes: list[Outcome] = []
    stopped: list[BaseException] = []

    def work() -> None:
        try:
            outcomes.extend(context.run(asyncio.run, gather()))
        except BaseException as error:
            stopped.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if stopped:
        raise stopped[0]
    return outcomes
