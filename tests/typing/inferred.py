"""What a program returns need not be said: pyright infers it."""
# mypy: ignore-errors
# (To mypy the value of a function without annotations is Any.)

from pathlib import Path
from typing import Any, assert_type

from smcprog import (
    Engine,
    Posterior,
    Program,
    choice,
    condition,
    draw,
    gen,
    prompt,
    regex,
    smc_program,
)


@smc_program
def stars(text: str):
    """An int."""
    prompt(f"Review: {text}\nSentiment: positive\nStars:")
    return int(gen(regex(" [1-5]")))


@smc_program
def label(text: str, polite: bool = False):
    """One of two types."""
    prompt(f"Review: {text}\nSentiment:")
    drawn = gen(choice(" positive", " negative"))
    if polite and drawn == " negative":
        return None
    return drawn.strip()


@smc_program
def forwarded(text: str):
    """The type of a call that is returned goes on."""
    return label(text)


@smc_program
def two_dice():
    """A tuple."""
    first, second = draw(range(1, 7)), draw(range(1, 7))
    condition(first + second > 9)
    return first, second


def main(engine: Engine, folder: Path) -> None:
    """Each is what it returns."""
    assert_type(engine.run(stars("Fine"), particles=2).best, int)
    assert_type(engine.run(label("Fine", polite=True), particles=2).best, str | None)
    assert_type(engine.run(forwarded("Fine"), particles=2).best, str | None)
    thrown = engine.run(two_dice(), particles=256, seed=0)
    assert_type(thrown.best, tuple[int, int])
    assert_type(thrown.marginal(sum), dict[int, float])
    assert_type(thrown.marginal(lambda value: value[0] == value[1]), dict[bool, float])
    mixed = engine.run([stars("Fine"), two_dice()], particles=[2, 256], seed=0)
    assert_type(mixed, list[Posterior[int | tuple[int, int]]])
    unknown: Program = two_dice
    assert_type(engine.run(unknown(), particles=256, seed=0), Posterior[Any])
