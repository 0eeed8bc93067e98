"""The sample programs here run, and what is wrong in `wrong.py` is reported, line by line.

That the samples have no errors is for ``make lint``: see ``[tool.pyright]`` in pyproject.toml.
"""

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from smcprog import Engine

HERE = Path(__file__).parent
SAMPLES = sorted(
    path.stem for path in HERE.glob("*.py") if path.stem not in ("__init__", "test_typing", "wrong")
)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_runs(name: str, shipped_engine: Engine, tmp_path: Path) -> None:
    if name == "extraction":
        pytest.importorskip("pydantic")
    if name == "watched":
        pytest.importorskip("matplotlib")
    import_module(f"tests.typing.{name}").main(shipped_engine, tmp_path)


def test_wrong_uses_are_reported(tmp_path: Path) -> None:
    """By pyright, in strict mode, and nothing else is."""
    pytest.importorskip("pyright")
    wrong = tmp_path / "wrong.py"
    shutil.copy(HERE / "wrong.py", wrong)
    config = {"include": ["."], "extraPaths": [str(HERE.parent.parent)], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"typeCheckingMode": "strict"} | config)
    )
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(tmp_path)]
    done = subprocess.run(
        [*command, "--pythonpath", sys.executable], capture_output=True, text=True, cwd=tmp_path
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    lines = wrong.read_text(encoding="utf-8").splitlines()
    expected = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    found = {
        1 + item["range"]["start"]["line"]: item["message"] for item in report["generalDiagnostics"]
    }
    assert not {number: lines[number - 1] for number in expected - found.keys()}
    assert not {number: found[number] for number in found.keys() - expected}
