"""One particle's `gen` in progress: which events may come next, and what ends the text.

The events of a step are the tokens that the mask allows and the stop events EOS and LEAVE where
they are allowed; a stop string is no event of its own but ends the text with the token that
completes it (DESIGN: section 2).
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from dataclasses import dataclass

import numpy as np

from smcprog.dsl.requests import Gen
from smcprog.inference.interface import EventSpace, eos_event, leave_event
from smcprog.potentials.base import LM, Constraint, Matcher
from smcprog.potentials.json_schema import JsonSchema
from smcprog.text import EOS, LEAVE, JsonText, Stop, Text
from smcprog.vocabulary import BYTES, Bits, Vocabulary


@dataclass(frozen=True)
class StopRule:
    """What may end a `gen`."""

    eos: bool
    leave: bool
    strings: tuple[bytes, ...]

    @classmethod
    def of(cls, request: Gen) -> StopRule:
        """The rule of a request, with the defaults: LEAVE under a constraint, EOS without."""
        constrained = bool(request.potential.constraints)
        stop = request.stop
        if stop is None:
            return cls(eos=not constrained, leave=constrained, strings=())
        return cls(
            eos=EOS in stop or (bool(stop) and not constrained),
            leave=LEAVE in stop,
            strings=tuple(s.encode() for s in stop if isinstance(s, str)),
        )


class Acceptance:
    """Which byte prefixes of a text belong to all of some constraints."""

    def __init__(self, constraints: tuple[Constraint, ...]) -> None:
        self._matchers = [constraint.start(BYTES) for constraint in constraints]
        self._viable = True
        self.prefixes = [self._accepts()]

    def _accepts(self) -> bool:
        return self._viable and all(matcher.accepts() for matcher in self._matchers)

    def advance(self, data: bytes) -> None:
        """Append bytes; ``prefixes[i]`` tells of the first i bytes."""
        for byte in data:
            self._viable = self._viable and all(m.advance(byte) for m in self._matchers)
            self.prefixes.append(self._accepts())

    def fork(self) -> Acceptance:
        clone = Acceptance(())
        clone._matchers = [matcher.fork() for matcher in self._matchers]
        clone._viable = self._viable
        clone.prefixes = list(self.prefixes)
        return clone


class Generation:
    """The state of one `gen`.

    Attributes:
        tokens: the drawn token ids.
        data: their bytes.
        ended: no further event can be drawn.
        dead: the text has weight zero, and ``death`` says why.
        truncated: the text was cut at its token budget although it could have gone on.
        stop: what ended it, as `Text.stop`.
        log_ps: log probability of the drawn events under each LM factor, float64[len(lms)].
        log_psi: the guess of the future log weight that has been charged, see `guide`.
        log_phi: the text potentials' last values, as charged so far, by their place in the product.
        prohibition: the constraint was left by a draw, and accepted everywhere on the way.
    """

    def __init__(self, request: Gen, vocabulary: Vocabulary) -> None:
        self.request = request
        self.rule = StopRule.of(request)
        self.tokens: list[int] = []
        self.data = b""
        self.ended = self.truncated = self.prohibition = False
        self.death = ""
        self.stop: Stop | None = None
        self.log_phi: dict[int, float] = {}
        lms = request.potential.lms
        self.log_ps = np.zeros(len(lms))
        self.log_psi = 0.0
        # What `Text.logprob` is under: `lm` itself where it takes part, else the first variant.
        self._reported = next((i for i, lm in enumerate(lms) if lm.variant == LM()), 0)
        self._vocabulary = vocabulary
        self._text_end: int | None = None
        constraints = request.potential.constraints
        strings = tuple(s.decode() for s in self.rule.strings)
        self._matchers: list[Matcher] = [c.start(vocabulary, strings) for c in constraints]
        # With stop strings the matchers follow R.(s1|..|sn).Sigma*; R itself is followed by bytes.
        self._acceptance = Acceptance(constraints) if constraints and strings else None
        self._accepted_everywhere = True
        self._settle()

    @property
    def dead(self) -> bool:
        """Whether the text has weight zero."""
        return bool(self.death)

    @property
    def log_p(self) -> float:
        """Log probability of the drawn events, as `Text.logprob` reports it."""
        return float(self.log_ps[self._reported])

    def guide(self) -> float:
        """log psi of the text so far: what turns the present exponent of a growing factor into its
        final one. 0 for a text that has ended, so that the target is what it was (a twist)."""
        if self.ended:
            return 0.0
        return sum(
            (lm.exponent(len(self.tokens)) - lm.alpha) * float(log_p)
            for lm, log_p in zip(self.request.potential.lms, self.log_ps, strict=True)
            if lm.over
        )

    @property
    def text(self) -> bytes:
        """The bytes before the stop."""
        return self.data[: self._text_end]

    @property
    def readable(self) -> str:
        """The text so far as a string; a character that is not complete yet is left out."""
        return getincrementaldecoder("utf-8")("replace").decode(self.text, final=self.ended)

    def as_text(self) -> Text:
        """The text so far, for the potentials that judge it and, in the end, for the program.

        What may yet turn out to be the beginning of a stop string is left out: a value of -inf
        there would kill a text that it is no part of.
        """
        data = self.text if self.ended else self.data[: len(self.data) - self._begun_stop()]
        text = getincrementaldecoder("utf-8")("replace").decode(data, final=self.ended)
        facts = (text, self.stop, self.log_p, tuple(self.tokens))
        constraints = self.request.potential.constraints
        schema = next((c for c in constraints if isinstance(c, JsonSchema)), None)
        return Text(*facts) if schema is None else JsonText(schema.parse, *facts)

    def _begun_stop(self) -> int:
        """The most bytes at the end that are the beginning of a stop string."""
        longest = max((len(stop) for stop in self.rule.strings), default=1)
        for length in range(min(longest - 1, len(self.data)), 0, -1):
            end = self.data[len(self.data) - length :]
            if any(len(stop) > length and stop.startswith(end) for stop in self.rule.strings):
                return length
        return 0

    @property
    def kept(self) -> bytes:
        """The bytes that the context keeps: the text, with ``keep_stop`` its stop string too."""
        if self.request.keep_stop and isinstance(self.stop, str):
            return self.text + self.stop.encode()
        return self.text

    @property
    def budget(self) -> int:
        """How many tokens may still be drawn."""
        return self.request.max_tokens - len(self.tokens)

    @property
    def constrained(self) -> bool:
        return bool(self._matchers)

    def space(self) -> EventSpace | None:
        """E(x), or None where the text has ended."""
        return None if self.ended else self._space

    def forced(self) -> int | None:
        """The only event of E(x), where there is exactly one."""
        if self.ended or not self.constrained:
            return None
        tokens = np.bitwise_count(self._space.mask).sum()
        if tokens + self._space.eos + self._space.leave != 1:
            return None
        if self._space.eos:
            return eos_event(self._vocabulary)
        if self._space.leave:
            return leave_event(self._vocabulary)
        word = int(np.flatnonzero(self._space.mask)[0])
        return 32 * word + int(self._space.mask[word]).bit_length() - 1

    def push(self, event: int) -> None:
        """Take a drawn event."""
        if event == eos_event(self._vocabulary):
            self._end(EOS)
        elif event == leave_event(self._vocabulary):
            self.prohibition = bool(self.tokens) and self._accepted_everywhere
            self._end(LEAVE)
        else:
            before = len(self.data)
            piece = self._vocabulary.tokens[event]
            self.tokens.append(event)
            self.data += piece
            if self._acceptance is not None:
                self._acceptance.advance(piece)
            found = self._stop_string(before)
            if found is not None:
                self._end(*found)
            elif all(matcher.advance(event) for matcher in self._matchers):
                self._settle()
            else:
                self._die("the constraint forbids the token")

    def fork(self) -> Generation:
        """An independent copy."""
        clone = object.__new__(Generation)
        clone.__dict__.update(self.__dict__)
        clone.tokens = list(self.tokens)
        clone.log_ps = self.log_ps.copy()
        clone.log_phi = dict(self.log_phi)
        clone._matchers = [matcher.fork() for matcher in self._matchers]
        if self._acceptance is not None:
            clone._acceptance = self._acceptance.fork()
        return clone

    def _accepting(self) -> bool:
        if self._acceptance is not None:
            return self._acceptance.prefixes[-1]
        return all(matcher.accepts() for matcher in self._matchers)

    def _settle(self) -> None:
        """After a token (or at the start): is the text complete, cut, or at a dead end?"""
        mask = self._mask()
        some = not self.constrained or bool(mask.any())
        accepting = self.constrained and self._accepting()
        self._accepted_everywhere = self._accepted_everywhere and accepting
        complete = accepting and not some
        self._space = EventSpace(
            mask,
            eos=self.rule.eos and (accepting or not self.constrained),
            leave=self.rule.leave and accepting,
        )
        if complete and (self.rule.leave or not self.rule.eos):
            self._end(LEAVE if self.rule.leave else None)
        elif self.budget == 0:
            self.truncated = not complete
            if self.constrained and not accepting:
                self._die(f"cut at max_tokens={self.request.max_tokens} before it was complete")
            else:
                self._end(None)
        elif not (some or self._space.eos or self._space.leave):
            self._die("no token can follow")

    def _mask(self) -> Bits:
        if not self._matchers:
            return self._vocabulary.ordinary
        mask = self._matchers[0].mask()
        for matcher in self._matchers[1:]:
            mask = mask & matcher.mask()
        return mask

    def _stop_string(self, before: int) -> tuple[str, int] | None:
        """The stop completed first in the bytes after ``before`` with the text before it in R,
        the longest of several that end together, and where it begins."""
        for end in range(before + 1, len(self.data) + 1):
            for stop in sorted(self.rule.strings, key=len, reverse=True):
                begin = end - len(stop)
                if begin < 0 or self.data[begin:end] != stop:
                    continue
                if self._acceptance is None or self._acceptance.prefixes[begin]:
                    return stop.decode(), begin
        return None

    def _end(self, stop: Stop | None, text_end: int | None = None) -> None:
        self.ended = True
        self.stop = stop
        self._text_end = text_end

    def _die(self, death: str) -> None:
        self.ended = True
        self.death = death
