"""Small regular languages with a reference matcher: what the property tests compare with.

A language is a tree over characters; its matcher takes Brzozowski derivatives. Nothing here knows
the automaton library, and only one-character leaves ask Python's ``re``.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from hypothesis import strategies as st

# Every character of the test texts, and all that share a first byte with "é": a dangling first
# byte is viable where any of them is.
CHARACTERS = "ab1\n " + "".join(map(chr, range(0xC0, 0x100)))


@dataclass(frozen=True)
class Leaf:
    pattern: str

    def __str__(self) -> str:
        return self.pattern

    def matches(self, char: str) -> bool:
        return re.fullmatch(self.pattern, char) is not None


@dataclass(frozen=True)
class Cat:
    parts: tuple

    def __str__(self) -> str:
        return "".join(map(str, self.parts))


@dataclass(frozen=True)
class Alt:
    parts: tuple

    def __str__(self) -> str:
        return f"({'|'.join(map(str, self.parts))})"


@dataclass(frozen=True)
class Repeat:
    part: object
    low: int
    high: int | None
    spelling: str

    def __str__(self) -> str:
        return f"(?:{self.part}){self.spelling}"


EMPTY = Cat(())
NOTHING = Alt(())
REPEATS = [("*", 0, None), ("+", 1, None), ("?", 0, 1), ("{2}", 2, 2), ("{1,3}?", 1, 3)]
REPEATS += [("{,2}", 0, 2), ("*?", 0, None)]
LEAVES = ["a", "b", "1", "é", r"\n", ".", "[^a]", "[ab]", r"\d", r"\w", r"\S", "[^é]", r"[\s1]"]
LEAVES += ["[b-é]"]


def languages() -> st.SearchStrategy:
    return st.recursive(
        st.sampled_from(LEAVES).map(Leaf),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3).map(lambda parts: Cat(tuple(parts))),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: Alt(tuple(parts))),
            st.builds(
                lambda part, r: Repeat(part, r[1], r[2], r[0]), inner, st.sampled_from(REPEATS)
            ),
        ),
        max_leaves=6,
    )


def nullable(node) -> bool:
    match node:
        case Leaf():
            return False
        case Cat(parts):
            return all(map(nullable, parts))
        case Alt(parts):
            return any(map(nullable, parts))
        case Repeat(part, low):
            return low == 0 or nullable(part)
    raise AssertionError(node)


def empty(node) -> bool:
    """Whether the language has no text at all. Leaves all have one."""
    match node:
        case Cat(parts):
            return any(map(empty, parts))
        case Alt(parts):
            return all(map(empty, parts))
        case Repeat(part, low):
            return low > 0 and empty(part)
    return False


def derivative(node, char: str):
    """The language of the rests of its texts that begin with ``char``."""
    match node:
        case Leaf():
            return EMPTY if node.matches(char) else NOTHING
        case Alt(parts):
            return _alt(derivative(part, char) for part in parts)
        case Cat(parts):
            return _alt(_cat_derivatives(parts, char))
        case Repeat(part, low, high, spelling):
            if high == 0:
                return NOTHING
            # A nullable part may be skipped, so its copies may count as used up at once.
            rest = Repeat(
                part, 0 if nullable(part) else max(low - 1, 0), high and high - 1, spelling
            )
            return _cat(derivative(part, char), rest)
    raise AssertionError(node)


def _cat_derivatives(parts: tuple, char: str) -> Iterator:
    for i, part in enumerate(parts):
        yield _cat(derivative(part, char), Cat(parts[i + 1 :]))
        if not nullable(part):
            return


def _cat(first, rest):
    return NOTHING if first == NOTHING else rest if first == EMPTY else Cat((first, rest))


def _alt(parts):
    kept = tuple(dict.fromkeys(part for part in parts if part != NOTHING))
    return kept[0] if len(kept) == 1 else Alt(kept)


def literal(text: str) -> Cat:
    return Cat(tuple(Leaf(re.escape(char)) for char in text))


@lru_cache(maxsize=4096)
def after(node, text: str):
    """The language of the rests of its texts that begin with ``text``."""
    return derivative(after(node, text[:-1]), text[-1]) if text else node


def viable(node, data: bytes) -> bool:
    """Whether some bytes complete ``data`` to the UTF-8 of a text of the language."""
    try:
        return not empty(after(node, data.decode()))
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return False
        text, dangling = data[: error.start].decode(), data[error.start :]
    completions = (char for char in CHARACTERS if char.encode().startswith(dangling))
    return any(not empty(after(node, text + char)) for char in completions)


def accepted(node, data: bytes) -> bool:
    try:
        return nullable(after(node, data.decode()))
    except UnicodeDecodeError:
        return False
