"""The values that a `gen` returns, and the names of the events that end it."""

from typing import Final


class StopEvent:
    """A stop that is not a string: compares by identity, survives copying and pickling."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name

    def __copy__(self) -> "StopEvent":
        return self

    def __deepcopy__(self, memo: object) -> "StopEvent":
        return self


EOS: Final = StopEvent("EOS")
"""The model's end tokens, collapsed into one event."""

LEAVE: Final = StopEvent("LEAVE")
"""The model leaves the constraint: the event collapses all tokens that the mask forbids."""

Stop = str | StopEvent


class Text(str):
    """Text drawn by `gen`: a ``str`` that remembers how it was drawn.

    Attributes:
        stop: what ended it: the stop string, `EOS`, `LEAVE`, or None when it was cut at
            ``max_tokens`` (or nothing could follow).
        logprob: log probability of its drawn events, the stop included, under the target LM
            (nats; the exponent alpha is not applied), or under the first ``lm.at`` of a `gen`
            that has no plain `lm`.
        tokens: the drawn token ids, before any roll-back.
    """

    stop: Stop | None
    logprob: float
    tokens: tuple[int, ...]

    def __new__(
        cls,
        value: str,
        stop: Stop | None = None,
        logprob: float = 0.0,
        tokens: tuple[int, ...] = (),
    ) -> "Text":
        text = super().__new__(cls, value)
        text.stop = stop
        text.logprob = logprob
        text.tokens = tokens
        return text

    def __getnewargs__(self) -> tuple[str, Stop | None, float, tuple[int, ...]]:  # type: ignore[override]
        return (str(self), self.stop, self.logprob, self.tokens)


class Special(str):
    """The spelling of one special token, meant as that token: see `special`."""


def special(token: str) -> Special:
    """Mean a special token by its spelling: ``prompt("Hi", special("<|im_end|>"))``.

    Plain text that happens to spell a special token is encoded as plain characters; this is the
    way to append the token itself. An unknown spelling is an error when it is appended.
    """
    return Special(token)
