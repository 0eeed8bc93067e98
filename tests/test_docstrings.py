"""Every public function and method has an example, which `--doctest-modules` runs."""

import inspect

import pytest

import smcprog
from smcprog.dsl.plan import Plan

# What a program or a user calls. The rows and passes of engines are the loop's part: their module
# shows them together. The members of a Potential are for those who write one: docs/potentials.md.
CLASSES = {
    smcprog.Posterior: set(),
    smcprog.Program: {"start"},
    smcprog.BoundProgram: {"copied_arguments"},
    Plan: set(),
}


def public_functions():
    for name in smcprog.__all__:
        value = getattr(smcprog, name)
        if not inspect.isclass(value) and callable(value):
            yield name, value
    yield "Engine", smcprog.Engine
    yield "Engine.run", smcprog.Engine.run
    yield "TabularEngine", smcprog.TabularEngine
    for kind, theirs in CLASSES.items():
        for name, member in vars(kind).items():
            plain = inspect.isfunction(member) or isinstance(member, classmethod)
            if plain and not name.startswith("_") and name not in theirs:
                yield f"{kind.__name__}.{name}", member


@pytest.mark.parametrize(("name", "function"), list(public_functions()))
def test_there_is_an_example(name, function):
    assert ">>>" in (inspect.getdoc(function) or ""), f"{name} has no example"
