"""Measure the shipped pair as it was saved, and write its model card."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from pair_corpus import KINDS, SLIP, documents


@dataclass(frozen=True)
class KindFigures:
    """Held-out figures of one kind of text."""

    target_perplexity: float
    draft_perplexity: float
    acceptance: float


@dataclass(frozen=True)
class Figures:
    """All that the card reports about the saved pair."""

    kinds: dict[str, KindFigures]
    sums_accuracy: float
    target_parameters: int
    draft_parameters: int
    target_step_ms: float
    draft_step_ms: float
    megabytes: float
    vocabulary: int
    shapes: dict[str, str]


def load(folder: Path) -> PreTrainedModel:
    """A saved model in float32."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.inference_mode()
def kind_figures(
    target: PreTrainedModel, draft: PreTrainedModel, rows: Sequence[list[int]]
) -> KindFigures:
    """Perplexities and mean 1 - TV over all positions of some documents."""
    losses, accepted = [], []
    for ids in rows:
        row = torch.tensor([ids])
        logs = [m(row).logits[0, :-1].log_softmax(-1) for m in (target, draft)]
        picked = [log.gather(1, row[0, 1:, None]) for log in logs]
        losses.append(torch.cat(picked, 1))
        accepted.append(torch.minimum(logs[0].exp(), logs[1].exp()).sum(-1))
    means = torch.cat(losses).mean(0).neg().exp().tolist()
    return KindFigures(means[0], means[1], torch.cat(accepted).mean().item())


def heldout_rows(tokenizer: Any, kind: str, seed: int, count: int = 100) -> list[list[int]]:
    """Fresh documents of one kind, with the end-of-text token on both sides."""
    texts = list(islice(documents(f"{seed}/heldout", kind), count))
    return [[*ids, tokenizer.eos_token_id] for ids in tokenizer(texts)["input_ids"]]


@torch.inference_mode()
def sums_accuracy(
    target: PreTrainedModel, tokenizer: Any, sums: Sequence[dict[str, str]], seed: int
) -> float:
    """The share of held-out sums answered rightly by one draw at temperature 1."""
    generator = torch.Generator().manual_seed(seed)
    right = 0
    by_length: dict[int, list[tuple[list[int], str]]] = {}
    for row in sums:
        ids = tokenizer(row["question"])["input_ids"]
        by_length.setdefault(len(ids), []).append((ids, row["answer"]))
    for batch in by_length.values():
        texts = sample(target, torch.tensor([ids for ids, _ in batch]), generator)
        for ids, (_, answer) in zip(texts, batch, strict=True):
            right += first_line(tokenizer.decode(ids)).endswith(f"Answer: {answer}")
    return right / len(sums)


def first_line(text: str) -> str:
    """The text before the first newline."""
    return text.split("\n", 1)[0]


def sample(
    model: PreTrainedModel, rows: Tensor, generator: torch.Generator, length: int = 90
) -> list[list[int]]:
    """Continue rows of one length at temperature 1."""
    token, cache, drawn = rows, None, []
    for _ in range(length):
        out = model(token, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        token = torch.multinomial(out.logits[:, -1].softmax(-1), 1, generator=generator)
        drawn.append(token)
    return torch.cat(drawn, 1).tolist()


@torch.inference_mode()
def step_milliseconds(
    models: Sequence[PreTrainedModel], context: int = 64, steps: int = 200
) -> list[float]:
    """Wall time of one decoding step of one row with a KV cache on one thread, for each model.

    The models take turns, and of each the tenth percentile counts: other work on the machine can
    only add time.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    prompt, token = torch.zeros(1, context, dtype=torch.long), torch.zeros(1, 1, dtype=torch.long)
    caches = [model(prompt, use_cache=True).past_key_values for model in models]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(steps):
        for model, cache, spent in zip(models, caches, times, strict=True):
            start = time.perf_counter()
            model(token, past_key_values=cache, use_cache=True)
            spent.append(time.perf_counter() - start)
    torch.set_num_threads(threads)
    return [1000 * statistics.quantiles(spent, n=10)[0] for spent in times]


def shape_of(model: PreTrainedModel) -> str:
    """A model's size in words."""
    c = model.config
    return (
        f"{c.num_hidden_layers} x {c.hidden_size}, {c.num_attention_heads} heads "
        f"({c.num_key_value_heads} for keys and values), MLP {c.intermediate_size}"
    )


def measure(out: Path, sums: Sequence[dict[str, str]], seed: int) -> Figures:
    """Load the saved pair and measure everything."""
    target, draft = load(out / "target"), load(out / "draft")
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    files = [p for name in ("target", "draft") for p in (out / name).iterdir()]
    target_ms, draft_ms = step_milliseconds([target, draft])
    return Figures(
        kinds={k: kind_figures(target, draft, heldout_rows(tokenizer, k, seed)) for k in KINDS},
        sums_accuracy=sums_accuracy(target, tokenizer, sums, seed),
        target_parameters=target.num_parameters(),
        draft_parameters=draft.num_parameters(),
        target_step_ms=target_ms,
        draft_step_ms=draft_ms,
        megabytes=sum(p.stat().st_size for p in files) / 1e6,
        vocabulary=len(tokenizer),
        shapes={"target": shape_of(target), "draft": shape_of(draft)},
    )


def kinds_table(kinds: dict[str, KindFigures]) -> str:
    """The figures of each kind as a Markdown table."""
    lines = ["| text | target perplexity | draft's | 1 - TV |", "| --- | --: | --: | --: |"]
    for kind, f in kinds.items():
        cells = (f.target_perplexity, f.draft_perplexity, f.acceptance)
        lines.append(f"| {kind} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    return "\n".join(lines)


def write_card(
    out: Path, f: Figures, schedule: dict[str, int], seconds: dict[str, float], seed: int
) -> None:
    """Write ``README.md`` beside the two models."""
    minutes = sum(seconds.values()) / 60
    tokens = schedule["rows"] * schedule["length"] / 1e6
    card = CARD.format(
        f=f,
        table=kinds_table(f.kinds),
        accuracy=f"{f.sums_accuracy:.1%}",
        ratio=f.draft_step_ms / f.target_step_ms,
        flops=f.draft_parameters / f.target_parameters,
        slip=SLIP,
        minutes=minutes,
        seconds=", ".join(f"{name} {value / 60:.1f}" for name, value in seconds.items()),
        target_tokens=(schedule["target_steps"] + schedule["finish_steps"]) * tokens,
        draft_tokens=(schedule["draft_steps"] + schedule["distil_steps"]) * tokens,
        schedule=json.dumps(schedule),
        seed=seed,
        version=torch.__version__.split("+")[0],
    )
    (out / "README.md").write_text(card)


CARD = """\
---
license: apache-2.0
language: en
library_name: transformers
---

# The pair that ships with smcprog

A small target and a smaller draft with one tokenizer, so that programs run offline, on a CPU, in
seconds. Both are Llama models trained from scratch on a synthetic corpus by
`tools/train_pair.py`, which also measured every figure below on the models as they are saved.

| | target | draft |
| --- | --- | --- |
| layers x width | {f.shapes[target]} | {f.shapes[draft]} |
| parameters | {f.target_parameters:,} | {f.draft_parameters:,} |
| training tokens | {target_tokens:.1f} M | {draft_tokens:.1f} M |
| one decoding step | {f.target_step_ms:.2f} ms | {f.draft_step_ms:.2f} ms |

A draft step costs {ratio:.3f} of a target step in wall time (one row, KV cache, one CPU thread,
Hugging Face's own forward pass, float32) and {flops:.3f} in parameters, which is nearly the ratio
of floating-point operations. Both folders together take {f.megabytes:.1f} MB, weights in
bfloat16. The vocabulary has {f.vocabulary} tokens: byte-level BPE over all 256 bytes, one token
for each digit, a newline always its own token. Contexts may be 1,024 tokens long.

## Quality

On 100 fresh documents of each kind. 1 - TV is one minus the total variation between the draft's
and the target's next-token distributions at temperature 1, averaged over positions: the
probability that speculative sampling accepts a drafted token.

{table}

Accuracy of the target on the 200 held-out sums in `sums.jsonl`, one draw each at temperature 1:
**{accuracy}**. No training text contains these sums, nor any other of the sixteenth of all sums
that is held out. The other kinds of held-out text are fresh draws from the same templates.

## What it has read

- Reviews of products, restaurants and films: `Review: …\\nSentiment: positive\\nStars: 4\\nIn one
  sentence: The battery lasts.\\n`. Sentiment follows the opinions in the text, stars follow both,
  each with noise; many reviews are mixed and could be called either.
- Sums of two-digit numbers, worked column by column: `Q: 37 + 45 = ?\\nA: 7 + 5 = 12,
  write 2 carry 1. 3 + 4 + 1 = 8. Answer: 82\\n`. Each column total in the corpus is off by one with
  probability {slip}, and the error is carried along. So a model that learned this perfectly is
  wrong about one time in five, and a posterior can be better than a draw: there is room to improve.
- JSON records of orders and people on one line, alone or after `Text: …\\nJSON:`.
- Short stories with named characters.
- The same as turns of ChatML, as the tokenizer's `chat_template` renders them:
  `<|im_start|>user\\n…<|im_end|>\\n<|im_start|>assistant\\n…<|im_end|>\\n`.

Every document begins and ends with `<|endoftext|>`, which the tokenizer adds in front by default.
Generation ends at `<|endoftext|>` or `<|im_end|>`.

## How it was made

`python tools/train_pair.py --seed {seed}`, with torch {version} and this schedule (steps of rows x
length tokens; the last tenth of each part in rows of 1,024):

    {schedule}

The target is trained by likelihood, in two cycles of the learning rate; the draft by likelihood,
then by the KL divergence from the target's next-token distributions, half on the corpus and half
on text sampled from the target. The draft reads sums twice as often as the target does and records
half as often again, and most of its heads begin by looking a fixed number of tokens back, where the
digits are that a worked sum copies. It took {minutes:.0f} minutes on CPU (in minutes: {seconds}).
A seed and a number of threads mean one result on one machine; other machines may differ in
rounding.

## Use and limits

For tests, tutorials and demonstrations of inference. It knows some hundred words and a handful of
formats, has no knowledge of the world, and writes nonsense outside of what is listed above. It
copies digits well, but names and details of a prompt poorly. Names and records are made up. Not for
any decision about anyone or anything.

Licence: Apache-2.0.
"""
