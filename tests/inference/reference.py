"""One `gen`, written down again from DESIGN section 2 with the library's regex module alone.

Slow and direct: whether a prefix is viable is decided by looking through all strings of the
language up to a length. What the tests compare with, where they do not trust the package.
"""

import itertools
import re
from collections import defaultdict
from functools import cache

import numpy as np

from smcprog.text import EOS, LEAVE, Stop
from tests.inference.tables import Table

LONGEST = 9


@cache
def language(pattern: str, alphabet: str) -> tuple[str, ...]:
    """All strings over the alphabet, up to LONGEST characters, that match entirely."""
    words = (
        "".join(word)
        for length in range(LONGEST + 1)
        for word in itertools.product(alphabet, repeat=length)
    )
    return tuple(word for word in words if re.fullmatch(pattern, word))


@cache
def prefixes(pattern: str, alphabet: str, stops: tuple[str, ...]) -> frozenset[str]:
    """The viable prefixes of R, or of R.(s1|..|sn) where there are stop strings."""
    words = language(pattern, alphabet)
    whole = [w + s for w in words for s in stops] if stops else words
    return frozenset(word[:i] for word in whole for i in range(len(word) + 1))


def gen_law(
    table: Table,
    tokens: tuple[str, ...],
    alpha: float,
    pattern: str | None,
    stop: tuple[Stop, ...] | None,
    max_tokens: int,
) -> dict[tuple[str, Stop | None], float]:
    """Sum of gamma for each (text, stop) of ``gen(lm**alpha, regex(pattern), stop=stop)``.

    The table's columns are the tokens, then one EOS id, then one control id.
    """
    size = len(tokens)
    strings = tuple(s for s in stop or () if isinstance(s, str))
    if stop is None:
        stop = (EOS,) if pattern is None else (LEAVE,)
    eos_rule = EOS in stop or (pattern is None and stop != ())
    leave_rule = LEAVE in stop
    alphabet = "".join(sorted(set("".join(tokens) + "".join(strings))))
    law: dict[tuple[str, Stop | None], float] = defaultdict(float)

    def accepts(text: str) -> bool:
        return pattern is None or re.fullmatch(pattern, text) is not None

    def viable(text: str) -> bool:
        if pattern is None:
            return True
        known = prefixes(pattern, alphabet, strings)
        # beyond a completed stop anything may follow
        return text in known or first_stop(text) is not None

    def first_stop(text: str) -> tuple[str, int] | None:
        for end in range(1, len(text) + 1):
            for s in sorted(strings, key=len, reverse=True):
                if text[:end].endswith(s) and accepts(text[: end - len(s)]):
                    return s, end - len(s)
        return None

    def go(context: tuple[int, ...], text: str, gamma: float) -> None:
        found = first_stop(text)
        if found is not None:
            law[text[: found[1]], found[0]] += gamma
            return
        allowed = [i for i in range(size) if viable(text + tokens[i])]
        accepting = accepts(text)
        if pattern is not None and accepting and not allowed and (leave_rule or not eos_rule):
            law[text, LEAVE if leave_rule else None] += gamma
            return
        if len(context) == max_tokens:
            if accepting:
                law[text, None] += gamma
            return
        p = table(context) / table(context).sum()
        own = {size} if eos_rule and accepting else set()
        if own:
            law[text, EOS] += gamma * p[size] ** alpha
        if leave_rule and accepting:
            rest = sum(p[v] for v in range(size + 2) if v not in allowed and v not in own)
            law[text, LEAVE] += gamma * rest**alpha
        for i in allowed:
            go((*context, i), text + tokens[i], gamma * p[i] ** alpha)

    go((), "", 1.0)
    return {key: float(value) for key, value in law.items() if value and np.isfinite(value)}
