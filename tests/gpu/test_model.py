"""Paged equals dense: logits through pages are those of the plain forward of each row alone."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from smcprog.errors import ModelError
from smcprog.gpu import attention, sharing
from smcprog.gpu import model as paged_model
from smcprog.gpu.kv_cache import SCRATCH_PAGE, PagedRow, PagePool, settle
from smcprog.gpu.model import CausalLM, Feed
from tests.gpu.tiny import FAMILIES, causal_lm, dense_logits

PAGE = 4


@pytest.fixture(autouse=True, params=[1, sharing.LEAST_SAVED], ids=["trunks", "plain"])
def trunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test with trunks wherever two rows share a page, and (texts are short) without."""
    monkeypatch.setattr(sharing, "LEAST_SAVED", request.param)


class Bench:
    """One or two models over one pool, each compared with its own dense forward."""

    def __init__(self, *models: Any) -> None:
        self.dense = models
        self.pool = PagePool(len(models), page_size=PAGE)
        self.models = [CausalLM("target", m, i, PAGE) for i, m in enumerate(models)]
        self.forwards = 0

    def check(self, feeds: list[tuple[PagedRow, int]], model: int = 0) -> None:
        """Feed rows and compare the logits from the given position of each on."""
        settle(self.pool, [m.store for m in self.models])
        with torch.inference_mode():
            blocks = list(
                self.models[model].run(
                    self.pool, [Feed(row, first, row.length) for row, first in feeds]
                )
            )
        self.forwards = len(blocks)
        expected = [dense_logits(self.dense[model], row.tokens)[first:] for row, first in feeds]
        torch.testing.assert_close(torch.cat(blocks), torch.cat(expected), atol=1e-4, rtol=1e-4)


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(2, 290), k=length)


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_forks_rollbacks_and_appends(family: str) -> None:
    bench = Bench(causal_lm(family))
    pool = bench.pool
    rows = [pool.open(text(i, n)) for i, n in enumerate((21, 3, 1, 34))]
    bench.check([(row, row.length - 1) for row in rows])
    forks = [pool.fork(rows[0]) for _ in range(3)]
    pool.append(forks, [[5], [6, 7], [5]])
    bench.check([(row, row.length - 1) for row in (*forks, rows[1])])
    pool.append(forks, [text(7, 5), [8], text(7, 5)])
    bench.check([(forks[0], 20), (forks[1], 23), (forks[2], 26), (rows[0], 20)])
    pool.truncate(forks[0], 18)
    pool.append([forks[0], rows[0]], [[9, 10], [11]])
    bench.check([(forks[0], 17), (rows[0], 21), (forks[1], 0)])


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_a_long_prefill_takes_several_forwards(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_model, "_TOKENS_A_PASS", 10)
    bench = Bench(causal_lm(family))
    prompt = text(0, 33)
    rows = [bench.pool.open([*prompt, i, i]) for i in range(3)]
    bench.check([(row, row.length - 2) for row in rows])
    # 32 shared tokens once, then 3 of each row: 41 tokens, the first 30 without logits.
    assert bench.forwards == 2


def test_many_logits_take_several_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_model, "_LOGIT_BYTES_A_PASS", 4 * 290 * 7)
    bench = Bench(causal_lm())
    bench.check([(bench.pool.open(text(i, 8)), 3) for i in range(3)])
    assert bench.forwards == 3


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_random_use_of_two_models(family: str) -> None:
    """The draft lags behind the target and the target behind the draft, on shared pages."""
    bench = Bench(causal_lm(family, 0), causal_lm(family, 1))
    rng = random.Random(family)
    rows = [bench.pool.open(text(0, 9))]
    for _ in range(40):
        action = rng.choice(["fork", "append", "append", "redo", "redo", "free", "open"])
        row = rng.choice(rows)
        if action == "fork" and len(rows) < 6:
            rows.append(bench.pool.fork(row))
        elif action == "append":
            chosen = rng.sample(rows, rng.randint(1, len(rows)))
            bench.pool.append(chosen, [rng.choices((2, 3), k=rng.randint(1, 5)) for _ in chosen])
        elif action == "redo":
            bench.pool.truncate(row, rng.randint(1, row.length))
            bench.pool.append([row], [rng.choices((2, 3), k=rng.randint(0, 3))])
        elif action == "free" and len(rows) > 1:
            rows.remove(row)
            bench.pool.free(row)
        elif action == "open":
            rows.append(bench.pool.open(text(0, rng.randint(1, 12))))
        fed = {row, *rng.sample(rows, rng.randint(1, len(rows)))} & set(rows)
        bench.check([(r, rng.randint(0, r.length - 1)) for r in fed], rng.randint(0, 1))
    for row in rows:
        bench.pool.free(row)
    assert not bench.pool.pages


def test_stale_nans_are_never_read() -> None:
    bench = Bench(causal_lm("mistral"))
    rows = [bench.pool.open(text(i, n)) for i, n in enumerate((18, 2))]
    store = bench.models[0].store
    settle(bench.pool, [store])
    for tensor in (store.keys, store.values):
        tensor[:, SCRATCH_PAGE:] = float("nan")
    bench.check([(row, row.length - 1) for row in rows])
    bench.check([(row, 1) for row in rows])
    bench.pool.append(rows, [[5], [6, 7, 8]])
    bench.check([(row, row.length - 1) for row in rows])


def test_feeding_again_for_logits_leaves_pages_alone() -> None:
    bench = Bench(causal_lm())
    row = bench.pool.open(text(0, 11))
    bench.check([(row, 10)])
    store = bench.models[0].store
    before = store.keys.clone(), store.values.clone()
    bench.check([(bench.pool.fork(row), 2)])
    for tensor, old in zip((store.keys, store.values), before, strict=True):
        changed = (tensor != old).flatten(2).any(-1).any(0)
        assert changed.nonzero().flatten().tolist() == [SCRATCH_PAGE]


def test_rows_of_unlike_lengths_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_SLACK_PAIRS", 0)
    monkeypatch.setattr(attention, "_MOST_KEYS", 60)
    spans = [sharing.Span([0] * 20, end - n, end) for n, end in ((1, 50), (1, 5), (9, 9), (1, 48))]
    assert sorted(map(sorted, attention._grouped(spans, [0] * 4))) == [[0], [1], [2], [3]]
    monkeypatch.setattr(attention, "_MOST_KEYS", 100)
    assert sorted(map(sorted, attention._grouped(spans, [0] * 4))) == [[0, 3], [1], [2]]
    bench = Bench(causal_lm("qwen2"))
    rows = [bench.pool.open(text(i, n)) for i, n in enumerate((50, 5, 9, 48))]
    bench.check([(row, row.length - 1) for row in rows])
    bench.pool.append(rows, [[3], [3], text(9, 20), [3, 4]])
    bench.check([(row, row.length - 1) for row in rows])


def test_a_row_alone_and_among_others_in_float64() -> None:
    model = causal_lm("gemma3_text").double()
    logits = []
    for others in (0, 4):
        bench = Bench(model)
        rows = [bench.pool.open(text(i, 5 + 7 * i)) for i in range(others + 1)]
        settle(bench.pool, [bench.models[0].store])
        with torch.inference_mode():
            feeds = [Feed(row, 0, row.length) for row in rows]
            logits.append(torch.cat(list(bench.models[0].run(bench.pool, feeds)))[:5])
    assert logits[0].dtype == torch.float64
    torch.testing.assert_close(logits[0], logits[1], atol=1e-12, rtol=1e-12)


def test_a_failed_pass_leaves_nothing_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(causal_lm())
    row = bench.pool.open(text(0, 9))
    with monkeypatch.context() as patch:
        patch.setattr(CausalLM, "_forward", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            bench.check([(row, 8)])
    assert bench.pool.written(row, 0) == 0
    bench.check([(row, 8)])


def test_a_users_model_keeps_its_attention() -> None:
    model = causal_lm()
    before = model.config._attn_implementation
    Bench(model)
    assert model.config._attn_implementation == before


def tiny(model_type: str, **settings: Any) -> Any:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **settings))


def test_a_recurrent_model_is_refused() -> None:
    mamba = tiny("mamba", hidden_size=16, num_hidden_layers=1, state_size=4, vocab_size=99)
    with pytest.raises(ModelError, match="MambaForCausalLM.*pages cannot hold: linear_attention"):
        CausalLM("target", mamba, 0, PAGE)


def test_an_encoder_decoder_is_refused() -> None:
    settings = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 99}
    model = tiny("bart", encoder_ffn_dim=16, decoder_ffn_dim=16, **settings)
    model.config.is_encoder_decoder = True
    with pytest.raises(ModelError, match="encoder-decoder"):
        CausalLM("target", model, 0, PAGE)


def test_layers_that_pages_cannot_hold_are_refused() -> None:
    model = causal_lm("qwen3")
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ModelError, match="linear_attention"):
        CausalLM("draft", model, 0, PAGE)


def test_a_family_that_is_not_listed_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_model, "KNOWN_GOOD", frozenset())
    model = causal_lm()
    CausalLM("target", model, 0, PAGE)

    def bidirectional(self: object, layer: int, query: Any, key: Any, value: Any, *_: Any) -> Any:
        return value.repeat_interleave(2, 1).transpose(1, 2) * 0.5

    monkeypatch.setattr(attention.AttentionPass, "attend", bidirectional)
    with pytest.raises(ModelError, match="other logits over pages.*not supported"):
        CausalLM("target", model, 0, PAGE)


def test_longrope_is_limited_to_its_short_context() -> None:
    rope = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
        "rope_theta": 10000.0,
    }
    model = causal_lm("phi3", rope_parameters=rope, original_max_position_embeddings=64)
    assert CausalLM("target", model, 0, PAGE).context_limit == 64
