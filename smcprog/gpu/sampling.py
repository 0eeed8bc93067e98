"""From logits to events: log-probabilities, collapsed stop events, draws.

The events of a step are columns: token ids 0 .. V - 1, EOS at V, LEAVE at V + 1. Everything is
computed in float32 whatever the model's dtype (float64 for a float64 model), on the same logits for
drawing and for weighting. A draw is by inverse CDF in float64, or, for drafts on CUDA, by an
exponential race (`smcprog.gpu.triton.sampling`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from smcprog.errors import NaNLogitsError
from smcprog.gpu.draws import Draws
from smcprog.inference.interface import EventSpace
from smcprog.inference.weights import zero_under_negative
from smcprog.potentials.base import LM
from smcprog.vocabulary import Bits, Vocabulary


def checked(logits: Tensor, model: str) -> Tensor:
    """Logits in float32 (or float64): [n, V] to [n, V].

    Raises:
        NaNLogitsError: if a row holds NaN or +inf, or nothing but -inf.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    peak = wide.amax(-1)  # amax propagates NaN
    bad = int((~torch.isfinite(peak)).sum())
    if bad:
        raise nan_logits(model, bad, len(logits))
    return wide


def nan_logits(model: str, bad: int, rows: int) -> NaNLogitsError:
    """The error for logits that are no numbers."""
    return NaNLogitsError(
        f"the {model} model returned NaN or infinite logits in {bad} of {rows} rows; if it runs "
        "in float16, try bfloat16 or float32"
    )


def fit_width(logits: Tensor, size: int) -> Tensor:
    """The draft's logits over the target's columns: [n, any] to [n, size].

    Models of one family pad their embeddings differently. Columns that the draft lacks get -inf;
    columns that the target lacks are dropped *before* the softmax, so the draft is by definition
    normalised over the target's columns.
    """
    missing = size - logits.shape[-1]
    return pad(logits, (0, missing), value=float("-inf")) if missing else logits


def variant(logits: Tensor, lm: LM) -> Tensor:
    """log p_i [n, V] of a factor's locally normalised variant: temperature, top_k, then top_p.

    Ties are broken by the lower id; the nucleus is the smallest set of mass >= top_p.
    """
    log_p = torch.log_softmax(_divided(logits, lm.temperature), dim=-1)
    if lm.top_k is None and lm.top_p == 1.0:
        return log_p
    ranked, order = torch.sort(log_p, dim=-1, descending=True, stable=True)
    if lm.top_k is not None:
        ranked, order = ranked[:, : lm.top_k], order[:, : lm.top_k]
    p = torch.softmax(ranked.double(), dim=-1)
    ranked = ranked.masked_fill(p.cumsum(-1) - p >= lm.top_p, float("-inf"))
    kept = torch.full_like(log_p, float("-inf"))
    return kept.scatter_(1, order, torch.log_softmax(ranked, dim=-1))


def token_log_p(logits: Tensor, lm: LM, rows: Tensor, tokens: Tensor) -> Tensor:
    """log p_i of single tokens: ``logits`` [n, V], int64[m] rows of it and token ids, to [m]."""
    if lm.top_k is not None or lm.top_p != 1.0:
        return variant(logits, lm)[rows, tokens]
    tempered = _divided(logits, lm.temperature)
    return tempered[rows, tokens] - torch.logsumexp(tempered, dim=-1)[rows]


def _divided(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1.0 else logits / temperature


class EventTable:
    """Collapses log weights of tokens to those of events, on one device."""

    def __init__(self, vocabulary: Vocabulary, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._eos = torch.tensor(vocabulary.eos_ids, dtype=torch.int64, device=device)
        self._is_eos = torch.zeros(vocabulary.size, dtype=torch.bool, device=device)
        self._is_eos[self._eos] = True
        octets = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        self._eight_bools = torch.from_numpy(octets.view(np.int64)[:, 0]).to(device)
        self._ordinary = self._unpack([vocabulary.ordinary])

    def collapse(self, log_w: Tensor, spaces: Sequence[EventSpace]) -> Tensor:
        """log weights of events: [n, V] and n spaces to [n, V + 2], -inf for what is no event.

        EOS is the logsumexp over the EOS ids, LEAVE over all ids whose bit is not set, without the
        EOS ids where EOS is an event of its own; never 1 minus something.
        """
        rows, size = len(spaces), self._vocabulary.size
        allowed = self._allowed(spaces)
        never = log_w.new_tensor(float("-inf"))
        events = log_w.new_empty((rows, size + 2))
        torch.where(allowed, log_w, never, out=events[:, :size])
        events[:, size:] = never
        ending = [i for i, space in enumerate(spaces) if space.eos]
        if ending:
            chosen = self._index(ending, rows)
            events[chosen, size] = torch.logsumexp(log_w[chosen][:, self._eos], dim=-1)
        leaving = [i for i, space in enumerate(spaces) if space.leave]
        if leaving:
            chosen = self._index(leaving, rows)
            inside = allowed.expand(rows, -1)[chosen]
            eos = torch.tensor([spaces[i].eos for i in leaving], device=self._device)
            inside = inside | (eos[:, None] & self._is_eos)
            outside = log_w[chosen].masked_fill(inside, float("-inf"))
            events[chosen, size + 1] = torch.logsumexp(outside, dim=-1)
        return events

    def sample(
        self,
        logits: Tensor,
        spaces: Sequence[EventSpace],
        temperature: Tensor,
        power: Tensor,
        bits: Sequence[int],
        model: str,
    ) -> Draws:
        """Draw from q~(e) ~ q(e)^power by the Triton kernel, in one pass over logits [n, V].

        Raises:
            NaNLogitsError
        """
        from smcprog.gpu.triton import sampling as kernels

        words = np.stack(_masks(spaces)).view(np.int32)
        draws = kernels.sample(
            logits,
            torch.from_numpy(words).to(self._device),
            torch.tensor([space.eos for space in spaces], device=self._device),
            torch.tensor([space.leave for space in spaces], device=self._device),
            self._eos,
            temperature,
            power,
            torch.from_numpy(np.array(bits, dtype=np.uint64).view(np.int64)).to(self._device),
            torch.zeros(len(spaces), dtype=torch.int64, device=self._device),
        )
        if bad := int(torch.isnan(draws.log_total).sum()):
            raise nan_logits(model, bad, len(logits))
        return draws

    def _index(self, chosen: list[int], of: int) -> Tensor | slice:
        """An index of rows; a slice where it is all of them."""
        return slice(None) if len(chosen) == of else torch.tensor(chosen, device=self._device)

    def _allowed(self, spaces: Sequence[EventSpace]) -> Tensor:
        """The masks as bool[n, V], or bool[1, V] where all are one object."""
        masks = _masks(spaces)
        if len(masks) == 1 and masks[0] is self._vocabulary.ordinary:
            return self._ordinary
        return self._unpack(masks)

    def _unpack(self, masks: Sequence[Bits]) -> Tensor:
        octets = torch.from_numpy(np.stack(masks).view(np.uint8)).to(self._device)
        return self._eight_bools[octets.long()].view(torch.bool)[:, : self._vocabulary.size]


def _masks(spaces: Sequence[EventSpace]) -> list[Bits]:
    """The mask of each row, or one where all are one object."""
    masks = [space.mask for space in spaces]
    return masks[:1] if all(mask is masks[0] for mask in masks) else masks


def product_of_powers(tables: Sequence[Tensor], lms: Sequence[LM]) -> Tensor:
    """log prod_i p_i^alpha_i over events, unnormalised: tables [n, E] to [n, E].

    An event that some p_i with a positive exponent gives probability 0 has weight 0.

    Raises:
        WeightError: for another that some p_i with a negative exponent gives probability 0.
    """
    if len(lms) == 1:
        (table,), (lm,) = tables, lms
        return table if lm.alpha == 1.0 else table * lm.alpha
    powers = [table * lm.alpha for table, lm in zip(tables, lms, strict=True) if lm.alpha > 0]
    total = torch.stack(powers).sum(0)
    impossible = torch.isneginf(total)
    for table, lm in zip(tables, lms, strict=True):
        if lm.alpha < 0:
            if bool((torch.isneginf(table) & ~impossible).any()):
                raise zero_under_negative(lm)
            total = total + lm.alpha * table.masked_fill(impossible, 0.0)
    return total


def residual(log_pi: Tensor, log_q: Tensor) -> Tensor:
    """log (pi - q~)+ of events, -inf where it is 0: float64[E] each."""
    return (log_pi.exp() - log_q.exp()).clamp_(min=0.0).log_()


def most_probable(log_w: Tensor) -> Tensor:
    """log weights that leave the most probable event alone, the first of several: [n, E]."""
    best = log_w.argmax(-1, keepdim=True)
    return torch.full_like(log_w, float("-inf")).scatter_(1, best, log_w.gather(1, best))


def draw(log_w: Tensor, uniforms: Tensor) -> Draws:
    """Draw in proportion to exp(log_w), by inverse CDF: [n, E] and float64[n] in [0, 1).

    The event is the first whose cumulative sum exceeds u times the total, and never one beyond the
    last with mass.
    """
    peak = log_w.amax(-1, keepdim=True)
    peak = torch.where(torch.isneginf(peak), 0.0, peak)
    cdf = (log_w - peak).exp_().cumsum(-1, dtype=torch.float64)
    total = cdf[:, -1:].contiguous()
    beyond = torch.searchsorted(cdf, uniforms[:, None] * total, right=True)
    last = torch.searchsorted(cdf, total)
    events = torch.minimum(beyond, last)
    log_total = (total.log() + peak)[:, 0]
    return Draws(events[:, 0], log_w.gather(1, events)[:, 0] - log_total, log_total)
