"""Make the target and the draft that ship inside smcprog: ``python tools/train_pair.py``.

One command does everything, from a seed and without downloads: it writes the corpus, learns a
byte-level BPE, trains the target, distils the draft from it, measures both, and saves two Hugging
Face folders with a model card. Text for step ``i`` is drawn from a generator seeded by ``i``, and
the state is saved every few minutes, so an interrupted training goes on where it stopped.

The schedule is counted in steps, so that a seed means one result. ``--minutes`` chooses the
number of steps from the speed of the machine at hand, and is then written down with the rest.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from pair_corpus import DRAFT_WEIGHTS, IM_END, IM_START, WEIGHTS, documents, heldout_sums
from pair_optim import PairOptimizer
from pair_report import measure, write_card

END = "<|endoftext|>"
END_ID = 0
VOCABULARY = 1536
CONTEXT = 1024
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|[\r\n]|[^\S\r\n]+(?!\S)|[^\S\r\n]+"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Schedule:
    """How long each part of the training takes, in steps of ``rows * length`` tokens.

    The target has two cycles of the learning rate, the second with a lower peak; the draft learns
    from the corpus for ``draft_steps`` and from the target for ``distil_steps``.
    """

    target_steps: int
    finish_steps: int
    draft_steps: int
    distil_steps: int
    rows: int = 8
    length: int = 256

    @property
    def tokens(self) -> int:
        """Tokens in one step."""
        return self.rows * self.length


DEFAULT = Schedule(target_steps=900, finish_steps=170, draft_steps=600, distil_steps=1000)


# --- tokenizer ---------------------------------------------------------------------------------


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE with single digits on a sample of the corpus."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, IM_START, IM_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = (doc.replace(IM_START, "").replace(IM_END, "") for doc in documents(f"{seed}/bpe"))
    bpe.train_from_iterator(islice(text, 20_000), trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{END} $A",
        pair=f"{END} $A {END} $B",
        special_tokens=[(END, bpe.token_to_id(END))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        extra_special_tokens=[IM_START, IM_END],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


# --- batches -----------------------------------------------------------------------------------


def packed_rows(
    tokenizer: PreTrainedTokenizerFast, seed: str, length: int, weights: Mapping[str, float]
) -> Iterator[list[int]]:
    """Rows of ``length + 1`` tokens, each a run of whole documents cut at the row's end.

    The tokenizer puts the end-of-text token in front of every document, so it begins and ends each.
    """
    row: list[int] = []
    stream = documents(seed, weights=weights)
    while True:
        texts = list(islice(stream, 32))
        for ids in tokenizer(texts)["input_ids"]:
            row += ids
            if len(row) > length:
                yield row[: length + 1]
                row = []


def training_batch(
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    phase: str,
    step: int,
    rows: int,
    length: int,
    weights: Mapping[str, float] = WEIGHTS,
) -> Tensor:
    """The batch of one step, a function of the seed, the phase and the step alone.

    One row in eight lacks its first end-of-text token, as a chat rendered by itself does.
    """
    found = packed_rows(tokenizer, f"{seed}/{phase}/{step}", length + 1, weights)
    picked = islice(found, rows)
    return torch.tensor([r[1:] if i % 8 == 7 else r[:-1] for i, r in enumerate(picked)])


def batch_shape(schedule: Schedule, step: int, steps: int) -> tuple[int, int]:
    """Rows and length at a step: the last tenth is spent on rows of the whole context."""
    if step < 0.9 * steps:
        return schedule.rows, schedule.length
    return max(1, schedule.tokens // CONTEXT), CONTEXT


def learning_rate(step: int, steps: int) -> float:
    """Warm up, stay, and fall linearly to nearly zero over the last 40%."""
    return min(1.0, (step + 1) / 40, max(0.02, (1 - step / steps) / 0.4))


# --- models ------------------------------------------------------------------------------------


def make_model(
    tokenizer: PreTrainedTokenizerFast,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    mlp: int,
    head: int = 32,
    rope_base: float = 10_000.0,
) -> LlamaForCausalLM:
    """A small Llama whose layers begin as the identity."""
    vocabulary = tokenizer.get_vocab()
    end, im_end = vocabulary[END], vocabulary[IM_END]
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head,
        rope_parameters={"rope_type": "default", "rope_theta": rope_base},
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=end, eos_token_id=[end, im_end], pad_token_id=end
    )
    with torch.no_grad():
        for name, param in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                param.zero_()
    return model


def make_target(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Deep and narrow: a decoding step costs by the layer."""
    return make_model(tokenizer, layers=12, hidden=96, heads=3, kv_heads=1, mlp=256)


OFFSETS = (1, 2, 3, 4, 5, 6, 8, 9, 10, 21, 23, 26, 27, 28)
"""How far back the draft's heads begin by looking: where a worked sum has the digits it copies."""


def make_draft(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """One layer, most of whose heads begin by looking back a fixed number of tokens."""
    draft = make_model(
        tokenizer, layers=1, hidden=96, heads=16, kv_heads=16, mlp=384, head=24, rope_base=100.0
    )
    look_back(draft, OFFSETS)
    return draft


@torch.no_grad()
def look_back(model: LlamaForCausalLM, offsets: Sequence[int], strength: float = 14.0) -> None:
    """Make each of the first layer's heads attend ``offset`` tokens back, whatever these are.

    All embeddings share their first component, so every query has a part in common, and every key;
    with rotary positions their product is a sum of cosines of the distance, here in phase at the
    offset. ``strength`` is the logit there. Heads without an offset see all tokens alike.
    """
    layer = model.model.layers[0].self_attn
    rope: dict[str, Any] = model.config.to_dict()["rope_parameters"]
    size, base = int(layer.head_dim), float(rope["rope_theta"])
    embedding = model.model.embed_tokens.weight
    embedding.normal_(0.0, 0.05)[:, 0] = 0.5
    shared = F.rms_norm(embedding, embedding.shape[-1:])[:, 0].mean()
    half = size // 2
    frequency = base ** (-torch.arange(half) / half)
    amplitude = (strength * size**0.5 * frequency / frequency.sum()).sqrt() / shared
    layer.q_proj.weight.mul_(0.5)[:, 0] = 0.0
    layer.k_proj.weight.mul_(0.5)[:, 0] = 0.0
    for head, offset in enumerate(offsets):
        at = slice(head * size, (head + 1) * size)
        angle = offset * frequency
        layer.q_proj.weight[at, 0] = torch.cat([amplitude * angle.cos(), -amplitude * angle.sin()])
        layer.k_proj.weight[at, 0] = torch.cat([amplitude, torch.zeros(half)])


# --- training ----------------------------------------------------------------------------------

Loss = Callable[[LlamaForCausalLM, Tensor], Tensor]
Batch = Callable[[int], Tensor]


def likelihood_loss(model: LlamaForCausalLM, batch: Tensor) -> Tensor:
    """Mean negative log likelihood of the next token."""
    logits = model(batch[:, :-1], use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def distillation_loss(target: LlamaForCausalLM) -> Loss:
    """Mean KL divergence from the target's next-token distribution to the draft's."""

    def loss(draft: LlamaForCausalLM, batch: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = target(batch[:, :-1], use_cache=False).logits.log_softmax(-1).flatten(0, 1)
        got = draft(batch[:, :-1], use_cache=False).logits.log_softmax(-1).flatten(0, 1)
        return F.kl_div(got, wanted, log_target=True, reduction="batchmean")

    return loss


@dataclass
class Run:
    """One phase of training: where its state is kept, and how often."""

    work: Path
    phase: str
    steps: int
    peak: float = 1.0
    every: float = 60.0

    @property
    def path(self) -> Path:
        """The checkpoint."""
        return self.work / f"{self.phase}.pt"

    def train(self, model: LlamaForCausalLM, loss_of: Loss, batch_of: Batch) -> float:
        """Train to the end, from the checkpoint where there is one; return the seconds it took."""
        optimizer = PairOptimizer(model)
        step, spent = self._resume(model, optimizer)
        start = saved = time.monotonic()
        model.train()
        while step < self.steps:
            loss = loss_of(model, batch_of(step))
            torch.autograd.backward(loss)
            optimizer.step(self.peak * learning_rate(step, self.steps))
            step += 1
            now = time.monotonic()
            if step % 20 == 0:
                print(
                    f"{self.phase} {step}/{self.steps} loss {loss.item():.4f} "
                    f"{spent + now - start:.0f}s",
                    flush=True,
                )
            if now - saved > self.every or step == self.steps:
                self._save(model, optimizer, step, spent + now - start)
                saved = now
        model.eval()
        return spent + time.monotonic() - start

    def _save(
        self, model: LlamaForCausalLM, optimizer: PairOptimizer, step: int, spent: float
    ) -> None:
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "step": step,
            "spent": spent,
        }
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.path)

    def _resume(self, model: LlamaForCausalLM, optimizer: PairOptimizer) -> tuple[int, float]:
        if not self.path.exists():
            return 0, 0.0
        state = torch.load(self.path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        print(f"{self.phase}: going on at step {state['step']}", flush=True)
        return state["step"], state["spent"]


@torch.inference_mode()
def sampled_rows(target: LlamaForCausalLM, rows: int, length: int, seed: int) -> Tensor:
    """Text of the target's own, drawn at temperature 1 from the end-of-text token on."""
    generator = torch.Generator().manual_seed(seed)
    token = torch.full((rows, 1), END_ID)
    drawn, cache = [token], None
    for _ in range(length):
        out = target(token, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        token = torch.multinomial(out.logits[:, -1].softmax(-1), 1, generator=generator)
        drawn.append(token)
    return torch.cat(drawn, 1).clone()


def own_text(work: Path, target: LlamaForCausalLM, seed: int, length: int) -> Tensor:
    """A pool of rows sampled from the target, kept beside the checkpoints."""
    path = work / "sampled.pt"
    if not path.exists():
        torch.save(torch.cat([sampled_rows(target, 64, length, seed + i) for i in range(4)]), path)
    return torch.load(path, weights_only=True).clone()


def mixed_batch(corpus: Tensor, pool: Tensor, step: int) -> Tensor:
    """Replace half of a batch of short rows by rows of the target's own text."""
    if corpus.size(1) != pool.size(1):
        return corpus
    half = corpus.size(0) // 2
    rows = torch.arange(step * half, (step + 1) * half) % pool.size(0)
    return torch.cat([corpus[half:], pool[rows]])


def train_pair(
    tokenizer: PreTrainedTokenizerFast, schedule: Schedule, seed: int, work: Path
) -> tuple[LlamaForCausalLM, LlamaForCausalLM, dict[str, float]]:
    """Train the target, then the draft: by likelihood first, then towards the target."""

    def batches(phase: str, steps: int, weights: Mapping[str, float] = WEIGHTS) -> Batch:
        return lambda step: training_batch(
            tokenizer, seed, phase, step, *batch_shape(schedule, step, steps), weights
        )

    torch.manual_seed(seed)
    target, draft = make_target(tokenizer), make_draft(tokenizer)
    seconds = {}
    for run in (
        Run(work, "target", schedule.target_steps),
        Run(work, "finish", schedule.finish_steps, peak=0.3),
    ):
        seconds[run.phase] = run.train(target, likelihood_loss, batches(run.phase, run.steps))
    target.requires_grad_(False)

    run = Run(work, "draft", schedule.draft_steps)
    seconds["draft"] = run.train(draft, likelihood_loss, batches("draft", run.steps, DRAFT_WEIGHTS))
    start = time.monotonic()
    pool = own_text(work, target, seed, schedule.length)
    seconds["sampling"] = time.monotonic() - start
    run = Run(work, "distil", schedule.distil_steps)
    corpus = batches("distil", run.steps, DRAFT_WEIGHTS)
    seconds["distil"] = run.train(
        draft, distillation_loss(target), lambda step: mixed_batch(corpus(step), pool, step)
    )
    return target, draft, seconds


def schedule_for(minutes: float, tokenizer: PreTrainedTokenizerFast, seed: int) -> Schedule:
    """As many steps as fit in the time given: rather more than half of it for the target."""
    model, batch = make_target(tokenizer), training_batch(tokenizer, seed, "speed", 0, 8, 256)
    optimizer = PairOptimizer(model)
    start = 0.0
    for trial in range(4):
        start = time.monotonic() if trial == 1 else start
        torch.autograd.backward(likelihood_loss(model, batch))
        optimizer.step(1.0)
    steps = 60 * minutes / ((time.monotonic() - start) / 3)
    shares = {"target": 0.45, "finish": 0.1, "draft": 0.3, "distil": 0.9}
    return Schedule(
        **{f"{phase}_steps": max(10, int(share * steps)) for phase, share in shares.items()}
    )


# --- saving ------------------------------------------------------------------------------------


def save_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a folder that loads by itself, with weights in bfloat16.

    The tokenizer's settings are spelled so that older versions of transformers read them too.
    """
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    path.write_text(json.dumps(settings, indent=2) + "\n")


def write_sums(path: Path, seed: int, count: int = 200) -> list[dict[str, str]]:
    """Write the held-out sums, one JSON object a line."""
    sums = heldout_sums(seed, count)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in sums))
    return sums


def load_plan(work: Path, args: argparse.Namespace) -> tuple[PreTrainedTokenizerFast, Schedule]:
    """The tokenizer and the schedule: those of an interrupted run, or new ones."""
    tokenizer = make_tokenizer(args.seed)
    plan = work / "plan.json"
    if not plan.exists():
        chosen = schedule_for(args.minutes, tokenizer, args.seed) if args.minutes else DEFAULT
        plan.write_text(json.dumps({"seed": args.seed, **asdict(chosen)}))
    saved: dict[str, Any] = json.loads(plan.read_text())
    if saved.pop("seed") != args.seed:
        raise SystemExit(f"{work} holds a training with another seed; choose another --work")
    return tokenizer, Schedule(**saved)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make the models that ship inside smcprog.")
    parser.add_argument("--out", type=Path, default=Path("smcprog/pair"), help="where they go")
    parser.add_argument("--work", type=Path, default=Path("build/pair"), help="checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument(
        "--minutes",
        type=float,
        help=f"about how long to train, instead of {DEFAULT.target_steps} steps of the target",
    )
    return parser.parse_args()


def main() -> None:
    """Train, measure, save."""
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    args.work.mkdir(parents=True, exist_ok=True)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer, schedule = load_plan(args.work, args)
    target, draft, seconds = train_pair(tokenizer, schedule, args.seed, args.work)
    save_model(target, tokenizer, args.out / "target")
    save_model(draft, tokenizer, args.out / "draft")
    sums = write_sums(args.out / "sums.jsonl", args.seed)
    figures = measure(args.out, sums, args.seed)
    write_card(args.out, figures, asdict(schedule), seconds, args.seed)


if __name__ == "__main__":
    main()
