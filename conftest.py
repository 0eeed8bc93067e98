"""What all tests share: hypothesis's profile, and what the examples in docstrings may use."""

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import settings

import smcprog

# Triton reads this when it is imported, which transformers does.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
if find_spec("triton") is None:
    collect_ignore_glob = ["smcprog/gpu/triton/*"]

# The same examples in every run, however slow the machine: a failure is the code's.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def shipped_engine() -> smcprog.Engine:
    """The engine that ``Engine()`` makes, loaded once."""
    return smcprog.Engine()


@smcprog.smc_program
def even_die() -> dict[str, int]:
    """The run that the examples of `Posterior` look at: a die that shows an even number."""
    shown = smcprog.draw(range(1, 7))
    smcprog.condition(shown % 2 == 0)
    return {"shown": shown}


@pytest.fixture(scope="session")
def even_dice(shipped_engine: smcprog.Engine) -> smcprog.Posterior:
    """The posterior of that run."""
    return shipped_engine.run(even_die(), particles=64, seed=0)


@pytest.fixture(autouse=True)
def examples(doctest_namespace: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """Give a docstring's example its names."""
    if request.node.__class__.__name__ == "DoctestItem":
        doctest_namespace.update({name: getattr(smcprog, name) for name in smcprog.__all__})
        doctest_namespace["engine"] = request.getfixturevalue("shipped_engine")
        doctest_namespace["posterior"] = request.getfixturevalue("even_dice")
