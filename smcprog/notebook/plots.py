"""Plots of a posterior by matplotlib: its rounds, and the final population.

Each takes the axes to draw on, or makes a figure of its own, and returns the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smcprog.notebook.axes import (
    COLOURS,
    DEAD,
    GREY,
    NO_ROUNDS,
    families,
    legend,
    nothing,
    prepared,
    pyplot,
    whole_numbers,
    with_glyphs,
)
from smcprog.notebook.genealogy import slots_of
from smcprog.notebook.html import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from smcprog.inference.posterior import Posterior

PHASES = ("draft", "score", "host", "resample")
"""The phases of a round in their order; others come after them."""

LABEL = 40
"""The most characters of a value's label."""


# Rounds


def plot_ess(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """See `Posterior.plot_ess`."""
    if not posterior.rounds:
        return nothing(ax, NO_ROUNDS)
    ax = prepared(ax)
    ax.set_xlabel("round")
    ax.set_ylabel("ESS")
    n = slots_of(posterior)
    numbers = [record.round for record in posterior.rounds]
    values = [record.ess for record in posterior.rounds]
    marker = "o" if len(numbers) <= 60 else ""
    ax.axhline(n, color=GREY, linewidth=1, linestyle="--", label=f"N = {n}")
    ax.plot(numbers, values, color=COLOURS[0], marker=marker, markersize=3.5, linewidth=1.4)
    resampled = [(r.round, r.ess) for r in posterior.rounds if r.resampled]
    if resampled:
        size = 7 if len(numbers) <= 60 else 4
        ax.plot(
            *zip(*resampled, strict=True),
            linestyle="",
            marker="v",
            markersize=size,
            color=COLOURS[1],
            label="resampled",
        )
    ax.set_ylim(0, 1.08 * n)
    legend(ax, 2)
    whole_numbers(ax.xaxis)
    return ax


def plot_timing(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """See `Posterior.plot_timing`."""
    if not posterior.rounds:
        return nothing(ax, NO_ROUNDS)
    ax = prepared(ax)
    ax.set_xlabel("round")
    ax.set_ylabel("seconds")
    had = dict.fromkeys(phase for record in posterior.rounds for phase in record.seconds)
    phases = [phase for phase in dict.fromkeys([*PHASES, *had]) if phase in had]
    numbers = [record.round for record in posterior.rounds]
    width = 0.85 if len(numbers) <= 64 else 1.0
    below = np.zeros(len(numbers))
    for phase, colour in zip(phases, COLOURS, strict=False):
        seconds = np.array([record.seconds.get(phase, 0.0) for record in posterior.rounds])
        ax.bar(numbers, seconds, width, bottom=below, color=colour, label=phase)
        below += seconds
    legend(ax, len(phases))
    whole_numbers(ax.xaxis)
    return ax


# The final population


def plot_weights(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """See `Posterior.plot_weights`."""
    if not posterior.values:
        return nothing(ax, DEAD)
    ax = prepared(ax)
    weights = np.sort(posterior.weights)[::-1]
    n = len(weights)
    ax.bar(range(1, n + 1), weights, width=0.85 if n <= 64 else 1.0, color=COLOURS[0])
    ax.axhline(1 / n, color=GREY, linewidth=1, linestyle="--", label="equal weights", zorder=3)
    ax.set_xlim(0.4, n + 0.6)
    ax.set_xlabel("particle, by weight")
    ax.set_ylabel("weight")
    legend(ax, 1)
    whole_numbers(ax.xaxis)
    return ax


def plot_marginal(
    posterior: Posterior, key: Any = None, top: int = 12, ax: Axes | None = None
) -> Axes:
    """See `Posterior.plot_marginal`."""
    pyplot()
    if top < 1:
        raise ValueError(f"top={top}: at least one value")
    if not posterior.values:
        return nothing(ax, DEAD)
    pooled = posterior.pooled(key)
    masses = [mass for _, mass in pooled]
    others = len(pooled) - top
    texts = [written(value) for value, _ in pooled[:top]]
    fonts = families(texts)
    labels = [label(text, fonts) for text in texts]
    ax = prepared(ax, height=0.9 + 0.3 * min(len(pooled), top + 1))
    bars, colours = masses[:top], [COLOURS[0]] * len(labels)
    if others > 0:
        labels.append(f"{others} other" + ("s" if others > 1 else ""))
        bars.append(sum(masses[top:]))
        colours.append(GREY)
    drawn = ax.barh(range(len(bars)), bars, height=0.75, color=colours)
    ax.bar_label(drawn, [percent(mass) for mass in bars], padding=3, color=GREY, fontsize="small")
    ax.set_yticks(range(len(bars)), labels, parse_math=False, fontfamily=fonts)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    ax.margins(x=0.12)
    ax.set_xlabel("probability")
    return ax


def written(value: Any) -> str:
    """A value as one text: of a dict its values, and what one could not see by its repr."""
    text = ", ".join(map(str, value.values())) if isinstance(value, dict) else str(value)
    return text if text.strip() else repr(text)


def label(text: str, fonts: Sequence[str]) -> str:
    """A text on one short line, in characters that the fonts have; others stand by escapes."""
    shown = ""
    for part in with_glyphs(text, fonts):
        if len(shown) + len(part) >= LABEL:
            return f"{shown}…"
        shown += part
    return shown
