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
from numbers import Real
from typing import ClassVar, Literal, Protocol

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

    def __add__(self, other: object) -> Product:
        raise TypeError("potentials multiply: write a * b, not a + b")

    __radd__ = __add__


@dataclass(frozen=True)
class LM(Potential):
    """A factor p_i(x)^alpha of the target language model.

    ``temperature``, ``top_p`` and ``top_k`` make the locally normalised variant p_i of the model's
    next-token distribution: logits / temperature, then the top_k most probable tokens, then the
    smallest set of mass >= top_p, renormalised. ``alpha`` then powers the whole sequence, without
    renormalisation.

    Raises:
        ValueError: unless alpha > 0, temperature > 0, 0 < top_p <= 1 and top_k >= 1.
    """

    alpha: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and isfinite(self.alpha)):
            raise ValueError(f"the exponent of lm must be finite and > 0, not {self.alpha!r}")
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

    def __pow__(self, alpha: float) -> LM:
        """The sequence-level power p(x)^alpha, unnormalised: ``lm**2``."""
        if not isinstance(alpha, Real):
            raise TypeError(f"the exponent of lm is a number, not {alpha!r}")
        return replace(self, alpha=self.alpha * float(alpha))

    def at(self, temperature: float = 1.0, top_p: float = 1.0, top_k: int | None = None) -> LM:
        """The locally normalised variant: what sampling at these settings would draw from."""
        return replace(self, temperature=temperature, top_p=top_p, top_k=top_k)

    def __repr__(self) -> str:
        default = LM.__dataclass_fields__
        settings = ", ".join(
            f"{name}={getattr(self, name)}"
            for name in ("temperature", "top_p", "top_k")
            if getattr(self, name) != default[name].default
        )
        variant = f"lm.at({settings})" if settings else "lm"
        return variant if self.alpha == 1 else f"{variant}**{_number(self.alpha)}"


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
            texts: a character whose bytes are not all there yet is left out of ``str`` (of
                ``tokens`` it is not). Of a complete text, what ``tokens`` has beyond its bytes is
                its stop.
            complete: whether the texts are complete.

        Returns:
            float64[len(texts)]; -inf is legal, and must then hold for all that begins with the
            text. NaN and +inf are errors.
        """


@dataclass(frozen=True)
class Product(Potential):
    """A product of potentials, sorted by stage. With no explicit `LM`, alpha is 1.

    Exponents of equal variants add up (``lm * lm**2`` is ``lm**3``), and a constraint counts once.
    Products with the same factors after that are equal.
    """

    factors: tuple[Potential, ...] = field(default=(), compare=False)
    lms: tuple[LM, ...] = field(init=False)
    constraints: tuple[Constraint, ...] = field(init=False)
    texts: tuple[TextPotential, ...] = field(init=False)

    def __post_init__(self) -> None:
        lms = _merged([f for f in self.factors if isinstance(f, LM)]) or (LM(),)
        constraints = dict.fromkeys(f for f in self.factors if isinstance(f, Constraint))
        texts = tuple(f for f in self.factors if isinstance(f, TextPotential))
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


def _merged(lms: Sequence[LM]) -> tuple[LM, ...]:
    """Add up the exponents of equal variants: lm * lm**2 is lm**3."""
    exponents: dict[tuple[float, float, int | None], float] = {}
    for lm in lms:
        variant = (lm.temperature, lm.top_p, lm.top_k)
        exponents[variant] = exponents.get(variant, 0.0) + lm.alpha
    return tuple(LM(alpha, *variant) for variant, alpha in exponents.items())
