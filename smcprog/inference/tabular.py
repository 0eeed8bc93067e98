"""An engine in NumPy whose models are functions from a context to a table of probabilities.

It implements the same interface as the device backend, exactly (float64), so that the loop can be
tested against enumeration, and taught.

    >>> engine = TabularEngine(["a", "b"], lambda context: [0.5, 0.25, 0.25])  # a, b, <eos>
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smcprog.errors import ContextLengthError, ModelError, NaNLogitsError, VocabularyError
from smcprog.inference.interface import (
    Drafted,
    EventSpace,
    Extension,
    Query,
    Row,
    Scored,
    Spaces,
    Verification,
)
from smcprog.inference.run import Runner
from smcprog.inference.weights import log_power, logsumexp
from smcprog.potentials.base import LM
from smcprog.text import Special
from smcprog.vocabulary import Vocabulary, unpack

Model = Callable[[tuple[int, ...]], ArrayLike]
"""Next-token probabilities, float64[V], of a context of token ids."""

LogP = NDArray[np.float64]


class TabularTokenization:
    """Greedy, byte-exact; contexts may be empty."""

    start_ids: tuple[int, ...] = ()
    empty_context_ids: tuple[int, ...] = ()

    def __init__(self, vocabulary: Vocabulary, specials: Mapping[str, int]) -> None:
        self.vocabulary = vocabulary
        self._specials = dict(specials)

    def encode(self, parts: Sequence[str], at_start: bool) -> list[int]:
        ids: list[int] = []
        for is_special, group in groupby(parts, lambda part: isinstance(part, Special)):
            if is_special:
                ids.extend(self._special(name) for name in group)
            else:
                ids.extend(self.encode_bytes("".join(group).encode()))
        return ids

    def _special(self, name: str) -> int:
        if name not in self._specials:
            raise VocabularyError(
                f"no special token {str(name)!r}; there are {sorted(self._specials)}"
            )
        return self._specials[name]

    def encode_bytes(self, data: bytes) -> list[int]:
        return self.vocabulary.encode(data)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        template_kwargs: Mapping[str, Any],
    ) -> list[str]:
        raise ModelError("a tabular engine has no chat template: use prompt()")


@dataclass(eq=False)
class TabularRow:
    """A token context."""

    tokens: list[int] = field(default_factory=list)
    copied: int = 0

    @property
    def length(self) -> int:
        return len(self.tokens)


class TabularEngine(Runner):
    """Models given as tables, in place of networks.

    Args:
        tokens: the ordinary tokens, ids 0, 1, ...
        target: next-token probabilities of a context, over ``tokens``, then ``eos``, then
            ``control``. They are normalised here.
        draft: the same for the draft. Everything it gives probability zero is never proposed, so
            it must cover the target. None for no draft.
        eos: names of the end tokens.
        control: names of further special tokens.
        context_limit: the longest context, tokens.
        others: the models that ``model(name)`` means, by name.

    >>> table = {(): [0.5, 0.25, 0.25]}  # a, b, <eos>; after a token the text ends
    >>> coin = TabularEngine(["a", "b"], lambda context: table.get(context, [0, 0, 1]))
    >>> @smc_program
    ... def letter():
    ...     return str(gen())
    >>> 0.4 < coin.run(letter(), particles=256, seed=0).marginal()["a"] < 0.6
    True
    """

    has_draft: bool

    def __init__(
        self,
        tokens: Sequence[str | bytes],
        target: Model,
        draft: Model | None = None,
        *,
        eos: Sequence[str] = ("<eos>",),
        control: Sequence[str] = (),
        context_limit: int | None = None,
        others: Mapping[str, Model] | None = None,
    ) -> None:
        ordinary = [t.encode() if isinstance(t, str) else t for t in tokens]
        names = [*eos, *control]
        ids = range(len(ordinary), len(ordinary) + len(names))
        vocabulary = Vocabulary([*ordinary, *(b"" for _ in names)], ids[: len(eos)], ids)
        self.tokenization = TabularTokenization(vocabulary, dict(zip(names, ids, strict=True)))
        self.has_draft = draft is not None
        self.context_limit = context_limit
        self._models: dict[str, Model] = {
            "target": target,
            **({} if draft is None else {"draft": draft}),
            **(others or {}),
        }
        # Particles come to the same contexts again and again.
        self._tables = lru_cache(maxsize=1 << 16)(self._log_p)
        self._rows: set[Row] = set()

    # Rows

    def has_room(self, lengths: Sequence[int]) -> bool:
        return True

    def open(self, token_ids: Sequence[int]) -> TabularRow:
        row = TabularRow(list(token_ids))
        self._check_length(row)
        self._rows.add(row)
        return row

    def fork(self, row: Row) -> TabularRow:
        return self.open(_tokens(row))

    def free(self, row: Row) -> None:
        self._rows.remove(row)

    def truncate(self, row: Row, length: int) -> None:
        del _tokens(row)[length:]

    def append(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> None:
        for row, ids in zip(rows, tokens, strict=True):
            _tokens(row).extend(ids)
            self._check_length(row)

    def _check_length(self, row: Row) -> None:
        if self.context_limit is not None and row.length > self.context_limit:
            raise ContextLengthError(
                f"a context of {row.length} tokens; the models read at most {self.context_limit}"
            )

    def kv_tokens(self, rows: Sequence[Row]) -> int:
        return len({tuple(_tokens(row)[: i + 1]) for row in rows for i in range(row.length)})

    # Models

    def extend(self, extensions: Sequence[Extension], spaces: Spaces) -> list[Drafted]:
        drafted = [Drafted([], []) for _ in extensions]
        last: list[int | None] = [None] * len(extensions)
        for k in range(max((e.steps for e in extensions), default=0)):
            step = spaces(k, last)
            last = [None] * len(extensions)
            for i, (extension, space) in enumerate(zip(extensions, step, strict=True)):
                if space is None or k >= extension.steps:
                    continue
                log_q = self._proposal(extension, space)
                if log_q is None:
                    continue
                event = extension.stream.choose(k, np.exp(log_q))
                last[i] = event
                drafted[i].events.append(event)
                drafted[i].log_q.append(float(log_q[event]))
                if k < extension.verified:
                    drafted[i].proposals.append(log_q)
                if event < self.tokenization.vocabulary.size:
                    _tokens(extension.row).append(event)
        return drafted

    def _proposal(self, extension: Extension, space: EventSpace) -> LogP | None:
        """log q~ of every event, float64[V + 2]; None where the draft gives none any mass."""
        context = tuple(_tokens(extension.row))
        log_q = self._tables("draft", context, LM(temperature=extension.temperature))
        log_e = self._collapse(log_q, space)
        if extension.draft_temperature == 0:
            best = np.full_like(log_e, -np.inf)
            best[np.argmax(log_e)] = 0.0
            return best if np.max(log_e) > -np.inf else None
        log_e = log_e * (extension.temperature / extension.draft_temperature)
        total = logsumexp(log_e)
        return None if total == -np.inf else log_e - total

    def score(self, queries: Sequence[Query]) -> list[Scored]:
        return [self._score(query) for query in queries]

    def _score(self, query: Query) -> Scored:
        size = self.tokenization.vocabulary.size
        drawn = sum(event < size for event in query.block)
        log_p = np.empty((len(query.lms), len(query.block)))
        for i, (row, lm) in enumerate(zip(query.rows, query.lms, strict=True)):
            for t, event in enumerate(query.block):
                table = self._table(_tokens(row)[: row.length - drawn + t], lm)
                if event < size:
                    log_p[i, t] = table[event]
                else:
                    assert query.spaces is not None
                    log_p[i, t] = self._collapse(table, query.spaces[t])[event]
        nothing, log_z = np.zeros(len(query.lms)), 0.0
        if query.verification is not None:
            assert query.spaces is not None
            check = query.verification
            for t, log_q in enumerate(check.proposals):
                at = check.first + t
                after = sum(event < size for event in query.block[at:])
                tables = self.factor_tables(query.rows, query.spaces[at], query.lms, after)
                log_pi = log_power(tables, query.lms)
                z = logsumexp(log_pi)
                log_z += z
                if z == -np.inf:
                    return Scored(log_p, None, nothing, log_z, at)
                replacement = rejected(log_pi - z, log_q, query.block[at], t, check)
                if replacement is not None:
                    return Scored(log_p, replacement, tables[:, replacement], log_z, at)
        kept = len(query.block)
        if query.bonus is None:
            return Scored(log_p, None, nothing, log_z, kept)
        tables = self.factor_tables(query.rows, query.bonus, query.lms)
        log_pi = log_power(tables, query.lms)
        z = logsumexp(log_pi)
        if z == -np.inf:
            return Scored(log_p, None, nothing, z, kept)
        assert query.stream is not None
        bonus = query.stream.choose(0, np.exp(log_pi - z))
        return Scored(log_p, bonus, tables[:, bonus], log_z + z, kept)

    def event_log_p(
        self, rows: Sequence[Row], spaces: Sequence[EventSpace], lm: LM
    ) -> NDArray[np.float64]:
        tables = [self._table(_tokens(row), lm) for row in rows]
        return np.stack([self._collapse(t, e) for t, e in zip(tables, spaces, strict=True)])

    def factor_tables(
        self, rows: Sequence[Row], space: EventSpace, lms: Sequence[LM], back: int = 0
    ) -> LogP:
        """log p_i of every event, of each factor after its row without the last ``back`` tokens:
        float64[len(lms), V + 2]."""
        tables = [
            self._table(_tokens(row)[: row.length - back], lm)
            for row, lm in zip(rows, lms, strict=True)
        ]
        return np.stack([self._collapse(table, space) for table in tables])

    def _table(self, context: Sequence[int], lm: LM) -> LogP:
        return self._tables(
            "target" if lm.source is None else lm.source, tuple(context), lm.variant
        )

    def _log_p(self, name: str, context: tuple[int, ...], lm: LM) -> LogP:
        """log p of the next token in a variant of a model, float64[V]; see `variant`."""
        model = self._models.get(name)
        if model is None:
            raise ModelError(
                f"this engine has no model {name!r}: TabularEngine(..., others={{...}})"
            )
        p = np.asarray(model(context), dtype=np.float64)
        if p.shape != (self.tokenization.vocabulary.size,):
            raise ModelError(
                f"the table of context {context} has shape {p.shape}; it needs one probability for "
                f"each of the {self.tokenization.vocabulary.size} tokens, end and control tokens "
                "included"
            )
        if not np.all(p >= 0) or not 0 < p.sum() < np.inf:
            raise NaNLogitsError(f"the table of context {context} is no distribution: {p}")
        with np.errstate(divide="ignore"):
            return variant(np.log(p / p.sum()), lm)

    def _collapse(self, log_p: LogP, space: EventSpace) -> LogP:
        """log p over events, float64[V + 2]: masked tokens, EOS, LEAVE."""
        vocabulary = self.tokenization.vocabulary
        allowed = unpack(space.mask, vocabulary.size)
        events = np.full(vocabulary.size + 2, -np.inf)
        events[: vocabulary.size][allowed] = log_p[allowed]
        eos = np.zeros(vocabulary.size, dtype=bool)
        if space.eos:
            eos[list(vocabulary.eos_ids)] = True
            events[vocabulary.size] = logsumexp(log_p[eos])
        if space.leave:
            events[vocabulary.size + 1] = logsumexp(log_p[~allowed & ~eos])
        return events


def rejected(
    log_pi: LogP, log_q: LogP, event: int, counter: int, check: Verification
) -> int | None:
    """What replaces a drafted event that rejection sampling does not keep; None where it stands."""
    accept = float(np.exp(min(0.0, log_pi[event] - log_q[event])))
    if check.accept.choose(counter, np.array([accept, 1.0 - accept])) == 0:
        return None
    residual = np.maximum(np.exp(log_pi) - np.exp(log_q), 0.0)
    return check.residual.choose(counter, residual) if residual.any() else None


def _tokens(row: Row) -> list[int]:
    assert isinstance(row, TabularRow)
    return row.tokens


def variant(log_p: LogP, lm: LM) -> LogP:
    """The locally normalised variant of a next-token distribution: temperature, top_k, top_p.

    Ties are broken by the lower id; the nucleus is the smallest set of mass >= top_p.
    """
    log_p = log_p / lm.temperature
    log_p = log_p - logsumexp(log_p)
    if lm.top_k is None and lm.top_p == 1.0:
        return log_p
    order = np.argsort(-log_p, kind="stable")[: lm.top_k]
    p = np.exp(log_p[order] - logsumexp(log_p[order]))
    order = order[np.cumsum(p) - p < lm.top_p]
    kept = np.full_like(log_p, -np.inf)
    kept[order] = log_p[order] - logsumexp(log_p[order])
    return kept
