"""Programs as methods."""

from dataclasses import dataclass
from pathlib import Path
from typing import assert_type

from smcprog import Engine, Posterior, choice, gen, prompt, smc_program


@dataclass(frozen=True)
class Reviewer:
    """Settings that programs share."""

    subject: str
    words: tuple[str, ...] = (" positive", " negative")

    @smc_program
    def label(self, text: str, short: bool = False) -> str:
        """A program of an instance."""
        prompt("" if short else f"{self.subject}\n", f"Review: {text}\nSentiment:")
        return gen(choice(self.words))

    @smc_program
    def agree(self, texts: list[str]) -> bool:
        """Calls another method."""
        labels: set[str] = set()
        for text in texts:
            labels.add(self.label(text, short=True))
            prompt("\n")
        return len(labels) == 1

    @classmethod
    @smc_program
    def default(cls, text: str) -> int:
        """A program of the class."""
        return len(cls(text).label(text))

    @staticmethod
    @smc_program
    def greet() -> str:
        """A program of neither."""
        prompt("Hello")
        return gen(max_tokens=2)


def main(engine: Engine, folder: Path) -> None:
    """Calls on an instance and on the class."""
    reviewer = Reviewer("phones")
    labelled = engine.run(reviewer.label("Great phone", short=True), particles=4, seed=0)
    assert_type(labelled, Posterior[str])
    assert_type(engine.run(reviewer.agree(["Fine", "Bad"]), particles=2).best, bool)
    assert_type(engine.run(Reviewer.default("Fine"), particles=2).best, int)
    assert_type(engine.run(reviewer.default("Fine"), particles=2).best, int)
    assert_type(engine.run(Reviewer.greet(), particles=2).best, str)
    print(Reviewer.label.plan(), reviewer.label.plan(), Reviewer.label.name)
