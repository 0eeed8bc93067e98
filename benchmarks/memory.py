"""Memory: the peak of keys and values against N caches of their own, and what resampling costs.

    python benchmarks/memory.py                       # N = 6 and 16, K = 16, 256 + 512 tokens
    python benchmarks/memory.py --block 4 --seeds 3

Texts of a fixed length on the shipped pair, at temperature 1. The peak counts each shared page
once; its ratio is to what N separate caches would have held at their peak. If nothing but the
prompt were shared, the ratio would be that of "prompt alone"; what is below it is shared by
descent, and so the more the oftener the population is resampled. The median ESS over the rounds
is shown: where the end of the text is masked, these models write what they were never trained on.
To compare with: 0.28 at N = 6, K = 16 (arXiv 2604.15672; other models and texts). A fork is what
resampling makes of a particle for each heir but the first; it copies what of the last page two
heirs would write on. The share of resampling is of the time of all phases. Medians over seeds,
with (smallest-largest).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from smcprog import Engine, Posterior, gen, prompt, smc_program

TEXT = "Once there was a cook named Mara. She lived in a small village near the sea. " * 40
COLUMNS = (
    "N",
    "K",
    "peak / N caches",
    "prompt alone",
    "ESS / N",
    "resamplings",
    "forks",
    "tokens copied a fork",
    "share of resampling",
)


@smc_program
def write(text: str, tokens: int):
    """Draw a text of a fixed length."""
    prompt(text)
    return gen(stop=(), max_tokens=tokens)


def forks(posterior: Posterior) -> int:
    return sum(len(posterior) - len(set(record.ancestors)) for record in posterior.rounds)


def share_of_resampling(posterior: Posterior) -> float:
    phases = [record.seconds for record in posterior.rounds]
    resampling = sum(seconds.get("resample", 0.0) for seconds in phases)
    return resampling / sum(sum(seconds.values()) for seconds in phases)


def measured(posteriors: Sequence[Posterior], options: argparse.Namespace) -> list[str]:
    """A row of the table, but for its first columns."""
    particles = len(posteriors[0])
    prompt_share = options.prompt / (options.prompt + options.tokens)
    sizes = [record.ess / particles for posterior in posteriors for record in posterior.rounds]
    stats = [posterior.stats for posterior in posteriors]
    return [
        shown([one.peak_kv_tokens / one.unshared_kv_tokens for one in stats], ".2f"),
        f"{1 - (1 - 1 / particles) * prompt_share:.2f}",
        f"{median(sizes):.2f}",
        shown([one.resamplings for one in stats], "g"),
        shown([*map(forks, posteriors)], "g"),
        shown([p.stats.kv_tokens_copied / max(forks(p), 1) for p in posteriors], ".1f"),
        shown([*map(share_of_resampling, posteriors)], ".1%"),
    ]


def shown(values: Sequence[float], form: str) -> str:
    low, mid, high = (format(f(values), form) for f in (min, median, max))
    return f"{mid} ({low}-{high})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--particles", type=int, nargs="+", default=[6, 16])
    parser.add_argument("--block", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of the prompt")
    parser.add_argument("--tokens", type=int, default=512, help="new tokens a particle")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()

    engine = Engine()
    tokenization = engine.tokenization
    ids = [*tokenization.start_ids, *tokenization.encode([TEXT], at_start=True)][: options.prompt]
    text = tokenization.vocabulary.decode(ids).decode()
    lines = []
    for particles in options.particles:
        posteriors = [
            engine.run(
                write(text, options.tokens), particles=particles, block=options.block, seed=seed
            )
            for seed in range(options.seeds)
        ]
        lines.append([str(particles), str(options.block), *measured(posteriors, options)])
    report(lines, options.markdown)


def report(lines: Sequence[Sequence[str]], markdown: bool) -> None:
    if markdown:
        for line in (COLUMNS, ["--:"] * len(COLUMNS), *lines):
            print("| " + " | ".join(line) + " |")
        return
    table = Table(*COLUMNS)
    for line in lines:
        table.add_row(*line)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
