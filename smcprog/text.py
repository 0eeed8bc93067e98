"""The values that a `gen` returns, and the names of the events that end it."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, Self


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

    Methods of ``str`` return plain strings, which remember nothing.

    >>> @smc_program
    ... def label():
    ...     prompt("Great phone. Sentiment:")
    ...     return gen(choice(" positive", " negative"))
    >>> text = engine.run(label(), particles=4, seed=0).best
    >>> text.stop, len(text.tokens) > 0, text.logprob < 0, text.parsed
    (LEAVE, True, True, None)
    >>> type(text.strip())
    <class 'str'>
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
    ) -> Self:
        text = super().__new__(cls, value)
        text.stop = stop
        text.logprob = logprob
        text.tokens = tokens
        return text

    @property
    def parsed(self) -> Any:
        """The object that the text spells under a `json_schema`, None under none.

        It is what ``json.loads`` gives, or an instance of the class that the schema came from. Of
        several schemas in a product, the first counts.

        Raises:
            ValueError: if the class's own validators refuse the object, which a schema cannot say
                (``pydantic.ValidationError`` is a ``ValueError``).
        """
        return None

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (str(self), self.stop, self.logprob, self.tokens)


class JsonText(Text):
    """A `Text` that was drawn under a JSON schema.

    Its object is made when it is first asked for. It may be changed then, so that a program's
    record hands out copies of this text, while a plain `Text` is shared.
    """

    _parse: Callable[[str], Any]

    def __new__(
        cls,
        parse: Callable[[str], Any],
        value: str,
        stop: Stop | None = None,
        logprob: float = 0.0,
        tokens: tuple[int, ...] = (),
    ) -> Self:
        text = super().__new__(cls, value, stop, logprob, tokens)
        text._parse = parse
        return text

    @cached_property
    def parsed(self) -> Any:
        return self._parse(str(self))

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self._parse, *super().__getnewargs__())


class Special(str):
    """The spelling of one special token, meant as that token: see `special`."""


def special(token: str) -> Special:
    """Mean a special token by its spelling: ``prompt("Hi", special("<|im_end|>"))``.

    Plain text that happens to spell a special token is encoded as plain characters; this is the
    way to append the token itself. An unknown spelling is an error when it is appended.

    >>> special("<|im_end|>")
    '<|im_end|>'
    """
    return Special(token)
