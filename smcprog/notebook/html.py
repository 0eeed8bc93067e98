"""HTML that any notebook can show: no network, no script, its own style, everything escaped."""

from __future__ import annotations

import re
from html import escape

STYLE = """
.smcprog.smcprog-view {
  --smc-line: var(--jp-border-color2, rgba(128, 128, 128, 0.35));
  --smc-bar: rgba(66, 133, 214, 0.45);
  color: var(--jp-content-font-color1, var(--vscode-foreground, inherit));
  background: transparent; max-width: 72em; overflow-x: auto;
}
@media (prefers-color-scheme: dark) {
  .smcprog.smcprog-view { --smc-bar: rgba(110, 170, 245, 0.5); }
}
.smcprog.smcprog-view table {
  border-collapse: collapse; border: none; margin: 0.5em 0; table-layout: auto;
  background: transparent; color: inherit; font-size: inherit;
}
.smcprog.smcprog-view thead, .smcprog.smcprog-view tbody tr {
  background: transparent; border: none;
}
.smcprog.smcprog-view th, .smcprog.smcprog-view td {
  padding: 0.25em 0.8em 0.25em 0; border: none; border-bottom: 1px solid var(--smc-line);
  text-align: start; vertical-align: top; max-width: 48em; background: transparent; color: inherit;
}
.smcprog.smcprog-view td { white-space: pre-wrap; overflow-wrap: break-word; }
.smcprog.smcprog-view details { overflow-wrap: anywhere; min-width: 20em; }
.smcprog.smcprog-view th { font-weight: 600; }
.smcprog.smcprog-view code {
  background: transparent; color: inherit; padding: 0; font-size: inherit; white-space: pre-wrap;
  font-family: var(--jp-code-font-family, ui-monospace, Menlo, Consolas, monospace);
}
.smcprog.smcprog-view ul, .smcprog.smcprog-view ul ul { list-style: none; margin: 0; padding: 0; }
.smcprog.smcprog-view summary { cursor: pointer; }
.smcprog.smcprog-view .muted { opacity: 0.7; }
.smcprog.smcprog-view .facts > span { display: inline-block; margin-inline-end: 1.5em; }
.smcprog.smcprog-view .warnings > li {
  margin: 0.35em 0; padding-inline-start: 0.6em; border-inline-start: 3px solid #e08a1e;
}
.smcprog.smcprog-view td.mass { white-space: nowrap; font-variant-numeric: tabular-nums; }
.smcprog.smcprog-view .track { display: inline-block; width: 7em; margin-inline-end: 0.6em; }
.smcprog.smcprog-view .bar {
  display: inline-block; height: 0.8em; min-width: 1px; background: var(--smc-bar);
}
.smcprog.smcprog-plan { position: relative; padding-left: 4em; }
.smcprog.smcprog-plan .line {
  position: absolute; left: 0; width: 3em; text-align: right; opacity: 0.7;
  font-variant-numeric: tabular-nums;
}
.smcprog.smcprog-view.smcprog-plan ul ul {
  margin-left: 0.3em; padding-left: 1.5em; border-left: 1px solid var(--smc-line);
}
.smcprog.smcprog-plan li { margin: 0.15em 0; }
.smcprog.smcprog-plan table { margin: 0.1em 0 0.4em 2em; }
.smcprog.smcprog-plan td { border: none; padding-top: 0.05em; padding-bottom: 0.05em; }
.smcprog.smcprog-plan .tag {
  display: inline-block; white-space: nowrap; padding: 0 0.5em; border-radius: 0.6em;
  font-size: 0.9em; background: rgba(128, 128, 128, 0.25);
}
.smcprog.smcprog-plan .mask { background: rgba(66, 133, 214, 0.35); }
.smcprog.smcprog-plan .score { background: rgba(52, 168, 100, 0.35); }
.smcprog.smcprog-plan .block { background: rgba(224, 138, 30, 0.4); }
.smcprog.smcprog-plan .end { background: rgba(170, 90, 200, 0.35); }
"""

FOLD = 200
"""Texts of more characters, or of more than four lines, are folded."""

MOST = 10_000
"""The most characters of one text that are shown at all; how many are left out is said."""

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def page(kind: str, *parts: str) -> str:
    """Parts of HTML as one element with its style; ``kind`` is "posterior" or "plan"."""
    inside = "\n".join(filter(None, parts))
    return (
        f'<div class="smcprog smcprog-view smcprog-{kind}"><style>{STYLE}</style>\n{inside}\n</div>'
    )


def escaped(text: str) -> str:
    """Text of a model or a user: what has no glyph stands by its escape.

    >>> escaped("<b>" + chr(7))
    '&lt;b&gt;\\\\x07'
    """
    text = text.encode("utf-8", "backslashreplace").decode()
    return escape(CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text))


def folded(text: str) -> str:
    """Escaped text, folded where it is long."""
    if len(text) <= FOLD and text.count("\n") < 4:
        return escaped(text)
    head = " ".join(text[: FOLD // 2].split())
    rest = f"… and {len(text) - MOST:,} more characters" if len(text) > MOST else ""
    return (
        f'<details><summary dir="auto">{escaped(head)}…</summary>'
        f'<div dir="auto">{escaped(text[:MOST])}{muted(rest)}</div></details>'
    )


def muted(text: str) -> str:
    """A remark beside the matter; nothing for no text."""
    return f'<span class="muted">{escaped(text)}</span>' if text else ""


def percent(share: float) -> str:
    """A share with one digit after the point, never "0.0%" for what is more than nothing.

    >>> percent(0.5), percent(0.0001), percent(0.99999), percent(1.0)
    ('50.0%', '<0.1%', '>99.9%', '100%')
    """
    if share == 0.0 or share > 1 - 1e-9:
        return f"{share:.0%}"
    if share < 0.001:
        return "<0.1%"
    return ">99.9%" if share > 0.999 else f"{share:.1%}"
