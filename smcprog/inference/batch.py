"""One program over a file of inputs: a line of JSON is a call, and its result a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from smcprog.dsl.program import BoundProgram, Program
from smcprog.inference.interface import EngineInterface
from smcprog.inference.posterior import Posterior
from smcprog.inference.randomness import Philox, fold
from smcprog.inference.run import run_calls
from smcprog.inference.settings import Settings

# Lines that are in one list of runs; as many of these as fit are in flight together.
_TOGETHER = 256


@dataclass(frozen=True)
class Counts:
    """How many lines have a result, how many have an error instead, and the first of these."""

    done: int
    failed: int
    first_error: str | None


@dataclass(frozen=True)
class _Line:
    number: int
    call: BoundProgram | None
    error: str | None = None


def run_inputs(
    engine: EngineInterface,
    program: Program[Any],
    inputs: Path,
    out: Path,
    settings: Settings,
    seed: int,
    common: Mapping[str, Any],
    progress: bool = False,
) -> Counts:
    """Run a program on each line of a file, and write a line for each as soon as it is there.

    A result has ``line``, ``best``, ``values``, ``weights``, ``log_evidence``, ``ess`` and ``seed``
    (which repeats that line alone); a line that cannot be run has ``line`` and ``error``, and the
    others are run all the same. Line n takes the seed fold(``seed``, n), so what it gives does not
    depend on the other lines.

    Args:
        inputs: one JSON object a line, the program's arguments; empty lines are left out.
        out: must not exist.
        common: arguments of every line, where it does not give them itself.

    Raises:
        OSError: if a file cannot be read or written.
    """
    done = failed = 0
    first_error = None
    total = sum(1 for _ in _read(inputs))
    with out.open("x", encoding="utf-8") as file, tqdm(total=total, disable=not progress) as bar:
        lines = _calls(program, inputs, common)
        while group := list(islice(lines, _TOGETHER)):
            for result in _results(engine, group, settings, seed):
                if "error" in result:
                    failed += 1
                    first_error = first_error or f"line {result['line']}: {result['error']}"
                else:
                    done += 1
                file.write(json.dumps(result, allow_nan=False) + "\n")
                file.flush()
                bar.update()
    return Counts(done, failed, first_error)


def _read(inputs: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not empty, with their numbers from 1."""
    with inputs.open(encoding="utf-8", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield number, line


def _calls(program: Program[Any], inputs: Path, common: Mapping[str, Any]) -> Iterator[_Line]:
    for number, text in _read(inputs):
        try:
            arguments = json.loads(text)
        except ValueError as error:
            yield _Line(number, None, f"no JSON: {error}")
            continue
        if not isinstance(arguments, dict):
            yield _Line(number, None, "not a JSON object of the program's arguments")
            continue
        try:
            yield _Line(number, program(**{**common, **arguments}))
        except TypeError as error:
            yield _Line(number, None, str(error))


def _results(
    engine: EngineInterface, group: list[_Line], settings: Settings, seed: int
) -> Iterator[dict[str, Any]]:
    """The results of some lines, in their order: run together, or, where one of them fails, one
    by one."""
    sound = [line for line in group if line.call is not None]
    try:
        posteriors = _run(engine, sound, settings, seed)
        found = {line.number: p for line, p in zip(sound, posteriors, strict=True)}
    except Exception:
        found = {}
    for line in group:
        if line.call is None:
            yield {"line": line.number, "error": line.error}
            continue
        try:
            posterior = found.get(line.number) or _run(engine, [line], settings, seed)[0]
            yield _result(line.number, posterior)
        except Exception as error:
            yield {"line": line.number, "error": f"{type(error).__name__}: {error}"}


def _run(
    engine: EngineInterface, lines: list[_Line], settings: Settings, seed: int
) -> list[Posterior]:
    calls = [line.call for line in lines if line.call is not None]
    seeds = [fold(seed, line.number) for line in lines]
    sources = [Philox(one) for one in seeds]
    return run_calls(engine, calls, [settings] * len(calls), seeds, sources)


def _result(number: int, posterior: Posterior) -> dict[str, Any]:
    if not posterior.values:
        return {
            "line": number,
            "error": f"every particle has weight zero:\n{posterior.obituary()}",
        }
    return {
        "line": number,
        "best": posterior.best,
        "values": posterior.values,
        "weights": posterior.weights.tolist(),
        "log_evidence": posterior.log_evidence,
        "ess": posterior.ess,
        "seed": posterior.seed,
    }
