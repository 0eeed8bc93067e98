"""Runs that are watched, ended early, or die; plots; engines."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_type

from smcprog import (
    DeadPopulationError,
    Engine,
    Posterior,
    Progress,
    Roofline,
    SmcprogError,
    TabularEngine,
    condition,
    gen,
    prompt,
    smc_program,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@smc_program
def story(name: str) -> str:
    """Some text."""
    prompt(f"Once {name}")
    return gen(stop=".", max_tokens=24)


@smc_program
def word() -> str:
    """Some letters."""
    return gen(max_tokens=4)


@smc_program
def doomed() -> None:
    """Dies."""
    condition(False)


def first_rounds(progress: Progress) -> bool:
    """False ends the run."""
    assert_type(progress.record.ess, float)
    print(progress.run, progress.text, progress.log_evidence)
    return progress.record.round < 2


def plot(posterior: Posterior[str]) -> list["Axes"]:
    """Each draws on the axes that it is given."""
    ax = posterior.plot_genealogy()
    return [
        posterior.plot_ess(ax=ax),
        posterior.plot_weights(ax),
        posterior.plot_marginal(len, top=3, ax=ax),
        posterior.plot_timing(ax),
    ]


def cost(engine: Engine) -> float:
    """What rounds cost here."""
    costs = engine.roofline(context=16)
    assert_type(costs, Roofline)
    return costs.speedup(particles=4, block=4)


def table(context: tuple[int, ...]) -> list[float]:
    """A model that is a table."""
    return [0.5, 0.25, 0.25]


def load(target: str, draft: str | None) -> Engine:
    """Models of one's own."""
    return Engine(target, draft, device="cpu", dtype="float32", kv_tokens=4096)


def main(engine: Engine, folder: Path) -> None:
    """Every way that a run can go."""
    seen: list[int] = []
    stopped = engine.run(story("Ada"), particles=4, seed=0, on_round=first_rounds)
    assert_type(stopped, Posterior[str])
    engine.run(story("Ada"), on_round=lambda progress: seen.append(progress.record.live))
    try:
        engine.run(doomed(), particles=2, progress=False)
    except DeadPopulationError as error:
        assert_type(error.posteriors, list[Any])
    except SmcprogError as error:
        print(error)
    dead = engine.run(doomed(), on_dead="return", verify="reject", ess_threshold=1.0)
    assert_type(dead, Posterior[None])
    small = TabularEngine(["a", "b"], table)
    letters = small.run(word(), block=0, resampling="stratified", max_tokens=64, seed=0)
    assert_type(letters.best, str)
