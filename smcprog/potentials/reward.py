"""Rewards: exp(beta * r(text)) as a factor of a `gen`'s target."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from os import PathLike
from typing import Any, Literal, Protocol, SupportsFloat, TypeVarTuple, overload

import numpy as np
from numpy.typing import NDArray

from smcprog.errors import PotentialError
from smcprog.potentials.base import TextPotential
from smcprog.potentials.reward_model import Classifier, classifier

Ts = TypeVarTuple("Ts")

CACHED_TEXTS = 1 << 16


class Pipeline(Protocol):
    """A text-classification pipeline of transformers."""

    model: Any
    tokenizer: Any


@dataclass(frozen=True)
class Reward(TextPotential):
    """exp(beta * fn(text, *args)), evaluated on the host, each text once; see `reward`."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    beta: float = 1.0
    every: str = "end"
    batch: bool = False

    @property
    def stage(self) -> Literal["block", "end"]:
        return "end" if self.every == "end" else "block"

    def __hash__(self) -> int:
        return hash((self.fn, self.beta, self.every, self.batch, len(self.args)))

    def __repr__(self) -> str:
        name = getattr(self.fn, "__name__", repr(self.fn))
        arguments = [name, *map(repr, self.args)]
        if isinstance(self.fn, Classifier) and self.fn.label is not None:
            arguments.append(f"label={self.fn.label!r}")
        arguments += [] if self.beta == 1.0 else [f"beta={self.beta!r}"]
        arguments += [] if self.every == "end" else [f"every={self.every!r}"]
        return f"reward({', '.join(arguments)})"

    def log_potential(self, texts: Sequence[str], complete: bool) -> NDArray[np.float64]:
        """beta * reward of each text; of what is before the last boundary where it goes on, and 0
        where there is no boundary yet."""
        if complete or self.every == "block":
            judged: list[str | None] = list(texts)
        else:
            judged = [_up_to_last(text, self.every) for text in texts]
        rewards = self._rewards([text for text in judged if text is not None])
        return np.array([0.0 if text is None else self.beta * rewards[text] for text in judged])

    def _rewards(self, texts: Sequence[str]) -> dict[str, float]:
        known = {text: _cache.get(self._key(text)) for text in texts}
        missing = [text for text, value in known.items() if value is None]
        for text, value in zip(missing, self._evaluate(missing), strict=True):
            _cache.put(self._key(text), value)
            known[text] = value
        return {text: value for text, value in known.items() if value is not None}

    def _key(self, text: str) -> Hashable | None:
        try:
            hash(self.args)
        except TypeError:
            return None  # arguments that may change are not remembered
        fn = self.fn.key if isinstance(self.fn, Classifier) else self.fn
        return (fn, self.args, self.batch, text)

    def _evaluate(self, texts: Sequence[str]) -> list[float]:
        """The reward of each text.

        Raises:
            PotentialError: if the function raises, or returns no finite number (-inf is legal) for
                each text; it shows the text.
        """
        if not texts:
            return []
        if not self.batch:
            return [self._number(text, self._call(text, repr(text))) for text in texts]
        shown = f"{len(texts)} texts, the first of them {texts[0]!r}"
        values = np.asarray(self._call(list(texts), shown), dtype=object).ravel()
        if len(values) != len(texts):
            raise PotentialError(
                f"{self!r} returned {len(values)} rewards for {len(texts)} texts, the first of "
                f"them {texts[0]!r}; with batch=True it gets a list and returns one reward for each"
            )
        return [self._number(text, value) for text, value in zip(texts, values, strict=True)]

    def _call(self, what: str | list[str], shown: str) -> Any:
        try:
            return self.fn(what, *self.args)
        except PotentialError:
            raise  # a classifier's, which says all
        except Exception as error:
            raise PotentialError(f"{self!r} raised {error!r} for {shown}") from error

    def _number(self, text: str, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise PotentialError(
                f"{self!r} returned {value!r:.100} for the text {text!r}; a reward is one number"
            ) from error
        if not (isfinite(number) or self.beta * number == -np.inf):
            raise PotentialError(f"{self!r} returned {number} for the text {text!r}")
        return number


@overload
def reward(
    fn: Callable[[str, *Ts], SupportsFloat],
    *args: *Ts,
    beta: float = 1.0,
    every: str = "end",
    batch: Literal[False] = False,
) -> Reward: ...
@overload
def reward(
    fn: Callable[[list[str], *Ts], Iterable[SupportsFloat]],
    *args: *Ts,
    beta: float = 1.0,
    every: str = "end",
    batch: Literal[True],
) -> Reward: ...
@overload
def reward(
    fn: str | PathLike[str] | tuple[Any, Any] | Pipeline,
    text: str = ...,
    /,
    *,
    beta: float = 1.0,
    every: str = "end",
    batch: bool = False,
    label: str | int | None = None,
) -> Reward: ...
def reward(  # type: ignore[misc]  # that *args does not take *Ts is mypy's error
    fn: Any,
    *args: Any,
    beta: float = 1.0,
    every: str = "end",
    batch: bool = False,
    label: str | int | None = None,
) -> Reward:
    """Multiply the target by exp(beta * r), r = ``fn(text, *args)``.

    A sequence classifier of transformers in place of ``fn`` makes r = log p(label | text), so that
    the factor is p(label | text)^beta: Bayes' rule at beta 1. (Its ``problem_type`` counts: where
    labels do not exclude each other, p is the label's own.) A reward model (of one label, or a
    regression) makes r its score.

    Args:
        fn: takes a text (with ``batch=True`` a list of texts) and the further arguments; returns a
            number, -inf legal (or one for each text). It is called once for each different text,
            of all particles together, and its results are remembered. Or a classifier: a
            ``(model, tokenizer)`` pair, a text-classification pipeline, a folder or a hub name;
            with a further text in ``args`` it judges the pairs (that text, the drawn text).
        beta: the strength; finite.
        every: "end" judges the complete text alone. "block" judges what is there after each round,
            and a boundary such as ``"\\n\\n"`` what is there up to its last occurrence: as a ratio
            of new to old, so that in the end the complete text has been judged, and resampling has
            looked at it on the way.
        batch: whether fn takes a list of texts. A classifier always does.
        label: the classifier's, by name or number.

    Raises:
        ValueError: for a label that the classifier does not have, listing those that it has.
        PotentialError: when it is evaluated, if fn raises or returns no number, or a text is longer
            than the classifier reads.

    >>> @smc_program
    ... def long_words():
    ...     prompt("Review: Great phone\\nSentiment: positive\\nStars: 5\\nIn one sentence:")
    ...     return len(gen(reward(len, beta=0.5), stop=".", max_tokens=30))
    >>> longer = engine.run(long_words(), particles=64, seed=0)
    >>> longer.expect(lambda length: length) > 20
    True
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> config = BertConfig(
    ...     vocab_size=len(engine.tokenizer), hidden_size=8, num_hidden_layers=1,
    ...     num_attention_heads=1, intermediate_size=8, id2label={0: "rude", 1: "polite"},
    ... )
    >>> untrained = BertForSequenceClassification(config)
    >>> reward((untrained, engine.tokenizer), label="polite", beta=2.0)
    reward(BertForSequenceClassification, label='polite', beta=2.0)
    """
    judge = classifier(fn, label)
    if judge is not None:
        if len(args) > 1 or not all(isinstance(arg, str) for arg in args):
            raise TypeError("reward(model, text, ...): one text may stand before the drawn one")
        fn, batch = judge, True
    elif label is not None:
        raise TypeError(f"reward(label={label!r}): {fn!r:.80} is no classifier; it has no labels")
    elif not callable(fn):
        raise TypeError(
            f"reward() takes a function of the text or a classifier, not {type(fn).__name__}"
        )
    if not isfinite(beta):
        raise ValueError(f"reward(beta={beta!r}): it must be finite")
    if not isinstance(every, str) or not every:
        raise ValueError(f'reward(every={every!r}): say "end", "block", or a boundary string')
    return Reward(fn, args, float(beta), every, batch)


def _up_to_last(text: str, boundary: str) -> str | None:
    at = text.rfind(boundary)
    return None if at < 0 else text[: at + len(boundary)]


class _Cache:
    """The rewards of the texts that were judged last, shared by equal potentials."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._known: OrderedDict[Hashable, float] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable | None) -> float | None:
        with self._lock:
            if key not in self._known:
                return None
            self._known.move_to_end(key)
            return self._known[key]

    def put(self, key: Hashable | None, value: float) -> None:
        with self._lock:
            if key is not None:
                self._known[key] = value
                if len(self._known) > self._size:
                    self._known.popitem(last=False)


_cache = _Cache(CACHED_TEXTS)
