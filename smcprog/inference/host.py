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
    EnterAside,
    Factor,
    Gen,
    LeaveAside,
    LogProb,
    Observe,
    Prompt,
    Sync,
    Twist,
)
from smcprog.inference import calls
from smcprog.inference.context import TokenContext, chat_difference, check_readable, open_given
from smcprog.inference.generation import Generation
from smcprog.inference.interface import EngineInterface, EventSpace, Query, Row, Scored, eos_event
from smcprog.inference.population import Particle, Run
from smcprog.inference.weights import log_power
from smcprog.potentials.base import LM
from smcprog.text import EOS

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
                tokenization, context = run.engine.tokenization, particle.context
                parts = chat_difference(tokenization, context, request, place(particle))
                if append_parts(run, particle, parts):
                    particle.answer(None, text="".join(parts))
            case Context():
                particle.answer(particle.context.text)
            case Factor(logw, source):
                charge_statement(run, particle, logw, source)
            case Twist(old, new):
                charge_statement(run, particle, new - old, "twist")
            case Draw(values, weights):
                p = np.ones(len(values)) if weights is None else np.array(weights) / max(weights)
                index = run.stream(slot, "draw").choose(run.draws[slot], p)
                run.draws[slot] += 1
                particle.answer(index, text=repr(values[index]))
            case EnterAside(inherit):
                inner = particle.context.fork(run.engine) if inherit else TokenContext()
                particle.contexts.append(inner)
                particle.resume(None)
            case LeaveAside():
                run.free(particle.contexts.pop().take_rows())
                particle.answer(None)
            case Gen():
                if flush(run, particle):
                    begin_gen(run, particle, request)
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
            particle.context.add(part)
    longest = run.engine.tokenization.vocabulary.longest
    if particle.context.unsent_bytes > run.settings.max_tokens * longest:
        return flush(run, particle)
    return True


def flush(run: Run, particle: Particle) -> bool:
    """Encode what was appended, and open the context's row. False where that killed it."""
    ids = particle.context.encode_unsent(run.engine)
    if not room(run, particle, ids):
        return False
    particle.context.append(run.engine, ids)
    return True


def room(run: Run, particle: Particle, ids: list[int]) -> bool:
    """Whether given tokens still fit; where not, the particle dies of ``max_tokens``.

    Raises:
        ContextLengthError: if they exceed what the models can read.
    """
    row = particle.context.row
    needed = (0 if row is None else row.length) + len(ids)
    if needed > run.settings.max_tokens:
        outgrow(run, particle)
    else:
        check_readable(run.engine, needed, f"the text at {place(particle)}")
    return not particle.dead


def outgrow(run: Run, particle: Particle) -> None:
    """Kill a particle whose context has no room for another token."""
    limit = run.context_limit
    model = "" if limit == run.settings.max_tokens else ", the models' limit"
    run.charge(particle, -np.inf, f"a context of over {limit} tokens (max_tokens{model})")


# Texts: their beginning and their end


def begin_gen(run: Run, particle: Particle, request: Gen) -> None:
    """Enter a `gen`: its events, and the rows of its other contexts."""
    generation = Generation(request, run.engine.tokenization.vocabulary)
    particle.generation = generation
    if generation.dead:
        run.charge(particle, -np.inf, source_of(particle))
    else:
        drafting = run.engine.has_draft and run.block > 0
        particle.context.open_beside(run.engine, request, drafting)


def complete_gen(run: Run, particle: Particle) -> None:
    """Leave a `gen`: the context keeps its text (and stop, with ``keep_stop``), byte for byte."""
    generation, context = particle.generation, particle.context
    assert generation is not None and context.row is not None
    run.free(context.take_beside())
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
    engine.truncate(context.row, context.row.length - len(drawn) + kept_tokens)
    ids = engine.tokenization.encode_bytes(rest) if rest else []
    if context.row.length + len(ids) > run.context_limit:
        outgrow(run, particle)
        return
    context.append(engine, ids)
    if generation.kept:
        context.parts.append(generation.kept)
    context.silent = context.silent + 1 if generation.stop is EOS and not generation.kept else 0
    if context.silent == SILENT_LIMIT:
        run.charge(
            particle,
            -np.inf,
            f"{SILENT_LIMIT} texts in a row that the model ended (EOS) before they began, in "
            f"{place(particle)}; leave the loop where the text's stop is EOS",
        )
        return
    particle.truncated = particle.truncated or generation.truncated
    particle.generation = None
    if len(particle.contexts) == 1:
        particle.tokens.extend(drawn)
        particle.texts.append(generation.text)
    text = generation.as_text()
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
    own, and so has it under each other context of its factors: these are entered in ``opened``.
    """
    request = particle.request
    engine, tokenization = run.engine, run.engine.tokenization
    at_start = not particle.context.parts
    if isinstance(request, LogProb):
        if request.given is None:
            base = particle.context.reading_row(engine)
        else:
            at_start = not request.given
            opened.append(base := open_given(engine, request.given))
        asked = []
        for text in request.texts:
            ids = tokenization.encode([text], at_start)
            opened.append(row := engine.fork(base))
            engine.append([row], [ids])
            asked.append(Query([row], ids, None, (LM(),)))
        return asked
    assert isinstance(request, Observe)
    if not flush(run, particle):
        return []
    own = particle.context.row
    assert own is not None
    lms = request.potential.lms
    given = {lm.text: open_given(engine, lm.text) for lm in lms if lm.text is not None}
    opened.extend(given.values())
    rows = [own if lm.text is None else given[lm.text] for lm in lms]
    if isinstance(request.text, str):
        ids = tokenization.encode([request.text], at_start)
        if not room(run, particle, ids):
            return []
        reading = [own, *given.values()]
        engine.append(reading, [ids] * len(reading))
        return [Query(rows, ids, None, lms)]
    vocabulary = tokenization.vocabulary
    space = EventSpace(vocabulary.ordinary, eos=True)
    return [Query(rows, [eos_event(vocabulary)], [space], lms)]


def answer_scored(run: Run, particle: Particle, scores: Sequence[Scored]) -> None:
    """Answer an `observe` or `logprob` by what the target said."""
    request = particle.request
    run.scored_tokens += sum(scored.log_p.shape[1] for scored in scores)
    if isinstance(request, Observe):
        (scored,) = scores
        logprob = float(scored.log_p[0].sum())
        text = request.text if isinstance(request.text, str) else None
        if text:
            particle.context.parts.append(text.encode())
            particle.context.silent = 0
        amount = float(log_power(scored.log_p, request.potential.lms).sum())
        charge_statement(run, particle, amount, "observe", logprob, text, logprob)
    elif isinstance(request, LogProb):
        particle.answer([float(scored.log_p.sum()) for scored in scores])
