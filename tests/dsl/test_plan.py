"""The plan: statements, control flow, potentials and where each is evaluated."""

import textwrap

import pytest

from smcprog.dsl.plan import Block, Planned
from smcprog.dsl.program import smc_program
from smcprog.dsl.statements import draw, gen, observe, prompt, twist
from smcprog.potentials.base import TextPotential
from smcprog.potentials.grammar import choice, regex
from smcprog.potentials.lm import lm
from smcprog.text import EOS, LEAVE
from tests.dsl.driver import cell

LABELS = [" positive", " negative"]
SHARP = lm**2 * regex("[a-z]+")


class Short(TextPotential):
    def __init__(self, when="end"):
        self.when = when

    @property
    def stage(self):
        return self.when

    def log_potential(self, texts, complete):
        raise NotImplementedError


def stages(program):
    """(source, stage) of each potential of the program's only statement."""
    (planned,) = program.plan().statements
    return [(factor.source, factor.stage) for factor in planned.potentials], planned.stop


def test_the_example_of_the_design():
    names = cell(
        """
        @smc_program
        def review(text: str):
            prompt(f"Review: {text}\\nSentiment:")
            label = gen(choice(" positive", " negative")).strip()
            if label == "positive":
                for _ in range(3):
                    why = gen(lm**2, stop=".", max_tokens=40)
            else:
                factor(-1.0)
            return label
        """
    )
    plan = names["review"].plan()
    assert plan.file.startswith("<cell ")
    assert plan.explain() == str(plan)
    leave = "LEAVE (the model leaves the constraint); at most 512 tokens"
    eos = "EOS (the model's end tokens); at most 40 tokens"
    assert plan.explain() == textwrap.dedent(
        f'''\
        review(text: str)   File "{plan.file}", line 3
           4  prompt(f"Review: {{text}}\\nSentiment:")
           5  label = gen(choice(" positive", " negative")).strip()
                  choice(" positive", " negative")  mask    in the draft's and the bonus's sampling step
                  lm                                score   in the target's batched pass
                  stop                              {leave}
           6  if label == "positive":
           7      for _ in range(3):
           8          why = gen(lm**2, stop=".", max_tokens=40)
                          lm**2  score   in the target's batched pass
                          stop   '.' or {eos}
          10  else:
          10      factor(-1.0)'''  # noqa: E501
    )


def test_every_kind_of_block():
    @smc_program
    def part(n):
        gen()
        return part(n - 1)

    @smc_program
    def program(xs):
        while gen() != "a":
            prompt("w")
        else:
            prompt("we")
        try:
            prompt("t")
        except ValueError as error:  # noqa: F841
            prompt("e")
        finally:
            prompt("f")
        with open("x") as file:  # noqa: F841
            prompt("with")
        match xs:
            case [_] if gen():
                prompt("m")
        words = [gen() for x in xs if x]
        y = gen() if words else draw([1])
        z = part(3)
        for _ in xs:
            pass
        return y, z

    tree = program.plan()

    def kinds(children):
        return [
            (child.kind, child.header, kinds(child.children))
            if isinstance(child, Block)
            else child.site.source
            for child in children
        ]

    assert kinds(tree.children) == [
        ("while", 'while gen() != "a":', ["gen()", 'prompt("w")']),
        ("while", "else:", ['prompt("we")']),
        ("try", "try:", ['prompt("t")']),
        ("try", "except ValueError as error:", ['prompt("e")']),
        ("try", "finally:", ['prompt("f")']),
        ("with", "with open('x') as file:", ['prompt("with")']),
        ("match", "match xs:", [("match", "case [_] if gen():", ["gen()", 'prompt("m")'])]),
        ("comprehension", "for x in xs if x", ["gen()"]),
        ("if", "if words:", ["gen()"]),
        ("if", "else:", ["draw([1])"]),
        (
            "call",
            "z = part(3)",
            ["gen()", ("call", "part(n - 1)   (recursion)", [])],
        ),
    ]
    assert [p.site.variable for p in tree.statements][-4:] == ["words", "y", "y", None]
    assert tree.statements[-1].site.program == "part"
    assert all(isinstance(planned, Planned) for planned in tree.statements)
    for line in ('while gen() != "a":', "finally:", "z = part(3)", "(recursion)"):
        assert line in tree.explain()


def test_stages():
    @smc_program
    def program():
        gen(lm**2 * regex("[0-9]+") * Short("block"), Short(), stop=(LEAVE, "\n"), max_tokens=3)

    factors, stop = stages(program)
    assert factors == [
        ("lm**2", "score"),
        ('regex("[0-9]+")', "mask"),
        ('Short("block")', "block"),
        ("Short()", "end"),
    ]
    assert stop == "LEAVE (the model leaves the constraint) or '\\n'; at most 3 tokens"
    for where in ("sampling step", "batched pass", "at the end of a round", "text is complete"):
        assert where in program.plan().explain()


def test_globals_are_evaluated():
    @smc_program
    def program():
        gen(choice(*LABELS), SHARP)

    factors, _ = stages(program)
    assert factors[0] == ("choice(*LABELS)", "mask")
    assert [stage for _, stage in factors[1:]] == ["score", "mask"]


def test_the_language_model_is_always_a_factor():
    @smc_program
    def program():
        gen()

    factors, stop = stages(program)
    assert factors == [("lm", "score")]
    assert stop == "EOS (the model's end tokens); at most 512 tokens"


def test_decided_at_run_time():
    @smc_program
    def program(labels, alpha, extra, stop, n):
        gen(choice(labels), lm**alpha, extra, *extra, stop=stop, max_tokens=n)

    factors, stop = stages(program)
    assert factors == [
        ("choice(labels)", "mask"),  # whatever the labels, by what choice returns
        ("lm**alpha", "score"),
        ("extra", None),
        ("*extra", None),
    ]
    assert stop == "stop (decided at run time); at most n tokens"
    assert "decided at run time" in program.plan().explain()


def test_the_default_stop_of_unknown_potentials():
    @smc_program
    def program(extra):
        gen(extra)

    factors, stop = stages(program)
    assert factors == [("extra", None), ("lm", "score")]
    assert stop.startswith("LEAVE under a constraint, else EOS (decided at run time)")


@pytest.mark.parametrize(
    ("stop", "shown"),
    [
        ('"."', "'.' or EOS"),
        ('(".", EOS)', "'.' or EOS"),
        ("EOS", "EOS"),
        ("()", "none"),
    ],
)
def test_stops(stop, shown):
    names = cell(f"@smc_program\ndef program():\n    gen(stop={stop})\n")
    assert stages(names["program"])[1].startswith(shown)


def test_a_potential_that_cannot_be_made_shows_why():
    @smc_program
    def program():
        gen(regex("("))

    ((factor, *_),) = [planned.potentials for planned in program.plan().statements]
    assert factor.stage == "mask" and "GrammarError" in factor.note


def test_observe_is_scored():
    @smc_program
    def program():
        observe("a", lm**2)

    assert stages(program) == ([("lm**2", "score")], None)


def test_names_are_resolved_when_the_plan_is_made():
    names = cell(
        """
        @smc_program
        def program():
            later()

        @smc_program
        def later():
            gen()
        """
    )
    assert [p.site.program for p in names["program"].plan().statements] == ["later"]


class Teacher:
    @smc_program
    def ask(self):
        prompt("?")
        return gen(stop=EOS)

    @smc_program
    def lesson(self):
        twist(1.0)
        return self.ask()


def test_methods_of_self_are_inlined():
    plan = Teacher.lesson.plan()
    assert [p.site.statement for p in plan.statements] == ["twist", "prompt", "gen"]
    assert Teacher().lesson().plan().explain() == plan.explain()


def test_without_source():
    names = {"smc_program": smc_program, "gen": gen}
    exec("@smc_program\nasync def program():\n    await gen()\n", names)
    assert "source cannot be read" in names["program"].plan().explain()


def test_written_by_hand():
    @smc_program
    async def program():
        if await gen():
            await prompt("a")

    assert [p.site.statement for p in program.plan().statements] == ["gen", "prompt"]


def test_long_and_crowded_lines():
    @smc_program
    def program():
        a = gen(); b = gen()  # fmt: skip  # noqa: E702
        prompt("""several
        lines""")
        return a + b

    text = program.plan().explain()
    assert "a = gen(); b = gen()" in text and "  b = gen()\n" in text
    assert 'prompt("""several lines""")' in text
