"""What the examples in docstrings may use: the public names, and an engine of the shipped pair."""

from typing import Any

import pytest

import smcprog


@pytest.fixture(scope="session")
def shipped_engine() -> smcprog.Engine:
    """The engine that ``Engine()`` makes, loaded once."""
    return smcprog.Engine()


@pytest.fixture(autouse=True)
def examples(doctest_namespace: dict[str, Any], request: pytest.FixtureRequest) -> None:
    """Give a docstring's example its names."""
    if request.node.__class__.__name__ == "DoctestItem":
        doctest_namespace.update({name: getattr(smcprog, name) for name in smcprog.__all__})
        doctest_namespace["engine"] = request.getfixturevalue("shipped_engine")
