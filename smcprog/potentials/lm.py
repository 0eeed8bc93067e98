"""Language models as potentials: ``lm``, ``lm**2``, ``lm.at(temperature=0.7)``, other models."""

from os import PathLike
from typing import Any, Final

from smcprog.potentials.base import LM

lm: Final = LM()
"""The target language model, p(x). ``lm**alpha`` is its sequence-level power p(x)^alpha,
``lm.at(temperature=..., top_p=..., top_k=...)`` its locally normalised variant, and
``lm.given(text)`` the same model under another context.

>>> lm**2
lm**2
>>> lm.at(temperature=0.7)
lm.at(temperature=0.7)
>>> lm * lm**2
lm**3
"""


def model(source: str | PathLike[str] | tuple[Any, Any]) -> LM:
    """A second language model as a factor: it reads the same tokens, or those after ``.given``.

    Like ``lm.given`` it multiplies the target: ``gen(model(b))`` draws from p(x) p_b(x), and
    ``gen(lm**2, model(b) ** -0.5)`` contrasts the two.

    Args:
        source: a folder, a hub name, or a ``(model, tokenizer)`` pair of transformers objects. The
            engine loads it when it first scores with it.

    Raises:
        TypeError: for anything else.
        VocabularyError: in the run, if its vocabulary is not the target's.

    >>> from smcprog.gpu.loading import PAIR
    >>> @smc_program
    ... def agreed(text):
    ...     prompt(f"Review: {text}\\nSentiment:")
    ...     return gen(choice(" positive", " negative"), model(PAIR / "draft") ** 0.5)
    >>> engine.run(agreed("I love it"), particles=32, seed=0).best
    ' positive'
    """
    pair = isinstance(source, tuple) and len(source) == 2
    if not pair and not isinstance(source, str | PathLike):
        raise TypeError(
            f"model() takes a folder, a hub name, or a (model, tokenizer) pair, not {source!r:.80}"
        )
    return LM(source=source)
