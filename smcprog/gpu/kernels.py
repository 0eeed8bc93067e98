"""Where the Triton kernels (`smcprog.gpu.triton`) take over from PyTorch."""

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def kernels_serve(like: Tensor) -> bool:
    """Whether tensors like this one are for the kernels: on CUDA, and not in float64."""
    return like.is_cuda and like.dtype != torch.float64 and _installed()


@cache
def _installed() -> bool:
    return find_spec("triton") is not None
