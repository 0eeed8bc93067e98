"""What cannot be compiled is refused where it is written, with line, caret and remedy."""

import re
import textwrap

import pytest

from smcprog.dsl.program import smc_program
from smcprog.dsl.statements import gen, prompt
from smcprog.errors import ProgramError
from tests.dsl.driver import cell, run

# name: (source; the caret must stand under «...», message, remedy)
REFUSED = {
    "lambda": (
        """
        @smc_program
        def program():
            f = lambda: «gen()»
        """,
        "gen() cannot stand in a lambda",
        "decorated with @smc_program",
    ),
    "lambda in a lambda": (
        """
        @smc_program
        def program():
            f = lambda: lambda x: [«gen()», x]
        """,
        "gen() cannot stand in a lambda",
        "@smc_program",
    ),
    "program in a lambda": (
        """
        @smc_program
        def part():
            return gen()

        @smc_program
        def program():
            return list(map(lambda x: «part()», "ab"))
        """,
        "part() cannot stand in a lambda",
        "@smc_program",
    ),
    "generator expression": (
        """
        @smc_program
        def program():
            return "".join(«gen()» for _ in range(3))
        """,
        "gen() cannot stand in a generator expression",
        "list comprehension: [... for ... in ...]",
    ),
    "test of a generator expression": (
        """
        @smc_program
        def program():
            return any(x for x in "ab" if «gen()»)
        """,
        "generator expression",
        "list comprehension",
    ),
    "nested def": (
        """
        @smc_program
        def program():
            def helper(x):
                return x + «gen()»
            return helper("a")
        """,
        "gen() cannot stand in the nested function helper()",
        "Decorate helper() with @smc_program",
    ),
    "def in a nested def": (
        """
        @smc_program
        def program():
            def helper(x):
                def inner():
                    prompt_ = «prompt("a")»
        """,
        "prompt() cannot stand in the nested function inner()",
        "Decorate inner() with @smc_program",
    ),
    "default of a def in a nested def": (
        """
        @smc_program
        def program():
            def helper(x):
                def inner(y=«gen()»):
                    pass
        """,
        "gen() cannot stand in the nested function helper()",
        "Decorate helper() with @smc_program",
    ),
    "nested async def": (
        """
        @smc_program
        def program():
            async def helper():
                await «gen()»
        """,
        "nested function helper()",
        "Decorate helper()",
    ),
    "class body": (
        """
        @smc_program
        def program():
            class Made:
                x = «gen()»
        """,
        "gen() cannot stand in a class body",
        "before the class",
    ),
    "method of a local class": (
        """
        @smc_program
        def program():
            class Made:
                def method(self):
                    return «gen()»
        """,
        "nested function method()",
        "Decorate method()",
    ),
    "yield": (
        """
        @smc_program
        def program():
            «yield gen()»
        """,
        "cannot yield",
        "list and return it",
    ),
    "yield from": (
        """
        @smc_program
        def program():
            x = «yield from range(3)»
        """,
        "cannot yield",
        "list and return it",
    ),
    "yield in an async def": (
        """
        @smc_program
        async def program():
            «yield await gen()»
        """,
        "cannot yield",
        "list and return it",
    ),
    "global": (
        """
        @smc_program
        def program():
            «global count»
            count = 1
        """,
        "cannot declare `global count`",
        "local variable",
    ),
    "global in a helper": (
        """
        @smc_program
        def program():
            def helper():
                «global count»
                count = 1
            helper()
        """,
        "cannot declare `global count`",
        "local variable",
    ),
    "nonlocal": (
        """
        def outer():
            count = 0

            @smc_program
            def program():
                «nonlocal count»
                count += 1

            return program

        outer()
        """,
        "cannot declare `nonlocal count`",
        "local variable",
    ),
    "nonlocal in a helper": (
        """
        def outer():
            count = 0

            @smc_program
            def program():
                def helper():
                    «nonlocal count»
                    count += 1
                helper()

        outer()
        """,
        "cannot declare `nonlocal count`",
        "local variable",
    ),
    "gen in prompt": (
        """
        @smc_program
        def program():
            prompt("a", str(«gen()»))
        """,
        "gen() stands inside the arguments of prompt()",
        "x = gen()",
    ),
    "gen in an f-string in prompt": (
        """
        @smc_program
        def program():
            prompt(f"The answer is {«gen(max_tokens=3)»}.")
        """,
        "before the text around it",
        "x = gen(max_tokens=3)",
    ),
    "gen in a long f-string in prompt": (
        '''
        @smc_program
        def program():
            prompt(f"""Question
            {gen(max_tokens=3)}.""")
        ''',
        "before the text around it",
        "x = gen(max_tokens=3)",
    ),
    "gen in gen": (
        """
        @smc_program
        def program():
            gen(choice(«gen()», "b"))
        """,
        "gen() stands inside the arguments of gen()",
        "x = gen()",
    ),
    "gen in observe": (
        """
        @smc_program
        def program():
            observe(«gen()»)
        """,
        "gen() stands inside the arguments of observe()",
        "x = gen()",
    ),
    "gen in chat, in a comprehension": (
        """
        @smc_program
        def program():
            chat([{"role": "user", "content": «gen()»} for _ in range(2)])
        """,
        "gen() stands inside the arguments of chat()",
        "x = gen()",
    ),
    "program in prompt": (
        """
        @smc_program
        def part():
            return gen()

        @smc_program
        def program():
            prompt(«part()»)
        """,
        "part() stands inside the arguments of prompt()",
        "x = part()",
    ),
    "gen in a program's arguments": (
        """
        @smc_program
        def part(x):
            return x

        @smc_program
        def program():
            part(«gen()»)
        """,
        "gen() stands inside the arguments of part()",
        "x = gen()",
    ),
    "a program in its own arguments": (
        """
        @smc_program
        def program(n):
            return program(«program(n - 1)») if n else gen()
        """,
        "program() stands inside the arguments of program()",
        "x = program(n - 1)",
    ),
    "parameter": (
        """
        @smc_program
        def program(«prompt»):
            gen()
        """,
        "the parameter `prompt` hides smcprog's `prompt`",
        "Rename the parameter, for example to `prompt_`",
    ),
    "keyword parameter": (
        """
        @smc_program
        def program(*, «lm»=None):
            gen()
        """,
        "the parameter `lm` hides smcprog's `lm`",
        "Rename",
    ),
    "local": (
        """
        @smc_program
        def program():
            «gen» = 3
        """,
        "the variable `gen` hides smcprog's `gen`",
        "for example to `gen_`",
    ),
    "loop variable": (
        """
        @smc_program
        def program():
            for «choice» in "ab":
                pass
        """,
        "the variable `choice` hides",
        "Rename",
    ),
    "comprehension variable": (
        """
        @smc_program
        def program():
            return [1 for «context» in "ab"]
        """,
        "the variable `context` hides",
        "Rename",
    ),
    "alias": (
        """
        g = gen

        @smc_program
        def program():
            for «g» in "ab":
                pass
        """,
        "the variable `g` hides smcprog's `gen`",
        "Rename",
    ),
    "import": (
        """
        @smc_program
        def program():
            from random import «choice»
        """,
        "the variable `choice` hides",
        "Rename",
    ),
    "nested function of that name": (
        """
        @smc_program
        def program():
            «def call(): pass»
        """,
        "the variable `call` hides",
        "Rename",
    ),
    "decorator": (
        """
        import functools

        @«functools.cache»
        @smc_program
        def program():
            gen()
        """,
        "cannot have the decorator @functools.cache",
        "Only @classmethod and @staticmethod",
    ),
    "missing await": (
        """
        @smc_program
        async def program():
            x = «gen(max_tokens=3)»
        """,
        "gen() is not awaited",
        "await gen(max_tokens=3)",
    ),
    "awaited in arguments": (
        """
        @smc_program
        async def program():
            await prompt(await «gen()»)
        """,
        "gen() stands inside the arguments of prompt()",
        "x = gen()",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_line_caret_and_remedy(name):
    source, message, remedy = REFUSED[name]
    marked = textwrap.dedent(source)
    with pytest.raises(ProgramError) as caught:
        cell(re.sub("[«»]", "", marked))
    text = str(caught.value)
    assert message in text.splitlines()[0]
    assert remedy in text.splitlines()[-1]
    if "«" not in marked:
        return
    lines = marked.splitlines()
    number = next(i for i, line in enumerate(lines, 1) if "«" in line)
    shown, carets = text.splitlines()[2:4]
    assert f"line {number}, in program" in text.splitlines()[1]
    assert shown.strip() == re.sub("[«»]", "", lines[number - 1]).strip()
    under = shown[carets.index("^") : carets.index("^") + carets.count("^")]
    assert under == re.search("«(.*)»", lines[number - 1])[1].split("»")[0]


def test_statements_unknown_at_compilation_are_refused_when_they_run():
    names = cell(
        """
        @smc_program
        def program(ask, tell):
            tell(ask())
        """
    )
    with pytest.raises(ProgramError, match=r"gen\(\) stands inside the arguments of prompt\(\)"):
        run(names["program"](gen, prompt))
    assert run(names["program"](gen, str)).value is None
    assert run(names["program"](str, prompt)).names == ["prompt"]


def test_nesting_at_run_time_is_of_this_evaluation():
    names = cell(
        """
        @smc_program
        def program(asks, tells):
            for ask, tell in zip(asks, tells):
                tell(ask())
        """
    )
    assert run(names["program"]([str, gen], [prompt, str])).names == ["prompt", "gen"]


def test_no_statement_of_ours_no_clash():
    names = cell(
        """
        import smcprog.dsl.statements as sp

        del context, reward, draw

        @smc_program
        def program(context, reward, draw=1):
            sp.prompt(context, reward)
            return sp.gen()
        """,
        reward=None,
    )
    assert run(names["program"]("a", "b")).value == "g0"


def test_a_local_called_like_a_statement_is_a_clash():
    with pytest.raises(ProgramError, match="`draw` hides smcprog's `draw`"):
        cell(
            """
            del draw

            @smc_program
            def program(draw):
                return draw([1, 2])
            """
        )


def test_a_parameter_hides_what_the_enclosing_function_imported():
    with pytest.raises(ProgramError, match="`prompt` hides"):
        cell(
            """
            del prompt

            def outer():
                from smcprog.dsl.statements import prompt

                @smc_program
                def program(prompt):
                    pass

            outer()
            """
        )


@pytest.mark.parametrize(
    ("value", "message"),
    [(3, "takes a function, not a int"), (str, "not a class"), (lambda: gen(), "not a lambda")],
)
def test_only_functions_are_programs(value, message):
    with pytest.raises(ProgramError, match=message):
        smc_program(value)


# --- outside a program ---


def helper():
    return gen()


def test_outside_a_program():
    line = helper.__code__.co_firstlineno + 1
    with pytest.raises(ProgramError) as caught:
        helper()
    assert "gen() works only inside a program" in str(caught.value)
    assert f'{__file__}", line {line}, in helper' in str(caught.value)
    assert "Decorate helper() with @smc_program" in str(caught.value)


def test_in_an_undecorated_helper_of_a_program():
    @smc_program
    def program():
        return helper()

    with pytest.raises(ProgramError, match=r"Decorate helper\(\) with @smc_program"):
        run(program())


def test_at_module_level():
    with pytest.raises(ProgramError, match="@smc_program def program"):
        cell("gen()")


def test_in_a_lambda_passed_in():
    @smc_program
    def program(ask):
        return ask()

    with pytest.raises(ProgramError, match="cannot stand in a lambda"):
        run(program(lambda: gen()))


def test_through_map():
    @smc_program
    def program():
        return list(map(prompt, "ab"))

    with pytest.raises(ProgramError, match="was called by another function.*\n.*\n.*directly"):
        run(program())


def test_a_program_in_an_undecorated_helper():
    @smc_program
    def part():
        return gen()

    def plain():
        return part()

    @smc_program
    def program():
        return plain()

    with pytest.raises(ProgramError, match=r"Decorate plain\(\) with @smc_program"):
        run(program())
