"""Numbers in a schema: bounds and values that the automaton library reads as they are meant."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from math import ceil, floor, isfinite
from typing import Any

from smcprog.potentials.json_refusal import Refusals, schema_error

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MAX_DEPTH = 40
_EXACT = 2**53
_TINY = 1e-12
_LARGEST_STEP = 100_000  # the automaton has a state for each remainder


def numbers(
    base: Mapping[str, Any], path: str, types: set[str], refusals: Refusals
) -> tuple[set[str], dict[str, Any]]:
    """The types that the bounds and multiples of a schema leave, and these as they are enforced."""
    emitted: dict[str, Any] = {}
    bounds = {key: _exact(base[key], f"{path}/{key}") for key in BOUNDS if key in base}
    lows: list[int | float] = []
    highs: list[int | float] = []
    step = _multiple_of(base, path, refusals)
    if "number" in types:
        types = types - {"integer"}
        if step:  # a multiple of an integer is an integer, and has a spelling without a point
            types = types - {"number"} | {"integer"}
    if step and "integer" in types:
        emitted["multipleOf"] = step
    if bounds and "integer" in types:
        lows = [ceil(bounds[key]) for key in ("minimum",) if key in bounds]
        lows += [floor(bounds[key]) + 1 for key in ("exclusiveMinimum",) if key in bounds]
        highs = [floor(bounds[key]) for key in ("maximum",) if key in bounds]
        highs += [ceil(bounds[key]) - 1 for key in ("exclusiveMaximum",) if key in bounds]
        first = step or 1
        if lows and highs and -(-max(lows) // first) * first > min(highs):
            types = types - {"integer"}
    elif bounds and "number" in types:
        for key, bound in bounds.items():
            at_least = key in ("minimum", "exclusiveMinimum")
            inner = _inward(bound, at_least, exclusive=key.startswith("exclusive"))
            (lows if at_least else highs).append(inner)
        if lows and highs and max(lows) > min(highs):
            types = types - {"number"}
    emitted |= {"minimum": max(lows)} if lows else {}
    emitted |= {"maximum": min(highs)} if highs else {}
    return types, emitted if types & {"integer", "number"} else {}


def count(base: Mapping[str, Any], key: str, path: str) -> dict[str, int]:
    """A keyword whose value is a number of things, if it is there."""
    if key not in base:
        return {}
    value = base[key]
    whole = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not whole or value < 0 or value != int(value):
        raise schema_error(f"{path}/{key}", f"a whole number is needed, not {_shown(value)}")
    if value > 1_000_000_000:
        raise schema_error(f"{path}/{key}", f"{_shown(value)} is too large")
    return {key: int(value)}


def plain(value: Any, path: str, depth: int = 0) -> Any:
    """A JSON value with its numbers spelled plainly: 1.0 as 1.

    Raises:
        GrammarError: if it is nested too deeply, or has a number that cannot be spelled out.
    """
    if depth > _MAX_DEPTH:
        raise schema_error(path, f"the value is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict):
        return {key: plain(inner, path, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(item, path, depth + 1) for item in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _spelled_out(value, path)
    return value


def _exact(value: Any, path: str) -> int | float:
    """A number that double precision holds and that is written in few digits."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise schema_error(path, f"a finite number is needed, not {_shown(value)}")
    if value == int(value):
        value = int(value)
    if abs(value) > _EXACT:
        raise schema_error(path, f"{_shown(value)} is beyond 2**53, where numbers are not exact")
    if value and abs(value) < _TINY:
        raise schema_error(path, f"{value!r} has too many decimals")
    return value


def _spelled_out(value: int | float, path: str) -> int | float:
    """An exact number of the 15 digits that the automaton library reads of a fraction."""
    value = _exact(value, path)
    if isinstance(value, float) and Decimal(repr(value)) != Context(prec=15).create_decimal(
        repr(value)
    ):
        raise schema_error(path, f"{value!r} has more than 15 digits")
    return value


def _multiple_of(base: Mapping[str, Any], path: str, refusals: Refusals) -> int | None:
    if "multipleOf" not in base:
        return None
    step = base["multipleOf"]
    if isinstance(step, bool) or not isinstance(step, int | float) or not step > 0:
        raise schema_error(f"{path}/multipleOf", f"a number > 0 is needed, not {_shown(step)}")
    if step > _LARGEST_STEP or step != int(step):
        refusals.unsupported(path, "multipleOf", f"is supported for integers up to {_LARGEST_STEP}")
        return None
    return int(step)


def _inward(bound: int | float, at_least: bool, exclusive: bool) -> int | float:
    """An inclusive bound of 15 digits at or within a bound.

    Of more digits, the library may read the neighbouring float.
    """
    context = Context(prec=15, rounding=ROUND_CEILING if at_least else ROUND_FLOOR)
    exact = Decimal(repr(bound))
    inner = context.plus(exact)
    if exclusive and inner == exact:
        inner = context.next_plus(exact) if at_least else context.next_minus(exact)
    if 0 < abs(inner) < Decimal(_TINY):
        towards = 1 if at_least else -1
        inner = Decimal(repr(_TINY)) * towards if inner * towards > 0 else Decimal(0)
    return int(inner) if inner == int(inner) else float(inner)


def _shown(value: Any) -> str:
    """A value for a message; the integers that Python does not print are left out."""
    if isinstance(value, int) and abs(value) > 10**40:
        return "a number of more than 40 digits"
    return f"{value!r:.100}"
