"""A posterior as a table of its values, with what is worth knowing before they are trusted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from smcprog.notebook.html import escaped, folded, muted, page, percent

if TYPE_CHECKING:
    from smcprog.inference.posterior import Posterior

ROWS = 20
"""The most values that the table shows."""

COLUMNS = 12
"""Dicts of more keys are shown in one column."""

CAUSES = 3
"""The most causes of death that are named."""


def posterior_html(posterior: Posterior) -> str:
    """What ``Posterior._repr_html_`` gives."""
    values = table(posterior.pooled()) if posterior.values else ""
    return page("posterior", facts(posterior), warnings(posterior), values)


# What the run came to


def facts(posterior: Posterior) -> str:
    """The numbers of the run, on a line."""
    n, stats = len(posterior), posterior.stats
    shown = [("log evidence", f"{posterior.log_evidence:.3f}")]
    if posterior.values:
        shown += [
            ("ESS", f"{posterior.ess:.1f} of {n}"),
            ("unique roots", f"{posterior.unique_roots} of {n}"),
        ]
    shown += [("rounds", f"{stats.rounds:,}"), ("resamplings", f"{stats.resamplings:,}")]
    drawn = sum(len(tokens) for record in posterior.rounds for tokens in record.tokens)
    if drawn and stats.seconds > 0:
        shown.append(("tokens/s", f"{drawn / stats.seconds:,.0f}"))
    spans = "".join(f"<span>{muted(name)} <b>{escaped(value)}</b></span>" for name, value in shown)
    return f'<div class="facts">{spans}</div>'


# What speaks against it


def warnings(posterior: Posterior) -> str:
    """What makes the sample worth less than it looks, or nothing."""
    found = [*poverty(posterior), cut(posterior), deaths(posterior)]
    items = "".join(f"<li>{warning}</li>" for warning in found if warning)
    return f'<ul class="warnings">{items}</ul>' if items else ""


def poverty(posterior: Posterior) -> list[str]:
    """How the weights and the genealogy have collapsed."""
    n = len(posterior)
    if n == 0:
        return ["every particle died: there is no posterior"]
    found = []
    if posterior.ess < 0.1 * n:
        found.append(f"the ESS is {posterior.ess:.1f}, below 10% of {n} particles")
    if posterior.unique_roots == 1 and n > 1:
        found.append("one root holds all particles")
    return found


def cut(posterior: Posterior) -> str:
    """How much of the posterior was cut at a token budget."""
    pairs = zip(posterior.truncated, posterior.weights.tolist(), strict=True)
    masses = [weight for truncated, weight in pairs if truncated and weight > 0]
    if not masses:
        return ""
    return escaped(
        f"{percent(sum(masses))} of the weight was cut at max_tokens "
        f"({len(masses)} of {len(posterior)} particles)"
    )


def deaths(posterior: Posterior) -> str:
    """How many particles died, and of what, the largest causes first."""
    number: Counter[str] = Counter()
    example: dict[str, str] = {}
    for death in posterior.deaths:
        number[death.source] += death.number
        example.setdefault(death.source, death.example)
    if not number:
        return ""
    total = number.total()
    items = "".join(
        f'<li>{times:,} of <code dir="auto">{escaped(source)}</code>{after(example[source])}</li>'
        for source, times in number.most_common(CAUSES)
    )
    if len(number) > CAUSES:
        others = sum(times for _, times in number.most_common()[CAUSES:])
        items += f"<li>{others:,} of {len(number) - CAUSES} other causes</li>"
    plural = "particle" if total == 1 else "particles"
    return f"{total:,} {plural} died on the way<ul>{items}</ul>"


def after(example: str) -> str:
    """The end of the context of one that died."""
    if not example:
        return ""
    return f' {muted("one after")} <bdi class="muted">{escaped(repr(example))}</bdi>'


# The values


def table(pooled: Sequence[tuple[Any, float]]) -> str:
    """Values and their probabilities, in the order given."""
    names = common_keys([value for value, _ in pooled])
    heads = ["probability", *(["value"] if names is None else map(str, names))]
    head = "".join(f'<th dir="auto">{escaped(name)}</th>' for name in heads)
    rows = []
    for value, mass in pooled[:ROWS]:
        cells = [value] if names is None else [value[name] for name in names]
        shown = "".join(f'<td dir="auto">{cell(part)}</td>' for part in cells)
        rows.append(f"<tr>{mass_cell(mass)}{shown}</tr>")
    body = "\n".join(rows)
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
        f"{rest(pooled[ROWS:])}"
    )


def common_keys(values: Sequence[Any]) -> list[Any] | None:
    """The keys that all values have, where all are dicts of the same few keys."""
    first = values[0]
    if not isinstance(first, dict) or not 0 < len(first) <= COLUMNS:
        return None
    same = all(isinstance(value, dict) and value.keys() == first.keys() for value in values)
    return list(first) if same else None


def mass_cell(mass: float) -> str:
    """A probability as a bar and a number."""
    bar = (
        f'<span class="track"><span class="bar" style="width: {min(mass, 1.0):.1%}"></span></span>'
    )
    return f'<td class="mass">{bar}{escaped(percent(min(mass, 1.0)))}</td>'


def cell(value: Any) -> str:
    """A value: a text that one can see as it is, anything else as Python shows it."""
    if isinstance(value, str):
        return folded(value) if value.strip() else muted(repr(str(value)))
    return folded(str(value))


def rest(left: Sequence[tuple[Any, float]]) -> str:
    """What is said of the values that the table leaves out."""
    if not left:
        return ""
    mass = percent(sum(mass for _, mass in left))
    return f"<div>{muted(f'… and {len(left):,} more, {mass} together')}</div>"
