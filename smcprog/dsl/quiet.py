"""What a replay must not do twice (print), and must not do at all (use global randomness)."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_lock = threading.Lock()
_mute = threading.local()
_replaying = 0  # threads that replay right now; the streams are wrapped while there are any


class _Muted:
    """A standard stream that drops what replaying threads write and passes on the rest."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if getattr(_mute, "depth", 0):
            return len(text)
        written: int = self._stream.write(text)
        return written

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def muted() -> Iterator[None]:
    """Drop what this thread prints. Other threads go on printing."""
    global _replaying
    with _lock:
        _replaying += 1
        if _replaying == 1:
            sys.stdout, sys.stderr = _Muted(sys.stdout), _Muted(sys.stderr)
    _mute.depth = getattr(_mute, "depth", 0) + 1
    try:
        yield
    finally:
        _mute.depth -= 1
        with _lock:
            _replaying -= 1
            if not _replaying:
                # A program may have redirected a stream meanwhile: that one is left to it.
                if isinstance(sys.stdout, _Muted):
                    sys.stdout = sys.stdout._stream
                if isinstance(sys.stderr, _Muted):
                    sys.stderr = sys.stderr._stream


def random_states() -> dict[str, object]:
    """The states of the global random generators, comparable by ``==``."""
    numpy_state: Any = np.random.get_state()
    states: dict[str, object] = {
        "random": random.getstate(),
        "numpy.random": (numpy_state[1].tobytes(), *numpy_state[2:]),
    }
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states
