"""The code of the pages in docs/ runs, and its potentials are what the pages say."""

import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest

import smcprog
from smcprog import LEAVE, lm, regex, reward
from smcprog.cli import parser
from smcprog.inference.exact import enumerate_traces
from tests.inference import tables
from tests.inference.programs import one
from tests.inference.test_enumeration import check, masses

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "potentials.md"
ERRORS = re.findall(
    r"^### (\w+): (.*?)\n.*?```python\n(.*?)```",
    (DOCS / "errors.md").read_text("utf-8"),
    re.S | re.M,
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The names that the page's code defines, run as one file."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks) == 4
    file = tmp_path_factory.mktemp("docs") / "page.py"
    file.write_text("\n".join(blocks))
    names = {"__name__": "page"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return names


def examples(page):
    return {
        "keywords": page["Keywords"](("ab", "bb"), 0.7),
        "length": page["PoissonLength"](2.0),
        "automaton": page["vowels_and_consonants"],
    }


@pytest.mark.parametrize("block", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["keywords", "length", "automaton"])
def test_every_outcome(page, name, block):
    potential = examples(page)[name]
    check(one(1.0, (potential,), None, 3), block)
    check(one(2.0, (potential, regex("[ab]*b")), LEAVE, 3), block)
    check(one(1.0, (potential, regex("a*b*"), reward(len, beta=0.3), lm), "bb", 3), block)


def test_the_truth_of_each(page):
    """gamma(text) is p(text) times the formula of the page."""
    engine = tables.engine()
    plain = masses(enumerate_traces(one(1.0, (), None, 3), engine))
    for potential in examples(page).values():
        weighted = masses(enumerate_traces(one(1.0, (potential,), None, 3), engine))
        texts = [text for text in plain if text in weighted]
        assert len(texts) > 5
        found = [weighted[text] / plain[text] for text in texts]
        expected = np.exp(potential.log_potential([text for text, _ in texts], True))
        np.testing.assert_allclose(found, expected, rtol=1e-10)


# In the named ones a weight of 0 comes out of a linear solver below 0.
@pytest.mark.parametrize("seed", [*range(20), 131, 3020, 5995])
def test_an_automaton_with_dead_states(page, seed):
    """Its value of a beginning is -inf exactly where no path goes on to an end."""
    rng = np.random.default_rng(seed)
    arcs = rng.random((2, 4, 4)) * (rng.random((2, 4, 4)) < 0.35)
    arcs *= 0.9 / arcs.sum(axis=(0, 2)).max()
    end = rng.random(4) * (rng.random(4) < 0.4)
    rows = tuple((x, tuple(map(tuple, matrix))) for x, matrix in zip("ab", arcs, strict=True))
    potential = page["Automaton"]((1.0,) * 4, rows, tuple(end))
    ends = end > 0
    for _ in range(4):
        ends = ends | ((arcs.sum(axis=0) > 0) @ ends)
    for text in ("", "a", "b", "ab", "ba", "abba", "bbbb"):
        reached = np.ones(4, dtype=bool)
        for letter in text:
            reached = reached @ (arcs["ab".index(letter)] > 0)
        (value,) = potential.log_potential([text], False)
        assert (value > -np.inf) == bool((reached & ends).any())


def test_the_page_on_speed_runs(tmp_path, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "speed.md").read_text("utf-8"), re.S)
    file = tmp_path / "speed.py"
    file.write_text("\n".join(blocks), encoding="utf-8")
    names = runpy.run_path(str(file))
    assert [len(posterior.values) for posterior in names["posteriors"]] == [8] * 7 + [32]
    shown = capsys.readouterr().out
    assert "rho = " in shown
    assert "\nreject " in shown


@pytest.mark.parametrize("page", ["index", "concepts", "coming-from"])
def test_the_code_of_a_page_runs(page, tmp_path, capsys):
    text = (DOCS / f"{page}.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    file = tmp_path / "page.py"
    file.write_text("\n".join(blocks), encoding="utf-8")
    runpy.run_path(str(file))
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    "name, message, code", ERRORS, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(ERRORS)]
)
def test_an_error_is_raised_as_its_section_says(name, message, code, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(code, encoding="utf-8")
    with pytest.raises((smcprog.SmcprogError, TypeError)) as caught:
        runpy.run_path(str(file))
    assert type(caught.value).__name__ == name
    assert message in str(caught.value)


def test_every_error_class_has_a_section():
    names = {name for name in smcprog.__all__ if name.endswith("Error")} - {"SmcprogError"}
    assert names <= {name for name, _, _ in ERRORS}


def test_the_reference_has_every_public_name():
    pages = "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    assert sorted(re.findall(r"^::: smcprog\.(\w+)$", pages, re.M)) == sorted(smcprog.__all__)


def test_the_command_lines_of_the_page_are_understood():
    page = (DOCS / "command-line.md").read_text("utf-8")
    (block,) = re.findall(r"```sh\n(.*?)```", page, re.S)
    for line in block.splitlines():
        arguments = shlex.split(line, comments=True)
        assert arguments[0] == "smcprog"
        parser().parse_args(arguments[1:])
