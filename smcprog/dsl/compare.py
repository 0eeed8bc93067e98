"""Comparing what a replay sees with what was recorded.

Recorded arguments may be mutated by the program afterwards (``messages.append(reply)``), and
lambdas or objects of a replay are new ones. So what is recorded of a mutable value is its
*fingerprint*: a frozen summary of its contents.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from smcprog.dsl.asking import Inlinable
from smcprog.dsl.requests import Call, Draw, Request
from smcprog.potentials.base import Potential
from smcprog.text import Special, StopEvent, Text

ATOMS: frozenset[type] = frozenset(
    {str, Text, Special, int, bool, float, complex, bytes, type(None), type(...), StopEvent}
)
"""Immutable types that a copy or a fingerprint takes as they are."""

_NODES = 10_000  # a fingerprint looks at so many parts at most: a whole model may hang on an object
_BYTES = 10_000_000  # and hashes so much of arrays; beyond that dtype and shape tell them apart


def fingerprint(value: Any) -> Hashable:
    """A frozen summary: equal for the same object, and for objects of equal contents as they were.

    Functions count by code, defaults and closure; arrays and tensors by their bytes; objects by
    type and attributes. What cannot be looked into counts by its type alone, so a difference there
    is missed rather than invented.
    """
    return _Fingerprint().of(value)


class _Seen:
    """An object and its summary. The same object is the same whatever has happened to it since: it
    came from outside the program (a client, a closure's list), for a replay makes its own anew."""

    def __init__(self, value: Any, summary: Hashable) -> None:
        self.value = value
        self.summary = summary

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Seen):
            return False
        if self.value is other.value:
            return True
        return type(self.value) is type(other.value) and self.summary == other.summary


class _Fingerprint:
    def __init__(self) -> None:
        self.budget = _NODES
        self.bytes = _BYTES
        self.open: set[int] = set()

    def of(self, value: Any) -> Hashable:
        kind = type(value)
        if kind in ATOMS:
            if kind is float and value != value:
                return (float, "nan")
            return (kind, value)
        self.budget -= 1
        if self.budget < 0 or id(value) in self.open:
            return (kind,)
        self.open.add(id(value))
        try:
            return _Seen(value, self.inside(value))
        finally:
            self.open.discard(id(value))

    def inside(self, value: Any) -> Hashable:
        if isinstance(value, (list, tuple)):
            return tuple(map(self.of, value))
        if isinstance(value, dict):
            return frozenset((self.of(k), self.of(v)) for k, v in value.items())
        if isinstance(value, (set, frozenset)):
            return frozenset(map(self.of, value))
        if isinstance(value, (type, types.ModuleType)):
            return id(value)
        if isinstance(value, types.FunctionType):
            return (value.__code__, self.of(value.__defaults__), self.of(value.__closure__))
        if isinstance(value, types.CellType):
            return _cell(value, self)
        if isinstance(value, types.MethodType):
            return (self.of(value.__func__), self.of(value.__self__))
        if isinstance(value, functools.partial):
            return (self.of(value.func), self.of(value.args), self.of(value.keywords))
        if isinstance(value, (np.ndarray, np.generic)):
            return self.array(np.asarray(value))
        if is_tensor(value):
            return (str(value.dtype), tuple(value.shape), self.tensor(value))
        if isinstance(value, Inlinable):  # a program: its function says it all
            return self.of(value.__dict__.get("function"))
        if is_dataclass(value):
            return tuple(self.of(getattr(value, f.name, None)) for f in fields(value) if f.compare)
        if _defines_equality(type(value)) and _hashable(value):
            return ByValue(value)
        if hasattr(value, "__dict__"):
            return self.of(dict(vars(value)))
        return None

    def array(self, array: np.ndarray[Any, Any]) -> Hashable:
        if array.dtype == object:
            return (array.shape, self.of(array.tolist()))
        return (array.dtype.str, array.shape, self.digest(array))

    def tensor(self, tensor: Any) -> Hashable:
        if tensor.device.type != "cpu" or tensor.is_sparse or tensor.is_quantized:
            return None
        flat = tensor.detach().reshape(-1)
        return self.digest(flat.view(sys.modules["torch"].uint8).numpy())

    def digest(self, array: np.ndarray[Any, Any]) -> bytes | None:
        self.bytes -= array.nbytes
        return hashlib.sha1(array.tobytes()).digest() if self.bytes >= 0 else None


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


class ByValue:
    """A hashable value that defines equality itself. Where its ``==`` has no truth value, its type
    alone counts."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        try:
            return isinstance(other, ByValue) and bool(self.value == other.value)
        except Exception:
            return True


def _defines_equality(kind: Any) -> bool:
    return kind.__eq__ is not object.__eq__


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except Exception:
        return False
    return True


def _cell(cell: types.CellType, walk: _Fingerprint) -> Hashable:
    try:
        return walk.of(cell.cell_contents)
    except ValueError:
        return None


Given = tuple[tuple[Any, ...], dict[str, Any]]


def snapshot(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given | None:
    """The arguments as they are now, to be compared by ``==``; None where that is not enough."""
    given = (
        tuple(_kept(arg) for arg in args),
        {name: _kept(value) for name, value in kwargs.items()},
    )
    kept = all(value is not _NOT_KEPT for value in (*given[0], *given[1].values()))
    return given if kept else None


_NOT_KEPT = object()


def _kept(value: Any) -> Any:
    kind = type(value)
    if kind in ATOMS or kind is range or isinstance(value, Potential):
        return value
    if (kind is tuple or kind is list) and all(type(item) in ATOMS for item in value):
        return kind(value)
    return _NOT_KEPT


def recorded_arguments(request: Request) -> Hashable:
    """The fingerprint of what a request refers to and the program may still change, or None."""
    if isinstance(request, Draw):
        return fingerprint((request.values, request.weights))
    if isinstance(request, Call):
        return fingerprint((request.fn, request.args, request.batch))
    return None


def same_request(recorded: Request, arguments: Hashable, request: Request) -> bool:
    """Whether a replay asks for what was recorded (``arguments``: see `recorded_arguments`)."""
    if type(recorded) is not type(request):
        return False
    if arguments is not None:
        return arguments == recorded_arguments(request)
    try:
        if recorded == request:
            return True
    except Exception:
        pass  # e.g. arrays inside chat messages: the truth value of == is ambiguous
    return fingerprint(recorded) == fingerprint(request)
