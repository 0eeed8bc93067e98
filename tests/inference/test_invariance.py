"""DESIGN section 6, test 6: a run alone and the same run among seven others, bit for bit."""

import numpy as np
import pytest

from tests.inference import tables
from tests.inference.programs import PROGRAMS


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("block", [0, 3])
def test_alone_and_among_others(block):
    engine = tables.engine()
    calls = [program(alpha) for program in PROGRAMS.values() for alpha in (1.0, 2.0)][:8]
    settings = {"particles": 6, "block": block, "ess_threshold": 0.8, "on_dead": "return"}
    together = engine.run(calls, seed=11, **settings)
    for call, among in zip(calls, together, strict=True):
        alone = engine.run(call, seed=among.seed, **settings)
        np.testing.assert_array_equal(alone.log_weights, among.log_weights)
        assert alone.values == among.values
        assert alone.tokens == among.tokens
        assert [r.ancestors for r in alone.rounds] == [r.ancestors for r in among.rounds]
        assert alone.traces == among.traces


def test_a_seed_repeats_a_run():
    engine = tables.engine()
    call = PROGRAMS["loop"](1.0)
    first = engine.run(call, particles=4)
    again = engine.run(call, particles=4, seed=first.seed)
    np.testing.assert_array_equal(first.log_weights, again.log_weights)
    assert first.values == again.values
    assert engine.run(call, particles=4, seed=first.seed + 1).traces != first.traces
