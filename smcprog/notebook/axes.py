"""Axes that are readable on light and on dark pages, and texts that their fonts can show."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY = "#808080"
"""Reads on white (contrast 3.9) and on JupyterLab's dark grey (4.6)."""

COLOURS = (
    *("#4285d6", "#e07b39", "#2fa56b", "#c95d9c", "#a58a1f"),
    *("#8573dd", "#d65a5a", "#22a2b5", "#7f9a3c", "#b0763f"),
)
"""Of roots, in turn; and of phases."""

NO_ROUNDS = "no rounds: the program drew no text"
DEAD = "every particle died: there is no posterior"

EAST_ASIAN = ("CJK", "Gothic", "Hei", "Song", "Ming", "PingFang", "Hiragino", "YaHei", "Meiryo")
"""What the names of fonts with Chinese characters, kana and hangul have in them, one of these."""

MANY_SCRIPTS = ("Arial Unicode MS", "Noto Sans Symbols2", "Segoe UI Symbol", "Unifont")
"""Fonts that have characters of many scripts."""


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


def prepared(ax: Axes | None, height: float = 2.8, width: float = 7.0) -> Axes:
    """Axes in grey on a transparent ground; a new figure where there are none."""
    plt = pyplot()
    if ax is None:
        figure, ax = plt.subplots(figsize=(width, height), layout="constrained")
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


def nothing(ax: Axes | None, message: str) -> Axes:
    """Axes that say why there is nothing to draw."""
    ax = prepared(ax, height=0.7)
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


# Texts


def families(texts: Sequence[str], family: str | None = None) -> list[str]:
    """The fonts for some texts: those of a family (None for the present one), and then one for each
    script that they lack."""
    from matplotlib.font_manager import FontProperties

    found = list(FontProperties(family=family).get_family())
    for character in sorted(set().union(*texts)):
        if not any(_has(own, character) for own in found):
            other = _other_family(character)
            if other is not None and other not in found:
                found.append(other)
    return found


def with_glyphs(text: str, fonts: Sequence[str]) -> Iterator[str]:
    """The characters of a text, or escapes for what no font can show."""
    for character in text:
        shown = character.isprintable() and any(_has(font, character) for font in fonts)
        yield character if shown else character.encode("unicode_escape").decode()


@cache
def _has(family: str, character: str) -> bool:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    try:
        path = findfont(FontProperties(family=[family]), fallback_to_default=False)
        return bool(get_font(path).get_char_index(ord(character)))
    except (ValueError, RuntimeError):  # no such font, or not one that matplotlib reads
        return False


@cache
def _other_family(character: str) -> str | None:
    """An installed font that has a character, of those that its script suggests."""
    from matplotlib.font_manager import fontManager

    if not character.isprintable():
        return None
    script = unicodedata.name(character, "").partition(" ")[0].title()
    named = EAST_ASIAN if script in ("Cjk", "Hiragana", "Katakana", "Hangul") else (script,)
    if script in ("Ideographic", "Fullwidth", "Halfwidth"):
        named = EAST_ASIAN
    installed = {font.name for font in fontManager.ttflist}
    likely = [name for name in installed if any(part and part in name for part in named)]
    likely.sort(key=lambda name: ("Noto Sans" not in name, len(name), name))
    candidates = [*likely, *(name for name in MANY_SCRIPTS if name in installed)]
    return next((name for name in candidates if _has(name, character)), None)
