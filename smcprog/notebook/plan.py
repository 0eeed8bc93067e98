"""A plan as nested blocks, with the stage of each potential as a coloured tag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smcprog.dsl.plan import Block, Planned, details, source_line
from smcprog.notebook.html import escaped, muted, page

if TYPE_CHECKING:
    from smcprog.dsl.plan import Plan


def plan_html(plan: Plan) -> str:
    """What ``Plan._repr_html_`` gives: what `Plan.explain` says."""
    place = muted(f'File "{plan.file}", line {plan.line}')
    head = f"<div><code>{escaped(plan.header)}</code> {place}</div>"
    note = f"<div>{muted(plan.note)}</div>" if plan.note else ""
    return page("plan", head, note, nested(plan.children, set()))


def nested(children: Sequence[Planned | Block], seen: set[tuple[str, int]]) -> str:
    """Blocks and statements in their order."""
    return f"<ul>{''.join(item(child, seen) for child in children)}</ul>" if children else ""


def item(node: Planned | Block, seen: set[tuple[str, int]]) -> str:
    """One block with what is in it, or one statement with its potentials."""
    if isinstance(node, Block):
        inner = nested(node.children, set(seen) if node.kind == "call" else seen)
        return f"<li>{line(node.line, node.header)}{inner}</li>"
    return f"<li>{line(node.site.line, source_line(node.site, seen))}{factors(node)}</li>"


def line(number: int, source: str) -> str:
    """A line of source."""
    return f'<span class="line">{number}</span><code>{escaped(source)}</code>'


def factors(statement: Planned) -> str:
    """A statement's potentials, and what ends its text, as a table."""
    rows = "".join(
        f"<tr><td><code>{escaped(source)}</code></td><td>{tag(stage)}</td>"
        f"<td>{muted(note)}</td></tr>"
        for source, stage, note in details(statement)
    )
    return f"<table><tbody>{rows}</tbody></table>" if rows else ""


def tag(stage: str) -> str:
    """The stage where a potential is evaluated."""
    kind = stage if stage.isidentifier() else "later"
    return f'<span class="tag {kind}">{escaped(stage)}</span>' if stage else ""
