"""The command line on the shipped pair, in process."""

import json

import pytest

from smcprog import Posterior
from smcprog.cli import main

PROGRAM = """
from smcprog import condition, gen, prompt, regex, smc_program

@smc_program
def rate(text: str, least: int = 1):
    prompt(f"Review: {text}\\nSentiment: positive\\nStars:")
    stars = int(gen(regex(" [1-5]")))
    condition(stars >= least)
    return {"text": text, "stars": stars}

@smc_program
def doomed():
    condition(False)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rate.py"
    path.write_text(PROGRAM)
    return path


def test_the_demo_shows_plan_table_marginals_and_speed(capsys):
    assert main(["demo", "--particles", "4"]) == 0
    shown = capsys.readouterr().out
    for word in ("gen(", "probability", "label", "stars", "log evidence", "ESS", "tokens/s"):
        assert word in shown


def test_a_program_of_the_users_own(file, tmp_path, capsys):
    out = tmp_path / "out.json"
    arguments = ["--arg", "text=1234", "--arg", "least=3", "--particles", "4", "--seed", "1"]
    assert main(["run", f"{file}:rate", *arguments, "--json", str(out)]) == 0
    posterior = Posterior.load(out)
    assert {v["text"] for v in posterior.values if v} == {"1234"}  # annotated str: not a number
    assert all(v["stars"] >= 3 for v in posterior.values if v)
    assert json.loads(out.read_text())["seed"] == 1
    assert str(out) in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "{file}"], 2, "FILE.py:PROGRAM"),
        (["run", "absent.py:rate"], 2, "no file absent.py"),
        (["run", "{file}:stars"], 2, "its programs: rate, doomed"),
        (["run", "{file}:rate"], 2, "missing a required argument: 'text'"),
        (["run", "{file}:rate", "--arg", "text"], 2, "NAME=VALUE"),
        (["run", "{file}:rate", "--arg", "txt=x"], 2, "txt"),
        (["run", "{file}:rate", "--arg", "text=x", "--json", "/no/such/x.json"], 2, "--json"),
        (["run", "{file}:rate", "--arg", "text=x", "--draft", "x"], 2, "--target"),
        (["run", "{file}:rate", "--arg", "text=x", "--target", "./absent"], 1, "absent"),
        (["run", "{file}:rate", "--arg", "text=x", "--particles", "0"], 1, "particles=0"),
        (["run", "{file}:doomed"], 1, "every particle has weight zero"),
    ],
)
def test_errors_without_tracebacks(file, capsys, arguments, code, message):
    assert main([a.format(file=file) for a in arguments]) == code
    shown = capsys.readouterr().err
    assert message in " ".join(shown.split())
    assert "Traceback" not in shown


def test_bench_prints_costs_and_speedups(file, capsys):
    arguments = ["--arg", "text=Fine", "--particles", "4"]
    assert main(["bench", f"{file}:rate", *arguments, "--block", "2"]) == 0
    shown = capsys.readouterr().out
    for word in ("rate(", "rho = ", "balance point", "predicted S", "measured S", "1.00"):
        assert word in shown
    assert main(["bench", f"{file}:rate", *arguments, "--block", "auto"]) == 0
    assert "auto" in capsys.readouterr().out
    assert main(["bench", f"{file}:doomed"]) == 2
    assert "drew no token" in capsys.readouterr().err
