"""The scoring pass of a population with a long common prompt, with and without shared attention.

    python benchmarks/prefix.py --models DIR                  # DIR/target
    python benchmarks/prefix.py --models DIR --threshold      # from where on sharing pays

Both passes are the engine's own, over the same pages, in turns; without sharing each row gathers
and reads the whole prompt. The prompt counts as written: only the scoring pass is timed.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from figures import shown
from rich.console import Console
from rich.table import Table

from smcprog.gpu import loading, sharing
from smcprog.gpu.kv_cache import PagedRow, PagePool, settle
from smcprog.gpu.model import CausalLM, Feed

PAGE_SIZE = 16
ALWAYS, NEVER = 1, 1 << 40


def seconds(model: CausalLM, pool: PagePool, rows: Sequence[PagedRow], least_saved: int) -> float:
    """One scoring pass over the last 5 tokens of each row."""
    sharing.LEAST_SAVED = least_saved
    feeds = [Feed(row, row.length - 5, row.length) for row in rows]
    settle(pool, [model.store])
    began = time.perf_counter()
    with torch.inference_mode():
        for _ in model.run(pool, feeds):
            pass
    return time.perf_counter() - began


def compared(
    model: CausalLM, prompt: int, particles: int, repeats: int
) -> list[tuple[float, float]]:
    """Seconds with and without sharing, in pairs."""
    pool = PagePool(1, page_size=PAGE_SIZE)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(100, 1000, (prompt,), generator=generator).tolist()
    first = pool.open(ids)
    seconds(model, pool, [first], NEVER)
    rows = [pool.fork(first) for _ in range(particles)]
    pool.append(rows, [[200 + i, 300, 301, 302, 303] for i in range(particles)])
    for row in (first, *rows):
        seconds(model, pool, [row], NEVER)  # writes its keys and values
    pairs = [
        (seconds(model, pool, rows, ALWAYS), seconds(model, pool, rows, NEVER))
        for _ in range(repeats + 1)
    ]
    return pairs[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = os.environ.get("SMCPROG_SMOLLM2", "build/smollm2")
    parser.add_argument("--models", type=Path, default=folder)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threshold", action="store_true", help="short prompts, few particles")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    loaded = loading.load(options.models / "target", "auto", options.dtype)
    model = CausalLM("target", loaded.model, 0, PAGE_SIZE)
    cases = [(prompt, 16) for prompt in (256, 1024, 4096)]
    if options.threshold:
        cases = [(prompt, n) for n in (2, 4, 16) for prompt in (32, 64, 128, 256, 512)]
    table = Table("prompt", "N", "shared, ms", "not shared, ms", "ratio (min-max)")
    for prompt, particles in cases:
        pairs = compared(model, prompt, particles, options.repeats)
        table.add_row(
            str(prompt),
            str(particles),
            shown([1000 * a for a, _ in pairs], 1),
            shown([1000 * b for _, b in pairs], 1),
            shown([b / a for a, b in pairs], 2),
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
