"""One Hugging Face causal language model, run over packed, ragged rows.

The model's own forward runs on one sequence ``[1, T]`` that holds the tokens of many rows laid end
to end, with their positions; only attention is ours (`attention.py`). So a family works if its
attention goes through transformers' attention interface and nothing else in it mixes positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from smcprog.errors import ModelError
from smcprog.gpu.attention import NAME, Rule, attending, attention_pass, register
from smcprog.gpu.kv_cache import SCRATCH_PAGE, KVStore, Page, PagedRow, PagePool, settle
from smcprog.gpu.sharing import Span

KNOWN_GOOD = frozenset(
    {"gemma2", "gemma3_text", "gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3"}
)
"""Families whose paged logits the tests compare with the plain ones; others are checked at load."""

_TOKENS_A_PASS = 2048
_LOGIT_BYTES_A_PASS = 1 << 29
_CHECKED_TOKENS = 21


@dataclass(frozen=True)
class Feed:
    """One row's part in a pass: everything unwritten up to position ``end`` is fed, and the logits
    at positions ``first`` .. ``end`` - 1 are returned."""

    row: PagedRow
    first: int
    end: int


class CausalLM:
    """A model with its page tensors.

    Args:
        name: "target" or "draft", for messages.
        model: a transformers causal LM; it is put into eval mode.
        index: its number among the models of the pool.
        page_size: tokens a page.

    Attributes:
        vocabulary_size: columns of the logits.
        embeddings: token ids that can be fed are below this.
        context_limit: the longest context, or None.

    Raises:
        ModelError: if the model cannot run over pages; the message says what is missing.
    """

    def __init__(self, name: str, model: Any, index: int, page_size: int) -> None:
        self.name = name
        self.index = index
        self._model = model.eval()
        self._page_size = page_size
        self.device: torch.device = model.device
        _refuse_unsupported(name, model)
        register()
        probe = self._probe()
        self.vocabulary_size = probe.vocabulary_size
        self.embeddings: int = model.get_input_embeddings().weight.shape[0]
        self.context_limit = _context_limit(model.config)
        if model.config.model_type not in KNOWN_GOOD:
            self.store = self._new_store(probe)
            self._self_check()
        self.store = self._new_store(probe)

    def __repr__(self) -> str:
        model = self._model
        return f"{self.name}={type(model).__name__} in {model.dtype} on {self.device}"

    def run(self, pool: PagePool, feeds: Sequence[Feed]) -> Iterator[Tensor]:
        """Feed rows and yield logits [n, vocabulary_size], in blocks, in the order of ``feeds``.

        Tokens whose keys and values are already written, also by an earlier row of the same pass,
        are not fed, except for their logits; those go to a scratch page. Long prefills take
        several forwards. Page copies must have been settled.
        """
        marks: list[tuple[Page, int]] = []
        parts: list[_Part] = []
        for feed in feeds:
            written = pool.written(feed.row, self.index)
            start = min(written, feed.first)
            parts.append(_Part(feed.row, start, feed.end, written, feed.first))
            if feed.end > written:
                marks += pool.mark(feed.row, self.index, feed.end)
        most_logits = max(1, _LOGIT_BYTES_A_PASS // (4 * self.vocabulary_size))
        try:
            for chunk in _chunked(parts, _TOKENS_A_PASS, most_logits):
                logits = self._forward(chunk)
                if len(logits):
                    yield logits
        except BaseException:
            pool.unmark(self.index, marks)
            raise

    def _forward(self, parts: Sequence[_Part]) -> Tensor:
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        keep: list[int] = []
        spans: list[Span] = []
        size = self._page_size
        for part in parts:
            row = part.row
            base = len(ids)
            ids += row.tokens[part.start : part.end]
            positions += range(part.start, part.end)
            for position in range(part.start, part.end):
                page = row.pages[position // size] if position >= part.written else SCRATCH_PAGE
                slots.append(page * size + position % size)
            keep += range(base + max(part.first - part.start, 0), len(ids))
            spans.append(Span(row.pages, part.start, part.end))
        with attending(attention_pass(self.store, spans, self._tensor(slots))), self._paged():
            output = self._model(
                input_ids=self._tensor(ids)[None],
                position_ids=self._tensor(positions)[None],
                use_cache=False,
                logits_to_keep=self._tensor(keep),
            )
        return output.logits[0]

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    @contextmanager
    def _paged(self) -> Iterator[None]:
        """Choose paged attention for one forward; a user's own model keeps its choice."""
        config = self._model.config
        before = config._attn_implementation
        config._attn_implementation = NAME
        try:
            yield
        finally:
            config._attn_implementation = before

    def _probe(self) -> _Probe:
        """Run two tokens with recording attention, to learn each layer's shapes."""
        probe = _Probe(self.name)
        with torch.inference_mode(), attending(probe), self._paged():
            try:
                output = self._model(
                    input_ids=self._tensor([0, 0])[None],
                    position_ids=self._tensor([0, 1])[None],
                    use_cache=False,
                    logits_to_keep=self._tensor([1]),
                )
            except ModelError as error:
                raise ModelError(f"{_described(self.name, self._model)}: {error}") from error
            except TypeError as error:
                raise ModelError(
                    f"{_described(self.name, self._model)} cannot be run over packed rows: its "
                    f"forward lacks an argument ({error})"
                ) from error
        if output.logits.shape[1] != 1:
            raise ModelError(
                f"{_described(self.name, self._model)} cannot be run over packed rows: its forward "
                "ignores logits_to_keep"
            )
        probe.vocabulary_size = output.logits.shape[-1]
        probe.check(self._model)
        return probe

    def _new_store(self, probe: _Probe) -> KVStore:
        kv_heads, key_dim, value_dim = probe.shapes[0]
        return KVStore(
            len(probe.shapes),
            kv_heads,
            key_dim,
            value_dim,
            self._page_size,
            probe.dtype,
            self.device,
        )

    def _self_check(self) -> None:
        """Compare paged with plain logits on a few tokens, for families the tests do not cover."""
        generator = torch.Generator().manual_seed(0)
        most = min(self.vocabulary_size, self.embeddings)
        ids = torch.randint(most, (_CHECKED_TOKENS,), generator=generator).tolist()
        pool = PagePool(self.index + 1, page_size=self._page_size)
        row = pool.open(ids[: _CHECKED_TOKENS // 2])
        with torch.inference_mode():
            paged = []
            for end in (row.length, len(ids)):
                pool.append([row], [ids[row.length : end]])
                settle(pool, [self.store])
                first = 0 if end < len(ids) else _CHECKED_TOKENS // 2
                paged += list(self.run(pool, [Feed(row, first, end)]))
            plain = self._model(input_ids=self._tensor(ids)[None], use_cache=False).logits[0]
        difference = float((torch.cat(paged) - plain).abs().max() / plain.abs().max())
        tolerance = 1e-3 if torch.finfo(plain.dtype).eps < 1e-5 else 5e-2
        if not difference <= tolerance:
            raise ModelError(
                f"{_described(self.name, self._model)} gives other logits over pages than its own "
                f"forward (relative difference {difference:.1e}, allowed {tolerance:.0e}): this "
                "family is not supported"
            )


@dataclass(frozen=True)
class _Part:
    """Tokens ``start`` .. ``end`` - 1 of a row, to feed; those below ``written`` are on its pages
    already, and those from ``first`` on have logits."""

    row: PagedRow
    start: int
    end: int
    written: int
    first: int

    @property
    def logits(self) -> int:
        return self.end - max(self.first, self.start)


def _chunked(parts: Sequence[_Part], most_tokens: int, most_logits: int) -> Iterator[list[_Part]]:
    """Cut the packed sequence into forwards. A row's earlier tokens never come later."""
    chunk: list[_Part] = []
    tokens = logits = 0
    for part in parts:
        start = part.start
        while start < part.end:
            end = min(part.end, start + most_tokens - tokens)
            end = min(end, max(start, part.first) + most_logits - logits)
            if end > start:
                piece = _Part(part.row, start, end, part.written, part.first)
                chunk.append(piece)
                tokens += end - start
                logits += max(piece.logits, 0)
                start = end
            if start < part.end:
                yield chunk
                chunk, tokens, logits = [], 0, 0
    if chunk:
        yield chunk


@dataclass
class _Probe:
    """Attention that computes nothing and notes what each layer asks for."""

    name: str
    shapes: list[tuple[int, int, int]] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    windows: list[int | None] = field(default_factory=list)
    dtype: torch.dtype = torch.float32
    vocabulary_size: int = 0

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rule: Rule,
    ) -> Tensor:
        self.layers.append(layer)
        self.windows.append(rule.window)
        self.shapes.append((key.shape[1], key.shape[3], value.shape[3]))
        self.dtype = key.dtype
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3]))

    def check(self, model: Any) -> None:
        """Raise ModelError where the layers are not what pages can hold."""
        config = model.config
        what = _described(self.name, model)
        layers = config.num_hidden_layers
        if self.layers != list(range(layers)):
            raise ModelError(
                f"{what} cannot be run over pages: of its {layers} layers, only "
                f"{len(set(self.layers))} go through transformers' attention interface"
            )
        if len(set(self.shapes)) > 1:
            raise ModelError(
                f"{what} cannot be run over pages: its layers differ in the shape of keys and "
                f"values (heads, key size, value size): {sorted(set(self.shapes))}"
            )
        types = getattr(config, "layer_types", None)
        window = getattr(config, "sliding_window", None)
        if types is not None:
            expected = [kind == "sliding_attention" for kind in types[:layers]]
        else:
            sliding = window is not None and getattr(config, "use_sliding_window", True)
            expected = [sliding] * layers
        if expected != [w is not None for w in self.windows]:
            raise ModelError(
                f"{what} cannot be run over pages: it has sliding-window layers that do not pass "
                "their window to the attention interface"
            )


def _refuse_unsupported(name: str, model: Any) -> None:
    config = model.config
    what = _described(name, model)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelError(f"{what} is an encoder-decoder; a causal language model is needed")
    if config.get_text_config() is not config:
        raise ModelError(
            f"{what} is a wrapper of several models; load its text model alone "
            "(for Gemma 3: Gemma3ForCausalLM.from_pretrained) and pass (model, tokenizer)"
        )
    kinds = set(getattr(config, "layer_types", None) or ())
    if unknown := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise ModelError(f"{what} has layers that pages cannot hold: {', '.join(unknown)}")
    if getattr(config, "num_kv_shared_layers", 0):
        raise ModelError(f"{what} shares keys and values between layers, which is not supported")
    if getattr(config, "use_bidirectional_attention", False):
        raise ModelError(f"{what} attends in both directions; a causal model is needed")


def _context_limit(config: Any) -> int | None:
    limit: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Beyond this length the whole sequence changes its frequencies: rows of one packed pass
        # would depend on each other, and keys that are written would no longer be right.
        short = rope.get("original_max_position_embeddings")
        return min(x for x in (limit, short) if x is not None)
    return limit


def _described(name: str, model: Any) -> str:
    return f"the {name} model ({type(model).__name__}, model_type {model.config.model_type!r})"
