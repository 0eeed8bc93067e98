"""The kernels compile for real devices, which the interpreter cannot show and no GPU is needed for.

In a process of its own, since Triton decides between interpreter and compiler when it is imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).with_name("compile_kernels.py")


def test_compilation(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, SCRIPT, "90"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kernels = [line.split()[0] for line in done.stdout.splitlines()]
    assert set(kernels) == {
        "_merge_kernel",
        "_partial_kernel",
        "_reduce_kernel",
        "_reweight_kernel",
        "_scan_kernel",
        "_take_kernel",
    }
