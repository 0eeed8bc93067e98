"""Compile the kernels to machine code for one compute capability, without a GPU.

The public functions are called on CPU tensors under a driver that loads and launches nothing.
Prints a line for each kernel: its name and the seconds that it took. A kernel that needs more
shared memory than the device has is an error.

    python tests/gpu/triton/compile_kernels.py 90
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from smcprog.gpu.sharing import Span
from smcprog.gpu.triton import attention, population, sampling

MOST_SHARED = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
CPU = torch.device("cpu")


def pretend(capability: int) -> None:
    """Make Triton believe in a device."""

    def load(name: str, *_: Any) -> tuple[Any, ...]:
        return None, None, 0, 0, 1024

    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", capability, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            launcher_cls=lambda source, metadata: lambda *arguments: None,
            utils=SimpleNamespace(
                get_device_properties=lambda device: {"max_shared_mem": MOST_SHARED[capability]},
                load_binary=load,
            ),
        )
    )
    started = time.perf_counter()

    def report(**known: Any) -> None:
        nonlocal started
        seconds, started = time.perf_counter() - started, time.perf_counter()
        print(known["fn"].name, f"{seconds:.2f} s", flush=True)

    knobs.runtime.jit_post_compile_hook = report


def sample(rows: int, size: int, dtype: torch.dtype) -> None:
    yes, one = torch.ones(rows, dtype=torch.bool), torch.ones(rows)
    words = torch.zeros((1, -(-size // 32)), dtype=torch.int32)
    count = torch.arange(rows)
    logits = torch.zeros((rows, size), dtype=dtype)
    sampling.sample(logits, words, yes, yes, torch.tensor([0]), one, one, count, count)


def attend(spans: list[Span], dim: int, dtype: torch.dtype, softcap: float | None = None) -> None:
    plan = attention.plan(spans, 14, 2, 16, CPU)
    query = torch.zeros((sum(span.count for span in spans), 14, dim), dtype=dtype)
    store = torch.zeros((64, 16, 2, dim), dtype=dtype)
    attention.attend(query, store, store, plan, 1.0, softcap=softcap)


def main() -> None:
    pretend(int(sys.argv[1]))
    sample(1, 1003, torch.bfloat16)
    lengths = torch.zeros(3, dtype=torch.int32)
    population.take_ancestors(lengths[:, None], lengths, torch.arange(3))
    for n in (1, 64):
        weights = torch.zeros((2, n), dtype=torch.float64)
        population.reweight(weights, weights, weights[:, 0].clone())
    pages = list(range(64))
    attend([Span(pages, 0, 1)], 64, torch.bfloat16)
    attend([Span(pages, 1000, 1005)], 128, torch.bfloat16, softcap=50.0)


if __name__ == "__main__":
    main()
