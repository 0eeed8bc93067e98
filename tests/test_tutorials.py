"""The committed tutorials have been run from top to bottom, and tell nothing of the machine.

That they still run is checked by `make notebooks`.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))


def test_there_are_seven():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"0{i}" for i in range(1, 8)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_as_it_stands(path):
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs
    assert all(output["output_type"] != "error" for output in outputs)
    assert all(output.get("name") != "stderr" for output in outputs)
    assert not re.search(r"/(?:home|root|tmp|work|Users)/", text)
    assert len(text) < 500_000


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_exercises_and_is_linked(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert re.search(r"^## Exercises", prose, re.M)
    assert prose.count("<details>") >= 2
    assert f"tutorials/{path.name}" in (ROOT / "README.md").read_text(encoding="utf-8")
