"""The engine's protocol on tiny random models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from smcprog.errors import (
    ContextLengthError,
    KVPoolError,
    ModelError,
    NaNLogitsError,
    VocabularyError,
)
from smcprog.gpu import engine as engine_module
from smcprog.gpu.engine import Engine
from smcprog.inference.interface import (
    Drafted,
    EventSpace,
    Extension,
    Query,
    eos_event,
    leave_event,
)
from smcprog.potentials.base import LM
from smcprog.vocabulary import pack, unpack
from tests.gpu.tiny import causal_lm, dense_logits, tokenizer


class Uniforms:
    """A stream of fixed numbers."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def uniform(self, counter: int) -> float:
        return float(np.random.default_rng([self._seed, counter]).random())

    def choose(self, counter: int, probabilities: Any) -> int:
        raise NotImplementedError


@pytest.fixture
def engine() -> Engine:
    return Engine((causal_lm(seed=0), tokenizer()), (causal_lm(seed=1), tokenizer()))


def ordinary(engine: Engine, **stops: bool) -> EventSpace:
    return EventSpace(engine.tokenization.vocabulary.ordinary, **stops)


def extend(
    engine: Engine, rows: Sequence[Any], steps: int, space: EventSpace, **settings: float
) -> list[Drafted]:
    temperatures = {"temperature": 1.0, "draft_temperature": 1.0, **settings}
    extensions = [
        Extension(row, steps, stream=Uniforms(i), **temperatures) for i, row in enumerate(rows)
    ]
    size = engine.tokenization.vocabulary.size
    stopped: set[int] = set()

    def spaces(k: int, drawn: Sequence[int | None]) -> list[EventSpace | None]:
        stopped.update(i for i, event in enumerate(drawn) if event is not None and event >= size)
        return [None if i in stopped else space for i in range(len(rows))]

    return engine.extend(extensions, spaces)


def log_softmax(model: Any, tokens: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    return torch.log_softmax(dense_logits(model, list(tokens)).double() / temperature, -1)


def test_a_draft_is_weighted_by_its_own_law(engine: Engine) -> None:
    prompts = [[5, 6, 7], list(range(10, 40)), [9]]
    rows = [engine.open(prompt) for prompt in prompts]
    space = ordinary(engine, eos=True)
    drafted = extend(engine, rows, 4, space, temperature=0.8, draft_temperature=1.3)
    allowed = torch.from_numpy(unpack(space.mask, 290))
    for prompt, row, one in zip(prompts, rows, drafted, strict=True):
        tokens = [event for event in one.events if event < 290]
        assert row.tokens == prompt + tokens
        table = log_softmax(causal_lm(seed=1), row.tokens, 0.8)
        for t, event in enumerate(one.events):
            log_q = table[len(prompt) - 1 + t]
            events = torch.cat([log_q.masked_fill(~allowed, -math.inf), log_q[:1]])
            assert event <= 290
            expected = torch.log_softmax(events * (0.8 / 1.3), -1)[event]
            assert one.log_q[t] == pytest.approx(float(expected), abs=1e-4)


def test_draft_equals_target() -> None:
    pair = (causal_lm("gemma3_text"), tokenizer())
    engine = Engine(pair, pair)
    rows = [engine.open([2 + i] * (3 * i + 1)) for i in range(4)]
    everything = EventSpace(pack(np.arange(290) >= 1), eos=True)
    for _ in range(3):
        drafted = extend(engine, rows, 3, everything)
        queries = [
            Query([row], one.events, [everything] * len(one.events), (LM(),))
            for row, one in zip(rows, drafted, strict=True)
        ]
        for one, scored in zip(drafted, engine.score(queries), strict=True):
            np.testing.assert_allclose(scored.log_p[0], one.log_q, atol=1e-4)
        engine.append(rows, [[7, 8]] * 4)


def test_scores_and_bonus_against_the_dense_model(engine: Engine) -> None:
    space = EventSpace(pack(np.isin(np.arange(290), [20, 21, 22, 23])), eos=True, leave=True)
    lms = (LM(2.0), LM(0.5, temperature=0.7, top_k=40))
    rows = [engine.open([5, 6, 7, 20, 22]), engine.open([30, 21])]
    leave = leave_event(engine.tokenization.vocabulary)
    scored = engine.score(
        [
            Query(
                [rows[0]] * len(lms), [20, 22], [space] * 2, lms, bonus=space, stream=Uniforms(0)
            ),
            Query([rows[1]], [21, leave], [space] * 2, (LM(),)),
        ]
    )
    tables = [log_softmax(causal_lm(), rows[0].tokens), None]
    tempered = log_softmax(causal_lm(), rows[0].tokens, 0.7)
    cut = tempered.masked_fill(tempered < tempered.topk(40, -1).values[:, -1:], -math.inf)
    tables[1] = torch.log_softmax(cut, -1)
    total = torch.zeros(6, dtype=torch.float64)
    for i, table in enumerate(tables):
        assert table is not None
        expected = [float(table[2, 20]), float(table[3, 22])]
        np.testing.assert_allclose(scored[0].log_p[i], expected, atol=1e-4)
        at = table[4]
        outside = at.clone()
        outside[[0, 20, 21, 22, 23]] = -math.inf
        events = torch.cat([at[20:24], at[:1], outside.logsumexp(0)[None]])
        total += lms[i].alpha * events
        number = {**{20 + j: j for j in range(4)}, 290: 4, 291: 5}
        assert scored[0].bonus is not None
        assert scored[0].bonus_log_p[i] == pytest.approx(
            float(events[number[scored[0].bonus]]), abs=1e-4
        )
    assert scored[0].log_z == pytest.approx(float(total.logsumexp(0)), abs=1e-4)
    table = log_softmax(causal_lm(), rows[1].tokens)
    inside = table[1].clone()
    inside[[0, 20, 21, 22, 23]] = -math.inf
    expected = [float(table[0, 21]), float(inside.logsumexp(0))]
    np.testing.assert_allclose(scored[1].log_p[0], expected, atol=1e-4)
    assert scored[1].bonus is None and scored[1].log_z == 0.0
    assert [row.length for row in rows] == [5, 2]


def test_the_bonus_follows_its_law(engine: Engine) -> None:
    row = engine.open([5, 6, 7])
    space = EventSpace(pack(np.isin(np.arange(290), [20, 21])), leave=True)

    class Grid(Uniforms):
        def uniform(self, counter: int) -> float:
            return (self._seed + 0.5) / 1000

    queries = [Query([row], [], [], (LM(2.0),), bonus=space, stream=Grid(i)) for i in range(1000)]
    answers = engine.score(queries)
    weights = {answer.bonus: 2 * answer.bonus_log_p[0] - answer.log_z for answer in answers}
    for event, log_weight in weights.items():
        share = sum(answer.bonus == event for answer in answers) / 1000
        assert share == pytest.approx(math.exp(log_weight), abs=2e-3)


def test_a_bonus_without_mass(engine: Engine) -> None:
    row = engine.open([5])
    nothing = EventSpace(pack(np.zeros(290, dtype=bool)))
    [scored] = engine.score([Query([row], [], [], (LM(),), bonus=nothing, stream=Uniforms(0))])
    assert scored.bonus is None and scored.log_z == -math.inf
    assert extend(engine, [row], 2, nothing) == [Drafted([], [])]


def test_a_long_text_is_scored_in_parts(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_LOGITS_AT_ONCE", 290 * 3)
    rows = [engine.open([4, *range(20, 31)]), engine.open([4, *range(60, 64)])]
    space = ordinary(engine)
    texts = [row.tokens[1:] for row in rows]
    scored = engine.score(
        [
            Query([r, r], t, None, (LM(), LM(top_p=0.9)), space, Uniforms(0))
            for r, t in zip(rows, texts, strict=True)
        ]
    )
    for row, text, one in zip(rows, texts, scored, strict=True):
        table = log_softmax(causal_lm(), row.tokens)
        expected = [float(table[t, token]) for t, token in enumerate(text)]
        np.testing.assert_allclose(one.log_p[0], expected, atol=1e-4)
        assert one.bonus is not None


def test_a_stop_event_ends_a_rows_draft_and_is_not_appended(engine: Engine) -> None:
    row, other = engine.open([5, 6]), engine.open([5, 6, 7])
    only_end = EventSpace(pack(np.zeros(290, dtype=bool)), eos=True)
    asked: list[list[int | None]] = []

    def spaces(k: int, drawn: Sequence[int | None]) -> list[EventSpace | None]:
        asked.append(list(drawn))
        return [only_end if k == 0 else None, ordinary(engine)]

    extensions = [Extension(r, 3, 1.0, 1.0, Uniforms(i)) for i, r in enumerate((row, other))]
    drafted = engine.extend(extensions, spaces)
    end = eos_event(engine.tokenization.vocabulary)
    assert drafted[0] == Drafted([end], [0.0])
    assert row.length == 2 and other.length == 6
    assert asked == [[None, None], [end, drafted[1].events[0]], [None, drafted[1].events[1]]]


def test_rows_take_different_numbers_of_steps(engine: Engine) -> None:
    rows = [engine.open([5]), engine.open([6]), engine.open([7])]
    extensions = [
        Extension(r, k, 1.0, 1.0, Uniforms(k)) for r, k in zip(rows, (0, 1, 3), strict=True)
    ]
    drafted = engine.extend(extensions, lambda k, drawn: [ordinary(engine)] * 3)
    assert [len(one.events) for one in drafted] == [0, 1, 3]
    assert [row.length for row in rows] == [1, 2, 4]


def test_a_run_alone_and_among_others_in_float64() -> None:
    answers = []
    for others in (0, 3):
        engine = Engine(
            (causal_lm(seed=0).double(), tokenizer()), (causal_lm(seed=1).double(), tokenizer())
        )
        rows = [engine.open([5 + 9 * i] * (1 + 11 * i)) for i in range(others + 1)]
        space = ordinary(engine, leave=True)
        drafted = extend(engine, rows, 4, space)[0]
        query = [
            Query([row], row.tokens[-1:], None, (LM(2.0),), space, Uniforms(9)) for row in rows
        ]
        scored = engine.score(query)[0]
        answers.append((drafted, scored))
    (alone, alone_scored), (among, among_scored) = answers
    assert alone.events == among.events and alone_scored.bonus == among_scored.bonus
    np.testing.assert_allclose(alone.log_q, among.log_q, atol=1e-12)
    assert alone_scored.log_z == pytest.approx(among_scored.log_z, abs=1e-12)


def test_a_draft_of_another_width() -> None:
    engine = Engine(
        (causal_lm(seed=0, vocabulary_size=300), tokenizer()), (causal_lm(seed=1), tokenizer())
    )
    assert engine.tokenization.vocabulary.size == 300
    row = engine.open([5, 6])
    [drafted] = extend(engine, [row], 2, ordinary(engine, leave=True))
    assert all(math.isfinite(x) for x in drafted.log_q)
    engine = Engine(
        (causal_lm(seed=0), tokenizer()), (causal_lm(seed=1, vocabulary_size=300), tokenizer())
    )
    everything = EventSpace(pack(np.arange(290) >= 1), eos=True)
    row = engine.open([5, 6])
    [drafted] = extend(engine, [row], 1, everything)
    logits = dense_logits(causal_lm(seed=1, vocabulary_size=300), [5, 6])[-1, :290]
    event = drafted.events[0] % 290
    assert drafted.log_q[0] == pytest.approx(float(torch.log_softmax(logits, -1)[event]), abs=1e-4)


def test_rows_share_and_give_back(engine: Engine) -> None:
    row = engine.open(range(2, 42))
    forks = [engine.fork(row) for _ in range(3)]
    assert engine.kv_tokens([row, *forks]) == 40
    extend(engine, forks, 3, ordinary(engine))
    engine.truncate(forks[0], 39)
    copied = [fork.copied for fork in forks]
    assert engine.kv_tokens([row, *forks]) >= 40 and max(copied) <= 10
    for one in (row, *forks):
        engine.free(one)
    assert not engine._pool.pages


def test_nan_logits_name_the_model(engine: Engine) -> None:
    row = engine.open([5, 6])
    for index, name in enumerate(("target", "draft")):
        head = engine._models[index]._model.lm_head.weight
        with torch.no_grad():
            head[100] = float("nan")
        with pytest.raises(NaNLogitsError, match=f"the {name} model .* 1 of 1 rows"):
            if name == "draft":
                extend(engine, [row], 1, ordinary(engine))
            else:
                engine.score([Query([row], [6], None, (LM(),))])
        with torch.no_grad():
            head[100] = 0.0
        extend(engine, [row], 1, ordinary(engine))
        engine.score([Query([row], row.tokens[-1:], None, (LM(),))])


def test_a_pool_of_a_fixed_size() -> None:
    engine = Engine((causal_lm(), tokenizer()), kv_tokens=40)
    row = engine.open([5] * 40)
    with pytest.raises(KVPoolError, match="kv_tokens=48, and 64 would have been enough"):
        engine.append([row], [[6] * 10])
    assert row.length == 40
    engine.append([row], [[6] * 8])
    assert engine.score([Query([row], [6], None, (LM(),))])[0].log_p.shape == (1, 1)


def test_a_context_over_the_limit(engine: Engine) -> None:
    assert engine.context_limit == 256
    row = engine.open([5] * 255)
    with pytest.raises(ContextLengthError, match="257 tokens .* 256"):
        engine.append([row], [[6, 7]])
    assert row.length == 255
    with pytest.raises(ContextLengthError, match="257 .* 256"):
        extend(engine, [row], 2, ordinary(engine))


def test_without_a_draft() -> None:
    engine = Engine((causal_lm(), tokenizer()))
    assert not engine.has_draft and engine.tokenizer is tokenizer()
    with pytest.raises(ModelError, match="no draft"):
        extend(engine, [engine.open([5])], 1, ordinary(engine))


def test_different_vocabularies() -> None:
    small = (causal_lm(vocabulary_size=280), tokenizer(280))
    with pytest.raises(VocabularyError, match="10 of which differ"):
        Engine((causal_lm(), tokenizer()), small)


def test_nothing_to_condition_on(engine: Engine) -> None:
    row = engine.open([])
    with pytest.raises(ValueError, match="without context"):
        extend(engine, [row], 1, ordinary(engine))
    engine.append([row], [[5]])
    with pytest.raises(ValueError, match="without context"):
        engine.score([Query([row], [5], None, (LM(),))])


@pytest.mark.parametrize("tokens", [0, -100, 2.5, "a"])
def test_a_pool_of_no_size(tokens):
    with pytest.raises(ValueError, match="kv_tokens=.*an integer of at least 1"):
        Engine((causal_lm(), tokenizer()), kv_tokens=tokens)
