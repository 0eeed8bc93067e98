"""How a run is made: what a user may ask for, and the record of what was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from smcprog.inference.resampling import SCHEMES
from smcprog.inference.roofline import FIRST_BLOCK, MOST_BLOCK, Roofline

Block = int | Literal["auto"] | None
"""What `Runner.run` takes as ``block``."""


@dataclass(frozen=True)
class Settings:
    """How a run is made: the arguments of `Engine.run`, checked. ``verified`` is how many drafted
    events of a block stand by rejection; the others are weighted. With ``costs``, ``block`` is
    where K begins, and the run chooses it by them from then on."""

    particles: int
    block: int
    verified: int
    ess_threshold: float
    resampling: str
    resample: Literal["round", "sync"]
    draft_temperature: float | None
    max_tokens: int
    costs: Roofline | None = None


def check_seed(seed: object) -> int:
    """The seed, where it is one."""
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**128:
        raise ValueError(f"seed={seed!r}: a seed is an integer from 0 to 2**128 - 1")
    return int(seed)


def for_each(name: str, value: Any, number: int | None) -> Sequence[Any]:
    """A setting of each of ``number`` program calls; None for a single one."""
    if not isinstance(value, list | tuple):
        return [value] * (1 if number is None else number)
    if len(value) != number:
        calls = "one program call" if number is None else f"{number} program calls"
        raise ValueError(f"{name}={value!r}: {len(value)} values for {calls}")
    return value


def check_settings(
    particles: int,
    block: Block,
    has_draft: bool,
    *,
    verify: Literal["weight", "reject"] | int = "weight",
    ess_threshold: float = 0.5,
    resampling: str = "systematic",
    resample: Literal["round", "sync"] = "round",
    draft_temperature: float | None = None,
    max_tokens: int = 4096,
    costs: Roofline | None = None,
) -> Settings:
    """The settings of a run, checked.

    Raises:
        ValueError: naming the setting, its value, and what it may be.
    """
    particles = checked_integer("particles", particles, 1)
    adapts = block == "auto" and has_draft
    if block is None or block == "auto":
        block = FIRST_BLOCK if has_draft else 0
    if isinstance(block, str):
        raise ValueError(f'block={block!r}: it is a number of tokens, None or "auto"')
    block = checked_integer("block", block, 0)
    most = MOST_BLOCK if adapts else block
    max_tokens = checked_integer("max_tokens", max_tokens, 1)
    if block and not has_draft:
        raise ValueError(
            f"block={block} needs a draft model: Engine(target, draft=...), or block=0 for "
            "token-by-token SMC"
        )
    if not ess_threshold >= 0:
        raise ValueError(f"ess_threshold={ess_threshold!r}: it is a fraction of N, at least 0")
    if resampling not in SCHEMES:
        raise ValueError(f"resampling={resampling!r}: say one of {', '.join(SCHEMES)}")
    if resample not in ("round", "sync"):
        raise ValueError(f'resample={resample!r}: say "round" or "sync"')
    if verify == "weight":
        verified = 0
    elif verify == "reject":
        verified = most
    elif isinstance(verify, int | np.integer) and not isinstance(verify, bool) and verify >= 0:
        verified = min(int(verify), most)
    else:
        raise ValueError(f'verify={verify!r}: say "weight", "reject", or an integer of at least 0')
    if draft_temperature is not None and not 0 <= draft_temperature < np.inf:
        raise ValueError(f"draft_temperature={draft_temperature!r}: it is finite and at least 0")
    if draft_temperature == 0 and verified < most:
        raise ValueError(
            "draft_temperature=0 proposes one token only, and a weighted draft has to cover the "
            'target: take a positive one, or verify="reject"'
        )
    return Settings(
        particles,
        block,
        verified,
        ess_threshold,
        resampling,
        resample,
        draft_temperature,
        max_tokens,
        costs if adapts else None,
    )


def checked_integer(name: str, value: object, least: int) -> int:
    """An integer of at least ``least``, NumPy's too."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r}: it must be an integer of at least {least}")
    return int(value)
