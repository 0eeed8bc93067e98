"""DESIGN section 6, test 3: where draft and target are one, weights do not move."""

import numpy as np
import pytest

from smcprog import TabularEngine, gen, regex, smc_program
from smcprog.vocabulary import unpack
from tests.inference import tables

TABLE = tables.random_table(3, len(tables.TOKENS) + 1)
ENGINE = TabularEngine(tables.TOKENS, TABLE, TABLE)


@smc_program
def free():
    return gen(max_tokens=6)


@smc_program
def anywhere():
    return gen(regex("[ab]*"), max_tokens=20)


@smc_program
def forced_word():
    return gen(regex("a[ab]b"))


@pytest.mark.parametrize("block", [0, 1, 3])
def test_no_constraint(block):
    posterior = ENGINE.run(free(), particles=32, block=block, seed=0)
    np.testing.assert_allclose(posterior.log_weights, 0.0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*the constraint accepts everywhere")
@pytest.mark.parametrize("block", [0, 1, 3])
def test_leave_is_as_free_as_no_constraint(block):
    posterior = ENGINE.run(anywhere(), particles=32, block=block, seed=0)
    np.testing.assert_allclose(posterior.log_weights, 0.0, atol=1e-12)


@pytest.mark.parametrize("block", [0, 1, 2, 3])
def test_otherwise_the_increment_is_the_mask_s_log_normaliser(block):
    posterior = ENGINE.run(forced_word(), particles=32, block=block, seed=0, ess_threshold=0.0)
    vocabulary = ENGINE.tokenization.vocabulary
    for tokens, log_weight in zip(posterior.tokens, posterior.log_weights, strict=True):
        matcher = regex("a[ab]b").start(vocabulary)
        expected = 0.0
        for i, token in enumerate(tokens):
            p = TABLE(tuple(tokens[:i]))
            allowed = unpack(matcher.mask(), vocabulary.size)
            expected += np.log(p[allowed].sum())
            matcher.advance(token)
        assert log_weight == pytest.approx(expected, abs=1e-12)
