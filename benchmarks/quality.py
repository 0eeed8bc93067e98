"""Accuracy on the shipped pair's held-out sums: the target, SMC-SD, powers, a reward, votes.

    python benchmarks/quality.py                           # 200 sums, 15 minutes
    python benchmarks/quality.py --sums 50 --markdown

A method's accuracy is that of one answer drawn from its posterior by weight, as an expectation
over the particles (of `best`, of the value with most mass; of a vote, of the commonest answer,
ties by lot). Runs of few particles are repeated until a sum has at least --draws particles; the
target, which all are compared to, is drawn four times as often. The interval of an accuracy is
Wilson's for as many answers as there are sums, which is a little wide where several draws a sum
are averaged; that of a difference to the target is normal, from differences per sum.

Passes are forward passes of the target a sum, which all particles of a run share; in brackets, the
particles in them added up: what the passes would number with one particle each. A vote takes as
many independent texts of the target as make the same number of the latter, or as many as there
are particles. Times are of the processor, with all runs of a method in one list.

The reward casts out nines: it looks whether the digits of the question and those of the answer
have one sum modulo 9. That never adds the numbers, and would pass one in nine of wrong answers at
random; but here, where most are off by 1 or by 10, it passes one in 25 of them, and is nearly as
good as knowing the answer. So it shows that a reward is followed, not what sums gain by it.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from smcprog import Engine, Posterior, gen, lm, prompt, reward, smc_program
from smcprog.gpu.loading import PAIR

NORMAL = 1.96
COLUMNS = ("method", "N", "K", "accuracy", "difference", "target passes", "ms a sum")


@smc_program
def work(question: str, potential: Any):
    """Work a sum, and return the answer as it is written."""
    prompt(question)
    return answer(gen(potential, stop="\n", max_tokens=80))


def answer(text: str) -> str:
    found = re.search(r"Answer: (\d+)$", text.strip())
    return found[1] if found else ""


def nines(text: str, question: str) -> bool:
    """Whether question and answer agree modulo 9."""
    return bool(answer(text)) and digits(question) % 9 == digits(answer(text)) % 9


def digits(text: str) -> int:
    return sum(int(char) for char in text if char.isdigit())


def any_text(question: str) -> Any:
    return lm


def fourth_power(question: str) -> Any:
    return lm**4


def checked(question: str) -> Any:
    return reward(nines, question, beta=5.0)


@dataclass(frozen=True)
class Method:
    name: str
    particles: int
    block: int
    verify: Any = "weight"
    potential: Callable[[str], Any] = any_text


@dataclass(frozen=True)
class Result:
    """What a method gave: its accuracy on each sum, and its cost a sum."""

    method: Method
    accuracy: NDArray[np.float64]
    passes: float
    rows: float
    seconds: float


TARGET = Method("target, one text", 1, 0)
WEIGHT, REJECT = (Method(f'verify="{name}"', 8, 4, name) for name in ("weight", "reject"))
POWER = Method("lm**4", 8, 4, potential=fourth_power)
REWARD = Method("reward: casting out nines", 8, 4, potential=checked)
GRID = [Method('verify="weight"', n, k) for n in (1, 4, 8, 16) for k in (2, 4, 8)]
OTHERS = [REJECT, Method("verify=2", 8, 4, 2), POWER, REWARD]


def run(engine: Engine, method: Method, sums: Sequence[Any], times: int, seed: int) -> Any:
    """The posteriors, ``times`` for each sum, and the processor's seconds a run."""
    calls = [
        work(one["question"], method.potential(one["question"]))
        for one in sums
        for _ in range(times)
    ]
    began = time.process_time()
    posteriors = engine.run(
        calls, particles=method.particles, block=method.block, verify=method.verify, seed=seed
    )
    seconds = (time.process_time() - began) / len(calls)
    return [posteriors[i : i + times] for i in range(0, len(calls), times)], seconds


def measured(method: Method, sums: Sequence[Any], posteriors: Any, seconds: float) -> Result:
    """The accuracy of an answer drawn by weight."""
    accuracy = [
        np.mean([posterior.expect(partial(str.__eq__, one["answer"])) for posterior in several])
        for one, several in zip(sums, posteriors, strict=True)
    ]
    return result(method, accuracy, posteriors, seconds)


def best(method: Method, sums: Sequence[Any], posteriors: Any, seconds: float) -> Result:
    """The accuracy of the answer of most posterior mass."""
    accuracy = [
        np.mean([posterior.best == one["answer"] for posterior in several])
        for one, several in zip(sums, posteriors, strict=True)
    ]
    name = f"{method.name}, best"
    return result(Method(name, method.particles, method.block), accuracy, posteriors, seconds)


def result(method: Method, accuracy: Any, posteriors: Any, seconds: float) -> Result:
    flat = [posterior for several in posteriors for posterior in several]
    passes = np.mean([posterior.stats.target_passes for posterior in flat])
    return Result(method, np.array(accuracy), passes, np.mean([*map(rows, flat)]), seconds)


def rows(posterior: Posterior) -> int:
    """How many particles there were in the target's passes, added up."""
    return len(posterior) + sum(record.live for record in posterior.rounds[:-1])


def vote(sums: Sequence[Any], posteriors: Any, texts: int, alone: Result) -> Result:
    """The accuracy of the commonest answer of so many texts of the target."""
    accuracy = [
        np.mean(
            [
                voted([posterior.values[0] for posterior in several[i : i + texts]], one["answer"])
                for i in range(0, len(several) - texts + 1, texts)
            ]
        )
        for one, several in zip(sums, posteriors, strict=True)
    ]
    longest = [
        max(posterior.stats.target_passes for posterior in several[:texts])
        for several in posteriors
    ]
    method = Method(f"vote of {texts} texts of the target", texts, 0)
    costs = np.mean(longest), texts * alone.rows, texts * alone.seconds
    return Result(method, np.array(accuracy), *costs)


def voted(answers: Sequence[str], right: str) -> float:
    """The probability that a vote is right, ties by lot."""
    most = Counter(answers)
    winners = [one for one, votes in most.items() if votes == max(most.values())]
    return (right in winners) / len(winners)


def wilson(share: float, number: int) -> tuple[float, float]:
    """The interval of a share among so many (Wilson 1927)."""
    z = NORMAL**2 / number
    middle = (share + z / 2) / (1 + z)
    half = np.sqrt(z * share * (1 - share) + z * z / 4) / (1 + z)
    return middle - half, middle + half


def difference(one: Result, other: Result) -> tuple[float, float, float]:
    """The mean difference of two accuracies on the same sums, and its interval."""
    per_sum = one.accuracy - other.accuracy
    half = NORMAL * per_sum.std(ddof=1) / np.sqrt(len(per_sum))
    return per_sum.mean(), per_sum.mean() - half, per_sum.mean() + half


def points(value: float, low: float, high: float) -> str:
    return f"{100 * value:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def shown(one: Result, target: Result) -> list[str]:
    """A row of the table."""
    share = one.accuracy.mean()
    low, high = wilson(share, len(one.accuracy))
    return [
        one.method.name,
        str(one.method.particles),
        str(one.method.block),
        f"{share:.1%} ({low:.1%}-{high:.1%})",
        "" if one is target else points(*difference(one, target)),
        f"{one.passes:.1f} ({one.rows:.0f})",
        f"{1000 * one.seconds:.0f}",
    ]


def report(lines: Sequence[Sequence[str]], markdown: bool) -> None:
    if markdown:
        alignment = ["---", *["--:"] * (len(COLUMNS) - 1)]
        for line in (COLUMNS, alignment, *lines):
            print("| " + " | ".join(line) + " |")
        return
    table = Table(*COLUMNS)
    for line in lines:
        table.add_row(*line)
    Console(width=130).print(table)


def statements(results: dict[Method, Result], target: Result) -> None:
    """What should hold, whether it does, and the figures."""
    for claim, method, holds in (
        ("reject has the target's accuracy within its interval", REJECT, lambda m, a, b: a < 0 < b),
        ("weight at N=8, K=4 is within 3 points of it", WEIGHT, lambda m, a, b: abs(m) <= 0.03),
        ("alpha = 4 beats the target", POWER, lambda m, a, b: a > 0),
        ("the reward beats the target", REWARD, lambda m, a, b: a > 0),
    ):
        figures = difference(results[method], target)
        print(f"{'yes' if holds(*figures) else 'NO '}  {claim}: {points(*figures)} points")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sums", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=8, help="particles a sum, at least")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()

    engine = Engine()
    lines = (PAIR / "sums.jsonl").read_text(encoding="utf-8").splitlines()[: options.sums]
    sums = [json.loads(line) for line in lines]
    draws = max(options.draws, WEIGHT.particles)
    results: dict[Method, Result] = {}
    kept: dict[Method, Any] = {}
    for method in track([TARGET, *GRID, *OTHERS], console=Console(stderr=True), transient=True):
        times = 4 * draws if method is TARGET else -(-draws // method.particles)
        posteriors, seconds = run(engine, method, sums, times, options.seed)
        results[method] = measured(method, sums, posteriors, seconds)
        if method in (TARGET, WEIGHT):
            kept[method] = posteriors

    target, weight = results[TARGET], results[WEIGHT]
    as_many_rows = min(max(1, round(weight.rows / target.rows)), draws)
    further = [best(WEIGHT, sums, kept[WEIGHT], weight.seconds)]
    for texts in (as_many_rows, WEIGHT.particles):
        further.append(vote(sums, kept[TARGET], texts, target))
    report([shown(one, target) for one in [*results.values(), *further]], options.markdown)
    statements(results, target)


if __name__ == "__main__":
    main()
