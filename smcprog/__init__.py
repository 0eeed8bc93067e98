"""Probabilistic programs over language models, run by sequential Monte Carlo speculative decoding.

>>> from smcprog import Engine, smc_program, prompt, gen, choice
>>> @smc_program
... def label(text):
...     prompt(f"Review: {text}\\nSentiment:")
...     return gen(choice(" positive", " negative")).strip()
>>> posterior = Engine().run(label("Great phone, bad battery"), particles=8, seed=0)
>>> sorted(posterior.marginal())
['negative', 'positive']
"""

from smcprog.distillation import DistillReport, distill
from smcprog.dsl.program import BoundProgram, Program, smc_program
from smcprog.dsl.statements import (
    aside,
    call,
    chat,
    condition,
    context,
    draw,
    factor,
    gen,
    logprob,
    observe,
    prompt,
    sync,
    twist,
)
from smcprog.errors import (
    ContextLengthError,
    DeadPopulationError,
    GrammarError,
    KVPoolError,
    ModelError,
    NaNLogitsError,
    PotentialError,
    ProgramError,
    SmcprogError,
    VocabularyError,
    WeightError,
)
from smcprog.gpu.engine import Engine
from smcprog.inference.genlm import to_genlm
from smcprog.inference.posterior import Posterior
from smcprog.inference.progress import Progress
from smcprog.inference.roofline import Roofline
from smcprog.inference.tabular import TabularEngine
from smcprog.potentials.base import Constraint, Potential, TextPotential
from smcprog.potentials.genlm import from_genlm
from smcprog.potentials.grammar import choice, regex
from smcprog.potentials.json_schema import json_schema
from smcprog.potentials.lark_grammar import grammar
from smcprog.potentials.laws import check_potential
from smcprog.potentials.lm import lm, model
from smcprog.potentials.reward import reward
from smcprog.text import EOS, LEAVE, Text, special

__all__ = [
    "EOS",
    "LEAVE",
    "BoundProgram",
    "Constraint",
    "ContextLengthError",
    "DeadPopulationError",
    "DistillReport",
    "Engine",
    "GrammarError",
    "KVPoolError",
    "ModelError",
    "NaNLogitsError",
    "Posterior",
    "Potential",
    "PotentialError",
    "Program",
    "ProgramError",
    "Progress",
    "Roofline",
    "SmcprogError",
    "TabularEngine",
    "Text",
    "TextPotential",
    "VocabularyError",
    "WeightError",
    "aside",
    "call",
    "chat",
    "check_potential",
    "choice",
    "condition",
    "context",
    "distill",
    "draw",
    "factor",
    "from_genlm",
    "gen",
    "grammar",
    "json_schema",
    "lm",
    "logprob",
    "model",
    "observe",
    "prompt",
    "regex",
    "reward",
    "smc_program",
    "special",
    "sync",
    "to_genlm",
    "twist",
]
