"""Programs: functions whose statements are compiled, and their calls."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, cast, overload

from smcprog.dsl.asking import Inlinable, Inline, awaited
from smcprog.dsl.compare import ATOMS
from smcprog.dsl.compiler import Compiled, compile_program
from smcprog.dsl.copying import copied_argument
from smcprog.dsl.marker import check_program_call
from smcprog.errors import ProgramError

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    from smcprog.dsl.plan import Plan

    # With defaults, `Program` and `BoundProgram` are whole types where nobody says more.
    P = ParamSpec("P", default=...)
    T_co = TypeVar("T_co", covariant=True, default=Any)

    class _Value(Any):
        """What a program call may be besides a `BoundProgram`, to a type checker: in a program it
        is the program's value, of any type. (Operators have to be spelled out.)"""

        def __lt__(self, other: Any, /) -> Any: ...
        def __le__(self, other: Any, /) -> Any: ...
        def __gt__(self, other: Any, /) -> Any: ...
        def __ge__(self, other: Any, /) -> Any: ...
        def __add__(self, other: Any, /) -> Any: ...
        def __radd__(self, other: Any, /) -> Any: ...
        def __sub__(self, other: Any, /) -> Any: ...
        def __rsub__(self, other: Any, /) -> Any: ...
        def __mul__(self, other: Any, /) -> Any: ...
        def __rmul__(self, other: Any, /) -> Any: ...
        def __matmul__(self, other: Any, /) -> Any: ...
        def __rmatmul__(self, other: Any, /) -> Any: ...
        def __truediv__(self, other: Any, /) -> Any: ...
        def __rtruediv__(self, other: Any, /) -> Any: ...
        def __floordiv__(self, other: Any, /) -> Any: ...
        def __rfloordiv__(self, other: Any, /) -> Any: ...
        def __mod__(self, other: Any, /) -> Any: ...
        def __rmod__(self, other: Any, /) -> Any: ...
        def __pow__(self, other: Any, /) -> Any: ...
        def __rpow__(self, other: Any, /) -> Any: ...
        def __and__(self, other: Any, /) -> Any: ...
        def __rand__(self, other: Any, /) -> Any: ...
        def __or__(self, other: Any, /) -> Any: ...
        def __ror__(self, other: Any, /) -> Any: ...
        def __xor__(self, other: Any, /) -> Any: ...
        def __rxor__(self, other: Any, /) -> Any: ...
        def __neg__(self) -> Any: ...
        def __pos__(self) -> Any: ...
        def __invert__(self) -> Any: ...
        def __getitem__(self, key: Any, /) -> Any: ...
        def __setitem__(self, key: Any, value: Any, /) -> None: ...
        def __delitem__(self, key: Any, /) -> None: ...
        def __contains__(self, item: Any, /) -> bool: ...
        def __iter__(self) -> Iterator[Any]: ...
        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
        def __enter__(self) -> Any: ...
        def __exit__(self, *details: Any) -> None: ...
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    T_co = TypeVar("T_co", covariant=True)
    _Value = object

Q = ParamSpec("Q")
T = TypeVar("T")
C = TypeVar("C")


class Program(Inlinable, Generic[P, T_co]):
    """A generation program: what `smc_program` makes of a function.

    Called outside a run, it gives a `BoundProgram` for ``Engine.run``; called in another program,
    it runs there, shares the caller's context, and gives its return value. As an attribute of a
    class it is a method.

    To a type checker, which cannot tell the two apart, a call is both: a ``BoundProgram[T]`` with
    T the function's return type, so that ``engine.run(program(...))`` is a ``Posterior[T]``, and
    beside that a value of any type, of which nothing is checked. In a program, ``aside(...)`` of a
    call is a T; elsewhere say ``typing.cast(T, program(...))`` to have its value checked.

    It pickles by its qualified name, as functions do.

    >>> @smc_program
    ... def greet(name: str) -> str:
    ...     prompt(f"Hello {name}")
    ...     return context()
    >>> greet("Ada")
    greet('Ada')
    >>> @smc_program
    ... def greet_both(first: str, second: str) -> str:
    ...     greet(first)
    ...     prompt(". ")
    ...     return greet(second)
    >>> engine.run(greet_both("Ada", "Bob"), particles=1).best
    'Hello Ada. Hello Bob'
    """

    def __init__(self, function: Callable[P, T_co], outer: Mapping[str, Any]) -> None:
        assert isinstance(function, types.FunctionType)
        functools.update_wrapper(self, function)
        self.name: str = function.__qualname__.rpartition("<locals>.")[2]
        self.owner: type | None = None
        self.function: types.FunctionType = function
        self.signature: inspect.Signature = inspect.signature(function)
        self.compiled: Compiled = compile_program(
            function, self.name, outer, (smc_program, classmethod, staticmethod)
        )
        self._coroutine = _with_code(function, self.compiled.code)
        self._mutable_defaults = {
            name: parameter.default
            for name, parameter in self.signature.parameters.items()
            if parameter.default is not parameter.empty and type(parameter.default) not in ATOMS
        }

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundProgram[T_co]:
        call: BoundProgram[T_co] = BoundProgram(self, args, kwargs)
        check_program_call(self.name, sys._getframe(1), call)
        return call

    # Of a class method the first parameter is the class, of a method the instance; a static method
    # has neither.
    @overload
    def __get__(
        self: Program[Concatenate[type[C], Q], T], instance: None, owner: type[C]
    ) -> Program[Q, T]: ...
    @overload
    def __get__(
        self: Program[Concatenate[type[C], Q], T], instance: C, owner: type[C] | None = None
    ) -> Program[Q, T]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Program[P, T_co]: ...
    @overload
    def __get__(
        self: Program[Concatenate[C, Q], T], instance: C, owner: type[C] | None = None
    ) -> Program[Q, T]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Program[P, T_co]: ...
    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        if instance is None:
            return self
        # A bound method forwards plan(), name and so on to the program.
        return types.MethodType(self, instance)

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner = owner

    def __repr__(self) -> str:
        return f"<program {self.name}{self.signature}>"

    def __reduce__(self) -> str:
        return self.__qualname__  # type: ignore[attr-defined,no-any-return,unused-ignore]

    def plan(self) -> Plan:
        """The program's statements, the control flow around them, and where each is evaluated.

        >>> @smc_program
        ... def digits():
        ...     prompt("7 * 6 =")
        ...     return gen(lm**2, regex(" [0-9]+"))
        >>> [planned.site.statement for planned in digits.plan().statements]
        ['prompt', 'gen']
        >>> print(digits.plan())  # doctest: +ELLIPSIS
        digits()   File "...", line 2
           3  prompt("7 * 6 =")
           4  return gen(lm**2, regex(" [0-9]+"))
                  lm**2             score   in the target's batched pass
                  regex(" [0-9]+")  mask    in the draft's and the bonus's sampling step
                  stop              LEAVE (the model leaves the constraint); at most 512 tokens
        """
        from smcprog.dsl.plan import make_plan

        return make_plan(self)

    def _repr_html_(self) -> str:
        from smcprog.notebook.plan import plan_html

        return plan_html(self.plan())

    def start(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Coroutine[Any, Any, Any]:
        """A new coroutine of the program's code, with its own copies of mutable defaults."""
        if self._mutable_defaults:
            bound = self.signature.bind(*args, **kwargs)
            memo: dict[int, Any] = {}
            for name, default in self._mutable_defaults.items():
                if name not in bound.arguments:
                    bound.arguments[name] = copied_argument(default, name, self.name, memo)
            args, kwargs = bound.args, bound.kwargs
        return cast("Coroutine[Any, Any, Any]", self._coroutine(*args, **kwargs))


class BoundProgram(Generic[T_co], _Value):
    """A program and its arguments: what ``Engine.run`` runs.

    >>> @smc_program
    ... def greet(name):
    ...     prompt(f"Hello {name}")
    ...     return context()
    >>> greet("Ada")
    greet('Ada')
    >>> greet("Ada").name, greet("Ada").args
    ('greet', ('Ada',))

    The arguments are copied for each execution, so that particles share nothing. What cannot be
    copied (modules, locks, sessions) is shared, to be read only.

    Raises:
        TypeError: if the arguments do not fit the signature.
    """

    def __init__(
        self, program: Program[..., T_co], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        try:
            self._arguments = program.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{program.name}(): {error}") from None
        self.program = program

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.name

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments."""
        return self._arguments.args

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments."""
        return self._arguments.kwargs

    def plan(self) -> Plan:
        """The program's plan: see `Program.plan`.

        >>> @smc_program
        ... def greet(name):
        ...     prompt(f"Hello {name}")
        >>> len(greet("Ada").plan().statements)
        1
        """
        return self.program.plan()

    def copied_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments for one execution.

        Raises:
            ProgramError: naming an argument that only one particle could use.
        """
        bound = copy.copy(self._arguments)
        memo: dict[int, Any] = {}
        bound.arguments = {
            name: copied_argument(value, name, self.name, memo)
            for name, value in bound.arguments.items()
        }
        return bound.args, bound.kwargs

    def __await__(self) -> Generator[Any, Any, T_co]:
        awaited(self)
        return Inline(self.program, self.args, self.kwargs).__await__()

    def __repr__(self) -> str:
        shown = [f"{value!r:.60}" for value in self.args]
        shown += [f"{name}={value!r:.60}" for name, value in self.kwargs.items()]
        return f"{self.name}({', '.join(shown)})"


@overload
def smc_program(function: Callable[Q, BoundProgram[T]]) -> Program[Q, T]: ...
@overload
def smc_program(function: Callable[Q, Coroutine[Any, Any, T]]) -> Program[Q, T]: ...
@overload
def smc_program(function: Callable[Q, T]) -> Program[Q, T]: ...
def smc_program(function: Any = None) -> Any:
    """Compile a function to a program.

    >>> @smc_program
    ... def review(text: str):
    ...     prompt(f"Review: {text}\\nSentiment:")
    ...     return gen(choice(" positive", " negative")).strip()
    >>> posterior = engine.run(review("Great phone, bad battery"), particles=8, seed=0)
    >>> sorted(posterior.marginal())
    ['negative', 'positive']

    Around its statements all of Python is allowed; host code must be deterministic (randomness
    belongs in `draw`, slow or effectful work in `call`).

    Raises:
        ProgramError: for what cannot be compiled, with file, line, caret and remedy.
    """
    if function is None:
        raise ProgramError("write @smc_program without parentheses: it takes no settings")
    frame = sys._getframe(1)
    if isinstance(function, Program):
        return function
    if isinstance(function, (classmethod, staticmethod)):
        inner = _program(function.__func__, frame)
        return classmethod(inner) if isinstance(function, classmethod) else staticmethod(inner)
    return _program(function, frame)


def _program(function: Any, frame: types.FrameType) -> Program[Any]:
    if not isinstance(function, types.FunctionType):
        kind = "a class" if isinstance(function, type) else f"a {type(function).__name__}"
        raise ProgramError(
            f"@smc_program takes a function, not {kind} ({function!r:.80})\n"
            f"  Put it right above the def; of other decorators only @classmethod and "
            f"@staticmethod may stand beside it."
        )
    if function.__name__ == "<lambda>":
        code = function.__code__
        raise ProgramError(
            f"@smc_program takes a def, not a lambda\n"
            f'  File "{code.co_filename}", line {code.co_firstlineno}\n'
            f"  Write a def: statements need lines of their own."
        )
    outer = frame.f_locals if frame.f_locals is not frame.f_globals else {}
    return Program(function, outer)


def _with_code(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    """The function with other code: its own globals, defaults and closure cells."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    twin = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, closure
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__qualname__ = function.__qualname__
    twin.__module__ = function.__module__
    return twin
