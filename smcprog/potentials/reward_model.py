"""Sequence classifiers of transformers as reward functions."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smcprog.errors import PotentialError

TOGETHER = 32
"""Texts of one forward pass."""


@dataclass(frozen=True, eq=False)
class Classifier:
    """log p(label | text) under a classifier, or the score of a reward model (one label).

    Equal where it holds the same model and label. Called with a list of texts, it returns
    float64[n]; with a further string, of the pairs (that string, text).
    """

    source: Any
    label: str | int | None

    @property
    def __name__(self) -> str:
        if isinstance(self.source, str):
            return repr(self.source)
        return type(self.source[0]).__name__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Classifier) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[Any, ...]:
        which = self.source if isinstance(self.source, str) else id(self.source[0])
        return which, self.label

    def __call__(self, texts: Sequence[str], first: str | None = None) -> NDArray[np.float64]:
        """The reward of each text.

        Raises:
            PotentialError: for a text that the model cannot read whole.
            ValueError: for a label that the model does not have.
        """
        model, tokenizer = _loaded(self.source)
        column = self.column(model)
        # A tokenizer without padding, as of many causal reward models, reads texts one by one.
        together = TOGETHER if tokenizer.pad_token is not None and _pads(model) else 1
        values = [
            _scores(model, tokenizer, column, texts[at : at + together], first)
            for at in range(0, len(texts), together)
        ]
        return np.concatenate(values) if values else np.zeros(0)

    def column(self, model: Any) -> int | None:
        """The logit of the label; None for a reward model, whose one logit is the score.

        Raises:
            ValueError
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
        found = [i for i, name in names.items() if label in (i, name) and label is not None]
        if not found:
            raise ValueError(
                f"reward(label={label!r}): say one of the labels of {self.__name__}: "
                f"{', '.join(map(repr, names.values()))}, or its number"
            )
        return found[0]


def classifier(source: Any, label: str | int | None) -> Classifier | None:
    """The reward function that ``reward`` was given a model for; None where it was given none.

    Args:
        source: a (model, tokenizer) pair, a pipeline of transformers, a folder or a hub name.

    Raises:
        ValueError: for a label that the model does not have.
    """
    if isinstance(source, str | PathLike):
        return Classifier(str(fspath(source)), label)
    pair = source if isinstance(source, tuple) else None
    if hasattr(source, "model") and hasattr(source, "tokenizer"):
        pair = (source.model, source.tokenizer)
    if pair is None or len(pair) != 2 or not hasattr(pair[0], "config"):
        return None
    made = Classifier(tuple(pair), label)
    made.column(pair[0])
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
            from transformers import AutoModelForSequenceClassification, AutoTokenizer

            try:
                _models[source] = (
                    AutoModelForSequenceClassification.from_pretrained(source).eval(),
                    AutoTokenizer.from_pretrained(source),
                )
            except Exception as error:  # transformers raises a dozen kinds; the cause is kept
                raise PotentialError(
                    f"reward({source!r}): no sequence classifier can be loaded from there: {error}"
                ) from error
        return _models[source]


def _pads(model: Any) -> bool:
    """Whether a batch with padding is read rightly: an encoder masks it, a causal model must know
    the padding token to find the last one."""
    encoder = not getattr(model.config, "is_decoder", False) and hasattr(model, "classifier")
    return encoder or model.config.pad_token_id is not None


def _scores(
    model: Any, tokenizer: Any, column: int | None, texts: Sequence[str], first: str | None
) -> NDArray[np.float64]:
    import torch

    whole = [str(text) for text in texts]
    pairs = ([first] * len(whole), whole) if first is not None else (whole,)
    inputs = tokenizer(*pairs, padding=len(whole) > 1, return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    limits = (getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length)
    limit = min(limit for limit in limits if limit is not None)
    if length > limit:
        longest = max(whole, key=len)
        raise PotentialError(
            f"a text of {length} tokens is longer than the {limit} that {type(model).__name__} "
            f"reads: {longest!r:.200}"
        )
    if length == 0:
        raise PotentialError(
            f"the tokenizer of {type(model).__name__} makes no token of the text {whole[0]!r}; "
            'judge complete texts alone (every="end"), or give the text that it follows: '
            "reward(model, prompt, ...)"
        )
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            logits = model(**inputs.to(model.device)).logits.float()
    finally:
        model.train(training)
    scores = logits[:, 0] if column is None else torch.log_softmax(logits, dim=-1)[:, column]
    return scores.double().cpu().numpy()
