"""The laws of potentials, checked on sample texts: `check_potential`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smcprog.errors import PotentialError
from smcprog.potentials.base import LM, Constraint, Matcher, Potential, Product, TextPotential
from smcprog.text import Text
from smcprog.vocabulary import BYTES, Bits, Vocabulary, unpack

SAMPLES = (
    "",
    "a",
    "yes",
    " 42",
    "Great phone, bad battery.",
    "line one\n\nline two",
    "naïve café ☕",
    '{"a": [1, 2]}',
)
_WALKS = 8  # random texts of a constraint
_STEPS = 24  # tokens of each
_TOKENS = 64  # tokens that are tried at each step, of those allowed and of those forbidden


def check_potential(
    potential: Potential,
    *,
    texts: Sequence[str] = SAMPLES,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
) -> None:
    """Check the laws that inference relies on, on samples; a violation is an error that shows it.

    A `TextPotential` gives one log weight for each text, -inf or finite; the same for the same
    text, whatever is asked beside it or was asked before; by its characters alone unless it says
    that it ``reads_tokens``. Along every way to a complete text its increments add up to its value
    of that text: -inf is final.

    The `Matcher` of a `Constraint` allows a token exactly where its bytes can be continued to an
    accepted text: where `advance` takes it, and where the same constraint over single bytes does.
    It accepts what that one accepts, never allows control ids, and shares nothing with its forks.

    Args:
        potential: of a product each factor is checked. Language models have nothing to check.
        texts: what a text potential is asked about, with beginnings of these. Give some that matter
            to it.
        vocabulary: the tokens that a constraint is walked over, such as
            ``engine.tokenization.vocabulary``; None for bytes and a few longer tokens.
        seed: of the random choices.

    Raises:
        PotentialError: naming the law, the text and the values.
        TypeError: for what is no potential.

    >>> check_potential(regex("[0-9]+") * reward(len, beta=0.1))
    >>> class Forgetful(TextPotential):
    ...     stage, asked = "block", 0
    ...     def log_potential(self, texts, complete):
    ...         self.asked += 1
    ...         return [self.asked] * len(texts)
    >>> check_potential(Forgetful())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    smcprog.errors.PotentialError: ... breaks the law that the same text has the same value: ...
    """
    rng = np.random.default_rng(seed)
    if isinstance(potential, Product):
        for factor in potential.factors:
            check_potential(factor, texts=texts, vocabulary=vocabulary, seed=seed)
    elif isinstance(potential, TextPotential):
        _check_value_semantics(potential)
        _TextLaws(potential, rng).check(texts)
    elif isinstance(potential, Constraint):
        _check_value_semantics(potential)
        used = _small_vocabulary() if vocabulary is None else vocabulary
        for _ in range(_WALKS):
            _Walk(potential, used, rng).check()
    elif not isinstance(potential, LM):
        raise TypeError(f"check_potential() takes a potential, not {potential!r:.80}")


def _broken(potential: Potential, law: str, found: str) -> PotentialError:
    return PotentialError(f"{potential!r} breaks the law that {law}: {found}")


def _check_value_semantics(potential: Potential) -> None:
    law = "a potential is a value, which can be a key of a dict"
    try:
        same = {potential: True}.get(potential)
    except TypeError as error:
        raise _broken(potential, law, f"{error}; make it a frozen dataclass") from error
    if not same:
        raise _broken(potential, law, "it is not equal to itself, or its hash changes")


class _TextLaws:
    def __init__(self, potential: TextPotential, rng: np.random.Generator) -> None:
        self._potential = potential
        self._rng = rng
        self._known: dict[tuple[str, tuple[int, ...], bool], float] = {}

    def check(self, texts: Sequence[str]) -> None:
        whole = [_drawn(text) for text in texts]
        self._values(whole, complete=True)
        for text in whole:
            self._values([text], complete=True)
            self._way_to(text)
        self._values(whole[::-1], complete=True)
        if not self._potential.reads_tokens:
            for text in whole:
                self._same(text, Text(text, text.stop, 0.0, (0,)), complete=True)

    def _way_to(self, text: Text) -> None:
        """Charge new - old of growing beginnings, then of the text itself."""
        ends = []
        if self._potential.stage == "block":
            ends = sorted({int(end) for end in self._rng.integers(0, len(text) + 1, size=6)})
        charged = 0.0
        for end in ends:
            (new,) = self._values([_drawn(text[:end])], complete=False)
            if charged > -np.inf:
                charged += new - charged
            elif new > -np.inf:
                raise self._revived(text[:end], new)
        (value,) = self._values([text], complete=True)
        if charged == -np.inf and value > -np.inf:
            raise self._revived(text, value)

    def _revived(self, text: str, value: float) -> PotentialError:
        law = "-inf is final, so that the increments add up to the value of the complete text"
        return _broken(
            self._potential,
            law,
            f"a beginning of {text!r} has -inf, and it has {value}; return -inf only where no "
            'continuation can have weight, or judge at stage "end"',
        )

    def _same(self, text: Text, other: Text, complete: bool) -> None:
        (one,) = self._values([text], complete)
        (two,) = self._raw([other], complete)
        if one != two:
            raise _broken(
                self._potential,
                "a value depends on the characters alone",
                f"{text!r} has {one} and {two} with other tokens; say reads_tokens = True",
            )

    def _values(self, texts: Sequence[Text], complete: bool) -> list[float]:
        values = self._raw(texts, complete)
        for text, value in zip(texts, values, strict=True):
            known = self._known.setdefault((text, text.tokens, complete), value)
            if known != value and not np.isclose(known, value, rtol=1e-6, atol=1e-6):
                raise _broken(
                    self._potential,
                    "the same text has the same value",
                    f"{str(text)!r} had {known} and has {value}, asked among {len(texts)} texts; "
                    "it may not depend on the other texts, on what was asked before, or on chance",
                )
        return values

    def _raw(self, texts: Sequence[Text], complete: bool) -> list[float]:
        values = np.asarray(self._potential.log_potential(texts, complete), dtype=np.float64)
        if values.shape != (len(texts),):
            raise _broken(
                self._potential,
                "there is one log weight for each text",
                f"an array of shape {values.shape} for {len(texts)} texts",
            )
        for text, value in zip(texts, values, strict=True):
            if np.isnan(value) or value == np.inf:
                law = "a log weight is finite or -inf"
                raise _broken(self._potential, law, f"{value} for {str(text)!r}")
        return list(values.tolist())


def _drawn(text: str) -> Text:
    """A text with its bytes for tokens."""
    return Text(text, None, 0.0, tuple(text.encode()))


class _Walk:
    """One random text that a constraint allows, checked at each token."""

    def __init__(
        self, constraint: Constraint, vocabulary: Vocabulary, rng: np.random.Generator
    ) -> None:
        self._constraint = constraint
        self._vocabulary = vocabulary
        self._rng = rng
        self._matcher = constraint.start(vocabulary)
        self._bytes = constraint.start(BYTES)
        self._ordinary = unpack(vocabulary.ordinary, vocabulary.size)
        self._data = b""

    def check(self) -> None:
        for _ in range(_STEPS):
            mask = self._matcher.mask().copy()
            allowed = unpack(mask, self._vocabulary.size)
            self._check_step(mask, allowed)
            if not allowed.any():
                return
            before = self._matcher.fork()
            token = int(self._rng.choice(np.flatnonzero(allowed)))
            self._matcher.advance(token)
            self._check_untouched(before, mask, "its fork was advanced")
            _feed(self._bytes, self._vocabulary.tokens[token])
            self._data += self._vocabulary.tokens[token]

    def _check_step(self, mask: Bits, allowed: np.ndarray) -> None:
        if (allowed & ~self._ordinary).any():
            token = int(np.flatnonzero(allowed & ~self._ordinary)[0])
            raise self._broken("control ids are never allowed", f"id {token} is")
        accepts = self._matcher.accepts()
        if accepts != self._bytes.accepts():
            raise self._broken(
                "what is accepted does not depend on the tokens",
                f"accepts() is {accepts}, and {not accepts} over single bytes",
            )
        for token in self._some(allowed):
            fork = self._matcher.fork()
            taken = fork.advance(token)
            self._check_untouched(self._matcher, mask, "a fork of it was advanced")
            if not taken:
                raise self._token("advance() takes what the mask allows", token)
            if not (fork.mask().any() or fork.accepts()):
                raise self._token("what the mask allows can be continued or ends the text", token)
            if not _feed(self._bytes.fork(), self._vocabulary.tokens[token]):
                raise self._token("the mask forbids what has weight zero", token)
        for token in self._some(self._ordinary & ~allowed):
            if self._matcher.fork().advance(token):
                raise self._token("advance() refuses what the mask forbids", token)
            if _feed(self._bytes.fork(), self._vocabulary.tokens[token]):
                raise self._token("the mask forbids nothing but what has weight zero", token)
        self._check_untouched(self._matcher, mask, "a fork of it was advanced")

    def _check_untouched(self, matcher: Matcher, mask: Bits, why: str) -> None:
        if not np.array_equal(matcher.mask(), mask):
            raise self._broken("forks share nothing", f"its mask changed when {why}")

    def _some(self, tokens: np.ndarray) -> Iterator[int]:
        ids = np.flatnonzero(tokens)
        if len(ids) > _TOKENS:
            ids = self._rng.choice(ids, size=_TOKENS, replace=False)
        yield from ids.tolist()

    def _token(self, law: str, token: int) -> PotentialError:
        return self._broken(law, f"token {self._vocabulary.tokens[token]!r} (id {token})")

    def _broken(self, law: str, found: str) -> PotentialError:
        return _broken(self._constraint, law, f"{found}, after {self._data!r}")


def _feed(matcher: Matcher, data: bytes) -> bool:
    """Advance a matcher of single bytes; whether it is still viable."""
    return all(matcher.advance(byte) for byte in data)


def _small_vocabulary() -> Vocabulary:
    longer = [b"yes", b"no", b" the", b"12", b'{"', b'":', b"}\n", "é☕".encode(), b" 1 +"]
    tokens = [*(bytes([i]) for i in range(256)), *longer, b"<eos>"]
    return Vocabulary(tokens, eos_ids=[len(tokens) - 1])
