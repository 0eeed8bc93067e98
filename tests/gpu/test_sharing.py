"""Trunks and tails: together they are what each row sees, and trunks are what rows share."""

from __future__ import annotations

import random

import pytest

from smcprog.gpu import sharing
from smcprog.gpu.sharing import Span, Trunk, shared

PAGE = 4


@pytest.fixture(autouse=True)
def every_page_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LEAST_SAVED", 1)


def test_one_prompt_and_four_tails() -> None:
    spans = [Span([7, 8, 9, 20 + i], 13, 15) for i in range(4)]
    trunks, begins = shared(spans, PAGE)
    assert trunks == [Trunk([7, 8, 9], 0, (0, 1, 2, 3))]
    assert begins == [12] * 4


def test_trunks_follow_one_another() -> None:
    """A system prompt that two programs share, and each program's own prompt."""
    ours = [Span([1, 2, 3, 4, 10 + i], 16, 17) for i in range(2)]
    theirs = [Span([1, 2, 5, 6, 7, 12 + i], 20, 21) for i in range(2)]
    trunks, begins = shared([ours[0], theirs[0], ours[1], theirs[1]], PAGE)
    assert sorted(trunks, key=lambda t: (t.begin, t.members)) == [
        Trunk([1, 2], 0, (0, 1, 2, 3)),
        Trunk([3, 4], 8, (0, 2)),
        Trunk([5, 6, 7], 8, (1, 3)),
    ]
    assert begins == [16, 20, 16, 20]


def test_the_page_of_a_query_is_no_trunk() -> None:
    """Two rows that feed the same page again, and one that is filling it."""
    spans = [Span([1, 2], 7, 8), Span([1, 2], 4, 8), Span([1, 2], 0, 8)]
    trunks, begins = shared(spans, PAGE)
    assert trunks == [Trunk([1], 0, (0, 1))]
    assert begins == [4, 4, 0]


def test_what_saves_little_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = [Span([1, 2, 10 + i], 8, 9) for i in range(3)]
    monkeypatch.setattr(sharing, "LEAST_SAVED", 17)
    assert shared(spans, PAGE) == ([], [0, 0, 0])
    monkeypatch.setattr(sharing, "LEAST_SAVED", 16)
    assert shared(spans, PAGE)[1] == [8, 8, 8]
    # Two pages that do not pay alone pay together with the next two.
    monkeypatch.setattr(sharing, "LEAST_SAVED", 16)
    deeper = [Span([1, 2, 3, 4], 16, 17)] * 2 + [Span([1, 2], 7, 8)]
    assert shared(deeper, PAGE) == ([Trunk([1, 2, 3, 4], 0, (0, 1))], [16, 16, 0])


@pytest.mark.parametrize("least", [1, 9, 30])
def test_trunks_and_tails_are_what_a_row_sees(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "LEAST_SAVED", least)
    rng = random.Random(least)
    for _ in range(200):
        paths: list[list[int]] = [[]]
        fresh = iter(range(1000))
        for _ in range(rng.randint(1, 12)):
            parent = rng.choice(paths)
            paths.append(parent[: rng.randint(0, len(parent))] + [next(fresh) for _ in range(3)])
        spans = []
        for pages in paths[1:]:
            end = rng.randint(PAGE * (len(pages) - 1) + 1, PAGE * len(pages))
            spans.append(Span(pages, rng.randint(0, end - 1), end))
        trunks, begins = shared(spans, PAGE)
        seen = [
            list(span.pages[begin // PAGE :]) for span, begin in zip(spans, begins, strict=True)
        ]
        for trunk in sorted(trunks, key=lambda t: -t.begin):
            assert len(trunk.members) > 1
            assert (len(trunk.members) - 1) * PAGE * len(trunk.pages) >= least
            for i in trunk.members:
                assert trunk.begin + PAGE * len(trunk.pages) <= spans[i].start
                seen[i] = [*trunk.pages, *seen[i]]
        assert seen == [list(span.pages) for span in spans]
        assert all(begin <= span.start for span, begin in zip(spans, begins, strict=True))
