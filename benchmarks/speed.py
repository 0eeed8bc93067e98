"""Tokens a second: SMC-SD against transformers' own `generate`, in turns in the same process.

    python benchmarks/speed.py                                  # the shipped pair
    python benchmarks/speed.py --target T --draft D --dtype bfloat16

Prints a table of medians over pairs of runs; a ratio above 1 means that smcprog is faster. N
sequences of transformers are N independent draws; ours are N weighted particles.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from smcprog import Engine, gen, prompt, smc_program
from smcprog.gpu.loading import PAIR

TEXT = "Once there was a cook named Mara. She lived in a small village near the sea. " * 12


@smc_program
def write(text: str, tokens: int) -> str:
    """Draw a text of a fixed length."""
    prompt(text)
    return gen(stop=(), max_tokens=tokens)


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=str(PAIR / "target"))
    parser.add_argument("--draft", default=str(PAIR / "draft"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    engine = Engine(options.target, options.draft, dtype=options.dtype)
    model = AutoModelForCausalLM.from_pretrained(
        options.target, dtype=getattr(torch, options.dtype)
    )
    tokenization = engine.tokenization
    ids = [*tokenization.start_ids, *tokenization.encode([TEXT], at_start=True)][:256]
    text = tokenization.vocabulary.decode(ids).decode()
    inputs = torch.tensor([ids])

    def ours(particles: int, block: int) -> Callable[[], Any]:
        return lambda: engine.run(
            write(text, options.tokens), particles=particles, block=block, seed=0
        )

    def theirs(sequences: int) -> Callable[[], Any]:
        return lambda: model.generate(
            inputs,
            do_sample=True,
            top_k=0,
            num_return_sequences=sequences,
            min_new_tokens=options.tokens,
            max_new_tokens=options.tokens,
            attention_mask=torch.ones_like(inputs),
            pad_token_id=tokenization.vocabulary.eos_ids[0],
        )

    table = Table("N", "K", "generate, tok/s", "smcprog, tok/s", "ratio (min-max)")
    for particles, block in ((1, 0), (4, 0), (4, 4), (8, 4), (8, 8)):
        pairs = [(ours(particles, block), theirs(particles))] * (options.repeats + 1)
        times = [(seconds(a), seconds(b)) for a, b in pairs][1:]  # the first warms up
        ratios = [b / a for a, b in times]
        drawn = particles * options.tokens
        table.add_row(
            str(particles),
            str(block),
            f"{drawn / median(b for _, b in times):.0f}",
            f"{drawn / median(a for a, _ in times):.0f}",
            f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
