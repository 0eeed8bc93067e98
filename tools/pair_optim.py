"""The optimiser of the shipped pair: Muon for matrices, AdamW for the rest, in float32.

Muon moves each weight matrix by its momentum's nearest semi-orthogonal matrix (Jordan et al.,
2024). ``torch.optim.Muon`` does the orthogonalisation in bfloat16, which many CPUs only emulate, so
the few lines are repeated here in float32 and batched over matrices of one shape.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Replace the singular values of a batch of matrices by values near one (Newton-Schulz)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    wide = matrices.size(-2) <= matrices.size(-1)
    x = matrices if wide else matrices.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT


class Muon:
    """Momentum with orthogonalised updates, for the two-dimensional weights of a network."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        self.params = params
        self.lr = lr
        self.momentum = momentum
        self.buffers = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def step(self, scale: float) -> None:
        """Update the parameters with learning rate ``lr * scale``."""
        groups: dict[torch.Size, list[int]] = defaultdict(list)
        for index, param in enumerate(self.params):
            groups[param.shape].append(index)
        for shape, members in groups.items():
            updates = orthogonalize(torch.stack([self._look_ahead(i) for i in members]))
            rate = self.lr * scale * max(1.0, shape[0] / shape[1]) ** 0.5
            for index, update in zip(members, updates, strict=True):
                self.params[index].add_(update, alpha=-rate)

    def _look_ahead(self, index: int) -> Tensor:
        grad = self.params[index].grad
        assert grad is not None
        buffer = self.buffers[index].lerp_(grad, 1 - self.momentum)
        return grad.lerp(buffer, self.momentum)


class PairOptimizer:
    """Muon on the layers' matrices, AdamW on the embedding and the norms."""

    def __init__(self, model: nn.Module, muon_lr: float = 0.02, adam_lr: float = 4e-3) -> None:
        named = list(model.named_parameters())
        matrices = [p for name, p in named if p.ndim == 2 and "embed" not in name]
        chosen = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in chosen]
        self.model = model
        self.adam_lr = adam_lr
        self.muon = Muon(matrices, muon_lr)
        self.adam = torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0)

    def step(self, scale: float) -> None:
        """Clip, update with learning rates times ``scale``, and clear the gradients."""
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.adam.param_groups:
            group["lr"] = self.adam_lr * scale
        self.muon.step(scale)
        self.adam.step()
        self.model.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed training needs."""
        return {"muon": self.muon.buffers, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        for buffer, saved in zip(self.muon.buffers, state["muon"], strict=True):
            buffer.copy_(saved)
        self.adam.load_state_dict(state["adam"])
