"""Milliseconds a generated token: smcprog against genlm-control, in turns in the same process.

    python benchmarks/vs_genlm.py --models DIR      # DIR/target and DIR/draft
    python benchmarks/vs_genlm.py --tokens 8 --repeats 1 --dtype float32

Both run SMC with N particles over the same prompt, model and regular expression, and both read the
prompt in each run. genlm-control has its fastest sampler (`eager_token_sampler`, or the direct one
where nothing is constrained), the keys and values of its prompt cached, and waits 1 ms for a batch
to fill. Prints medians (and ranges) over repetitions; a ratio above 1 means that smcprog is faster.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from figures import shown
from genlm.backend.llm import AsyncTransformer
from genlm.control import BoolFSA, PromptedLLM, direct_token_sampler, eager_token_sampler
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from smcprog import EOS, Engine, gen, prompt, regex, smc_program

TEXT = "Once there was a cook named Mara. She lived in a small village near the sea. " * 40
# No text of 64 tokens is complete, so that no particle ends early.
PATTERN = r"( [a-z]{1,12}){60,90}\."

Run = Callable[[int], int]
"""A run with a seed; returns how many tokens it generated."""


@smc_program
def write(text: str, pattern: str | None, tokens: int) -> str:
    """Draw a text of a fixed length."""
    prompt(text)
    if pattern is None:
        return gen(stop=(), max_tokens=tokens)
    return gen(regex(pattern), stop=EOS, max_tokens=tokens)


def milliseconds(run: Run, seed: int) -> float:
    begin = time.perf_counter()
    tokens = run(seed)
    return 1000 * (time.perf_counter() - begin) / tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = os.environ.get("SMCPROG_SMOLLM2", "build/smollm2")
    parser.add_argument("--models", type=Path, default=folder)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--particles", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens a particle")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    particles, tokens = options.particles, options.tokens

    engine = Engine(options.models / "target", options.models / "draft", dtype=options.dtype)
    tokenization = engine.tokenization
    ids = [*tokenization.start_ids, *tokenization.encode([TEXT], at_start=True)][: options.prompt]
    text = tokenization.vocabulary.decode(ids).decode()

    def ours(pattern: str | None, block: int) -> Run:
        def run(seed: int) -> int:
            call = write(text, pattern, tokens)
            # A text that is cut inside the pattern has weight zero, there as here.
            engine.run(call, particles=particles, block=block, seed=seed, on_dead="return")
            return particles * tokens

        return run

    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(options.models / "target", dtype=dtype)
    llm = AsyncTransformer(model, engine.tokenizer, timeout=0.001)
    prompted = PromptedLLM(llm, prompt_ids=ids)

    with asyncio.Runner() as runner:

        def theirs(pattern: str | None) -> Run:
            if pattern is None:
                sampler = direct_token_sampler(prompted)
            else:
                sampler = eager_token_sampler(prompted, BoolFSA.from_regex(pattern))

            def run(seed: int) -> int:
                torch.manual_seed(seed)
                np.random.seed(seed)
                llm.clear_cache()
                llm.cache_kv(ids)
                sequences = runner.run(sampler.smc(particles, ess_threshold=0.5, max_tokens=tokens))
                return sum(len(context) for context in sequences.contexts)

            return run

        table = Table("constraint", "K", "genlm-control, ms/token", "smcprog, ms/token", "ratio")
        for name, pattern in (("none", None), ("regex", PATTERN)):
            runs = (theirs(pattern), ours(pattern, 0), ours(pattern, 4))
            rows = [
                [milliseconds(run, seed) for run in runs] for seed in range(options.repeats + 1)
            ]
            their_times, *our_times = zip(*rows[1:], strict=True)  # the first row warms up
            for block, times in zip((0, 4), our_times, strict=True):
                ratios = [a / b for a, b in zip(their_times, times, strict=True)]
                columns = shown(their_times, 1), shown(times, 1), shown(ratios, 2)
                table.add_row(name, str(block), *columns)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
