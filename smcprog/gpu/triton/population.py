"""The population between two rounds: weights, their summaries, ancestors, page tables.

Weights are float64 and -inf is a dead particle. Systematic resampling (Kitagawa 1996, "Monte Carlo
filter and smoother for non-Gaussian nonlinear state space models") is that of
`smcprog.inference.resampling`: slot i takes the particle into whose share of the unit interval the
point (u + i) / n falls. Here the shares are rounded to multiples of 2^-52, so that their sums are
exact in whatever order they are added and a dead particle's share is empty; ancestors differ from
those of the host only where a point lies within about n 2^-52 of a boundary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_MOST_PARTICLES = 8192
_BLOCK = 1024


class Reweighted(NamedTuple):
    """Populations after a round, one a row.

    Attributes:
        log_weights: float64[runs, n].
        ess: float64[runs], (sum w)^2 / sum w^2; 0 where all are dead.
        log_mean: float64[runs], log of the mean weight; -inf where all are dead.
        ancestors: int64[runs, n], ascending, never a dead particle; 0 .. n - 1 where all are dead.
    """

    log_weights: Tensor
    ess: Tensor
    log_mean: Tensor
    ancestors: Tensor


def reweight(log_weights: Tensor, increments: Tensor, uniforms: Tensor) -> Reweighted:
    """Add increments, and say what resampling each population now would choose.

    Args:
        log_weights: float64[runs, n], contiguous; -inf is legal.
        increments: float64[runs, n], contiguous; -inf is legal.
        uniforms: float64[runs] in [0, 1).

    Raises:
        ValueError: for more than 8192 particles a run, which one program does not hold.
    """
    runs, n = log_weights.shape
    if n > _MOST_PARTICLES:
        raise ValueError(f"{n} particles a run; this kernel takes up to {_MOST_PARTICLES}")
    result = Reweighted(
        torch.empty_like(log_weights),
        torch.empty_like(uniforms),
        torch.empty_like(uniforms),
        torch.empty(runs, n, dtype=torch.int64, device=log_weights.device),
    )
    if runs:
        block = triton.next_power_of_2(n)
        _reweight_kernel[(runs,)](
            log_weights,
            increments,
            uniforms,
            *result,
            n,
            BLOCK=block,
            STEPS=block.bit_length() - 1,
            num_warps=min(max(block // 256, 1), 16),
        )
    return result


def reweight_twin(log_weights: Tensor, increments: Tensor, uniforms: Tensor) -> Reweighted:
    """What `reweight` computes."""
    n = log_weights.shape[1]
    log_weights = log_weights + increments
    peak = log_weights.amax(-1, keepdim=True)
    peak = torch.where(torch.isneginf(peak), 0.0, peak)
    w = torch.exp(log_weights - peak)
    total, squares = w.sum(-1), (w * w).sum(-1)
    dead = total == 0
    ess = torch.where(dead, 0.0, total * total / squares)
    log_mean = peak[:, 0] + torch.log(total / n)

    slot = torch.arange(n, device=w.device)
    share = (w / total[:, None] + 1.0) - 1.0  # to a multiple of 2^-52
    cdf = share.cumsum(-1)
    points = (uniforms[:, None] + slot) / n * cdf[:, -1:]
    last = torch.where(share > 0, slot, 0).amax(-1, keepdim=True)
    ancestors = torch.minimum(torch.searchsorted(cdf, points, right=True), last)
    return Reweighted(
        log_weights, ess, log_mean, torch.where(dead[:, None], slot.expand_as(w), ancestors)
    )


def take_ancestors(tables: Tensor, lengths: Tensor, ancestors: Tensor) -> tuple[Tensor, Tensor]:
    """The page tables and lengths of a population's next generation, in new tensors.

    Args:
        tables: int32[rows, max_pages], contiguous.
        lengths: int32[rows], tokens.
        ancestors: int64[new_rows], rows of both.

    Returns:
        int32[new_rows, max_pages] and int32[new_rows].
    """
    rows, pages = len(ancestors), tables.shape[1]
    new_tables = torch.empty((rows, pages), dtype=tables.dtype, device=tables.device)
    new_lengths = torch.empty(rows, dtype=lengths.dtype, device=lengths.device)
    if rows:
        grid = (rows, max(triton.cdiv(pages, _BLOCK), 1))
        _take_kernel[grid](tables, lengths, ancestors, new_tables, new_lengths, pages, BLOCK=_BLOCK)
    return new_tables, new_lengths


def take_ancestors_twin(
    tables: Tensor, lengths: Tensor, ancestors: Tensor
) -> tuple[Tensor, Tensor]:
    """What `take_ancestors` computes."""
    return tables[ancestors], lengths[ancestors]


@triton.jit
def _reweight_kernel(
    log_weights,
    increments,
    uniforms,
    new_log_weights,
    ess,
    log_means,
    ancestors,
    n,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """One run: BLOCK = 2^STEPS is n or the next power of two."""
    run = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, BLOCK)
    exists = slot < n
    at = run * n + slot
    log_w = tl.load(log_weights + at, mask=exists, other=float("-inf"))
    log_w += tl.load(increments + at, mask=exists, other=0.0)
    tl.store(new_log_weights + at, log_w, mask=exists)

    peak = tl.max(log_w, axis=0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    w = tl.exp(log_w - peak)
    total = tl.sum(w, axis=0)
    dead = total == 0
    squares = tl.where(dead, 1.0, tl.sum(w * w, axis=0))
    tl.store(ess + run, total * total / squares)
    tl.store(log_means + run, peak + tl.log(total / n))

    share = (w / tl.where(dead, 1.0, total) + 1.0) - 1.0
    cdf = tl.cumsum(share, axis=0)
    whole = tl.sum(share, axis=0)
    point = (tl.load(uniforms + run) + slot) / n * whole
    # The number of shares that end at or before the point, by bisection.
    below = slot * 0
    for step in tl.static_range(STEPS):
        middle = below + (BLOCK >> (step + 1))
        below = tl.where(tl.gather(cdf, middle - 1, axis=0) <= point, middle, below)
    last = tl.max(tl.where(share > 0, slot, 0), axis=0)
    ancestor = tl.where(dead, slot, tl.minimum(below, last))
    tl.store(ancestors + at, ancestor.to(tl.int64), mask=exists)


@triton.jit
def _take_kernel(tables, lengths, ancestors, new_tables, new_lengths, pages, BLOCK: tl.constexpr):
    """One block of one new row's page table."""
    row = tl.program_id(0).to(tl.int64)
    ancestor = tl.load(ancestors + row)
    page = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = page < pages
    held = tl.load(tables + ancestor * pages + page, mask=exists, other=0)
    tl.store(new_tables + row * pages + page, held, mask=exists)
    if tl.program_id(1) == 0:
        tl.store(new_lengths + row, tl.load(lengths + ancestor))
