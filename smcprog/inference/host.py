"""Host code of the particles: run to the next statement that needs the other particles or a model.

Most statements are answered on the spot. A `gen` waits for rounds, `observe` and `logprob` for a
scoring pass, `sync` for the other particles, a batched or asynchronous `call` for its company.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from smcprog.dsl.requests import (
    Call,
    Chat,
    Context,
    Draw,
    Factor,
    Gen,
    LogProb,
    Observe,
    Prompt,
    Sync,
    Twist,
)
from smcprog.errors import ContextLengthError, ProgramError
from smcprog.inference import calls
from smcprog.inference.generation import Generation
from smcprog.inference.interface import EngineInterface, EventSpace, Query, Row, Scored, eos_event
from smcprog.inference.population import Particle, Run
from smcprog.potentials.base import LM
from smcprog.text import EOS, Special, Text

# A text that the model ends before it begins leaves the context as it was: a loop that asks again
# would hardly ever end.
SILENT_LIMIT = 100


def advance(run: Run, slot: int, particle: Particle) -> None:
    """Run a particle's host code until it waits for something, has finished or is dead."""
    if particle.pending is None and particle.running:
        particle.start()
    while particle.running and particle.generation is None:
        request = particle.request
        match request:
            case Prompt():
                if append_parts(run, particle, request.parts):
                    particle.answer(None, text="".join(request.parts))
            case Chat():
                parts = chat_difference(run.engine, particle, request)
                if append_parts(run, particle, parts):
                    particle.answer(None, text="".join(parts))
            case Context():
                particle.answer(particle.context_text)
            case Factor(logw, source):
                charge_statement(run, particle, logw, source)
            case Twist(old, new):
                charge_statement(run, particle, new - old, "twist")
            case Draw(values, weights):
                p = np.ones(len(values)) if weights is None else np.array(weights) / max(weights)
                index = run.stream(slot, "draw").choose(run.draws[slot], p)
                run.draws[slot] += 1
                particle.answer(index, text=repr(values[index]))
            case Gen():
                if flush(run, particle):
                    vocabulary = run.engine.tokenization.vocabulary
                    particle.generation = Generation(request, vocabulary)
                    if particle.generation.dead:
                        run.charge(particle, -np.inf, source_of(particle))
                return
            case Call(fn, _, batch=False) if not inspect.iscoroutinefunction(fn):
                calls.call_alone(particle, request)
            case Observe() | LogProb() | Sync() | Call():
                return
    if particle.finished:
        run.release(particle)


def charge_statement(
    run: Run,
    particle: Particle,
    logw: float,
    source: str,
    value: Any = None,
    text: str | None = None,
    logprob: float | None = None,
) -> None:
    """Charge a weight statement and answer it, unless that kills the particle."""
    run.charge(particle, logw, f"{source} at {place(particle)}", text, logprob)
    if particle.running:
        particle.answer(value, text, logprob)


# Context


def append_parts(run: Run, particle: Particle, parts: Iterable[str]) -> bool:
    """Append text to the context. False where it killed the particle.

    The text is encoded when a model has to read it, so that several prompts in a row are encoded
    as one; or when it is so long that it cannot fit, lest a program that prompts for ever does.
    """
    for part in parts:
        if part:
            particle.unsent.append(part)
            data = part.encode(errors="replace")  # a surrogate is refused when it is encoded
            particle.unsent_bytes += len(data)
            particle.context.append(data)
            particle.silent = 0
    longest = run.engine.tokenization.vocabulary.longest
    if particle.unsent_bytes > run.settings.max_tokens * longest:
        return flush(run, particle)
    return True


def flush(run: Run, particle: Particle) -> bool:
    """Encode what was appended, and open the particle's row. False where that killed it."""
    engine = run.engine
    if particle.row is not None and particle.unsent and particle.blank:
        # A model has read the empty context; the first text opens it by the tokenizer's convention.
        engine.free(particle.row)
        particle.row = None
    row = particle.row
    if row is None:
        ids = encode_opening(engine, particle.unsent)
    else:
        ids = engine.tokenization.encode(particle.unsent, at_start=False)
    particle.unsent.clear()
    particle.unsent_bytes = 0
    if not room(run, particle, ids):
        return False
    if row is None:
        particle.row = engine.open(ids)
    elif ids:
        engine.append([row], [ids])
    if particle.scratch is not None:
        engine.free(particle.scratch)
        particle.scratch = None
    return True


def encode_opening(engine: EngineInterface, parts: list[str]) -> list[int]:
    """The tokens of a context from its start: BOS by the tokenizer's convention (not twice where
    a chat template writes its own), then the text."""
    tokenization = engine.tokenization
    ids = tokenization.encode(parts, at_start=True)
    start = list(tokenization.start_ids)
    writes_bos = bool(parts) and isinstance(parts[0], Special) and ids[:1] == start[:1]
    if not writes_bos:
        ids = start + ids
    return ids or list(tokenization.empty_context_ids)


def room(run: Run, particle: Particle, ids: list[int]) -> bool:
    """Whether given tokens still fit; where not, the particle dies of ``max_tokens``.

    Raises:
        ContextLengthError: if they exceed what the models can read.
    """
    needed = (0 if particle.row is None else particle.row.length) + len(ids)
    limit = run.engine.context_limit
    if needed > run.settings.max_tokens:
        outgrow(run, particle)
    elif limit is not None and needed > limit:
        raise ContextLengthError(
            f"the text at {place(particle)} makes a context of {needed} tokens; the models read "
            f"at most {limit}. Shorten the text, or use models whose limit is at least {needed}"
        )
    return not particle.dead


def outgrow(run: Run, particle: Particle) -> None:
    """Kill a particle whose context has no room for another token."""
    limit = run.context_limit
    model = "" if limit == run.settings.max_tokens else ", the models' limit"
    run.charge(particle, -np.inf, f"a context of over {limit} tokens (max_tokens{model})")


def chat_difference(engine: EngineInterface, particle: Particle, request: Chat) -> list[str]:
    """What the rendered history adds to the chat text that the context already holds.

    Raises:
        ProgramError: if the history does not begin with what is there.
    """
    parts = engine.tokenization.render_chat(
        request.messages, request.tools, request.template_kwargs
    )
    context = particle.context_text
    if particle.chat_start is None:
        particle.chat_start = len(context)
        return parts
    present = context[particle.chat_start :]
    rendered = "".join(parts)
    if not rendered.startswith(present):
        at = next(i for i, c in enumerate(present) if rendered[i : i + 1] != c)
        raise ProgramError(
            f"{place(particle)}: the chat history must begin with what the context already holds; "
            f"the template renders {rendered[at : at + 40]!r} where the context has "
            f"{present[at : at + 40]!r}. Pass the whole history, the assistant's replies "
            "unchanged; a template that rewrites earlier turns cannot be continued"
        )
    return without_prefix(parts, len(present))


def without_prefix(parts: list[str], length: int) -> list[str]:
    """Context parts less their first ``length`` characters."""
    rest: list[str] = []
    for part in parts:
        if length >= len(part):
            length -= len(part)
        else:
            rest.append(part[length:] if length else part)
            length = 0
    return rest


# Text that has ended


def complete_gen(run: Run, particle: Particle) -> None:
    """Leave a `gen`: the context keeps its text (and stop, with ``keep_stop``), byte for byte."""
    generation = particle.generation
    assert generation is not None and particle.row is not None
    if generation.prohibition and particle.site not in run.warned:
        run.warned.add(particle.site)
        warnings.warn_explicit(
            f"{place(particle)}: the constraint accepts everywhere, so the text ended at the first "
            "token that it forbids. To forbid something in a text that the model ends itself, say "
            "stop=EOS",
            UserWarning,
            filename=particle.site.file,
            lineno=particle.site.line,
        )
    engine = run.engine
    drawn = generation.tokens
    kept_tokens, rest = split_tokens(engine, drawn, generation.kept)
    engine.truncate(particle.row, particle.row.length - len(drawn) + kept_tokens)
    ids = engine.tokenization.encode_bytes(rest) if rest else []
    if particle.row.length + len(ids) > run.context_limit:
        outgrow(run, particle)
        return
    if ids:
        engine.append([particle.row], [ids])
    if generation.kept:
        particle.context.append(generation.kept)
    particle.silent = particle.silent + 1 if generation.stop is EOS and not generation.kept else 0
    if particle.silent == SILENT_LIMIT:
        run.charge(
            particle,
            -np.inf,
            f"{SILENT_LIMIT} texts in a row that the model ended (EOS) before they began, in "
            f"{place(particle)}; leave the loop where the text's stop is EOS",
        )
        return
    particle.tokens.extend(drawn)
    particle.truncated = particle.truncated or generation.truncated
    particle.generation = None
    particle.texts.append(generation.text)
    text = Text(
        generation.text.decode(errors="replace"), generation.stop, generation.log_p, tuple(drawn)
    )
    particle.answer(text, text=text, logprob=generation.log_p)


def split_tokens(engine: EngineInterface, tokens: list[int], kept: bytes) -> tuple[int, bytes]:
    """How many tokens lie wholly within the bytes to keep, and the bytes that then remain."""
    pieces = engine.tokenization.vocabulary.tokens
    count = length = 0
    for token in tokens:
        if length + len(pieces[token]) > len(kept):
            break
        length += len(pieces[token])
        count += 1
    return count, kept[length:]


def place(particle: Particle) -> str:
    """Program, line and source of the present statement, for messages."""
    site = particle.site
    return f"{site.program}:{site.line} `{site.source}`"


def source_of(particle: Particle) -> str:
    """The name under which the death of a particle in a `gen` is counted."""
    generation = particle.generation
    assert generation is not None
    names = " * ".join(map(repr, generation.request.potential.factors)) or "lm"
    why = f" ({generation.death})" if generation.dead else ""
    return f"{names} in {place(particle)}{why}"


# Statements that a scoring pass answers


def queries(run: Run, particle: Particle, opened: list[Row]) -> list[Query]:
    """What the target is asked for an `observe` or `logprob`: one query for each text.

    An observed text is appended to the particle's row; each text of a `logprob` has a row of its
    own, which is entered in ``opened``.
    """
    request = particle.request
    engine, tokenization = run.engine, run.engine.tokenization
    at_start = not particle.context
    if isinstance(request, LogProb):
        base = reading_row(run, particle, request, opened)
        at_start = at_start if request.given is None else not request.given
        asked = []
        for text in request.texts:
            ids = tokenization.encode([text], at_start)
            opened.append(row := engine.fork(base))
            engine.append([row], [ids])
            asked.append(Query(row, ids, None, (LM(),)))
        return asked
    assert isinstance(request, Observe)
    if not flush(run, particle):
        return []
    assert particle.row is not None
    lms = request.potential.lms
    if isinstance(request.text, str):
        ids = tokenization.encode([request.text], at_start)
        if not room(run, particle, ids):
            return []
        engine.append([particle.row], [ids])
        return [Query(particle.row, ids, None, lms)]
    vocabulary = tokenization.vocabulary
    space = EventSpace(vocabulary.ordinary, eos=True)
    return [Query(particle.row, [eos_event(vocabulary)], [space], lms)]


def reading_row(run: Run, particle: Particle, request: LogProb, opened: list[Row]) -> Row:
    """A row that a `logprob` reads on from, without changing how the context will be encoded."""
    engine = run.engine
    if request.given is not None:
        opened.append(row := engine.open(encode_opening(engine, [request.given])))
        return row
    if particle.row is not None and not particle.unsent:
        return particle.row
    if particle.row is None or particle.blank:
        row = engine.open(encode_opening(engine, particle.unsent))
    else:
        row = engine.fork(particle.row)
        engine.append([row], [engine.tokenization.encode(particle.unsent, at_start=False)])
    if particle.scratch is not None:
        engine.free(particle.scratch)
    particle.scratch = row  # kept until the context itself is encoded, which then shares its pages
    return row


def answer_scored(run: Run, particle: Particle, scores: Sequence[Scored]) -> None:
    """Answer an `observe` or `logprob` by what the target said."""
    request = particle.request
    run.scored_tokens += sum(scored.log_p.shape[1] for scored in scores)
    if isinstance(request, Observe):
        (scored,) = scores
        alphas = np.array([lm.alpha for lm in request.potential.lms])
        logprob = float(scored.log_p[0].sum())
        text = request.text if isinstance(request.text, str) else None
        if text:
            particle.context.append(text.encode())
            particle.silent = 0
        amount = float(alphas @ scored.log_p.sum(axis=1))
        charge_statement(run, particle, amount, "observe", logprob, text, logprob)
    elif isinstance(request, LogProb):
        particle.answer([float(scored.log_p.sum()) for scored in scores])
