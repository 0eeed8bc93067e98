"""What shapes a text: the potentials of a `gen`, and where each is evaluated.

A potential is an immutable expression, built once and compared by value. It takes part in one of
four stages (DESIGN: section 4):

- **mask**: a `Constraint`, evaluated in every sampling step of draft and bonus;
- **score**: an `LM` factor, evaluated in the target's batched pass;
- **block** and **end**: a `TextPotential`, evaluated on the host, at the end of each round or
  when the text is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from numbers import Integral, Real
from os import PathLike
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from smcprog.text import Text
from smcprog.vocabulary import Bits, Vocabulary

Stage = Literal["mask", "score", "block", "end"]


class Potential(ABC):
    """A non-negative function of a text, as a factor of a `gen`'s target.

    ``a * b`` is the product. Subclass `Constraint` or `TextPotential`, not this.

    Raises:
        TypeError: from arithmetic that is not a product of potentials; it says what to write.
    """

    @property
    @abstractmethod
    def stage(self) -> Stage:
        """Where the potential is evaluated."""

    def __mul__(self, other: Potential) -> Product:
        return product(self, other)

    def __rmul__(self, other: object) -> Product:
        # Only asked where the left operand is no potential: the error is the same.
        return product(self, other)  # type: ignore[arg-type]

    def __deepcopy__(self, memo: object) -> Self:
        """Immutable, and it may hold a model: copies of a program's arguments share it."""
        return self

    def __add__(self, other: object) -> Product:
        raise TypeError("potentials multiply: write a * b, not a + b")

    __radd__ = __add__


@dataclass(frozen=True)
class LM(Potential):
    """A factor p_i(x)^alpha of a language model; see `lm` and `model`.

    Attributes:
        alpha: powers the whole sequence, without renormalisation.
        temperature, top_p, top_k: make the locally normalised variant p_i of the model's
            next-token distribution: logits / temperature, then the top_k most probable tokens,
            then the smallest set of mass >= top_p, renormalised.
        text: what the factor reads before the text that is drawn; None for the program's context.
        source: the model, where it is not the target: a folder, hub name or (model, tokenizer).
        over: the tokens over which the exponent grows from 1 to alpha; 0 for alpha from the start.

    Raises:
        ValueError: unless alpha > 0 (for another context or model: alpha != 0), temperature > 0,
            0 < top_p <= 1 and top_k >= 1.
    """

    alpha: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    text: str | None = None
    source: Any = None
    over: int = 0

    def __post_init__(self) -> None:
        if not (self.alpha > 0 or (not self.own and self.alpha < 0)) or not isfinite(self.alpha):
            allowed = "> 0" if self.own else "not 0"
            raise ValueError(
                f"the exponent of {self._base()} must be finite and {allowed}, not {self.alpha!r}"
            )
        if self.temperature == 0:
            raise ValueError(
                "lm.at(temperature=0) is no distribution to weight by: take a small temperature "
                "such as 0.1, or a power such as lm**8"
            )
        if not (self.temperature > 0 and isfinite(self.temperature)):
            raise ValueError(f"temperature must be finite and > 0, not {self.temperature!r}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p!r}")
        if self.top_k is not None and not (self.top_k >= 1 and self.top_k == int(self.top_k)):
            raise ValueError(f"top_k must be an integer >= 1 or None, not {self.top_k!r}")

    @property
    def stage(self) -> Stage:
        return "score"

    @property
    def own(self) -> bool:
        """Whether it is the target under the program's own context."""
        return self.text is None and self.source is None

    @property
    def variant(self) -> LM:
        """The distribution p_i itself: without exponent and schedule."""
        return replace(self, alpha=1.0, over=0)

    def exponent(self, length: int) -> float:
        """The exponent that a text of ``length`` tokens is compared by before it is complete."""
        if length >= self.over:
            return self.alpha
        return 1.0 + (self.alpha - 1.0) * length / self.over

    def __pow__(self, alpha: float) -> LM:
        """The sequence-level power p(x)^alpha, unnormalised: ``lm**2``."""
        if not isinstance(alpha, Real):
            raise TypeError(f"the exponent of {self._base()} is a number, not {alpha!r}")
        return replace(self, alpha=self.alpha * float(alpha))

    def at(self, temperature: float = 1.0, top_p: float = 1.0, top_k: int | None = None) -> LM:
        """The locally normalised variant: what sampling at these settings would draw from.

        >>> lm.at(temperature=0.7, top_p=0.9)
        lm.at(temperature=0.7, top_p=0.9)
        """
        return replace(self, temperature=temperature, top_p=top_p, top_k=top_k)

    def given(self, text: str) -> LM:
        """The same model under another context: ``text``, and then what the `gen` draws.

        It is a further factor, beside `lm`: ``lm.given(a)`` makes a product of experts, and a
        negative power a contrast. Every such context is scored in the target's batched pass.

        The target is over token sequences: a text counts with every way to spell it in tokens. A
        strong contrast can put most of its mass on unusual spellings, where the other model's
        probability is tiny; few particles then miss it. Compare a few seeds and ``block=0``.

        >>> @smc_program
        ... def physicist_and_writer():
        ...     prompt("My favourite physicist is")
        ...     return gen(lm.given("My favourite writer is"), stop=".", max_tokens=8)
        >>> engine.run(physicist_and_writer(), particles=4, seed=0).best != ""
        True
        >>> lm.given("") ** -0.5
        lm.given('')**-0.5
        """
        if not isinstance(text, str):
            raise TypeError(f"lm.given() takes text (str), not {type(text).__name__}")
        return replace(self, text=str(text))

    def growing(self, over: int) -> LM:
        """Let the exponent grow from 1 to alpha along the first ``over`` tokens of a text.

        The target stays p(x)^alpha: a text is compared by the smaller exponent only until it has
        so many tokens or is complete, which steadies the weights (arXiv 2602.10273).

        >>> (lm**4).growing(over=64)
        (lm**4).growing(over=64)

        Raises:
            ValueError: unless ``over`` is a positive integer, and the factor `lm` itself.
        """
        if isinstance(over, bool) or not isinstance(over, Integral) or over < 1:
            raise ValueError(f"growing(over={over!r}): it is a number of tokens, at least 1")
        if not self.own:
            raise ValueError("only a power of lm itself can grow: (lm**4).growing(over=64)")
        return replace(self, over=int(over))

    def _base(self) -> str:
        default = LM.__dataclass_fields__
        settings = ", ".join(
            f"{name}={getattr(self, name)}"
            for name in ("temperature", "top_p", "top_k")
            if getattr(self, name) != default[name].default
        )
        name = "lm" if self.source is None else f"model({_source_name(self.source)})"
        given = "" if self.text is None else f".given({_shortened(self.text)!r})"
        return f"{name}{given}.at({settings})" if settings else f"{name}{given}"

    def __repr__(self) -> str:
        power = self._base() if self.alpha == 1 else f"{self._base()}**{_number(self.alpha)}"
        return f"({power}).growing(over={self.over})" if self.over else power


class Matcher(Protocol):
    """The state of one constraint along one text. Mutable; `fork` to branch."""

    def mask(self) -> Bits:
        """Bit mask uint32[words] of the tokens that may follow: exactly those after which some
        completion still satisfies the constraint. Control ids are never set."""
        ...

    def advance(self, token: int) -> bool:
        """Consume a token; False (and the matcher is spent) where the mask forbids it."""
        ...

    def accepts(self) -> bool:
        """Whether the text so far satisfies the constraint."""
        ...

    def fork(self) -> Matcher: ...


class Constraint(Potential):
    """A hard constraint R on the generated bytes: 1 where they belong to R, 0 elsewhere.

    Equal constraints are compiled once per vocabulary.
    """

    @property
    def stage(self) -> Stage:
        return "mask"

    @abstractmethod
    def start(self, vocabulary: Vocabulary, followed_by: tuple[str, ...] = ()) -> Matcher:
        """A matcher at the empty text.

        With ``followed_by`` strings s1 .. sn it is the matcher of R.(s1|..|sn).Sigma* instead,
        whose viable prefixes are the mask of a `gen` that ends at a stop string.

        Raises:
            GrammarError: if the constraint cannot be compiled.
        """


class TextPotential(Potential):
    """A potential that is evaluated on whole texts, on the host.

    With ``stage == "block"`` it is asked for incomplete texts after each round and charged as
    new - old (0 before the text begins), so that the sum telescopes to its last evaluation, which
    is of the complete text without its stop. With ``stage == "end"`` only that one is made.

    Attributes:
        reads_tokens: whether the value depends on ``text.tokens``, not on the characters alone.
            Texts that are equal are asked for once; with this, where their tokens are equal too.
    """

    reads_tokens: ClassVar[bool] = False

    @abstractmethod
    def log_potential(self, texts: Sequence[Text], complete: bool) -> NDArray[np.float64]:
        """Log weights of different texts, all of them complete or none.

        Args:
            texts: of one that goes on, a character whose bytes are not all there yet, and what may
                be the beginning of a stop string, are left out of ``str`` (of ``tokens`` they are
                not). Of a complete text, what ``tokens`` has beyond its bytes is its stop.
            complete: whether the texts are complete.

        Returns:
            float64[len(texts)]; -inf is legal, and must then hold for all that begins with the
            text. NaN and +inf are errors.
        """


@dataclass(frozen=True)
class Product(Potential):
    """A product of potentials, sorted by stage. With no explicit `lm`, its exponent is 1.

    Exponents of equal variants add up (``lm * lm**2`` is ``lm**3``), and a constraint counts once.
    Products with the same factors after that are equal. ``lms`` begins with the target's own.
    """

    factors: tuple[Potential, ...] = field(default=(), compare=False)
    lms: tuple[LM, ...] = field(init=False)
    constraints: tuple[Constraint, ...] = field(init=False)
    texts: tuple[TextPotential, ...] = field(init=False)

    def __post_init__(self) -> None:
        lms = _merged([f for f in self.factors if isinstance(f, LM)])
        constraints = dict.fromkeys(f for f in self.factors if isinstance(f, Constraint))
        texts = tuple(f for f in self.factors if isinstance(f, TextPotential))
        for text in texts:
            try:
                hash(text)
            except TypeError as error:
                raise TypeError(
                    f"{text!r} cannot be hashed ({error}); texts are asked for once a potential, "
                    "so it must be, such as a frozen dataclass of strings, numbers and tuples"
                ) from error
            if text.stage not in ("block", "end"):
                raise ValueError(
                    f"{text!r} has stage={text.stage!r}: a TextPotential is evaluated at "
                    '"block" (after each round) or "end" (of the complete text)'
                )
        object.__setattr__(self, "lms", lms)
        object.__setattr__(self, "constraints", tuple(constraints))
        object.__setattr__(self, "texts", texts)

    @property
    def stage(self) -> Stage:
        return "score"

    def __repr__(self) -> str:
        return " * ".join(map(repr, (*self.lms, *self.constraints, *self.texts)))


def product(*potentials: Potential) -> Product:
    """The product of potentials, flattened.

    Raises:
        TypeError: for a factor that is no potential.
    """
    factors: list[Potential] = []
    for potential in potentials:
        if isinstance(potential, Product):
            factors.extend(potential.factors)
        elif isinstance(potential, LM | Constraint | TextPotential):
            factors.append(potential)
        else:
            raise TypeError(f"{potential!r} is no potential; {_remedy(potential)}")
    return Product(tuple(factors))


def _remedy(value: object) -> str:
    if isinstance(value, str):
        return f"choice({value!r}) or regex({value!r}) is one"
    if isinstance(value, int | float):
        return f"a power of the model is lm**{value!r}, a constant weight is factor(log(...))"
    return "potentials are lm, regex(...), choice(...), ..., and their products"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _source_name(source: Any) -> str:
    return repr(str(source)) if isinstance(source, str | PathLike) else type(source[0]).__name__


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _merged(lms: Sequence[LM]) -> tuple[LM, ...]:
    """The target's own factors, `lm` if there is none, then the others; exponents of equal
    variants are added up: lm * lm**2 is lm**3."""
    own = [lm for lm in lms if lm.own] or [LM()]
    exponents: dict[LM, float] = {}
    for lm in [*own, *(lm for lm in lms if not lm.own)]:
        unit = replace(lm, alpha=1.0)
        exponents[unit] = exponents.get(unit, 0.0) + lm.alpha
    return tuple(replace(lm, alpha=alpha) for lm, alpha in exponents.items() if alpha)
