"""Which particle descends from which: the plot of a posterior's genealogy."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from smcprog.notebook.axes import (
    COLOURS,
    DEAD,
    GREY,
    families,
    nothing,
    prepared,
    pyplot,
    whole_numbers,
    with_glyphs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from smcprog.inference.posterior import Posterior

Slots = NDArray[np.intp]

POINT = 1 / 72
"""Inches."""

TEXT_SIZE = 7.0
"""Points, of tokens along the branches."""

TEXT_WIDTH = 0.602 * TEXT_SIZE
"""Points, of a letter: the fonts' letters are all as wide as each other."""

MOST_TEXTS = 1000
"""Where slots times rounds are more, tokens are not written."""

WIDEST = 12.0
"""Inches, of a figure that makes room for tokens."""

SIGNS = str.maketrans({"\n": "⏎", "\t": "⇥", "\r": "␍"})


@dataclass(frozen=True)
class Step:
    """The slots between two numbers of tokens.

    ``parents[i]`` is the slot that slot i comes from at the beginning, ``roots[i]`` its root, and
    ``drawn[i]`` the tokens that it draws.
    """

    begin: float
    end: float
    parents: Slots
    roots: Slots
    drawn: Sequence[Sequence[int]]


def steps(posterior: Posterior) -> list[Step]:
    """The genealogy, a step for each round that draws tokens. What is resampled at one place (where
    a `sync` opens, which draws none) is one set of parents, and at the end a step of its own."""
    slots = np.arange(slots_of(posterior))
    found: list[Step] = []
    parents, roots, x = slots, slots, 0.0
    for record in posterior.rounds:
        width = max(map(len, record.tokens), default=0)
        if width:
            found.append(Step(x, x + width, parents, roots, record.tokens))
            x, parents = x + width, slots
        ancestors = np.array(record.ancestors)
        parents, roots = parents[ancestors], roots[ancestors]
    if not np.array_equal(parents, slots) or not found:
        found.append(Step(x, x + max(1.0, 0.05 * x), parents, roots, [()] * len(slots)))
    return found


def slots_of(posterior: Posterior) -> int:
    """N, also of a population that died."""
    return len(posterior.rounds[0].ancestors) if posterior.rounds else len(posterior)


def lasting(posterior: Posterior, found: Sequence[Step]) -> list[NDArray[np.bool_]]:
    """For each step and slot whether it has descendants of positive weight."""
    n = slots_of(posterior)
    alive = np.zeros(n, dtype=bool)
    alive[: len(posterior)] = posterior.log_weights > -np.inf
    kept: list[NDArray[np.bool_]] = []
    for step in reversed(found):
        kept.append(alive)
        before = np.zeros(n, dtype=bool)
        before[step.parents[alive]] = True
        alive = before
    return kept[::-1]


def plot_genealogy(posterior: Posterior, ax: Axes | None = None) -> Axes:
    """See `Posterior.plot_genealogy`."""
    pyplot()
    from matplotlib.colors import to_rgb

    n = slots_of(posterior)
    if n == 0:
        return nothing(ax, DEAD)
    found = steps(posterior)
    kept = np.array(lasting(posterior, found))
    texts = token_texts(posterior, found)
    width = max(7.0, min(WIDEST, 1.0 + longest(texts) * TEXT_WIDTH * POINT))
    ax = prepared(ax, min(2.0 + 0.09 * n, 6.0) if not texts else 1.2 + 0.2 * n, width)
    row = points(ax)[1] / n
    if row < TEXT_SIZE + 2.0:
        texts = []

    survivors = np.unique(found[-1].roots[kept[-1]])
    palette = np.array([to_rgb(GREY)] * n)
    for i, root in enumerate(survivors):
        palette[root] = to_rgb(COLOURS[i % len(COLOURS)])
    roots = np.array([step.roots for step in found])
    lines = branches(found, 0.25 if texts else 0.5)
    thick = max(0.4 + 24 / (n + 10), min(1.0, 0.8 * row))
    fade = 0.4 * min(1.0, (600 / kept.size) ** 0.5)
    for lasts, opacity in ((False, fade), (True, 1.0)):
        chosen = kept == lasts
        add_lines(ax, lines[chosen], palette[roots[chosen]], thick, opacity)
    resampled = resampled_at(posterior)
    faint = 0.6 if len(resampled) <= 50 else 0.2
    for x in resampled:
        ax.axvline(x, color=GREY, linewidth=0.8, linestyle=":", alpha=faint, zorder=0)
    if not len(survivors):
        ax.set_title(DEAD, fontsize="medium")
    ax.set_xlim(0, found[-1].end)
    ax.set_ylim(n - 0.5, -0.5 - 0.3 * bool(texts))
    ax.set_xlabel("tokens drawn" + (" (dotted: resampled)" if resampled else ""))
    ax.set_ylabel("particle")
    whole_numbers(ax.xaxis, ax.yaxis)
    if texts:
        write(ax, found, kept, texts, palette, (0.5 * thick + 0.5) / row)
    return ax


# Branches


def branches(found: Sequence[Step], bend: float) -> NDArray[np.float64]:
    """The line of each step and slot, [steps, n, 3 points, 2]: from its parent over to its own
    row, which it reaches after the share ``bend`` of the step, and on."""
    n = len(found[0].roots)
    lines = np.empty((len(found), n, 3, 2))
    begins = np.array([step.begin for step in found])
    ends = np.array([step.end for step in found])
    lines[:, :, :, 0] = np.stack([begins, begins + bend * (ends - begins), ends], 1)[:, None]
    lines[:, :, 0, 1] = [step.parents for step in found]
    lines[:, :, 1:, 1] = np.arange(n)[:, None]
    return lines


def add_lines(
    ax: Axes,
    lines: NDArray[np.float64],
    colours: NDArray[np.float64],
    width: float,
    opacity: float,
) -> None:
    """Draw lines of a colour each."""
    from matplotlib.collections import LineCollection

    cap = "round" if opacity == 1.0 else "butt"  # where faint ends overlap they would be dots
    ax.add_collection(
        LineCollection(list(lines), colors=colours, linewidths=width, alpha=opacity, capstyle=cap)
    )


def resampled_at(posterior: Posterior) -> list[float]:
    """The numbers of tokens after which the population was resampled."""
    widths = [max(map(len, record.tokens), default=0) for record in posterior.rounds]
    ends = accumulate(widths)
    return [float(x) for x, record in zip(ends, posterior.rounds, strict=True) if record.resampled]


# Tokens


def token_texts(posterior: Posterior, found: Sequence[Step]) -> list[list[str]]:
    """What each slot drew in each step, or nothing where there are too many, or their texts are
    not known."""
    n = slots_of(posterior)
    if not posterior.spellings or n * len(found) > MOST_TEXTS:
        return []
    spelled = posterior.spellings
    return [["".join(spelled.get(i, "") for i in ids) for ids in step.drawn] for step in found]


def letters(text: str) -> float:
    """How many letters wide a text is."""
    return sum(1.7 if unicodedata.east_asian_width(c) in "WF" else 1.0 for c in text)


def longest(texts: Sequence[Sequence[str]]) -> float:
    """Letters of the widest step, for each step, and one between two."""
    return sum(1.0 + max(map(letters, drawn)) for drawn in texts)


def points(ax: Axes) -> tuple[float, float]:
    """Width and height of axes, in points."""
    box = ax.get_window_extent()
    assert ax.figure is not None
    return box.width * 72 / ax.figure.dpi, box.height * 72 / ax.figure.dpi


def write(
    ax: Axes,
    found: Sequence[Step],
    kept: NDArray[np.bool_],
    texts: Sequence[Sequence[str]],
    palette: NDArray[np.float64],
    above: float,
) -> None:
    """Write tokens along the branches: those of a step from its beginning on, or from where the
    ones before end, as far as there is room before another branch takes over the row."""
    fonts = families([text.translate(SIGNS) for drawn in texts for text in drawn], "monospace")
    letter = TEXT_WIDTH * (found[-1].end - found[0].begin) / points(ax)[0]
    for slot, first, last in stretches(found, kept):
        colour = (*palette[found[first].roots[slot]], 1.0 if kept[first, slot] else 0.5)
        x = found[first].begin
        if found[first].parents[slot] != slot:
            x += 0.25 * (found[first].end - x)
        for step, drawn in zip(found[first : last + 1], texts[first : last + 1], strict=True):
            x = max(x, step.begin)
            shown = fitting(drawn[slot], (found[last].end - x) / letter, fonts)
            if shown:
                ax.text(
                    x,
                    slot - above,
                    shown,
                    color=colour,
                    fontsize=TEXT_SIZE,
                    fontfamily=fonts,
                    va="bottom",
                    clip_on=True,
                    parse_math=False,
                )
            x += letters(shown) * letter


def stretches(found: Sequence[Step], kept: NDArray[np.bool_]) -> Iterator[tuple[int, int, int]]:
    """Each slot with the first and the last step of one branch in its row."""
    for slot in range(kept.shape[1]):
        first = 0
        for i in range(1, len(found) + 1):
            ends = i == len(found)
            if ends or found[i].parents[slot] != slot or kept[i, slot] != kept[first, slot]:
                yield slot, first, i - 1
                first = i


def fitting(text: str, room: float, fonts: Sequence[str]) -> str:
    """As much of a text as there is room for, with its signs for line breaks."""
    shown = list(with_glyphs(text.translate(SIGNS), fonts))
    if letters("".join(shown)) <= room:
        return "".join(shown)
    while shown and letters("".join(shown)) + 1 > room:
        shown.pop()
    return "".join(shown) + "…" if len(shown) > 1 else ""
