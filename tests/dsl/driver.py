"""Drives a `Process` by hand: a scripted stand-in for the loop, with no engine."""

import itertools
import linecache
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from smcprog import text
from smcprog.dsl import statements
from smcprog.dsl.process import Finished, Pending, Process
from smcprog.dsl.program import BoundProgram, smc_program
from smcprog.dsl.requests import (
    Call,
    Context,
    Draw,
    Gen,
    LogProb,
    Observe,
    Prompt,
    Request,
)
from smcprog.potentials.grammar import choice, regex
from smcprog.potentials.lm import lm
from smcprog.text import Text

LANGUAGE = {
    **{name: getattr(statements, name) for name in statements.__dict__ if name in (
        "prompt chat gen observe logprob factor condition twist sync draw call context".split()
    )},
    "smc_program": smc_program,
    "lm": lm,
    "regex": regex,
    "choice": choice,
    "EOS": text.EOS,
    "LEAVE": text.LEAVE,
    "special": text.special,
}  # fmt: skip


@dataclass
class Answers:
    """Answers each request as a function of what was asked before it, so that replays agree.

    ``texts`` are what `gen` returns in turn; then "g0", "g1", ... by the number of gens so far.
    """

    texts: Sequence[str] = ()
    draws: Sequence[int] = ()
    context: str = ""
    gens: int = 0
    drawn: int = 0

    def copy(self) -> "Answers":
        return Answers(self.texts, self.draws, self.context, self.gens, self.drawn)

    def answer(self, request: Request) -> Any:
        match request:
            case Prompt(parts):
                self.context += "".join(parts)
                return None
            case Gen():
                word = self.texts[self.gens] if self.gens < len(self.texts) else f"g{self.gens}"
                self.gens += 1
                self.context += word
                return Text(word, stop=text.EOS, logprob=-1.0)
            case Observe(observed):
                self.context += observed if isinstance(observed, str) else ""
                return -0.5
            case LogProb(texts):
                return [-float(len(one)) for one in texts]
            case Draw(values):
                index = self.draws[self.drawn] if self.drawn < len(self.draws) else self.drawn
                self.drawn += 1
                return index % len(values)
            case Call(fn, args, batch):
                return fn(*[[arg] for arg in args])[0] if batch else fn(*args)
            case Context():
                return self.context
        return None


@dataclass
class Ran:
    value: Any
    asked: list[Pending] = field(default_factory=list)
    process: Process | None = None
    answers: Answers | None = None

    @property
    def requests(self) -> list[Request]:
        return [pending.request for pending in self.asked]

    @property
    def names(self) -> list[str]:
        return [pending.site.statement for pending in self.asked]

    @property
    def context(self) -> str:
        assert self.answers is not None
        return self.answers.context


def run(bound: BoundProgram, texts: Sequence[str] = (), draws: Sequence[int] = ()) -> Ran:
    """Run a program to its end."""
    return finish(Process(bound), Answers(texts, draws))


def finish(process: Process, answers: Answers, step: Any = None) -> Ran:
    """Run a process from where it is to its end."""
    asked: list[Pending] = []
    step = process.pending or process.step()
    while isinstance(step, Pending):
        asked.append(step)
        step = process.step(answers.answer(step.request))
    assert isinstance(step, Finished)
    return Ran(step.value, asked, process, answers)


def forked_everywhere(
    make: Callable[[], BoundProgram], texts: Sequence[str] = (), draws: Sequence[int] = ()
) -> Iterator[Ran]:
    """For each statement of a run: a clone forked there, run to its end after the original was."""
    plain = run(make(), texts, draws)
    for at in itertools.chain(range(len(plain.asked) + 1)):
        process, answers = Process(make()), Answers(texts, draws)
        asked: list[Pending] = []
        step: Any = process.step()
        for _ in range(at):
            asked.append(step)
            step = process.step(answers.answer(step.request))
        clone, twin = process.fork(), answers.copy()
        if isinstance(step, Pending):
            finish(process, answers)
            rest = finish(clone, twin)
        else:
            assert clone.finished is not None
            rest = Ran(clone.finished.value, [], clone, twin)
        clone.check()
        yield Ran(rest.value, asked + rest.asked, clone, twin)


_cells = itertools.count()


def cell(source: str, **names: Any) -> dict[str, Any]:
    """Execute source as a notebook does: its text is in `linecache` under an invented file name."""
    source = textwrap.dedent(source)
    file = f"<cell {next(_cells)}>"
    lines = source.splitlines(keepends=True)
    linecache.cache[file] = (len(source), None, lines, file)
    namespace = {"__name__": "__main__", **LANGUAGE, **names}
    exec(compile(source, file, "exec"), namespace)
    return namespace
