"""Masked sampling in one pass over the logits: collapse, temper, draw, normalise.

For one row with logits l, temperature T and power a, over the events E (the allowed tokens, EOS,
LEAVE: see `smcprog.gpu.sampling.EventTable.collapse`),

    w(e) = sum_{v in e} softmax(l / T)_v,    q~(e) = w(e)^a / sum_{E} w^a.

The draw is an exponential race: E_e = -log1p(-u_e) is a standard exponential, and the argmin of
E_e / w(e)^a falls on e with probability q~(e). A race needs no normaliser, so one pass will do,
and its uniforms are keyed by token id, so that the rounding differences between kernels seldom
change the event.

u_e is a function of (seed, counter, e) alone: Philox 4x32-10 (Salmon, Moraes, Dror and Shaw 2011,
"Parallel random numbers: as easy as 1, 2, 3"), whose four words serve two neighbouring events. The
64 bits of an event keep their relative precision near 0, where a token of small probability wins.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from smcprog.gpu.draws import Draws

_BLOCK = 2048
_PARTIALS = tl.constexpr(5)
_LARGEST_UNIFORM = tl.constexpr(1 - 2.0**-24)


def sample(
    logits: Tensor,
    mask: Tensor,
    eos_allowed: Tensor,
    leave_allowed: Tensor,
    eos_ids: Tensor,
    temperature: Tensor,
    power: Tensor,
    seeds: Tensor,
    counters: Tensor,
) -> Draws:
    """Draw one event a row from q~ (module docstring).

    Everything is computed in float32, for float64 logits in float64; sums of blocks are added in
    float64.

    Args:
        logits: [n, V] of any float dtype, contiguous in V; -inf is legal.
        mask: int32 or uint32 [n or 1, ceil(V / 32)], bit v % 32 of word v // 32 for token v; one
            row serves all.
        eos_allowed: bool[n], whether EOS is an event.
        leave_allowed: bool[n], whether LEAVE is an event.
        eos_ids: int64[any], distinct.
        temperature: float[n], > 0.
        power: float[n], > 0.
        seeds: int64[n], the Philox key.
        counters: int64[n], the Philox counter next to the event.

    Returns:
        Events in 0 .. V - 1, V for EOS, V + 1 for LEAVE; log q~(event); and log sum_E w^a. A row
        in which no event has mass has event -1, log q~ NaN and log total -inf. A row whose
        largest logit is no finite number has event -1 and NaN for both.
    """
    rows, size = logits.shape
    wide = _wide(logits)
    events = torch.empty(rows, dtype=torch.int64, device=logits.device)
    log_q = torch.empty(rows, dtype=torch.float64, device=logits.device)
    log_total = torch.empty(rows, dtype=torch.float64, device=logits.device)
    if rows == 0:
        return Draws(events, log_q, log_total)
    blocks = triton.cdiv(size, _BLOCK)
    partial = torch.empty(
        (rows, blocks, _PARTIALS.value), dtype=torch.float64, device=logits.device
    )
    winners = torch.empty((rows, blocks), dtype=torch.int32, device=logits.device)
    settings = (temperature.to(wide), power.to(wide), seeds, counters)
    words = mask.contiguous().view(torch.int32)
    _scan_kernel[(rows, blocks)](
        logits,
        words,
        eos_allowed,
        eos_ids,
        *settings,
        partial,
        winners,
        logits.stride(0),
        0 if len(words) == 1 else words.stride(0),
        size,
        blocks,
        EOS_COUNT=len(eos_ids),
        BLOCK=_BLOCK,
    )
    _reduce_kernel[(rows,)](
        logits,
        eos_allowed,
        leave_allowed,
        eos_ids,
        *settings,
        partial,
        winners,
        events,
        log_q,
        log_total,
        logits.stride(0),
        size,
        blocks,
        len(eos_ids),
        BLOCKS=triton.next_power_of_2(blocks),
        EOS_IDS=triton.next_power_of_2(max(len(eos_ids), 1)),
        num_warps=1,
    )
    return Draws(events, log_q, log_total)


def sample_twin(
    logits: Tensor,
    mask: Tensor,
    eos_allowed: Tensor,
    leave_allowed: Tensor,
    eos_ids: Tensor,
    temperature: Tensor,
    power: Tensor,
    seeds: Tensor,
    counters: Tensor,
) -> Draws:
    """What `sample` computes."""
    size, wide = logits.shape[1], _wide(logits)
    never = float("-inf")
    log_w = torch.log_softmax(logits.to(wide) / temperature.to(wide)[:, None], dim=-1)
    token = torch.arange(size, device=logits.device)
    is_set = (mask.view(torch.int32)[:, token // 32] >> (token % 32)) & 1 == 1
    is_eos = torch.isin(token, eos_ids)
    outside = ~is_set & ~(eos_allowed[:, None] & is_eos)
    eos = torch.logsumexp(log_w[:, eos_ids], dim=-1).masked_fill(~eos_allowed, never)
    leave = torch.logsumexp(log_w.masked_fill(~outside, never), dim=-1)
    leave = leave.masked_fill(~leave_allowed, never)
    tokens = log_w.masked_fill(~is_set, never)
    score = torch.cat([tokens, eos[:, None], leave[:, None]], dim=1) * power.to(wide)[:, None]

    exponentials = -torch.log1p(-uniforms(seeds, counters, size + 2))
    winner = (score - exponentials.log()).argmax(-1)
    log_total = torch.logsumexp(score.double(), dim=-1)
    log_q = score.gather(1, winner[:, None])[:, 0].double() - log_total
    alive = log_total > never
    return Draws(torch.where(alive, winner, -1), log_q.masked_fill(~alive, float("nan")), log_total)


def uniforms(seeds: Tensor, counters: Tensor, events: int) -> Tensor:
    """u_e of the events 0 .. ``events`` - 1: int64[n] each to float32[n, events], inside (0, 1).

    Events 2i and 2i + 1 take the words (0, 1) and (2, 3) of Philox(key = seed; i, counter, 0),
    the more significant one first.
    """
    pair = torch.arange((events + 1) // 2, device=seeds.device).expand(len(seeds), -1)
    low, high = (word[:, None].expand_as(pair) for word in _words(counters))
    a, b, c, d = philox(
        (pair, low, high, torch.zeros_like(pair)),
        tuple(word[:, None] for word in _words(seeds)),
    )
    halves = torch.stack([a, c], dim=-1), torch.stack([b, d], dim=-1)
    first, second = (half.flatten(1)[:, :events].float() for half in halves)
    u = (first + (second + 0.5) * 2.0**-32) * 2.0**-32
    return u.clamp(max=_LARGEST_UNIFORM.value)


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Philox 4x32-10: four counter words and two key words to four random words.

    All are int64 that hold 32 bits, of shapes that broadcast.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        low0, high0 = _words(c0 * 0xD2511F53)  # modulo 2^64, so the bits are right
        low2, high2 = _words(c2 * 0xCD9E8D57)
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def _words(x: Tensor) -> tuple[Tensor, Tensor]:
    """The low and the high 32 bits of int64."""
    return x & 0xFFFFFFFF, (x >> 32) & 0xFFFFFFFF


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


@triton.jit
def _scan_kernel(
    logits,
    mask,
    eos_allowed,
    eos_ids,
    temperatures,
    powers,
    seeds,
    counters,
    partial,
    winners,
    logits_stride,
    mask_stride,
    size,
    blocks,
    EOS_COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One block of one row: sums over all, the allowed and the other tokens, and the best racer.

    ``partial`` float64[n, blocks, 5]: log sum e^x of x = l / T over all tokens, log sum e^(a x)
    over the allowed ones, log sum e^x over those that count as LEAVE, the winner's key
    a x - log E (the race is for the largest), and the winner's x. ``winners`` int32[n, blocks].
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    power = tl.load(powers + row)
    token = block * BLOCK + tl.arange(0, BLOCK)
    exists = token < size
    logit = tl.load(logits + row * logits_stride + token, mask=exists, other=float("-inf"))
    x = logit.to(power.dtype) / tl.load(temperatures + row)
    word = tl.load(mask + row * mask_stride + token // 32, mask=exists, other=0)
    allowed = ((word >> (token % 32)) & 1) == 1
    outside = exists & (allowed == 0)
    if tl.load(eos_allowed + row):
        for i in tl.static_range(EOS_COUNT):
            outside = outside & (token != tl.load(eos_ids + i))

    score = tl.where(allowed, power * x, float("-inf"))
    pair = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
    key = score - tl.log(_exponentials(tl.load(seeds + row), tl.load(counters + row), pair))
    best, winner = tl.max(key, axis=0, return_indices=True)
    winner_x = tl.sum(tl.where(token == block * BLOCK + winner, x, 0.0), axis=0)

    out = partial + (row * blocks + block) * _PARTIALS
    tl.store(out, _logsumexp(x))
    tl.store(out + 1, _logsumexp(score))
    tl.store(out + 2, _logsumexp(tl.where(outside, x, float("-inf"))))
    tl.store(out + 3, best)
    tl.store(out + 4, winner_x)
    tl.store(winners + row * blocks + block, block * BLOCK + winner)


@triton.jit
def _reduce_kernel(
    logits,
    eos_allowed,
    leave_allowed,
    eos_ids,
    temperatures,
    powers,
    seeds,
    counters,
    partial,
    winners,
    events,
    log_q,
    log_totals,
    logits_stride,
    size,
    blocks,
    eos_count,
    BLOCKS: tl.constexpr,
    EOS_IDS: tl.constexpr,
):
    """One row: the blocks together, EOS and LEAVE join the race."""
    row = tl.program_id(0).to(tl.int64)
    power = tl.load(powers + row)
    block = tl.arange(0, BLOCKS)
    exists = block < blocks
    part = partial + (row * blocks + block) * _PARTIALS
    log_norm = _logsumexp(tl.load(part, mask=exists, other=float("-inf")))
    tokens = _logsumexp(tl.load(part + 1, mask=exists, other=float("-inf")))
    leave = _logsumexp(tl.load(part + 2, mask=exists, other=float("-inf")))
    keys = tl.load(part + 3, mask=exists, other=float("-inf"))
    best, winner = tl.max(keys, axis=0, return_indices=True)
    event = tl.load(winners + row * blocks + winner).to(tl.int64)
    x = tl.load(partial + (row * blocks + winner) * _PARTIALS + 4)

    i = tl.arange(0, EOS_IDS)
    eos_id = tl.load(eos_ids + i, mask=i < eos_count, other=0)
    at = logits + row * logits_stride + eos_id
    eos_logit = tl.load(at, mask=i < eos_count, other=float("-inf")).to(power.dtype)
    eos = _logsumexp((eos_logit / tl.load(temperatures + row)).to(tl.float64))
    eos = tl.where(tl.load(eos_allowed + row), eos, float("-inf"))
    leave = tl.where(tl.load(leave_allowed + row), leave, float("-inf"))

    # The events V and V + 1 are among the four of these two pairs.
    four = size // 2 * 2 + tl.arange(0, 4)
    stop_x = tl.where(four == size, eos, tl.where(four == size + 1, leave, float("-inf")))
    stop_score = power.to(tl.float64) * stop_x
    pair = size // 2 + tl.arange(0, 2)
    exponential = _exponentials(tl.load(seeds + row), tl.load(counters + row), pair)
    stop_best, stop = tl.max(stop_score - tl.log(exponential), axis=0, return_indices=True)
    stops = stop_best > best
    event = tl.where(stops, size // 2 * 2 + stop, event)
    x = tl.where(stops, tl.sum(tl.where(tl.arange(0, 4) == stop, stop_x, 0.0), axis=0), x)

    shift = power.to(tl.float64) * log_norm
    log_total = _logaddexp(tokens, _logsumexp(stop_score)) - shift
    alive = log_total > float("-inf")
    score = power.to(tl.float64) * x - shift
    tl.store(events + row, tl.where(alive, event, -1))
    tl.store(log_q + row, tl.where(alive, score - log_total, float("nan")))
    tl.store(log_totals + row, log_total)


@triton.jit
def _logsumexp(x):
    """Over a block, in its dtype: -inf where all are, NaN where one is NaN or +inf."""
    peak = tl.max(x, axis=0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    return peak + tl.log(tl.sum(tl.exp(x - peak), axis=0))


@triton.jit
def _logaddexp(x, y):
    peak = tl.maximum(x, y)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    return peak + tl.log(tl.exp(x - peak) + tl.exp(y - peak))


@triton.jit
def _exponentials(seed, counter, pair):
    """-log1p(-u_e) of the events of some pairs: int32[m] to float32[2 m]."""
    zero = pair * 0
    low = zero + (counter & 0xFFFFFFFF).to(tl.int32)
    high = zero + (counter >> 32).to(tl.int32)
    a, b, c, d = tl.philox(seed, pair, low, high, zero)
    return _exponential(tl.interleave(_unit(a, b), _unit(c, d)))


@triton.jit
def _unit(first, second):
    """Two random words to one uniform inside (0, 1), float32."""
    u = (first.to(tl.float32) + (second.to(tl.float32) + 0.5) * 2.0**-32) * 2.0**-32
    return tl.minimum(u, _LARGEST_UNIFORM)


@triton.jit
def _exponential(u):
    """-log1p(-u). Near 0, where the log of a rounded 1 - u is bad, 2 artanh(u / (2 - u))."""
    s = u / (2 - u)
    s2 = s * s
    series = 2 * s * (1 + s2 * (1 / 3 + s2 * (1 / 5 + s2 * (1 / 7))))
    return tl.where(u < 0.25, series, -tl.log(1 - u))
