"""The LM factor: its spelling, its bounds."""

import copy
import math

import pytest

from smcprog.potentials.base import LM
from smcprog.potentials.grammar import regex
from smcprog.potentials.lm import lm


def test_powers_multiply_and_keep_the_variant():
    assert lm == LM()
    assert lm**2 == LM(alpha=2.0)
    assert (lm**2) ** 0.5 == lm
    assert lm.at(temperature=0.7) ** 2 == LM(2.0, temperature=0.7)
    assert (lm**2).at(top_p=0.9, top_k=5) == LM(2.0, 1.0, 0.9, 5)


@pytest.mark.parametrize(
    ("potential", "shown"),
    [
        (lm, "lm"),
        (lm**2, "lm**2"),
        (lm**0.123456789, "lm**0.123456789"),
        (lm.at(temperature=0.7), "lm.at(temperature=0.7)"),
        (lm.at(top_p=0.9, top_k=3) ** 0.5, "lm.at(top_p=0.9, top_k=3)**0.5"),
    ],
)
def test_its_repr_is_what_one_writes(potential, shown):
    assert repr(potential) == shown
    assert eval(shown, {"lm": lm}) == potential


@pytest.mark.parametrize("alpha", [0, -1, math.inf, -math.inf, math.nan])
def test_the_exponent_is_finite_and_positive(alpha):
    with pytest.raises(ValueError, match="finite and > 0"):
        lm**alpha


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0}, "take a small temperature"),
        ({"temperature": -1}, "temperature must be"),
        ({"temperature": math.nan}, "temperature must be"),
        ({"temperature": math.inf}, "temperature must be"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": math.nan}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
    ],
)
def test_settings_have_bounds(settings, words):
    with pytest.raises(ValueError, match=words):
        lm.at(**settings)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: lm * 2, r"lm\*\*2"),
        (lambda: 2 * lm, r"lm\*\*2"),
        (lambda: lm + lm, "potentials multiply"),
        (lambda: 1 + lm, "potentials multiply"),
        (lambda: sum([lm, regex("a")]), "potentials multiply"),
        (lambda: lm * " yes", r"choice\(' yes'\)"),
        (lambda: lm * None, "potentials are"),
        (lambda: lm ** "2", "is a number"),
    ],
)
def test_a_slip_is_told_the_right_spelling(build, words):
    with pytest.raises(TypeError, match=words):
        build()


def test_it_is_a_value():
    assert copy.deepcopy(lm**2) == lm**2
    assert len({lm**2, LM(2.0), lm}) == 2
    with pytest.raises(AttributeError):
        lm.alpha = 3
