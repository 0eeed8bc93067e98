"""Plots of a posterior by matplotlib, readable on light and on dark pages.

Each takes the axes to draw on, or makes a figure of its own, and returns the axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from smcprog.notebook.html import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from smcprog.inference.posterior import Posterior

GREY = "#808080"
"""Reads on white (contrast 3.9) and on JupyterLab's dark grey (4.6)."""

COLOURS = (
    *("#4285d6", "#e07b39", "#2fa56b", "#c95d9c", "#a58a1f"),
    *("#8573dd", "#d65a5a", "#22a2b5", "#7f9a3c", "#b0763f"),
)
"""Of roots, in turn; and of phases."""

PHASES = ("draft", "score", "host", "resample")
"""The phases of a round in their order; others come after them."""

LABEL = 40
"""The most characters of a value's label."""

NO_ROUNDS = "no rounds: the program drew no text"
DEAD = "every particle died: there is no posterior"

Point = tuple[float, float]


# Axes


def pyplot() -> Any:
    """The module ``matplotlib.pyplot``.

    Raises:
        ImportError: where it cannot be imported; it says how to install it.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            f'matplotlib cannot be imported ({error}): pip install "smcprog[notebook]"'
        ) from error
    return plt


def prepared(ax: Axes | None, height: float = 2.8) -> Axes:
    """Axes in grey on a transparent ground; a new figure where there are none."""
    plt = pyplot()
    if ax is None:
        figure, ax = plt.subplots(figsize=(7, height), layout="constrained")
        figure.patch.set_alpha(0.0)
        ax.patch.set_alpha(0.0)
    assert ax is not None
    ax.tick_params(colors=GREY, which="both")
    for part in (ax.xaxis.label, ax.yaxis.label, ax.title):
        part.set_color(GREY)
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)
    return ax


def whole_numbers(*axes: Any) -> None:
    """Ticks at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    for axis in axes:
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def say(ax: Axes, message: str) -> Axes:
    """Write why there is nothing to draw."""
    ax.text(0.5, 0.5, message, color=GREY, ha="center", va="center", transform=ax.transAxes)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    return ax


def legend(ax: Axes, columns: int) -> None:
    """A legend above the axes, where it covers nothing."""
    ax.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=columns,
        frameon=False,
        labelcolor=GREY,
        fontsize="small",
    )


# The genealogy


@dataclass(frozen=True)
class Step:
    """The slots between two numbers of tokens: ``parents[i]`` is the slot that slot i comes from at
    the beginning, and ``roots[i]`` its root."""

    begin: float
    end: float
    parents: tuple[int, ...]
    roots: tuple[int, ...]


def steps(posterior: Posterior) -> list[Step]:
    """The genealogy, a step for each round that draws tokens. What is resampled at one place (where
    a `sync` opens, which draws none) is one set of parents, and at the end a step of its own."""
    slots = tuple(range(slots_of(posterior)))
    found: list[Step] = []
    parents, roots, x = slots, slots, 0.0
    for record in posterior.rounds:
        width = max(map(len, record.tokens), default=0)
        if width:
            found.append(Step(x, x + width, parents, roots))
            x, parents = x + width, slots
        parents = tuple(parents[ancestor] for ancestor in record.ancestors)
        roots = tuple(roots[ancestor] for ancestor in record.ancestors)
    if parents != slots or not found:
        found.append(Step(x, x + max(1.0, 0.05 * x), parents, roots))
    return found


def slots_of(posterior: Posterior) -> int:
    """N, also of a population that died."""
    return len(posterior.rounds[0].ancestors) if posterior.rounds else len(posterior)


def lasting(posterior: Posterior, found: Sequence[Step]) -> list[set[int]]:
    """For each step the slots that have descendants of positive weight."""
    weights = posterior.log_weights
    alive = {slot for slot, log_weight in enumerate(weights) if log_weight > -np.inf}
    kept: list[set[int]] = []
    for step in reversed(found):
        kept.append(alive)
        alive = {step.parents[slot] for slot in alive}
    return kept[::-1]


def branches(
    found: Sequence[Step], kept: Sequence[set[int]]
) -> Iterator[tuple[list[Point], int, bool]]:
    """Each branch: its line, its root, and whether it lasts."""
    for step, alive in zip(found, kept, strict=True):
        bend = step.begin + 0.5 * (step.end - step.begin)
        for slot, (parent, root) in enumerate(zip(step.parents, step.roots, strict=True)):
            line: list[Point] = [(step.begin, parent), (bend, slot), (step.end, slot)]
            yield line, root, slot in alive


def plot_genealogy(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """See `Posterior.plot_genealogy`."""
    n = slots_of(posterior)
    ax = prepared(ax, height=min(2.0 + 0.09 * n, 6.0))
    if n == 0:
        return say(ax, DEAD)
    found = steps(posterior)
    kept = lasting(posterior, found)
    survivors = sorted({found[-1].roots[slot] for slot in kept[-1]})
    colours = {root: COLOURS[i % len(COLOURS)] for i, root in enumerate(survivors)}
    drawn = list(branches(found, kept))
    width, fade = 0.4 + 24 / (n + 10), 0.4 * min(1.0, (600 / len(drawn)) ** 0.5)
    for lasts, opacity in ((False, fade), (True, 1.0)):
        chosen = [(line, colours.get(root, GREY)) for line, root, alive in drawn if alive == lasts]
        add_lines(ax, chosen, "lasting" if lasts else "died out", width, opacity)
    resampled = resampled_at(posterior)
    faint = 0.6 if len(resampled) <= 50 else 0.2
    for x in resampled:
        ax.axvline(x, color=GREY, linewidth=0.8, linestyle=":", alpha=faint, zorder=0)
    if not survivors:
        ax.set_title(DEAD, fontsize="medium")
    ax.set_xlim(0, found[-1].end)
    ax.set_ylim(n - 0.5, -0.5)
    ax.set_xlabel("tokens drawn" + (" (dotted: resampled)" if resampled else ""))
    ax.set_ylabel("particle")
    whole_numbers(ax.xaxis, ax.yaxis)
    return ax


def add_lines(
    ax: Axes, lines: Sequence[tuple[list[Point], str]], name: str, width: float, opacity: float
) -> None:
    """Draw lines of a colour each."""
    from matplotlib.collections import LineCollection

    ax.add_collection(
        LineCollection(
            [line for line, _ in lines],
            colors=[colour for _, colour in lines],
            linewidths=width,
            alpha=opacity,
            label=name,
            capstyle="round",
        )
    )


def resampled_at(posterior: Posterior) -> list[float]:
    """The numbers of tokens after which the population was resampled."""
    widths = [max(map(len, record.tokens), default=0) for record in posterior.rounds]
    ends = accumulate(widths)
    return [float(x) for x, record in zip(ends, posterior.rounds, strict=True) if record.resampled]


# Rounds


def plot_ess(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """See `Posterior.plot_ess`."""
    ax = prepared(ax)
    ax.set_xlabel("round")
    ax.set_ylabel("ESS")
    if not posterior.rounds:
        return say(ax, NO_ROUNDS)
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
    ax = prepared(ax)
    ax.set_xlabel("round")
    ax.set_ylabel("seconds")
    if not posterior.rounds:
        return say(ax, NO_ROUNDS)
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
    ax = prepared(ax)
    if not posterior.values:
        return say(ax, DEAD)
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
    if top < 1:
        raise ValueError(f"top={top}: at least one value")
    if not posterior.values:
        return say(prepared(ax), DEAD)
    marginal = posterior.marginal(key)
    masses = list(marginal.values())
    others = len(masses) - top
    ax = prepared(ax, height=0.9 + 0.3 * min(len(masses), top + 1))
    labels = [label(value) for value in list(marginal)[:top]]
    bars, colours = masses[:top], [COLOURS[0]] * len(labels)
    if others > 0:
        labels.append(f"{others} other" + ("s" if others > 1 else ""))
        bars.append(sum(masses[top:]))
        colours.append(GREY)
    drawn = ax.barh(range(len(bars)), bars, height=0.75, color=colours)
    ax.bar_label(drawn, [percent(mass) for mass in bars], padding=3, color=GREY, fontsize="small")
    ax.set_yticks(range(len(bars)), labels, parse_math=False)
    ax.set_ylim(len(bars) - 0.5, -0.5)
    ax.margins(x=0.12)
    ax.set_xlabel("probability")
    return ax


def label(value: Any) -> str:
    """A value on one short line, in characters that the font has; others stand by their escapes."""
    text = str(value)
    shown = ""
    for part in with_glyphs(text if text.strip() else repr(text)):
        if len(shown) + len(part) >= LABEL:
            return f"{shown}…"
        shown += part
    return shown


def with_glyphs(text: str) -> Iterator[str]:
    """The characters of a text, or escapes for what the present font cannot show."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    families = FontProperties().get_family()
    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in families]
    for character in text:
        known = any(font.get_char_index(ord(character)) for font in fonts)
        shown = known and character.isprintable()
        yield character if shown else character.encode("unicode_escape").decode()
