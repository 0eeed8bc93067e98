"""Each statement: the request it makes, the value it gives, and what it says when it is misused."""

import inspect
import math
import typing

import numpy as np
import pytest

from smcprog.dsl import statements
from smcprog.dsl.marker import Statement
from smcprog.dsl.program import smc_program
from smcprog.dsl.requests import (
    Call,
    Chat,
    Context,
    Draw,
    Factor,
    Gen,
    LogProb,
    Observe,
    Prompt,
    Sync,
    Twist,
)
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
from smcprog.errors import ProgramError, WeightError
from smcprog.potentials.base import product
from smcprog.potentials.grammar import choice, regex
from smcprog.potentials.lm import lm
from smcprog.text import EOS, LEAVE, Special, Text, special
from tests.dsl.driver import run

ALL = [prompt, chat, gen, observe, logprob, factor, condition, twist, sync, draw, call, context]


@smc_program
def do(statement, *args, **kwargs):
    return statement(*args, **kwargs)


def asked(statement, *args, **kwargs):
    """The request that a statement makes."""
    (request, *rest) = run(do(statement, *args, **kwargs)).requests
    assert len(rest) == (1 if statement is twist else 0)
    return request


def gives(statement, *args, **kwargs):
    """The value that a statement gives."""
    return run(do(statement, *args, **kwargs)).value


def refusal(statement, *args, error=ProgramError, **kwargs):
    """What a misused statement says; it always says where."""
    with pytest.raises(error) as caught:
        run(do(statement, *args, **kwargs))
    message = str(caught.value)
    assert f'File "{__file__}", line ' in message
    assert "return statement(*args, **kwargs)" in message and "^^^" in message
    return message


@pytest.mark.parametrize("statement", ALL, ids=repr)
def test_each_is_a_documented_statement(statement):
    assert isinstance(statement, Statement)
    assert repr(statement) == f"<statement {statement.__name__}>"
    assert "engine.run(" in statement.__doc__  # an example that runs
    assert inspect.signature(statement).return_annotation is not inspect.Signature.empty


def test_return_types():
    hints = {s.__name__: typing.get_type_hints(s)["return"] for s in ALL}
    assert hints["gen"] is Text
    assert hints["observe"] is float
    assert hints["context"] is str
    assert hints["draw"] is statements.T


# --- prompt and chat ---


def test_prompt():
    assert asked(prompt, "a", Text("b"), special("<s>")) == Prompt(("a", "b", "<s>"))
    assert isinstance(asked(prompt, special("<s>")).parts[0], Special)
    assert asked(prompt) == Prompt(())


@pytest.mark.parametrize(("part", "name"), [(3, "int (3)"), (None, "None"), (b"a", "bytes")])
def test_prompt_takes_text_alone(part, name):
    message = refusal(prompt, "a", part)
    assert f"not {name}" in message and "prompt(str(x))" in message


def test_chat():
    messages = [{"role": "user", "content": "a"}]
    tools = [{"name": "t"}]
    request = asked(chat, messages, tools, enable_thinking=False)
    assert request == Chat(messages, tools, {"enable_thinking": False})
    assert gives(chat, messages) is None


def test_chat_records_the_history_as_it_was():
    @smc_program
    def talk():
        messages = [{"role": "user", "content": "a"}]
        chat(messages)
        messages[0]["content"] = "changed"
        messages.append({"role": "assistant", "content": gen()})
        chat(messages)

    ran = run(talk())
    assert ran.requests[0].messages == [{"role": "user", "content": "a"}]
    assert len(ran.requests[2].messages) == 2
    ran.process.check()


@pytest.mark.parametrize("bad", [{"role": "user"}, "hello", 3, ["hello"], [{"content": "a"}]])
def test_chat_takes_messages(bad):
    assert '"role": "user"' in refusal(chat, bad)


def test_chat_tools():
    assert "list of tools" in refusal(chat, [{"role": "user"}], tools=3)


# --- gen ---


def test_gen():
    assert asked(gen) == Gen(product(), None, 512, False)
    request = asked(gen, lm**2, regex("[0-9]+"), stop=".", max_tokens=np.int64(7), keep_stop=True)
    assert request == Gen(product(lm**2, regex("[0-9]+")), (".",), 7, True)
    assert type(request.max_tokens) is int
    assert asked(gen, choice(["a", "b"])).potential == product(choice(["a", "b"]))


@pytest.mark.parametrize(
    ("stop", "stops"),
    [
        (".", (".",)),
        (EOS, (EOS,)),
        ((), ()),
        ([".", EOS], (".", EOS)),
        ((".", "!", "."), (".", "!")),
        (None, None),
    ],
)
def test_gen_stop(stop, stops):
    assert asked(gen, stop=stop).stop == stops


def test_gen_leave():
    assert asked(gen, regex("a+"), stop=(LEAVE, ".")).stop == (LEAVE, ".")
    assert "there is none" in refusal(gen, stop=LEAVE)
    assert "stop=EOS" in refusal(gen, lm**2, stop=(LEAVE,))


@pytest.mark.parametrize(("stop", "says"), [("", "empty"), ((".", ""), "stop=()"), (3, "not int")])
def test_gen_stop_misused(stop, says):
    assert says in refusal(gen, stop=stop)


@pytest.mark.parametrize("count", [0, -1, 2.5, "3", True, None])
def test_gen_max_tokens_misused(count):
    assert "positive int" in refusal(gen, max_tokens=count)


def test_gen_keep_stop_misused():
    assert "True or False" in refusal(gen, keep_stop="yes")


@pytest.mark.parametrize(
    ("keyword", "instead"),
    [
        ("temperature", "gen(lm.at(temperature="),
        ("top_p", "gen(lm.at(top_p="),
        ("top_k", "gen(lm.at(top_k="),
        ("stop_at", "gen(..., stop="),
        ("max_new_tokens", "gen(..., max_tokens="),
        ("max_length", "gen(..., max_tokens="),
        ("name", "name = gen(...)"),
        ("whatever", "its keywords are stop=, max_tokens=, keep_stop="),
    ],
)
def test_gen_keywords_of_others(keyword, instead):
    message = refusal(gen, **{keyword: 1})
    assert f"gen() has no keyword {keyword!r}" in message and instead in message


def test_gen_takes_potentials():
    assert "label = gen(...)" in refusal(gen, "label")
    assert "prompt('Some text')" in refusal(gen, "Some text")
    assert "gen(*potentials)" in refusal(gen, [lm])
    assert "lm**2" in refusal(gen, 2)
    assert "gen(regex(...))" in refusal(gen, regex)
    assert "not None" in refusal(gen, None)


# --- scoring ---


def test_observe():
    assert asked(observe, "a") == Observe("a", product(lm))
    assert asked(observe, EOS, lm**2) == Observe(EOS, product(lm**2))
    assert asked(observe, "a", potential=lm * lm).potential.lms[0].alpha == 2
    assert gives(observe, "a") == -0.5


def test_observe_misused():
    assert "not int (3)" in refusal(observe, 3)
    assert "text (str) or EOS" in refusal(observe, LEAVE)
    assert "language model alone" in refusal(observe, "a", regex("a"))
    assert "language model alone" in refusal(observe, "a", lm * regex("a"))
    assert "one text" in refusal(observe, "a", "b")


def test_logprob():
    assert asked(logprob, "ab") == LogProb(("ab",), None)
    assert asked(logprob, ["a", "b"], given="c") == LogProb(("a", "b"), "c")
    assert gives(logprob, "ab") == -2.0
    assert gives(logprob, ["ab", "c"]) == [-2.0, -1.0]
    assert gives(logprob, []) == []


def test_logprob_misused():
    assert "not int" in refusal(logprob, 3)
    assert "not int" in refusal(logprob, ["a", 3])
    assert "given" in refusal(logprob, "a", given=3)


@pytest.mark.parametrize("number", [1, 0.5, np.float32(0.5), np.int64(2), np.array(1.5), -math.inf])
def test_factor(number):
    assert asked(factor, number) == Factor(float(number), "factor")
    assert type(asked(factor, number).logw) is float


@pytest.mark.parametrize("statement", [factor, twist])
@pytest.mark.parametrize("truth", [True, np.True_])
def test_log_weights_are_not_truth_values(statement, truth):
    assert "condition(...)" in refusal(statement, truth)


@pytest.mark.parametrize("statement", [factor, twist])
def test_log_weights_are_numbers(statement):
    assert "not str ('1')" in refusal(statement, "1")
    assert "not None" in refusal(statement, None)
    assert "not ndarray" in refusal(statement, np.zeros(2))
    for bad in (math.nan, math.inf):
        assert f"was given {bad}" in refusal(statement, bad, error=WeightError)


class Scalar:
    """A 0-d tensor, as far as the statements look."""

    ndim = 0

    def __init__(self, value, dtype):
        self.value, self.dtype = value, dtype

    def __float__(self):
        return float(self.value)


def test_tensor_scalars_are_numbers():
    assert asked(factor, Scalar(0.5, "torch.float32")) == Factor(0.5, "factor")
    assert "condition" in refusal(factor, Scalar(True, "torch.bool"))


def test_condition():
    assert asked(condition, True) == Factor(0.0, "condition")
    assert asked(condition, []) == Factor(-math.inf, "condition")
    assert asked(condition, np.bool_(False)) == Factor(-math.inf, "condition")
    assert "truth value" in refusal(condition, np.zeros(2))


def test_twist():
    assert asked(twist, np.float64(2)) == Twist(0.0, 2.0)


# --- the host's own ---


def test_sync_and_context():
    assert asked(sync) == Sync()
    assert asked(context) == Context()
    assert gives(context) == ""
    assert "takes no keywords" in refusal(sync, now=True)
    assert "too many positional arguments" in refusal(sync, 1)


def test_draw():
    assert asked(draw, ["a", "b"]) == Draw(("a", "b"), None)
    assert asked(draw, range(2), np.array([1, 3])) == Draw(range(2), (1.0, 3.0))
    assert gives(draw, "abc") == "a"
    assert gives(draw, np.array([7, 8])) == 7


def test_draw_misused():
    assert "no values" in refusal(draw, [])
    assert "list(values)" in refusal(draw, {1, 2})
    assert "list(values)" in refusal(draw, 3)
    assert "1 weights for 2 values" in refusal(draw, "ab", [1])
    assert "weight -1.0" in refusal(draw, "ab", [1, -1])
    assert "weight nan" in refusal(draw, "ab", [1, math.nan])
    assert "weight inf" in refusal(draw, "ab", [1, math.inf])
    assert "all zero" in refusal(draw, "ab", [0, 0])
    assert "not str" in refusal(draw, "ab", ["1", 2])
    assert "sequence of numbers" in refusal(draw, "ab", 3)


def test_call():
    assert asked(call, len, [1, 2]) == Call(len, ([1, 2],), False)
    assert gives(call, len, [1, 2]) == 2
    assert gives(call, lambda xs: [x + 1 for x in xs], 3, batch=True) == 4


def test_call_misused():
    assert "call(fetch, url)" in refusal(call, 3)
    assert "batch" in refusal(call, len, [], batch=1)
    assert "missing a required argument: 'fn'" in refusal(call)


def test_a_user_error_is_not_a_misuse():
    class Odd:
        def __bool__(self):
            raise TypeError("own")

    assert "own" in refusal(condition, Odd())
