"""Other contexts and models in a `gen`, asides, hints, exponents that grow: DESIGN sections 1, 2.

Exactly, on the tabular engine: the enumeration against a reading of section 2 that shares nothing
with it, then every outcome of proposals against the enumeration.
"""

import itertools

import numpy as np
import pytest

from smcprog import (
    EOS,
    LEAVE,
    ContextLengthError,
    ModelError,
    ProgramError,
    TabularEngine,
    WeightError,
    aside,
    condition,
    context,
    draw,
    factor,
    gen,
    lm,
    logprob,
    model,
    observe,
    prompt,
    regex,
    smc_program,
    sync,
    twist,
)
from smcprog.inference.exact import enumerate_traces
from tests.inference import tables
from tests.inference.test_enumeration import ALPHAS, expected_weights, masses
from tests.inference.test_monte_carlo import assert_mean

SIZE = tables.SIZE
EOS_ID = 3
TARGET, DRAFT, OTHER = (tables.random_table(seed) for seed in (0, 1, 2))


def engine(draft=True, context_limit=None):
    return TabularEngine(
        tables.TOKENS,
        TARGET,
        DRAFT if draft else None,
        control=tables.CONTROL,
        context_limit=context_limit,
        others={"other": OTHER},
    )


@smc_program
def after(start, potentials, stop=None, max_tokens=3, hint=None):
    prompt(start)
    return str(gen(*potentials, stop=stop, max_tokens=max_tokens, hint=hint))


def by_hand(contexts, length):
    """The measure of a free `gen` of up to ``length`` tokens: prod_i p_i^alpha_i of each text, for
    (table, context ids, alpha) triples."""
    law = {}
    for n in range(length + 1):
        for ids in itertools.product(range(3), repeat=n):
            events = (*ids, EOS_ID) if n < length else ids
            gamma = 1.0
            for table, start, alpha in contexts:
                for t, event in enumerate(events):
                    gamma *= float(table((*start, *ids[:t]))[event]) ** alpha
            text = "".join(tables.TOKENS[i] for i in ids)
            law[text] = law.get(text, 0.0) + gamma
    return law


@pytest.mark.parametrize(
    ("potentials", "contexts"),
    [
        ((lm.given("b"),), [(TARGET, (0,), 1.0), (TARGET, (1,), 1.0)]),
        ((lm.given("") ** -0.5,), [(TARGET, (0,), 1.0), (TARGET, (), -0.5)]),
        (
            (lm**2, lm.given("b") ** 0.5, lm.given("ba") ** -0.3),
            [(TARGET, (0,), 2.0), (TARGET, (1,), 0.5), (TARGET, (1, 0), -0.3)],
        ),
        ((model("other"),), [(TARGET, (0,), 1.0), (OTHER, (0,), 1.0)]),
        (
            (model("other").given("b") ** -1, lm.given("b")),
            [(TARGET, (0,), 1.0), (OTHER, (1,), -1.0), (TARGET, (1,), 1.0)],
        ),
    ],
)
def test_the_truth_of_other_contexts(potentials, contexts):
    truth = masses(enumerate_traces(after("a", potentials), engine()))
    assert truth == pytest.approx(by_hand(contexts, 3), rel=1e-12)


def check(call, block, **settings):
    used = engine()
    truth = masses(enumerate_traces(call, used))
    assert len(truth) > 1
    found = masses(expected_weights(call, used, block, **settings))
    assert found == pytest.approx(truth, rel=1e-10, abs=1e-14)
    assert not used._rows


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("block", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("potentials", "stop"),
    [
        ((lm.given("b"),), None),
        ((lm.given("b") ** 0.5, lm.given("") ** -0.5), ("ab", "b")),
        ((lm.given("b") ** -0.5, regex("a+b?")), LEAVE),
        ((lm.given("b") ** 2, regex("(ab|a)b*")), (LEAVE, EOS)),
        ((lm.given("a").at(temperature=2.0), lm.at(top_k=2)), None),
        ((model("other") ** -0.5, lm.given("b")), None),
    ],
)
def test_every_outcome(potentials, stop, block, alpha):
    check(after("a", (lm**alpha, *potentials), stop), block)


def test_experts_commute():
    """Prompt intersection: it does not matter which prompt is the context."""
    one = enumerate_traces(after("a", (lm.given("b"),)), engine())
    two = enumerate_traces(after("b", (lm.given("a"),)), engine())
    assert masses(one) == pytest.approx(masses(two), rel=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("block", [0, 1, 3])
def test_a_growing_exponent_leaves_the_target_as_it_was(alpha, block):
    plain = masses(enumerate_traces(after("a", (lm**alpha,)), engine()))
    growing = after("a", ((lm**alpha).growing(over=2), regex("[ab]*")), EOS)
    check(growing, block)
    found = masses(expected_weights(after("a", ((lm**alpha).growing(over=5),)), engine(), block))
    assert found == pytest.approx(plain, rel=1e-10)


def test_a_growing_exponent_is_what_resampling_sees():
    (posterior,) = engine(draft=False).run(
        [after("a", ((lm**3).growing(over=4),), (), 4)], particles=1, seed=1, ess_threshold=0
    )
    (ids,) = posterior.tokens
    logs = [np.log(TARGET((0, *ids[:t]))[i]) for t, i in enumerate(ids)]
    masses_ = [np.log(np.sum(TARGET((0, *ids[:t]))[:3] ** 3)) for t in range(4)]
    # K = 0: the final weight is that of lm**3, whatever was charged on the way.
    assert posterior.log_weights[0] == pytest.approx(sum(masses_), rel=1e-12)
    assert lm.growing(over=4).exponent(1) == 1 and (lm**3).growing(over=4).exponent(2) == 2.0
    assert posterior.texts and len(logs) == 4


@pytest.mark.parametrize("block", [1, 2, 3])
def test_a_hint_moves_the_proposal_alone(block):
    plain = masses(enumerate_traces(after("a", (lm**2,)), engine()))
    for limit in (None, 4, 5):  # the hint's row runs into the limit
        used = engine(context_limit=limit)
        call = after("a", (lm**2, lm.given("")), hint="ba")
        truth = masses(enumerate_traces(after("a", (lm**2, lm.given(""))), used))
        assert masses(expected_weights(call, used, block)) == pytest.approx(truth, rel=1e-10)
        assert not used._rows
    hinted = masses(expected_weights(after("a", (lm**2,), hint="ba"), engine(), block))
    assert hinted == pytest.approx(plain, rel=1e-10)


def test_what_the_draft_reads():
    seen = []

    def draft(ids):
        seen.append(ids)
        return DRAFT(ids)

    used = TabularEngine(tables.TOKENS, TARGET, draft, control=tables.CONTROL)
    used.run(after("a", (), (), 3, hint="ba"), particles=1, block=3, seed=0)
    assert seen[0] == (1, 0, 0) and all(ids[:3] == (1, 0, 0) for ids in seen)
    with pytest.raises(ContextLengthError, match="the hint and the context makes a context of 5"):
        engine(context_limit=4).run(after("a", (), hint="bbbb"), particles=1)
    with pytest.raises(ContextLengthError, match=r"lm.given\('bbbb'.*context of 4 tokens"):
        engine(context_limit=3).run(after("a", (lm.given("bbbb"),)), particles=1)


@smc_program
def observed(start):
    prompt(start)
    word = draw(["a", "b", "ab"])
    p = observe(word, lm**2 * lm.given("b") ** -0.5)
    factor(0.1 * p)
    end = observe(EOS, lm.given(""))
    return word, round(end, 6)


def test_observe_under_other_contexts():
    law = {}
    for i, word in enumerate(tables.TOKENS):
        p, q = TARGET((0,))[i], TARGET((1,))[i]
        end, empty = TARGET((0, i))[EOS_ID], TARGET(())[EOS_ID]
        gamma = p**2 * q**-0.5 * p**0.1 * end * empty / 3
        law[word, round(float(np.log(end)), 6)] = gamma
    assert masses(enumerate_traces(observed("a"), engine())) == pytest.approx(law, rel=1e-12)
    check(observed("a"), 2)


def test_a_zero_under_a_negative_exponent():
    call = after("a", (lm.given("b").at(top_k=1) ** -1,))
    for block in (0, 2):
        with pytest.raises(WeightError, match=r"lm.given\('b'\).at\(top_k=1\)\*\*-1: an event"):
            engine().run(call, particles=16, block=block, seed=0)
    # Where the target cannot draw it either, the weight is 0 and nothing is wrong.
    both = after("a", (lm.at(top_k=1), lm.given("a").at(top_k=1) ** -1), EOS)
    posterior = engine().run(both, particles=4, block=0, seed=0)
    assert posterior.log_evidence == pytest.approx(0.0, abs=1e-12)


def test_exponents():
    with pytest.raises(ValueError, match="the exponent of lm must be finite and > 0, not -1"):
        lm**-1
    with pytest.raises(ValueError, match=r"of lm.given\('x'\) must be finite and not 0, not 0"):
        lm.given("x") ** 0
    with pytest.raises(TypeError, match=r"lm.given\(\) takes text"):
        lm.given(3)
    with pytest.raises(TypeError, match=r"model\(\) takes a folder, a hub name"):
        model(3)
    with pytest.raises(ValueError, match=r"growing\(over=0\): it is a number of tokens"):
        lm.growing(over=0)
    with pytest.raises(ValueError, match="only a power of lm itself can grow"):
        lm.given("x").growing(over=3)
    assert (lm.given("a") * lm.given("a") ** -1).lms == (lm,)
    assert (lm.given("a") * lm**2 * lm.given("a")).lms == (lm**2, lm.given("a") ** 2)
    assert repr((lm**2).growing(over=8) * model("x") ** -1) == (
        "(lm**2).growing(over=8) * model('x')**-1"
    )


def test_a_model_that_is_not_there():
    with pytest.raises(ModelError, match="has no model 'missing'"):
        engine().run(after("a", (model("missing"),)), particles=1)


# Asides


@smc_program
def judge(answer):
    prompt(answer)
    verdict = gen(regex("a|b"))
    factor(0.5 * (verdict == "a"))
    return str(verdict)


@smc_program
def judged(alpha, inherit):
    prompt("b")
    answer = gen(lm**alpha, regex("[ab]"))
    first = aside(judge(answer), inherit=inherit)
    word = gen(lm**alpha, regex("[ab]{1,2}"))
    return answer + first + word + "|" + context()


@smc_program
def judged_by_hand(alpha, inherit):
    prompt("b")
    answer = gen(lm**alpha, regex("[ab]"))
    first = draw(["a", "b"], weights=[1, 1])
    odds = logprob([*"ab", "ab"], given=("b" + answer if inherit else "") + answer)
    total = np.exp(odds[0]) + np.exp(odds[1]) + np.exp(odds[2])
    factor(float(np.log(2 * np.exp(odds["ab".index(first)]))) + 0 * total)
    factor(0.5 * (first == "a"))
    word = gen(lm**alpha, regex("[ab]{1,2}"))
    return answer + first + word + "|" + context()


@pytest.mark.parametrize("inherit", [False, True])
@pytest.mark.parametrize("alpha", [0.5, 2.0])
def test_an_aside(alpha, inherit):
    truth = masses(enumerate_traces(judged(alpha, inherit), engine()))
    by_hand = masses(enumerate_traces(judged_by_hand(alpha, inherit), engine()))
    assert truth == pytest.approx(by_hand, rel=1e-12)
    assert all(value.split("|")[1][0] == "b" for value in truth)
    for block in (0, 1, 2):
        check(judged(alpha, inherit), block)


def test_an_aside_by_monte_carlo():
    truth = enumerate_traces(judged(2.0, True), engine())
    used = engine()
    calls = [judged(2.0, True)] * 100
    evidence = [
        np.exp(posterior.log_evidence)
        for start in range(20)
        for posterior in used.run(calls, particles=4, block=2, seed=start, ess_threshold=1.0)
    ]
    assert_mean(np.array(evidence), truth.evidence)
    assert not used._rows


@smc_program
def failing(text):
    prompt(text)
    gen(regex("a"))
    raise ValueError(context())


@smc_program
def depth(n):
    prompt("a")
    below = aside(depth(n - 1), inherit=True) if n else ""
    return f"{context()}<{below}>"


@smc_program
def asides():
    prompt("b")
    twist(0.3)
    try:
        aside(failing("ab"))
    except ValueError as error:
        seen = str(error)
    prompt(f"a{aside(depth(1))}"[:1])
    several = [aside(depth(0), inherit=bool(i)) for i in range(2)]
    sync()
    return seen, context(), several, aside(depth(2))


def test_contexts_come_back():
    posterior = engine().run(asides(), particles=6, seed=2, ess_threshold=1.0)
    assert posterior.best == ("aba", "ba", ["a<>", "baa<>"], "a<aa<aaa<>>>")
    assert posterior.texts == [""] * 6
    assert [entry.statement for entry in posterior.trace(0)][:5] == [
        "prompt",
        "twist",
        "prompt",
        "gen",
        "context",
    ]
    assert "aside" in [entry.statement for entry in posterior.trace(0)]


@smc_program
async def by_hand_awaited(text):
    await prompt(text)
    verdict = await aside(judge(text))
    return verdict, await context()


def test_an_aside_in_awaited_code():
    assert engine().run(by_hand_awaited("b"), particles=4, seed=0).best[1] == "b"
    given = engine().run(handed(judge("b")), particles=4, seed=0)
    assert given.best[1] == "a"


@smc_program
def handed(called):
    prompt("a")
    return aside(called), context()


@smc_program
def not_called():
    return aside(judge)


@smc_program
def not_a_program(text):
    return aside(text)


def test_what_an_aside_takes():
    with pytest.raises(ProgramError, match=r"aside\(\) takes a program call, not <program judge"):
        engine().run(not_called(), particles=1)
    with pytest.raises(ProgramError, match=r"aside\(\) takes a program call, not str"):
        engine().run(not_a_program("x"), particles=1)


def test_a_plan_shows_an_aside():
    shown = judged.plan().explain()
    assert "first = aside(judge(answer), inherit=inherit)" in shown
    assert 'verdict = gen(regex("a|b"))' in shown
    shown = after.plan().explain()
    assert "decided at run time" in shown


@smc_program
def planned(text):
    prompt(text)
    return gen(lm.given(text) ** 0.5, model("other") ** -1, regex("a+"))


def test_a_plan_shows_other_contexts_beside_the_target():
    rows = [(f.source, f.stage) for f in planned.plan().statements[1].potentials]
    assert ("lm", "score") in rows and len(rows) == 4


@smc_program
def dies():
    prompt("a")
    gen(lm.given("b"), regex("[ab]{3}"), hint="ab")
    condition(False)


def test_nothing_is_left_open():
    used = engine()
    used.run(dies(), particles=4, block=2, on_dead="return")
    assert not used._rows


def test_statements_in_the_arguments_of_a_held_call_are_refused():
    with pytest.raises(ProgramError, match=r"gen\(\) stands inside the arguments of judge\(\)"):

        @smc_program
        def nested():
            return aside(judge(gen(max_tokens=2)))
