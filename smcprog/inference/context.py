"""The text that a particle has so far: its parts, and its tokens at the engine.

A particle has a stack of these: `aside` puts another one on top.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from smcprog.dsl.requests import Chat, Gen
from smcprog.errors import ContextLengthError, ProgramError
from smcprog.inference.interface import EngineInterface, Row, Tokenization
from smcprog.potentials.base import LM
from smcprog.text import Special


@dataclass(eq=False)
class TokenContext:
    """One context.

    Attributes:
        row: its tokens at the engine; None before the first token and after the end.
        scratch: a row of the text that `logprob` has read before ``row`` was opened.
        given, hint: while in a `gen`, what it has drawn after other texts: after those of its LM
            factors, and (for the draft) after the hint and the context.
        unsent: parts that are not yet encoded, ``unsent_bytes`` long together; `Special` ones are
            special tokens.
        parts: the bytes of all parts.
        chat_start: where in the text, as characters, the chat template began.
        silent: how many texts, since it last grew, were ended by EOS before they began.
    """

    row: Row | None = None
    scratch: Row | None = None
    given: dict[str, Row] = field(default_factory=dict)
    hint: Row | None = None
    unsent: list[str] = field(default_factory=list)
    unsent_bytes: int = 0
    parts: list[bytes] = field(default_factory=list)
    chat_start: int | None = None
    silent: int = 0

    @property
    def text(self) -> str:
        return b"".join(self.parts).decode(errors="replace")

    @property
    def blank(self) -> bool:
        """Whether its row holds no text, but what opens every context."""
        return len(self.parts) == len(self.unsent)

    @property
    def beside(self) -> list[Row]:
        """The rows that follow the present `gen` in other contexts."""
        return [*self.given.values(), *([] if self.hint is None else [self.hint])]

    @property
    def rows(self) -> list[Row]:
        """All rows that it holds."""
        return [*(row for row in (self.row, self.scratch) if row is not None), *self.beside]

    def rows_of(self, lms: Sequence[LM]) -> list[Row]:
        """The row that each factor of the present `gen` reads."""
        assert self.row is not None
        return [self.row if lm.text is None else self.given[lm.text] for lm in lms]

    def take_beside(self) -> list[Row]:
        """Give up the rows of the present `gen`."""
        rows, self.given, self.hint = self.beside, {}, None
        return rows

    def take_rows(self) -> list[Row]:
        """Give up all rows."""
        rows = self.rows
        self.row = self.scratch = self.hint = None
        self.given = {}
        return rows

    def fork(self, engine: EngineInterface) -> TokenContext:
        """An independent copy that shares the pages of its rows."""
        return replace(
            self,
            row=None if self.row is None else engine.fork(self.row),
            scratch=None,
            given={text: engine.fork(row) for text, row in self.given.items()},
            hint=None if self.hint is None else engine.fork(self.hint),
            unsent=list(self.unsent),
            parts=list(self.parts),
        )

    def add(self, part: str) -> None:
        """Append a part that is not encoded yet."""
        self.unsent.append(part)
        data = part.encode(errors="replace")  # a surrogate is refused when it is encoded
        self.unsent_bytes += len(data)
        self.parts.append(data)
        self.silent = 0

    def encode_unsent(self, engine: EngineInterface) -> list[int]:
        """The tokens of the unsent parts, which then count as sent."""
        if self.row is not None and self.unsent and self.blank:
            # A model has read the empty context; the first text opens it by the tokenizer's
            # convention.
            engine.free(self.row)
            self.row = None
        if self.row is None:
            ids = opening_ids(engine.tokenization, self.unsent)
        else:
            ids = engine.tokenization.encode(self.unsent, at_start=False)
        self.unsent.clear()
        self.unsent_bytes = 0
        return ids

    def append(self, engine: EngineInterface, ids: Sequence[int]) -> None:
        """Append tokens, or open the row with them."""
        if self.row is None:
            self.row = engine.open(ids)
        elif ids:
            engine.append([self.row], [ids])
        if self.scratch is not None:
            engine.free(self.scratch)
            self.scratch = None

    def reading_row(self, engine: EngineInterface) -> Row:
        """A row to read on from, without changing how the text will be encoded."""
        if self.row is not None and not self.unsent:
            return self.row
        if self.row is None or self.blank:
            row = engine.open(opening_ids(engine.tokenization, self.unsent))
        else:
            row = engine.fork(self.row)
            engine.append([row], [engine.tokenization.encode(self.unsent, at_start=False)])
        if self.scratch is not None:
            engine.free(self.scratch)
        self.scratch = row  # kept until the text itself is encoded, which then shares its pages
        return row

    def open_beside(self, engine: EngineInterface, request: Gen, drafting: bool) -> None:
        """Open the rows of a `gen`'s other contexts.

        Raises:
            ContextLengthError
        """
        for lm in request.potential.lms:
            if lm.text is not None and lm.text not in self.given:
                self.given[lm.text] = open_given(engine, lm.text)
        if drafting and request.hint is not None:
            assert self.row is not None
            tokenization = engine.tokenization
            opening = list(tokenization.start_ids)
            if not opening and self.blank:
                opening = list(tokenization.empty_context_ids)
            tokens = list(self.row.tokens)
            if tokens[: len(opening)] == opening:
                tokens = tokens[len(opening) :]
            ids = [*opening_ids(tokenization, [request.hint]), *tokens]
            check_readable(engine, len(ids), "the hint and the context")
            self.hint = engine.open(ids)


def open_given(engine: EngineInterface, text: str) -> Row:
    """A row of a factor's own context."""
    ids = opening_ids(engine.tokenization, [text] if text else [])
    check_readable(engine, len(ids), f"the text of lm.given({text[:40]!r}...)")
    return engine.open(ids)


def check_readable(engine: EngineInterface, tokens: int, what: str) -> None:
    """Refuse given text that the models cannot read.

    Raises:
        ContextLengthError
    """
    limit = engine.context_limit
    if limit is not None and tokens > limit:
        raise ContextLengthError(
            f"{what} makes a context of {tokens} tokens; the models read at most {limit}. Shorten "
            f"the text, or use models whose limit is at least {tokens}"
        )


def opening_ids(tokenization: Tokenization, parts: Sequence[str]) -> list[int]:
    """The tokens of a context from its start: BOS by the tokenizer's convention (not twice where
    a chat template writes its own), then the text."""
    ids = tokenization.encode(parts, at_start=True)
    start = list(tokenization.start_ids)
    writes_bos = bool(parts) and isinstance(parts[0], Special) and ids[:1] == start[:1]
    if not writes_bos:
        ids = start + ids
    return ids or list(tokenization.empty_context_ids)


def chat_difference(
    tokenization: Tokenization, context: TokenContext, request: Chat, place: str
) -> list[str]:
    """What the rendered history adds to the chat text that the context already holds.

    Raises:
        ProgramError: if the history does not begin with what is there.
    """
    parts = tokenization.render_chat(request.messages, request.tools, request.template_kwargs)
    text = context.text
    if context.chat_start is None:
        context.chat_start = len(text)
        return parts
    present = text[context.chat_start :]
    rendered = "".join(parts)
    if not rendered.startswith(present):
        at = next(i for i, c in enumerate(present) if rendered[i : i + 1] != c)
        raise ProgramError(
            f"{place}: the chat history must begin with what the context already holds; "
            f"the template renders {rendered[at : at + 40]!r} where the context has "
            f"{present[at : at + 40]!r}. Pass the whole history, the assistant's replies "
            "unchanged; a template that rewrites earlier turns cannot be continued"
        )
    return _without_prefix(parts, len(present))


def _without_prefix(parts: Iterable[str], length: int) -> list[str]:
    """Context parts less their first ``length`` characters."""
    rest: list[str] = []
    for part in parts:
        if length >= len(part):
            length -= len(part)
        else:
            rest.append(part[length:] if length else part)
            length = 0
    return rest
