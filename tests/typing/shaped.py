"""Potentials: those that come with the package, products, and some of one's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, assert_type

import numpy as np
from numpy.typing import NDArray

from smcprog import (
    Engine,
    Potential,
    Text,
    TextPotential,
    check_potential,
    choice,
    from_genlm,
    gen,
    lm,
    model,
    prompt,
    regex,
    reward,
    smc_program,
    to_genlm,
)


@dataclass(frozen=True)
class Keywords(TextPotential):
    """Texts that use certain words weigh more."""

    words: tuple[str, ...]
    bonus: float = 1.0

    @property
    def stage(self) -> Literal["block"]:
        """Evaluated after each round."""
        return "block"

    def log_potential(self, texts: Sequence[Text], complete: bool) -> NDArray[np.float64]:
        """A log weight for each."""
        return np.array([self.bonus * sum(word in text for word in self.words) for text in texts])


@dataclass(frozen=True)
class Long(TextPotential):
    """The same with a stage that depends on a setting."""

    early: bool

    @property
    def stage(self) -> Literal["block", "end"]:
        """Where it is evaluated."""
        return "block" if self.early else "end"

    def log_potential(self, texts: Sequence[Text], complete: bool) -> NDArray[np.float64]:
        """A log weight for each."""
        return np.array([0.01 * len(text) for text in texts])


def politeness(text: str) -> float:
    """A reward."""
    return float(text.count("please"))


def likeness(text: str, other: str) -> float:
    """A reward with a further argument."""
    return -abs(len(text) - len(other))


def lengths(texts: list[str]) -> list[int]:
    """Rewards of a list."""
    return [len(text) for text in texts]


PRAISE = Keywords(("good", "great")) * Long(early=True)


@smc_program
def praise(subject: str) -> str:
    """All of them multiply."""
    prompt(f"Review: {subject}\nSentiment: positive\nIn one sentence:")
    text = gen(
        lm**0.5,
        lm.given("A praise:") ** 0.5,
        PRAISE,
        reward(politeness, beta=2.0, every=", "),
        reward(likeness, "a great phone", every="block"),
        reward(lengths, batch=True, beta=0.01),
        stop=".",
        max_tokens=12,
    )
    gen(lm.at(temperature=0.7, top_p=0.9), (lm**4).growing(over=8), max_tokens=2)
    return text


def products() -> list[Potential]:
    """Expressions of them."""
    return [
        lm,
        lm**2,
        lm * regex("a+"),
        PRAISE,
        choice("a") * reward(len),
        model("a/folder") ** 0.5,
    ]


def genlm(engine: Engine) -> None:
    """To and from genlm-control."""
    there = to_genlm(lm * regex("[a-z]+"), engine, prompt="Review:")
    from_genlm(there)


def main(engine: Engine, folder: Path) -> None:
    """Checked, and used."""
    check_potential(PRAISE, texts=["", "a good phone"], seed=1)
    assert len(products()) == 6
    assert_type(engine.run(praise("Great phone"), particles=4, seed=0).best, str)
