"""Sequence classifiers of transformers as reward functions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smcprog.errors import ModelError, PotentialError

TOGETHER = 32
"""Texts of one forward pass."""

# What these say of a text moves with its padding (convolutions, low-rank or hashed attention, no
# mask, or the last position read), so each text has a pass of its own. Measured on random models,
# where over forty other families do not move by more than rounding when padded on the right.
PADDING_SHOWS = {"convbert", "fnet", "nystromformer", "reformer", "xlnet", "yoso"}


@dataclass(frozen=True, eq=False)
class Classifier:
    """log p(label | text) under a classifier, or the score of a reward model (one label).

    Labels that do not exclude each other (``multi_label_classification``) have a probability each;
    the outputs of a ``regression`` are scores. Equal where it holds the same model, tokenizer and
    label. Called with a list of texts, it returns float64[n]; with a further string, of the pairs
    (that string, text).
    """

    source: Any
    label: str | int | None

    @property
    def __name__(self) -> str:
        if isinstance(self.source, str):
            return repr(self.source)
        return type(self.source[0]).__name__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Classifier) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> Hashable:
        """What it is compared by. It keeps no model in memory: texts are remembered by it."""
        if isinstance(self.source, str):
            return self.source, self.label
        return (*map(weakref.ref, self.source), self.label)

    def __call__(self, texts: Sequence[str], first: str | None = None) -> NDArray[np.float64]:
        """The reward of each text.

        Raises:
            PotentialError: for a text that the model cannot read whole.
            ValueError: for a label that the model does not have.
        """
        model, tokenizer = _loaded(self.source)
        column = self.column(model)
        together = TOGETHER if _pads(model.config, tokenizer) else 1
        values = [
            _scores(model, tokenizer, column, texts[at : at + together], first)
            for at in range(0, len(texts), together)
        ]
        return np.concatenate(values) if values else np.zeros(0)

    def column(self, model: Any) -> int | None:
        """The logit of the label; None for a reward model, whose one logit is the score.

        Raises:
            ValueError: for a label that the model does not have.
        """
        config, label = model.config, self.label
        names = {int(i): str(name) for i, name in config.id2label.items()}
        if config.num_labels == 1:
            if label is not None:
                raise ValueError(
                    f"reward(label={label!r}): {self.__name__} has one output, its score; leave "
                    "the label out"
                )
            return None
        wanted = None if isinstance(label, bool) else label
        found = [i for i, name in names.items() if wanted in (i, name) and wanted is not None]
        if not found:
            raise ValueError(
                f"reward(label={label!r}): say one of the labels of {self.__name__}: "
                f"{', '.join(map(repr, names.values()))}, or its number"
            )
        return found[0]


def classifier(source: Any, label: str | int | None) -> Classifier | None:
    """The reward function that ``reward`` was given a model for; None where it was given none.

    Args:
        source: a (model, tokenizer) pair, a text-classification pipeline of transformers, a folder
            or a hub name.

    Raises:
        TypeError: for a model without its tokenizer, or a pair of other things.
        ValueError: for a label that the model does not have.
    """
    if isinstance(source, str | PathLike):
        return Classifier(str(fspath(source)), label)
    if getattr(source, "task", None) == "text-classification":
        source = (source.model, source.tokenizer)
    if not isinstance(source, tuple):
        if hasattr(source, "config") and hasattr(source, "get_input_embeddings"):
            name = type(source).__name__
            raise TypeError(f"reward() needs the tokenizer too: reward(({name}, tokenizer), ...)")
        return None
    if len(source) != 2 or not hasattr(source[0], "config") or not callable(source[1]):
        found = ", ".join(type(part).__name__ for part in source)
        raise TypeError(f"reward() takes a pair (model, tokenizer) of transformers, not ({found})")
    made = Classifier(source, label)
    made.column(source[0])
    return made


_lock = threading.Lock()
_models: dict[str, tuple[Any, Any]] = {}


def _loaded(source: Any) -> tuple[Any, Any]:
    """Model and tokenizer, loaded once a name."""
    if not isinstance(source, str):
        model, tokenizer = source
        return model, tokenizer
    with _lock:
        if source not in _models:
            # Imported here: what loads models imports torch and is the device backend's.
            from smcprog.gpu.loading import load

            try:
                loaded = load(source, "auto", "auto", "sequence classifier")
            except ModelError as error:
                raise PotentialError(
                    f"reward({source!r}): no sequence classifier can be loaded from there: {error}"
                ) from error
            _models[source] = (loaded.model, loaded.tokenizer)
        return _models[source]


def _pads(config: Any, tokenizer: Any) -> bool:
    """Whether a batch with padding is read as its texts alone are: it is masked, and model and
    tokenizer mean the same token by it (a causal model reads the last token that is not its own
    padding). Many causal reward models have no padding at all."""
    padding = tokenizer.pad_token_id
    return (
        padding is not None
        and padding == getattr(config, "pad_token_id", None)
        and "attention_mask" in tokenizer.model_input_names
        and config.model_type not in PADDING_SHOWS
    )


def _longest(model: Any, tokenizer: Any) -> int:
    """The tokens that the model reads at most."""
    limits = [getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length]
    for name, module in model.named_modules():
        # RoBERTa and its kin count positions from after the padding token's id.
        if (
            name.endswith("position_embeddings")
            and getattr(module, "padding_idx", None) is not None
        ):
            limits.append(module.num_embeddings - module.padding_idx - 1)
    return int(min(limit for limit in limits if limit is not None and limit > 0))


def _scores(
    model: Any, tokenizer: Any, column: int | None, texts: Sequence[str], first: str | None
) -> NDArray[np.float64]:
    import torch

    whole = [str(text) for text in texts]
    pairs = ([first] * len(whole), whole) if first is not None else (whole,)
    # Padded on the right, whatever the tokenizer's own side: then a position is the same as in the
    # text alone. And never truncated, whatever a tokenizer's file says.
    inputs = tokenizer(
        *pairs,
        padding=len(whole) > 1,
        padding_side="right",
        truncation=False,
        return_tensors="pt",
        verbose=False,
    )
    rows = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    lengths = rows.sum(dim=1).tolist()
    limit = _longest(model, tokenizer)
    if max(lengths) > limit:
        longest = whole[lengths.index(max(lengths))]
        raise PotentialError(
            f"a text of {int(max(lengths))} tokens is longer than the {limit} that "
            f"{type(model).__name__} reads: {longest!r:.200}"
        )
    if min(lengths) == 0:
        empty = whole[lengths.index(0)]
        raise PotentialError(
            f"the tokenizer of {type(model).__name__} makes no token of the text {empty!r}; "
            'judge complete texts alone (every="end"), or give the text that it follows: '
            "reward(model, prompt, ...)"
        )
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            logits = model(**inputs.to(model.device)).logits.float()
    finally:
        for module, training in modes:
            module.training = training
    if logits.shape != (len(whole), model.config.num_labels):
        raise PotentialError(
            f"{type(model).__name__} gives an array of shape {tuple(logits.shape)} for "
            f"{len(whole)} texts, the first of them {whole[0]!r:.200}: it is no classifier of "
            f"{model.config.num_labels} labels"
        )
    problem = getattr(model.config, "problem_type", None)
    if column is None or problem == "regression":
        scores = logits[:, column or 0]
    elif problem == "multi_label_classification":
        scores = torch.nn.functional.logsigmoid(logits)[:, column]
    else:
        scores = torch.log_softmax(logits, dim=-1)[:, column]
    return scores.double().cpu().numpy()
