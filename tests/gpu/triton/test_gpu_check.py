"""benchmarks/gpu.py on small shapes: what a card would be asked, in the interpreter."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu.py"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's log of 0


@pytest.fixture
def check() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kernels_against_twins(check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    check.check_kernels()
    assert "reweighting, resampling, page tables: as their twins" in capsys.readouterr().out


def test_speed_with_no_other_packages(tmp_path: Path) -> None:
    """From another folder, with nothing that torch and transformers do not bring."""
    code = """
import runpy, sys
for name in ("lark", "llguidance", "rich", "pydantic", "jsonschema", "genlm", "hypothesis"):
    sys.modules[name] = None
sys.argv = ["gpu.py", "--tiny"]
runpy.run_path(SCRIPT, run_name="__main__")
""".replace("SCRIPT", repr(str(SCRIPT)))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for word in ("prompt of 40 tokens", "of the roofline", "N=8 K=2", "ms a round", "done in"):
        assert word in done.stdout
