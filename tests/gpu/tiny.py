"""Tiny random models of each family, and a tiny tokenizer for them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

END = "<|endoftext|>"
TURN_END = "<|im_end|>"

_LINES = [
    "the cat sat on the mat and the dog sat on the cat",
    "one two three four five six seven, said the man with the hat",
]

_COMMON: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "pad_token_id": None,
}
_WINDOWED = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
_GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 12, "initializer_range": 0.15}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {**_WINDOWED, "use_sliding_window": True},
    "qwen3": {"head_dim": 16},
    "mistral": {"sliding_window": 7},
    "gemma2": {
        **_GEMMA,
        **_WINDOWED,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {**_GEMMA, **_WINDOWED},
    "gpt2": {"n_inner": 48, "scale_attn_by_inverse_layer_idx": True},
    "phi3": {"sliding_window": 7},
    "olmo2": {},
}


@lru_cache
def tokenizer(vocabulary_size: int = 290) -> PreTrainedTokenizerFast:
    """Byte-level BPE with two special tokens."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[END, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END)


def causal_lm(
    family: str = "llama", seed: int = 0, vocabulary_size: int = 290, **overrides: Any
) -> Any:
    """A random model with weights large enough that every position matters."""
    torch.manual_seed(seed)
    settings = {**_COMMON, **FAMILIES.get(family, {}), "vocab_size": vocabulary_size, **overrides}
    config = AutoConfig.for_model(family, eos_token_id=0, bos_token_id=0, **settings)
    return AutoModelForCausalLM.from_config(config).eval()


def dense_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    """The plain forward pass on one text: [len(tokens), V]."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
