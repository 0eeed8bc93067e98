"""Strings in a schema: patterns, formats, and the names of further properties.

A pattern becomes one that ECMA 262 and Python read alike. A class of characters that holds all
control characters is taken by the automaton library to hold ``"`` and ``\\`` as well; so one of
them, which no one writes, is taken out of each class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from smcprog.errors import GrammarError
from smcprog.potentials.json_refusal import schema_error
from smcprog.potentials.pattern import CLASS, Translation, character_set, literal

_REFUSED_CHAR = r"\x{0}"
_MAX_LENGTH = 100_000

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = "[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL})*"
FORMATS: dict[str, dict[str, Any]] = {
    "date": {"pattern": f"^(?:{_DATE})$"},
    "time": {"pattern": f"^(?:{_TIME})$"},
    "date-time": {"pattern": f"^(?:{_DATE}T{_TIME})$"},
    "hostname": {"pattern": f"^(?:{_HOSTNAME})$", "maxLength": 63},
    "email": {"pattern": rf"^(?:{_ATOM}(?:\.{_ATOM})*@{_HOSTNAME})$", "maxLength": 64},
    **{name: {"format": name} for name in ("duration", "ipv4", "ipv6", "uuid", "uri")},
}
"""The formats that are enforced, as they are: no text passes that the format forbids."""


def found_pattern(pattern: Any, path: str) -> str:
    """A pattern (Rust dialect) of the texts in which one of a schema is found."""
    if not isinstance(pattern, str):
        raise schema_error(path, f"a pattern is a string, not {pattern!r:.100}")
    try:
        return f"^{_search_pattern(pattern)}$"
    except GrammarError as error:
        raise schema_error(path, str(error)) from error


def other_strings(texts: Iterable[str]) -> str | None:
    """A pattern (Rust dialect) of all texts but these, or None if it would be too long."""
    texts = set(texts)
    # The prefixes of each text are written out.
    if sum(len(text) ** 2 for text in texts) > 20 * _MAX_LENGTH:
        return None
    following: dict[str, set[str]] = {"": set()}
    for text in texts:
        for i, char in enumerate(text):
            following.setdefault(text[:i], set()).add(char)
        following.setdefault(text, set())
    others = []
    for prefix in sorted(following):
        if prefix not in texts:
            others.append(literal(prefix))
        chars = "".join(literal(char) for char in sorted(following[prefix]))
        one = f"[^{chars}{_REFUSED_CHAR}]" if chars else "(?s:.)"
        others.append(f"{literal(prefix)}{one}(?s:.*)")
    pattern = f"^(?:{'|'.join(others)})$"
    return pattern if len(pattern) <= _MAX_LENGTH else None


_NOT_ECMA = re.compile(
    r"(?:[^\\]|\\.)*?(\\[aANUZz1-9]|\\0[0-9]|\{,|\(\?P|\(\?[#aiLmsux-])", re.DOTALL
)


@lru_cache(maxsize=1024)
def _search_pattern(pattern: str) -> str:
    """The texts in which the pattern is found, for ECMA 262 and for Python alike.

    Raises:
        GrammarError: if the pattern needs more than a regular language, or is read differently.
    """
    if different := _NOT_ECMA.match(pattern):
        raise GrammarError(f"{different[1]} is not read alike by ECMA 262 and by Python")
    return f"(?:{_SearchTranslation(pattern).text})"


class _SearchTranslation(Translation):
    """A pattern that may match anywhere, but for the anchors of each alternative."""

    def _sequence(self, flags: int) -> str:
        start = self._at
        body = super()._sequence(flags)
        if self._depth:
            return body
        source = self._pattern[start : self._at]
        escapes = len(source[:-1]) - len(source[:-1].rstrip("\\"))
        left = "" if source.startswith("^") else "(?s:.*)"
        right = "" if source.endswith("$") and escapes % 2 == 0 else "(?s:.*)"
        return f"{left}{body}{right}"

    def _anchor(self, first: bool) -> None:
        at = self._at
        try:
            super()._anchor(first)
        except GrammarError as error:
            raise self._error("an anchor inside the pattern is not supported", at) from error

    def _item(self, flags: int) -> str:
        if self._looking_at("."):
            self._at += 1
            return r"[^\x{a}\x{d}\x{2028}\x{2029}]"
        if self._looking_at("["):
            return _agreed(self._take(CLASS))
        return super()._item(flags)

    def _escape(self, flags: int) -> str:
        if self._looking_at("\\d", "\\D", "\\w", "\\W", "\\s", "\\S"):
            self._at += 2
            return _agreed(self._pattern[self._at - 2 : self._at])
        return super()._escape(flags)


def _agreed(source: str) -> str:
    """The characters of a class for ECMA 262, whose \\d is ASCII, and for Python, whose is not."""
    ascii_only, everything = character_set(source, re.ASCII), character_set(source, 0)
    refused = _REFUSED_CHAR if ascii_only == everything else rf"{_REFUSED_CHAR}\x{{feff}}"
    return f"[{ascii_only}&&{everything}&&[^{refused}]]"
