"""Where a program's source comes from, and what stays true of the function that is compiled."""

import importlib
import linecache
import os
import subprocess
import sys
import textwrap
import traceback

import pytest

from smcprog.dsl.program import smc_program
from smcprog.dsl.source import locate
from smcprog.errors import ProgramError
from tests.dsl.driver import LANGUAGE, cell, run

IMPORTS = (
    "from smcprog.dsl.program import smc_program\nfrom smcprog.dsl.statements import gen, prompt\n"
)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module and imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"written_{tmp_path.name.replace('-', '_')}"
    path = tmp_path / f"{name}.py"

    class Module:
        def write(self, source):
            before = path.stat().st_mtime if path.exists() else None
            path.write_text(IMPORTS + textwrap.dedent(source))
            if before is not None:
                os.utime(path, (before + 5, before + 5))

        def load(self):
            return importlib.import_module(name)

        def reload(self):
            return importlib.reload(sys.modules[name])

    module = Module()
    module.path = path
    yield module
    sys.modules.pop(name, None)


def test_a_notebook_cell():
    names = cell(
        '''
        suffix = "!"

        @smc_program
        def program(x):
            prompt(f"""
        Text at column 0: {x}
        """)
            return gen() + suffix
        '''
    )
    assert run(names["program"]("a")).value == "g0!"
    names["suffix"] = "?"  # globals are the cell's own
    assert run(names["program"]("a")).value == "g0?"


def test_a_cell_whose_statements_are_compiled_one_by_one():
    """As IPython does: the compiler then knows of no imports."""
    import ast

    source = textwrap.dedent(
        """
        import smcprog.dsl.statements as sp
        @smc_program
        def program():
            return sp.gen()
        """
    )
    file = "<one by one>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names = {"__name__": "__main__", **LANGUAGE}
    for node in ast.parse(source).body:
        exec(compile(ast.Module([node], []), file, "exec"), names)
    assert run(names["program"]()).value == "g0"


def test_a_cell_with_top_level_await():
    source = "await x\n@smc_program\ndef program():\n    return gen()\n"
    file = "<awaiting>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names = {"__name__": "__main__", **LANGUAGE}
    exec(compile(source.replace("await x", "#"), file, "exec"), names)
    assert run(names["program"]()).value == "g0"


def test_future_features_of_the_module(module):
    module.write("")
    module.path.write_text(
        "from __future__ import annotations\n"
        + IMPORTS
        + textwrap.dedent(
            """
            @smc_program
            def program(x: undefined = 1) -> undefined:
                def helper(y: undefined):
                    return y
                return helper(gen())
            """
        )
    )
    program = module.load().program
    assert program.__annotations__ == {"x": "undefined", "return": "undefined"}
    assert run(program()).value == "g0"


def test_an_edited_file_is_noticed(module):
    module.write("def program():\n    return gen()\n")
    loaded = module.load()
    module.write("def program():\n    return gen() + 'edited'\n")
    with pytest.raises(ProgramError) as caught:
        smc_program(loaded.program)
    assert "changed after it was imported" in str(caught.value)
    assert "importlib.reload" in str(caught.value)
    assert str(module.path) in str(caught.value)


@pytest.mark.parametrize(
    "edited",
    [
        "def program():\n    return gen(max_tokens=4)\n",  # a constant
        "def program():\n    return prompt(max_tokens=3)\n",  # a name
        "def program(x=1):\n    return gen(max_tokens=3)\n",  # the signature
        "\ndef program():\n    return gen(max_tokens=3)\n",  # the line
        "def program():\n\n    return gen(max_tokens=3)\n",  # a line inside
        "def program():\n    y = 1\n    return gen(max_tokens=3)\n",
        "def other():\n    return gen(max_tokens=3)\n",
        "def program(:\n",
        "",
    ],
)
def test_any_edit_is_noticed(module, edited):
    module.write("def program():\n    return gen(max_tokens=3)\n")
    loaded = module.load()
    assert locate(loaded.program) is not None
    module.write(edited)
    with pytest.raises(ProgramError, match="changed after it was imported"):
        smc_program(loaded.program)


def test_edits_elsewhere_do_not_matter(module):
    module.write("def program():\n    return gen()\nother = 1\n")
    loaded = module.load()
    module.write("def program():\n    return gen()  # a comment\nother = 2\n")
    assert run(smc_program(loaded.program)()).value == "g0"


def test_reload(module):
    module.write("@smc_program\ndef program():\n    return gen() + 'a'\n")
    before = module.load().program
    assert run(before()).value == "g0a"
    module.write("x = 1\n@smc_program\ndef program():\n    return gen() + 'bc'\n")
    after = module.reload().program
    assert run(after()).value == "g0bc"
    assert run(before()).value == "g0a"


def test_reload_of_the_same_size_and_time(module):
    module.write("@smc_program\ndef program():\n    return gen() + 'a'\n")
    module.load()
    stat = module.path.stat()
    module.path.write_text(module.path.read_text().replace("'a'", "'b'"))
    os.utime(module.path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    importlib.invalidate_caches()
    assert run(module.reload().program()).value == "g0b"


def bare(code):
    """Run code with ``python -c``, from the repository's root."""
    program = IMPORTS + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )


BY_HAND = """
    from smcprog.dsl.process import Process
    from smcprog.text import Text

    @smc_program
    async def part(x):
        await prompt(x)
        return await gen()

    @smc_program
    async def program(n):
        return [await part("a") + str(i) for i in range(n)]

    process = Process(program(2))
    process.step(); process.step()
    clone = process.fork()
    for one in (process, clone):
        one.step(Text("x")); one.step()
        print(one.step(Text("y")).value)
    clone.check()
    """


def test_without_source_an_async_def_by_hand():
    ran = bare(BY_HAND)
    assert ran.stdout.split("\n")[:2] == ["['x0', 'y1']"] * 2, ran.stderr


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python 3.13 keeps the source of -c")
def test_without_source_a_def_is_refused():
    ran = bare("@smc_program\ndef program():\n    return gen()\n")
    assert "the source of program() cannot be read" in ran.stderr
    assert "async def program" in ran.stderr and "await gen(...)" in ran.stderr


def test_code_that_is_executed_has_no_source():
    names = dict(LANGUAGE)
    with pytest.raises(ProgramError, match="async def program"):
        exec("@smc_program\ndef program():\n    return gen()\n", names)
    exec("@smc_program\nasync def program():\n    return await gen()\n", names)
    assert run(names["program"]()).value == "g0"


# --- what stays true ---


def outer():
    count = [0]

    def bump():
        count[0] += 1

    @smc_program
    def program(a, b: int = 2, *, c="c") -> str:
        """What it does."""
        bump()
        return a + str(b) + c + str(count[0])

    return program, count


def test_name_doc_signature_closure():
    program, count = outer()
    assert program.__name__ == "program" and program.name == "program"
    assert program.__doc__ == "What it does."
    assert program.__module__ == __name__
    assert program.__annotations__ == {"b": int, "return": str}
    assert str(program.signature) == "(a, b: int = 2, *, c='c') -> str"
    assert repr(program) == "<program program(a, b: int = 2, *, c='c') -> str>"
    assert run(program("a")).value == "a2c1"
    assert count == [1]  # the closure's own cell


@smc_program
def one():
    return 1


@smc_program
def fails(x):
    y = one()
    return (
        y
        + 1 / x
    )  # fmt: skip


def test_tracebacks_show_the_users_lines_alone():
    with pytest.raises(ZeroDivisionError) as caught:
        run(fails(0))
    frames = traceback.extract_tb(caught.tb)
    ours = [frame for frame in frames if frame.name == "fails"]
    assert [frame.line for frame in ours] == ["+ 1 / x"]
    assert frames[-1].name == "fails"
    assert not [frame for frame in frames if frame.filename.endswith("runtime.py")]
    (note,) = caught.value.__notes__
    line = fails.function.__code__.co_firstlineno + 5
    assert note == f"in program fails, {__file__}, line {line}"


def test_a_function_is_called_from_the_programs_own_frame():
    def caller():
        return sys._getframe(1).f_code.co_name

    @smc_program
    def program():
        return caller(), [caller() for _ in range(1)]

    name, (inner,) = run(program()).value
    assert name == "program" and inner in ("program", "<listcomp>")


def test_no_trace_in_locals_and_globals():
    @smc_program
    def program():
        x = one()
        return locals()

    before = set(globals())
    assert run(program()).value == {"x": 1}
    assert set(globals()) == before


def test_a_program_defined_twice_is_compiled_once():
    assert outer()[0].compiled is outer()[0].compiled


def test_doctests_can_define_programs():
    import doctest

    test = doctest.DocTestParser().get_doctest(
        """
        >>> @smc_program
        ... def program():
        ...     return gen()
        >>> run(program()).value
        'g0'
        """,
        {**LANGUAGE, "run": run},
        "example",
        None,
        0,
    )
    assert doctest.DocTestRunner().run(test) == doctest.TestResults(failed=0, attempted=2)
