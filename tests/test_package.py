"""What importing the package costs, and what it must not import."""

import subprocess
import sys

CODE = """
import time
import torch
begin = time.process_time()
import smcprog
print(time.process_time() - begin)
import sys
heavy = ("genlm", "transformers", "matplotlib", "lark", "llguidance", "rich", "triton")
print([m for m in heavy if m in sys.modules])
"""


def test_import_is_light():
    results = [
        subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    seconds = [float(result.stdout.splitlines()[0]) for result in results]
    assert min(seconds) < 1.0
    assert all(result.stdout.splitlines()[1] == "[]" for result in results)


def test_every_public_name_is_there_and_documented():
    import smcprog

    for name in smcprog.__all__:
        assert getattr(smcprog, name).__doc__, name
