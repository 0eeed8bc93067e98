"""The bytes of each token id, and which ids are text at all.

Everything that must not depend on a tokenizer library (masks, stop strings, the tabular engine)
works on this record. Ids are columns of the logits: padding columns count, with no bytes.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from smcprog.errors import VocabularyError

Bits = NDArray[np.uint32]


class Vocabulary:
    """Token ids ``0 .. size - 1`` with their bytes.

    Args:
        tokens: the bytes of each id; the entry of a control id is ignored.
        eos_ids: the model's end tokens, collapsed into one EOS event.
        control_ids: special tokens, chat markers and padding. They carry no text and are masked
            in every ``gen``. The EOS ids always count among them.

    Compared by identity: compiled constraints are cached per vocabulary object.
    """

    def __init__(
        self, tokens: Sequence[bytes], eos_ids: Iterable[int] = (), control_ids: Iterable[int] = ()
    ) -> None:
        self.eos_ids: tuple[int, ...] = tuple(sorted(set(eos_ids)))
        self.control_ids: frozenset[int] = frozenset(control_ids) | set(self.eos_ids)
        self.tokens: tuple[bytes, ...] = tuple(
            b"" if i in self.control_ids else bytes(token) for i, token in enumerate(tokens)
        )
        self.size: int = len(self.tokens)

    @property
    def words(self) -> int:
        """Number of uint32 words in a bit mask over the ids."""
        return (self.size + 31) // 32

    @cached_property
    def ordinary(self) -> Bits:
        """Bit mask, uint32[words]: the ids that may be drawn as text (no control, not empty)."""
        allowed = np.array([bool(token) for token in self.tokens])
        return pack(allowed)

    @cached_property
    def _ids_by_bytes(self) -> dict[bytes, int]:
        ids: dict[bytes, int] = {}
        for i, token in enumerate(self.tokens):
            if token:
                ids.setdefault(token, i)
        return ids

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max((len(token) for token in self.tokens), default=0)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of a token sequence; control ids contribute none."""
        return b"".join(self.tokens[i] for i in ids)

    def encode(self, data: bytes) -> list[int]:
        """Byte-exact greedy longest-match encoding, by ordinary tokens alone.

        Raises:
            VocabularyError: if some byte begins no token of the vocabulary.
        """
        ids: list[int] = []
        at = 0
        while at < len(data):
            for length in range(min(self.longest, len(data) - at), 0, -1):
                token = self._ids_by_bytes.get(data[at : at + length])
                if token is not None:
                    ids.append(token)
                    at += length
                    break
            else:
                raise VocabularyError(
                    f"the vocabulary has no token for the byte {data[at : at + 1]!r} "
                    f"at position {at} of {data!r}"
                )
        return ids


def pack(allowed: NDArray[np.bool_]) -> Bits:
    """Pack bool[size] into uint32[ceil(size / 32)], bit i % 32 of word i // 32 for id i."""
    padded = np.zeros((len(allowed) + 31) // 32 * 32, dtype=bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint32)


def unpack(bits: Bits, size: int) -> NDArray[np.bool_]:
    """The inverse of `pack`: uint32[words] (or [n, words]) to bool[..., size]."""
    flat = np.ascontiguousarray(bits).view(np.uint8)
    return np.unpackbits(flat, axis=-1, bitorder="little")[..., :size].astype(bool)


BYTES = Vocabulary([bytes([i]) for i in range(256)])
"""The vocabulary of single bytes: a constraint started on it is an acceptor of byte strings."""
