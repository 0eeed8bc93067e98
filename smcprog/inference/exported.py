"""Our potentials as potentials of genlm-control, as `to_genlm` makes them.

Importing this module imports genlm-control. The laws are those of `genlm.control.Potential`:

    logw_next(x | xs) = prefix(xs + [x]) - prefix(xs)
    logw_next(EOS | xs) = complete(xs) - prefix(xs)
"""

from __future__ import annotations

from abc import abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from genlm.backend.tokenization import Token
from genlm.control import Potential as GenlmPotential
from numpy.typing import NDArray

from smcprog.errors import PotentialError
from smcprog.inference.interface import EngineInterface, EventSpace, Query, eos_event
from smcprog.inference.kept_rows import KEPT, Ids, Kept, KeptRows
from smcprog.inference.smc import evaluate, identity
from smcprog.inference.weights import zero_under_negative
from smcprog.potentials.base import LM, Constraint, Matcher, TextPotential
from smcprog.text import EOS, Text
from smcprog.vocabulary import Vocabulary, unpack

LogW = NDArray[np.float64]


class Words:
    """The ordinary tokens of a vocabulary as genlm-control wants them.

    One object for all potentials of an engine, so that their products need not compare them.

    Attributes:
        ids: int64[V], the ids of the tokens.
        tokens: their `Token` objects.
        tables: what genlm-control derives from these.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.ids = np.flatnonzero(unpack(vocabulary.ordinary, vocabulary.size))
        self.tokens = [Token(i, vocabulary.tokens[i]) for i in self.ids.tolist()]
        self.tables = GenlmPotential.build_tables(self.tokens)


_words: WeakKeyDictionary[Vocabulary, Words] = WeakKeyDictionary()


def _words_of(vocabulary: Vocabulary) -> Words:
    words = _words.get(vocabulary)
    if words is None:
        words = _words[vocabulary] = Words(vocabulary)
    return words


class Exported(GenlmPotential):
    """A potential over the ordinary tokens of an engine; contexts are lists of its `Token` objects.

    Subclasses weight batches of contexts, given as token ids.
    """

    def __init__(self, potential: Any, engine: EngineInterface) -> None:
        self._exported = potential
        self._engine = engine
        self._vocabulary = engine.tokenization.vocabulary
        self._words = _words_of(self._vocabulary)
        super().__init__(self._words.tokens, tables=self._words.tables)

    def __repr__(self) -> str:
        return f"to_genlm({self._exported!r})"

    @abstractmethod
    def prefix_weights(self, contexts: Sequence[Ids]) -> LogW:
        """The prefix weight of each context, float64[n]."""

    @abstractmethod
    def complete_weights(self, contexts: Sequence[Ids]) -> LogW:
        """The complete weight of each context, float64[n]."""

    @abstractmethod
    def next_weights(self, contexts: Sequence[Ids]) -> LogW:
        """The next-token weights of each context, float64[n, V + 1], EOS last.

        Raises:
            ValueError: if a context has prefix weight -inf.
        """

    def tokenize(self, text: str) -> list[Token]:
        """A context that spells a text, as the engine would tokenize it after the prompt."""
        ids = self._engine.tokenization.encode([text], at_start=False)
        return [self.vocab[self.lookup[Token(i, b"")]] for i in ids]

    async def prefix(self, context: list[Token]) -> float:
        return float(self.prefix_weights(self._ids([context]))[0])

    async def complete(self, context: list[Token]) -> float:
        return float(self.complete_weights(self._ids([context]))[0])

    async def logw_next(self, context: list[Token]) -> Any:
        return self.make_lazy_weights(self.next_weights(self._ids([context]))[0])

    async def logw_eos(self, context: list[Token]) -> float:
        return await self.complete(context) - await self.prefix(context)

    async def batch_prefix(self, contexts: list[list[Token]]) -> LogW:
        return self.prefix_weights(self._ids(contexts))

    async def batch_complete(self, contexts: list[list[Token]]) -> LogW:
        return self.complete_weights(self._ids(contexts))

    async def batch_logw_next(self, contexts: list[list[Token]]) -> Any:
        return self.make_lazy_weights(self.next_weights(self._ids(contexts)))

    def _ids(self, contexts: list[list[Token]]) -> list[Ids]:
        if not contexts:
            raise ValueError("Contexts must be non-empty.")
        try:
            return [tuple([token.token_id for token in context]) for context in contexts]
        except AttributeError as error:
            raise PotentialError(
                f"a context of {self!r} is a list of Token objects, from its .vocab or "
                f".tokenize(text); among the {len(contexts)} contexts is one that is not, the "
                f"first is {contexts[0]!r:.80}"
            ) from error


class ExportedLM(Exported):
    """p(x)^alpha after an opening: prefix(x) = alpha log p(x), complete(x) that + alpha log p(EOS).

    A power that grows has its present exponent in ``prefix``.
    """

    def __init__(self, lm: LM, engine: EngineInterface, opening: Sequence[int]) -> None:
        super().__init__(lm, engine)
        self._lm = lm
        self._rows = KeptRows(engine, opening)
        self._space = EventSpace(self._vocabulary.ordinary, eos=True)
        self._columns = np.append(self._words.ids, eos_event(self._vocabulary))

    def prefix_weights(self, contexts: Sequence[Ids]) -> LogW:
        exponents = np.array([self._lm.exponent(len(context)) for context in contexts])
        return self._power(self._log_p(contexts, end=False), exponents)

    def complete_weights(self, contexts: Sequence[Ids]) -> LogW:
        return self._power(self._log_p(contexts, end=True), np.array(self._lm.alpha))

    def next_weights(self, contexts: Sequence[Ids]) -> LogW:
        reads = self._rows.reach(contexts)
        rows = [read.row for read in reads.values()]
        tables = self._engine.event_log_p(rows, [self._space] * len(rows), self._lm.variant)
        place = {context: i for i, context in enumerate(reads)}
        log_p = tables[[place[context] for context in contexts]][:, self._columns]
        exponents = np.full(log_p.shape, self._lm.alpha)
        if not self._lm.over:
            return self._power(log_p, exponents)
        before = self._log_p(contexts, end=False)[:, None]
        if np.isneginf(before).any():
            raise _weightless(self)
        exponents[:, :-1] = [[self._lm.exponent(len(context) + 1)] for context in contexts]
        now = np.array([[self._lm.exponent(len(context))] for context in contexts])
        return self._power(log_p, exponents) + (exponents - now) * before

    def close(self) -> None:
        """Free the rows that are kept at the engine."""
        self._rows.close()

    async def cleanup(self) -> None:
        self.close()

    def _log_p(self, contexts: Sequence[Ids], end: bool) -> LogW:
        """log p of each context, with ``end`` that of EOS after it too: float64[n]."""
        reads = self._rows.reach(contexts)
        known = {context: self._rows.known(context) for context in reads}
        eos = (eos_event(self._vocabulary),) if end else ()
        blocks = {c: (*c[length:], *eos) for c, (length, _) in known.items()}
        queries = {
            c: Query([reads[c].row], block, [self._space] * len(block), (self._lm.variant,))
            for c, block in blocks.items()
            if block
        }
        scored = zip(queries, self._engine.score([*queries.values()]), strict=True)
        parts = {context: answer.log_p[0] for context, answer in scored}
        totals: dict[Ids, float] = {}
        for context, (length, log_p) in known.items():
            log_ps = parts.get(context, np.zeros(0))
            reads[context].log_p = log_p + float(log_ps[: len(context) - length].sum())
            totals[context] = log_p + float(log_ps.sum())
        return np.array([totals[context] for context in contexts])

    def _power(self, log_p: LogW, exponents: LogW) -> LogW:
        if self._lm.alpha < 0 and np.isneginf(log_p).any():
            raise zero_under_negative(self._lm)
        return exponents * log_p


class ExportedConstraint(Exported):
    """1 on the constraint's language: the weight of a prefix is 0 where it can go on, else -inf."""

    def __init__(self, constraint: Constraint, engine: EngineInterface) -> None:
        super().__init__(constraint, engine)
        self._kept: Kept[Matcher | None] = Kept()
        self._kept.states[()] = constraint.start(self._vocabulary)

    def prefix_weights(self, contexts: Sequence[Ids]) -> LogW:
        return _log([self._matcher(context) is not None for context in contexts])

    def complete_weights(self, contexts: Sequence[Ids]) -> LogW:
        matchers = [self._matcher(context) for context in contexts]
        return _log([matcher is not None and matcher.accepts() for matcher in matchers])

    def next_weights(self, contexts: Sequence[Ids]) -> LogW:
        allowed = np.zeros((len(contexts), len(self.vocab_eos)), dtype=bool)
        for row, context in zip(allowed, contexts, strict=True):
            matcher = self._matcher(context)
            if matcher is None:
                raise _weightless(self)
            row[:-1] = unpack(matcher.mask(), self._vocabulary.size)[self._words.ids]
            row[-1] = matcher.accepts()
        return _log(allowed)

    def _matcher(self, context: Ids) -> Matcher | None:
        """The constraint after a context; None where it forbids it."""
        beginning = self._kept.longest(context)
        matcher = self._kept.states[beginning]
        if beginning != context and matcher is not None:
            matcher = matcher.fork()
            if not all(matcher.advance(token) for token in context[len(beginning) :]):
                matcher = None
        self._kept.states[context] = matcher
        self._kept.evict(but=KEPT)
        return matcher


class ExportedText(Exported):
    """A text potential: ``complete`` is its value of a complete text, ``prefix`` that of one that
    goes on, or 0 where it judges complete texts alone. The texts have no log probability (0).

    Where it judges prefixes, ``logw_next`` asks for every token that may follow: a critic, which
    is asked for the drawn one alone, is cheaper.
    """

    def __init__(self, potential: TextPotential, engine: EngineInterface) -> None:
        super().__init__(potential, engine)
        self._potential = potential

    def is_terminal_only(self) -> bool:
        return self._potential.stage == "end"

    def prefix_weights(self, contexts: Sequence[Ids]) -> LogW:
        if self.is_terminal_only():
            return np.zeros(len(contexts))
        return self._weights(contexts, complete=False)

    def complete_weights(self, contexts: Sequence[Ids]) -> LogW:
        return self._weights(contexts, complete=True)

    def next_weights(self, contexts: Sequence[Ids]) -> LogW:
        now = self.prefix_weights(contexts)[:, None]
        if np.isneginf(now).any():
            raise _weightless(self)
        weights = np.zeros((len(contexts), len(self.vocab_eos)))
        if not self.is_terminal_only():
            tokens = self._words.ids.tolist()
            longer = [(*context, token) for context in contexts for token in tokens]
            weights[:, :-1] = self.prefix_weights(longer).reshape(len(contexts), -1)
        weights[:, -1] = self.complete_weights(contexts)
        return weights - now

    def _weights(self, contexts: Sequence[Ids], complete: bool) -> LogW:
        texts = [self._text(context, complete) for context in contexts]
        keys: list[Hashable] = [identity(self._potential, text) for text in texts]
        asked = dict(zip(keys, texts, strict=True))
        values = evaluate(self._potential, [*asked.values()], complete)
        known = dict(zip(asked, values, strict=True))
        return np.array([known[key] for key in keys])

    def _text(self, context: Ids, complete: bool) -> Text:
        data = self._vocabulary.decode(context)
        readable = getincrementaldecoder("utf-8")("replace").decode(data, final=complete)
        return Text(readable, EOS if complete else None, 0.0, context)


def _log(condition: Any) -> LogW:
    return np.where(condition, 0.0, -np.inf)


def _weightless(potential: Exported) -> ValueError:
    return ValueError(f"a context that has weight zero under {potential!r} has no next token")
