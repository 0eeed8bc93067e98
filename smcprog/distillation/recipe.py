"""From a target to a folder with a draft for it: `distill`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from smcprog.distillation.drafts import freeze_embeddings, narrow, pruned
from smcprog.distillation.measures import LOSSES, Divergence, Fit, measure, step_ratio
from smcprog.distillation.texts import (
    Pool,
    Sampling,
    Texts,
    default_prompts,
    derived_seed,
    encoded_prompts,
    fill,
    final_states,
)
from smcprog.distillation.training import Point, Schedule, State, Training
from smcprog.errors import ModelError
from smcprog.gpu.loading import Loaded, ModelSource, load

REPORT = "distill.json"
WORK = "distill-work"
MINUTES = 60.0
SAMPLING_SHARE = 0.25
EPOCHS = 4
HELD_OUT = 16


@dataclass(frozen=True)
class Settings:
    """What a draft is made from and how: a folder holds one draft, of one such record."""

    target: str
    layers: tuple[int, ...] | None
    width: int | None
    depth: int | None
    heads: int | None
    minutes: float | None
    steps: int | None
    divergence: Divergence
    prompts: str | None
    batch: int
    length: int
    learning_rate: float
    train_embedding: bool
    seed: int


@dataclass(frozen=True)
class DistillReport:
    """What `distill` made; ``distill.json`` holds the same.

    Attributes:
        settings: what was asked for.
        before, after: how well the draft fits, before and after the training; see `Fit`.
        target_parameters, draft_parameters: how many.
        step_ratio: what one token costs the draft, as a share of the target's cost.
        sampled_tokens: drawn from the target to train on.
        trained_tokens: positions trained on, counted once an epoch.
        steps: optimiser steps.
        seconds: spent on drawing text and on training.
        history: the training, a `Point` every few minutes.
    """

    settings: Settings
    before: Fit
    after: Fit
    target_parameters: int
    draft_parameters: int
    step_ratio: float
    sampled_tokens: int
    trained_tokens: int
    steps: int
    seconds: float
    history: tuple[Point, ...]

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> DistillReport:
        """Read the report of a finished folder."""
        saved = json.loads((Path(folder) / REPORT).read_text(encoding="utf-8"))
        saved["settings"] = _settings(saved["settings"])
        saved["before"], saved["after"] = Fit(**saved["before"]), Fit(**saved["after"])
        saved["history"] = tuple(Point(**point) for point in saved["history"])
        return cls(**saved)


def distill(
    target: ModelSource,
    out: str | os.PathLike[str],
    *,
    layers: Sequence[int] | None = None,
    width: int | None = None,
    depth: int | None = None,
    heads: int | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    divergence: Divergence = "kl",
    prompts: str | os.PathLike[str] | Sequence[str] | None = None,
    batch: int = 4,
    length: int = 128,
    learning_rate: float = 1e-3,
    train_embedding: bool | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    progress: bool = True,
) -> DistillReport:
    """Make a draft for a target: ``Engine(target, draft=out)``.

    The draft is some of the target's layers (``layers``), or a narrow model of its family
    (``width`` and ``depth``). It learns the target's next-token distribution, over the whole
    vocabulary, on text that the target draws at temperature 1. The same call again goes on where it
    was interrupted, and does nothing where it is finished.

    Args:
        target: a folder, a hub name, or a ``(model, tokenizer)`` pair of transformers objects.
        out: the folder to make: config, safetensors, tokenizer and ``distill.json``. Until the end
            it holds ``distill-work``, with the texts and the last checkpoint.
        layers: the target's layers that the draft keeps, from 0, increasing, such as (0, 1, 2, 29).
        width: hidden size of a narrow draft; its other sizes shrink in proportion.
        depth: layers of a narrow draft.
        heads: attention heads of a narrow draft; by default as many as keep the target's head size.
        minutes: the time for drawing text (a quarter of it) and training (the rest), 60 by
            default. Loading and measuring come on top.
        steps: optimiser steps, instead of a time: the result depends on the seed alone.
        divergence: "kl", KL(p || q), or "chi2", log(1 + chi2(p || q)), whose exponential is what
            one drafted token divides the effective sample size by. It is what SMC-SD pays, but it
            listens to rare tokens most: start from a draft that fits somewhat.
        prompts: a file with one prompt a line, or prompts, that the texts begin with; by default
            BOS and, where there is a chat template, the opening of a user's turn.
        batch: texts in an optimiser step.
        length: tokens of a text.
        learning_rate: the peak of AdamW's.
        train_embedding: whether the embedding and the LM head learn, too; by default they do in a
            narrow draft only.
        seed: of the texts, the batches and a narrow draft's weights.
        device: where the target runs.
        dtype: in which type; the draft trains in float32 and is saved in the target's own type.
        progress: whether to show how far it is.

    Raises:
        ModelError: if the target cannot be loaded, or is no plain decoder.
        ValueError: for settings that do not fit, or a folder that cannot be used.

    >>> import tempfile
    >>> from smcprog.gpu.loading import PAIR
    >>> folder = tempfile.mkdtemp()
    >>> report = distill(
    ...     PAIR / "target", folder, layers=(0, 2), steps=8, length=16, progress=False
    ... )
    >>> report.after.kl < report.before.kl
    True
    >>> report.draft_parameters < report.target_parameters
    True
    """
    lines = _lines(prompts)
    settings = Settings(
        target=_name(target),
        layers=None if layers is None else tuple(layers),
        width=width,
        depth=depth,
        heads=heads,
        minutes=MINUTES if minutes is None and steps is None else minutes,
        steps=steps,
        divergence=divergence,
        prompts=None if lines is None else hashlib.sha256("\n".join(lines).encode()).hexdigest(),
        batch=batch,
        length=length,
        learning_rate=learning_rate,
        train_embedding=layers is None if train_embedding is None else train_embedding,
        seed=seed,
    )
    _check_numbers(settings)
    folder = Path(out).expanduser()
    if _is_finished(folder, settings):
        report = DistillReport.load(folder)
        if progress:
            print(f"{folder} is finished; it is left alone")
        return report
    loaded = load(target, device, dtype)
    job = _Job(settings, folder, loaded, lines, progress)
    return job.run(_saved_type(target, loaded))


# What may be asked for


def _lines(prompts: str | os.PathLike[str] | Sequence[str] | None) -> list[str] | None:
    """The prompts, a file's or the caller's. Raises ValueError if there is none."""
    if prompts is None:
        return None
    if isinstance(prompts, str | os.PathLike):
        try:
            lines = Path(prompts).expanduser().read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"prompts: {prompts} cannot be read: {error}") from error
    else:
        lines = list(prompts)
    if not any(line.strip() for line in lines):
        raise ValueError(f"prompts: {prompts} holds no prompt; give one a line")
    return lines


def _check_numbers(settings: Settings) -> None:
    """Raise ValueError for what no target could satisfy."""
    s = settings
    if (s.layers is None) == (s.width is None and s.depth is None and s.heads is None):
        raise ValueError(
            "give either layers (those that the draft keeps of the target) or width and depth (of "
            "a narrow model)"
        )
    if s.layers is None and (s.width is None or s.depth is None):
        raise ValueError("a narrow draft needs both width and depth")
    if s.minutes is not None and s.steps is not None:
        raise ValueError("give minutes or steps, not both")
    if s.divergence not in LOSSES:
        raise ValueError(f"divergence={s.divergence!r}: choose {' or '.join(LOSSES)}")
    least = {"minutes": 0, "steps": 0, "batch": 0, "learning_rate": 0, "length": 7}
    for name, bound in least.items():
        value = getattr(s, name)
        if value is not None and not value > bound:
            raise ValueError(f"{name}={value}: must be more than {bound}")


def _name(target: ModelSource) -> str:
    """What a folder remembers of its target."""
    if isinstance(target, tuple):
        return f"{type(target[0]).__name__} object"
    path = Path(target).expanduser()
    return str(path.resolve()) if path.exists() else os.fspath(target)


def _is_finished(folder: Path, settings: Settings) -> bool:
    """Whether the folder holds this draft; it is made where it does not exist.

    Raises:
        ValueError: if it holds something else, or cannot be written to.
    """
    for record in (folder / REPORT, folder / WORK / "settings.json"):
        if record.is_file():
            saved = json.loads(record.read_text(encoding="utf-8"))
            _compare(folder, _settings(saved.get("settings", saved)), settings)
            return record.name == REPORT
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty, and not from here: choose another folder")
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to the folder {folder}: {error}") from error
    return False


def _compare(folder: Path, saved: Settings, wanted: Settings) -> None:
    theirs, ours = asdict(saved), asdict(wanted)
    differing = [name for name in ours if ours[name] != theirs[name]]
    if differing:
        changes = ", ".join(f"{name}={theirs[name]!r} (now {ours[name]!r})" for name in differing)
        raise ValueError(
            f"{folder} was begun with other settings: {changes}. Choose another folder, remove "
            "this one, or ask for the same"
        )


def _settings(saved: dict[str, Any]) -> Settings:
    saved["layers"] = None if saved["layers"] is None else tuple(saved["layers"])
    return Settings(**{f.name: saved[f.name] for f in fields(Settings)})


def _saved_type(target: ModelSource, loaded: Loaded) -> torch.dtype:
    """The type of the checkpoint's weights, whatever they were loaded as."""
    if isinstance(target, tuple):
        return loaded.model.dtype
    from transformers import AutoConfig

    kept = getattr(AutoConfig.from_pretrained(os.path.expanduser(target)), "dtype", None)
    return kept if isinstance(kept, torch.dtype) else loaded.model.dtype


# The work


@dataclass
class _Job:
    """One distillation, once the target is loaded."""

    settings: Settings
    folder: Path
    loaded: Loaded
    lines: list[str] | None
    progress: bool

    def run(self, dtype: torch.dtype) -> DistillReport:
        target = self.loaded.model.eval().requires_grad_(False)
        prompts = self._prompts()
        self._check_target()
        draft = self._draft()
        self._write_settings()
        pool = self._pool(prompts)
        training = Training(
            target, draft, pool, self._schedule(), self.folder / WORK, self.progress
        )
        state = training.load()
        if state is None:
            state = self._prepared(draft, pool)
            training.save(state)
        state = training.run(state)
        draft.to(dtype).float()  # what is measured is what is saved
        report = self._report(draft, pool, state)
        self._finish(draft, dtype, report)
        return report

    def _prompts(self) -> list[list[int]]:
        tokenizer, model = self.loaded.tokenizer, self.loaded.model
        if not hasattr(tokenizer, "get_vocab"):
            raise ModelError("the target comes without a tokenizer: give (model, tokenizer)")
        if self.lines is None:
            prompts = default_prompts(tokenizer)
        else:
            prompts = encoded_prompts(tokenizer, self.lines)
        limit = getattr(model.config, "max_position_embeddings", None)
        longest = max(map(len, prompts))
        if limit is not None and longest + self.settings.length > limit:
            raise ValueError(
                f"a prompt of {longest} tokens and length={self.settings.length} outgrow the "
                f"target's context of {limit}"
            )
        return prompts

    @torch.inference_mode()
    def _check_target(self) -> None:
        """Raise ModelError unless the logits are the LM head's of the last hidden states."""
        model = self.loaded.model
        head, name = model.get_output_embeddings(), type(model).__name__
        if head is None or model.base_model is model:
            raise ModelError(f"{name} has no LM head over a decoder, which a draft must share")
        ids = torch.arange(1, 9, device=model.device)[None]
        texts = Texts(ids, torch.ones_like(ids, dtype=torch.bool), 4, None)
        wanted = model(input_ids=ids, use_cache=False).logits[:, -5:-1].float()
        if not torch.allclose(head(final_states(model, texts)).float(), wanted, atol=1e-2):
            raise ModelError(
                f"the logits of {name} are not those of its LM head alone (are they capped or "
                "scaled?), which distilling needs"
            )

    def _draft(self) -> Any:
        s, target = self.settings, self.loaded.model
        if s.layers is not None:
            draft = pruned(target, s.layers)
        else:
            assert s.width is not None and s.depth is not None
            draft = narrow(target, s.width, s.depth, s.heads, derived_seed(s.seed, "weights"))
        if not s.train_embedding:
            freeze_embeddings(draft)
        return draft

    def _write_settings(self) -> None:
        work = self.folder / WORK
        work.mkdir(exist_ok=True)
        partial = work / "settings.partial"
        partial.write_text(json.dumps(asdict(self.settings)), encoding="utf-8")
        os.replace(partial, work / "settings.json")

    def _pool(self, prompts: list[list[int]]) -> Pool:
        s = self.settings
        sampling = Sampling(
            length=s.length,
            held_out=HELD_OUT,
            rows=None if s.steps is None else max(1, -(-s.steps * s.batch // EPOCHS)),
            seconds=None if s.minutes is None else SAMPLING_SHARE * 60 * s.minutes,
        )
        return fill(
            self.folder / WORK / "texts",
            self.loaded.model,
            prompts,
            sampling,
            s.seed,
            self._show_texts,
        )

    def _show_texts(self, texts: int, tokens: int, seconds: float) -> None:
        if self.progress:
            print(f"{texts} texts, {tokens} tokens drawn in {seconds:.0f} s", flush=True)

    def _schedule(self) -> Schedule:
        s = self.settings
        return Schedule(
            steps=s.steps,
            seconds=None if s.minutes is None else 60 * s.minutes,
            rows=s.batch,
            learning_rate=s.learning_rate,
            divergence=s.divergence,
            seed=s.seed,
        )

    def _measured(self, draft: Any, pool: Pool) -> Fit:
        seed = derived_seed(self.settings.seed, "blocks")
        return measure(self.loaded.model, draft, pool.held_out, seed)

    def _prepared(self, draft: Any, pool: Pool) -> State:
        before = self._measured(draft, pool)
        if self.progress:
            print(f"before: 1 - TV {before.overlap:.3f}, KL {before.kl:.2f}", flush=True)
        return State(before, step=0, tokens=0, seconds=(pool.seconds, 0.0), history=())

    def _report(self, draft: Any, pool: Pool, state: State) -> DistillReport:
        target = self.loaded.model
        return DistillReport(
            settings=self.settings,
            before=state.before,
            after=self._measured(draft, pool),
            target_parameters=target.num_parameters(),
            draft_parameters=draft.num_parameters(),
            step_ratio=step_ratio(target, draft, pool.held_out),
            sampled_tokens=pool.tokens,
            trained_tokens=state.tokens,
            steps=state.step,
            seconds=sum(state.seconds),
            history=state.history,
        )

    def _finish(self, draft: Any, dtype: torch.dtype, report: DistillReport) -> None:
        """Write the folder, the report last, and clear the work away."""
        made = self.folder / WORK / "made"
        draft.generation_config = self.loaded.model.generation_config
        draft.to(dtype).save_pretrained(made)
        self.loaded.tokenizer.save_pretrained(made)
        for file in made.iterdir():
            os.replace(file, self.folder / file.name)
        text = json.dumps(asdict(report), indent=2) + "\n"
        (made / REPORT).write_text(text, encoding="utf-8")
        os.replace(made / REPORT, self.folder / REPORT)
        shutil.rmtree(self.folder / WORK)
