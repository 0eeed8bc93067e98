"""genlm-control both ways: its potentials in our `gen`, ours in its SMC.

All comparisons are with enumerated truth. genlm-control's convention is EOS: a text weighs
exp(complete(x)), and its end is the model's.
"""

import asyncio
import contextvars
import gc
import itertools
import math
import re
import sys

import genlm.control
import numpy as np
import pytest
import torch
from genlm.backend.llm import AsyncTransformer
from genlm.control import AWRS, WCFG, WFSA, BoolCFG, BoolFSA, JsonSchema, PromptedLLM
from genlm.control.sampler import DirectTokenSampler

from smcprog import (
    EOS,
    Engine,
    PotentialError,
    TabularEngine,
    Text,
    WeightError,
    choice,
    from_genlm,
    gen,
    lm,
    regex,
    reward,
    smc_program,
    to_genlm,
)
from smcprog.inference.exact import enumerate_traces
from tests.gpu import tiny
from tests.gpu.test_end_to_end import table_of
from tests.inference import tables
from tests.inference.programs import one
from tests.inference.test_enumeration import expected_weights, masses
from tests.inference.test_monte_carlo import assert_mean

WEIGHTED = """
1.0: S -> a A
0.7: A -> b A
0.3: A -> b
"""


class Slow(genlm.control.Potential):
    """A user's own: awaits, and has different weights for prefixes and complete texts.

    It notes the contexts of its batched calls.
    """

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.prefixes = []
        self.completes = []

    async def prefix(self, context):
        await asyncio.sleep(0)
        return 0.5 + 0.3 * len(context) - 0.2 * sum(x == self.vocab[0] for x in context)

    async def complete(self, context):
        await asyncio.sleep(0)
        return -0.4 * len(context) if context else -math.inf

    async def batch_prefix(self, contexts):
        self.prefixes.append(contexts)
        return await super().batch_prefix(contexts)

    async def batch_complete(self, contexts):
        self.completes.append(contexts)
        return await super().batch_complete(contexts)


def tokens_of(engine):
    return to_genlm(lm, engine).vocab


IMPORTED = {
    "BoolFSA": lambda: BoolFSA.from_regex("a(ab|b)*a?"),
    "characters": lambda: BoolFSA.from_regex("a(ab|b)*a?", to_bytes=False),
    "WFSA": lambda: WFSA.from_regex("a(a|b)*"),
    "WCFG": lambda: WCFG.from_string(WEIGHTED),
    "BoolCFG": lambda: BoolCFG.from_lark('start: "a" start "b" | "b"'),
    "product": lambda: WFSA.from_regex("a(a|b)*") * Slow([98, 97]),
    "async": lambda: Slow([97, 98]),
    "single bytes": lambda: Slow([b"b", b"a"]),
    "tokens": lambda: Slow(tokens_of(tables.engine())[::-1]),
    "coerced": lambda: BoolFSA.from_regex("a(ab|b)*").coerce(
        to_genlm(lm, tables.engine()), f=b"".join
    ),
}


def check(call, engine, block):
    """Every outcome of one particle: sum of probability * weight = gamma, for each value."""
    truth = masses(enumerate_traces(call, engine))
    assert len(truth) > 1
    found = masses(expected_weights(call, engine, block))
    assert found == pytest.approx(truth, rel=1e-10, abs=1e-14)
    return truth


@pytest.mark.parametrize("block", [0, 1, 2, 3])
@pytest.mark.parametrize("name", IMPORTED)
def test_every_outcome(name, block):
    potential = from_genlm(IMPORTED[name]())
    check(one(2.0, (potential,), None, 3), tables.engine(), block)


@pytest.mark.parametrize("block", [0, 2])
def test_every_outcome_under_a_json_schema(block):
    schema = from_genlm(JsonSchema({"type": "array", "items": {"type": "integer"}}))
    engine = tables.engine(tokens=("[", "]", "1", "1]"))
    truth = check(one(1.0, (schema,), None, 4), engine, block)
    assert {text for text, _ in truth} == {"[]", "[1]", "[11]", "[111]"}


@pytest.mark.parametrize("name", ["async", "tokens", "BoolFSA"])
def test_stop_strings(name):
    """The last evaluation is of the text, or the tokens, before the stop."""
    potential = from_genlm(IMPORTED[name](), every="end")
    for block in (0, 2):
        check(one(1.0, (potential,), ("b", "aab"), 3), tables.engine(), block)


def test_the_same_language_as_ours():
    engine = tables.engine()
    theirs = masses(
        enumerate_traces(one(1.0, (from_genlm(BoolFSA.from_regex("a(ab|b)*")),), None, 3), engine)
    )
    ours = masses(enumerate_traces(one(1.0, (regex("a(ab|b)*"),), EOS, 3), engine))
    assert theirs == pytest.approx(ours, rel=1e-12)


def test_weights_are_those_of_complete_texts():
    """WEIGHTED gives a b^n the weight 0.7^(n - 1) * 0.3."""
    engine = tables.engine()

    def log_weight(text):
        return math.log(0.7 ** (len(text) - 2) * 0.3) if re.fullmatch("ab+", text) else -math.inf

    laws = [
        masses(enumerate_traces(one(1.0, (potential,), None, 3), engine))
        for potential in (from_genlm(WCFG.from_string(WEIGHTED)), reward(log_weight))
    ]
    assert laws[0] == pytest.approx(laws[1], rel=1e-12)


def test_one_batched_call_a_round():
    potential = Slow([97, 98])
    posterior = tables.engine().run(
        one(1.0, (from_genlm(potential),), (), 4), particles=16, block=1, seed=0
    )
    assert len(potential.prefixes) <= len(posterior.rounds)
    assert len(potential.completes) <= len(posterior.rounds)
    for contexts in potential.prefixes + potential.completes:
        assert len({tuple(context) for context in contexts}) == len(contexts)
    assert max(map(len, potential.prefixes)) > 1


def test_inside_a_running_loop_and_under_the_callers_context_variables():
    said = contextvars.ContextVar("said", default="nothing")
    loops, heard = set(), set()

    class Listens(Slow):
        async def complete(self, context):
            loops.add(asyncio.get_running_loop())
            heard.add(said.get())
            return 0.0

    potential = from_genlm(Listens([97, 98]))

    async def main():
        said.set("here")
        return tables.engine().run(one(1.0, (potential,), (), 2), particles=4, seed=0)

    asyncio.run(main())
    asyncio.run(main())
    assert heard == {"here"} and len(loops) == 1


def test_equal_where_they_hold_the_same_potential():
    potential = Slow([97, 98])
    assert from_genlm(potential) == from_genlm(potential)
    assert hash(from_genlm(potential)) == hash(from_genlm(potential))
    assert from_genlm(potential) != from_genlm(potential, every="end")
    assert from_genlm(potential) != from_genlm(Slow([97, 98]))
    assert repr(from_genlm(potential, every="end")) == "from_genlm(<Slow>, every='end')"


def test_characters_that_are_not_complete_and_foreign_symbols():
    potential = from_genlm(BoolFSA.from_regex("(é|€){1,2}", charset=set("é€")))
    assert potential.log_potential([Text(""), Text("é€"), Text("x")], False).tolist() == [
        0.0,
        0.0,
        -math.inf,
    ]
    assert potential.log_potential([Text("é"), Text("")], True).tolist() == [0.0, -math.inf]


@pytest.fixture
def numbered():
    """A potential over tokens that says which ids it reads, as a number in base 10."""

    class Reads(genlm.control.Potential):
        async def prefix(self, context):
            return float("".join(str(token.token_id) for token in context) or "nan")

        complete = prefix

    engine = TabularEngine(["x", "1", "12", "2.", ".", b"\xc3", b"\xa9"], lambda context: [1.0] * 8)
    return lambda *left_out: from_genlm(
        Reads([token for token in tokens_of(engine) if token.token_id not in left_out])
    )


@pytest.mark.parametrize(
    ("text", "complete", "read"),
    [
        (Text("1212", EOS, tokens=(1, 3 - 1, 2)), None, None),  # spells 11212
        (Text("112", None, tokens=(1, 2)), False, 12),
        (Text("1", None, tokens=(1, 5)), False, 1),  # an incomplete character
        (Text("1é", EOS, tokens=(1, 5, 6)), True, 156),
        (Text("1\ufffd", EOS, tokens=(1, 5)), True, 15),
        (Text("1\ufffd", ".", tokens=(1, 5, 4)), True, 15),
        (Text("12", ".", tokens=(2, 4)), True, 2),
        (Text("112", ".", tokens=(1, 1, 3)), None, None),  # spells 112., and has no token for 2
        (Text("x1", "2.", tokens=(0, 2, 4)), True, 1),  # x, 1 spelled anew
    ],
)
def test_which_tokens_are_read(numbered, text, complete, read):
    potential = numbered()
    if read is None:
        if text.stop is EOS:
            with pytest.raises(PotentialError, match=r"reads the tokens .* b'11212'.*coerce"):
                potential.log_potential([text], True)
        else:
            assert potential.log_potential([text], True).tolist() == [-math.inf]
    else:
        assert potential.log_potential([text], complete).tolist() == [read]


def test_tokens_outside_a_vocabulary_weigh_nothing(numbered):
    drawn = Text("112", tokens=(1, 2))
    assert numbered(2).log_potential([drawn], False).tolist() == [-math.inf]
    stopped = Text("112", ".", tokens=(1, 2, 4))
    assert numbered(2).log_potential([stopped], True).tolist() == [-math.inf]
    assert numbered(4).log_potential([stopped], True).tolist() == [12]
    within = Text("11", "2.", tokens=(1, 2, 4))
    assert numbered(4).log_potential([within], True).tolist() == [11]
    crossing = Text("x1", "2", tokens=(0, 2))
    assert numbered(2).log_potential([crossing], True).tolist() == [1]


class Broken(Slow):
    def __init__(self, answer):
        super().__init__([97])
        self.answer = answer

    async def batch_complete(self, contexts):
        return self.answer(contexts)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda contexts: 1 / 0, r"batch_complete of from_genlm.*raised ZeroDivision.*for 'aa'"),
        (lambda contexts: [math.nan], "returned nan for 'aa'"),
        (lambda contexts: [math.inf], "returned inf for 'aa'"),
        (lambda contexts: [None], "returned nan for 'aa'"),
        (lambda contexts: 0.0, r"shape \(\) for 'aa'"),
        (lambda contexts: torch.zeros(1, 2), r"shape \(1, 2\) for 'aa'"),
    ],
)
def test_bad_weights_show_the_text(answer, message):
    with pytest.raises(PotentialError, match=message):
        from_genlm(Broken(answer)).log_potential([Text("aa")], True)


def test_a_failure_of_a_batch_shows_its_first_text():
    with pytest.raises(PotentialError, match="for 2 texts, the first of them 'a'"):
        from_genlm(Broken(lambda contexts: 1 / 0)).log_potential([Text("a"), Text("aa")], True)


def test_what_cannot_be_read():
    with pytest.raises(TypeError, match="not str"):
        from_genlm("[0-9]+")
    with pytest.raises(ValueError, match='"block" or "end"'):
        from_genlm(Slow([97]), every="a")
    for vocabulary in ([b"ab", b"a"], ["ab"], [300, 2], [(1, 2)]):
        with pytest.raises(PotentialError, match="single bytes.*to_genlm"):
            from_genlm(Slow(vocabulary))


def test_no_waiting_for_itself():
    engine = tables.engine()
    inner = to_genlm(from_genlm(Slow([97, 98])), engine)
    assert asyncio.run(inner.complete(inner.tokenize("ab"))) == pytest.approx(-0.8)
    with pytest.raises(PotentialError, match="cannot hold another from_genlm"):
        from_genlm(inner).log_potential([Text("ab", tokens=(2,))], True)


def test_without_genlm(monkeypatch):
    monkeypatch.setitem(sys.modules, "genlm.control", None)
    for make in (lambda: from_genlm(None), lambda: to_genlm(lm, tables.engine())):
        with pytest.raises(ImportError, match=r'pip install "smcprog\[genlm\]"'):
            make()


# Ours in genlm-control

EXPORTED = {
    "lm": lm,
    "power": lm**2,
    "variant": lm.at(temperature=0.7, top_k=4),
    "growing": (lm**3).growing(over=2),
    "given": lm.given("ab"),
    "contrast": lm.given("b") ** -0.5,
    "regex": regex("a?b?(ab)?"),
    "choice": choice("ab", "abb", ""),
    "reward": reward(lambda text: text.count("a") - 0.5 * len(text)),
    "prefix reward": reward(len, beta=0.3, every="block"),
    "product": lm**2 * regex("a?b?(ab)?") * reward(len, every="block"),
}


def contexts_of(potential, length):
    """All contexts up to a length that have a weight."""
    contexts = [
        list(tokens)
        for n in range(length + 1)
        for tokens in itertools.product(potential.vocab, repeat=n)
    ]
    weights = asyncio.run(potential.batch_prefix(contexts))
    return [c for c, w in zip(contexts, weights, strict=True) if w > -math.inf]


@pytest.mark.parametrize("name", EXPORTED)
def test_contract_on_tables(name):
    engine = tables.engine()
    potential = to_genlm(EXPORTED[name], engine)
    contexts = contexts_of(potential, 2)
    assert len(contexts) > 2
    asyncio.run(potential.assert_contract(contexts, rtol=1e-9, atol=1e-12))
    assert math.isfinite(asyncio.run(potential.prefix([])))
    block = asyncio.run(potential.batch_logw_next(contexts)).weights
    assert block.dtype == np.float64 and block.shape == (len(contexts), len(potential.vocab) + 1)


def test_contract_of_products_with_theirs():
    engine = tables.engine()
    model = to_genlm(lm, engine)
    coerced = BoolFSA.from_regex("a?b?(ab)?").coerce(model, f=b"".join)
    potential = model * coerced * to_genlm(reward(len, every="block"), engine)
    asyncio.run(potential.assert_contract(contexts_of(potential, 2)))
    ours = to_genlm(regex("a?b?(ab)?"), engine)
    for context in contexts_of(ours, 3):
        pair = asyncio.run(ours.logw_next(context)), asyncio.run(coerced.logw_next(context))
        assert {t: pair[0][t] for t in ours.vocab_eos} == {t: pair[1][t] for t in ours.vocab_eos}


@pytest.fixture(scope="module")
def real():
    """A tiny transformer, its tokenizer, and an engine of the two."""
    model, tokenizer = tiny.causal_lm(), tiny.tokenizer()
    return model, tokenizer, Engine((model, tokenizer))


@pytest.mark.parametrize(
    "potential",
    [lm**2, lm.at(0.8, top_p=0.95), regex("(the|cat| ){1,4}"), lm * reward(len, every="block")],
    ids=repr,
)
def test_contract_on_a_transformer(real, potential):
    exported = to_genlm(potential, real[2])
    model = to_genlm(lm, real[2])
    contexts = [model.tokenize(text) for text in ("", "the", "the cat")]
    alive = [c for c in contexts if asyncio.run(exported.prefix(c)) > -math.inf]
    assert [] in alive
    asyncio.run(exported.assert_contract(alive, top=6))


def test_log_probabilities_are_those_of_the_table():
    """Two end tokens, a control token, a prompt; alpha = 2."""
    table = tables.random_table(3, 6)
    engine = TabularEngine(["a", "b", "ab"], table, eos=("<eos>", "<end>"), control=("<x>",))
    model = to_genlm(lm**2, engine, prompt="ab")
    context = model.tokenize("b")
    first, then = table((2,)), table((2, 1))
    log_p = 2 * math.log(first[1])
    assert asyncio.run(model.prefix(context)) == pytest.approx(log_p)
    end = 2 * math.log(then[3] + then[4])
    assert asyncio.run(model.complete(context)) == pytest.approx(log_p + end)
    weights = asyncio.run(model.logw_next(context)).weights
    np.testing.assert_allclose(weights, [*(2 * np.log(then[:3])), end])
    assert [bytes(token) for token in model.vocab] == [b"a", b"b", b"ab"]


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")
def test_their_model_and_ours_weigh_alike(real):
    model, tokenizer, engine = real
    theirs = PromptedLLM(
        AsyncTransformer(model, tokenizer, timeout=0.001), prompt_ids=tokenizer.encode("the dog")
    )
    ours = to_genlm(lm, engine, prompt="the dog")
    for text in ("", " sat", " sat on the mat"):
        context = ours.tokenize(text)
        for method in ("prefix", "complete"):
            pair = [asyncio.run(getattr(p, method)(context)) for p in (theirs, ours)]
            assert pair[0] == pytest.approx(pair[1], abs=1e-4)
        rows = [asyncio.run(p.logw_next(context)) for p in (theirs, ours)]
        for token in ours.vocab_eos:
            assert rows[0][token] == pytest.approx(rows[1][token], abs=1e-4)


def test_only_new_tokens_are_fed(real):
    """Keys and values stay between calls: a step of n particles feeds n tokens."""
    model, _, engine = real
    fed: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: fed.append(inputs[0].numel())
    )
    try:
        potential = to_genlm(lm, engine, prompt="one two three four five six seven, said the man")
        opening = len(potential.tokenize("one two three four five six seven, said the man"))
        particles = [[], [], []]
        asyncio.run(potential.batch_logw_next(particles))
        assert sum(fed) == opening
        fed.clear()
        for step in range(20):
            particles = [[*p, potential.vocab[40 + 3 * step + i]] for i, p in enumerate(particles)]
            if step == 10:
                particles[2] = particles[1]  # resampled
            asyncio.run(potential.batch_logw_next(particles))
        assert len(fed) == 20
        assert sum(fed) == 10 * 3 + 2 + 9 * 3
        fed.clear()
        asyncio.run(potential.batch_prefix(particles))  # one pass, for their log probabilities
        asyncio.run(potential.batch_prefix(particles))  # known
        assert len(fed) == 1
    finally:
        hook.remove()


def test_rows_are_given_up(monkeypatch):
    monkeypatch.setattr("smcprog.inference.kept_rows.KEPT", 4)
    engine = tables.engine()
    potential = to_genlm(lm, engine)
    contexts = contexts_of(potential, 2)  # in one call
    assert len(engine._rows) == len(contexts) == 13
    for context in contexts:
        asyncio.run(potential.logw_next(context))
    assert len(engine._rows) == 4
    asyncio.run(potential.cleanup())
    assert not engine._rows
    asyncio.run(potential.assert_contract(contexts))
    assert engine._rows
    # One that was never closed leaves its rows to the next one.
    potential._autobatched = potential  # as genlm-control's samplers do: a reference cycle
    del potential
    gc.collect()
    other = to_genlm(lm, engine)
    asyncio.run(other.logw_next([]))
    assert len(engine._rows) == 1


def test_kept_rows_do_not_fill_a_pool(real):
    model, tokenizer, _ = real
    engine = Engine((model, tokenizer), kv_tokens=128)
    potential, free = to_genlm(lm, engine, prompt="a"), to_genlm(lm, real[2], prompt="a")
    for start in range(20):
        context = potential.vocab[start : start + 50]
        assert asyncio.run(potential.prefix(context)) == pytest.approx(
            asyncio.run(free.prefix(context)), abs=1e-3
        )


def test_contexts_must_hold_its_tokens():
    potential = to_genlm(lm, tables.engine())
    with pytest.raises(PotentialError, match=r"Token objects, from its \.vocab"):
        asyncio.run(potential.prefix([b"a"]))
    with pytest.raises(ValueError, match="weight zero"):
        dead = to_genlm(regex("a"), tables.engine())
        asyncio.run(dead.logw_next(dead.tokenize("b")))
    with pytest.raises(WeightError, match="negative"):
        contrast = to_genlm(lm.given("a").at(top_k=1) ** -1, tables.engine())
        asyncio.run(contrast.logw_next([]))


def test_arguments():
    engine = tables.engine()
    with pytest.raises(TypeError, match="not str"):
        to_genlm("[0-9]", engine)
    with pytest.raises(ValueError, match="only a language model reads it"):
        to_genlm(regex("a"), engine, prompt="a")
    with pytest.raises(ValueError, match="only a language model reads it"):
        to_genlm(lm.given("b"), engine, prompt="a")
    assert repr(to_genlm(lm**2, engine)) == "to_genlm(lm**2)"


# Agreement

PATTERN = "(a|bc?){1,3}c?"
RUNS = 500


def agreement_engine():
    return tables.engine(tokens=("a", "b", "c", "ab", "bc", "ca"))


@smc_program
def constrained():
    return str(gen(regex(PATTERN), stop=EOS))


def estimates_of_ours(engine, values, runs):
    """Z^ and Z^ f^ of each value, float64[runs, 1 + len(values)]."""
    rows = []
    for start in range(0, runs, 100):
        for posterior in engine.run([constrained()] * 100, particles=4, block=2, seed=start):
            z = math.exp(posterior.log_evidence)
            marginal = posterior.marginal()
            rows.append([z, *(z * marginal.get(value, 0.0) for value in values)])
    return np.array(rows)


def estimates_of_theirs(sampler, values, runs, max_tokens):
    """The same of genlm-control's SMC. ``max_tokens`` is out of reach: it would force EOS."""
    np.random.seed(0)
    torch.manual_seed(0)

    async def all_runs():
        return [
            await sampler.smc(n_particles=4, ess_threshold=0.5, max_tokens=max_tokens)
            for _ in range(runs)
        ]

    rows = []
    for sequences in asyncio.run(all_runs()):
        weights = np.exp(sequences.log_weights) / len(sequences)
        texts = [b"".join(context[:-1]).decode() for context in sequences.contexts]
        found = [sum(w for w, t in zip(weights, texts, strict=True) if t == v) for v in values]
        rows.append([weights.sum(), *found])
    return np.array(rows)


def check_means(samples, expected):
    for column, value in zip(samples.T, expected, strict=True):
        assert_mean(column, value)


def check_equal_means(left, right):
    for a, b in zip(left.T, right.T, strict=True):
        error = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
        assert abs(a.mean() - b.mean()) < 5 * error


def test_both_posteriors_agree_with_enumeration():
    engine = agreement_engine()
    truth = enumerate_traces(constrained(), engine)
    values = list(truth.marginal())[:3]
    expected = [truth.evidence, *(truth.total(lambda v, x=x: float(v == x)) for x in values)]
    ours = estimates_of_ours(engine, values, RUNS)
    check_means(ours, expected)
    model, constraint = to_genlm(lm, engine), to_genlm(regex(PATTERN), engine)
    theirs = BoolFSA.from_regex(PATTERN).coerce(model, f=b"".join)
    for sampler, runs in (
        (DirectTokenSampler(model * constraint), RUNS),
        (AWRS(model, constraint, seed=0), RUNS // 2),
        (AWRS(model, theirs, seed=1), RUNS // 2),
    ):
        found = estimates_of_theirs(sampler, values, runs, max_tokens=12)
        check_means(found, expected)
        check_equal_means(found, ours)


def test_a_reward_as_their_critic():
    engine = agreement_engine()

    def judge(text):
        return 0.5 * text.count("c")

    truth = enumerate_traces(one(1.0, (regex("[abc]{1,3}"), reward(judge)), EOS, 8), engine)
    values = [text for text, _ in list(truth.marginal())[:3]]
    expected = [truth.evidence, *(truth.total(lambda v, x=x: float(v[0] == x)) for x in values)]
    sampler = DirectTokenSampler(to_genlm(lm * regex("[abc]{1,3}"), engine))
    for every in ("end", "block"):
        critic = to_genlm(reward(judge, every=every), engine)
        found = estimates_of_theirs(Criticised(sampler, critic), values, RUNS // 2, max_tokens=12)
        check_means(found, expected)


class Criticised:
    def __init__(self, sampler, critic):
        self.sampler, self.critic = sampler, critic

    def smc(self, **settings):
        return self.sampler.smc(critic=self.critic, **settings)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated", "ignore:Common vocabulary")
def test_agreement_on_a_transformer(real):
    """genlm-control throughout (its model, automaton and SMC), its SMC over our exports, and ours,
    on one tiny model."""
    model, tokenizer, engine = real
    pattern = "(a|t?he?){0,2}"

    @smc_program
    def program():
        return str(gen(regex(pattern), stop=EOS))

    truth = enumerate_traces(program(), table_of(engine, model))
    values = list(truth.marginal())[:3]
    expected = [truth.evidence, *(truth.total(lambda v, x=x: float(v == x)) for x in values)]
    posteriors = engine.run([program()] * 200, particles=4, seed=0)
    ours = np.array(
        [
            [
                math.exp(p.log_evidence),
                *(math.exp(p.log_evidence) * p.marginal().get(v, 0) for v in values),
            ]
            for p in posteriors
        ]
    )
    check_means(ours, expected)
    opening = list(engine.tokenization.empty_context_ids)
    their_model = PromptedLLM(AsyncTransformer(model, tokenizer, timeout=0.001), prompt_ids=opening)
    automaton = BoolFSA.from_regex(pattern)
    for llm in (their_model, to_genlm(lm, engine)):
        sampler = DirectTokenSampler(llm * automaton.coerce(llm, f=b"".join))
        found = estimates_of_theirs(sampler, values, 150, max_tokens=8)
        check_means(found, expected)
        check_equal_means(found, ours)
