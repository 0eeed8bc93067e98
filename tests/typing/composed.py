"""Programs that call programs."""

from pathlib import Path
from typing import assert_type, cast

from smcprog import (
    EOS,
    BoundProgram,
    Engine,
    Posterior,
    Program,
    aside,
    choice,
    condition,
    factor,
    gen,
    lm,
    logprob,
    observe,
    prompt,
    smc_program,
)


@smc_program
def judge(review: str) -> bool:
    """Whether the model thinks that a review is positive."""
    prompt(f"Review: {review}\nSentiment:")
    yes, no = logprob([" positive", " negative"])
    assert_type(yes, float)
    assert_type(logprob(" positive"), float)
    assert_type(logprob([" positive"], given="Review: Fine\nSentiment:"), list[float])
    factor(yes)
    return yes > no


@smc_program
def label(review: str) -> str:
    """Runs in the caller's context where it is called."""
    prompt(f"Review: {review}\nSentiment:")
    return gen(choice(" positive", " negative")).strip()


@smc_program
def count_down(number: int) -> list[int]:
    """Calls itself."""
    prompt(f"{number} ")
    if number == 0:
        return []
    return [number, *count_down(number - 1)]


@smc_program
def praised(subject: str) -> tuple[str, bool]:
    """What aside gives has the type of the program's value."""
    prompt(f"Review: {subject}\nSentiment: positive\nIn one sentence:")
    why = gen(stop=".", max_tokens=20)
    liked = aside(judge(why))
    assert_type(liked, bool)
    assert_type(aside(count_down(2), inherit=True), list[int])
    assert_type(observe("."), float)
    assert_type(observe(EOS, lm**0.5), float)
    condition(liked)
    return why, liked


@smc_program
def two_labels(first: str, second: str) -> dict[str, int]:
    """Of a plain call's value nothing is known, and everything goes; a cast says what it is."""
    one = label(first)
    prompt("\n")
    other = cast(str, label(second))
    assert_type(other, str)
    longest = max(len(one), len(other))
    same = one == other
    shouted = one.upper() + "!"
    letters = [letter for letter in one if letter in "pn"]
    head, *_ = one
    prompt(one, f" {other}")
    numbers: list[int] = count_down(2)
    return {"same": same, "longest": longest, shouted: len(letters), head: one[0] + numbers}


@smc_program
async def by_hand(number: int) -> int:
    """As programs without source are written."""
    return number


def run_all(engine: Engine, programs: list[Program[[str], bool]]) -> list[Posterior[bool]]:
    """Programs are values, and so are their calls."""
    calls: list[BoundProgram[bool]] = [program("Great phone") for program in programs]
    return engine.run(calls, particles=2, seed=0)


def main(engine: Engine, folder: Path) -> None:
    """Runs of each."""
    assert_type(engine.run(judge("I love it"), particles=1).best, bool)
    assert_type(engine.run(label("I love it"), particles=1).best, str)
    assert_type(engine.run(count_down(2), particles=1).best, list[int])
    assert_type(engine.run(praised("Great phone"), particles=2, on_dead="return").stats.rounds, int)
    assert_type(engine.run(by_hand(2), particles=1).best, int)
    assert_type(run_all(engine, [judge, judge]), list[Posterior[bool]])
