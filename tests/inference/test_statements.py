"""What each statement does in a run, on tabular models."""

import asyncio
import threading
import warnings

import numpy as np
import pytest

from smcprog import (
    EOS,
    LEAVE,
    TabularEngine,
    VocabularyError,
    WeightError,
    call,
    choice,
    condition,
    context,
    draw,
    factor,
    gen,
    lm,
    logprob,
    observe,
    prompt,
    regex,
    smc_program,
    special,
    sync,
    twist,
)
from tests.inference import tables

TABLE = tables.random_table(0)


def log_p(*ids):
    """log p of a token sequence from the empty context under the target."""
    return sum(np.log(TABLE(ids[:i])[token]) for i, token in enumerate(ids))


def run(program_call, **settings):
    settings = {"particles": 4, "seed": 0, **settings}
    return tables.engine().run(program_call, **settings)


def test_prompts_are_encoded_as_one_text():
    @smc_program
    def split():
        prompt("a")
        prompt("b")
        return logprob("a")

    @smc_program
    def whole():
        prompt("ab")
        return logprob("a")

    assert run(split()).values == run(whole()).values
    assert run(whole()).values[0] == pytest.approx(log_p(2, 0) - log_p(2))


def test_special_tokens_are_meant_by_special():
    @smc_program
    def marked():
        prompt("a", special("<x>"))
        return logprob("b"), context()

    @smc_program
    def unknown():
        prompt(special("<y>"))
        return gen()

    value, text = run(marked()).values[0]
    assert value == pytest.approx(log_p(0, 4, 1) - log_p(0, 4))
    assert text == "a<x>"
    with pytest.raises(VocabularyError, match="<y>.*<x>"):
        run(unknown())


def test_observe_charges_and_appends():
    @smc_program
    def watch():
        p = observe("ab", lm**2)
        q = observe(EOS)
        return p, q, context()

    posterior = run(watch())
    p, q, text = posterior.values[0]
    assert p == pytest.approx(log_p(2))
    assert q == pytest.approx(log_p(2, 3) - log_p(2))
    assert text == "ab"
    np.testing.assert_allclose(posterior.log_weights, 2 * p + q)


def test_an_impossible_observation_kills():
    engine = TabularEngine(("a", "b"), lambda context: [1.0, 0.0, 1.0])

    @smc_program
    def watch():
        observe(draw(["a", "b"]))
        return context()

    posterior = engine.run(watch(), particles=16, seed=0, ess_threshold=0.0)
    assert set(posterior.values) == {"a", None}
    assert not engine._rows
    assert "observe at watch" in posterior.deaths[0][1]


def test_logprob_changes_nothing():
    @smc_program
    def ask():
        one = logprob("a")
        two = logprob(["a", "ba"])
        other = logprob("a", given="b")
        return one, two, other, context()

    posterior = run(ask())
    one, two, other, text = posterior.values[0]
    assert one == two[0] == pytest.approx(log_p(0))
    assert two[1] == pytest.approx(log_p(1, 0))
    assert other == pytest.approx(log_p(1, 0) - log_p(1))
    assert text == ""
    np.testing.assert_array_equal(posterior.log_weights, 0.0)


def test_weights_of_factor_and_condition():
    @smc_program
    def weigh():
        kept = draw([True, False])
        factor(np.float32(0.5))
        condition(kept)
        return kept

    posterior = run(weigh(), particles=64, ess_threshold=0.0)
    alive = [value is True for value in posterior.values]
    assert 0 < sum(alive) < 64
    np.testing.assert_array_equal(posterior.log_weights == 0.5, alive)
    assert [value for value in posterior.values if value is not True] == [None] * (64 - sum(alive))
    ((round_number, source, died, _),) = posterior.deaths
    assert (round_number, died) == (0, 64 - sum(alive))
    assert "condition(kept)" in source


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_weights_name_their_source(bad):
    @smc_program
    def wrong():
        factor(bad)

    with pytest.raises(WeightError, match=r"(?s)factor\(\) was given.*factor\(bad\)"):
        run(wrong())


def test_twists_are_taken_back():
    @smc_program
    def guess():
        twist(2.0)
        twist(0.5)
        sync()
        return "x"

    posterior = run(guess())
    np.testing.assert_allclose(posterior.log_weights, 0.0, atol=1e-15)
    assert [entry.logw for entry in posterior.trace(0)] == [2.0, -1.5, 0.0, -0.5]


def test_a_twist_steers_resampling():
    @smc_program
    def steered():
        good = draw([True, False])
        twist(30.0 if good else 0.0)
        sync()
        return good

    posterior = run(steered(), particles=16, ess_threshold=1.0)
    assert posterior.values == [True] * 16
    assert posterior.rounds[0].resampled


def test_sync_waits_for_everyone():
    @smc_program
    def staggered():
        if draw([True, False]):
            gen(max_tokens=1, stop=())
            gen(max_tokens=1, stop=())
            gen(max_tokens=1, stop=())
        factor(draw([0.0, 5.0]))
        sync()
        return context()

    posterior = run(staggered(), particles=8, block=0, ess_threshold=1.0)
    assert [record.resampled for record in posterior.rounds] == [False, False, True]


def test_draws_follow_their_weights():
    @smc_program
    def dice():
        return draw("abc", [1, 0, 3]), draw(range(2))

    values = run(dice(), particles=4000).values
    share = np.mean([first == "c" for first, _ in values])
    assert abs(share - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 4000)
    assert {first for first, _ in values} == {"a", "c"}


def test_call_runs_once_and_is_remembered():
    seen = []

    def work(slot):
        seen.append(slot)
        return [slot]

    @smc_program
    def worker():
        slot = draw(range(1000))
        found = call(work, slot)
        found.append("mine")
        gen(stop=(), max_tokens=3)
        factor(float(slot))
        sync()
        gen(stop=(), max_tokens=3)
        return slot, found

    posterior = run(worker(), particles=8, ess_threshold=1.0)
    assert len(seen) == 8
    assert any(record.resampled for record in posterior.rounds)
    for slot, found in posterior.values:
        assert found == [slot, "mine"]
    assert len({id(found) for _, found in posterior.values}) == 8


def test_calls_together_and_asynchronous():
    batches, threads = [], set()

    def double(numbers, names):
        batches.append(numbers)
        return [2 * n for n in numbers]

    async def slow(n):
        threads.add(threading.get_ident())
        await asyncio.sleep(0.01)
        return n + 1

    @smc_program
    def both():
        n = draw(range(100))
        two = call(double, n, "x", batch=True)
        return n, two, call(slow, n)

    async def inside_a_loop():
        return run(both(), particles=6)

    for posterior in (run(both(), particles=6), asyncio.run(inside_a_loop())):
        assert all(two == 2 * n and more == n + 1 for n, two, more in posterior.values)
    assert [len(batch) for batch in batches] == [6, 6]
    assert threading.get_ident() not in threads


def test_what_a_call_raises_is_raised_in_the_program():
    def fail(slot):
        raise OSError(f"no {slot}")

    @smc_program
    def careful():
        slot = draw(range(3))
        try:
            return call(fail, slot)
        except OSError as error:
            gen(stop=(), max_tokens=2)
            return str(error)

    @smc_program
    def careless():
        return call(fail, 7)

    assert set(run(careful(), particles=8, ess_threshold=1.0).values) <= {"no 0", "no 1", "no 2"}
    with pytest.raises(OSError, match="no 7"):
        run(careless())


class Spelled(TabularEngine):
    """Draws the tokens of one text, then <eos>, whatever the context."""

    def __init__(self, tokens, text):
        ids = [tokens.index(token) for token in text]

        def table(context):
            p = np.full(len(tokens) + 1, 1e-9)
            p[ids[len(context)] if len(context) < len(ids) else -1] = 1.0
            return p

        super().__init__(tokens, table)
        self.table = table


@pytest.mark.parametrize("keep", [False, True])
def test_the_context_keeps_the_text_and_nothing_more(keep):
    tokens = ("a", ".", "b", "a.b", "\n", "é"[:1])
    engine = Spelled(tokens, ("a", "b", "a.b", "\n"))

    @smc_program
    def sentence():
        text = gen(stop=".", keep_stop=keep)
        return text, text.stop, text.tokens, context(), logprob("b")

    text, stop, drawn, kept, after = engine.run(sentence(), particles=1, seed=0).values[0]
    assert (text, stop, drawn) == ("aba", ".", (0, 2, 3))
    assert kept == ("aba." if keep else "aba")
    # The context went back to tokens before the stop: what follows is conditioned on those.
    ids = (0, 2, 0, 1) if keep else (0, 2, 0)
    assert after == pytest.approx(np.log(engine.table(ids)[2] / engine.table(ids).sum()))


def test_a_text_that_is_cut_says_so():
    @smc_program
    def cut():
        text = gen(stop=(), max_tokens=2)
        word = gen(regex("[ab]{2}"), max_tokens=1)
        return text.stop, word.stop

    posterior = run(cut(), particles=32, ess_threshold=0.0)
    assert all(posterior.truncated)
    # The second gen needs two letters: one token is enough only where it is "ab".
    assert set(posterior.values) == {None, (None, LEAVE)}


def test_a_prohibition_is_pointed_out():
    @smc_program
    def forbid():
        return gen(regex("[^b]*"), max_tokens=8)

    @smc_program
    def allow():
        return gen(regex("[^b]*"), stop=EOS, max_tokens=8)

    with pytest.warns(UserWarning, match="stop=EOS"):
        run(forbid(), particles=64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(allow(), particles=64)


def test_a_choice_that_is_complete_ends_for_nothing():
    @smc_program
    def nothing():
        empty = gen(choice(""))
        return empty, empty.stop, empty.tokens

    posterior = run(nothing())
    assert posterior.values[0] == ("", LEAVE, ())
    np.testing.assert_array_equal(posterior.log_weights, 0.0)


def test_finished_and_dead_particles_cost_no_pass():
    @smc_program
    def uneven():
        lucky = draw([True, False])
        condition(lucky or draw([True, False]))
        if lucky:
            return "done"
        return gen(stop=(), max_tokens=6)

    posterior = run(uneven(), particles=16, block=0, ess_threshold=0.0)
    running = sum(value not in ("done", None) for value in posterior.values)
    assert 0 < running < 16
    assert posterior.stats.target_passes == 6
    assert [sum(map(bool, record.tokens)) for record in posterior.rounds] == [running] * 6


def test_a_trace_tells_the_story():
    @smc_program
    def story():
        prompt("a")
        word = gen(lm**2, stop=(), max_tokens=2)
        factor(0.25)
        return word

    posterior = run(story(), ess_threshold=0.0)
    for i, (text, weight) in enumerate(zip(posterior.texts, posterior.log_weights, strict=True)):
        begin, word, weigh = posterior.trace(i)
        assert (begin.statement, begin.text, begin.logw) == ("prompt", "a", 0.0)
        assert (word.statement, word.variable, word.text) == ("gen", "word", text)
        assert (weigh.statement, weigh.logw) == ("factor", 0.25)
        assert begin.line + 1 == word.line == weigh.line - 1
        assert word.logw + weigh.logw == pytest.approx(weight)
        assert word.logprob == posterior.values[i].logprob < 0
