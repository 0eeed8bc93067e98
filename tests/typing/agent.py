"""A program that talks and uses tools: chat, call, draw, twist, sync."""

from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Literal, assert_type

import numpy as np

from smcprog import (
    Engine,
    call,
    chat,
    context,
    draw,
    factor,
    gen,
    prompt,
    smc_program,
    special,
    sync,
    twist,
)

Message = dict[str, str]


class Style(Enum):
    """How to answer."""

    FORMAL = "formal"
    CASUAL = "casual"


def look_up(word: str, most: int = 3) -> list[str]:
    """A slow function of a text."""
    return [word] * most


async def fetch(word: str) -> bytes:
    """One that waits."""
    return word.encode()


def judge(answers: list[str]) -> list[float]:
    """One that takes the answers of all particles."""
    return [-float(len(answer)) for answer in answers]


async def judge_later(answers: Sequence[str]) -> Sequence[int]:
    """The same, waiting."""
    return [len(answer) for answer in answers]


def judge_pairs(answers: list[str], styles: list[Style]) -> list[float]:
    """Of two lists."""
    return [0.0 for _ in zip(answers, styles, strict=True)]


class Client:
    """An object with state of its own."""

    def ask(self, question: str, *, retries: int = 1) -> dict[str, int]:
        """Asked once for each particle."""
        return {question: retries}


CLIENT = Client()


@smc_program
def conversation(question: str, rounds: int = 2) -> dict[str, object]:
    """A history that grows."""
    messages: list[Message] = [{"role": "user", "content": question}]
    style = draw(list(Style), weights=[3, 1])
    assert_type(style, Style)
    length = 0
    for _ in range(rounds):
        chat(messages)
        answer = gen(max_tokens=8)
        twist(-0.1 * len(answer))
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": "Sure?"})
        length += len(answer)
        sync()
    return {"style": style.value, "length": length}


@smc_program
def tools(word: str) -> tuple[int, float]:
    """Every way to call a function."""
    prompt(word, special("<|im_end|>"))
    found = call(look_up, word)
    assert_type(found, list[str])
    assert_type(call(look_up, word, 2), list[str])
    body = call(fetch, word)
    assert_type(body, bytes)
    assert_type(call(CLIENT.ask, word), dict[str, int])
    assert_type(call(len, word), int)
    assert_type(call(lambda text: text.upper(), word), str)
    score = call(judge, word, batch=True)
    assert_type(score, float)
    assert_type(call(judge_later, word, batch=True), int)
    pair = call(judge_pairs, word, Style.CASUAL, batch=True)
    assert_type(pair, float)
    factor(score)
    factor(np.float32(0.5))
    assert_type(context(), str)
    return len(found) + len(body), pair


@smc_program
def dice() -> Literal["high", "low"]:
    """Values of all kinds can be drawn."""
    number = draw(range(1, 7))
    assert_type(number, int)
    letter = draw("abc")
    assert_type(letter, str)
    pair = draw([(1, "a"), (2, "b")])
    assert_type(pair, tuple[int, str])
    index: int = draw(np.arange(3))
    return "high" if number + index + len(letter) + pair[0] > 6 else "low"


def main(engine: Engine, folder: Path) -> None:
    """Runs of all three."""
    talk = engine.run(conversation("3 + 4 = ?"), particles=2, resample="sync", seed=0)
    assert_type(talk.best, dict[str, object])
    assert_type(engine.run(tools("phone"), particles=2).best, tuple[int, float])
    thrown = engine.run(dice(), particles=16, seed=0)
    assert_type(thrown.marginal(), dict[Literal["high", "low"], float])
