"""Wrong uses, which a type checker reports: exactly the lines that end in "# error"."""
# mypy: ignore-errors

from dataclasses import dataclass

from smcprog import (
    EOS,
    Engine,
    Posterior,
    Progress,
    TextPotential,
    aside,
    call,
    chat,
    check_potential,
    choice,
    context,
    draw,
    factor,
    gen,
    grammar,
    json_schema,
    lm,
    logprob,
    model,
    observe,
    prompt,
    regex,
    reward,
    smc_program,
    sync,
    twist,
)


@smc_program
def label(text: str, most: int = 3) -> str:
    """A program that is right."""
    prompt(f"Review: {text}\nSentiment:")
    return gen(choice(" positive", " negative"), max_tokens=most)


def look_up(word: str, most: int = 3) -> list[str]:
    """A function that is right."""
    return [word] * most


def judge(answers: list[str]) -> list[float]:
    """One of lists."""
    return [float(len(answer)) for answer in answers]


def statements(number: int) -> None:
    """Arguments that statements do not take."""
    prompt(number)  # error
    prompt("a", 2)  # error
    chat("Hello")  # error
    gen("text")  # error
    gen(lm, 2)  # error
    gen([lm, regex("a")])  # error
    gen(stop=3)  # error
    gen(max_tokens="40")  # error
    gen(temperature=0.7)  # error
    gen(keep_stop="yes")  # error
    observe(["a", "b"])  # error
    observe(EOS, "lm")  # error
    logprob(3)  # error
    factor("much")  # error
    factor(None)  # error
    twist("more")  # error
    draw({"a", "b"})  # error
    draw(3)  # error
    draw(["a"], weights="x")  # error
    sync(1)  # error
    context("so far")  # error
    aside(label)  # error
    aside("label")  # error
    aside(look_up("word"))  # error


def values() -> None:
    """Values that are not what they are taken for."""
    one: int = gen()  # error
    two: int = draw(["a", "b"])  # error
    three: str = observe("a")  # error
    four: float = logprob(["a", "b"])  # error
    five: bytes = context()  # error
    six: int = aside(label("Fine"))  # error
    seven: int = call(look_up, "word")  # error
    eight: str = call(judge, "word", batch=True)  # error
    print(one, two, three, four, five, six, seven, eight)
    print(gen().logprobs)  # error
    print(gen() + 1)  # error


def calls() -> None:
    """Arguments that the function of a call does not take."""
    call(look_up, 3)  # error
    call(look_up)  # error
    call(look_up, "word", 2, 3)  # error
    call(look_up("word"))  # error
    call(judge, 3, batch=True)  # error


def programs() -> None:
    """Arguments that a program does not take."""
    label()  # error
    label(3)  # error
    label("Fine", least=2)  # error
    label("Fine", "many")  # error


def runs(engine: Engine) -> None:
    """What cannot be run, and settings that there are not."""
    engine.run(label)  # error
    engine.run("label")  # error
    engine.run(look_up("word"))  # error
    engine.run([label])  # error
    engine.run(label("Fine"), n=16)  # error
    engine.run(label("Fine"), particles="16")  # error
    engine.run(label("Fine"), verify="exact")  # error
    engine.run(label("Fine"), resample="always")  # error
    engine.run(label("Fine"), on_dead="ignore")  # error
    engine.run(label("Fine"), on_round=print_text)  # error


def print_text(text: str) -> None:
    """No function of a Progress."""
    print(text)


def results(engine: Engine, posterior: Posterior[int], progress: Progress) -> None:
    """Values of another type."""
    print(engine.run(label("Fine")).best + 1)  # error
    print(engine.run([label("Fine")]).best)  # error
    print(posterior.best.strip())  # error
    print(posterior.values[0] + 1)  # error
    print(posterior.mean)  # error
    posterior.expect(len)  # error
    posterior.sample("3")  # error
    posterior.log_evidence = 0.0  # error
    print(progress.ess)  # error
    print(posterior.stats.tokens)  # error


def potentials() -> None:
    """What is no potential, or no argument of one."""
    print(lm + lm.tokens)  # error
    print(lm ** "2")  # error
    print(lm * 2)  # error
    regex(3)  # error
    choice(1, 2)  # error
    grammar(["start"])  # error
    json_schema({}, strict="no")  # error
    reward(3)  # error
    reward(len, beta="1")  # error
    reward(look_up)  # error
    reward(len, batch=True)  # error
    reward(look_up, "word")  # error
    model(3)  # error
    lm.at(temp=0.7)  # error
    lm.given(3)  # error
    check_potential("lm")  # error


@dataclass(frozen=True)
class Incomplete(TextPotential):
    """Without a value."""

    bonus: float


@smc_program
def wrong_value(text: str) -> int:
    """Returns another type than it says."""
    return gen(choice(text))  # error


class Reviewer:
    """Programs as methods."""

    @smc_program
    def label(self, text: str) -> str:
        """A method."""
        return label(text)


def classes() -> None:
    """Calls that the classes above do not allow."""
    Incomplete(1.0)  # error
    Reviewer().label(3)  # error
    Reviewer.label("Fine")  # error
