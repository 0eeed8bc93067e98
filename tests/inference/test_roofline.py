"""What a round costs, and the K that is chosen by it."""

import numpy as np
import pytest

from smcprog import TabularEngine, gen, smc_program
from smcprog.inference.roofline import DraftRecord, Roofline
from tests.inference import tables
from tests.inference.programs import PROGRAMS
from tests.inference.test_monte_carlo import check_by_monte_carlo

MEMORY_BOUND = Roofline({1: 0.1, 64: 0.1}, {1: 1.0, 1024: 1.0}, context=0)
ARITHMETIC_BOUND = Roofline({1: 0.5, 64: 32.0}, {1: 1.0, 64: 64.0}, context=0)


def test_speedup_where_memory_sets_the_pace():
    """S = (K + 1) / (1 + rho K), whatever N."""
    assert MEMORY_BOUND.rho == pytest.approx(0.1)
    for particles in (1, 8):
        for block in (0, 1, 4, 8):
            expected = (block + 1) / (1 + 0.1 * block)
            assert MEMORY_BOUND.speedup(particles, block) == pytest.approx(expected)
    assert MEMORY_BOUND.balance == 1024


def test_speedup_where_arithmetic_sets_the_pace():
    assert ARITHMETIC_BOUND.speedup(1, 0) == pytest.approx(1.0)
    assert ARITHMETIC_BOUND.speedup(4, 4) == pytest.approx(5 / (4 * 2.0 + 20.0))
    # Beyond the last measurement a pass costs in proportion to its rows.
    assert ARITHMETIC_BOUND.round_seconds(64, 3) == pytest.approx(3 * 32.0 + 256.0)
    assert ARITHMETIC_BOUND.balance == 1


def test_what_cannot_be_predicted():
    without = Roofline({}, {1: 1.0}, context=0)
    assert without.speedup(1, 0) == 1.0
    with pytest.raises(ValueError, match="no draft to measure"):
        without.speedup(1, 4)
    for n, k in ((0, 1), (4, -1)):
        with pytest.raises(ValueError, match="N is at least 1"):
            MEMORY_BOUND.speedup(n, k)
    with pytest.raises(ValueError, match="context=0"):
        tables.engine().roofline(context=0)


class Small(TabularEngine):
    """Room for 6 pages of 16 tokens."""

    def has_room(self, lengths):
        return sum(-(-length // 16) for length in lengths) <= 6


def test_a_small_pool_is_measured_within():
    table = tables.random_table(0)
    costs = Small(tables.TOKENS, table, table, control=tables.CONTROL).roofline()
    assert costs.context == 64
    assert set(costs.target) == {1}


def test_the_printed_costs():
    text = str(MEMORY_BOUND)
    assert "rho = 0.10" in text
    assert "K=4: 3.57" in text
    assert "rho" not in str(Roofline({}, {1: 1.0}, context=3))


def test_effective_tokens_of_a_round():
    record = DraftRecord()
    assert record.quality(4, 0) == 5.0
    log_w = np.random.default_rng(0).normal(0.0, 0.5, size=1000)
    record.weigh(log_w[:300])
    record.weigh(log_w[300:])
    record.weigh(np.array([-np.inf]))  # a token that the target forbids
    w = np.append(np.exp(log_w), 0.0)
    efficiency = w.mean() ** 2 / (w**2).mean()
    assert record.efficiency == pytest.approx(efficiency)
    assert record.quality(3, 0) == pytest.approx(4 * efficiency**3)
    record.accepted, record.rejected = 60, 40
    # By rejection alone: 1 + a + ... + a^K tokens (Leviathan et al. 2023, equation 1).
    assert record.quality(3, 3) == pytest.approx((1 - 0.6**4) / (1 - 0.6))
    assert record.quality(3, 1) == pytest.approx((1 + 0.6 * 3) * efficiency**2)


def test_the_best_block():
    good, bad = DraftRecord(), DraftRecord()
    good.weigh(np.zeros(100))
    bad.weigh(np.random.default_rng(0).normal(0.0, 1.5, size=100))
    assert MEMORY_BOUND.best_block(4, lambda k: good.quality(k, 0)) == 16
    assert MEMORY_BOUND.best_block(4, lambda k: bad.quality(k, 0)) < 4
    assert ARITHMETIC_BOUND.best_block(4, lambda k: good.quality(k, 0)) == 0
    assert Roofline({}, {1: 1.0}, context=0).best_block(4, lambda k: good.quality(k, 0)) == 0


@smc_program
def letters(n):
    return str(gen(stop=(), max_tokens=n))


def drafted(engine, **settings):
    """Drafted tokens of each round's longest block."""
    posterior = engine.run(letters(60), particles=8, seed=0, ess_threshold=0, **settings)
    return [max(map(len, r.tokens)) - 1 for r in posterior.rounds[:-1]]


def test_a_run_adapts_to_its_draft(monkeypatch):
    monkeypatch.setattr(TabularEngine, "_roofline", MEMORY_BOUND)
    perfect = TabularEngine(["a", "b"], *[lambda context: [0.6, 0.4, 0.0]] * 2)
    blocks = drafted(perfect, block="auto")
    assert blocks[0] == 4
    assert max(blocks) == 16
    poor = tables.engine()
    assert min(drafted(poor, block="auto")[2:]) < 4
    assert max(drafted(perfect, block="auto", verify="reject")) == 16
    assert set(drafted(tables.engine(draft=False), block="auto")) == {0}


def test_an_adaptive_run_is_proper(monkeypatch):
    monkeypatch.setattr(TabularEngine, "_roofline", MEMORY_BOUND)
    check_by_monte_carlo(PROGRAMS["branch"](2.0), particles=4, block="auto")


def test_measured():
    engine = tables.engine()
    costs = engine.roofline(context=8)
    assert engine.roofline() is costs
    assert set(costs.draft) == set(costs.target) == {1, 4, 16, 64}
    assert all(seconds > 0 for seconds in [*costs.draft.values(), *costs.target.values()])
    assert not engine._rows
    assert tables.engine(draft=False).roofline(context=8).draft == {}
    assert letters.plan().explain(costs).endswith(str(costs))
