"""Which pages the rows of a pass have in common.

Rows are paths in a trie of pages. A *trunk* is a run of full pages that several rows share and that
all their queries may see: attention reads it once for all of them. What a row does not share is its
*tail*. Trunks may follow one another, where part of a population has coalesced further or several
programs begin with one system prompt.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# A trunk costs each layer one more kernel; what it saves are keys that are gathered and read again.
# Measured on a CPU (benchmarks/prefix.py --threshold): it pays from about this many.
LEAST_SAVED = 1536


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of one row in a pass: positions ``start`` .. ``end`` - 1."""

    pages: Sequence[int]
    start: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Trunk:
    """Consecutive full pages that some rows share.

    Attributes:
        pages: their numbers.
        begin: the position of the first token on them.
        members: which spans of the pass share them.
    """

    pages: Sequence[int]
    begin: int
    members: tuple[int, ...]


def shared(spans: Sequence[Span], page_size: int) -> tuple[list[Trunk], list[int]]:
    """Divide what the rows of a pass see into trunks and tails.

    Returns:
        The trunks, and for each span the position where its tail begins. No tail is empty: a page
        that a query's own token is on is never part of a trunk.
    """
    trunks: list[Trunk] = []
    begins = [0] * len(spans)
    # Members of the open nodes of the trie: all share the first ``depth`` pages, and the first
    # ``taken`` of them are in trunks already.
    nodes = [(list(range(len(spans))), 0, 0)]
    while nodes:
        members, depth, taken = nodes.pop()
        children: dict[int, list[int]] = defaultdict(list)
        for i in members:
            if spans[i].start // page_size > depth:
                children[spans[i].pages[depth]].append(i)
            begins[i] = taken * page_size
        for group in children.values():
            if len(group) == 1:
                continue
            end = _common(spans, group, depth, page_size)
            saved = (len(group) - 1) * (end - taken) * page_size
            if saved >= LEAST_SAVED:
                pages = spans[group[0]].pages[taken:end]
                trunks.append(Trunk(pages, taken * page_size, tuple(group)))
                nodes.append((group, end, end))
            else:
                nodes.append((group, end, taken))
    return trunks, begins


def _common(spans: Sequence[Span], members: Sequence[int], depth: int, page_size: int) -> int:
    """How many leading pages these rows have in common, all full and before their queries, given
    that they have one more than ``depth``."""
    least = min(spans[i].start // page_size for i in members)
    table = np.array([spans[i].pages[depth:least] for i in members])
    differs = (table != table[0]).any(axis=0)
    return depth + int(differs.argmax()) if differs.any() else least
