"""The engine by the kernels, as on CUDA: paged equals dense, and draft = target moves no weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from smcprog import Engine, NaNLogitsError, gen, prompt, regex, smc_program
from smcprog.gpu import attention, engine, sharing
from tests.gpu import test_model, tiny

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's log of 0


@pytest.fixture(autouse=True)
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention, engine):
        monkeypatch.setattr(module, "kernels_serve", lambda like: True)
    monkeypatch.setattr(sharing, "LEAST_SAVED", 1)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt2"])
def test_paged_equals_dense(family: str) -> None:
    bench = test_model.Bench(tiny.causal_lm(family))
    pool = bench.pool
    rows = [pool.open(test_model.text(i, n)) for i, n in enumerate((21, 3))]
    bench.check([(row, row.length - 1) for row in rows])
    forks = [pool.fork(rows[0]) for _ in range(3)]
    pool.append(forks, [[5], [6, 7], [5]])
    bench.check([(row, row.length - 1) for row in (*forks, rows[1])])
    pool.truncate(forks[1], 18)
    bench.check([(forks[0], 18), (forks[1], 17), (forks[2], 20)])


@smc_program
def words() -> str:
    prompt("the cat sat on")
    first = str(gen(regex("( [a-z]+)*"), max_tokens=3))
    return first + str(gen(stop=" the", max_tokens=4))


def tiny_engine(*models) -> Engine:
    for model in models:
        model.generation_config.eos_token_id = [0, 1]  # both special tokens: no mass is masked
    return Engine(*((model, tiny.tokenizer()) for model in models))


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
def test_no_weight_moves_where_draft_is_target() -> None:
    model = tiny.causal_lm()
    posterior = tiny_engine(model, model).run(words(), particles=3, block=2, seed=0)
    np.testing.assert_allclose(posterior.log_weights, 0.0, atol=1e-4)
    again = tiny_engine(model, model).run(words(), particles=3, block=2, seed=0)
    assert again.values == posterior.values


def test_nan_logits_name_the_model() -> None:
    draft = tiny.causal_lm(seed=1)
    made = tiny_engine(tiny.causal_lm(), draft)
    with torch.no_grad():
        draft.lm_head.weight[:] = float("nan")
    with pytest.raises(NaNLogitsError, match="draft model returned NaN"):
        made.run(words(), particles=2, block=2)
