"""Token masks of a constraint along a text, computed by the llguidance library.

Its defaults serve a serving engine; three of them would make masks inexact here and are undone:

- it forces the canonical tokenization where the next bytes are certain: ``no_forcing``;
- it fails where no token of the vocabulary can go on: the bytes that occur in UTF-8 are added as
  further columns, so that it always finds one, and cut off from every mask;
- it has an end token: a further column of its own, cut off as well. Whether the text may end is
  `Matcher.accepts`.

Its lexemes are matched greedily, each as far as any of those that are expected can go. So a
constraint comes as ONE lexeme, or as a grammar that was written with that in mind
(`lark_translate`).
"""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from smcprog.errors import GrammarError
from smcprog.potentials.base import Constraint, Matcher
from smcprog.potentials.pattern import shortened
from smcprog.vocabulary import Bits, Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits

ANYTHING = r"~/[a&&b]/"
"""The lexeme of all byte strings, invalid UTF-8 included (the complement of nothing)."""

_COMPILED_PER_VOCABULARY = 256


class CompiledConstraint(Constraint):
    """A constraint that llguidance evaluates."""

    @abstractmethod
    def compiled(self, followed_by: tuple[str, ...]) -> str:
        """The grammar of R, or of R.(s1|..|sn).Sigma*, in llguidance's Lark dialect.

        Raises:
            GrammarError: if the constraint cannot be translated.
        """

    def start(self, vocabulary: Vocabulary, followed_by: tuple[str, ...] = ()) -> Matcher:
        """See `Constraint.start`. Compiled once per vocabulary, constraint and stop strings."""
        compiler = _compilers.get(vocabulary)
        if compiler is None:
            compiler = _compilers[vocabulary] = _Compiler(vocabulary)
        pristine = compiler.compiled(self, followed_by)
        return CompiledMatcher(pristine.deep_copy(), vocabulary, self, bool(followed_by))


class LexemeConstraint(CompiledConstraint):
    """A constraint that is one lexeme."""

    @abstractmethod
    def lexeme(self, followed_by: tuple[str, ...]) -> str:
        """The terminal of R, or of R.(s1|..|sn).Sigma*, in llguidance's Lark dialect."""

    def compiled(self, followed_by: tuple[str, ...]) -> str:
        return f"start: LEXEME\nLEXEME: {self.lexeme(followed_by)}"


class _Compiler:
    """The automata of one vocabulary. Holds no reference to it, so that both can be freed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from llguidance import LLTokenizer

        self._tokenizer = LLTokenizer(_TokenizerColumns(vocabulary))  # type: ignore[arg-type]
        self.compiled = lru_cache(_COMPILED_PER_VOCABULARY)(self._compile)

    def _compile(self, constraint: CompiledConstraint, followed_by: tuple[str, ...]) -> LLMatcher:
        from llguidance import LLMatcher

        grammar = f'%llguidance {{"no_forcing": true}}\n{constraint.compiled(followed_by)}'
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=_limits())
        if matcher.is_error():
            raise GrammarError(f"{constraint!r} cannot be compiled: {_reason(matcher)}")
        # The first mask belongs to every copy; and a language without a text shows here.
        matcher.compute_bitmask()
        if matcher.is_error():
            if matcher.get_error().startswith("NoExtensionBias"):
                raise GrammarError(f"{constraint!r} matches no text at all")
            raise _too_large(constraint, matcher)
        return matcher


def _limits() -> LLParserLimits:
    """An automaton is built as texts reach its states. These limits allow about 0.4 s of work for
    reading a constraint, and as much for one mask."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=20_000_000,
        step_lexer_fuel=5_000_000,
        max_items_in_row=10_000,
        step_max_items=1_000_000,
        max_grammar_size=5_000_000,
        verbose_errors=False,
    )


_compilers: WeakKeyDictionary[Vocabulary, _Compiler] = WeakKeyDictionary()


class _TokenizerColumns:
    """What llguidance asks of a tokenizer: ours, then the single bytes, then an end token."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = [*vocabulary.tokens, *(bytes([byte]) for byte in range(0xF5)), b""]
        self.eos_token_id = len(self.tokens) - 1

    def __call__(self, text: str) -> list[int]:
        raise AssertionError("nothing is forced, so nothing is tokenized")


class CompiledMatcher:
    """See `Matcher`. Masks are read-only arrays.

    ``open_ended``: the language ends in Sigma*, so that an accepted text may go on in any way.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        vocabulary: Vocabulary,
        constraint: CompiledConstraint,
        open_ended: bool,
    ) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._constraint = constraint
        self._open_ended = open_ended
        self._mask: Bits | None = None

    @property
    def _anything_follows(self) -> bool:
        return self._open_ended and self._matcher.is_accepting()

    def mask(self) -> Bits:
        if self._mask is None:
            self._mask = self._computed_mask()
        return self._mask

    def _computed_mask(self) -> Bits:
        if self._anything_follows:
            return self._vocabulary.ordinary
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        if self._matcher.is_error():
            raise _too_large(self._constraint, self._matcher)
        mask = bits[: self._vocabulary.words] & self._vocabulary.ordinary
        mask.flags.writeable = False
        return mask

    def advance(self, token: int) -> bool:
        # A token that it refuses would leave the automaton in an error, so the mask is asked.
        if not int(self.mask()[token // 32]) >> token % 32 & 1:
            return False
        # Where anything follows there is nothing to keep track of; and a token that begins with
        # the byte 0xFF, which no UTF-8 holds, would be taken for a special token.
        if not self._anything_follows:
            self._mask = None
            if not self._matcher.consume_token(token):
                raise _too_large(self._constraint, self._matcher)
        return True

    def accepts(self) -> bool:
        return self._matcher.is_accepting()

    def fork(self) -> CompiledMatcher:
        copy = CompiledMatcher(
            self._matcher.deep_copy(), self._vocabulary, self._constraint, self._open_ended
        )
        copy._mask = self._mask
        return copy


def _too_large(constraint: CompiledConstraint, matcher: LLMatcher) -> GrammarError:
    return GrammarError(
        f"{constraint!r} needs too large an automaton ({_reason(matcher)}); "
        "write it with fewer or smaller repeats"
    )


def _reason(matcher: LLMatcher) -> str:
    """What the library says, without its picture of the grammar, which the user has not written."""
    return shortened(matcher.get_error().split("\n")[0], 300)
