"""Running `call`: slow, asynchronous or effectful host functions, once for each particle."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Sequence
from typing import Any

from smcprog.dsl.requests import Call
from smcprog.errors import ProgramError
from smcprog.inference.population import Particle, Run


def call_alone(particle: Particle, request: Call) -> None:
    """Run a plain `call`; what it raises is raised at the statement."""
    try:
        value = request.fn(*request.args)
        if inspect.isawaitable(value):
            (value,) = run_awaitables([value])
            if isinstance(value, Exception):
                raise value
    except Exception as error:
        particle.fail(error)
    else:
        particle.answer(value)


def answer(run: Run) -> bool:
    """Run the batched and asynchronous calls at which particles of a run wait, those of one
    statement together."""
    waiting: dict[tuple[int, Any], list[tuple[Particle, Call]]] = {}
    for particle in run.particles:
        request = particle.request
        if isinstance(request, Call):
            key = (id(request.fn), particle.site)
            waiting.setdefault(key, []).append((particle, request))
    for group in waiting.values():
        requests = [request for _, request in group]
        results = call_batch(requests) if requests[0].batch else call_async(requests)
        for (particle, _), result in zip(group, results, strict=True):
            if isinstance(result, Exception):
                particle.fail(result)
            else:
                particle.answer(result)
    return bool(waiting)


def call_batch(requests: Sequence[Call]) -> Sequence[Any]:
    """One call on lists; an exception is every particle's."""
    fn = requests[0].fn
    try:
        columns = [list(column) for column in zip(*(r.args for r in requests), strict=True)]
        results = fn(*columns)
        if inspect.isawaitable(results):
            (results,) = run_awaitables([results])
            if isinstance(results, Exception):
                raise results
    except Exception as error:
        return [error] * len(requests)
    results = list(results)
    if len(results) != len(requests):
        raise ProgramError(
            f"call(…, batch=True): {fn!r} returned {len(results)} results for "
            f"{len(requests)} particles; it gets lists and must return one result for each entry"
        )
    return results


def call_async(requests: Sequence[Call]) -> Sequence[Any]:
    """Coroutine functions of several particles, concurrently."""
    return run_awaitables([request.fn(*request.args) for request in requests])


def run_awaitables(awaitables: Sequence[Awaitable[Any]]) -> Sequence[Any]:
    """Run to completion in an event loop of their own; exceptions are returned, not raised.

    In a thread, since the caller may itself be inside a running loop (Jupyter is).
    """

    async def gather() -> Sequence[Any]:
        return await asyncio.gather(*awaitables, return_exceptions=True)

    results: list[Any] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: results.extend(context.run(asyncio.run, gather())))
    thread.start()
    thread.join()
    return results
