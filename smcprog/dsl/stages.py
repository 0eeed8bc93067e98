"""Where a statement's potentials are evaluated, read off its source."""

from __future__ import annotations

import ast
import operator
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from smcprog.dsl.names import UNKNOWN, Names
from smcprog.dsl.site import Places
from smcprog.potentials.base import LM, Constraint, Potential, Product, TextPotential
from smcprog.potentials.lm import model
from smcprog.text import EOS, LEAVE

WHERE = {
    "mask": "in the draft's and the bonus's sampling step",
    "score": "in the target's batched pass",
    "block": "on the host, at the end of a round",
    "end": "on the host, when the text is complete",
}
LATER = "decided at run time"


@dataclass(frozen=True)
class Factor:
    """One potential of a statement: its source, and its stage (None: decided at run time).
    ``beside``: it is of another context or model, a factor beside `lm`."""

    source: str
    stage: str | None
    note: str = ""
    beside: bool = False


class _Unknown(Exception):
    """An expression that is decided at run time."""


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def _beside(potential: Potential) -> bool:
    if isinstance(potential, Product):
        return all(map(_beside, potential.factors)) and bool(potential.factors)
    return isinstance(potential, LM) and not potential.own


class PotentialReader:
    """Reads the potentials of one statement."""

    def __init__(self, names: Names, places: Places) -> None:
        self._names = names
        self._places = places

    def of_gen(self, node: ast.Call) -> tuple[tuple[Factor, ...], str]:
        """The potentials of a `gen`, and in words what ends its text."""
        factors = [factor for arg in node.args for factor in self._factors(arg)]
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        unknown = None in keywords or any(factor.stage is None for factor in factors)
        if not any(factor.stage == "score" and not factor.beside for factor in factors):
            factors.append(Factor("lm", "score", f"unless {LATER}" if unknown else ""))
        stop = self._stop(keywords.get("stop"), factors, unknown)
        limit = self._or_none(keywords.get("max_tokens", ast.Constant(512)))
        stop += f"; at most {limit or self._places.source(keywords['max_tokens'])} tokens"
        return tuple(factors), stop

    def of_observe(self, node: ast.Call) -> tuple[Factor, ...]:
        """The potentials of an `observe`."""
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        given = node.args[1] if len(node.args) > 1 else keywords.get("potential")
        return tuple(self._factors(given)) if given else (Factor("lm", "score"),)

    def _factors(self, node: ast.expr) -> Iterator[Factor]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield from self._factors(node.left)
            yield from self._factors(node.right)
            return
        source = self._places.source(node)
        try:
            value = self._evaluate(node)
        except _Unknown:
            yield Factor(source, self._promised(node), LATER, self._beside(node))
        except Exception as error:
            yield Factor(source, self._promised(node), f"{type(error).__name__}: {error}")
        else:
            yield from self._known(source, value)

    def _known(self, source: str, value: Any) -> Iterator[Factor]:
        if isinstance(value, Product) and len(value.factors) > 1:
            for factor in value.factors:
                yield Factor(repr(factor), factor.stage, f"in {source}", _beside(factor))
        elif isinstance(value, Potential):
            yield Factor(source, value.stage, beside=_beside(value))
        else:
            yield Factor(source, None, f"not a potential: {value!r:.60}")

    def _promised(self, node: ast.expr) -> str | None:
        """The stage of a potential whatever its arguments, by what its function returns."""
        if isinstance(node, ast.BinOp):
            return self._promised(node.left)
        if isinstance(node, ast.Name) and isinstance(self._names.name(node.id), LM):
            return "score"
        if not isinstance(node, ast.Call):
            return None
        callee = self._names.expression(node.func)
        if isinstance(node.func, ast.Attribute) and self._promised(node.func.value) == "score":
            return "score"
        try:
            returned = typing.get_type_hints(callee).get("return")
        except Exception:
            return None
        returned = callee if isinstance(callee, type) else returned
        if not isinstance(returned, type):
            return None
        if issubclass(returned, Constraint):
            return "mask"
        return "score" if issubclass(returned, LM) else None

    def _beside(self, node: ast.expr) -> bool:
        """Whether a factor that is decided at run time is of another context or model."""
        return any(
            (isinstance(part, ast.Attribute) and part.attr == "given")
            or (isinstance(part, ast.Call) and self._names.expression(part.func) is model)
            for part in ast.walk(node)
        )

    def _stop(self, node: ast.expr | None, factors: Sequence[Factor], unknown: bool) -> str:
        constrained = any(factor.stage == "mask" for factor in factors)
        leave, eos = "LEAVE (the model leaves the constraint)", "EOS (the model's end tokens)"
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            if constrained:
                return leave
            return f"LEAVE under a constraint, else EOS ({LATER})" if unknown else eos
        value = self._or_none(node)
        if value is None:
            return f"{self._places.source(node)} ({LATER})"
        stops = list(value) if isinstance(value, (tuple, list)) else [value]
        shown = [leave if s is LEAVE else eos if s is EOS else repr(s) for s in stops]
        if stops and not constrained and EOS not in stops:
            shown.append(f"{eos}, unless under a constraint" if unknown else eos)
        return " or ".join(shown) or "none"

    def _or_none(self, node: ast.expr | None) -> Any:
        try:
            return None if node is None else self._evaluate(node)
        except Exception:
            return None

    def _evaluate(self, node: ast.expr) -> Any:
        """The value of constants, globals, operators and constructors of potentials alone."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._found(self._names.name(node.id))
            case ast.Attribute():
                return self._found(self._names.expression(node))
            case ast.Tuple():
                return tuple(map(self._evaluate, node.elts))
            case ast.List():
                return list(map(self._evaluate, node.elts))
            case ast.Dict() if None not in node.keys:
                keys = [self._evaluate(key) for key in node.keys if key is not None]
                return dict(zip(keys, map(self._evaluate, node.values), strict=True))
            case ast.BinOp() if type(node.op) in _OPERATORS:
                left, right = self._evaluate(node.left), self._evaluate(node.right)
                return _OPERATORS[type(node.op)](left, right)
            case ast.UnaryOp() if type(node.op) in _OPERATORS:
                return _OPERATORS[type(node.op)](self._evaluate(node.operand))
            case ast.Call():
                callee = self._constructor(node.func)
                args: list[Any] = []
                for arg in node.args:
                    if isinstance(arg, ast.Starred):
                        args += self._evaluate(arg.value)
                    else:
                        args.append(self._evaluate(arg))
                named = {k.arg: self._evaluate(k.value) for k in node.keywords if k.arg}
                if len(named) == len(node.keywords):
                    return callee(*args, **named)
        raise _Unknown

    def _constructor(self, func: ast.expr) -> Any:
        if isinstance(func, ast.Attribute):
            owner = self._or_none(func.value)
            if isinstance(owner, Potential):
                return getattr(owner, func.attr)
        callee = self._found(self._names.expression(func))
        ours = str(getattr(callee, "__module__", "")).startswith("smcprog.potentials")
        if ours or (isinstance(callee, type) and issubclass(callee, (Constraint, TextPotential))):
            return callee
        raise _Unknown

    @staticmethod
    def _found(value: Any) -> Any:
        if value is UNKNOWN:
            raise _Unknown
        return value
