"""The engine as the loop sees it: rows, not tensors of a model (DESIGN: section 5).

A *row* is one token context. The engine keeps its keys and values, shares them between forks, and
decides what each forward pass has to feed. The loop opens, forks, truncates and frees rows, has
the draft extend them and the target score them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from smcprog.potentials.base import LM
from smcprog.vocabulary import Bits, Vocabulary

# Events of a step: token ids 0 .. V - 1, then the two collapsed stop events.


def eos_event(vocabulary: Vocabulary) -> int:
    """The number of the EOS event: V."""
    return vocabulary.size


def leave_event(vocabulary: Vocabulary) -> int:
    """The number of the LEAVE event: V + 1."""
    return vocabulary.size + 1


@dataclass(frozen=True)
class EventSpace:
    """E(x): the events of one row at one step.

    Attributes:
        mask: uint32[words]; each token with its bit set is an event of its own.
        eos: whether the EOS event is allowed; its probability is the sum over the EOS ids.
        leave: whether the LEAVE event is allowed; its probability is the sum over every id whose
            bit is not set (without the EOS ids where ``eos`` makes those an event of their own).
    """

    mask: Bits
    eos: bool = False
    leave: bool = False


class Stream(Protocol):
    """The random numbers of one row for one purpose in one round."""

    def uniform(self, counter: int) -> float:
        """A uniform in [0, 1), the same for the same counter."""
        ...

    def bits(self, counter: int) -> int:
        """64 random bits, the same for the same counter: the key of a device's own stream."""
        ...

    def choose(self, counter: int, probabilities: NDArray[np.float64]) -> int:
        """An index drawn in proportion to ``probabilities`` (unnormalised), by inverse CDF of
        ``uniform(counter)``."""
        ...


class Row(Protocol):
    """One token context. Opaque but for these."""

    @property
    def tokens(self) -> Sequence[int]:
        """Its token ids."""
        ...

    @property
    def length(self) -> int:
        """Number of tokens."""
        ...

    @property
    def copied(self) -> int:
        """Tokens whose keys and values were copied on this row's behalf (copy on write)."""
        ...


@dataclass(frozen=True)
class Extension:
    """One row's part in a draft: up to ``steps`` events from q~(e) ~ q(e)^(temperature /
    draft_temperature), with q the draft at ``temperature``, collapsed to E. A draft temperature of
    0 is the most probable event (of several the lowest). Of the first ``verified`` events the whole
    of q~ is kept, for rejection."""

    row: Row
    steps: int
    temperature: float
    draft_temperature: float
    stream: Stream
    verified: int = 0


@dataclass(frozen=True)
class Drafted:
    """Events drawn for one row, log q~ of each (float64), and log q~ of all events, in the engine's
    own form, at those that are to be verified."""

    events: list[int]
    log_q: list[float]
    proposals: list[Any] = field(default_factory=list)


Spaces = Callable[[int, Sequence[int | None]], Sequence[EventSpace | None]]
"""``spaces(k, drawn)``: called before draft step k with the event that each row drew at step k - 1
(None at k = 0, or where it drew none); returns each row's E at step k, None where it draws no
more. It is not called after the last step."""


@dataclass(frozen=True)
class Verification:
    """Rejection sampling of some events of a block: each is kept with probability
    min(1, pi_t / q~), pi_t = prod_i p_i^alpha_i / Z_t over E; the first that is not ends the block
    and is replaced by a draw from (pi_t - q~)+ (Leviathan et al. 2023; Chen et al. 2023).

    Attributes:
        first: the block's first such event; as many as there are proposals follow it.
        proposals: log q~ at each, as `extend` kept them.
        accept, residual: the random numbers, counter t of the t-th of them.
    """

    first: int
    proposals: Sequence[Any]
    accept: Stream
    residual: Stream


@dataclass(frozen=True)
class Query:
    """One row's part in a scoring pass.

    Attributes:
        rows: for each factor the context that it reads: the same row, or one of its own. Their
            last tokens are the token events of ``block``.
        block: the events to score, in order: tokens, and possibly one stop event, last.
        spaces: E at each event of ``block``. None where the events are plain tokens (`observe`).
        lms: the factors p_i^alpha_i.
        bonus: E after the block, where a bonus event is to be drawn; None for none.
        stream: for the bonus, counter 0.
        verification: of the events that stand by rejection; None for none.
    """

    rows: Sequence[Row]
    block: Sequence[int]
    spaces: Sequence[EventSpace] | None
    lms: tuple[LM, ...]
    bonus: EventSpace | None = None
    stream: Stream | None = None
    verification: Verification | None = None


@dataclass(frozen=True)
class Scored:
    """The answer to a `Query`.

    Attributes:
        log_p: float64[len(lms), len(block)], log p_i(event), collapsed, without exponents.
        bonus: the event that follows the block: drawn from prod_i p_i^alpha_i over E, or in place
            of the first that is rejected; None where not asked, or Z = 0.
        bonus_log_p: float64[len(lms)], log p_i of the bonus event.
        log_z: log sum_E prod_i p_i^alpha_i, where the bonus is drawn and at every verified event up
            to the first rejected; -inf where no event has mass.
        kept: how many events of the block stand; all where none is rejected.
    """

    log_p: NDArray[np.float64]
    bonus: int | None
    bonus_log_p: NDArray[np.float64]
    log_z: float
    kept: int


class Tokenization(Protocol):
    """How an engine turns text into tokens and back."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def start_ids(self) -> tuple[int, ...]:
        """Tokens that open every context by the tokenizer's own convention (BOS, or none)."""
        ...

    @property
    def empty_context_ids(self) -> tuple[int, ...]:
        """What stands in for an empty context, since a model cannot condition on nothing: the BOS
        (or else EOS) id. Used only where ``start_ids`` is empty and nothing was prompted."""
        ...

    def encode(self, parts: Sequence[str], at_start: bool) -> list[int]:
        """Encode plain text; parts that are `Special` become that special token, nothing else does.
        ``at_start``: whether the text opens the context (the tokenizer's own convention for a
        first word) or continues it (byte-exact, no added space)."""
        ...

    def encode_bytes(self, data: bytes) -> list[int]:
        """Byte-exact encoding of a fragment in mid-context."""
        ...

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None,
        template_kwargs: Mapping[str, Any],
    ) -> list[str]:
        """The chat template's rendering as parts: `str` for text (message contents that spell a
        special token included) and `Special` for the template's special tokens."""
        ...


class EngineInterface(Protocol):
    """What `smcprog.inference.smc` needs of an engine."""

    @property
    def tokenization(self) -> Tokenization: ...

    @property
    def has_draft(self) -> bool: ...

    @property
    def context_limit(self) -> int | None:
        """The longest context of the models, tokens; None for no limit."""
        ...

    def has_room(self, lengths: Sequence[int]) -> bool:
        """Whether rows of these lengths fit with nothing shared, were there no others."""
        ...

    def open(self, token_ids: Sequence[int]) -> Row:
        """A new row with these tokens."""
        ...

    def fork(self, row: Row) -> Row:
        """A row with the same tokens, sharing all pages."""
        ...

    def free(self, row: Row) -> None:
        """Give the row's pages back."""
        ...

    def truncate(self, row: Row, length: int) -> None:
        """Keep the first ``length`` tokens."""
        ...

    def append(self, rows: Sequence[Row], tokens: Sequence[Sequence[int]]) -> None:
        """Append forced tokens, any number per row; bookkeeping only, the next pass feeds them.

        Raises:
            KVPoolError, ContextLengthError
        """
        ...

    def extend(self, extensions: Sequence[Extension], spaces: Spaces) -> list[Drafted]:
        """Draft. Token events are appended to the rows as they are drawn; stop events are not."""
        ...

    def score(self, queries: Sequence[Query]) -> list[Scored]:
        """One pass of the target (and of each other model that a factor names) for all queries.
        Appends nothing.

        Raises:
            NaNLogitsError
            WeightError: where a factor with a negative exponent has probability 0.
            ModelError, VocabularyError: from loading another model.
        """
        ...

    def event_log_p(
        self, rows: Sequence[Row], spaces: Sequence[EventSpace], lm: LM
    ) -> NDArray[np.float64]:
        """log p_i of every event that may follow each row, under ``lm`` without its exponent:
        float64[len(rows), V + 2], columns as `eos_event` and `leave_event` number them; -inf for
        what is not in E. One target pass.

        Raises:
            NaNLogitsError
        """
        ...

    def kv_tokens(self, rows: Sequence[Row]) -> int:
        """Tokens of KV that these rows hold together, each shared page counted once."""
        ...
