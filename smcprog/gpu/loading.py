"""Loading models and tokenizers: from a folder, a hub name, or objects that the user has loaded.

Weights come from safetensors alone and no code from a checkpoint is ever run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from smcprog.errors import ModelError, VocabularyError

PAIR = Path(__file__).parent.parent / "pair"
"""The target and the draft that ship with the package: ``pair/target`` and ``pair/draft``."""

ModelSource = str | os.PathLike[str] | tuple[Any, Any]

Kind = Literal["causal language model", "sequence classifier"]
_AUTO: dict[Kind, str] = {
    "causal language model": "AutoModelForCausalLM",
    "sequence classifier": "AutoModelForSequenceClassification",
}


@dataclass(frozen=True)
class Loaded:
    """A transformers model and its tokenizer."""

    model: Any
    tokenizer: Any


def load(
    source: ModelSource,
    device: str | torch.device,
    dtype: str | torch.dtype,
    kind: Kind = "causal language model",
) -> Loaded:
    """Load a model and its tokenizer.

    Args:
        source: a folder, a hub name, or a ``(model, tokenizer)`` pair, which keeps its own device
            and dtype where these are "auto".
        device: "auto" is CUDA where there is one.
        dtype: "auto" is the checkpoint's on CUDA and float32 on a CPU.
        kind: which of a checkpoint's weights are needed.

    Raises:
        ModelError: if it cannot be loaded; the cause is kept.
    """
    if isinstance(source, tuple) and len(source) == 2:
        model, tokenizer = source
        if device != "auto":
            model = _moved(model, device)
        if dtype != "auto":
            model = model.to(_dtype(dtype))
        return Loaded(model, tokenizer)
    # Imported here: it takes seconds, which `import smcprog` must not.
    import transformers

    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"a model is a folder, a hub name, or a (model, tokenizer) pair, not "
            f"{type(source).__name__}: Engine((model, tokenizer)), or "
            "Engine((target, tokenizer), (draft, tokenizer))"
        )
    where = _located(source)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto" and _device(device).type == "cpu":
        dtype = torch.float32
    _from_pretrained(transformers.AutoConfig, "configuration", where)
    tokenizer = _from_pretrained(transformers.AutoTokenizer, "tokenizer", where)
    with _bar_of_large_models_only(where):
        model, info = _from_pretrained(
            getattr(transformers, _AUTO[kind]),
            "model",
            where,
            dtype=dtype if dtype == "auto" else _dtype(dtype),
            use_safetensors=True,
            output_loading_info=True,
        )
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ModelError(
            f"the checkpoint {where!r} lacks {len(missing)} weights of its model, the first of "
            f"them {missing[0]!r}: is it complete, and is it a {kind}?"
        )
    return Loaded(_moved(model, device), tokenizer)


def end_ids(loaded: Loaded) -> tuple[int, ...]:
    """The model's end tokens: the generation config's, else the config's, else the tokenizer's."""
    generation = getattr(loaded.model, "generation_config", None)
    for holder in (generation, loaded.model.config, loaded.tokenizer):
        ids = getattr(holder, "eos_token_id", None)
        if ids is not None and ids != []:
            return tuple(ids) if isinstance(ids, list | tuple) else (ids,)
    raise ModelError(
        "the target names no end token: set tokenizer.eos_token or "
        "model.generation_config.eos_token_id"
    )


def check_vocabularies(target: Any, other: Any, name: str = "the draft") -> None:
    """Compare two tokenizers id by id. Raises VocabularyError that says how they differ."""
    ours, theirs = target.get_vocab(), other.get_vocab()
    if ours == theirs:
        return
    differing = sorted(
        (ours.get(token, theirs.get(token)), token)
        for token in ours.keys() | theirs.keys()
        if ours.get(token) != theirs.get(token)
    )
    _, token = differing[0]
    raise VocabularyError(
        f"{name} and the target have different vocabularies, so that the one cannot read the "
        f"other's tokens: {len(theirs)} and {len(ours)} tokens, {len(differing)} of which differ, "
        f"the first being {token!r}: {_numbered(theirs, token)} in {name}, "
        f"{_numbered(ours, token)} in the target. Choose a model of the target's own family."
    )


def check_ids(name: str, tokenizer: Any, width: int) -> None:
    """Raise VocabularyError if the tokenizer has ids that the model has no embedding for."""
    largest = max(tokenizer.get_vocab().values())
    if largest >= width:
        raise VocabularyError(
            f"the {name}'s tokenizer goes up to id {largest}, but its model has only {width} "
            "tokens; resize the embeddings or use the model's own tokenizer"
        )


def _numbered(vocabulary: dict[str, int], token: str) -> str:
    return f"id {vocabulary[token]}" if token in vocabulary else "missing"


def _dtype(dtype: str | torch.dtype) -> torch.dtype:
    found = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"dtype={dtype!r} is no floating-point type; try 'auto' or 'bfloat16'")
    return found


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ModelError(f"device={device!r} is no device: say 'auto', 'cpu' or 'cuda'") from error


def _moved(model: Any, device: str | torch.device) -> Any:
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise ModelError(
            f"device={str(device)!r} cannot be used here: {error}. Say 'auto', 'cpu' or 'cuda'"
        ) from error


def _located(source: str | os.PathLike[str]) -> str:
    """A folder that may be loaded, or a hub name."""
    text = os.fspath(source)
    path = Path(text).expanduser()
    if path.is_dir():
        _refuse_pickles(path)
        return str(path)
    is_hub_name = (
        isinstance(source, str)
        and not text.startswith((".", "~", os.sep))
        and len(path.parts) <= 2
        and not path.exists()
        and not (len(path.parts) == 2 and path.parent.exists())
    )
    if not is_hub_name:
        raise ModelError(
            f"there is no model folder {text!r}: give a folder with config.json, *.safetensors and "
            "a tokenizer (as model.save_pretrained and tokenizer.save_pretrained write them), or a "
            "hub name"
        )
    return text


def _refuse_pickles(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(
        file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)
    )
    if pickled:
        raise ModelError(
            f"{str(folder)!r} has pickled weights only ({pickled[0]}), and unpickling runs code: "
            "convert them with model.save_pretrained(...), which writes safetensors"
        )


@contextmanager
def _bar_of_large_models_only(where: str) -> Iterator[None]:
    """Without transformers' loading bar for the shipped pair, which takes no time to load."""
    from transformers.utils import logging

    hide = Path(where).parent == PAIR and logging.is_progress_bar_enabled()
    if hide:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hide:
            logging.enable_progress_bar()


def _from_pretrained(loader: Any, what: str, where: str, **kwargs: Any) -> Any:
    try:
        return loader.from_pretrained(where, trust_remote_code=False, **kwargs)
    except Exception as error:  # transformers raises a dozen kinds; the cause is kept
        raise ModelError(f"the {what} of {where!r} cannot be loaded: {error}") from error
