"""Broken and malicious constraints end in masks or a clear error, within 10 seconds and 1 GB."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.potentials.hostile import CASES, MEGABYTES, SECONDS

# What is no constraint at all is refused as Python does it.
OTHER_ERRORS = {
    "choice: bytes": "TypeError: choice() takes strings",
    "schema: not UTF-8": "TypeError: json_schema() takes a schema",
    "file: no file": "FileNotFoundError: ",
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict]:
    """What became of all cases, each in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.potentials.hostile"],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return {found["case"]: found for found in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("case", CASES)
def test_an_end_within_time_and_memory(case, outcomes):
    found = outcomes[case]
    outcome = found["outcome"]
    assert outcome == "masks" or outcome.startswith(OTHER_ERRORS.get(case, "GrammarError: "))
    assert len(outcome) < 1000
    assert found["seconds"] < SECONDS
    assert found["megabytes"] < MEGABYTES
