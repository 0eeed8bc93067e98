"""The statements of the language: what a program can ask of its run.

Each is a marker. In a program the compiler makes an awaited request of it; anywhere else it raises
`ProgramError`, which says what to decorate. The functions below check the arguments and build the
request records of `smcprog.dsl.requests`; what a statement *does* is the run's part.
"""

# mypy: disable-error-code="no-any-return"
# (Each returns its request where it is declared to return the statement's value: see `ask`.)

from __future__ import annotations

import math
import numbers
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, SupportsFloat, TypeVar, TypeVarTuple, overload

import numpy as np
from numpy.typing import NDArray

from smcprog.dsl.asking import AsideAsked, Ask, Held, awaited, current
from smcprog.dsl.copying import copied
from smcprog.dsl.marker import ask, statement
from smcprog.dsl.program import BoundProgram, Program
from smcprog.dsl.requests import (
    Call,
    Chat,
    Context,
    Draw,
    Factor,
    Gen,
    LogProb,
    Observe,
    Prompt,
    Sync,
    Twist,
)
from smcprog.errors import ProgramError, WeightError
from smcprog.potentials.base import LM, Potential, product
from smcprog.text import EOS, LEAVE, Stop, StopEvent, Text

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
Ts = TypeVarTuple("Ts")

Weights = Sequence[float] | NDArray[Any]

_LIMIT = "gen(..., max_tokens=40)"
_STOP = 'gen(..., stop=".")'


@statement(appends=True)
def prompt(*parts: str) -> None:
    """Append text to the context. It is not scored: it conditions.

    Text is data. A special token spelled inside it is encoded as plain characters; `special` is
    the way to mean one.

    >>> @smc_program
    ... def greet(name):
    ...     prompt(f"Hello {name}", special("<|im_end|>"))
    ...     return context()
    >>> engine.run(greet("Ada"), particles=1).best
    'Hello Ada<|im_end|>'
    """
    for part in parts:
        if not isinstance(part, str):
            raise ProgramError(
                f"prompt() takes text (str), not {_type(part)}\n"
                f"  Write instead: prompt(str(x)), or an f-string."
            )
    return ask(Prompt(parts))


@statement(appends=True)
def chat(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any] | None = None,
    **template_kwargs: Any,
) -> None:
    """Append the tokenizer's chat template of ``messages``, the whole history so far.

    It opens the assistant's turn, or continues a last message of the assistant. A later call
    appends what the longer history adds.

    >>> @smc_program
    ... def twice(question):
    ...     messages = [{"role": "user", "content": question}]
    ...     chat(messages)
    ...     answer = gen(max_tokens=60)
    ...     messages.append({"role": "assistant", "content": answer})
    ...     messages.append({"role": "user", "content": "Sure?"})
    ...     chat(messages)
    ...     return context().count("<|im_start|>assistant")
    >>> engine.run(twice("3 + 4 = ?"), particles=2, seed=0).best
    2
    """
    if isinstance(messages, Mapping) or not (
        isinstance(messages, Sequence) and not isinstance(messages, str)
    ):
        raise ProgramError(
            f"chat() takes a list of messages, not {_type(messages)}\n"
            f'  Write instead: chat([{{"role": "user", "content": "..."}}])'
        )
    for message in messages:
        if not isinstance(message, Mapping) or "role" not in message:
            raise ProgramError(
                f"each message of chat() is a dict with a role, not {message!r}\n"
                f'  Write instead: {{"role": "user", "content": "..."}}'
            )
    if tools is not None and not isinstance(tools, Sequence):
        raise ProgramError(f"chat(tools=...) takes a list of tools, not {_type(tools)}")
    # The program goes on extending its list of messages: the record is of what they are now.
    return ask(Chat(copied(list(messages)), _list_or_none(tools), copied(template_kwargs)))


@statement(
    appends=True,
    spelled={
        "temperature": "gen(lm.at(temperature=0.7))",
        "top_p": "gen(lm.at(top_p=0.9))",
        "top_k": "gen(lm.at(top_k=50))",
        "stop_at": _STOP,
        "stop_sequences": _STOP,
        "stop_strings": _STOP,
        "until": _STOP,
        "max_new_tokens": _LIMIT,
        "max_length": _LIMIT,
        "n_tokens": _LIMIT,
        "regex": 'gen(regex("[0-9]+"))',
        "choices": 'gen(choice("yes", "no"))',
        "options": 'gen(choice("yes", "no"))',
        "name": "name = gen(...)   (the variable is the label)",
    },
)
def gen(
    *potentials: Potential,
    stop: Stop | Sequence[Stop] | None = None,
    max_tokens: int = 512,
    keep_stop: bool = False,
    hint: str | None = None,
) -> Text:
    """Draw text from (target LM x the potentials) given the context, and append it.

    Returns a `Text`: a ``str`` with ``.stop``, ``.logprob``, ``.tokens`` and, under a JSON schema,
    ``.parsed``.

    Args:
        potentials: multiplied; without an explicit `lm` its exponent is 1.
        stop: what ends the text: a string, `EOS`, `LEAVE`, or a tuple of them. By default `LEAVE`
            under a constraint and `EOS` without; ``()`` masks every stop.
        max_tokens: the text is cut there.
        keep_stop: whether the context keeps the stop string.
        hint: text that the draft alone reads, before the context: it moves the proposal, not the
            target.

    >>> @smc_program
    ... def label(text):
    ...     prompt(f"Review: {text}\\nSentiment:")
    ...     word = gen(choice(" positive", " negative"))
    ...     prompt("\\nStars: 4\\nIn one sentence:")
    ...     why = gen(lm**2, stop=".", max_tokens=40)
    ...     return word in (" positive", " negative"), why.stop
    >>> engine.run(label("I love it"), particles=8, seed=0).best
    (True, '.')
    """
    for potential in potentials:
        if not isinstance(potential, Potential):
            raise ProgramError(_not_a_potential(potential))
    if isinstance(max_tokens, (bool, np.bool_)) or not isinstance(max_tokens, numbers.Integral):
        raise ProgramError(f"gen(max_tokens=...) takes a positive int, not {max_tokens!r}")
    if max_tokens < 1:
        raise ProgramError(f"gen(max_tokens=...) takes a positive int, not {int(max_tokens)}")
    if not isinstance(keep_stop, (bool, np.bool_)):
        raise ProgramError(f"gen(keep_stop=...) takes True or False, not {keep_stop!r}")
    if hint is not None and not isinstance(hint, str):
        raise ProgramError(f"gen(hint=...) takes text (str), not {_type(hint)}")
    whole = product(*potentials)
    stops = None if stop is None else _stops(stop)
    if stops and LEAVE in stops and not whole.constraints:
        raise ProgramError(
            "stop=LEAVE means that the model leaves a constraint, and there is none\n"
            '  Write instead: stop=EOS, or give one: gen(regex("[0-9]+"))'
        )
    return ask(Gen(whole, stops, int(max_tokens), bool(keep_stop), hint or None))


@statement(appends=True)
def observe(text: Stop, potential: Potential = LM()) -> float:  # noqa: B008 (immutable)
    """Append ``text`` and multiply the weight by its probability; returns the log probability.

    ``observe(EOS)`` charges the end of the text and appends nothing. ``potential`` is a power or
    variant of `lm`: the weight is multiplied by p(text | context)^alpha.

    >>> @smc_program
    ... def posterior_of_a_label(text):
    ...     prompt("Review:")
    ...     label = draw(["positive", "negative"])
    ...     prompt(f" {text}\\nSentiment:")
    ...     observe(f" {label}")
    ...     return label
    >>> engine.run(posterior_of_a_label("I love it"), particles=64, seed=0).best
    'positive'
    """
    if not isinstance(text, str) and text is not EOS:
        raise ProgramError(f"observe() takes text (str) or EOS, not {_type(text)}")
    if not isinstance(potential, Potential):
        raise ProgramError(_not_a_potential(potential, "observe"))
    whole = product(potential)
    if whole.constraints or whole.texts or any(not isinstance(f, LM) for f in whole.factors):
        raise ProgramError(
            f"observe() is scored by the language model alone; {potential!r} has other factors\n"
            f"  Write instead: observe(text, lm**2), and factor(...) or condition(...) for the rest"
        )
    return ask(Observe(text, whole))


@overload
def logprob(text: str, given: str | None = None) -> float: ...  # type: ignore[overload-overlap]
@overload
def logprob(text: Sequence[str], given: str | None = None) -> list[float]: ...
@statement()
def logprob(text: str | Sequence[str], given: str | None = None) -> float | list[float]:
    """log p of one text or of several, under the context or under ``given``, in one pass.

    Nothing is appended and nothing weighted.

    >>> @smc_program
    ... def compare(text):
    ...     prompt(f"Review: {text}\\nSentiment:")
    ...     yes, no = logprob([" positive", " negative"])
    ...     return yes > no
    >>> engine.run(compare("I love it"), particles=1).best
    True
    """
    single = isinstance(text, str)
    texts = (text,) if single else _tuple(text)
    if texts is None or not all(isinstance(one, str) for one in texts):
        bad = text if texts is None else next(one for one in texts if not isinstance(one, str))
        raise ProgramError(f"logprob() takes text (str) or a list of texts, not {_type(bad)}")
    if given is not None and not isinstance(given, str):
        raise ProgramError(f"logprob(given=...) takes text (str), not {_type(given)}")
    return ask(LogProb(texts, given), _first if single else None)


@statement()
def factor(logw: SupportsFloat) -> None:
    """Multiply the particle's weight by exp(``logw``).

    >>> @smc_program
    ... def favour():
    ...     side = draw(["left", "right"])
    ...     factor(3.0 if side == "left" else 0.0)
    ...     return side
    >>> engine.run(favour(), particles=256, seed=0).marginal()["left"] > 0.9
    True
    """
    return ask(Factor(_log_weight("factor", logw), "factor"))


@statement()
def condition(ok: object) -> None:
    """Keep only what satisfies ``ok``: ``factor(0 if ok else -inf)``.

    >>> @smc_program
    ... def two_dice():
    ...     a, b = draw(range(1, 7)), draw(range(1, 7))
    ...     condition(a + b == 12)
    ...     return a, b
    >>> engine.run(two_dice(), particles=512, seed=0).best
    (6, 6)
    """
    try:
        holds = bool(ok)
    except Exception as error:
        raise ProgramError(f"condition() takes a truth value, not {_type(ok)}: {error}") from None
    return ask(Factor(0.0 if holds else -math.inf, "condition"))


@statement()
def twist(logpsi: SupportsFloat) -> None:
    """Set this program's current guess of its future log weight.

    The weight moves by new - old, and the last guess is taken back when the program returns: the
    target stays what it was, and resampling looks ahead.

    >>> @smc_program
    ... def short_lines():
    ...     lines = []
    ...     for _ in range(2):
    ...         lines.append(gen(stop="\\n", max_tokens=12))
    ...         twist(-0.1 * sum(map(len, lines)))
    ...     return len(lines)
    >>> engine.run(short_lines(), particles=4, seed=0).best
    2
    """
    new = _log_weight("twist", logpsi)
    return ask(Twist(current().invocations[-1].twist, new), _twisted)


@statement()
def sync() -> None:
    """Wait until every live particle waits at some `sync` or has finished; then the run tests
    whether to resample.

    >>> @smc_program
    ... def steps():
    ...     for _ in range(3):
    ...         gen(stop="\\n", keep_stop=True, max_tokens=8)
    ...         sync()
    ...     return context().count("\\n") <= 3
    >>> engine.run(steps(), particles=4, resample="sync", seed=0).best
    True
    """
    return ask(Sync())


@overload
def draw(values: Sequence[T], weights: Weights | None = None) -> T: ...
@overload
def draw(values: NDArray[Any], weights: Weights | None = None) -> Any: ...
@statement()
def draw(values: Sequence[T] | NDArray[Any], weights: Weights | None = None) -> T:
    """Draw one of ``values`` with the run's own generator; ``weights`` need not sum to 1.

    >>> @smc_program
    ... def style():
    ...     return draw(["formal", "casual"], weights=[3, 1])
    >>> 0.6 < engine.run(style(), particles=512, seed=0).marginal()["formal"] < 0.9
    True
    """
    options = values if isinstance(values, range) else _tuple(values)
    if options is None:
        raise ProgramError(
            f"draw() takes a sequence of values, not {_type(values)}\n"
            f"  Write instead: draw(list(values)), or draw([a, b])"
        )
    if not options:
        raise ProgramError("draw() was given no values to draw from")
    odds = None if weights is None else _odds(weights, len(options))
    return ask(Draw(options, odds), _drawn)


@overload
def call(fn: Callable[[*Ts], Awaitable[T]], *args: *Ts, batch: Literal[False] = False) -> T: ...
@overload
def call(fn: Callable[[*Ts], T], *args: *Ts, batch: Literal[False] = False) -> T: ...
@overload
def call(
    fn: Callable[[list[A]], Awaitable[Iterable[T]] | Iterable[T]],
    arg: A,
    /,
    *,
    batch: Literal[True],
) -> T: ...
@overload
def call(
    fn: Callable[[list[A], list[B]], Awaitable[Iterable[T]] | Iterable[T]],
    arg: A,
    other: B,
    /,
    *,
    batch: Literal[True],
) -> T: ...
@overload
def call(
    fn: Callable[..., Awaitable[Iterable[T]] | Iterable[T]],
    arg: Any,
    other: Any,
    third: Any,
    /,
    *args: Any,
    batch: Literal[True],
) -> T: ...
@statement()  # type: ignore[misc]  # that *args does not take *Ts is mypy's error
def call(fn: Callable[..., Any], *args: Any, batch: bool = False) -> Any:
    """Run a slow, asynchronous or effectful host function once for this particle.

    Its result is recorded, and copied each time it is handed out. With ``batch=True`` the function
    is called once on lists, for all particles that wait there.

    >>> def judge(answers):                        # a list of one answer for each particle
    ...     return [len(answer) for answer in answers]
    >>> @smc_program
    ... def judged():
    ...     answer = draw(["yes", "certainly"])
    ...     factor(-call(judge, answer, batch=True))
    ...     return answer
    >>> engine.run(judged(), particles=32, seed=0).best
    'yes'
    """
    if not callable(fn):
        raise ProgramError(
            f"call() takes a function and its arguments, not {_type(fn)}\n"
            f"  Write instead: call(fetch, url) rather than call(fetch(url))"
        )
    if not isinstance(batch, bool):
        raise ProgramError(f"call(batch=...) takes True or False, not {batch!r}")
    return ask(Call(fn, args, batch))


@statement(holds=True)
def aside(program_call: BoundProgram[T], inherit: bool = False) -> T:
    """Run another program in an empty context, or (``inherit``) in a copy of this one; returns its
    value. Its weights count; the context is then what it was.

    Args:
        program_call: ``judge(answer)``: the call is not run where it stands, but by `aside`.
        inherit: whether it begins with the text so far.

    >>> @smc_program
    ... def judge(review):
    ...     prompt(f"Review: {review}\\nSentiment:")
    ...     yes, no = logprob([" positive", " negative"])
    ...     factor(yes)
    ...     return yes > no
    >>> @smc_program
    ... def praised():
    ...     prompt("Sentiment: positive\\nIn one sentence:")
    ...     why = gen(stop=".", max_tokens=20)
    ...     liked = aside(judge(why))
    ...     return context().startswith("Sentiment: positive")
    >>> engine.run(praised(), particles=4, seed=0).best
    True
    """
    if not isinstance(program_call, (Held, BoundProgram)):
        called = isinstance(program_call, Program)
        wrong = repr(program_call) if called else _type(program_call)
        name = program_call.name if called else "judge"
        raise ProgramError(
            f"aside() takes a program call, not {wrong}\n  Write instead: aside({name}(...))"
        )
    if not isinstance(inherit, (bool, np.bool_)):
        raise ProgramError(f"aside(inherit=...) takes True or False, not {inherit!r}")
    awaited(program_call)  # in hand-written code, where it has been called
    asked: Any = AsideAsked(program_call, bool(inherit))
    return asked


@statement()
def context() -> str:
    """The text so far: what was prompted, observed and generated.

    >>> @smc_program
    ... def so_far():
    ...     prompt("Q: 1 + 1 =")
    ...     gen(choice(" 2"))
    ...     return context()
    >>> engine.run(so_far(), particles=1).best
    'Q: 1 + 1 = 2'
    """
    return ask(Context())


# --- reading answers, checking arguments -----------------------------------------------------


def _first(_: Ask, answer: list[float]) -> float:
    return answer[0]


def _drawn(asked: Ask, answer: int) -> Any:
    assert isinstance(asked.request, Draw)
    # The list of values may be the host's own, shared by all particles.
    return copied(asked.request.values[answer])


def _twisted(asked: Ask, _: None) -> None:
    assert isinstance(asked.request, Twist)
    current().invocations[-1].twisted(asked.request.new, asked.site)


def _type(value: object) -> str:
    return f"{type(value).__name__} ({value!r:.60})" if value is not None else "None"


def _tuple(values: Any) -> tuple[Any, ...] | None:
    """Sequences, ranges and 1-d arrays as a tuple; None for what has no order or is used up."""
    if isinstance(values, (Sequence, np.ndarray)) or hasattr(values, "__array__"):
        return tuple(values)
    return None


def _list_or_none(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(copied(list(values)))


def _number(value: Any) -> float | None:
    """A real number, NumPy's and 0-d arrays included; None for anything else, bool too."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    dtype = getattr(value, "dtype", None)
    if dtype is not None and "bool" not in str(dtype) and getattr(value, "ndim", None) == 0:
        return float(value)
    return None


def _log_weight(name: str, value: Any) -> float:
    number = _number(value)
    if number is None:
        if isinstance(value, (bool, np.bool_)) or "bool" in str(getattr(value, "dtype", "")):
            raise ProgramError(
                f"{name}() takes a log weight, not a truth value\n"
                f"  Write instead: condition(...) to keep only what satisfies a test"
            )
        raise ProgramError(f"{name}() takes a log weight (a number), not {_type(value)}")
    if math.isnan(number) or number == math.inf:
        raise WeightError(f"{name}() was given {number}; a log weight is finite or -inf")
    return number


def _odds(weights: Any, count: int) -> tuple[float, ...]:
    given = _tuple(weights)
    if given is None:
        raise ProgramError(f"draw(weights=...) takes a sequence of numbers, not {_type(weights)}")
    if len(given) != count:
        raise ProgramError(f"draw() was given {len(given)} weights for {count} values")
    odds = []
    for weight in given:
        number = _number(weight)
        if number is None:
            raise ProgramError(f"draw(weights=...) takes numbers, not {_type(weight)}")
        if not 0 <= number < math.inf:
            raise ProgramError(f"draw() was given the weight {number}; weights are >= 0 and finite")
        odds.append(number)
    if not any(odds):
        raise ProgramError("draw() was given weights that are all zero")
    return tuple(odds)


def _stops(stop: Any) -> tuple[Stop, ...]:
    stops = tuple(stop) if isinstance(stop, (tuple, list)) else (stop,)
    for one in stops:
        if isinstance(one, StopEvent):
            continue
        if not isinstance(one, str):
            raise ProgramError(
                f"gen(stop=...) takes a string, EOS, LEAVE, or a tuple of them, not {_type(one)}\n"
                f'  Write instead: stop=".", or stop=(".", "!")'
            )
        if not one.isprintable() and any("\ud800" <= c <= "\udfff" for c in one):
            raise ProgramError(f"gen(stop=...) was given {one!r}, which is no Unicode text")
        if not one:
            raise ProgramError(
                "gen(stop=...) was given an empty string, which would stop before it begins\n"
                "  Write instead: stop=() for no stop at all, or leave it out"
            )
    return tuple(dict.fromkeys(stops))


def _not_a_potential(value: object, name: str = "gen") -> str:
    if isinstance(value, str):
        if name == "observe":
            return f"observe() takes one text, and a potential such as lm**2, not {value!r:.60}"
        label = value if value.isidentifier() else "x"
        return (
            f"gen() takes potentials, not text ({value!r:.60})\n"
            f"  A text is named by the variable that it is assigned to: {label} = gen(...). To "
            f"append text, write prompt({value!r:.60}) first; to offer texts, gen(choice(...))."
        )
    if isinstance(value, (list, tuple)):
        return (
            f"{name}() takes potentials, not a {type(value).__name__}\n"
            f"  Write instead: {name}(*potentials), or gen(choice([...])) for one of several texts"
        )
    if isinstance(value, (int, float)):
        return (
            f"{name}() takes potentials, not {value!r}\n"
            f"  Write instead: gen(lm**{value!r}) for a power, gen(max_tokens={value!r}) for a "
            f"length"
        )
    if callable(value):
        shown = getattr(value, "__name__", type(value).__name__)
        return (
            f"{name}() takes potentials, not the function {shown}\n"
            f"  Write instead: gen({shown}(...)) where it makes a potential, or after the gen "
            f"factor({shown}(text))"
        )
    return f"{name}() takes potentials such as lm, regex(...) or choice(...), not {_type(value)}"
