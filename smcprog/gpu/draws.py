"""What a draw returns, by whatever kernel."""

from typing import NamedTuple

from torch import Tensor


class Draws(NamedTuple):
    """One event a row: ``events`` int64[n], its normalised ``log_p`` float64[n] (NaN where no event
    has mass), and ``log_total`` float64[n], the logsumexp of the row."""

    events: Tensor
    log_p: Tensor
    log_total: Tensor
