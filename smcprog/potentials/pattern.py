"""Python's regular expressions, translated for the automaton library.

The language of a pattern is what ``re.fullmatch`` accepts. Python's own ``re`` decides what is
well-formed and which characters each one-character part (``\\d``, ``[^a-z]``, ``.``, a letter under
``(?i)``) matches, so that Unicode and flags mean here what they mean there. This module reads only
the skeleton: alternation, sequence, groups and repeats. Laziness and the names of groups do not
change what a pattern matches, and are dropped. What no finite automaton with Python's meaning can
express is refused, with its place in the pattern and what to write instead.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

from smcprog.errors import GrammarError

_QUANTIFIER = re.compile(r"[*+?]|\{(?!\})(?P<low>[0-9]*)(?P<comma>,?)(?P<high>[0-9]*)\}")
CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:x..|u.{4}|U.{8}|N\{[^}]*\}|0[0-7]{0,2}|[1-3][0-7]{2}|[1-9][0-9]?|.)", re.DOTALL
)
_GROUP = re.compile(r"\((?!\?)|\(\?P<\w+>|\(\?(?P<on>[aiLmsux]*)(?:-(?P<off>[imsx]+))?:")
_PLAIN = re.compile(r"[^][\\(){}*+?|.^$\ud800-\udfff]{2,}")
_IGNORED = re.compile(r"\(\?#[^)]*\)|\(\?[aiLmsux]+\)")

_REFUSED = {
    "(?=": ("a lookahead", "write what may follow as part of the pattern"),
    "(?!": ("a lookahead", "write what may follow as part of the pattern, or condition(...) on it"),
    "(?<": ("a lookbehind", "write what comes before as part of the pattern"),
    "(?>": ("an atomic group", "write (?:...)"),
    "(?P": ("a backreference", "write the text again, or compare with condition(...)"),
    "(?(": ("a conditional group", "write both cases as alternatives"),
    "\\b": ("a word boundary", "write the characters that may stand there"),
    "\\B": ("a word boundary", "write the characters that may stand there"),
}
_LONGEST = 200_000
_SHOWN = 80  # characters of a pattern that an error shows on either side
_LONGEST_TRANSLATION = 20_000_000

_ANCHORS_START = ("^", "\\A")
_ANCHORS_END = ("$", "\\Z", "\\z")


@lru_cache(maxsize=256)
def translate(pattern: str) -> str:
    """The pattern as a regular expression of the Rust dialect with the same language.

    Raises:
        GrammarError: if the pattern is malformed, too long, or needs more than a regular language;
            the message gives line and column.
    """
    return Translation(pattern).text


def literal(text: str) -> str:
    """A regular expression (Rust dialect) for exactly this text.

    Raises:
        GrammarError: if the text has no UTF-8 (a lone surrogate).
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"{shortened(text)!r} holds a lone surrogate; it is no text") from error
    return "".join(
        char if char.isascii() and char.isalnum() else rf"\x{{{ord(char):x}}}" for char in text
    )


class Translation:
    """One pass over a pattern that ``re`` has already found well-formed."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._size = 0
        if len(pattern) > _LONGEST:
            raise self._error(
                f"it has {len(pattern)} characters, more than {_LONGEST}; choice(...) takes longer "
                "lists of strings",
                0,
            )
        try:
            flags = re.compile(pattern).flags
        except re.error as error:
            raise self._error(error.msg, error.pos or 0) from error
        except (OverflowError, ValueError) as error:
            raise self._error("a repetition number is too large; write a smaller one", 0) from error
        except RecursionError as error:
            raise self._error("the groups are nested too deeply", 0) from error
        if flags & re.VERBOSE:
            raise self._error("verbose mode (?x) is not supported; remove it and the spaces", 0)
        try:
            self.text = self._alternatives(flags)
        except RecursionError as error:
            raise self._error("the groups are nested too deeply", self._at) from error

    def _error(self, reason: str, at: int) -> GrammarError:
        line = self._pattern.count("\n", 0, at) + 1
        start = self._pattern.rfind("\n", 0, at) + 1
        first = max(start, at - _SHOWN)
        shown = _printable(self._pattern[first : at + _SHOWN].split("\n", 1)[0])
        return GrammarError(
            f"regex, line {line}, column {at - start + 1}: {reason}\n"
            f"    {shown}\n    {' ' * (at - first)}^"
        )

    def _looking_at(self, *prefixes: str) -> bool:
        return self._pattern.startswith(prefixes, self._at)

    def _alternatives(self, flags: int) -> str:
        sequences = [self._sequence(flags)]
        while self._looking_at("|"):
            self._at += 1
            sequences.append(self._sequence(flags))
        return f"(?:{'|'.join(sequences)})"

    def _sequence(self, flags: int) -> str:
        items: list[str] = []
        first = True
        while self._at < len(self._pattern) and not self._looking_at("|", ")"):
            plain = None if flags & re.IGNORECASE else _PLAIN.match(self._pattern, self._at)
            if plain:  # the last of these characters may be quantified
                items.append(literal(plain[0][:-1]))
                self._at = plain.end() - 1
                first = False
            elif ignored := _IGNORED.match(self._pattern, self._at):
                self._at = ignored.end()
            elif self._looking_at(*_ANCHORS_START, *_ANCHORS_END):
                self._anchor(first)
            else:
                at = self._at
                item = self._item(flags)
                if self._pattern[at] != "(":  # the items of a group have been counted
                    self._size += len(item)
                if self._size > _LONGEST_TRANSLATION:
                    raise self._error(
                        "the classes of characters up to here are too large together; write fewer "
                        "or smaller ones, such as [a-z] for \\w",
                        at,
                    )
                items.append(self._quantified(item))
                first = False
        return "".join(items)

    def _anchor(self, first: bool) -> None:
        """Skip an anchor that says nothing: the whole text is matched in any case."""
        at = self._at
        at_start = self._looking_at(*_ANCHORS_START)
        self._at += 2 if self._looking_at("\\") else 1
        at_end = self._at == len(self._pattern) or self._looking_at("|")
        if self._depth or not (first if at_start else at_end):
            raise self._error(
                f"{self._pattern[at : self._at]} inside the pattern is not supported; "
                "a constraint always matches the whole text, so remove it",
                at,
            )

    def _item(self, flags: int) -> str:
        for start, (what, remedy) in _REFUSED.items():
            if self._looking_at(start) and not self._looking_at("(?P<"):
                raise self._error(f"{what} is not supported; {remedy}", self._at)
        if self._looking_at("("):
            return self._group(flags)
        if self._looking_at("["):
            return character_set(self._take(CLASS), _relevant(flags))
        if self._looking_at("\\"):
            return self._escape(flags)
        char = self._pattern[self._at]
        self._at += 1
        if char == ".":
            return character_set(char, _relevant(flags))
        return self._literal(char, flags)

    def _take(self, expression: re.Pattern[str]) -> str:
        match = expression.match(self._pattern, self._at)
        assert match is not None, f"re accepts {self._pattern!r}, this reader does not"
        self._at = match.end()
        return match[0]

    def _group(self, flags: int) -> str:
        match = _GROUP.match(self._pattern, self._at)
        assert match is not None, f"re accepts {self._pattern!r}, this reader does not"
        on, off = match["on"] or "", match["off"] or ""
        if "x" in on:
            raise self._error("verbose mode (?x: is not supported; remove it", self._at)
        if "a" in on:
            flags &= ~re.UNICODE
        if "u" in on:
            flags &= ~re.ASCII
        for letter in on:
            flags |= re.RegexFlag[letter.upper()]
        for letter in off:
            flags &= ~re.RegexFlag[letter.upper()]
        self._at = match.end()
        self._depth += 1
        inner = self._alternatives(flags)
        self._depth -= 1
        self._at += 1  # the closing parenthesis
        return inner

    def _escape(self, flags: int) -> str:
        at = self._at
        source = self._take(_ESCAPE)
        if re.fullmatch(r"\\[1-9][0-9]?", source):
            what, remedy = _REFUSED["(?P"]
            raise self._error(f"{what} is not supported; {remedy}", at)
        if not (source[1].isascii() and source[1].isalnum()):
            return self._literal(source[1], flags)
        return character_set(source, _relevant(flags))

    def _literal(self, char: str, flags: int) -> str:
        if flags & re.IGNORECASE:
            return character_set(re.escape(char), _relevant(flags))
        try:
            return literal(char)
        except GrammarError as error:
            raise self._error(str(error), self._at - 1) from error

    def _quantified(self, item: str) -> str:
        while comment := _IGNORED.match(self._pattern, self._at):
            self._at = comment.end()
        match = _QUANTIFIER.match(self._pattern, self._at)
        if match is None:
            return item
        self._at = match.end()
        if self._looking_at("+"):
            raise self._error("a possessive quantifier is not supported; drop the +", self._at)
        if self._looking_at("?"):  # lazy: the same language
            self._at += 1
        if match[0] in "*+?":
            low, high = {"*": ("0", ""), "+": ("1", ""), "?": ("0", "1")}[match[0]]
        else:
            low = match["low"] or "0"
            high = match["high"] if match["comma"] else low
        return f"(?:{item}){{{low},{high}}}"


def shortened(text: str, length: int = 60) -> str:
    """The text, or its beginning."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def no_utf8(error: UnicodeDecodeError) -> str:
    """Which byte of a file is no UTF-8, for messages."""
    byte = error.object[error.start]
    return f"it is not UTF-8 (byte {byte:#04x} at {error.start}); save it as UTF-8"


def _printable(text: str) -> str:
    """The text with lone surrogates spelled out, so that a terminal can show it."""
    return text.encode(errors="backslashreplace").decode()


def _relevant(flags: int) -> int:
    """The flags that change which characters a one-character part matches."""
    return flags & (re.ASCII | re.IGNORECASE | re.DOTALL)


@lru_cache(maxsize=1)
def _all_characters() -> str:
    """Every character that UTF-8 can encode, in order."""
    codes = np.concatenate([np.arange(0xD800), np.arange(0xE000, 0x110000)])
    return codes.astype("<u4").tobytes().decode("utf-32-le")


@lru_cache(maxsize=1024)
def character_set(source: str, flags: int) -> str:
    """The set of characters that a one-character pattern matches, as ranges: ``re`` is asked."""
    characters = _all_characters()
    runs = re.compile(f"(?:{source})+", flags).finditer(characters)
    ranges = (rf"\x{{{ord(run[0][0]):x}}}-\x{{{ord(run[0][-1]):x}}}" for run in runs)
    # An empty class matches nothing, which the dialect spells as an empty intersection.
    return f"[{''.join(ranges) or 'a&&b'}]"
