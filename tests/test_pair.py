"""The pair that ships: what its card promises and programs rely on."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from smcprog import Engine, gen, logprob, prompt, regex, smc_program
from smcprog.gpu.loading import PAIR


def test_it_is_small_and_shares_a_vocabulary(shipped_engine):
    size = sum(file.stat().st_size for file in PAIR.rglob("*") if file.is_file())
    assert size < 15e6
    assert shipped_engine.has_draft
    target, draft = (PAIR / name / "tokenizer.json" for name in ("target", "draft"))
    assert target.read_bytes() == draft.read_bytes()
    assert len(shipped_engine.tokenization.vocabulary.eos_ids) == 2
    assert "licence: apache-2.0" in (PAIR / "README.md").read_text().lower()


@smc_program
def work(question):
    prompt(question)
    return gen(stop="\n", max_tokens=80)


def sums():
    lines = Path(PAIR / "sums.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_target_adds_as_well_as_its_card_says(shipped_engine):
    """One draw of the target at temperature 1 for each held-out sum: 50% to 85% are right."""
    asked = sums()
    assert len(asked) == 200
    # One particle and no draft: its draw is the target's own.
    posteriors = shipped_engine.run(
        [work(one["question"]) for one in asked], particles=1, block=0, seed=0
    )
    right = [
        posterior.values[0].strip().endswith(f"Answer: {one['answer']}")
        for posterior, one in zip(posteriors, asked, strict=True)
    ]
    assert 0.5 < np.mean(right) < 0.85


def test_the_target_agrees_with_transformers(shipped_engine):
    text = "Review: Great phone, bad battery\nSentiment:"
    ids = [*shipped_engine.tokenization.start_ids]
    ids += shipped_engine.tokenization.encode([text], at_start=True)
    model = AutoModelForCausalLM.from_pretrained(PAIR / "target", dtype=torch.float32)
    with torch.inference_mode():
        log_p = torch.log_softmax(model(torch.tensor([ids])).logits[0], -1)
    expected = sum(float(log_p[i - 1, ids[i]]) for i in range(1, len(ids)))

    @smc_program
    def ask():
        return logprob(text)

    assert shipped_engine.run(ask(), particles=1).values[0] == pytest.approx(expected, abs=1e-3)


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
def test_no_weight_moves_where_the_target_drafts_for_itself():
    engine = Engine(PAIR / "target", PAIR / "target")

    @smc_program
    def free():
        prompt("Review: ")
        # Whatever is forbidden, special tokens too, is the event of leaving: no mass is lost.
        return gen(regex("(?s).*"), max_tokens=24)

    posterior = engine.run(free(), particles=8, block=4, seed=0)
    np.testing.assert_allclose(posterior.log_weights, 0.0, atol=1e-4)
