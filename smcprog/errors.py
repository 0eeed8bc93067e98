"""The errors a user meets. Each message says what was wrong, where, and what to do."""

from typing import Any


class SmcprogError(Exception):
    """Base of every error that smcprog raises on purpose."""


class ProgramError(SmcprogError):
    """A program that cannot be compiled or run as written.

    The message gives file, line, a caret under the place and what to write instead.
    """


class GrammarError(SmcprogError, ValueError):
    """A constraint that cannot be read: the message gives line, column and reason."""


class ModelError(SmcprogError):
    """A model or tokenizer that cannot be loaded or run: missing, pickled, or unsupported."""


class VocabularyError(ModelError):
    """A draft and a target (or a text and a tokenizer) whose vocabularies do not agree."""


class NaNLogitsError(SmcprogError):
    """A model returned NaN (or +inf) logits."""


class KVPoolError(SmcprogError):
    """The KV page pool is full; the message says how many tokens would have been enough."""


class ContextLengthError(SmcprogError):
    """A context is longer than the model's limit; the message gives both numbers."""


class WeightError(SmcprogError, ValueError):
    """A log weight that is NaN or +inf; the message names its source."""


class PotentialError(SmcprogError):
    """A potential that cannot be evaluated: it raised, or returned no number; shows the text."""


class DeadPopulationError(SmcprogError):
    """Every particle has weight zero.

    ``posteriors`` holds what ``on_dead="return"`` would have returned, for each program call.
    """

    posteriors: list[Any]
