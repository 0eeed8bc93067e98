"""The target language model as a potential: ``lm``, ``lm**2``, ``lm.at(temperature=0.7)``."""

from typing import Final

from smcprog.potentials.base import LM

lm: Final = LM()
"""The target language model, p(x). ``lm**alpha`` is its sequence-level power p(x)^alpha, and
``lm.at(temperature=..., top_p=..., top_k=...)`` its locally normalised variant.

>>> lm**2
lm**2
>>> lm.at(temperature=0.7)
lm.at(temperature=0.7)
>>> lm * lm**2
lm**3
"""
