"""The programs whose laws the tests enumerate: each statement, and Python around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from smcprog import (
    EOS,
    TextPotential,
    choice,
    condition,
    draw,
    factor,
    gen,
    lm,
    logprob,
    observe,
    prompt,
    regex,
    smc_program,
    sync,
    twist,
)


@dataclass(frozen=True)
class CountOf(TextPotential):
    """exp(beta * how often a letter occurs): a prefix potential, or one of complete texts."""

    letter: str
    beta: float
    when: Literal["block", "end"] = "block"

    @property
    def stage(self) -> Literal["block", "end"]:
        return self.when

    def log_potential(self, texts: Sequence[str], complete: bool) -> np.ndarray:
        return self.beta * np.array([float(text.count(self.letter)) for text in texts])


@dataclass(frozen=True)
class NoDouble(TextPotential):
    """Kills a text as soon as a letter is doubled."""

    letter: str

    @property
    def stage(self) -> Literal["block"]:
        return "block"

    def log_potential(self, texts: Sequence[str], complete: bool) -> np.ndarray:
        return np.array([-np.inf if 2 * self.letter in text else 0.0 for text in texts])


@smc_program
def one(alpha: float, potentials: tuple = (), stop: Any = None, max_tokens: int = 3):
    text = gen(lm**alpha, *potentials, stop=stop, max_tokens=max_tokens)
    return str(text), text.stop


@smc_program
def branch(alpha: float):
    first = gen(lm**alpha, choice("a", "b", "ab"))
    if first == "a":
        prompt("b")
        second = gen(lm**alpha, max_tokens=2)
        factor(0.7 * second.count("a"))
        return first + second
    condition(first != "b" or draw([True, False], [0.3, 0.7]))
    return first


@smc_program
def loop(alpha: float):
    words = []
    while len(words) < 3:
        word = gen(lm**alpha, max_tokens=1)
        if word.stop is EOS:
            break
        words.append(str(word))
        factor(-0.5 if word == "a" else 0.25)
    else:
        factor(0.1)
    return " ".join(words)


@smc_program
def observed(alpha: float):
    side = draw(["a", "b"])
    prompt(side)
    log_p = observe("ab", lm**alpha)
    text = gen(lm**alpha, regex("a?b"))
    observe(EOS)
    p, q = logprob(["a", "b"])
    factor(0.1 * log_p + 0.2 * (p - q))
    factor(-logprob("b", given="a"))
    return side + text


@smc_program
def twisted(alpha: float):
    twist(0.8)
    text = gen(lm**alpha, max_tokens=1)
    twist(1.5 if text == "a" else -0.5)
    sync()
    rest = gen(lm**alpha, max_tokens=2)
    factor(1.0 if text == "a" else -1.0)
    return text + "|" + rest


@smc_program
def inner(alpha: float, letter: str):
    twist(0.4)
    text = gen(lm**alpha, CountOf(letter, 0.5), max_tokens=2)
    if text == "bb":
        return text + "!"
    prompt("a")
    return str(text)


@smc_program
def outer(alpha: float):
    first = inner(alpha, "a")
    second = gen(lm**alpha, NoDouble("b"), CountOf("b", -0.3, "end"), max_tokens=2)
    return first, str(second)


@smc_program
def several_factors(alpha: float):
    text = gen(lm**alpha * lm.at(temperature=0.5) ** 0.5, regex("(a|b)*"), max_tokens=2)
    more = gen(lm.at(temperature=1.3, top_k=3) ** alpha, max_tokens=1)
    last = gen(lm.at(top_p=0.8) ** alpha, stop="b", max_tokens=2)
    return text + "|" + more + "|" + last


@smc_program
def two_constraints(alpha: float):
    text = gen(lm**alpha, regex("(ab|a)*b?"), regex(".{1,3}"), stop=(EOS, "ba"), max_tokens=3)
    return str(text), text.stop


PROGRAMS = {
    p.__name__: p
    for p in (branch, loop, observed, twisted, outer, several_factors, two_constraints)
}
