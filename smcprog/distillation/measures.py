"""How far a draft is from its target: what it is trained on, and what is reported.

With w = p/q for a token drawn from the draft's distribution q, E_q[w] = 1 and E_q[w^2] = 1 + chi2.
The effective sample size (sum w)^2 / sum w^2 of N particles that took one such step tends to the
share 1 / (1 + chi2) of N (Kong 1992; Agapiou et al. 2017, "Importance Sampling: Intrinsic
Dimension and Computational Cost", arXiv:1511.06196). Rejection accepts with probability
1 - TV = sum_v min(p_v, q_v) (Leviathan et al. 2023, arXiv:2211.17192).
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from smcprog.distillation.texts import Texts, final_states, target_states

Divergence = Literal["kl", "chi2"]
Loss = Callable[[Tensor, Tensor], Tensor]

BLOCK = 4
_CUTS = (1 / 3, 2 / 3)
_DRAWS = 16
_TEXTS_AT_ONCE = 4
_LARGEST_LOG_RATIO = 10.0
_LOGITS_AT_ONCE = 1 << 23


@dataclass(frozen=True)
class Fit:
    """How well a draft fits, on held-out text of the target's.

    Attributes:
        overlap: 1 - TV = sum_v min(p_v, q_v), averaged over positions: the share of drafted tokens
            that rejection would accept.
        kl: KL(p || q) in nats, averaged over positions.
        ess_token: 1 / (1 + chi2(p || q)) averaged over positions: the share of the particles that
            one drafted token leaves effective, for many particles.
        ess_block: the same share after a block of K = 4 drafted tokens, see `block_ess`.
    """

    overlap: float
    kl: float
    ess_token: float
    ess_block: float


def kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q) of each row, nats: [n, V] twice to [n]."""
    return F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)


def log_chi2(log_p: Tensor, log_q: Tensor) -> Tensor:
    """log(1 + chi2(p || q)) = log sum_v p_v^2 / q_v of each row: [n, V] twice to [n].

    Its exponential is one over the expected share of effective particles (see the module), so this
    is what a block of SMC-SD loses. The gradient on the draft's logits is q - r with
    r_v proportional to p_v * p_v / q_v: that of a cross-entropy, bounded however bad the draft is,
    but towards an r that one token of negligible p can fill. So the ratio p_v / q_v counts for at
    most e^10, without a loss of the token's gradient.
    """
    ratio = log_p - log_q
    excess = (ratio - _LARGEST_LOG_RATIO).clamp(min=0.0).detach()
    return torch.logsumexp(log_p + ratio - excess, dim=-1)


LOSSES: dict[Divergence, Loss] = {"kl": kl, "chi2": log_chi2}


def backward(target: Any, draft: Any, texts: Texts, loss: Loss) -> Tensor:
    """Add the gradient of the mean loss over the drawn tokens; returns that mean, detached.

    Logits exist for a few positions at a time, forwards and backwards, so that a large vocabulary
    needs no more memory than a small one.
    """
    wanted = target_states(target, texts).flatten(0, 1)
    states = final_states(draft, texts).flatten(0, 1)
    leaf = states.detach().requires_grad_()
    total = torch.zeros((), device=leaf.device)
    for log_p, log_q in _distributions(target, draft, wanted, leaf):
        part = loss(log_p, log_q).sum() / len(leaf)
        torch.autograd.backward(part)
        total += part.detach()
    torch.autograd.backward(states, leaf.grad)
    return total


@torch.inference_mode()
def token_fit(target: Any, draft: Any, texts: Texts) -> tuple[float, float, float]:
    """`overlap`, `kl` and `ess_token` of a `Fit`, by exact sums over the vocabulary."""
    parts = []
    for some in _few(texts, target.device):
        wanted = target_states(target, some).flatten(0, 1)
        states = final_states(draft, some).flatten(0, 1)
        for log_p, log_q in _distributions(target, draft, wanted, states):
            overlap = torch.minimum(log_p, log_q).exp().sum(-1)
            ess = torch.logsumexp(2 * log_p - log_q, dim=-1).neg().exp()
            parts.append(torch.stack([overlap, kl(log_p, log_q), ess]))
    overlap, divergence, ess = torch.cat(parts, dim=1).double().mean(1).tolist()
    return overlap, divergence, ess


def block_ess(target: Any, draft: Any, texts: Texts, seed: int) -> float:
    """The expected share of effective particles after a block of K = 4 drafted tokens.

    From each held-out context (each text, cut after a third and after two thirds) M = 16 blocks x
    are drawn from the draft, with weights w = p(x) / q(x). The estimate of (E_q[w])^2 / E_q[w^2] in
    a context is (sum w)^2 / (M sum w^2); the mean over contexts is returned. It is what a
    population of 16 in one context sees, and never below 1/16: like every such estimate it is too
    high where the draft is so bad that 16 draws miss the weights' tail.
    """
    with torch.random.fork_rng(devices=[target.device] if target.device.type == "cuda" else []):
        torch.manual_seed(seed)
        shares = []
        for cut in _CUTS:
            end = texts.ids.shape[1] - texts.drawn + int(cut * texts.drawn)
            context = Texts(texts.ids[:, :end], texts.mask[:, :end], 0, None)
            parts = [_block_log_weights(target, draft, c) for c in _few(context, target.device)]
            log_w = torch.cat(parts)
            log_ess = 2 * torch.logsumexp(log_w, -1) - torch.logsumexp(2 * log_w, -1)
            shares.append(log_ess.exp() / _DRAWS)
    return float(torch.stack(shares).mean())


def measure(target: Any, draft: Any, texts: Texts, seed: int) -> Fit:
    """All that a `Fit` says."""
    return Fit(*token_fit(target, draft, texts), block_ess(target, draft, texts, seed))


@torch.inference_mode()
def step_ratio(target: Any, draft: Any, texts: Texts, repeats: int = 9) -> float:
    """What one token costs the draft, as a share of the target's: batch 1, cached context."""
    context = texts[:1].to(target.device)
    runs = [_Cached(model, context, 1) for model in (draft, target)]
    token = context.ids[:, -1:]
    seconds: list[list[float]] = [[], []]
    for _ in range(repeats):
        for run, times in zip(runs, seconds, strict=True):
            begin = time.perf_counter()
            float(run.next(token)[0, 0, 0])  # waits for the device
            times.append(time.perf_counter() - begin)
    return median(ours / theirs for ours, theirs in zip(*seconds, strict=True))


def _few(texts: Texts, device: torch.device) -> Iterator[Texts]:
    """A few texts at a time, on a device."""
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        yield texts[first : first + _TEXTS_AT_ONCE].to(device)


@torch.inference_mode()
def _block_log_weights(target: Any, draft: Any, contexts: Texts) -> Tensor:
    """log p(x) - log q(x) of M blocks drawn from the draft after each of n contexts: [n, M]."""
    proposing = _Cached(draft, contexts, _DRAWS)
    logits, tokens, log_q = proposing.first, [], torch.zeros(())
    for place in range(BLOCK):
        table = logits[:, -1].float().log_softmax(-1)
        tokens.append(torch.multinomial(table.exp(), 1))
        log_q = log_q + table.gather(1, tokens[-1])[:, 0].double()
        if place < BLOCK - 1:
            logits = proposing.next(tokens[-1])
    block = torch.cat(tokens, dim=1)
    scoring = _Cached(target, contexts, _DRAWS)
    table = torch.cat([scoring.first, scoring.next(block[:, :-1])], dim=1).float().log_softmax(-1)
    log_p = table.gather(2, block[..., None])[..., 0].double().sum(1)
    return (log_p - log_q).view(len(contexts), _DRAWS)


class _Cached:
    """A model after n contexts, each ``copies`` times: the cache, and the logits ``first``
    [n * copies, 1, V] there."""

    def __init__(self, model: Any, contexts: Texts, copies: int) -> None:
        self._model = model
        self._mask = contexts.mask
        self._cache: Any = None
        names = inspect.signature(model.forward).parameters
        self._name = "cache" if "cache" in names else "past_key_values"
        output = self._run(contexts.ids, contexts.mask, logits_to_keep=1)
        self._cache = getattr(output, self._name)
        self._cache.batch_repeat_interleave(copies)
        self._mask = self._mask.repeat_interleave(copies, dim=0)
        self.first: Tensor = output.logits.repeat_interleave(copies, dim=0)

    def next(self, tokens: Tensor) -> Tensor:
        """Logits [n * copies, k, V] after each of k more tokens [n * copies, k]."""
        self._mask = torch.cat([self._mask, torch.ones_like(tokens, dtype=torch.bool)], dim=1)
        logits: Tensor = self._run(tokens, self._mask).logits
        return logits

    def _run(self, tokens: Tensor, mask: Tensor, **kwargs: Any) -> Any:
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        kwargs[self._name] = self._cache
        return self._model(
            input_ids=tokens,
            attention_mask=mask.long(),
            position_ids=positions,
            use_cache=True,
            **kwargs,
        )


def _distributions(
    target: Any, draft: Any, wanted: Tensor, states: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """log p and log q [m, V], m positions at a time, from hidden states [n, H]."""
    heads = target.get_output_embeddings(), draft.get_output_embeddings()
    size = max(1, _LOGITS_AT_ONCE // heads[0].weight.shape[0])
    for theirs, ours in zip(wanted.split(size), states.split(size), strict=True):
        with torch.no_grad():
            log_p = heads[0](theirs).float().log_softmax(-1)
        yield log_p, heads[1](ours).float().log_softmax(-1)
