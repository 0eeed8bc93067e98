"""Milliseconds a token of one returned sequence: SMC-SD against transformers, in turns.

    python benchmarks/speed.py                                     # the shipped pair
    python benchmarks/speed.py --target T --draft D --dtype bfloat16
    python benchmarks/speed.py --together                          # eight programs at once

The peers are `generate` with one sequence, `generate` with N sequences (N independent draws; ours
are N weighted particles, of which one is returned) and assisted generation with the same draft.
Prints medians over pairs of runs in one process; above 1 means that smcprog is faster.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from figures import shown
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from smcprog import Engine, gen, lm, prompt, smc_program
from smcprog.gpu.loading import PAIR

TEXT = "Once there was a cook named Mara. She lived in a small village near the sea. " * 12

Run = Callable[[int], int]
"""A run with a seed; returns the tokens of one sequence."""


@smc_program
def write(text: str, tokens: int, temperature: float) -> str:
    """Draw a text of a fixed length."""
    prompt(text)
    return gen(lm.at(temperature=temperature), stop=(), max_tokens=tokens)


class Bench:
    """Both sides, on the same models and prompt."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.tokens = options.tokens
        self.engine = Engine(options.target, options.draft, dtype=options.dtype)
        dtype = getattr(torch, options.dtype)
        self.target, self.draft = (
            AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
            for path in (options.target, options.draft)
        )
        tokenization = self.engine.tokenization
        ids = [*tokenization.start_ids, *tokenization.encode([TEXT], at_start=True)]
        self.ids = ids[: options.prompt]
        self.text = tokenization.vocabulary.decode(self.ids).decode()

    def ours(self, particles: int, block: int, temperature: float) -> Run:
        def run(seed: int) -> int:
            call = write(self.text, self.tokens, temperature)
            self.engine.run(call, particles=particles, block=block, seed=seed)
            return self.tokens

        return run

    def theirs(self, sequences: int, temperature: float, assistant: Any = None) -> Run:
        inputs = torch.tensor([self.ids])

        def run(seed: int) -> int:
            torch.manual_seed(seed)
            output = self.target.generate(
                inputs,
                do_sample=True,
                temperature=temperature,
                top_k=0,
                num_return_sequences=sequences,
                min_new_tokens=self.tokens,
                max_new_tokens=self.tokens,
                attention_mask=torch.ones_like(inputs),
                pad_token_id=self.engine.tokenization.vocabulary.eos_ids[0],
                assistant_model=assistant,
            )
            return output.shape[1] - inputs.shape[1]

        return run

    def together(self, programs: int, particles: int, block: int) -> tuple[Run, Run]:
        """Several programs of unlike prompts in one list, and one after the other."""
        calls = [
            write(f"{self.text} Number {i}:", self.tokens, 1.0) for i in range(1, programs + 1)
        ]
        settings = {"particles": particles, "block": block}

        def at_once(seed: int) -> int:
            self.engine.run(calls, seed=seed, **settings)
            return programs * self.tokens

        def in_turn(seed: int) -> int:
            for call in calls:
                self.engine.run(call, seed=seed, **settings)
            return programs * self.tokens

        return at_once, in_turn


def milliseconds(run: Run, seed: int) -> float:
    """Per token of one sequence."""
    began = time.perf_counter()
    tokens = run(seed)
    return 1000 * (time.perf_counter() - began) / tokens


def measured(runs: dict[str, Run], repeats: int) -> dict[str, list[float]]:
    """Each in turn, ``repeats`` times after a first that warms up."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for seed in range(repeats + 1):
        for name, run in runs.items():
            times[name].append(milliseconds(run, seed))
    return {name: values[1:] for name, values in times.items()}


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    return shown([a / b for a, b in zip(theirs, ours, strict=True)], 2)


def compare(bench: Bench, options: argparse.Namespace, console: Console) -> None:
    """Every N and K at every temperature, against the three peers."""
    for temperature in options.temperatures:
        runs = {"one": bench.theirs(1, temperature)}
        runs["assisted"] = bench.theirs(1, temperature, bench.draft)
        for n in options.particles:
            runs[f"{n} sequences"] = bench.theirs(n, temperature)
            for k in options.blocks:
                runs[f"{n}, {k}"] = bench.ours(n, k, temperature)
        times = measured(runs, options.repeats)
        console.print(
            f"T = {temperature}, {bench.tokens} new tokens after {len(bench.ids)}; ms/token:"
        )
        console.print(
            f"  generate {shown(times['one'], 1)}, assisted {shown(times['assisted'], 1)}"
        )
        table = Table("N", "K", "smcprog, ms", "generate /", "assisted /", "generate N /")
        for n in options.particles:
            for k in options.blocks:
                ours = times[f"{n}, {k}"]
                table.add_row(
                    str(n),
                    str(k),
                    shown(ours, 1),
                    ratio(times["one"], ours),
                    ratio(times["assisted"], ours),
                    ratio(times[f"{n} sequences"], ours),
                )
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default=str(PAIR / "target"))
    parser.add_argument("--draft", default=str(PAIR / "draft"))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--particles", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--blocks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.2, 0.7, 1.0, 1.2])
    parser.add_argument("--together", action="store_true", help="eight programs at once, instead")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    bench, console = Bench(options), Console(width=110)
    if not options.together:
        compare(bench, options, console)
        return
    table = Table(
        "programs", "N", "K", "together, ms/token", "in turn, ms/token", "ratio (min-max)"
    )
    for n, k in ((4, 4), (8, 4), (16, 4)):
        at_once, in_turn = bench.together(8, n, k)
        times = measured({"together": at_once, "in turn": in_turn}, options.repeats)
        table.add_row(
            "8",
            str(n),
            str(k),
            shown(times["together"], 2),
            shown(times["in turn"], 2),
            ratio(times["in turn"], times["together"]),
        )
    console.print(table)


if __name__ == "__main__":
    main()
