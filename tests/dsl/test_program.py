"""Programs and their calls: names, signatures, methods, copies of arguments, pickles."""

import copy
import pickle
import threading
import types

import pytest

from smcprog.dsl.compare import fingerprint
from smcprog.dsl.process import Process
from smcprog.dsl.program import BoundProgram, Program, smc_program
from smcprog.dsl.statements import gen, prompt
from smcprog.errors import ProgramError
from smcprog.text import Text
from tests.dsl.driver import Answers, finish, run


@smc_program
def review(text: str, *, stars: int = 3):
    """Review something."""
    prompt(text)
    return gen(), stars


class Reviewer:
    default = 1

    @smc_program
    def review(self, text):
        prompt(text)
        return self.default

    @classmethod
    @smc_program
    def named(cls):
        return cls.__name__


def test_a_call_outside_a_run_is_bound():
    call = review("a", stars=4)
    assert isinstance(call, BoundProgram)
    assert call.program is review and call.name == "review"
    assert call.args == ("a",) and call.kwargs == {"stars": 4}
    assert repr(call) == "review('a', stars=4)"
    assert len(repr(review("x" * 1000))) < 100
    assert str(call.plan()) == str(review.plan())


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [((), {}, "missing"), (("a", 1), {}, "too many"), (("a",), {"other": 1}, "unexpected keyword")],
)
def test_the_signature_is_checked_at_the_call(args, kwargs, says):
    with pytest.raises(TypeError, match=rf"review\(\): .*{says}"):
        review(*args, **kwargs)


def test_the_signature_of_an_inlined_call():
    @smc_program
    def program():
        review()

    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        run(program())


def test_methods():
    reviewer = Reviewer()
    assert isinstance(Reviewer.review, Program)
    assert Reviewer.review.name == "Reviewer.review"
    assert isinstance(reviewer.review("a"), BoundProgram)
    assert repr(Reviewer.named()) == f"Reviewer.named({Reviewer!r})"[:200]
    assert run(Reviewer.review(reviewer, "a")).value == 1
    assert run(Reviewer.named()).value == "Reviewer"
    assert "prompt(text)" in reviewer.review.plan().explain()


def test_decorating_twice_is_once():
    assert smc_program(review) is review


def test_pickle_and_copy_by_name():
    assert pickle.loads(pickle.dumps(review)) is review
    assert copy.deepcopy(review) is review
    assert pickle.loads(pickle.dumps(Reviewer.review)) is Reviewer.review
    assert pickle.loads(pickle.dumps(gen)) is gen
    call = pickle.loads(pickle.dumps(review("a")))
    assert call.program is review and call.args == ("a",)


# --- arguments ---


@smc_program
def changes(items, table=None, default=[1]):  # noqa: B006
    items.append(gen())
    default.append(2)
    return items, table, default


def test_arguments_and_defaults_are_copied_for_each_execution():
    mine = [[]]
    ran = run(changes(mine, mine))
    assert ran.value == ([[], "g0"], [[], "g0"], [1, 2])
    assert ran.value[0] is ran.value[1]  # two names of one object stay so
    assert mine == [[]]
    assert run(changes(mine)).value[2] == [1, 2]


def test_defaults_of_inlined_programs_are_fresh_too():
    @smc_program
    def program():
        return changes([])[2], changes([])[2]

    assert run(program()).value == ([1, 2], [1, 2])


def test_an_inlined_program_is_given_the_callers_own():
    @smc_program
    def program():
        items = []
        changes(items)
        return items

    assert run(program()).value == ["g0"]


def test_what_cannot_be_copied_is_shared_the_rest_is_not():
    lock, inner = threading.Lock(), []
    given = {"lock": lock, "inner": inner, "pair": (lock, {1})}

    @smc_program
    def program(given, module, function):
        given["inner"].append(gen())
        return given, module, function

    value, module, function = run(program(given, types, len)).value
    assert value["lock"] is lock and value["pair"] == (lock, {1})
    assert value["inner"] == ["g0"] and inner == []
    assert module is types and function is len


def test_an_iterator_is_refused():
    @smc_program
    def program(words):
        return list(words)

    with pytest.raises(ProgramError, match="argument 'words' of .*program.* is a generator") as e:
        Process(program(x for x in "ab")).step()
    assert "words=list(...)" in str(e.value)
    assert run(program(iter("ab"))).value == ["a", "b"]  # this one copies


def test_self_is_copied():
    class Counter:
        def __init__(self):
            self.n = 0

        @smc_program
        def count(self):
            self.n += 1
            gen()
            self.n += 1
            return self.n

    counter = Counter()
    process = Process(counter.count())
    process.step()
    clone = process.fork()
    assert process.step(Text("")).value == finish(clone, Answers()).value == 2
    assert counter.n == 0


# --- what a replay compares ---


def test_fingerprints_see_inside():
    class Thing:
        def __init__(self, x):
            self.x = x

    loop = [1]
    loop.append(loop)
    n = 3
    for make in (
        lambda: [1, {"a": (2.0, {3})}, b"x"],
        lambda: Thing([1]),
        lambda: lambda: n,
        lambda: Thing([1]).__init__,
        lambda: float("nan"),
        lambda: frozenset({("a", 1)}),
        lambda: copy.deepcopy(loop),
    ):
        assert fingerprint(make()) == fingerprint(make())
        hash(fingerprint(make()))
    things = [
        [1],
        (1,),
        [1.0],
        [True],
        Thing([1]),
        Thing([2]),
        {"a": 1},
        {"a": 2},
        {1},
        Text("1"),
        "1",
        len,
        Thing,
        lambda: 1,
        lambda: 2,
        lambda x=1: 1,
        float("nan"),
        None,
    ]
    assert len({fingerprint(thing) for thing in things}) == len(things)
