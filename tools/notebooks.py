"""Runs the notebooks of tutorials/ from top to bottom, each in a fresh kernel.

    python tools/notebooks.py                     run all; fail where one fails
    python tools/notebooks.py --write [NAME ...]  run, and keep the outputs in the files

A notebook is named by its file's stem, or the first letters of it ("01").
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

TUTORIALS = Path(__file__).resolve().parent.parent / "tutorials"
SECONDS = 300
"""The most that one notebook may take."""

CELL_FILE = re.compile(r"/tmp/ipykernel_\d+/\d+\.py")
"""The file that a kernel gives a cell, another one each time."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the notebooks; returns how many failed."""
    parser = argparse.ArgumentParser(description="Run the tutorials, each in a fresh kernel.")
    parser.add_argument("names", nargs="*", help="default: all")
    parser.add_argument("--write", action="store_true", help="keep the outputs in the files")
    options = parser.parse_args(argv)
    failed = 0
    for path in chosen(options.names):
        began = time.monotonic()
        error = execute(path, options.write)
        print(f"{path.stem}: {time.monotonic() - began:.0f} s, {error or 'ok'}", flush=True)
        failed += error is not None
    return failed


def chosen(names: Sequence[str]) -> list[Path]:
    """The notebooks that are meant, in order."""
    paths = sorted(TUTORIALS.glob("*.ipynb"))
    missing = [name for name in names if not any(path.stem.startswith(name) for path in paths)]
    if missing or not paths:
        sys.exit(f"no notebook in {TUTORIALS} begins with {', '.join(missing) or 'anything'}")
    return [path for path in paths if not names or path.stem.startswith(tuple(names))]


def execute(path: Path, write: bool) -> str | None:
    """Run one notebook; returns what went wrong."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
    )
    seconds = SECONDS
    began = time.monotonic()
    try:
        with client.setup_kernel():
            for number, cell in enumerate(notebook.cells):
                client.timeout = max(1, int(seconds - (time.monotonic() - began)))
                client.execute_cell(cell, number)
    except (CellExecutionError, DeadKernelError) as error:
        return f"failed:\n{error}"
    except CellTimeoutError:
        return f"took more than {seconds} s"
    if write:
        for cell in notebook.cells:
            cell.metadata = nbformat.NotebookNode(
                {key: value for key, value in cell.metadata.items() if key != "execution"}
            )
        notebook.metadata = nbformat.from_dict(
            {
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            }
        )
        text = CELL_FILE.sub("<cell>", nbformat.writes(notebook))
        path.write_text(f"{text}\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    sys.exit(main())
