"""The program of the README, and all that a posterior can be asked."""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

from smcprog import (
    Engine,
    Posterior,
    Text,
    choice,
    condition,
    factor,
    gen,
    lm,
    prompt,
    regex,
    smc_program,
)

Review = dict[str, str | int]


@smc_program
def review(text: str) -> Review:
    """Sentiment and stars that agree, and a sentence."""
    prompt(f"Review: {text}\nSentiment:")
    label = gen(choice(" positive", " negative"))
    assert_type(label, Text)
    assert_type(label.strip(), str)
    prompt("\nStars:")
    stars = int(gen(regex(" [1-5]")))
    condition((stars >= 3) == (label.strip() == "positive"))
    prompt("\nIn one sentence:")
    why = gen(lm**2, stop=".", max_tokens=40)
    factor(0.1 * len(set(why.split())))
    assert_type(why.logprob, float)
    assert_type(why.tokens, tuple[int, ...])
    return {"label": label.strip(), "stars": stars, "why": why}


@smc_program
def stars(text: str) -> int:
    """A number."""
    prompt(f"Review: {text}\nSentiment: positive\nStars:")
    return int(gen(regex(" [1-5]")))


def is_positive(value: Review) -> bool:
    """A function of the value."""
    return value["label"] == "positive"


def look(posterior: Posterior[Review], folder: Path) -> None:
    """Every method of a posterior of dicts."""
    assert_type(posterior.values, list[Review | None])
    assert_type(posterior.texts, list[str])
    assert_type(posterior.tokens, list[list[int]])
    assert_type(posterior.log_weights, NDArray[np.float64])
    assert_type(posterior.weights, NDArray[np.float64])
    assert_type(posterior.log_evidence, float)
    assert_type(posterior.ess, float)
    assert_type(posterior.unique_roots, int)
    assert_type(posterior.best, Review)
    assert_type(posterior.sample(3, seed=1), list[Review])
    assert_type(posterior.expect(lambda value: value["stars"] == 5), float)
    assert_type(posterior.expect(lambda value: [1.0, 2.0]), NDArray[np.float64])
    assert_type(posterior.marginal("label"), dict[Any, float])
    assert_type(posterior.marginal(is_positive), dict[bool, float])
    for entry in posterior.trace(0):
        print(entry.line, entry.statement, entry.variable, entry.text, entry.logw)
    assert_type(posterior.stats.seconds, float)
    assert_type(posterior.stats["rounds"], float)
    for record in posterior.rounds:
        assert_type(record.ancestors, tuple[int, ...])
    for death in posterior.deaths:
        print(death.source, death.number)
    assert_type(posterior.to_dict(), dict[str, Any])
    posterior.save(folder / "review.json")
    assert_type(Posterior.load(folder / "review.json"), Posterior[Any])


def anyone(posterior: Posterior) -> float:
    """A function of any posterior need not say of what."""
    return posterior.log_evidence


def main(engine: Engine, folder: Path) -> None:
    """One call, and a list of them."""
    posterior = engine.run(review("Great phone, bad battery"), particles=8, block=4, seed=0)
    assert_type(posterior, Posterior[Review])
    look(posterior, folder)
    anyone(posterior)

    several = engine.run([stars("Great phone"), stars("Fine")], particles=[4, 8], seed=0)
    assert_type(several, list[Posterior[int]])
    assert_type(several[0].best, int)
    assert_type(several[0].marginal(), dict[int, float])
    assert_type(several[0].expect(lambda number: number), float)

    call = review("Fine")
    assert_type(call.name, str)
    print(review.plan().explain(), call.plan(), call.args, call.kwargs)
