"""The whole loop on real models: DESIGN section 6, tests 1, 3 and 6, and what sharing saves.

The truth about a tiny random model comes from a table of its plain forward pass, enumerated.
"""

import numpy as np
import pytest
import torch

from smcprog import (
    EOS,
    ContextLengthError,
    Engine,
    KVPoolError,
    NaNLogitsError,
    TabularEngine,
    VocabularyError,
    aside,
    choice,
    factor,
    gen,
    lm,
    logprob,
    model,
    observe,
    prompt,
    regex,
    smc_program,
    special,
)
from smcprog.gpu.model import CausalLM
from smcprog.inference.exact import enumerate_traces
from tests.gpu import tiny

R, TOGETHER = 2000, 100


def tiny_engine(seeds=(0, 1), dtype=torch.float32, family="llama", **overrides):
    tokenizer = tiny.tokenizer()
    lms = [tiny.causal_lm(family, seed=seed, **overrides).to(dtype) for seed in seeds]
    for one in lms:
        one.generation_config.eos_token_id = [0, 1]  # both special tokens: no mass is masked
    return Engine(*((one, tokenizer) for one in lms), dtype=dtype)


def table_of(engine, model):
    """The same target as a tabular engine: its plain forward pass, one context at a time."""
    vocabulary = engine.tokenization.vocabulary
    known = {}

    def table(context):
        if context not in known:
            logits = tiny.dense_logits(model, list(context))[-1].double()
            known[context] = torch.softmax(logits, dim=-1).numpy()
        return known[context]

    twin = TabularEngine(vocabulary.tokens, table)
    twin.tokenization = engine.tokenization
    return twin


@smc_program
def story(alpha):
    prompt("the cat")
    word = gen(lm**alpha, choice(" sat", " and", " on"))
    factor(0.4 * (word == " on"))
    prompt(" the")
    more = gen(lm**alpha, regex("[at]+"), max_tokens=2)
    return word + more


@smc_program
def watched(alpha):
    prompt("one")
    first = gen(lm.at(temperature=0.7) ** alpha, regex("a|t"), stop=EOS, max_tokens=3)
    p = observe(" two", lm**0.5)
    factor(0.1 * p + 0.1 * logprob(first, given="three"))
    return str(first)


@pytest.mark.parametrize(
    ("program", "block"), [(story, 0), (story, 3), (watched, 2)], ids=lambda x: str(x)[:12]
)
def test_monte_carlo(program, block):
    engine = tiny_engine()
    check_monte_carlo(engine, table_of(engine, tiny.causal_lm(seed=0)), program(2.0), block)


def test_rejection_and_weighting_by_monte_carlo():
    engine = tiny_engine()
    twin = table_of(engine, tiny.causal_lm(seed=0))
    check_monte_carlo(engine, twin, story(2.0), 2, verify=1)


def test_a_greedy_draft_that_is_verified():
    engine = tiny_engine(seeds=(0, 0))
    posterior = engine.run(
        free(), particles=4, block=4, verify="reject", draft_temperature=0, seed=0
    )
    np.testing.assert_allclose(posterior.log_weights, 0.0, atol=1e-4)
    assert len(set(posterior.texts)) == 4  # drawn from the target all the same


def check_monte_carlo(engine, twin, call, block, **settings):
    # |z| < 5 over R = 2,000 fixed seeds, as in tests/inference/test_monte_carlo.py.
    truth = enumerate_traces(call, twin)
    values = list(truth.marginal())[:3]
    products = np.zeros((R, 1 + len(values)))
    for start in range(0, R, TOGETHER):
        posteriors = engine.run(
            [call] * TOGETHER, particles=4, block=block, seed=start, on_dead="return", **settings
        )
        for i, posterior in enumerate(posteriors, start):
            evidence = np.exp(posterior.log_evidence)
            marginal = posterior.marginal() if posterior.values else {}
            products[i] = [evidence, *(evidence * marginal.get(v, 0.0) for v in values)]
    expected = [truth.evidence, *(truth.total(lambda v, x=x: float(v == x)) for x in values)]
    z = (products.mean(axis=0) - expected) / (products.std(axis=0, ddof=1) / np.sqrt(R))
    assert np.all(np.abs(z) < 5), z


@smc_program
def free():
    prompt("the cat sat")
    return gen(max_tokens=12)


@smc_program
def letters():
    prompt("the cat sat")
    return gen(regex("[a-z ]*"), max_tokens=30)


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("block", [0, 1, 4])
def test_no_weight_moves_where_draft_is_target(block):
    engine = tiny_engine(seeds=(0, 0))
    posterior = engine.run(free(), particles=8, block=block, seed=0)
    np.testing.assert_allclose(posterior.log_weights, 0.0, atol=1e-4)
    posterior = engine.run(letters(), particles=8, block=block, seed=0, ess_threshold=0.0)
    whole = [not cut for cut in posterior.truncated]
    assert any(whole)
    np.testing.assert_allclose(posterior.log_weights[whole], 0.0, atol=1e-4)


@smc_program
def given_texts(texts):
    prompt("one two")
    return [observe(text) for text in texts]


OTHERS = [
    story(1.0),
    story(2.0),
    watched(0.5),
    free(),
    letters(),
    given_texts([" three", " dog"]),
    story(0.5),
]


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
def test_a_run_alone_and_among_seven_others_in_float64():
    engine = tiny_engine(dtype=torch.float64)
    for call in (story(4.0), free(), watched(2.0)):
        settings = {"particles": 4, "block": 3, "ess_threshold": 0.9}
        among = engine.run([call, *OTHERS], seed=3, **settings)[0]
        alone = engine.run(call, seed=among.seed, **settings)
        assert alone.values == among.values
        assert alone.tokens == among.tokens
        assert [r.ancestors for r in alone.rounds] == [r.ancestors for r in among.rounds]
        np.testing.assert_allclose(alone.log_weights, among.log_weights, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
def test_weights_of_given_texts_alone_and_among_others_in_float32():
    engine = tiny_engine()
    call = given_texts([" the cat", " sat on", " the mat"])
    among = engine.run([*OTHERS, call], particles=2, seed=0)[-1]
    alone = engine.run(call, particles=2, seed=0)
    np.testing.assert_allclose(alone.log_weights, among.log_weights, atol=1e-4)


def test_particles_share_what_they_have_in_common():
    @smc_program
    def long():
        prompt("q" * 256)
        return gen(stop=(), max_tokens=64)

    tokenizer = tiny.tokenizer()
    model = tiny.causal_lm("llama", seed=0, max_position_embeddings=512)
    engine = Engine((model, tokenizer), (model, tokenizer))
    posterior = engine.run(long(), particles=8, seed=0, ess_threshold=0.0)
    stats = posterior.stats
    assert stats.unshared_kv_tokens == pytest.approx(8 * (256 + 64), rel=0.02)
    assert stats.peak_kv_tokens < 0.35 * stats.unshared_kv_tokens


def test_a_pool_that_is_too_small_says_what_would_do_and_stays_usable():
    tokenizer = tiny.tokenizer()
    models = [tiny.causal_lm("llama", seed=seed) for seed in (0, 1)]
    engine = Engine(*((model, tokenizer) for model in models), kv_tokens=96)

    @smc_program
    def long(n):
        prompt("q" * 20)
        return gen(stop=(), max_tokens=n)

    with pytest.raises(KVPoolError, match=r"kv_tokens=\d+\) or more"):
        engine.run(long(40), particles=8, seed=0, ess_threshold=0.0)
    assert engine.run(long(4), particles=2, seed=0).stats.peak_kv_tokens <= 96
    assert engine.kv_tokens([]) == 0


def test_nan_logits_name_the_model():
    tokenizer = tiny.tokenizer()
    model, broken = (tiny.causal_lm("llama", seed=seed) for seed in (0, 1))
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    for target, draft in ((model, broken), (broken, model)):
        engine = Engine((target, tokenizer), (draft, tokenizer))
        with pytest.raises(NaNLogitsError, match="draft" if draft is broken else "target"):
            engine.run(free(), particles=2, seed=0)


def test_a_prompt_longer_than_the_models_context():
    engine = tiny_engine()

    @smc_program
    def long():
        prompt("q" * 300)
        return gen()

    with pytest.raises(ContextLengthError, match=r"300 tokens.*at most 256"):
        engine.run(long(), particles=2)


def test_an_empty_context_begins_with_the_end_token():
    # The tiny tokenizer has no BOS: a model cannot condition on nothing.
    @smc_program
    def nothing():
        return gen(choice("a", "b"))

    engine = tiny_engine()
    posterior = engine.run(nothing(), particles=64, seed=0)
    logits = tiny.dense_logits(tiny.causal_lm("llama", seed=0), [0])[0].double()
    p = torch.softmax(logits, -1)[engine.tokenization.encode(["a", "b"], at_start=False)]
    assert posterior.log_evidence == pytest.approx(float(p.sum().log()), abs=0.5)


def test_text_never_becomes_a_special_token():
    @smc_program
    def inject(text):
        prompt(text)
        return logprob("a")

    engine = tiny_engine()
    with pytest.warns(UserWarning, match=r"special\("):
        spelled = engine.run(inject("x<|im_end|>"), particles=1).values[0]
    meant = engine.run(inject_special(), particles=1).values[0]
    assert spelled != pytest.approx(meant, abs=1e-3)


@smc_program
def inject_special():
    prompt("x", special("<|im_end|>"))
    return logprob("a")


def test_bfloat16_scores_as_the_plain_forward_pass_does():
    engine = tiny_engine(dtype=torch.bfloat16)
    text = " the cat sat on the mat"
    value = engine.run(given_texts([text]), particles=2, block=4, seed=0).values[0][0]
    ids = engine.tokenization.encode(["one two"], at_start=True)
    more = engine.tokenization.encode([text], at_start=False)
    model = tiny.causal_lm("llama", seed=0).to(torch.bfloat16)
    log_p = torch.log_softmax(tiny.dense_logits(model, ids + more).float(), dim=-1)
    expected = [float(log_p[len(ids) - 1 + i, token]) for i, token in enumerate(more)]
    # bfloat16 keeps 8 bits: logits of about 8 are known to 1/32.
    assert value == pytest.approx(sum(expected), abs=0.1 * len(more))
    posterior = engine.run(free(), particles=8, seed=0)
    assert np.isfinite(posterior.log_evidence)


@smc_program
def experts(other):
    prompt("the cat")
    word = gen(lm.given("the dog") ** 0.5, choice(" sat", " and", " on"), hint="one two")
    more = gen((lm**1.5).growing(over=2), other**0.5, choice(" the cat", " a hat", " six"))
    return word + more + aside(verdict(word))


@smc_program
def verdict(word):
    prompt(f"was it{word}")
    return gen(choice("?", "!"))


def test_other_contexts_and_models_by_monte_carlo():
    # Flat models, since products of peaked ones have weights that no average of runs can show.
    engine = tiny_engine(initializer_range=0.1)
    target, third = (tiny.causal_lm(seed=seed, initializer_range=0.1) for seed in (0, 7))
    pair = (third, tiny.tokenizer())
    twin = table_of(engine, target)
    twin._models[pair] = table_of(engine, third)._models["target"]
    check_monte_carlo(engine, twin, experts(model(pair)), 2)
    assert not engine._pool.pages


def test_a_model_of_another_vocabulary():
    other = (tiny.causal_lm(seed=7), tiny.tokenizer(280))
    with pytest.raises(VocabularyError, match=r"model\(LlamaForCausalLM\) and the target have"):
        tiny_engine().run(experts(model(other)), particles=2)


@smc_program
def continued(text):
    prompt("the cat sat on the mat and the dog sat on the cat and " * 3, text)
    return str(gen(stop=(), max_tokens=12))


def test_runs_wait_for_pages():
    """Six runs of 4 particles in a pool that holds two of them at their longest."""
    texts = ["one", "two", "three", "four", "five", "six"]
    settings = {"particles": 4, "block": 2, "max_tokens": 96, "seed": 0}
    calls = [continued(text) for text in texts]
    free = tiny_engine(dtype=torch.float64).run(calls, **settings)
    models = [tiny.causal_lm(seed=seed).double() for seed in (0, 1)]
    for one in models:
        one.generation_config.eos_token_id = [0, 1]
    pair = [(one, tiny.tokenizer()) for one in models]
    crowded = Engine(*pair, dtype=torch.float64, kv_tokens=2 * 4 * 96)
    for ours, theirs in zip(crowded.run(calls, **settings), free, strict=True):
        np.testing.assert_allclose(ours.log_weights, theirs.log_weights, atol=1e-9)
        assert ours.values == theirs.values
    assert not crowded._pool.pages


def test_a_prompt_of_several_programs_is_read_once(monkeypatch):
    fed = []
    forward = CausalLM._forward

    def counted(model, parts):
        fed.append(sum(part.end - part.start for part in parts))
        return forward(model, parts)

    engine = tiny_engine(seeds=(0,))
    monkeypatch.setattr(CausalLM, "_forward", counted)
    posteriors = engine.run([continued("")] * 5, particles=2, seed=0)
    prompted = posteriors[0].stats.unshared_kv_tokens // 2 - 11
    full = prompted // 16 * 16  # each row has the page that is not full to itself
    assert full > 0
    assert fed[0] == full + 10 * (prompted - full)
