"""What the draft learns from: text that the target itself draws, with its final hidden states.

The hidden states pass through `generate` anyway. Kept, they make the target's distribution over the
whole vocabulary, in every later epoch, a matter of its LM head alone.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from smcprog.errors import ModelError

ROWS_AT_ONCE = 64
MOST_STATES = 4 << 30
"""Bytes of hidden states that are kept; the target recomputes those of later texts."""


@dataclass(frozen=True)
class Texts:
    """n texts of P prompt tokens (padded on the left) and G drawn ones.

    Attributes:
        ids: int64[n, P + G].
        mask: bool[n, P + G], false on padding.
        drawn: G.
        states: the target's final hidden states [n, G, H]; the i-th is that which the i-th drawn
            token was drawn from. None if they are not kept.
    """

    ids: Tensor
    mask: Tensor
    drawn: int
    states: Tensor | None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice | Tensor) -> Texts:
        states = None if self.states is None else self.states[rows]
        return Texts(self.ids[rows], self.mask[rows], self.drawn, states)

    @property
    def tokens(self) -> int:
        """How many tokens were drawn."""
        return len(self) * self.drawn

    def to(self, device: torch.device) -> Texts:
        """The same on a device."""
        states = None if self.states is None else self.states.to(device)
        return Texts(self.ids.to(device), self.mask.to(device), self.drawn, states)


def final_states(model: Any, texts: Texts) -> Tensor:
    """A model's hidden states before its LM head, at the drawn tokens: [n, G, H]."""
    mask = texts.mask[:, :-1]
    output = model.base_model(
        input_ids=texts.ids[:, :-1],
        attention_mask=mask.long(),
        position_ids=(mask.long().cumsum(-1) - 1).clamp(min=0),
        use_cache=False,
    )
    return output.last_hidden_state[:, -texts.drawn :]


@torch.no_grad()
def target_states(target: Any, texts: Texts) -> Tensor:
    """The target's hidden states at the drawn tokens [n, G, H]: the kept ones, or new ones."""
    return final_states(target, texts) if texts.states is None else texts.states


# Prompts


def default_prompts(tokenizer: Any) -> list[list[int]]:
    """BOS (or else the end token), and the opening of a user's turn if there is a chat template.

    From the latter an instruction-tuned model writes a question and answers it (Xu et al. 2024,
    "Magpie", arXiv:2406.08464).

    Raises:
        ModelError: if the tokenizer has no BOS and no end token.
    """
    start = tokenizer.bos_token_id
    start = tokenizer.eos_token_id if start is None else start
    if start is None:
        raise ModelError(
            "the target's tokenizer has no BOS and no end token to draw text from: give prompts"
        )
    opening = _opening_of_a_turn(tokenizer)
    return [[start], opening] if opening else [[start]]


def encoded_prompts(tokenizer: Any, lines: Sequence[str]) -> list[list[int]]:
    """Token ids of each line that is not blank, special tokens included.

    Raises:
        ValueError: if there is none.
    """
    prompts = [tokenizer(line)["input_ids"] for line in lines if line.strip()]
    if not prompts:
        raise ValueError("the prompts are empty: give one prompt a line")
    return prompts


def _opening_of_a_turn(tokenizer: Any) -> list[int]:
    mark = "\N{SNOWMAN}"
    if not getattr(tokenizer, "chat_template", None):
        return []
    try:
        shown = tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
    except Exception:  # a template that wants something else: BOS alone will do
        return []
    opening, found, _ = shown.partition(mark)
    return tokenizer(opening, add_special_tokens=False)["input_ids"] if found else []


# Sampling


@torch.no_grad()
def sample(
    target: Any,
    prompts: Sequence[Sequence[int]],
    rows: int,
    length: int,
    seed: int,
    seconds: float | None = None,
) -> Texts:
    """Draw texts at temperature 1 from the whole distribution, in one batch.

    A text goes on after an end token, as the target continues it, so that rows are equally long.

    Args:
        target: a transformers causal LM.
        prompts: token ids; the rows take turns, from a random one on.
        rows: how many texts.
        length: tokens drawn for each.
        seed: of the draws.
        seconds: stop here, with shorter texts.
    """
    from transformers import GenerationConfig

    with torch.random.fork_rng(devices=[target.device] if target.device.type == "cuda" else []):
        torch.manual_seed(seed)
        first = int(torch.randint(len(prompts), ()))
        ids, mask = _padded([prompts[(first + i) % len(prompts)] for i in range(rows)])
        with _plain(target), _recorded(target) as states:
            ids = target.generate(
                input_ids=ids.to(target.device),
                attention_mask=mask.long().to(target.device),
                generation_config=GenerationConfig(
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    top_p=1.0,
                    max_new_tokens=length,
                    max_time=seconds,
                    pad_token_id=0,
                ),
            )
    drawn = len(states)
    mask = torch.nn.functional.pad(mask, (0, drawn), value=True)
    return Texts(ids.cpu(), mask, drawn, torch.stack(states, dim=1))


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids and mask [n, P], padded on the left."""
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.int64)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = True
    return ids, mask


@contextmanager
def _plain(model: Any) -> Iterator[None]:
    """Without the model's own settings of `generate`, such as top_k or a repetition penalty."""
    from transformers import GenerationConfig

    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


@contextmanager
def _recorded(model: Any) -> Iterator[list[Tensor]]:
    """The hidden states [n, H] that each pass hands to the LM head for its last position."""
    states: list[Tensor] = []

    def record(_: Any, inputs: tuple[Tensor]) -> None:
        states.append(inputs[0][:, -1].cpu())

    hook = model.get_output_embeddings().register_forward_pre_hook(record)
    try:
        yield states
    finally:
        hook.remove()


# The pool on disk


@dataclass(frozen=True)
class Pool:
    """Held-out texts, and batches of texts to train on: `texts` were drawn in ``seconds``."""

    held_out: Texts
    parts: list[Texts]
    seconds: float

    @property
    def tokens(self) -> int:
        """How many tokens there are to train on."""
        return sum(part.tokens for part in self.parts)

    def epoch(self, number: int, rows: int, seed: int) -> list[tuple[int, Tensor]]:
        """The batches of an epoch in random order: a part, and which of its rows."""
        random = torch.Generator().manual_seed(derived_seed(seed, "epoch", number))
        batches = []
        for index, part in enumerate(self.parts):
            batches += [
                (index, chosen)
                for chosen in torch.randperm(len(part), generator=random).split(rows)
            ]
        order = torch.randperm(len(batches), generator=random)
        return [batches[i] for i in order.tolist()]


@dataclass(frozen=True)
class Sampling:
    """How much to draw: a number of texts, or as many as a time allows.

    Attributes:
        length: tokens of a text.
        held_out: texts that are kept apart, the first ones.
        rows: texts to train on, or None.
        seconds: the time for all, or None.
    """

    length: int
    held_out: int
    rows: int | None
    seconds: float | None


def fill(
    folder: Path,
    target: Any,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    seed: int,
    show: Any,
) -> Pool:
    """Draw texts into files of a folder, after those that are there, and read them all.

    Args:
        folder: where they are kept.
        target: a transformers causal LM.
        prompts: token ids.
        sampling: how much.
        seed: of the draws; each file's own is derived from it.
        show: called with (texts, tokens, seconds) after each file.

    Raises:
        ModelError: if the time was too short for any text.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[Texts] = []
    spent, last, kept_bytes = 0.0, 0.0, 0
    while True:
        file = folder / f"texts-{len(parts):05}.safetensors"
        rows = _rows_wanted(sampling, sum(map(len, parts)))
        left = None if sampling.seconds is None else sampling.seconds - spent
        if not file.exists():
            if not rows or (parts and left is not None and left < last / 2):
                break
            begin = time.monotonic()
            part = sample(
                target,
                prompts,
                rows,
                sampling.length,
                derived_seed(seed, "texts", len(parts)),
                left,
            )
            assert part.states is not None
            kept_bytes += part.states.nbytes
            if kept_bytes > MOST_STATES:
                part = Texts(part.ids, part.mask, part.drawn, None)
            _write(file, part, time.monotonic() - begin)
        part, last = _read(file)
        parts.append(part)
        spent += last
        show(sum(map(len, parts)), sum(part.tokens for part in parts), spent)
    first = parts[0]
    if len(first) <= sampling.held_out or first.drawn < 8:
        raise ModelError(
            f"the time was enough for {len(first)} texts of {first.drawn} tokens only: give more"
        )
    parts[0] = first[sampling.held_out :]
    return Pool(first[: sampling.held_out], parts, spent)


def _rows_wanted(sampling: Sampling, there: int) -> int:
    if sampling.rows is None:
        return ROWS_AT_ONCE
    return min(ROWS_AT_ONCE, sampling.held_out + sampling.rows - there)


def _write(file: Path, texts: Texts, seconds: float) -> None:
    from safetensors.torch import save_file

    tensors = {"ids": texts.ids.contiguous(), "mask": texts.mask.contiguous()}
    if texts.states is not None:
        tensors["states"] = texts.states.contiguous()
    partial = file.with_suffix(".partial")
    save_file(tensors, partial, {"drawn": str(texts.drawn), "seconds": str(seconds)})
    os.replace(partial, file)


def _read(file: Path) -> tuple[Texts, float]:
    from safetensors import safe_open

    with safe_open(file, "pt") as stored:
        about = stored.metadata()
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}
    texts = Texts(tensors["ids"], tensors["mask"], int(about["drawn"]), tensors.get("states"))
    return texts, float(about["seconds"])


def derived_seed(seed: int, *purpose: object) -> int:
    """A seed of its own for each purpose: 63 bits."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
