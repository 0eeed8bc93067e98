"""Our potentials for genlm-control: `to_genlm`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

from smcprog.inference.context import opening_ids
from smcprog.inference.interface import EngineInterface
from smcprog.potentials.base import LM, Constraint, Potential, Product, TextPotential
from smcprog.potentials.genlm import import_genlm


def to_genlm(
    potential: Potential, engine: EngineInterface, prompt: str | Sequence[str] = ""
) -> Any:
    """A potential, or the product of some, as a `genlm.control.Potential` over an engine's tokens.

    Its ``vocab`` are the ordinary tokens of the engine as `Token` objects, which a context holds
    (``.tokenize(text)`` makes one). Weights are float64; ``batch_logw_next`` is one block [N, V+1]
    from one pass of the model. In log space it is

    - for a power of a model, ``prefix(x)`` = alpha log p(x | prompt), ``complete(x)`` that and
      alpha log p(EOS | prompt, x), the engine's end tokens collapsed; p keeps the mass of special
      tokens, so it is not renormalised over ``vocab``;
    - for a constraint, 0 where the text can go on and where it may end, -inf elsewhere;
    - for a `reward` or another text potential, what it says of the texts; `reward` judges complete
      ones alone unless ``every="block"``. Best used as a critic.

    Of each model factor the engine keeps the keys and values of the last 256 contexts between calls
    (of those of the last call, where they were more), and feeds the new tokens alone. The factor's
    ``.close()`` frees them; those of a potential that is garbage are freed by the next one's call.

    Args:
        potential: `lm`, its powers and variants, other models, constraints, text potentials, and
            products of these. A product has the factors that are written, and no `lm` else.
        engine: whose model and tokens they are.
        prompt: what the models read before a context, as `prompt` takes it; a factor
            ``lm.given(text)`` reads its own.

    Raises:
        ImportError: where genlm-control is not installed.
        TypeError: for anything but a potential.
        ValueError: for a prompt that no factor reads.

    >>> import asyncio
    >>> from genlm.control import AWRS
    >>> model = to_genlm(lm, engine, prompt="Review: I love it\\nSentiment:")
    >>> labels = to_genlm(choice(" positive", " negative"), engine)
    >>> sampler = AWRS(model, labels, seed=0)
    >>> sequences = asyncio.run(sampler.smc(n_particles=8, ess_threshold=0.5, max_tokens=8))
    >>> max(sequences.decoded_posterior, key=sequences.decoded_posterior.get)
    ' positive'
    """
    import_genlm()
    from smcprog.inference import exported

    if not isinstance(potential, Potential):
        raise TypeError(f"to_genlm() takes one of our potentials, not {type(potential).__name__}")
    factors: Sequence[Potential] = (potential,)
    if isinstance(potential, Product):
        factors = potential.factors or potential.lms
    if prompt and not any(isinstance(factor, LM) and factor.text is None for factor in factors):
        raise ValueError(
            f"to_genlm(prompt=...): only a language model reads it, and {potential!r} has none "
            "that does; give it to to_genlm(lm, engine, prompt=...)"
        )
    parts = [prompt] if isinstance(prompt, str) else list(prompt)

    def export(factor: Potential) -> Any:
        if isinstance(factor, LM):
            text = parts if factor.text is None else [factor.text]
            opening = opening_ids(engine.tokenization, [part for part in text if part])
            return exported.ExportedLM(factor, engine, opening)
        if isinstance(factor, Constraint):
            return exported.ExportedConstraint(factor, engine)
        assert isinstance(factor, TextPotential)
        return exported.ExportedText(factor, engine)

    return reduce(mul, map(export, factors))
