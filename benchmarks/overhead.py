"""What a round costs over the bare forwards that it needs, in turns in the same process.

    python benchmarks/overhead.py --models DIR        # DIR/target and DIR/draft

A round of SMC-SD with N particles and K drafted tokens needs K draft forwards of N tokens and one
target forward of N (K + 1) tokens. These are timed bare: plain transformers, a batch of N rows with
dense caches of the same length, logits at every position, nothing sampled. A ratio of 1 would mean
that pages, masks, sampling, weights, resampling and host code cost nothing.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from figures import shown
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, DynamicCache

from smcprog import Engine, gen, prompt, smc_program

TEXT = "Once there was a cook named Mara. She lived in a small village near the sea. " * 40


@smc_program
def write(text: str, tokens: int) -> str:
    """Draw a text of a fixed length."""
    prompt(text)
    return gen(stop=(), max_tokens=tokens)


def bare(model: Any, rows: int, tokens: int, context: int) -> Callable[[], float]:
    """Seconds of one forward of ``rows`` x ``tokens`` after ``context`` cached tokens each."""
    cache = DynamicCache(config=model.config)
    ids = torch.zeros((rows, context), dtype=torch.int64)
    with torch.inference_mode():
        model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def forward() -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            model(
                input_ids=torch.ones((rows, tokens), dtype=torch.int64),
                past_key_values=cache,
                use_cache=True,
            )
        seconds = time.perf_counter() - began
        cache.crop(-tokens)
        return seconds

    return forward


def rounds(engine: Engine, text: str, particles: int, block: int, tokens: int) -> list[float]:
    """Seconds of each round but the first, which reads the prompt, and the last, which is cut."""
    posterior = engine.run(
        write(text, tokens), particles=particles, block=block, seed=0, resample="round"
    )
    return [sum(record.seconds.values()) for record in posterior.rounds[1:-1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = os.environ.get("SMCPROG_SMOLLM2", "build/smollm2")
    parser.add_argument("--models", type=Path, default=folder)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    block = options.block

    engine = Engine(options.models / "target", options.models / "draft", dtype=options.dtype)
    tokenization = engine.tokenization
    ids = [*tokenization.start_ids, *tokenization.encode([TEXT], at_start=True)][: options.prompt]
    text = tokenization.vocabulary.decode(ids).decode()
    target, draft = (
        AutoModelForCausalLM.from_pretrained(
            options.models / name, dtype=getattr(torch, options.dtype)
        )
        for name in ("target", "draft")
    )

    table = Table("N", "K", "bare forwards, ms", "round, ms", "ratio (min-max)")
    for particles in (4, 8):
        context = options.prompt + options.tokens // 2
        step = bare(draft, particles, 1, context)
        score = bare(target, particles, block + 1, context)
        pairs = []
        for _ in range(options.repeats + 1):
            ours = median(rounds(engine, text, particles, block, options.tokens))
            theirs = [block * step() + score() for _ in range(8)]
            pairs.append((ours, median(theirs)))
        ratios = [a / b for a, b in pairs[1:]]
        table.add_row(
            str(particles),
            str(block),
            shown([1000 * b for _, b in pairs[1:]], 1),
            shown([1000 * a for a, _ in pairs[1:]], 1),
            shown(ratios, 2),
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
