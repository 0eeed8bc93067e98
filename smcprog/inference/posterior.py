"""The result of a run: a weighted sample of the program's return value."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, SupportsFloat, overload

import numpy as np
from numpy.typing import NDArray

from smcprog.inference.population import Death, RoundRecord, TraceEntry
from smcprog.inference.weights import effective_sample_size, log_evidence, normalised

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from typing_extensions import TypeVar

    T = TypeVar("T", default=Any)  # `Posterior` alone is of values of any type
else:
    from typing import TypeVar

    T = TypeVar("T")

H = TypeVar("H", bound=Hashable)

FORMAT = "smcprog.posterior/1"


@dataclass(frozen=True)
class Stats:
    """What a run cost.

    ``peak_kv_tokens`` counts each shared page once; ``unshared_kv_tokens`` is what N separate
    caches would have held at their peak. ``seconds`` is of all runs that went together.
    """

    rounds: int
    drafted_tokens: int
    scored_tokens: int
    target_passes: int
    draft_passes: int
    resamplings: int
    peak_kv_tokens: int
    unshared_kv_tokens: int
    kv_tokens_copied: int
    seconds: float

    def __getitem__(self, name: str) -> float:
        if name not in {one.name for one in fields(self)}:
            raise KeyError(name)
        value: float = getattr(self, name)
        return value


@dataclass(eq=False, repr=False)
class Posterior(Generic[T]):
    """A properly weighted sample: E[exp(log_evidence) * expect(f)] = sum_x gamma(x) f(x).

    To a type checker it is a ``Posterior[T]``, with T the return type of the program.

    Attributes:
        values: the program's return value, per particle; None of a particle of weight zero.
        texts: what its `gen` statements drew, joined.
        tokens: the ids of those draws.
        log_weights: float64[N], natural log; -inf legal.
        roots: the slot in which each particle's lineage began.
        truncated: whether a text of the particle was cut at its token budget.
        rounds: a `RoundRecord` each.
        deaths: what particles died of: a `Death` (round, source, number, example) for each round
            and source. Contexts that outgrew ``max_tokens`` are among them.
        stats: what the run cost.
        seed: the seed that was used; ``run(..., seed=posterior.seed)`` repeats the run.
        spellings: the text of each token id in ``rounds``.

    The examples are of a die, drawn by ``draw(range(1, 7))``, that must show an even number.

    >>> len(posterior), posterior.seed
    (64, 0)
    >>> -1.1 < posterior.log_evidence < -0.4  # log Z is log(1/2)
    True
    >>> 20 < posterior.ess < 50
    True
    """

    values: list[T | None]
    texts: list[str]
    tokens: list[list[int]]
    log_weights: NDArray[np.float64]
    roots: list[int]
    truncated: list[bool]
    traces: list[list[TraceEntry]]
    rounds: list[RoundRecord]
    deaths: list[Death]
    stats: Stats
    seed: int
    spellings: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        if not self.values:
            return "Posterior(no particles, log_evidence=-inf)"
        return (
            f"Posterior({len(self)} particles, log_evidence={self.log_evidence:.3f}, "
            f"ess={self.ess:.1f}, unique_roots={self.unique_roots})"
        )

    @property
    def weights(self) -> NDArray[np.float64]:
        """Normalised weights, float64[N], summing to 1."""
        return normalised(self.log_weights) if self.values else np.zeros(0)

    @property
    def log_evidence(self) -> float:
        """log of the estimate of Z = sum_x gamma(x): the mean weight; -inf when all died."""
        return log_evidence(self.log_weights)

    @property
    def ess(self) -> float:
        """Effective sample size of the final population."""
        return effective_sample_size(self.log_weights)

    @property
    def unique_roots(self) -> int:
        """How many of the first particles have a descendant of positive weight. A high ESS says
        little where this is 1."""
        weights = self.log_weights
        return len({r for r, w in zip(self.roots, weights, strict=True) if w > -np.inf})

    @property
    def best(self) -> T:
        """The value of most posterior mass, equal values pooled.

        >>> posterior.best["shown"] in (2, 4, 6)
        True

        Raises:
            ValueError: when every particle died.
        """
        self._need_particles("best")
        best: T = self.pooled()[0][0]
        return best

    def sample(self, n: int = 1, seed: int | None = None) -> list[T]:
        """n values drawn by weight, with replacement.

        >>> all(value["shown"] % 2 == 0 for value in posterior.sample(10, seed=1))
        True
        """
        self._need_particles("sample")
        rng = np.random.default_rng(seed)
        values: list[Any] = self.values
        return [values[i] for i in rng.choice(len(self), size=n, p=self.weights)]

    @overload
    def expect(  # type: ignore[overload-overlap]
        self, fn: Callable[[T], NDArray[Any] | Sequence[float]]
    ) -> NDArray[np.float64]: ...
    @overload
    def expect(self, fn: Callable[[T], SupportsFloat]) -> float: ...
    @overload
    def expect(self, fn: str | int) -> Any: ...
    def expect(self, fn: Any) -> Any:
        """E[fn(value)], the weighted mean: a float, or an array where fn returns arrays.

        ``fn`` may also be a key or index into the value, as in `marginal`.

        >>> 3 < posterior.expect("shown") < 5
        True
        >>> posterior.expect(lambda value: value["shown"] > 6)
        0.0
        """
        self._need_particles("expect")
        fn = _picker(fn)
        terms = [
            w * np.asarray(fn(value), dtype=np.float64)
            for value, w in zip(self.values, self.weights, strict=True)
            if w > 0
        ]
        mean = sum(terms[1:], terms[0])
        return float(mean) if np.ndim(mean) == 0 else mean

    @overload
    def marginal(self: Posterior[H], key: None = None) -> dict[H, float]: ...
    @overload
    def marginal(self, key: Callable[[T], H]) -> dict[H, float]: ...
    @overload
    def marginal(self, key: Any = None) -> dict[Any, float]: ...
    def marginal(self, key: Any = None) -> dict[Any, float]:
        """A dict from value to probability, largest first.

        Args:
            key: a function of the value, or a key or index into it (then an attribute of it);
                None is the value itself. Values that cannot be hashed stand by their JSON, or
                else their repr.

        >>> sorted(posterior.marginal("shown"))
        [2, 4, 6]
        >>> list(posterior.marginal(lambda value: value["shown"] < 7))
        [True]
        """
        self._need_particles("marginal")
        pooled = self.pooled(key)
        taken = {value for value, _ in pooled if _is_hashable(value)}
        return {_label(value, taken): mass for value, mass in pooled}

    def trace(self, i: int) -> list[TraceEntry]:
        """The statements of particle i in order: line, statement, variable, text, log probability,
        and what each added to the log weight.

        >>> alive = posterior.log_weights.argmax()
        >>> [(entry.statement, entry.variable, entry.logw) for entry in posterior.trace(alive)]
        [('draw', 'shown', 0.0), ('condition', None, 0.0)]
        """
        return self.traces[i]

    def obituary(self) -> str:
        """The sources of weight zero, a line each: how many died, in which round, of what.

        >>> print(posterior.obituary())  # doctest: +ELLIPSIS
          round 0: ... died of condition at even_die:... `smcprog.condition(...)`, one after ''
        """
        return "\n".join(
            f"  round {d.round}: {d.number} died of {d.source}, one after {d.example!r}"
            for d in self.deaths
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; infinite numbers become "inf" and "-inf".

        >>> sorted(posterior.to_dict())[:3]
        ['deaths', 'format', 'log_evidence']

        Raises:
            TypeError: if a value is not JSON.
        """
        for i, value in enumerate(self.values):
            try:
                json.dumps(value, allow_nan=False)
            except (TypeError, ValueError) as error:
                raise TypeError(
                    f"the value of particle {i} is not JSON ({error}): {value!r:.200}. Return "
                    "dicts, lists, strings, numbers"
                ) from error
        data: dict[str, Any] = {"format": FORMAT}
        data.update({one.name: getattr(self, one.name) for one in fields(self)})
        data["log_weights"] = [_plain(w) for w in self.log_weights.tolist()]
        data["traces"] = [[_entry(entry) for entry in trace] for trace in self.traces]
        data["rounds"] = [asdict(record) for record in self.rounds]
        data["stats"] = asdict(self.stats)
        data["spellings"] = {str(token): text for token, text in self.spellings.items()}
        # Derived, for those who read the file without this package.
        data["log_evidence"] = _plain(self.log_evidence)
        data["weights"] = self.weights.tolist()
        return data

    def save(self, path: str | PathLike[str]) -> None:
        """Write the posterior as plain JSON, to be read by `load`.

        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "posterior.json")
        >>> posterior.save(path)
        >>> Posterior.load(path).values == posterior.values
        True
        """
        text = json.dumps(self.to_dict(), allow_nan=False)
        Path(path).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Posterior[Any]:
        """Read what `save` wrote. Tuples have become lists, `Text` str, and
        the keys of dicts str.

        Raises:
            ValueError: if the file is no posterior.

        >>> Posterior.load("README.md")
        Traceback (most recent call last):
        ValueError: README.md is not JSON: Expecting value: line 1 column 1 (char 0)
        """
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not JSON: {error}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError(f"{path} does not hold a posterior ({FORMAT})")
        return cls(
            values=data["values"],
            texts=data["texts"],
            tokens=data["tokens"],
            log_weights=np.array([float(w) for w in data["log_weights"]], dtype=np.float64),
            roots=data["roots"],
            truncated=data["truncated"],
            traces=[[_read_entry(entry) for entry in trace] for trace in data["traces"]],
            rounds=[
                RoundRecord(
                    **{
                        **record,
                        "ancestors": tuple(record["ancestors"]),
                        "tokens": tuple(map(tuple, record["tokens"])),
                    }
                )
                for record in data["rounds"]
            ],
            deaths=[Death(*death) for death in data["deaths"]],
            stats=Stats(**data["stats"]),
            seed=data["seed"],
            spellings={int(i): text for i, text in data.get("spellings", {}).items()},
        )

    def pooled(self, key: Any = None) -> list[tuple[Any, float]]:
        """Values and their probabilities, equal ones together, largest first; ``key`` is that of
        `marginal`, whose labels stand for values that cannot be hashed.

        >>> sorted(value for value, probability in posterior.pooled("shown"))
        [2, 4, 6]
        """
        pick = _picker(key)
        pooled: dict[Any, tuple[Any, float]] = {}
        for value, weight in zip(self.values, self.weights, strict=True):
            if weight > 0:
                picked = pick(value)
                key = _frozen(picked)
                first, mass = pooled.get(key, (picked, 0.0))
                pooled[key] = (first, mass + float(weight))
        return sorted(pooled.values(), key=lambda pair: -pair[1])

    def _repr_html_(self) -> str:
        from smcprog.notebook.posterior import posterior_html

        return posterior_html(self)

    def plot_genealogy(self, ax: Axes | None = None) -> Axes:
        """Which particle descends from which: a branch for each slot, by tokens drawn.

        A round counts for as many tokens as its longest particle drew. Branches have the colour of
        their root where it has descendants of positive weight; those that died out are faded. Of
        few particles the tokens are written along the branches.

        Args:
            ax: the matplotlib axes to draw on; None makes a figure, as in all plots.

        Raises:
            ImportError: without matplotlib, as all plots do: ``pip install "smcprog[notebook]"``.

        >>> @smc_program
        ... def word():
        ...     return gen(stop=" ", max_tokens=6)
        >>> ax = engine.run(word(), particles=8, seed=0).plot_genealogy()
        >>> ax.get_ylabel()
        'particle'
        """
        from smcprog.notebook.genealogy import plot_genealogy

        return plot_genealogy(self, ax)

    def plot_ess(self, ax: Axes | None = None) -> Axes:
        """The effective sample size of each round before resampling, under the number of particles.

        >>> @smc_program
        ... def word():
        ...     return gen(stop=" ", max_tokens=6)
        >>> ax = engine.run(word(), particles=8, seed=0).plot_ess()
        >>> ax.get_ylabel()
        'ESS'
        """
        from smcprog.notebook.plots import plot_ess

        return plot_ess(self, ax)

    def plot_weights(self, ax: Axes | None = None) -> Axes:
        """The normalised weights, largest first, and where they would be if all were equal.

        >>> ax = posterior.plot_weights()
        >>> len(ax.patches) == len(posterior)
        True
        """
        from smcprog.notebook.plots import plot_weights

        return plot_weights(self, ax)

    def plot_marginal(self, key: Any = None, top: int = 12, ax: Axes | None = None) -> Axes:
        """The probabilities of `marginal` as bars.

        Args:
            key: that of `marginal`.
            top: how many values have a bar of their own; the others share one.

        >>> ax = posterior.plot_marginal("shown")
        >>> sorted(label.get_text() for label in ax.get_yticklabels())
        ['2', '4', '6']
        """
        from smcprog.notebook.plots import plot_marginal

        return plot_marginal(self, key, top, ax)

    def plot_timing(self, ax: Axes | None = None) -> Axes:
        """The seconds that each round took, by phase.

        >>> @smc_program
        ... def word():
        ...     return gen(stop=" ", max_tokens=6)
        >>> ax = engine.run(word(), particles=8, seed=0).plot_timing()
        >>> ax.get_ylabel()
        'seconds'
        """
        from smcprog.notebook.plots import plot_timing

        return plot_timing(self, ax)

    def _need_particles(self, what: str) -> None:
        if not self.values:
            raise ValueError(f"{what}: every particle died, there is no posterior")


def _picker(key: Any) -> Callable[[Any], Any]:
    """A function of the value from a function, a key or index, or None for the value itself."""
    if callable(key):
        fn: Callable[[Any], Any] = key
        return fn

    def pick(value: Any) -> Any:
        if key is None:
            return value
        if isinstance(key, str) and not isinstance(value, Mapping):
            return getattr(value, key)
        return value[key]

    return pick


def _frozen(value: Any) -> Hashable:
    """A key that is equal for equal values, whether or not they can be hashed."""
    if isinstance(value, float) and math.isnan(value):
        return ("nan",)
    if isinstance(value, dict):
        return ("dict", frozenset((_frozen(k), _frozen(v)) for k, v in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(map(_frozen, value)))
    if isinstance(value, set | frozenset):
        return ("set", frozenset(map(_frozen, value)))
    if isinstance(value, np.ndarray):
        return ("array", value.shape, str(value.dtype), value.tobytes())
    return ("", value) if _is_hashable(value) else (type(value).__name__, repr(value))


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _label(value: Any, taken: set[Any]) -> Any:
    """The value itself as a dict's key; where it cannot be hashed its JSON or repr, which is then
    entered among those taken."""
    if _is_hashable(value):
        return value
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    label, copies = text, 1
    while label in taken:  # unequal values may look alike
        copies += 1
        label = f"{text} ({copies})"
    taken.add(label)
    return label


def _plain(value: float | None) -> float | str | None:
    """JSON has no infinity: it stands as text, which ``float`` reads."""
    return value if value is None or math.isfinite(value) else str(value)


def _entry(entry: TraceEntry) -> dict[str, Any]:
    return {**asdict(entry), "logprob": _plain(entry.logprob), "logw": _plain(entry.logw)}


def _read_entry(entry: Mapping[str, Any]) -> TraceEntry:
    logprob = entry["logprob"]
    logprob = None if logprob is None else float(logprob)
    return TraceEntry(**{**entry, "logprob": logprob, "logw": float(entry["logw"])})
