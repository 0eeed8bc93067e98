"""Run the kernels on CUDA where there is a device, else in Triton's interpreter on the CPU (which
the conftest.py of the repository asks for)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

tl = pytest.importorskip("triton.language")
interpreter = pytest.importorskip("triton.runtime.interpreter")

_patch_lang_tensor = interpreter._patch_lang_tensor
_create_dot = interpreter.InterpreterBuilder.create_dot


def _with_index(tensor: type, scope: Any) -> None:
    """NumPy 2.4 no longer makes an int of an array of one element: `range` of kernel scalars."""
    _patch_lang_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


def _with_bfloat16(self: Any, a: Any, b: Any, *rest: Any) -> Any:
    """The interpreter keeps bfloat16 as bits in uint16, and its `dot` multiplies those."""
    if a.dtype.scalar == tl.bfloat16:
        a, b = (self.cast_impl(x, tl.float32) for x in (a, b))
    return _create_dot(self, a, b, *rest)


interpreter._patch_lang_tensor = _with_index
interpreter.InterpreterBuilder.create_dot = _with_bfloat16


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """Every tensor that is allocated without a value holds NaN, or the largest integer."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
