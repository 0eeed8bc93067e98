"""The training loop: AdamW towards the target, with checkpoints that a later run goes on from.

Nothing in it draws from a random state that would have to be kept: the batches of an epoch are a
function of the seed, and dropout is off. So a run that is counted in steps comes to the same
weights, bit for bit, however often it was interrupted.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from smcprog.distillation.measures import LOSSES, Divergence, Fit, backward, token_fit
from smcprog.distillation.texts import Pool

WARM_UP = 0.05
CHECKPOINT_SECONDS = 180.0
_WATCHED = 4


@dataclass(frozen=True)
class Point:
    """One moment of the training.

    Attributes:
        seconds: spent so far, drawing text included.
        step: optimiser steps so far.
        loss: mean over the steps since the last point.
        overlap: 1 - TV on four held-out texts.
    """

    seconds: float
    step: int
    loss: float
    overlap: float


@dataclass(frozen=True)
class State:
    """How far a training is: all that a checkpoint holds beside the weights.

    Attributes:
        before: the draft as it was.
        step: optimiser steps taken.
        tokens: positions trained on.
        seconds: spent on drawing text, and on training.
        history: see `Point`.
    """

    before: Fit
    step: int
    tokens: int
    seconds: tuple[float, float]
    history: tuple[Point, ...]


@dataclass(frozen=True)
class Schedule:
    """How long to train, and how.

    Attributes:
        steps: optimiser steps, or None for as many as the time allows.
        seconds: for drawing text and training together, or None.
        rows: texts in a batch.
        learning_rate: at the peak.
        divergence: the loss.
        seed: of the order of the batches.
    """

    steps: int | None
    seconds: float | None
    rows: int
    learning_rate: float
    divergence: Divergence
    seed: int

    def progress(self, state: State) -> float:
        """The share of the training that is done: 1 ends it."""
        if self.steps is not None:
            return state.step / self.steps
        assert self.seconds is not None
        drawing, trained = state.seconds
        return trained / max(self.seconds - drawing, 1e-9)

    def rate(self, progress: float) -> float:
        """The learning rate: a linear warm-up, then a cosine to 0 (Loshchilov & Hutter 2017)."""
        if progress < WARM_UP:
            # The first step, and every step of a very short training, must move something.
            return self.learning_rate * max(progress / WARM_UP, 0.1)
        return (
            self.learning_rate
            * 0.5
            * (1 + math.cos(math.pi * (progress - WARM_UP) / (1 - WARM_UP)))
        )


@dataclass
class Training:
    """A draft that learns from its target.

    Args:
        target, draft: causal LMs; those of the draft's parameters that need no gradient stay.
        pool: the texts.
        schedule: how long, and how.
        folder: of the checkpoints.
        show: whether to show a bar.
    """

    target: Any
    draft: Any
    pool: Pool
    schedule: Schedule
    folder: Path
    show: bool
    _batches: tuple[int, list[Any]] = field(default=(-1, []), init=False)

    def __post_init__(self) -> None:
        self._learning = [p for p in self.draft.parameters() if p.requires_grad]
        matrices = [p for p in self._learning if p.ndim > 1]
        vectors = [p for p in self._learning if p.ndim <= 1]
        groups: list[dict[str, Any]] = [
            {"params": matrices},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01)
        self._watched = self.pool.held_out[:_WATCHED]

    def run(self, state: State) -> State:
        """Train from a state to the end; the draft is changed in place.

        An interrupt between two steps leaves a checkpoint.
        """
        loss_of = LOSSES[self.schedule.divergence]
        begin = saved = time.monotonic()
        before = state.seconds[1]
        losses: list[float] = []
        between = True  # no step is half done
        try:
            with self._bar(state) as bar:
                while (progress := self.schedule.progress(state)) < 1:
                    texts = self._texts(state.step).to(self.target.device)
                    loss = float(backward(self.target, self.draft, texts, loss_of))
                    between = False
                    self._update(self.schedule.rate(progress))
                    losses.append(loss)
                    now = time.monotonic()
                    state = replace(
                        state,
                        step=state.step + 1,
                        tokens=state.tokens + texts.tokens,
                        seconds=(state.seconds[0], before + now - begin),
                    )
                    between = True
                    self._advance(bar, state, loss)
                    if now - saved > CHECKPOINT_SECONDS or self.schedule.progress(state) >= 1:
                        state = self._noted(state, losses)
                        self.save(state)
                        losses, saved = [], time.monotonic()
        except KeyboardInterrupt:
            if between:
                self.save(state)
            raise
        return state

    def _noted(self, state: State, losses: list[float]) -> State:
        overlap, _, _ = token_fit(self.target, self.draft, self._watched)
        point = Point(sum(state.seconds), state.step, sum(losses) / len(losses), overlap)
        if self.show:
            tqdm.write(
                f"{point.seconds:6.0f} s  step {point.step}  {self.schedule.divergence} "
                f"{point.loss:.3f}  1 - TV {overlap:.3f}"
            )
        return replace(state, history=(*state.history, point))

    def _texts(self, step: int) -> Any:
        if not self._batches[1]:
            self._batches = (0, self.pool.epoch(0, self.schedule.rows, self.schedule.seed))
        epoch, place = divmod(step, len(self._batches[1]))  # every epoch has as many batches
        if epoch != self._batches[0]:
            self._batches = (epoch, self.pool.epoch(epoch, self.schedule.rows, self.schedule.seed))
        part, rows = self._batches[1][place]
        return self.pool.parts[part][rows]

    def _update(self, rate: float) -> None:
        nn.utils.clip_grad_norm_(self._learning, 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _bar(self, state: State) -> Any:
        steps = self.schedule.steps
        return tqdm(
            total=steps or round(self.schedule.seconds or 0),
            initial=state.step if steps else round(sum(state.seconds)),
            unit="step" if steps else "s",
            desc="training",
            disable=not self.show,
            mininterval=2.0,
        )

    def _advance(self, bar: Any, state: State, loss: float) -> None:
        bar.set_postfix_str(f"step {state.step}, loss {loss:.3f}", refresh=False)
        bar.update((state.step if self.schedule.steps else round(sum(state.seconds))) - bar.n)

    # Checkpoints

    def save(self, state: State) -> None:
        """Write a checkpoint, unless it is there; the last one goes when this one is."""
        final = self.folder / f"checkpoint-{state.step:08}"
        if final.exists():
            return
        partial = self.folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        weights = {
            "draft": {n: p for n, p in self.draft.named_parameters() if p.requires_grad},
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(weights, partial / "weights.pt")
        (partial / "state.json").write_text(json.dumps(asdict(state)))
        os.replace(partial, final)
        for other in self.folder.glob("checkpoint-*"):
            if other != final:
                shutil.rmtree(other)

    def load(self) -> State | None:
        """Take the weights of the last checkpoint, and return its state; None without one."""
        found = sorted(self.folder.glob("checkpoint-*"))
        if not found:
            return None
        weights = torch.load(found[-1] / "weights.pt", weights_only=True)
        parameters = dict(self.draft.named_parameters())
        with torch.no_grad():
            for name, tensor in weights["draft"].items():
                parameters[name].copy_(tensor)
        self._optimizer.load_state_dict(weights["optimizer"])
        state = json.loads((found[-1] / "state.json").read_text())
        return State(
            before=Fit(**state["before"]),
            step=state["step"],
            tokens=state["tokens"],
            seconds=tuple(state["seconds"]),
            history=tuple(Point(**point) for point in state["history"]),
        )
