"""The engine: a target and a draft over one pool of pages.

Each call turns rows into one packed forward pass (`model.py`) and logits into events
(`sampling.py`). A pass feeds what its model has not yet written, however far it lags.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from smcprog.errors import ContextLengthError, ModelError
from smcprog.gpu import loading
from smcprog.gpu.draws import Draws
from smcprog.gpu.kernels import kernels_serve
from smcprog.gpu.kv_cache import PagedRow, PagePool, settle
from smcprog.gpu.loading import ModelSource
from smcprog.gpu.model import CausalLM, Feed
from smcprog.gpu.sampling import (
    EventTable,
    checked,
    draw,
    fit_width,
    most_probable,
    product_of_powers,
    residual,
    token_log_p,
    variant,
)
from smcprog.gpu.tokenization import HFTokenization
from smcprog.inference.interface import (
    Drafted,
    EventSpace,
    Extension,
    Query,
    Row,
    Scored,
    Spaces,
    Tokenization,
    Verification,
)
from smcprog.inference.run import Runner
from smcprog.inference.settings import checked_integer
from smcprog.potentials.base import LM

PAGE_SIZE = 16
TARGET, DRAFT = 0, 1

# Logits are widened and reduced this many at a time (32 MB in float32).
_LOGITS_AT_ONCE = 1 << 23


class Engine(Runner):
    """Two language models that extend and score token contexts together.

    Args:
        target: the model that defines the distribution: a folder, a hub name, or a
            ``(model, tokenizer)`` pair of transformers objects. None for the small pair that ships
            with the package.
        draft: a smaller model of the same vocabulary that proposes; None for none (or the shipped
            one, where ``target`` is None too).
        device: "auto" for CUDA where there is one, or a torch device.
        dtype: "auto" for the checkpoint's on CUDA and float32 on a CPU, or a torch dtype.
        kv_tokens: how many tokens of keys and values fit, in whole pages of 16; None grows on
            demand.

    Attributes:
        tokenizer: the target's Hugging Face tokenizer.
        tokenization: how text becomes tokens and back.
        context_limit: the longest context of the models, tokens; None for no limit.

    >>> engine = Engine()
    >>> engine.has_draft, engine.context_limit
    (True, 1024)
    >>> engine.tokenizer.decode(engine.tokenization.encode(["3 + 4 = 7"], at_start=True))
    '3 + 4 = 7'

    Raises:
        ModelError: if a model cannot be loaded or run over pages.
        VocabularyError: if draft and target do not share their vocabulary.
        ValueError: if ``kv_tokens`` is no positive integer.
    """

    tokenization: Tokenization

    def __init__(
        self,
        target: ModelSource | None = None,
        draft: ModelSource | None = None,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        kv_tokens: int | None = None,
    ) -> None:
        if target is None:
            target = loading.PAIR / "target"
            draft = loading.PAIR / "draft" if draft is None else draft
        self._device, self._dtype = device, dtype
        if kv_tokens is not None:
            kv_tokens = checked_integer("kv_tokens", kv_tokens, 1)
        pages = None if kv_tokens is None else -(-kv_tokens // PAGE_SIZE)
        self._pool = PagePool(0, pages, PAGE_SIZE)
        self._models: list[CausalLM] = []
        self._tables: list[EventTable] = []
        self._others: dict[Any, int] = {}
        self.context_limit: int | None = None
        loaded = [loading.load(one, device, dtype) for one in (target, draft) if one is not None]
        self.tokenizer: Any = loaded[TARGET].tokenizer
        if draft is not None:
            loading.check_vocabularies(self.tokenizer, loaded[DRAFT].tokenizer)
        for name, one in zip(("target", "draft"), loaded, strict=False):
            self._add(name, one)
        self.has_draft = draft is not None

    def _add(self, name: str, loaded: loading.Loaded) -> None:
        """Let a model run over the pages."""
        model = CausalLM(name, loaded.model, len(self._models), PAGE_SIZE)
        width = min(model.embeddings, model.vocabulary_size)
        loading.check_ids(name, loaded.tokenizer, width)
        if not self._models:
            self._size = model.vocabulary_size
            self.tokenization = HFTokenization(self.tokenizer, self._size, loading.end_ids(loaded))
        self._models.append(model)
        self._tables.append(EventTable(self.tokenization.vocabulary, model.device))
        self._pool.add_model()
        if self._pool.limit is not None:
            model.store.fix(self._pool.limit)
        limits = [m.context_limit for m in self._models if m.context_limit is not None]
        self.context_limit = min(limits, default=None)

    def _index_of(self, lm: LM) -> int:
        """The model that a factor names, loaded where it is new."""
        if lm.source is None:
            return TARGET
        if lm.source not in self._others:
            loaded = loading.load(lm.source, self._device, self._dtype)
            loading.check_vocabularies(self.tokenizer, loaded.tokenizer, f"{lm.variant!r}")
            self._add(repr(lm.variant), loaded)
            self._others[lm.source] = len(self._models) - 1
        return self._others[lm.source]

    def __repr__(self) -> str:
        """The models, and where they are."""
        return f"Engine({', '.join(map(repr, self._models))})"

    # Rows

    def has_room(self, lengths: Sequence[int]) -> bool:
        """Whether rows of these lengths fit with nothing shared, were there no others: always
        where ``kv_tokens`` fixed no number."""
        pages = sum(-(-length // PAGE_SIZE) for length in lengths)
        return self._pool.limit is None or pages <= self._pool.limit

    def open(self, token_ids: Sequence[int]) -> PagedRow:
        """A new row. Raises KVPoolError, ContextLengthError."""
        self._check_length(len(token_ids))
        return self._pool.open(token_ids)

    def fork(self, row: Row) -> PagedRow:
        """A row with the same tokens, sharing all pages."""
        return self._pool.fork(_paged(row))

    def free(self, row: Row) -> None:
        """Give the row's pages back."""
        self._pool.free(_paged(row))

    def truncate(self, row: Row, length: int) -> None:
        """Keep the first ``length`` tokens."""
        self._pool.truncate(_paged(row), length)

    def append(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> None:
        """Append forced tokens; the next pass of each model feeds them.

        Raises:
            KVPoolError, ContextLengthError: all rows are then as before.
        """
        for row, ids in zip(rows, tokens, strict=True):
            self._check_length(row.length + len(ids))
        self._pool.append([_paged(row) for row in rows], tokens)

    def kv_tokens(self, rows: Sequence[Row]) -> int:
        """Tokens of KV that these rows hold together, each shared page counted once."""
        return self._pool.held(_paged(row) for row in rows)

    def _check_length(self, length: int) -> None:
        if self.context_limit is not None and length > self.context_limit:
            raise ContextLengthError(
                f"a context of {length} tokens is longer than the model's limit of "
                f"{self.context_limit}; shorten the prompt, or lower max_tokens"
            )

    # Models

    @torch.inference_mode()
    def extend(self, extensions: Sequence[Extension], spaces: Spaces) -> list[Drafted]:
        """Draft. Token events are appended to the rows as they are drawn; stop events are not.

        Step k draws with the uniform of counter k. A row leaves when it draws a stop event, when
        ``spaces`` gives None, after its ``steps``, or where no event has mass under the draft.

        Raises NaNLogitsError, KVPoolError, ContextLengthError.
        """
        if not self.has_draft:
            raise ModelError("this engine has no draft model: use block=0, or give it a draft")
        drafted = [Drafted([], []) for _ in extensions]
        last: list[int | None] = [None] * len(extensions)
        live = {i for i, extension in enumerate(extensions) if extension.steps > 0}
        step = 0
        while live:
            allowed = spaces(step, last)
            last = [None] * len(extensions)
            drawing = [(i, space) for i in sorted(live) if (space := allowed[i]) is not None]
            live = set()
            if not drawing:
                break
            chosen = [extensions[i] for i, _ in drawing]
            draws, log_w = self._draft_step(chosen, [space for _, space in drawing], step)
            growing: list[tuple[Row, int]] = []
            step += 1
            for n, ((i, _), event, log_q, log_total) in enumerate(
                zip(drawing, *(column.tolist() for column in draws), strict=True)
            ):
                if log_total == -np.inf:
                    continue
                last[i] = event
                drafted[i].events.append(event)
                drafted[i].log_q.append(log_q)
                if log_w is not None and step <= extensions[i].verified:
                    drafted[i].proposals.append(log_w[n].double() - log_total)
                if event < self._size:
                    growing.append((extensions[i].row, event))
                    if step < extensions[i].steps:
                        live.add(i)
            self.append([row for row, _ in growing], [[token] for _, token in growing])
        return drafted

    def _draft_step(
        self, extensions: Sequence[Extension], spaces: Sequence[EventSpace], step: int
    ) -> tuple[Draws, Tensor | None]:
        """Draw one event for each row from q~(e) ~ q(e)^(T / T_d), and give its log weights where
        they are to be verified."""
        feeds = [_last_position(extension.row) for extension in extensions]
        logits = fit_width(torch.cat(list(self._run(DRAFT, feeds))), self._size)
        table = self._tables[DRAFT]
        greedy = [i for i, e in enumerate(extensions) if e.draft_temperature == 0]
        verified = any(step < e.verified for e in extensions)
        temperature = _doubles([e.temperature for e in extensions], logits.device)
        power = [e.temperature / (e.draft_temperature or 1) for e in extensions]
        if kernels_serve(logits) and not greedy and not verified:
            bits = [extension.stream.bits(step) for extension in extensions]
            powers = _doubles(power, logits.device)
            return table.sample(logits, spaces, temperature, powers, bits, "draft"), None
        logits = checked(logits, "draft")
        # q's own normaliser is the same for all events, so q~ needs no softmax before its own.
        log_w = table.collapse(logits / temperature.to(logits)[:, None], spaces)
        log_w *= _doubles(power, logits.device).to(logits)[:, None]
        if greedy:
            log_w[greedy] = most_probable(log_w[greedy])
        uniforms = [extension.stream.uniform(step) for extension in extensions]
        return draw(log_w, _doubles(uniforms, logits.device)), log_w

    @torch.inference_mode()
    def score(self, queries: Sequence[Query]) -> list[Scored]:
        """One pass of the target, and of each other model that a factor names. Appends nothing.

        Raises NaNLogitsError, WeightError, ModelError, VocabularyError.
        """
        scoring = _Scoring(queries, self._index_of, self._size, self._tables[TARGET])
        for index, passed in scoring.passes.items():
            start = 0
            for block in self._run(index, passed.feeds):
                for logits in block.split(max(1, _LOGITS_AT_ONCE // self._size)):
                    wide = fit_width(checked(logits, self._models[index].name), self._size)
                    scoring.read(passed, wide, start)
                    start += len(logits)
        return scoring.result()

    @torch.inference_mode()
    def event_log_p(
        self, rows: Sequence[Row], spaces: Sequence[EventSpace], lm: LM
    ) -> NDArray[np.float64]:
        """log p_i of every event that may follow each row, float64[len(rows), V + 2]; -inf for
        what is not in E. One target pass.

        Raises NaNLogitsError.
        """
        index = self._index_of(lm)
        name = self._models[index].name
        blocks = self._run(index, [_last_position(row) for row in rows])
        logits = torch.cat([fit_width(checked(block, name), self._size) for block in blocks])
        log_p = self._tables[TARGET].collapse(variant(logits, lm), spaces)
        return log_p.double().cpu().numpy()

    def _run(self, index: int, feeds: Sequence[Feed]) -> Iterator[Tensor]:
        settle(self._pool, [model.store for model in self._models])
        return self._models[index].run(self._pool, feeds)


@dataclass(frozen=True)
class _Reading:
    """One event of a query's block, under one of its factors."""

    position: int
    event: int
    query: int
    factor: int
    index: int
    space: EventSpace | None


@dataclass(frozen=True)
class _Draw:
    """Where whole rows of pi are needed: before event ``at`` of a query's block, to verify it, or
    to draw the bonus after the last."""

    query: int
    at: int


class _Drawn(NamedTuple):
    """An event drawn from pi or the residual, log p_i of it, log Z, and whether the drafted event
    stands."""

    event: int
    log_p: NDArray[np.float64]
    log_z: float
    stands: bool


class _Pass:
    """What one model is fed, and what is to be read off its packed logits."""

    def __init__(self) -> None:
        self.feeds: list[Feed] = []
        self.positions = 0
        self.readings: dict[LM, list[_Reading]] = defaultdict(list)
        self.draws: list[tuple[int, _Draw, list[int]]] = []  # position, what, factors

    def feed(self, row: PagedRow, first: int, positions: int) -> int:
        """Feed a row from ``first``; the place of its logits."""
        at = self.positions
        self.feeds.append(Feed(row, first, first + positions))
        self.positions += positions
        return at


class _Scoring:
    """The readings that the passes for some queries must make."""

    def __init__(
        self,
        queries: Sequence[Query],
        index_of: Callable[[LM], int],
        size: int,
        table: EventTable,
    ) -> None:
        self._queries = queries
        self._index_of = index_of
        self._size = size
        self._table = table
        self.passes: dict[int, _Pass] = defaultdict(_Pass)
        self._log_p = [np.zeros((len(q.lms), len(q.block))) for q in queries]
        # Logits of draws whose factors read several contexts, by factor.
        self._waiting: dict[_Draw, dict[int, Tensor]] = defaultdict(dict)
        self._drawn: dict[_Draw, _Drawn] = {}
        for number in range(len(queries)):
            self._enlist(number)

    def _enlist(self, number: int) -> None:
        """Note what to feed and read for one query."""
        query = self._queries[number]
        positions = len(query.block) + (query.bonus is not None)
        if positions == 0:
            return
        drawn = sum(event < self._size for event in query.block)
        contexts: dict[tuple[int, Row], list[int]] = defaultdict(list)
        for factor, (row, lm) in enumerate(zip(query.rows, query.lms, strict=True)):
            contexts[self._index_of(lm), row].append(factor)
        for (index, row), factors in contexts.items():
            first = row.length - drawn - 1
            if first < 0:
                raise ValueError("a row without context cannot be scored: open it with a BOS token")
            passed = self.passes[index]
            at = passed.feed(_paged(row), first, positions)
            for factor in factors:
                passed.readings[query.lms[factor].variant] += [
                    _Reading(
                        at + t, event, number, factor, t, query.spaces[t] if query.spaces else None
                    )
                    for t, event in enumerate(query.block)
                ]
            wanted = [] if query.bonus is None else [len(query.block)]
            if query.verification is not None:
                start = query.verification.first
                wanted += range(start, start + len(query.verification.proposals))
            passed.draws += [(at + t, _Draw(number, t), factors) for t in wanted]

    def read(self, passed: _Pass, logits: Tensor, start: int) -> None:
        """Make a pass's readings at positions ``start`` .. ``start`` + n - 1: logits [n, V]."""
        end = start + len(logits)
        for lm, readings in passed.readings.items():
            low = bisect_left(readings, start, key=lambda r: r.position)
            high = bisect_left(readings, end, key=lambda r: r.position)
            here = readings[low:high]
            self._read_tokens(logits, start, lm, [r for r in here if r.event < self._size])
            self._read_stops(logits, start, lm, [r for r in here if r.event >= self._size])
        ready: dict[tuple[LM, ...], list[tuple[int, _Draw]]] = defaultdict(list)
        for position, wanted, factors in passed.draws:
            if start <= position < end:
                lms = self._queries[wanted.query].lms
                if len(factors) == len(lms):
                    ready[lms].append((position - start, wanted))
                else:
                    row = logits[position - start].clone()
                    self._waiting[wanted].update(dict.fromkeys(factors, row))
        for lms, members in ready.items():
            rows = logits[torch.tensor([at for at, _ in members], device=logits.device)]
            self._draw(lms, [wanted for _, wanted in members], [rows] * len(lms))

    def _read_tokens(
        self, logits: Tensor, start: int, lm: LM, readings: Sequence[_Reading]
    ) -> None:
        if not readings:
            return
        rows = torch.tensor([r.position - start for r in readings], device=logits.device)
        tokens = torch.tensor([r.event for r in readings], device=logits.device)
        self._store(readings, token_log_p(logits, lm, rows, tokens))

    def _read_stops(self, logits: Tensor, start: int, lm: LM, readings: Sequence[_Reading]) -> None:
        if not readings:
            return
        rows = torch.tensor([r.position - start for r in readings], device=logits.device)
        events = torch.tensor([[r.event] for r in readings], device=logits.device)
        spaces = [cast(EventSpace, r.space) for r in readings]
        log_p = self._table.collapse(variant(logits[rows], lm), spaces)
        self._store(readings, log_p.gather(1, events)[:, 0])

    def _store(self, readings: Sequence[_Reading], log_p: Tensor) -> None:
        for reading, value in zip(readings, log_p.tolist(), strict=True):
            self._log_p[reading.query][reading.factor, reading.index] = value

    def _draw(self, lms: tuple[LM, ...], wanted: Sequence[_Draw], logits: Sequence[Tensor]) -> None:
        """Draw from pi (or, to verify, from its residual) where queries of equal factors want it:
        logits [n, V] of each factor."""
        spaces = [self._space(one) for one in wanted]
        tables = [
            self._table.collapse(variant(rows, lm), spaces)
            for rows, lm in zip(logits, lms, strict=True)
        ]
        log_w = product_of_powers(tables, lms)
        uniforms = _doubles([self._uniform(one) for one in wanted], log_w.device)
        verified = [n for n, one in enumerate(wanted) if one.at < self._length(one)]
        stands = [False] * len(wanted)
        log_z = None
        if verified:
            log_w = log_w.double().clone()  # it may be the only table itself
            log_z = torch.logsumexp(log_w, dim=-1)
            for n in verified:
                if log_z[n] > -np.inf:
                    log_w[n] -= log_z[n]
                    stands[n] = self._stands(wanted[n], log_w[n])
                    log_w[n] = residual(log_w[n], self._proposal(wanted[n]))
        events, _, mass = draw(log_w, uniforms)
        for n in verified:
            stands[n] = stands[n] or bool(torch.isneginf(mass[n]))  # by rounding: the event stands
        log_p = torch.stack([table.gather(1, events[:, None])[:, 0] for table in tables], dim=1)
        zs = mass if log_z is None else log_z
        for one, event, factors, z, stood in zip(
            wanted, events.tolist(), log_p.tolist(), zs.tolist(), stands, strict=True
        ):
            self._drawn[one] = _Drawn(event, np.array(factors), z, stood)

    def _length(self, one: _Draw) -> int:
        return len(self._queries[one.query].block)

    def _space(self, one: _Draw) -> EventSpace:
        query = self._queries[one.query]
        if one.at == len(query.block):
            return cast(EventSpace, query.bonus)
        return cast("Sequence[EventSpace]", query.spaces)[one.at]

    def _verification(self, one: _Draw) -> Verification:
        return cast(Verification, self._queries[one.query].verification)

    def _proposal(self, one: _Draw) -> Tensor:
        check = self._verification(one)
        return cast(Tensor, check.proposals[one.at - check.first])

    def _uniform(self, one: _Draw) -> float:
        query = self._queries[one.query]
        if one.at < len(query.block):
            check = self._verification(one)
            return check.residual.uniform(one.at - check.first)
        if query.stream is None:
            raise ValueError("a query that asks for a bonus needs a stream")
        return query.stream.uniform(0)

    def _stands(self, one: _Draw, log_pi: Tensor) -> bool:
        """Whether a drafted event is kept: with probability min(1, pi / q~)."""
        check = self._verification(one)
        event = self._queries[one.query].block[one.at]
        log_ratio = float(log_pi[event] - self._proposal(one)[event])
        return check.accept.uniform(one.at - check.first) < np.exp(min(0.0, log_ratio))

    def result(self) -> list[Scored]:
        """The answers, in the order of the queries, after all passes."""
        together: dict[tuple[LM, ...], list[_Draw]] = defaultdict(list)
        for one in self._waiting:
            together[self._queries[one.query].lms].append(one)
        for lms, wanted in together.items():
            rows = [
                torch.stack([self._waiting[one][factor] for one in wanted])
                for factor in range(len(lms))
            ]
            self._draw(lms, wanted, rows)
        return [self._answer(number, query) for number, query in enumerate(self._queries)]

    def _answer(self, number: int, query: Query) -> Scored:
        nothing = np.zeros(len(query.lms))
        check, log_z = query.verification, 0.0
        at = [] if check is None else range(check.first, check.first + len(check.proposals))
        for t in at:
            drawn = self._drawn[_Draw(number, t)]
            log_z += drawn.log_z
            if drawn.log_z == -np.inf:
                return Scored(self._log_p[number], None, nothing, log_z, t)
            if not drawn.stands:
                return Scored(self._log_p[number], drawn.event, drawn.log_p, log_z, t)
        kept = len(query.block)
        if query.bonus is None:
            return Scored(self._log_p[number], None, nothing, log_z, kept)
        drawn = self._drawn[_Draw(number, kept)]
        if drawn.log_z == -np.inf:
            return Scored(self._log_p[number], None, nothing, drawn.log_z, kept)
        return Scored(self._log_p[number], drawn.event, drawn.log_p, log_z + drawn.log_z, kept)


def _paged(row: Row) -> PagedRow:
    return cast(PagedRow, row)


def _last_position(row: Row) -> Feed:
    if row.length == 0:
        raise ValueError("a row without context cannot be extended: open it with a BOS token")
    return Feed(_paged(row), row.length - 1, row.length)


def _doubles(values: Sequence[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)
