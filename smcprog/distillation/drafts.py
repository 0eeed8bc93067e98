"""The draft before training: some of the target's layers, or a narrow model of its family."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from smcprog.errors import ModelError


def pruned(target: Any, layers: Sequence[int]) -> Any:
    """The target without its other layers: a float32 copy of everything else.

    Args:
        target: a transformers causal LM.
        layers: the layers that stay, from 0, increasing.

    Raises:
        ModelError: if the model's layers are not to be found.
        ValueError: if these are not layers of the target.
    """
    prefix, count = decoder_layers(target)
    if not layers or list(layers) != sorted({*layers}) or layers[0] < 0 or layers[-1] >= count:
        raise ValueError(
            f"layers={tuple(layers)}: give layers of the target, from 0 to {count - 1}, in "
            "increasing order"
        )
    draft = _of_family(target, _with_layers(target.config, layers))
    new = {f"{prefix}.{layer}": f"{prefix}.{place}" for place, layer in enumerate(layers)}
    state = {}
    for name, tensor in target.state_dict().items():
        depth = prefix.count(".") + 2
        owner = ".".join(name.split(".")[:depth])
        if not name.startswith(f"{prefix}."):
            state[name] = tensor
        elif owner in new:
            state[new[owner] + name.removeprefix(owner)] = tensor
    draft.load_state_dict(state)
    return draft


def narrow(target: Any, width: int, depth: int, heads: int | None, seed: int) -> Any:
    """A float32 model of the target's family and vocabulary, smaller in every layer.

    Its embedding (and its LM head, where that is another matrix) is the target's, projected on its
    ``width`` principal directions; the layers are random.

    Args:
        target: a transformers causal LM.
        width: the hidden size; the other sizes shrink with it.
        depth: how many layers.
        heads: attention heads; None keeps the target's size of a head.
        seed: of the random weights.

    Raises:
        ModelError: if the model's layers are not to be found.
        ValueError: for sizes that do not fit.
    """
    config = _narrow_config(target, width, depth, heads)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft = _of_family(target, config)
    _project(target.get_input_embeddings(), draft.get_input_embeddings())
    if not target.config.tie_word_embeddings:
        _project(target.get_output_embeddings(), draft.get_output_embeddings())
    return draft


def freeze_embeddings(draft: Any) -> None:
    """Take the embedding and the LM head out of the training."""
    draft.get_input_embeddings().requires_grad_(False)
    draft.get_output_embeddings().requires_grad_(False)


def decoder_layers(model: Any) -> tuple[str, int]:
    """The name of the model's list of layers, such as ``model.layers``, and how many there are.

    Raises:
        ModelError: if the configuration does not count them, or no list has that many.
    """
    count = getattr(model.config, "num_hidden_layers", None)
    if not isinstance(count, int):
        raise ModelError(
            f"the configuration of {type(model).__name__} has no num_hidden_layers, so its layers "
            "cannot be found; a plain decoder (llama, qwen2, qwen3, mistral, gpt2) is needed"
        )
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name, count
    raise ModelError(
        f"{type(model).__name__} has no list of {count} layers (torch.nn.ModuleList), which "
        "config.num_hidden_layers promises; a plain decoder (llama, qwen2, qwen3, mistral, gpt2) "
        "is needed"
    )


def _of_family(target: Any, config: Any) -> Any:
    """A new float32 model of the target's class, on its device."""
    return type(target)(config).float().to(target.device).eval()


def _with_layers(config: Any, layers: Sequence[int]) -> Any:
    """A configuration for these layers of the model, each with its own kind of attention."""
    config = copy.deepcopy(config)
    kinds = getattr(config, "layer_types", None)
    config.num_hidden_layers = len(layers)
    if kinds:
        config.layer_types = [kinds[layer] for layer in layers]
    return config


def _narrow_config(target: Any, width: int, depth: int, heads: int | None) -> Any:
    _, count = decoder_layers(target)
    before = target.config
    if not 1 <= depth <= count or not 1 <= width <= before.hidden_size:
        raise ValueError(
            f"width={width}, depth={depth}: give a width from 1 to the target's "
            f"{before.hidden_size} and a depth from 1 to its {count} layers"
        )
    size = getattr(before, "head_dim", None) or before.hidden_size // before.num_attention_heads
    if heads is None and width % size:
        raise ValueError(
            f"width={width} is no multiple of {size}, the size of the target's attention heads: "
            f"choose a multiple, or give the number of heads"
        )
    heads = width // size if heads is None else heads
    if heads < 1 or width % heads or (width // heads) % 2:
        raise ValueError(f"width={width} does not divide into {heads} heads of an even size")
    config = _with_layers(before, [place * count // depth for place in range(depth)])
    shrink = width / before.hidden_size
    config.hidden_size = width
    config.num_attention_heads = heads
    if getattr(before, "num_key_value_heads", None):
        most = max(1, heads * before.num_key_value_heads // before.num_attention_heads)
        config.num_key_value_heads = max(d for d in range(1, most + 1) if heads % d == 0)
    if getattr(before, "head_dim", None):
        config.head_dim = width // heads
    for name in ("intermediate_size", "n_inner"):
        if getattr(before, name, None):
            setattr(config, name, max(8, 8 * round(getattr(before, name) * shrink / 8)))
    return config


@torch.no_grad()
def _project(embedding: Any, narrow: Any) -> None:
    """Project rows [V, H] on their principal directions, into rows [V, width]."""
    rows = embedding.weight.float()
    centred = rows - rows.mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred)  # in increasing order
    width = narrow.weight.shape[1]
    narrow.weight.copy_(rows @ directions[:, -width:])
