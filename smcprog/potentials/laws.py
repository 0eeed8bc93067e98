"""The laws of potentials, checked on sample texts: `check_potential`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from smcprog.errors import GrammarError, PotentialError
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
_BEGINNINGS = 32  # of each text, that a text potential is asked about
_ALONE = 4  # of these, asked about one by one
_WALKS = 8  # random texts of a constraint
_STEPS = 24  # tokens of each
_TOKENS = 64  # tokens that are tried at each step, of those allowed and of those forbidden
_STOPS = ((), ("\n", "a."), ("1",))  # what a constraint is followed by


def check_potential(
    potential: Potential,
    *,
    texts: Sequence[str] = SAMPLES,
    vocabulary: Vocabulary | None = None,
    seed: int = 0,
) -> None:
    """Check the laws that inference relies on, on samples; a violation is an error that shows it.

    A `TextPotential` gives one log weight for each text (none for none), -inf or finite; the same
    for the same text, whatever is asked beside it or was asked before; by its characters alone, or
    with the tokens where it says that it ``reads_tokens``. Along every way to a complete text its
    increments add up to its value of that text: -inf is final.

    The `Matcher` of a `Constraint` allows a token exactly where its bytes can be continued to an
    accepted text: where `advance` takes it, and where the same constraint over single bytes does.
    It accepts what that one accepts, never allows control ids, and shares nothing with its forks.
    ``followed_by`` stop strings it is the matcher of the texts that go on with one of them, and
    then in any way; a constraint may refuse such strings with a `GrammarError`.

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
        for stops in _STOPS:
            for _ in range(_WALKS):
                _Walk(potential, used, stops, rng).check()
    elif not isinstance(potential, LM):
        raise TypeError(f"check_potential() takes a potential, not {potential!r:.80}")


def _broken(potential: Potential, law: str, found: str) -> PotentialError:
    return PotentialError(f"{potential!r} breaks the law that {law}: {found}")


def _check_value_semantics(potential: Potential) -> None:
    law = "a potential is a value, which can be a key of a dict"
    try:
        # A dict takes what is identical for equal, so both are asked.
        same = bool(potential == potential) and {potential: True}.get(potential)
    except (TypeError, ValueError) as error:
        raise _broken(potential, law, f"{error}; make it a frozen dataclass") from error
    if not same:
        raise _broken(potential, law, "it is not equal to itself, or its hash changes")


class _TextLaws:
    def __init__(self, potential: TextPotential, rng: np.random.Generator) -> None:
        self._potential = potential
        self._rng = rng
        self._known: dict[tuple[str, tuple[int, ...], bool], float] = {}

    def check(self, texts: Sequence[str]) -> None:
        self._group([_drawn(text) for text in texts], complete=True)
        if self._potential.stage == "block":
            for text in texts:
                beginnings = self._beginnings(text)
                prefix = self._group(beginnings, complete=False)
                self._way(beginnings, prefix, self._group(beginnings, complete=True))

    def _group(self, texts: list[Text], complete: bool) -> list[float]:
        """Their values, which are the same in another order and alone."""
        self._values([], complete)
        values = self._values(texts, complete)
        self._values(texts[::-1], complete)
        for i in self._rng.permutation(len(texts))[:_ALONE].tolist():
            self._values([texts[i]], complete)
            self._by_characters(texts[i], values[i], complete)
        return values

    def _beginnings(self, text: str) -> list[Text]:
        """Growing, and at last the text itself; of a long text some."""
        ends = np.arange(len(text) + 1)
        if len(ends) > _BEGINNINGS:
            ends = np.unique([*self._rng.choice(ends, _BEGINNINGS, replace=False), len(text)])
        return [_drawn(text[:end]) for end in ends.tolist()]

    def _way(self, texts: list[Text], prefix: list[float], complete: list[float]) -> None:
        """Charge new - old of growing beginnings: -inf stays, wherever the text ends."""
        charged = 0.0
        for text, new, value in zip(texts, prefix, complete, strict=True):
            charged = new if charged > -np.inf else charged
            if charged == -np.inf and max(new, value) > -np.inf:
                raise self._revived(text, max(new, value))

    def _revived(self, text: str, value: float) -> PotentialError:
        law = "-inf is final, so that the increments add up to the value of the complete text"
        return _broken(
            self._potential,
            law,
            f"a beginning of {text!r} has -inf, and it has {value}; return -inf only where no "
            'continuation can have weight, or judge at stage "end"',
        )

    def _by_characters(self, text: Text, value: float, complete: bool) -> None:
        """Texts that differ in nothing else are asked about once."""
        others = [(Text(text, "\n", -1.0, text.tokens), "another stop and logprob: use neither")]
        if not self._potential.reads_tokens:
            tokens = Text(text, text.stop, text.logprob, (0, *text.tokens))
            others.append((tokens, "other tokens; say reads_tokens = True"))
        for other, how in others:
            (found,) = self._raw([other], complete)
            if not _equal(value, found):
                raise _broken(
                    self._potential,
                    "a value depends on the characters alone",
                    f"{str(text)!r} has {value}, and {found} with {how}",
                )

    def _values(self, texts: Sequence[Text], complete: bool) -> list[float]:
        values = self._raw(texts, complete)
        for text, value in zip(texts, values, strict=True):
            known = self._known.setdefault((text, text.tokens, complete), value)
            if not _equal(known, value):
                raise _broken(
                    self._potential,
                    "the same text has the same value",
                    f"{str(text)!r} had {known} and has {value}, asked among {len(texts)} texts; "
                    "it may not depend on the other texts, on what was asked before, or on chance",
                )
        return values

    def _raw(self, texts: Sequence[Text], complete: bool) -> list[float]:
        law = "there is one log weight for each text"
        given = self._potential.log_potential(texts, complete)
        try:
            values = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise _broken(self._potential, law, f"{given!r:.100} is no array: {error}") from error
        if values.shape != (len(texts),):
            found = f"an array of shape {values.shape} for {len(texts)} texts"
            raise _broken(self._potential, law, found)
        for text, value in zip(texts, values, strict=True):
            if np.isnan(value) or value == np.inf:
                law = "a log weight is finite or -inf"
                raise _broken(self._potential, law, f"{value} for {str(text)!r}")
        return list(values.tolist())


def _equal(one: float, other: float) -> bool:
    """But for the rounding of a model that judges texts in batches."""
    return one == other or bool(np.isclose(one, other, rtol=1e-6, atol=1e-6))


def _drawn(text: str) -> Text:
    """A text with its bytes for tokens."""
    return Text(text, None, 0.0, tuple(text.encode()))


class _Walk:
    """One random text that a constraint allows, checked at each token."""

    def __init__(
        self,
        constraint: Constraint,
        vocabulary: Vocabulary,
        stops: tuple[str, ...],
        rng: np.random.Generator,
    ) -> None:
        self._constraint = constraint
        self._vocabulary = vocabulary
        self._stops = stops
        self._rng = rng
        self._bytes: _Bytes = _Followed(constraint, stops) if stops else constraint.start(BYTES)
        self._ordinary = unpack(vocabulary.ordinary, vocabulary.size)
        self._data = b""

    def check(self) -> None:
        try:
            self._matcher = self._constraint.start(self._vocabulary, self._stops)
        except GrammarError:
            if self._stops:
                return
            raise
        for _ in range(_STEPS):
            mask = self._matcher.mask().copy()
            words = self._vocabulary.words
            if mask.dtype != np.uint32 or mask.shape != (words,):
                found = f"{mask.dtype}{list(mask.shape)}"
                raise self._broken(f"a mask is uint32[{words}], a bit for each token", found)
            allowed = unpack(mask, self._vocabulary.size)
            self._check_step(mask, allowed)
            if not allowed.any() or (self._stops and self._matcher.accepts()):
                return  # beyond a stop anything follows
            before, accepts = self._matcher.fork(), self._matcher.accepts()
            token = int(self._rng.choice(np.flatnonzero(allowed)))
            self._matcher.advance(token)
            self._check_untouched(before, mask, accepts, "its fork was advanced")
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
        for i, token in enumerate(self._some(allowed)):
            fork = self._matcher.fork()
            taken = fork.advance(token)
            if i == 0:  # first of all, for what is shared would show as other laws broken
                self._check_untouched(self._matcher, mask, accepts, "a fork of it was advanced")
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
        self._check_untouched(self._matcher, mask, accepts, "forks of it were advanced")

    def _check_untouched(self, matcher: Matcher, mask: Bits, accepts: bool, why: str) -> None:
        if not np.array_equal(matcher.mask(), mask):
            raise self._broken("forks share nothing", f"its mask changed when {why}")
        if matcher.accepts() != accepts:
            raise self._broken("forks share nothing", f"its accepts() changed when {why}")

    def _some(self, tokens: np.ndarray) -> Iterator[int]:
        ids = np.flatnonzero(tokens)
        if len(ids) > _TOKENS:
            ids = self._rng.choice(ids, size=_TOKENS, replace=False)
        yield from ids.tolist()

    def _token(self, law: str, token: int) -> PotentialError:
        return self._broken(law, f"token {self._vocabulary.tokens[token]!r} (id {token})")

    def _broken(self, law: str, found: str) -> PotentialError:
        where = f", followed_by {self._stops}" if self._stops else ""
        return _broken(self._constraint, law, f"{found}, after {self._data!r}{where}")


class _Bytes(Protocol):
    """What decides, byte by byte, which texts are viable and which are accepted."""

    def advance(self, token: int) -> bool: ...

    def accepts(self) -> bool: ...

    def fork(self) -> _Bytes: ...


class _Followed:
    """R.(s1|..|sn).Sigma*, by a matcher of R over single bytes and the definition."""

    def __init__(self, constraint: Constraint, stops: tuple[str, ...]) -> None:
        self._matcher: Matcher | None = constraint.start(BYTES)
        self._stops = [stop.encode() for stop in stops]
        self._begun: list[bytes] = []
        self._done = False
        self._begin()

    def _begin(self) -> None:
        """Where the text so far is in R, a stop may begin."""
        if self._matcher is not None and self._matcher.accepts():
            self._begun.append(b"")

    def advance(self, token: int) -> bool:
        begun = [data + bytes([token]) for data in self._begun]
        self._done = self._done or any(data in self._stops for data in begun)
        self._begun = [d for d in begun if any(stop.startswith(d) for stop in self._stops)]
        if self._matcher is not None and not self._matcher.advance(token):
            self._matcher = None
        self._begin()
        return self._done or bool(self._begun) or self._matcher is not None

    def accepts(self) -> bool:
        return self._done

    def fork(self) -> _Followed:
        clone = object.__new__(_Followed)
        clone.__dict__.update(self.__dict__)
        clone._matcher = None if self._matcher is None else self._matcher.fork()
        return clone


def _feed(matcher: _Bytes, data: bytes) -> bool:
    """Advance a matcher of single bytes; whether it is still viable."""
    return all(matcher.advance(byte) for byte in data)


def _small_vocabulary() -> Vocabulary:
    longer = [b"yes", b"no", b" the", b"12", b'{"', b'":', b"}\n", "é☕".encode(), b" 1 +"]
    tokens = [*(bytes([i]) for i in range(256)), *longer, b"<eos>"]
    return Vocabulary(tokens, eos_ids=[len(tokens) - 1])
