"""Cases that were once wrong, or that a careless loop gets wrong."""

import asyncio
import math

import numpy as np
import pytest

from smcprog import (
    ContextLengthError,
    DeadPopulationError,
    Posterior,
    TabularEngine,
    WeightError,
    call,
    choice,
    context,
    draw,
    factor,
    gen,
    lm,
    logprob,
    observe,
    prompt,
    smc_program,
    sync,
)
from smcprog.inference.exact import enumerate_traces
from tests.inference import tables
from tests.inference.programs import CountOf, NoDouble, one


def test_a_text_potential_counts_as_often_as_it_stands():
    engine = tables.engine()
    a = CountOf("a", 0.5)
    twice = enumerate_traces(one(1.0, (a, a), None, 2), engine).evidence
    double = enumerate_traces(one(1.0, (CountOf("a", 1.0),), None, 2), engine).evidence
    assert twice == pytest.approx(double, rel=1e-12)
    posteriors = engine.run([one(1.0, (a, a), None, 2)] * 400, particles=4, block=1, seed=0)
    z = np.exp([posterior.log_evidence for posterior in posteriors])
    assert abs(z.mean() - double) < 5 * z.std() / 20


def test_the_order_of_another_runs_potentials_does_not_show():
    engine = tables.engine()
    a, b = CountOf("a", 0.1), CountOf("b", 0.7)
    calls = [one(1.0, (b, a), None, 4), one(1.0, (a, b), None, 4)]
    among = engine.run(calls, particles=16, block=1, seed=0)[1]
    alone = engine.run(calls[1], particles=16, block=1, seed=among.seed)
    np.testing.assert_array_equal(alone.log_weights, among.log_weights)


def test_logprob_leaves_the_prompt_to_be_encoded_as_one():
    @smc_program
    def asked():
        prompt("a")
        logprob("a")
        logprob("a", given="b")
        prompt("b")
        return logprob("a")

    @smc_program
    def plain():
        prompt("ab")
        return logprob("a")

    engine = tables.engine()
    assert engine.run(asked(), particles=2).values == engine.run(plain(), particles=2).values
    assert not engine._rows


def test_drawn_lists_and_final_values_are_never_shared():
    options = [["x"], ["y"]]

    @smc_program
    def drawn():
        mine = draw(options)
        mine.append(str(gen(max_tokens=1)))
        sync()
        return mine

    @smc_program
    def early():
        factor(float(draw(range(4))))
        if draw([True, False]):
            return [1]
        gen(stop=(), max_tokens=4)
        return [2]

    engine = tables.engine()
    values = engine.run(drawn(), particles=8, seed=0, ess_threshold=1.0).values
    assert all(len(value) == 2 for value in values)
    assert options == [["x"], ["y"]]
    ends = engine.run(early(), particles=8, seed=0, ess_threshold=1.0).values
    assert len({id(value) for value in [*values, *ends]}) == 16


def test_an_error_in_cleanup_hides_nothing_and_holds_nothing():
    @smc_program
    def messy():
        try:
            word = gen(max_tokens=2)
            if draw([True, False]):
                raise KeyError(word)
            gen(max_tokens=2)
        finally:
            raise ValueError("cleanup")

    engine = tables.engine()
    with pytest.raises(ValueError, match="cleanup"):
        engine.run(messy(), particles=8, seed=0)
    assert not engine._rows


def test_methods_are_called_in_one_batch():
    class Judge:
        sizes: list[int] = []

        def score(self, texts):
            self.sizes.append(len(texts))
            return [float(len(text)) for text in texts]

    judge = Judge()

    @smc_program
    def judged():
        text = gen(max_tokens=2)
        return call(judge.score, text, batch=True) == len(text)

    assert all(tables.engine().run(judged(), particles=8, block=0, seed=0).values)
    assert sum(judge.sizes) == 8
    assert len(judge.sizes) < 8


def test_every_error_of_a_call_reaches_the_program():
    async def two(a, b):
        return a

    async def cancelled():
        raise asyncio.CancelledError

    def late(values):
        yield from values
        raise OSError("late")

    async def leaves():
        raise SystemExit(3)

    @smc_program
    def careful(fn, batch, *args):
        try:
            return call(fn, *args, batch=batch)
        except BaseException as error:
            return type(error).__name__

    engine = tables.engine()

    def names(fn, batch=False, *args):
        return set(engine.run(careful(fn, batch, *args), particles=3).values)

    assert names(two, False, 1) == {"TypeError"}
    assert names(cancelled) == {"CancelledError"}
    assert names(late, True, 1) == {"OSError"}
    assert names(lambda values: None, True, 1) == {"TypeError"}
    with pytest.raises(SystemExit):
        names(leaves)


def test_a_text_that_grows_when_it_is_cut_back_dies_rather_than_raise():
    # Without "." the token "aaaa." becomes four tokens, more than the context may hold.
    engine = TabularEngine(["a", "aaaa."], lambda context: [1, 1, 0.2], context_limit=3)

    @smc_program
    def sentence():
        return gen(stop=".", max_tokens=3)

    posterior = engine.run(sentence(), particles=32, seed=0, ess_threshold=0.0)
    assert any(value is None for value in posterior.values)
    assert all("context" in death.source for death in posterior.deaths)


def test_max_tokens_comes_before_the_models_limit():
    engine = TabularEngine(["a"], lambda context: [1, 1], context_limit=8)

    @smc_program
    def long(n):
        prompt("a" * n)
        return gen(max_tokens=1)

    with pytest.raises(DeadPopulationError, match="max_tokens"):
        engine.run(long(10), particles=2, max_tokens=4)
    with pytest.raises(ContextLengthError):
        engine.run(long(10), particles=2)


def test_characters_that_two_gens_share():
    engine = TabularEngine([b"\xc3", b"\xa9"], lambda c: [1, 0, 0] if len(c) == 0 else [0, 1, 0])

    @smc_program
    def half_and_half():
        gen(max_tokens=1, stop=())
        gen(max_tokens=1, stop=())
        return context()

    posterior = engine.run(half_and_half(), particles=2)
    assert posterior.values == posterior.texts == ["é", "é"]


def test_logprob_of_a_text_is_under_the_model_itself():
    @smc_program
    def sharpened():
        return gen(lm.at(temperature=0.5) * lm, stop=(), max_tokens=2)

    posterior = tables.engine().run(sharpened(), particles=4, seed=0)
    table = tables.random_table(0)
    for text in posterior.values:
        ids = text.tokens
        expected = sum(math.log(table(ids[:i])[token]) for i, token in enumerate(ids))
        assert text.logprob == pytest.approx(expected)


def test_the_dead_are_counted_by_potential_and_keep_their_story():
    @smc_program
    def doomed():
        if draw([True, False]):
            gen(NoDouble("b"), stop=(), max_tokens=9)
            gen(choice("aaaa"), max_tokens=1)

    posterior = tables.engine().run(doomed(), particles=64, seed=0, ess_threshold=0.0)
    assert len({death.source for death in posterior.deaths}) == 2
    assert all(death.example for death in posterior.deaths)
    assert any("cut at max_tokens=1" in death.source for death in posterior.deaths)
    for value, trace, weight in zip(
        posterior.values, posterior.traces, posterior.log_weights, strict=True
    ):
        if weight == -np.inf:
            assert value is None
            assert (trace[-1].statement, trace[-1].logw) == ("gen", -np.inf)


def test_weights_do_not_overflow_in_silence():
    @smc_program
    def heavy(sign):
        factor(sign * 1e308)
        factor(sign * 1e308)

    with pytest.raises(WeightError, match="1e\\+308"):
        tables.engine().run(heavy(1), particles=2)
    with pytest.raises(DeadPopulationError, match="factor at heavy"):
        tables.engine().run(heavy(-1), particles=2)


def test_huge_odds_and_ranges():
    @smc_program
    def odds():
        return draw("xy", [1e308, 1e308]), draw(range(10**6))

    values = tables.engine().run(odds(), particles=64, seed=0).values
    assert {letter for letter, _ in values} == {"x", "y"}


def test_a_death_by_observation_survives_saving(tmp_path):
    engine = TabularEngine(("a", "b"), lambda c: [1, 0, 1] if c[:1] == (0,) else [1, 1, 1])

    @smc_program
    def watch():
        side = draw(["a", "b"])
        prompt(side)
        observe("b")
        return side

    posterior = engine.run(watch(), particles=16, seed=1, ess_threshold=0.0)
    posterior.save(tmp_path / "p.json")
    assert Posterior.load(tmp_path / "p.json").traces == posterior.traces


def test_a_loop_that_the_model_has_ended_is_ended():
    engine = TabularEngine(("a",), lambda context: [1e-9, 1.0])

    @smc_program
    def forever():
        while True:
            gen(max_tokens=3)

    @smc_program
    def prompts():
        while True:
            prompt("a")

    with pytest.raises(DeadPopulationError, match="stop is EOS"):
        engine.run(forever(), particles=2, seed=0)
    with pytest.raises(DeadPopulationError, match="max_tokens"):
        engine.run(prompts(), particles=2, seed=0, max_tokens=50)


def test_a_sync_run_without_text_is_tested_at_its_end():
    @smc_program
    def weigh():
        factor(float(draw(range(9))))

    posterior = tables.engine().run(
        weigh(), particles=8, seed=0, resample="sync", ess_threshold=1.0
    )
    assert [record.resampled for record in posterior.rounds] == [True]
