"""The check for one CUDA card: kernels against their twins, then speed at the size of real models.

    python benchmarks/gpu.py              # under five minutes, nothing is downloaded
    python benchmarks/gpu.py --tiny       # the same code on small shapes, also on a CPU

Runs from a plain checkout with torch, transformers and triton alone. The models have random weights
in the shapes of Llama 3.1 8B (target) and Llama 3.2 1B (draft), bfloat16: what a round costs does
not depend on what they say. The share of the memory roofline is the time that reading the target's
weights once would take, at the bandwidth of a large copy, over the time of its pass.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from smcprog import Engine, gen, prompt, smc_program
from smcprog.gpu.sharing import Span, shared

CUDA = torch.cuda.is_available()
LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
DEVICE = torch.device("cuda" if CUDA else "cpu")


@smc_program
def write(text: str, tokens: int) -> str:
    """Draw a text of a fixed length."""
    prompt(text)
    return gen(stop=(), max_tokens=tokens)


# Kernels against twins


def check_attention(dtype: torch.dtype) -> float:
    """The largest difference of paged attention with a trunk from its twin."""
    from smcprog.gpu.triton import attention as kernels

    torch.manual_seed(0)
    heads, kv_heads, dim, page = 8, 2, 64, 16
    trunk = list(range(1, 9))
    spans = [Span([*trunk, 10 + i], 130 + i, 131 + i + 4 * (i % 2)) for i in range(6)]
    tokens = sum(span.count for span in spans)
    query = torch.randn(tokens, heads, dim, device=DEVICE, dtype=dtype)
    keys, values = torch.randn(2, 32, page, kv_heads, dim, device=DEVICE, dtype=dtype)
    plan = kernels.plan(spans, heads, kv_heads, page, DEVICE, shared(spans, page)[0])
    worst = 0.0
    for window, softcap in ((None, None), (40, None), (None, 30.0)):
        arguments = (query, keys, values, plan, dim**-0.5, window, softcap)
        difference = kernels.attend(*arguments).float() - kernels.attend_twin(*arguments).float()
        worst = max(worst, float(difference.abs().max()))
    return worst


def check_sampling(size: int) -> tuple[int, float]:
    """Events that differ from the twin's, and the largest difference of log q~."""
    from smcprog.gpu.triton import sampling as kernels

    generator = torch.Generator().manual_seed(0)
    rows = 16
    logits = torch.randn(rows, size, generator=generator).mul_(3).to(DEVICE, torch.bfloat16)
    words = torch.randint(0, 2**31 - 1, (rows, -(-size // 32)), generator=generator)
    words[0] = 0  # a dead row
    arguments = (
        logits,
        words.to(DEVICE, torch.int32),
        torch.arange(rows, device=DEVICE) % 2 == 1,
        torch.arange(rows, device=DEVICE) % 3 == 1,
        torch.tensor([2, size - 1], device=DEVICE),
        torch.full((rows,), 0.8, device=DEVICE),
        torch.full((rows,), 2.0, device=DEVICE),
        torch.arange(rows, device=DEVICE),
        torch.zeros(rows, dtype=torch.int64, device=DEVICE),
    )
    ours, theirs = kernels.sample(*arguments), kernels.sample_twin(*arguments)
    same = ours.events == theirs.events
    difference = (ours.log_p - theirs.log_p)[same & (ours.events >= 0)].abs()
    return int((~same).sum()), float(difference.max())


def check_population() -> bool:
    """Whether ancestors and page tables are the twin's."""
    from smcprog.gpu.triton import population as kernels

    generator = torch.Generator().manual_seed(0)
    log_w = torch.randn(4, 100, generator=generator, dtype=torch.float64)
    log_w[:, ::7] = -torch.inf
    uniforms = torch.rand(4, generator=generator, dtype=torch.float64).to(DEVICE)
    log_w = log_w.to(DEVICE)
    arguments = (log_w, torch.zeros_like(log_w), uniforms)
    ours, theirs = kernels.reweight(*arguments), kernels.reweight_twin(*arguments)
    tables = torch.randint(0, 99, (100, 37), generator=generator, dtype=torch.int32).to(DEVICE)
    lengths = torch.arange(100, dtype=torch.int32, device=DEVICE)
    taken = kernels.take_ancestors(tables, lengths, ours.ancestors[0])
    wanted = kernels.take_ancestors_twin(tables, lengths, ours.ancestors[0])
    return bool(
        torch.equal(ours.ancestors, theirs.ancestors)
        and torch.allclose(ours.ess, theirs.ess)
        and all(torch.equal(a, b) for a, b in zip(taken, wanted, strict=True))
    )


def check_kernels() -> None:
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
        worst = check_attention(dtype)
        print(f"attention, {dtype}: largest difference from its twin {worst:.1e}")
        assert worst < tolerance, "paged attention is wrong"
    wrong, worst = check_sampling(50_021 if CUDA else 1003)
    print(f"sampling: {wrong} of 16 events differ, log q~ by at most {worst:.1e}")
    assert wrong <= 1 and worst < 1e-3, "sampling is wrong"
    assert check_population(), "reweighting or resampling is wrong"
    print("reweighting, resampling, page tables: as their twins")


# Speed


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Bytes, and words that no text is encoded into."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<end>", *letters, *(f"w{i}" for i in range(size - 1 - len(letters)))]
    bpe = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<end>")


def random_model(shape: dict[str, Any], size: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        **shape, vocab_size=size, max_position_embeddings=8192, eos_token_id=0, bos_token_id=0
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with DEVICE:
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)


def bandwidth(megabytes: int) -> float:
    """Bytes a second of a large copy, both directions counted."""
    source = torch.empty(megabytes << 20, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    times = []
    for _ in range(5):
        synchronize()
        began = time.perf_counter()
        target.copy_(source)
        synchronize()
        times.append(time.perf_counter() - began)
    return 2 * source.numel() / min(times)


def synchronize() -> None:
    if CUDA:
        torch.cuda.synchronize()


def measure(engine: Engine, text: str, particles: int, block: int, tokens: int) -> None:
    """One line: tokens a second of one sequence and of all, and milliseconds a round by phase."""
    settings = {"particles": particles, "block": block, "on_dead": "return"}
    engine.run(write(text, 2 * (block + 1)), seed=0, **settings)  # compiles, reads nothing twice
    synchronize()
    posterior = engine.run(write(text, tokens), seed=1, **settings)
    rounds = posterior.rounds[1:-1]  # without the prompt's, and the one that is cut
    seconds = median(sum(record.seconds.values()) for record in rounds)
    phases = ", ".join(
        f"{phase} {1000 * median(r.seconds.get(phase, 0.0) for r in rounds):.1f}"
        for phase in ("draft", "score", "host", "resample")
    )
    rate = (block + 1) / seconds
    print(
        f"  N={particles} K={block}: {rate:7.1f} tokens/s of one sequence, {particles * rate:8.1f} "
        f"of all; ms a round: {1000 * seconds:.1f} ({phases})"
    )


def check_speed(tiny: bool) -> None:
    shapes = (TINY, TINY) if tiny else (LLAMA_8B, LLAMA_1B)
    size = 1003 if tiny else 128_256
    words = tokenizer(size)
    target, draft = (random_model(shape, size) for shape in shapes)
    weights = sum(p.numel() * p.element_size() for p in target.parameters())
    speed = bandwidth(16 if tiny else 4096)
    print(f"target {weights / 2**30:.2f} GiB, copies at {speed / 1e9:.0f} GB/s")
    engine = Engine((target, words), (draft, words), device=DEVICE, dtype=torch.bfloat16)
    for length in (16, 40) if tiny else (256, 4096):
        print(f"prompt of {length} tokens:")
        costs = engine.roofline(context=length)
        bound = weights / speed
        for rows, seconds in costs.target.items():
            share = bound / seconds
            print(
                f"  target pass, {rows} rows: {1000 * seconds:.2f} ms, {share:.0%} of the roofline"
            )
        print(f"  rho = {costs.rho:.2f}, predicted S at N=8, K=8: {costs.speedup(8, 8):.2f}")
        text = "x" * length  # a byte is a token
        tokens = 20 if tiny else 128
        measure(engine, text, 1, 0, tokens)
        measure(engine, text, 8, 2 if tiny else 8, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small shapes, also without CUDA")
    tiny = parser.parse_args().tiny
    if not CUDA and not tiny:
        sys.exit("gpu.py: there is no CUDA device; --tiny runs the same code on small shapes")
    name = torch.cuda.get_device_name() if CUDA else "CPU (without the kernels)"
    print(f"{name}, torch {torch.__version__}")
    began = time.perf_counter()
    if CUDA:
        check_kernels()
    check_speed(tiny)
    print(f"done in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
