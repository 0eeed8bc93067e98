"""The algebra of products: flattened, sorted by stage, exponents merged, compared by value."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcprog.potentials.base import Product, TextPotential, product
from smcprog.potentials.grammar import choice, regex
from smcprog.potentials.lm import lm


@dataclass(frozen=True)
class Length(TextPotential):
    stage: str = "end"

    def log_potential(self, texts, complete):
        return np.array([-float(len(text)) for text in texts])


POTENTIALS = [lm, lm**2, lm.at(temperature=0.5), regex("a"), choice("a"), Length(), Length("block")]


def test_factors_are_sorted_by_stage():
    everything = Length() * regex("a") * lm**2 * choice("b") * Length("block")
    assert everything.lms == (lm**2,)
    assert everything.constraints == (regex("a"), choice("b"))
    assert everything.texts == (Length(), Length("block"))
    assert [p.stage for p in POTENTIALS] == ["score"] * 3 + ["mask"] * 2 + ["end", "block"]


def test_the_model_is_always_a_factor():
    assert product().lms == (lm,)
    assert product(regex("a")) == lm * regex("a")


def test_exponents_of_one_variant_add_up():
    assert (lm * lm**2).lms == (lm**3,)
    cold = lm.at(temperature=0.5)
    assert (lm * cold * lm * cold**0.5).lms == (lm**2, cold**1.5)


def test_a_constraint_counts_once_and_a_reward_each_time():
    assert regex("a") * regex("a") == product(regex("a"))
    assert len((Length() * Length()).texts) == 2


@given(st.lists(st.sampled_from(POTENTIALS), max_size=5), st.integers(0, 5))
def test_products_are_flat_however_they_are_nested(factors, cut):
    left, right = product(*factors[:cut]), product(*factors[cut:])
    flat = product(*factors)
    assert product(left, right) == flat
    assert hash(left * right) == hash(flat)
    assert flat * Product() == flat


def test_its_repr_is_what_one_writes():
    assert repr(lm**2 * regex("a") * choice("b")) == "lm**2 * regex('a') * choice('b')"


@pytest.mark.parametrize("slip", ["a", 2, None, lambda text: 0.0])
def test_only_potentials_multiply(slip):
    with pytest.raises(TypeError, match="is no potential"):
        product(lm, slip)


def test_a_stage_that_does_not_exist():
    with pytest.raises(ValueError, match="stage='blok'"):
        product(Length("blok"))


@dataclass(frozen=True)
class Words(TextPotential):
    words: list[str]
    stage: str = "end"

    def log_potential(self, texts, complete):
        return np.zeros(len(texts))


def test_a_potential_that_cannot_be_hashed():
    with pytest.raises(TypeError, match="unhashable type: 'list'.*frozen dataclass"):
        product(Words(["a"]))
