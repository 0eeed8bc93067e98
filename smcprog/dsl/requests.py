"""What a program asks of its run: one small record per statement.

A `Process` yields these; the loop answers each with a result. They compare by value, which is
how a replay checks that the host code is deterministic.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smcprog.potentials.base import Product
from smcprog.text import Stop


@dataclass(frozen=True)
class Prompt:
    """Append text. Parts are ``str``, or `Special` for a special token. Answer: None."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Chat:
    """Append the chat template's rendering of the whole history. Answer: None."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Any] | None
    template_kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Gen:
    """Draw text. ``stop`` is None for the default of section 2; the draft reads ``hint`` before
    the context. Answer: a `Text`."""

    potential: Product
    stop: tuple[Stop, ...] | None
    max_tokens: int
    keep_stop: bool
    hint: str | None = None


@dataclass(frozen=True)
class Observe:
    """Append text (or the EOS event, which appends nothing) and charge it. Answer: log p, float."""

    text: Stop
    potential: Product


@dataclass(frozen=True)
class LogProb:
    """log p of texts under the context or under ``given``. Answer: list of float, same order."""

    texts: tuple[str, ...]
    given: str | None


@dataclass(frozen=True)
class Factor:
    """Add to the log weight. ``source`` names it: "factor" or "condition". Answer: None."""

    logw: float
    source: str


@dataclass(frozen=True)
class Twist:
    """Move the log weight by new - old (the twist of one program invocation). Answer: None."""

    old: float
    new: float


@dataclass(frozen=True)
class Sync:
    """Wait for the other particles. Answer: None."""


@dataclass(frozen=True)
class Draw:
    """Draw one of ``values`` by unnormalised ``weights`` (None: uniform). Answer: its index."""

    values: Sequence[Any]
    weights: tuple[float, ...] | None


@dataclass(frozen=True)
class Call:
    """Run ``fn(*args)`` once for this particle. Answer: its result (or the exception it raised)."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    batch: bool


@dataclass(frozen=True)
class Context:
    """Ask for the text so far. Answer: str."""


@dataclass(frozen=True)
class EnterAside:
    """Leave the context aside, for an empty one or (``inherit``) a copy of it. Answer: None."""

    inherit: bool


@dataclass(frozen=True)
class LeaveAside:
    """Go back to the context that was left aside. Answer: None."""


Request = (
    Prompt
    | Chat
    | Gen
    | Observe
    | LogProb
    | Factor
    | Twist
    | Sync
    | Draw
    | Call
    | Context
    | EnterAside
    | LeaveAside
)
