import math

import numpy as np
import pytest

from smcprog import PotentialError, gen, lm, regex, reward, smc_program
from smcprog.inference.exact import enumerate_traces
from smcprog.potentials.reward import Reward
from tests.inference import tables
from tests.inference.programs import one
from tests.inference.test_enumeration import check


def count(text, letter="a"):
    return text.count(letter)


def counts(texts, letter):
    return np.array([text.count(letter) for text in texts])


@pytest.mark.parametrize("block", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "potentials",
    [
        (reward(count, beta=0.7),),
        (reward(count, "b", beta=-0.5, every="block"), regex("[ab]+")),
        (reward(counts, "a", batch=True, every="ab"), reward(count, "b")),
    ],
    ids=repr,
)
def test_every_outcome(potentials, block):
    check(one(2.0, potentials, (), 3), block)


def test_equal_rewards_whenever_they_are_judged():
    engine = tables.engine()
    evidence = [
        enumerate_traces(one(1.0, (reward(count, every=every),), None, 3), engine).evidence
        for every in ("end", "block", "a")
    ]
    np.testing.assert_allclose(evidence, evidence[0], rtol=1e-12)


def test_a_boundary_judges_what_is_complete():
    potential = reward(len, every="\n")
    assert potential.log_potential(["ab", "ab\nc", "\n\nd"], False).tolist() == [0, 3, 2]
    assert potential.log_potential(["ab", "ab\nc"], True).tolist() == [2, 4]


def test_each_text_is_judged_once():
    seen: list[str] = []

    def judge(text):
        seen.append(text)
        return 0.0

    @smc_program
    def judged():
        return gen(lm, reward(judge, every="block"), regex("[ab]"))

    for _ in range(2):
        tables.engine().run(judged(), particles=32, seed=0)
    assert len(seen) == len(set(seen)) <= 3


def test_a_lambda_in_the_program_is_the_same_in_a_replay():
    @smc_program
    def made_inside(bonus):
        text = gen(lm, reward(lambda text: bonus * len(text)), stop=(), max_tokens=2)
        more = gen(lm, stop=(), max_tokens=4)
        return text + more

    posterior = tables.engine().run(made_inside(1.5), particles=16, seed=0, ess_threshold=1.0)
    assert any(record.resampled for record in posterior.rounds)


def fails(text):
    raise KeyError("lexicon")


@pytest.mark.parametrize(
    ("potential", "message"),
    [
        (reward(fails), r"raised KeyError\('lexicon'\) for 'some text'"),
        (reward(lambda text: math.nan), "returned nan for the text 'some text'"),
        (reward(lambda text: math.inf), "returned inf"),
        (reward(lambda text: "good"), "returned 'good'.*one number"),
        (reward(lambda texts: [1.0, 2.0], batch=True), "2 rewards for 1 texts"),
    ],
)
def test_bad_rewards_show_the_text(potential, message):
    with pytest.raises(PotentialError, match=message):
        potential.log_potential(["some text"], True)


def test_minus_infinity_is_legal_one_way():
    assert reward(lambda text: -math.inf).log_potential(["x"], True)[0] == -math.inf
    with pytest.raises(PotentialError):
        reward(lambda text: -math.inf, beta=-1.0).log_potential(["x"], True)


def test_arguments():
    with pytest.raises(TypeError, match="takes a function"):
        reward(3)
    with pytest.raises(ValueError, match="finite"):
        reward(len, beta=math.inf)
    with pytest.raises(ValueError, match="boundary"):
        reward(len, every="")
    assert reward(len, 1) == Reward(len, (1,))
    assert repr(reward(count, "b", beta=2.0)) == "reward(count, 'b', beta=2.0)"
    # Arguments that can change are not remembered by.
    words = ["a"]
    lookup = reward(lambda text, known: float(text in known), words)
    assert lookup.log_potential(["b"], True)[0] == 0
    words.append("b")
    assert lookup.log_potential(["b"], True)[0] == 1
