"""A particle's host state: journal, forks, replays, and what they must notice."""

import asyncio
import contextlib
import gc
import io
import itertools
import random
import sys
import threading
import time
import uuid
import warnings

import numpy as np
import pytest

from smcprog.dsl.process import Finished, Pending, Process
from smcprog.dsl.program import smc_program
from smcprog.dsl.requests import Call, Draw, Gen, Prompt, Twist
from smcprog.dsl.statements import (
    call,
    chat,
    condition,
    context,
    draw,
    factor,
    gen,
    logprob,
    observe,
    prompt,
    sync,
    twist,
)
from smcprog.errors import ProgramError
from smcprog.potentials.base import TextPotential
from smcprog.text import Text
from tests.dsl.driver import Answers, finish, run


@smc_program
def two(x):
    prompt(x)
    a = gen()
    b = gen()
    return [a, b]


# --- steps ---


def test_steps():
    process = Process(two("p"))
    assert process.pending is None
    step = process.step()
    assert isinstance(step, Pending) and step.request == Prompt(("p",))
    assert step == process.pending
    assert (step.site.statement, step.site.variable) == ("prompt", None)
    assert step.site.program == "two" and step.site.file == __file__
    assert step.site.source == "prompt(x)" and step.site.column == 4
    step = process.step(None)
    assert (step.site.statement, step.site.variable) == ("gen", "a")
    assert step.site.line == two.function.__code__.co_firstlineno + 3
    process.step(Text("x"))
    assert process.step(Text("y")) == Finished(["x", "y"])
    assert process.finished == Finished(["x", "y"]) and process.pending is None
    with pytest.raises(RuntimeError, match="ended"):
        process.step()


def test_no_event_loop_is_needed_and_a_running_one_is_no_matter():
    async def main():
        return run(two("p")).value

    assert run(two("p")).value == asyncio.run(main()) == ["g0", "g1"]


def test_processes_nest():
    """A host function of one program may drive another."""

    def inner():
        return run(bound).value

    @smc_program
    def program(fn):
        a = gen()
        return [a, call(inner), fn()]

    bound = two("p")
    assert run(program(inner)).value == ["g0", ["g0", "g1"], ["g0", "g1"]]


# --- forks ---


def test_a_fork_goes_its_own_way():
    process = Process(two("p"))
    process.step()
    process.step()
    process.step(Text("x"))
    clone = process.fork()
    assert clone.pending == process.pending
    assert process.step(Text("y")).value == ["x", "y"]
    again = clone.fork()
    assert clone.step(Text("z")).value == ["x", "z"]
    assert again.step(Text("w")).value == ["x", "w"]
    for one in (process, clone, again):
        one.check()


def test_a_fork_before_the_start():
    process = Process(two("p"))
    clone = process.fork()
    assert finish(clone, Answers()).value == finish(process, Answers()).value


def test_a_fork_runs_nothing():
    runs = []

    @smc_program
    def program():
        runs.append(1)
        gen()
        gen()

    process = Process(program())
    process.step()
    process.step(Text("x"))
    clones = [process.fork() for _ in range(5)]
    assert runs == [1]
    clones[0].step(Text("y"))
    assert runs == [1, 1]


def test_clones_share_nothing_the_program_made():
    class Box:
        items: list

    @smc_program
    def program(given, default=[]):  # noqa: B006
        box = Box()
        box.items, table = [], {}

        def keep(x):
            box.items.append(x)
            given.append(x)
            default.append(x)
            table[x] = given

        for _ in range(3):
            keep(gen())
        return box.items, given, default, table

    mine = ["mine"]
    process = Process(program(mine))
    process.step()
    process.step(Text("a"))
    clone = process.fork()
    first = finish(process, Answers(["b", "c"])).value
    second = finish(clone, Answers(["d", "e"])).value
    assert first[0] == ["a", "b", "c"] and second[0] == ["a", "d", "e"]
    assert first[1] == ["mine", "a", "b", "c"] and second[1] == ["mine", "a", "d", "e"]
    assert first[2] == ["a", "b", "c"] and second[2] == ["a", "d", "e"]
    assert mine == ["mine"]
    assert program.signature.parameters["default"].default == []


def test_a_finished_process_forks_with_a_copy():
    process = run(two("p")).process
    clone = process.fork()
    assert clone.finished == process.finished
    assert clone.finished.value is not process.finished.value
    clone.check()


def test_a_value_that_cannot_be_copied_is_made_again():
    @smc_program
    def program():
        word = gen()
        return (letter for letter in word)

    process = run(program()).process
    clone = process.fork()
    assert list(process.finished.value) == list(clone.finished.value) == ["g", "0"]


def test_the_arguments_of_a_pending_call_are_the_clones_own():
    def spoil(items):
        items.append("spoilt")
        return len(items)

    @smc_program
    def program():
        items = [gen()]
        return call(spoil, items), items

    process = Process(program())
    process.step()
    process.step(Text("a"))
    clone = process.fork()
    assert finish(process, Answers()).value == (2, ["a", "spoilt"])
    assert clone.pending.request.args == (["a"],)
    assert finish(clone, Answers()).value == (2, ["a", "spoilt"])


# --- answers ---


def test_mutable_answers_are_copied_each_time():
    @smc_program
    def program():
        page = call(fetch)
        page["items"].append(gen())
        return page

    def fetch():
        return {"items": []}

    process = Process(program())
    process.step()
    answer = {"items": []}
    process.step(answer)
    clone = process.fork()
    assert process.step(Text("a")).value == {"items": ["a"]}
    assert clone.step(Text("b")).value == {"items": ["b"]}
    assert answer == {"items": []}


def test_an_answer_that_cannot_be_copied():
    @smc_program
    def program():
        return call(open, "x")

    process = Process(program())
    process.step()
    with pytest.raises(ProgramError) as caught:
        process.step(iter(x for x in "ab"))
    assert "the result of call() cannot be copied" in str(caught.value)
    assert "return call(open" in str(caught.value) and "plain data" in str(caught.value)


def test_fail_raises_at_the_statement():
    @smc_program
    def program():
        try:
            return call(print)
        except OSError as error:
            return "caught", str(error), gen()

    process = Process(program())
    process.step()
    clone = process.fork()
    step = process.fail(OSError("down"))
    assert isinstance(step.request, Gen)
    twin = process.fork()
    assert process.step(Text("x")).value == ("caught", "down", "x")
    assert twin.step(Text("y")).value == ("caught", "down", "y")
    process.check()
    with pytest.raises(KeyError) as caught:
        clone.fail(KeyError("own"))
    assert caught.value.__notes__[0].startswith("in program ")


def test_fail_before_the_start():
    with pytest.raises(RuntimeError, match="not asked"):
        Process(two("p")).fail(OSError())


def test_recorded_exceptions_do_not_gather_notes():
    @smc_program
    def program():
        try:
            call(print)
        except OSError as error:
            error.add_note("mine")
            notes = list(error.__notes__)
        gen()
        return notes

    process = Process(program())
    process.step()
    process.fail(OSError("down"))
    clones = [process.fork() for _ in range(3)]
    assert [clone.step(Text("")).value for clone in clones] == [["mine"]] * 3


def test_a_program_that_raised_has_ended():
    @smc_program
    def program():
        gen()
        raise ValueError("own")

    process = Process(program())
    process.step()
    with pytest.raises(ValueError, match="own"):
        process.step(Text(""))
    with pytest.raises(RuntimeError, match="ended"):
        process.step()
    with pytest.raises(RuntimeError, match="cannot be forked"):
        process.fork()
    process.check()
    process.close()


# --- twist ---


def twists(bound):
    return [(r.old, r.new) for r in run(bound).requests if isinstance(r, Twist)]


def test_the_last_twist_is_taken_back():
    @smc_program
    def program():
        twist(1)
        gen()
        twist(3)
        return gen()

    assert twists(program()) == [(0, 1), (1, 3), (3, 0)]
    last = run(program()).asked[-1].site
    assert (last.statement, last.source) == ("twist", "twist(3)")


def test_nothing_to_take_back():
    @smc_program
    def program():
        twist(1)
        twist(0)

    assert twists(program()) == [(0, 1), (1, 0)]


def test_each_invocation_has_its_own_twist():
    @smc_program
    def part(n):
        twist(10 * n)
        if n > 1:
            part(n - 1)
        twist(10 * n + 1)

    @smc_program
    def program():
        twist(1)
        part(2)
        twist(2)

    assert twists(program()) == [
        (0, 1),
        (0, 20),
        (0, 10),
        (10, 11),
        (11, 0),
        (20, 21),
        (21, 0),
        (1, 2),
        (2, 0),
    ]


def test_a_twist_is_taken_back_when_an_exception_leaves():
    @smc_program
    def part():
        twist(1)
        raise ValueError("own")

    @smc_program
    def program():
        try:
            part()
        except ValueError:
            return gen()

    assert twists(program()) == [(0, 1), (1, 0)]
    run(program()).process.check()
    process = Process(part())
    process.step()
    assert process.step().request == Twist(1, 0)
    with pytest.raises(ValueError, match="own"):
        process.step()


# --- closing ---


def test_close_runs_finally_blocks_in_silence():
    log = []

    @smc_program
    def part():
        twist(1)
        try:
            gen()
        finally:
            log.append("part")
            prompt("never")
            log.append("not reached")

    @smc_program
    def program():
        with contextlib.ExitStack() as stack:
            stack.callback(log.append, "stack")
            try:
                part()
            finally:
                log.append("finally")
                gen()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        process = Process(program())
        process.step()
        process.step()
        process.close()
        process.close()
        gc.collect()
    assert log == ["part", "finally", "stack"]


def test_a_program_that_will_not_close():
    @smc_program
    def program():
        while True:
            try:
                gen()
            except BaseException:
                pass

    process = Process(program())
    process.step()
    process.close()


def test_a_dropped_process_closes_itself():
    log = []

    @smc_program
    def program():
        try:
            gen()
        finally:
            log.append("closed")
            gen()

    process = Process(program())
    process.step()
    del process
    gc.collect()
    assert log == ["closed"]


def test_a_closed_process_can_go_on():
    """Closing drops the coroutine, not the journal: the loop may park a process."""
    process = Process(two("p"))
    process.step()
    process.step()
    process.close()
    process.step(Text("a"))
    assert process.step(Text("b")).value == ["a", "b"]


# --- determinism ---


def nondeterministic(program, *args, texts=()):
    with pytest.raises(ProgramError) as caught:
        process = run(program(*args), texts).process
        process.check()
    message = str(caught.value)
    assert "host code is not deterministic; use draw() or call()" in message
    assert f'File "{__file__}", line ' in message
    return message


ticks = itertools.count()


def test_other_arguments():
    @smc_program
    def program():
        prompt(f"tick {next(ticks)}")
        return gen()

    message = nondeterministic(program)
    assert "a replay asked for Prompt(parts=('tick 1',))" in message
    assert 'prompt(f"tick {next(ticks)}")' in message and "^^^" in message


def test_another_statement():
    @smc_program
    def program():
        if next(ticks) % 2:
            prompt("a")
        else:
            gen()

    assert "where" in nondeterministic(program)


def test_another_line():
    @smc_program
    def program():
        if next(ticks) % 2:
            gen()
        else:
            gen()

    assert "was recorded" in nondeterministic(program)


def test_another_return_value():
    @smc_program
    def program():
        gen()
        return str(uuid.uuid4())

    assert "a replay returned" in nondeterministic(program)


def test_an_early_return():
    @smc_program
    def program():
        if next(ticks) % 2 == start:
            prompt("x")

    start = next(ticks) % 2 == 0
    assert "returned early" in nondeterministic(program)


def test_a_later_return():
    @smc_program
    def program():
        if next(ticks) % 2 != start:
            prompt("x")

    start = next(ticks) % 2 == 0
    assert "instead of returning" in nondeterministic(program)


def test_an_exception_in_the_replay_alone():
    seen = []

    @smc_program
    def program():
        gen()
        seen.append(1)
        return 1 / (2 - len(seen))

    assert "a replay raised ZeroDivisionError" in nondeterministic(program)


@pytest.mark.parametrize(
    "flip",
    [
        lambda: random.random() < 0,
        lambda: random.choice([False]),
        lambda: np.random.rand() < 0,
        lambda: bool(np.random.permutation(5)[0] > 9),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_global_randomness_is_caught_though_it_changes_nothing(flip, finished):
    @smc_program
    def program():
        prompt("a")
        if flip():
            return None
        return gen()

    process = Process(program())
    process.step()
    process.step()
    if finished:
        process.step(Text("x"))
    with pytest.raises(ProgramError) as caught:
        process.check()
    assert "host code is not deterministic" in str(caught.value)
    assert "before this statement" in str(caught.value) and "return gen()" in str(caught.value)


def test_global_randomness_after_the_last_statement():
    @smc_program
    def program():
        gen()
        random.random()

    assert "`random` after this statement" in nondeterministic(program)


def test_a_program_may_seed():
    @smc_program
    def program():
        own = random.Random(3)
        random.seed(1)
        np.random.seed(1)
        return own.random(), random.random(), np.random.rand(), gen()

    run(program()).process.check()


def test_another_threads_randomness_is_no_matter():
    states = iter([True])

    def elsewhere():
        if next(states, False):
            thread = threading.Thread(target=random.random)
            thread.start()
            thread.join()

    @smc_program
    def program():
        gen()
        elsewhere()

    process = Process(program())
    process.step()
    process.step(Text(""))
    states = iter([True])
    process.check()


def test_a_replayed_clone_is_checked_too():
    @smc_program
    def program():
        prompt(f"{next(ticks)}")
        gen()

    process = Process(program())
    process.step()
    process.step()
    clone = process.fork()
    with pytest.raises(ProgramError, match="not deterministic"):
        clone.step(Text(""))


class Holder:
    def __init__(self, items):
        self.items = items


class Weighted(TextPotential):
    """A potential of the user's own that compares by identity."""

    def __init__(self, fn):
        self.fn = fn

    @property
    def stage(self):
        return "end"

    def log_potential(self, texts, complete):
        return np.array([self.fn(t) for t in texts])


def test_arguments_made_anew_are_the_same():
    """Lambdas, arrays, objects and sets differ by identity in each replay, and are equal."""

    def counted(*args):
        return len(args)

    @smc_program
    def program(n):
        holder, array = Holder([1, float("nan")]), np.arange(3.0)
        call(lambda: n, batch=False)
        call(counted, holder, array, {"a": {1, 2}}, b"x")
        holder.items.append(2)
        array[0] = 9
        draw([[1], holder.items, array])
        gen(Weighted(lambda t: n))
        values = [holder]
        x = draw(values)
        values.append(3)
        x.items.clear()
        chat([{"role": "user", "content": array.tolist(), "array": array}])
        return holder, array

    ran = run(program(3))
    ran.process.check()
    clone = ran.process.fork()
    clone.check()


def test_shared_objects_may_change():
    """A client, a log: what a called function works with is the same object in each replay."""
    log, client = [], Holder([])

    def work(x, shared):
        log.append(x)
        shared.items.append(x)
        return x

    @smc_program
    def program():
        return call(work, 1, client), call(client.items.append, 2), call(log.append, 3)

    process = run(program()).process
    process.check()
    assert log == [1, 3] and client.items == [1, 2]


def test_arguments_of_the_same_type_that_differ_are_not():
    @smc_program
    def by_closure():
        n = next(ticks)
        call(lambda: n)

    @smc_program
    def by_attribute():
        call(str, Holder([next(ticks)]))

    @smc_program
    def by_array():
        call(str, np.array([next(ticks)]))

    @smc_program
    def by_potential():
        n = next(ticks)
        gen(Weighted(lambda t: n))

    @smc_program
    def by_values():
        draw([next(ticks), 1])

    for program in (by_closure, by_attribute, by_array, by_potential, by_values):
        nondeterministic(program)


def test_time_is_caught_where_it_shows():
    @smc_program
    def program():
        prompt(str(time.time_ns()))

    nondeterministic(program)


def test_check_before_the_start():
    Process(two("p")).check()


# --- printing ---


def test_replays_are_mute(capsys):
    @smc_program
    def program():
        print("out")
        print("err", file=sys.stderr)
        x = gen()
        print("after")
        return x

    process = Process(program())
    process.step()
    clone = process.fork()
    process.step(Text(""))
    clone.step(Text(""))
    process.check()
    captured = capsys.readouterr()
    assert captured.out == "out\nafter\nafter\n"
    assert captured.err == "err\n"


def test_other_threads_print_during_a_replay(capsys):
    def shout():
        thread = threading.Thread(target=print, args=("elsewhere",))
        thread.start()
        thread.join()

    @smc_program
    def program():
        print("here")
        shout()
        gen()

    process = Process(program())
    process.step()
    process.check()
    assert capsys.readouterr().out == "here\n" + "elsewhere\n" * 4
    assert type(sys.stdout).__module__ != "smcprog.dsl.quiet"


def test_a_program_may_redirect_its_own_printing():
    @smc_program
    def program():
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print("kept")
        return out.getvalue(), gen()

    process = Process(program())
    process.step()
    assert process.fork().step(Text("x")).value == ("kept\n", "x")


# --- asynchronous code ---


def test_awaiting_something_foreign():
    @smc_program
    async def program():
        await prompt("a")
        await asyncio.sleep(0)

    process = Process(program())
    process.step()
    with pytest.raises(ProgramError) as caught:
        process.step()
    assert "await statements and programs only" in str(caught.value)
    assert "await asyncio.sleep(0)" in str(caught.value)
    assert "call(fetch, url)" in str(caught.value)


def test_awaiting_a_future_inside_a_running_loop():
    @smc_program
    async def program():
        await asyncio.sleep(1)

    async def main():
        with pytest.raises(ProgramError, match="await statements and programs only"):
            Process(program()).step()

    asyncio.run(main())


# --- written by hand ---


@smc_program
async def by_hand(n):
    await prompt("a")
    x = await gen(max_tokens=3)
    words = [await gen() for _ in range(n)]
    if await draw([True, False]):
        await factor(1.0)
    return x, words, await logprob("ab"), (await two("p"))[0], await by_hand(0) if n else None


def test_by_hand():
    ran = run(by_hand(2))
    assert ran.value == ("g0", ["g1", "g2"], -2.0, "g3", ("g5", [], -2.0, "g6", None))
    site = ran.asked[1].site
    assert site.statement == "gen" and site.source == "gen(max_tokens=3)"
    assert site.line == by_hand.function.__code__.co_firstlineno + 3
    assert (site.program, site.variable, ran.asked[2].site.variable) == ("by_hand", "x", "words")
    ran.process.check()
    for at in range(len(ran.asked)):
        process, answers = Process(by_hand(2)), Answers()
        step = process.step()
        for _ in range(at):
            step = process.step(answers.answer(step.request))
        clone = process.fork()
        assert finish(clone, answers).value == ran.value


def test_by_hand_and_compiled_call_each_other():
    @smc_program
    def compiled():
        return by_hand(0)

    assert run(compiled()).value[0] == "g0"


def test_by_hand_a_statement_that_is_not_awaited():
    names = {"smc_program": smc_program, "g": gen, "Process": Process}
    exec(
        "@smc_program\nasync def program():\n    x = g()\n    return 1\n"
        "@smc_program\nasync def uses():\n    x = g()\n    return x.strip()\n"
        "@smc_program\nasync def calls():\n    [await g(), program()]\n",
        names,
    )
    process = Process(names["calls"]())
    process.step()
    with pytest.raises(ProgramError, match=r"program\(\) was not awaited"):
        process.step(Text(""))
    for name in ("program", "uses"):
        with pytest.raises(ProgramError, match=r"gen\(\) was not awaited"):
            Process(names[name]()).step()


def test_a_program_awaited_outside_a_run():
    async def main():
        await two("p")

    with pytest.raises(ProgramError, match=r"Engine.run"):
        asyncio.run(main())


# --- all requests have their answers ---


def test_the_answers_of_each_request():
    @smc_program
    def program():
        return [
            prompt("a"),
            chat([{"role": "user", "content": "x"}]),
            gen(),
            observe("b"),
            logprob("c"),
            logprob(["c", "d"]),
            factor(0),
            condition(True),
            twist(0),
            sync(),
            draw(["x", "y"]),
            call(len, "abc"),
            context(),
        ]

    process = Process(program())
    process.step()
    answers = [None, None, Text("t"), -1.0, [-2.0], [-2.0, -3.0], None, None, None, None, 1, 3, "c"]
    for answer in answers[:-1]:
        assert isinstance(process.step(answer), Pending)
    assert process.step("c").value == [
        *(None, None, "t", -1.0, -2.0, [-2.0, -3.0], None, None, None, None, "y", 3, "c")
    ]
    process.check()


def test_a_draw_gives_a_value_of_the_particles_own():
    options = [[1], [2]]

    @smc_program
    def program():
        drawn = draw(options, weights=[1, 2])
        drawn.append(3)
        return drawn

    process = Process(program())
    assert process.step().request == Draw(([1], [2]), (1.0, 2.0))
    assert process.step(1).value == [2, 3]
    assert options == [[1], [2]]


def test_a_batched_call():
    @smc_program
    def program():
        return call(len, "a", batch=True)

    assert Process(program()).step().request == Call(len, ("a",), True)


def test_replaying_two_thousand_statements_is_quick():
    @smc_program
    def program(n):
        words = []
        for _ in range(n):
            prompt("a")
            words.append(gen(max_tokens=3))
        return len(words)

    process = run(program(1000)).process
    start = time.perf_counter()
    process.check()
    assert time.perf_counter() - start < 0.5


def test_deep_recursion():
    @smc_program
    def down(n):
        return gen() if n == 0 else down(n - 1)

    assert run(down(200)).value == "g0"
