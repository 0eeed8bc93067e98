"""Many programs at once: of unlike N and K, entering as others leave, with the results of alone."""

import numpy as np
import pytest

from smcprog import gen, prompt, smc_program
from smcprog.inference import smc
from tests.inference import tables
from tests.inference.programs import PROGRAMS


class Roomy(tables.TabularEngine):
    """A tabular engine with room for so many tokens, which notes how the queue was asked."""

    room = 10**6

    def has_room(self, lengths):
        return sum(lengths) <= self.room

    def score(self, queries):
        self.most = max(getattr(self, "most", 0), len(queries))
        return super().score(queries)


def engine(room=10**6):
    made = Roomy(
        tables.TOKENS, tables.random_table(0), tables.random_table(1), control=tables.CONTROL
    )
    made.room = room
    return made


def check_as_alone(posteriors, calls, **settings):
    for i, (posterior, call) in enumerate(zip(posteriors, calls, strict=True)):
        chosen = {k: v[i] if isinstance(v, list) else v for k, v in settings.items()}
        alone = engine().run(call, seed=posterior.seed, **chosen)
        np.testing.assert_array_equal(alone.log_weights, posterior.log_weights)
        assert alone.values == posterior.values
        assert [r.ancestors for r in alone.rounds] == [r.ancestors for r in posterior.rounds]


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
def test_unlike_n_and_k():
    calls = [program(2.0) for program in PROGRAMS.values()][:6]
    settings = {"particles": [1, 2, 3, 4, 5, 6], "block": [0, 1, 2, 3, None, 0]}
    posteriors = engine().run(calls, seed=3, on_dead="return", **settings)
    assert [len(p.values) for p in posteriors if p.values] == [
        n for n, p in zip(settings["particles"], posteriors, strict=True) if p.values
    ]
    check_as_alone(posteriors, calls, on_dead="return", **settings)


def test_a_number_of_settings_that_does_not_fit():
    calls = [PROGRAMS["loop"](1.0)] * 3
    with pytest.raises(ValueError, match=r"particles=\[4, 4\]: 2 values for 3 program calls"):
        engine().run(calls, particles=[4, 4])
    with pytest.raises(ValueError, match=r"block=\[1\]: 1 values for one program call"):
        engine().run(calls[0], block=[1])
    with pytest.raises(ValueError, match="particles=0"):
        engine().run(calls, particles=[4, 0, 4])


@smc_program
def letters(n):
    prompt("ab")
    return gen(stop=(), max_tokens=n)


@pytest.mark.parametrize(("room", "most"), [(4 * 20, 4), (3 * 4 * 20, 12), (10, 4)])
def test_runs_wait_for_room(room, most):
    """A context of at most 20 tokens, 4 particles a run: one run at a time, three, and (none
    fits) one."""
    calls = [letters(n) for n in (9, 2, 5, 7, 3, 8)]
    settings = {"particles": 4, "block": 2, "max_tokens": 20}
    crowded = engine(room)
    posteriors = crowded.run(calls, seed=5, **settings)
    assert crowded.most == most
    assert not crowded._rows
    check_as_alone(posteriors, calls, **settings)


def test_first_come_first_served(monkeypatch):
    """The large run at the head of the queue is not overtaken by the small ones behind it."""
    monkeypatch.setattr(smc, "MOST_PARTICLES", 8)
    entered = []
    advance = smc.advance

    def noted(engine, runs):
        entered.extend(run for run in runs if run not in entered)
        advance(engine, runs)

    monkeypatch.setattr(smc, "advance", noted)
    crowded = engine()
    crowded.run([letters(n) for n in (9, 5, 2, 3)], particles=[4, 8, 2, 2], block=0, seed=0)
    assert [len(run.particles) for run in entered] == [4, 8, 2, 2]
    assert crowded.most == 8


def test_an_error_frees_the_rows_of_all():
    @smc_program
    def breaks():
        gen(max_tokens=2)
        raise KeyError("no")

    crowded = engine(4 * 20)
    with pytest.raises(KeyError):
        crowded.run([letters(3), breaks(), letters(3)], particles=4, max_tokens=20)
    assert not crowded._rows
