"""Potentials of genlm-control as factors of a `gen`.

A potential there weights a sequence of symbols in two ways: exp(complete(x)) as a whole and
exp(prefix(x)) as the beginning of one. Prefix weights are charged round by round as new - old, so
that they telescope, and the charge of the complete text brings the sum to exactly complete(x).

genlm-control is imported when `from_genlm` is called: that takes seconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from smcprog.errors import PotentialError, VocabularyError
from smcprog.potentials.base import TextPotential
from smcprog.text import Text
from smcprog.vocabulary import Vocabulary


def import_genlm() -> ModuleType:
    """The package ``genlm.control``.

    Raises:
        ImportError: where it cannot be imported; it says how to install it.
    """
    try:
        import genlm.control
    except ImportError as error:
        raise ImportError(
            f'genlm-control cannot be imported ({error}): pip install "smcprog[genlm]"'
        ) from error
    return genlm.control


@dataclass(frozen=True, eq=False)
class FromGenlm(TextPotential):
    """A potential over bytes or characters; see `from_genlm`. Equal where it holds the same one."""

    potential: Any
    every: Literal["block", "end"] = "block"

    @property
    def stage(self) -> Literal["block", "end"]:
        return self.every

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FromGenlm)
            and self.potential is other.potential
            and self.every == other.every
        )

    def __hash__(self) -> int:
        return hash((id(self.potential), self.every))

    def __repr__(self) -> str:
        # Its own may be a whole automaton.
        every = "" if self.every == "block" else f", every={self.every!r}"
        return f"from_genlm(<{type(self.potential).__name__}>{every})"

    def log_potential(self, texts: Sequence[Text], complete: bool) -> NDArray[np.float64]:
        """``complete`` or ``prefix`` of each text, by one batched call.

        Raises:
            PotentialError: if the potential raises, or gives no number below +inf for each text.
        """
        contexts = [self._context(text, complete) for text in texts]
        readable = [i for i, context in enumerate(contexts) if context is not None]
        values = np.full(len(texts), -np.inf)
        if readable:
            asked = [texts[i] for i in readable]
            values[readable] = self._weights([contexts[i] for i in readable], asked, complete)
        return values

    def _context(self, text: Text, complete: bool) -> list[Any] | None:
        """The text as the potential reads it, or None: what holds a symbol from outside its
        vocabulary has weight zero."""
        kind = self.potential.token_type.type
        symbols: list[Any] = list(text) if kind is str else list(text.encode())
        if kind is bytes:
            symbols = [bytes([byte]) for byte in symbols]
        return symbols if all(symbol in self.potential.lookup for symbol in symbols) else None

    def _weights(
        self, contexts: list[Any], texts: Sequence[Text], complete: bool
    ) -> NDArray[np.float64]:
        from genlm.control.util import to_numpy

        method = "batch_complete" if complete else "batch_prefix"
        shown = f"{texts[0]!r}"
        if len(texts) > 1:
            shown = f"{len(texts)} texts, the first of them {shown}"
        try:
            weights = run_in_loop(getattr(self.potential, method)(contexts))
            values = np.asarray(to_numpy(weights), dtype=np.float64)
        except Exception as error:
            raise PotentialError(f"{method} of {self!r} raised {error!r} for {shown}") from error
        if values.shape != (len(texts),):
            raise PotentialError(
                f"{method} of {self!r} returned an array of shape {values.shape} for {shown}; it "
                "must return one log weight for each context"
            )
        for text, value in zip(texts, values, strict=True):
            if np.isnan(value) or value == np.inf:
                raise PotentialError(f"{method} of {self!r} returned {value} for {text!r}")
        return values


class FromGenlmTokens(FromGenlm):
    """A potential over the tokens of a language model (`Token` objects, which carry their ids)."""

    reads_tokens: ClassVar[bool] = True

    def _context(self, text: Text, complete: bool) -> list[Any] | None:
        """The drawn tokens that lie wholly within the text.

        Where the stop of a complete text begins inside a token, the bytes before it are spelled by
        the longest tokens of the vocabulary.

        Raises:
            PotentialError: if these tokens spell another text in the potential's vocabulary.
        """
        drawn = self._known(text.tokens)
        unknown = len(text.tokens) - len(drawn)
        data = b"".join(drawn)
        whole = _bytes_of(text, data)
        if not (data.startswith(whole) or (unknown and whole.startswith(data))):
            raise PotentialError(
                f"{self!r} reads the tokens of {text!r} as {data!r}: its vocabulary is another "
                "model's. Coerce it to the engine's own: "
                'p.coerce(to_genlm(lm, engine), f=b"".join)'
            )
        # The one token that the potential does not have may be where the stop begins and ends.
        crossing = complete and unknown == 1 and isinstance(text.stop, str)
        if len(data) < len(whole) and not crossing:
            return None
        kept: list[Any] = []
        at = 0
        for token in drawn:
            if at + len(token) > len(whole):
                break
            kept.append(token)
            at += len(token)
        if not complete:
            return kept
        try:
            rest = self._spelling.encode(whole[at:])
        except VocabularyError:
            return None
        return kept + [self.potential.vocab[place] for place in rest]

    def _known(self, ids: Sequence[int]) -> list[Any]:
        """The potential's tokens of these ids, up to the first that it does not have."""
        vocab, lookup = self.potential.vocab, self.potential.lookup
        known: list[Any] = []
        for i in ids:
            place = lookup.get(type(vocab[0])(i, b""))  # a Token equals the other of its id
            if place is None:
                break
            known.append(vocab[place])
        return known

    @cached_property
    def _spelling(self) -> Vocabulary:
        """The potential's tokens, numbered by their place in its vocabulary."""
        return Vocabulary([token.byte_string for token in self.potential.vocab])


def from_genlm(potential: Any, *, every: Literal["block", "end"] = "block") -> FromGenlm:
    """Multiply the target by exp(complete(text)) of a potential of genlm-control.

    Args:
        potential: over bytes (``BoolFSA``, ``BoolCFG``, ``WFSA``, ``WCFG``, ``JsonSchema``, their
            products, ...), over single characters, or over a language model's tokens (coerced to
            ``to_genlm(lm, engine)``, or a ``PromptedLLM`` of the same tokenizer). It is asked by
            one batched call for all particles, and driven in an event loop of one background
            thread.
        every: "block" weights what is there after each round by ``prefix``, as a ratio of new to
            old, so that resampling sees it. "end" weights the complete text alone.

    A symbol from outside the potential's vocabulary has weight zero. Bytes and characters are those
    of the text that `gen` returns: what is no UTF-8 reads as U+FFFD.

    Raises:
        ImportError: where genlm-control is not installed.
        TypeError: for anything but a potential of genlm-control.
        PotentialError: for symbols that are neither bytes, characters nor tokens; when it is
            evaluated, if it raises or gives no log weight.

    >>> from genlm.control import BoolFSA
    >>> small = from_genlm(BoolFSA.from_regex(" [1-3]"))
    >>> @smc_program
    ... def stars():
    ...     prompt("Review: Great phone\\nSentiment: negative\\nStars:")
    ...     return gen(regex(" [1-5]+"), small)
    >>> engine.run(stars(), particles=32, seed=0).best in (" 1", " 2", " 3")
    True
    """
    genlm = import_genlm()
    if not isinstance(potential, genlm.Potential):
        raise TypeError(
            f"from_genlm() takes a potential of genlm-control, not {type(potential).__name__}"
        )
    if every not in ("block", "end"):
        raise ValueError(f'from_genlm(every={every!r}): say "block" or "end"')
    return _reader(potential)(potential, every)


def _reader(potential: Any) -> type[FromGenlm]:
    from genlm.backend.tokenization import Token

    kind = getattr(potential.token_type, "type", None)
    vocab = potential.vocab
    if kind is Token:
        return FromGenlmTokens
    if kind is int and all(0 <= symbol < 256 for symbol in vocab):
        return FromGenlm
    if kind in (bytes, str) and all(len(symbol) == 1 for symbol in vocab):
        return FromGenlm
    raise PotentialError(
        f"from_genlm() cannot read the symbols of {type(potential).__name__}, such as "
        f"{vocab[0]!r}: they are neither single bytes, nor single characters, nor tokens with ids. "
        "Build it over the tokens of the engine, to_genlm(lm, engine).vocab, or over bytes"
    )


def _bytes_of(text: Text, data: bytes) -> bytes:
    """The bytes of a text, given those of its tokens (what is no UTF-8 has become U+FFFD)."""
    whole = text.encode()
    if data.startswith(whole) or "\ufffd" not in text:
        return whole
    prefixes = (data[:end] for end in range(len(data), -1, -1))
    return next((p for p in prefixes if p.decode(errors="replace") == text), whole)


# Driving coroutines. Potentials may hold what belongs to one event loop (a batcher, a running
# parser), and the caller may itself be inside a loop (Jupyter is): so they all share one loop.

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_thread: threading.Thread | None = None


def run_in_loop(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine, awaited in the background thread's event loop under the caller's
    context variables.

    Raises:
        PotentialError: from within that loop, where waiting would wait for ever.
    """
    global _loop, _thread
    with _lock:
        if _thread is None or not _thread.is_alive():  # a forked process has no threads
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_loop.run_forever, name="genlm", daemon=True)
            _thread.start()
    if threading.current_thread() is _thread:
        coroutine.close()
        raise PotentialError(
            "a potential of genlm-control that is made of ours cannot hold another from_genlm(): "
            "multiply the two in genlm-control instead"
        )
    assert _loop is not None
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop)
    try:
        return future.result()
    finally:
        future.cancel()  # an interrupt leaves nothing running
