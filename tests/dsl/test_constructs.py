"""Python around statements: each construct runs as in Python, and so does a clone of it."""

# ruff: noqa: B007, B008, F842, UP008, UP037 (odd Python is the point here)

import contextlib
import functools
import typing
from dataclasses import dataclass

import pytest

import smcprog.dsl.statements as sp
from smcprog.dsl.program import smc_program
from smcprog.dsl.statements import call, condition, draw, factor, gen, logprob, observe, prompt
from smcprog.dsl.statements import gen as g
from tests.dsl.driver import cell, forked_everywhere, run

PROGRAMS: dict[str, tuple[typing.Any, tuple[typing.Any, ...], typing.Any]] = {}


def expecting(value, *args):
    """The program, called with ``args``, returns ``value``."""

    def register(program):
        PROGRAMS[program.name] = (program, args, value)
        return program

    return register


@smc_program
def assignment():
    prompt("a")
    x = gen()
    return x


expecting("g0")(assignment)


@smc_program
def returned():
    return gen()


expecting("g0")(returned)


@smc_program
def several_in_one_expression():
    return gen() + "-" + gen() + str(len(gen()))


expecting("g0-g12")(several_in_one_expression)


@smc_program
def arguments_in_order():
    def pair(*args, **kwargs):
        return [*args, *kwargs.values()]

    return pair(gen(), len(gen()), *[gen(), gen()], last=gen(), **{"more": gen()})


expecting(["g0", 2, "g2", "g3", "g4", "g5"])(arguments_in_order)


@smc_program
def augmented():
    text = "a"
    text += gen()
    counts = {"n": 1}
    counts["n"] += len(gen())
    return text, counts


expecting(("ag0", {"n": 3}))(augmented)


@smc_program
def in_tests():
    if gen() == "g0":
        n = 0
    while len(gen()) == 2 and n < 3:
        n += 1
    return n


expecting(3)(in_tests)


@smc_program
def for_else(stop_at):
    for i in range(3):
        if gen() == stop_at:
            break
    else:
        return "else", gen()
    return "break", i


expecting(("break", 1), "g1")(for_else)


@smc_program
def for_else_taken():
    for _ in range(2):
        gen()
    else:
        return gen()


expecting("g2")(for_else_taken)


@smc_program
def while_else():
    n = 0
    while n < 2:
        n += 1
        gen()
    else:
        n = gen()
    return n


expecting("g2")(while_else)


@smc_program
def comprehensions():
    a = [gen() for _ in range(2)]
    b = {gen(): len(gen()) for _ in range(1)}
    c = {gen() for _ in range(1)}
    d = [[gen() + x for x in "ab"] for _ in range(2)]
    e = [x for x in gen() if gen()]
    f = sum(len(x) for x in [gen(), gen()])
    return a, b, c, d, e, f


expecting(
    (
        ["g0", "g1"],
        {"g2": 2},
        {"g4"},
        [["g5a", "g6b"], ["g7a", "g8b"]],
        ["g", "9"],
        6,
    )
)(comprehensions)


@smc_program
def genexp_first_iterable():
    return "".join(c.upper() for c in gen())


expecting("G0")(genexp_first_iterable)


@smc_program
def walrus():
    out = []
    while (x := gen()) != "g2":
        out.append(x)
    return out, [y := gen(), y]


expecting((["g0", "g1"], ["g3", "g3"]))(walrus)


@smc_program
def try_finally():
    log = []
    try:
        log.append(gen())
        raise ValueError("own")
    except ValueError as error:
        log.append(str(error) + gen())
    else:
        log.append("no")
    finally:
        log.append(gen())
    return log


expecting(["g0", "owng1", "g2"])(try_finally)


@smc_program
def try_else():
    try:
        x = gen()
    except ValueError:
        x = "no"
    else:
        x += gen()
    return x


expecting("g0g1")(try_else)


@smc_program
def except_group():
    try:
        raise ExceptionGroup("g", [ValueError("a")])
    except* ValueError as group:
        return_value = gen() + str(len(group.exceptions))
    return return_value


expecting("g01")(except_group)


@smc_program
def matching(point):
    match point:
        case {"x": x, **rest} if gen() == "g0":
            return x, rest, gen()
        case [_, *others]:
            return others
        case _:
            return None


expecting((1, {"y": 2}, "g1"), {"x": 1, "y": 2})(matching)


@smc_program
def match_subject():
    match gen():
        case "g0" as word:
            return word + gen()


expecting("g0g1")(match_subject)


@smc_program
def early_return(flag):
    prompt("p")
    if flag:
        return "early"
    return gen()


expecting("early", True)(early_return)


@smc_program
def asserting():
    assert gen() == "g0", gen()
    return gen()


expecting("g1")(asserting)


@smc_program
def with_block():
    with contextlib.ExitStack() as stack, contextlib.nullcontext(gen()) as x:
        stack.callback(lambda: None)
        y = gen()
    return x + y


expecting("g0g1")(with_block)


@smc_program
def fstring_alone():
    text = f"<{gen()}|{gen():>4}|{gen()!r}>"
    return text


expecting("<g0|  g1|'g2'>")(fstring_alone)


@smc_program
def multiline_fstring():
    text = f"""
    {gen()} and
    {len(gen())}
"""
    return text.split()


expecting(["g0", "and", "2"])(multiline_fstring)


@smc_program
def subscripts_and_slices():
    xs = {gen(): [1, 2, 3]}
    xs["g0"][len(gen()) - 2] = gen()
    return xs["g0"][: len(gen())]


expecting(["g1", 2])(subscripts_and_slices)


@smc_program
def unpacking():
    a, (b, *c) = gen(), (gen(), gen(), gen())
    first, *rest = gen()
    return a, b, c, first, rest


expecting(("g0", "g1", ["g2", "g3"], "g", ["4"]))(unpacking)


@smc_program
def conditional_expressions():
    return (gen() if gen() == "g0" else "no"), "" or gen(), gen() and None, not gen()


expecting(("g1", "g2", None, False))(conditional_expressions)


@smc_program
def chained_comparison():
    return "g0" <= gen() <= gen() < "g9"


expecting(True)(chained_comparison)


@smc_program
def annotated():
    x: str = gen()
    y: "undefined_name"  # noqa: F821
    z: list[undefined()] = [gen()]  # noqa: F821
    return x, z


expecting(("g0", ["g1"]))(annotated)


@smc_program
def nested_helpers():
    def shout(text, mark=gen()):
        return text.upper() + mark

    def fresh(n: int = 1) -> int:
        total = 0

        def add():
            nonlocal total
            total += n

        add()
        return total

    twice = lambda text, tail=gen(): text * 2 + tail  # noqa: E731
    return shout(gen()), twice("a"), fresh()


expecting(("G2g0", "aag1", 1))(nested_helpers)


@smc_program
def local_class():
    @dataclass
    class Item:
        name: str

        def shout(self):
            return self.name.upper()

    return Item(gen()).shout()


expecting("G0")(local_class)


@smc_program
def imports_inside():
    import math
    from collections import Counter

    return math.floor(2.5), Counter(gen())["g"]


expecting((2, 1))(imports_inside)


@smc_program
def imported_inside():
    from smcprog.dsl.statements import gen

    return gen()


expecting("g0")(imported_inside)


@smc_program
def generator_inside():
    def pairs(n):
        for i in range(n):
            yield i, i * i

    return [(gen(), square) for _, square in pairs(2)]


expecting([("g0", 0), ("g1", 1)])(generator_inside)


@smc_program
def deletes():
    x = {gen(): 1, "b": 2}
    del x[gen()[:1] + "0"]
    return x


expecting({"b": 2})(deletes)


@smc_program
def python_own_functions(a, *, b=2):
    names = sorted(locals())
    return names, callable(gen), isinstance(gen(), str), eval("a + b"), max(len(gen()), 1)


expecting((["a", "b"], True, True, 3, 2), 1)(python_own_functions)


# --- how a statement is recognised ---


@smc_program
def aliases():
    h = gen
    table = {"gen": g}
    return g(), sp.gen(), h(), table["gen"]()


expecting(("g0", "g1", "g2", "g3"))(aliases)


@smc_program
def partials():
    short = functools.partial(gen, max_tokens=3)
    sub = functools.partial(sentence, mark="!")
    return short(), sub("a")


expecting(("g0", "ag1!"))(partials)


@smc_program
def passed_in(ask, shape):
    return ask(), shape(ask())


expecting(("g0", "G1"), gen, str.upper)(passed_in)


# --- other programs ---


@smc_program
def sentence(subject, mark="."):
    prompt(subject)
    return subject + gen() + mark


@smc_program
def inlines():
    a = sentence("a")
    b = [sentence(x, mark="!") for x in "bc"]
    return a, b, later()


@smc_program
def later():
    return gen()


expecting(("ag0.", ["bg1!", "cg2!"], "g3"))(inlines)


@smc_program
def countdown(n):
    if n == 0:
        return [gen()]
    prompt(str(n))
    return [n] + countdown(n - 1)


expecting([3, 2, 1, "g0"], 3)(countdown)


@smc_program
def even(n):
    return gen() if n == 0 else odd(n - 1)


@smc_program
def odd(n):
    return "odd" if n == 0 else even(n - 1)


expecting("g0", 4)(even)


def closures():
    mark = "?"

    @smc_program
    def inner(text="d"):
        return text + gen() + mark

    @smc_program
    def outer(n):
        return inner() if n == 0 else outer(n - 1)

    return outer


expecting("dg0?", 2)(closures())


@smc_program
def defines_a_program():
    suffix = gen()

    @smc_program
    def part(x):
        prompt(x)
        return x + gen() + suffix

    return [part(x) for x in "ab"]


expecting(["ag1g0", "bg2g0"])(defines_a_program)


@smc_program
def signature(a, /, b, c=3, *args, d, e=5, **kwargs):
    return a, b, c, args, d, e, kwargs, gen()


expecting((1, 2, 3, (), 4, 5, {}, "g0"))
PROGRAMS["signature"] = (
    functools.partial(signature, d=4, z=6),
    (1, 2, 30, 40),
    (1, 2, 30, (40,), 4, 5, {"z": 6}, "g0"),
)


# --- methods ---


class Base:
    greeting = "hi "

    @smc_program
    def greet(self):
        prompt(self.greeting)
        return self.greeting + gen()

    @classmethod
    @smc_program
    def made(cls):
        return cls.__name__ + gen()

    @smc_program
    @classmethod
    def made_too(cls):
        return cls.__name__ + gen()

    @staticmethod
    @smc_program
    def static(x):
        return x + gen()

    @smc_program
    @staticmethod
    def static_too(x):
        return x + gen()


class Derived(Base):
    def __init__(self):
        self.__secret = "s"

    def plain(self, text):
        return text + self.__secret

    @smc_program
    def greet(self):
        return "derived " + super().greet() + super(Derived, self).greet() + __class__.__name__

    @smc_program
    def all(self):
        mine = self.greet()
        return mine, self.made(), self.made_too(), self.static("x"), Base.static_too("y")

    @smc_program
    def __private(self):
        self.__secret += gen()
        return self.__secret

    @smc_program
    def uses_private(self):
        return self.__private(), self.plain(gen())


PROGRAMS["methods"] = (
    Derived().all,
    (),
    ("derived hi g0hi g1Derived", "Derivedg2", "Derivedg3", "xg4", "yg5"),
)
PROGRAMS["private"] = (Derived().uses_private, (), ("sg0", "g1sg0"))
PROGRAMS["classmethod"] = (Derived.made, (), "Derivedg0")
PROGRAMS["instance_classmethod"] = (Derived().made_too, (), "Derivedg0")
PROGRAMS["staticmethod"] = (Derived.static, ("s",), "sg0")
PROGRAMS["unbound"] = (Base.greet, (Base(),), "hi g0")


# --- text at column 0 ---


def column_zero():
    @smc_program
    def told():
        prompt("""
Question:
    indented
Answer:""")
        return gen()

    return told


PROGRAMS["column_zero"] = (column_zero(), (), "g0")


@smc_program
def every_statement():
    prompt("a", "b")
    factor(1.0)
    condition(True)
    lp = observe("c")
    one, two = logprob("de"), logprob(["f", "gh"])
    sp.twist(2.0)
    sp.sync()
    sp.chat([{"role": "user", "content": "x"}])
    drawn = draw(["x", "y"], [1, 3])
    called = call(len, [1, 2, 3])
    return lp, one, two, drawn, called, sp.context()


expecting((-0.5, -2.0, [-1.0, -2.0], "x", 3, "abc"))(every_statement)


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_as_python_would(name):
    program, args, value = PROGRAMS[name]
    assert run(program(*args)).value == value


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_clone_forked_anywhere_does_the_same(name):
    program, args, value = PROGRAMS[name]
    plain = run(program(*args))
    for clone in forked_everywhere(lambda: program(*args)):
        assert clone.value == value
        assert clone.requests == plain.requests
        assert clone.context == plain.context
        assert [p.site for p in clone.asked] == [p.site for p in plain.asked]


def test_finally_after_return_and_loop_control():
    @smc_program
    def leaving():
        log = []
        for i in range(3):
            try:
                if i == 0:
                    continue
                if i == 2:
                    return log
                log.append(gen())
            finally:
                log.append(f"f{i}{gen()}")

    assert run(leaving()).value == ["f0g0", "g1", "f1g2", "f2g3"]


def test_a_global_redefined_later_is_the_one_that_is_called():
    names = cell(
        """
        def helper():
            return "plain"

        @smc_program
        def main():
            return helper()
        """
    )
    assert run(names["main"]()).value == "plain"
    exec("def helper(): return 'other'", names)
    assert run(names["main"]()).value == "other"
    names["helper"] = later
    assert run(names["main"]()).value == "g0"
