"""Settings, errors that a user meets, and what a run counts."""

import random
import time
from itertools import pairwise

import numpy as np
import pytest

from smcprog import (
    ContextLengthError,
    DeadPopulationError,
    NaNLogitsError,
    ProgramError,
    TabularEngine,
    TextPotential,
    condition,
    draw,
    gen,
    prompt,
    regex,
    smc_program,
)
from tests.inference import tables


@smc_program
def simple():
    return gen(max_tokens=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"particles": 0}, "particles=0: it must be an integer of at least 1"),
        ({"particles": -3}, "particles=-3"),
        ({"particles": 2.5}, "particles=2.5"),
        ({"block": -1}, "block=-1"),
        ({"block": "automatic"}, "block='automatic': it is a number of tokens, None or \"auto\""),
        ({"max_tokens": 0}, "max_tokens=0: it must be an integer of at least 1"),
        ({"ess_threshold": -0.1}, "ess_threshold"),
        ({"ess_threshold": float("nan")}, "ess_threshold"),
        ({"resampling": "sytematic"}, "systematic, stratified, residual, multinomial"),
        ({"resample": "never"}, '"round" or "sync"'),
        ({"draft_temperature": 0.0}, "a weighted draft has to cover the target"),
        ({"verify": "accept"}, "verify='accept'"),
        ({"on_dead": "ignore"}, '"raise" or "return"'),
        ({"seed": -1}, "seed=-1"),
        ({"seed": "x"}, "seed='x'"),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(ValueError, match=message.replace("*", r"\*")):
        tables.engine().run(simple(), **settings)


def test_a_block_needs_a_draft():
    with pytest.raises(ValueError, match=r"needs a draft model.*block=0"):
        tables.engine(draft=False).run(simple(), block=2)
    assert tables.engine(draft=False).run(simple(), particles=2).stats.draft_passes == 0


def test_what_is_no_program_call():
    engine = tables.engine()
    with pytest.raises(TypeError, match=r"engine.run\(simple\(...\)"):
        engine.run(simple)
    with pytest.raises(TypeError, match="smc_program"):
        engine.run(lambda: "x")
    assert engine.run([]) == []


def test_a_dead_population_says_what_killed_it():
    @smc_program
    def doomed():
        word = gen(regex("a"))
        condition(word == "b")

    engine = tables.engine()
    with pytest.raises(DeadPopulationError, match=r"round \d: 5 died of condition at doomed:\d+"):
        engine.run(doomed(), particles=5, seed=0)
    posterior = engine.run(doomed(), particles=5, seed=0, on_dead="return")
    assert posterior.log_evidence == -np.inf
    assert (posterior.values, posterior.ess, len(posterior.weights)) == ([], 0.0, 0)
    assert sum(death.number for death in posterior.deaths) == 5
    with pytest.raises(ValueError, match="every particle died"):
        _ = posterior.best


def test_a_dead_run_of_a_list_loses_no_other():
    @smc_program
    def maybe(ok):
        condition(ok)
        return gen(max_tokens=2)

    engine = tables.engine()
    with pytest.raises(DeadPopulationError, match="program call 1 of the list") as caught:
        engine.run([maybe(True), maybe(False), maybe(True)], particles=3, seed=0)
    assert [len(posterior.values) for posterior in caught.value.posteriors] == [3, 0, 3]


def test_an_impossible_mask_is_a_death_with_a_name():
    @smc_program
    def impossible():
        return gen(regex("a+"), regex("b+"))

    with pytest.raises(DeadPopulationError, match=r"regex\('a\+'\) \* regex\('b\+'\)"):
        tables.engine().run(impossible(), particles=3)


def test_a_prompt_beyond_the_models_limit():
    @smc_program
    def long():
        prompt("a" * 20)
        return gen()

    engine = TabularEngine(tables.TOKENS, tables.random_table(0), control=("<x>",), context_limit=9)
    with pytest.raises(ContextLengthError, match=r"20 tokens.*at most 9"):
        engine.run(long(), particles=2)


def test_a_text_that_outgrows_its_context_dies_and_is_counted():
    @smc_program
    def long():
        if draw([True, False]):
            return gen(stop=(), max_tokens=50)
        return "short"

    posterior = tables.engine().run(long(), particles=16, max_tokens=10, ess_threshold=0.0, seed=0)
    dead = sum(value is None for value in posterior.values)
    assert 0 < dead < 16
    ((_, source, count, _),) = posterior.deaths
    assert count == dead
    assert "max_tokens" in source


def test_nan_tables():
    engine = TabularEngine(tables.TOKENS, lambda context: np.full(5, np.nan), control=("<x>",))
    with pytest.raises(NaNLogitsError, match="no distribution"):
        engine.run(simple(), particles=2)


def coin():
    return random.random() < 0.5


@smc_program
def flips():
    prompt("a" if coin() else "b")
    return gen(max_tokens=2)


@smc_program
def returns_a_flip():
    gen(max_tokens=2)
    return coin()


@smc_program
def clock():
    prompt("a" * (time.perf_counter_ns() % 97))
    return gen(max_tokens=2)


@pytest.mark.parametrize("program", [flips, returns_a_flip, clock])
@pytest.mark.parametrize("seed", range(5))
def test_host_code_that_is_not_deterministic_fails_in_every_run(program, seed):
    with pytest.raises(ProgramError, match="not deterministic"):
        tables.engine().run(program(), particles=1, seed=seed)


def test_all_rows_are_freed_also_after_an_error():
    engine = tables.engine()

    @smc_program
    def breaks():
        word = gen(max_tokens=2)
        if draw([True, False]):
            raise KeyError(word)
        return gen(max_tokens=2)

    engine.run(simple(), particles=4)
    assert not engine._rows
    with pytest.raises(KeyError):
        engine.run(breaks(), particles=16, seed=0)
    assert not engine._rows


def test_what_a_run_counts():
    @smc_program
    def long():
        prompt("ab" * 10)
        return gen(stop=(), max_tokens=8)

    stats = tables.engine().run(long(), particles=4, block=3, seed=0, ess_threshold=0.0).stats
    assert stats.rounds == 2
    assert stats.target_passes == 2
    assert stats.draft_passes == 6
    assert stats.drafted_tokens == stats.scored_tokens == 4 * 6
    assert stats.unshared_kv_tokens == 4 * (10 + 7)
    assert 10 + 7 <= stats.peak_kv_tokens < stats.unshared_kv_tokens
    assert stats["rounds"] == stats.rounds


@smc_program
def long_text():
    gen(max_tokens=1, stop=())
    return gen(max_tokens=30, stop=())


def test_a_run_is_watched_and_ended():
    seen = []

    def watch(progress):
        seen.append(progress)
        if progress.run == 1:
            return progress.record.round < 2
        return None

    engine = tables.engine()
    whole, ended = engine.run([long_text()] * 2, particles=4, block=2, seed=0, on_round=watch)
    assert None not in whole.values
    assert [p.record for p in seen if p.run == 0] == list(whole.rounds)
    assert len(ended.rounds) == 3
    assert ended.values == [None] * 4
    assert ended.truncated == [True] * 4
    texts = [p.text for p in seen if p.run == 1]
    assert all(
        later.startswith(earlier) or ended.stats.resamplings for earlier, later in pairwise(texts)
    )
    assert texts[-1] in ended.texts
    assert seen[-1].log_evidence == pytest.approx(whole.log_evidence)
    assert not engine._rows


def test_an_error_of_the_watcher_is_the_users():
    engine = tables.engine()
    with pytest.raises(ZeroDivisionError):
        engine.run(long_text(), particles=4, on_round=lambda progress: 1 / 0)
    assert not engine._rows


class Broken(TextPotential):
    stage = "end"

    def __repr__(self):
        return "Broken()"

    def log_potential(self, texts, complete):
        raise KeyError("boo")


def test_an_error_of_a_potential_names_it():
    @smc_program
    def judged():
        return gen(Broken(), max_tokens=2)

    with pytest.raises(KeyError) as caught:
        tables.engine().run(judged(), particles=2)
    assert any(note.startswith("raised by Broken()") for note in caught.value.__notes__)
