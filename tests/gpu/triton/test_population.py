"""Weights and ancestors of the kernels against their twins and the host's NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from smcprog.inference.resampling import systematic
from smcprog.inference.weights import effective_sample_size, log_evidence, normalised

population = pytest.importorskip("smcprog.gpu.triton.population")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's log of 0
NEVER = float("-inf")
BOTH = [population.reweight, population.reweight_twin]


def populations(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Four runs: all alive, dead before, killed by their increments, all dead."""
    generator = torch.Generator().manual_seed(n)
    log_weights = 3 * torch.randn(4, n, generator=generator, dtype=torch.float64) - 700
    increments = torch.randn(4, n, generator=generator, dtype=torch.float64)
    log_weights[1, 1::3] = NEVER
    increments[2, : n // 2] = NEVER
    log_weights[3] = NEVER
    return log_weights, increments, torch.rand(4, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 7, 64, 100, 1000])
@pytest.mark.parametrize("reweight", BOTH)
def test_summaries_and_ancestors_are_those_of_the_host(device, reweight, n):
    given = populations(n)
    result = reweight(*(x.to(device) for x in given))
    log_weights = (given[0] + given[1]).numpy()
    np.testing.assert_array_equal(result.log_weights.cpu().numpy(), log_weights)
    for i in range(3):
        assert result.ess[i].item() == pytest.approx(effective_sample_size(log_weights[i]), 1e-12)
        assert result.log_mean[i].item() == pytest.approx(log_evidence(log_weights[i]), 1e-14)
        uniform = given[2][i].item()
        expected = systematic(normalised(log_weights[i]), lambda _, u=uniform: u)
        assert result.ancestors[i].tolist() == expected.tolist()
    assert result.ess[3] == 0 and result.log_mean[3] == NEVER
    assert result.ancestors[3].tolist() == list(range(n))


@pytest.mark.parametrize("reweight", BOTH)
@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_the_dead_are_never_ancestors(device, reweight, uniform):
    """At the ends of the unit interval, with dead particles at both ends and between."""
    log_weights = torch.full((1, 37), NEVER, dtype=torch.float64, device=device)
    log_weights[0, 3:-4:2] = torch.linspace(-1, 1, 15, device=device).double()
    u = torch.tensor([uniform], dtype=torch.float64, device=device)
    ancestors = reweight(log_weights, torch.zeros_like(log_weights), u).ancestors[0]
    assert torch.isfinite(log_weights[0, ancestors]).all()
    assert (ancestors.diff() >= 0).all()


@pytest.mark.parametrize("reweight", BOTH)
def test_nan_and_infinite_weights_are_seen(device, reweight):
    log_weights = torch.zeros((2, 5), dtype=torch.float64, device=device)
    log_weights[0, 1], log_weights[1, 1] = float("nan"), float("inf")
    result = reweight(log_weights, torch.zeros_like(log_weights), log_weights[:, 0].clone())
    assert result.log_mean.isnan().all() and result.ess.isnan().all()


def test_no_runs_and_too_many_particles(device):
    for reweight in BOTH:
        nothing = torch.zeros((0, 4), dtype=torch.float64, device=device)
        assert [len(x) for x in reweight(nothing, nothing, nothing[:, 0])] == [0, 0, 0, 0]
    many = torch.zeros((1, 8193), dtype=torch.float64, device=device)
    with pytest.raises(ValueError, match="up to 8192"):
        population.reweight(many, many, many[:, 0])


@pytest.mark.parametrize("pages", [0, 5, 1100])
def test_page_tables_follow_the_ancestors(device, pages):
    tables = torch.arange(4 * pages, dtype=torch.int32, device=device).reshape(4, pages)
    lengths = torch.tensor([3, 0, 80, 17], dtype=torch.int32, device=device)
    for rows in ([0, 0, 2, 3, 3], [1], []):
        ancestors = torch.tensor(rows, dtype=torch.int64, device=device)
        for take in (population.take_ancestors, population.take_ancestors_twin):
            new_tables, new_lengths = take(tables, lengths, ancestors)
            assert new_tables.dtype == new_lengths.dtype == torch.int32
            assert new_tables.tolist() == [tables[i].tolist() for i in rows]
            assert new_lengths.tolist() == [lengths[i].item() for i in rows]
