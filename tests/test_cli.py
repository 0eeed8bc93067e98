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

@smc_program
def careful(text: str, least: int = 1):
    if text == "bad":
        raise KeyError(text)
    return rate(text, least)
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


def results(path):
    return {r["line"]: r for r in map(json.loads, path.read_text().splitlines())}


def test_a_file_of_inputs(file, tmp_path, capsys):
    """One line is no JSON, one has another argument, one raises, one kills all particles."""
    inputs, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"text": f"Number {i}"}) for i in range(6)]
    broken = ['{"text": ', '{"txt": "a"}', '{"text": "bad"}', '{"text": "b", "least": 9}', "[1]"]
    inputs.write_text("\n".join([*lines[:3], "", *broken, *lines[3:]]) + "\n")
    arguments = ["--inputs", str(inputs), "--particles", "3", "--seed", "4", "--arg", "least=2"]
    assert main(["run", f"{file}:careful", *arguments, "--out", str(out)]) == 1
    error = capsys.readouterr().err.replace("\n", " ")
    assert "5 of 11 lines failed, the first of them line 5: no JSON" in error
    found = results(out)
    assert list(found) == [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12]
    assert [n for n, result in found.items() if "error" in result] == [5, 6, 7, 8, 9]
    for number, word in ((6, "'text'"), (7, "KeyError"), (8, "weight zero"), (9, "JSON object")):
        assert word in found[number]["error"]
    assert all(found[n]["best"]["stars"] >= 2 for n in (1, 2, 3, 10, 11, 12))

    # What a line gives does not depend on the others.
    inputs.write_text("\n".join(["", *lines[1:2]]))
    alone = tmp_path / "alone.jsonl"
    assert main(["run", f"{file}:careful", *arguments, "--out", str(alone)]) == 0
    assert results(alone)[2]["values"] == found[2]["values"]
    assert results(alone)[2]["weights"] == pytest.approx(found[2]["weights"], abs=1e-4)

    assert main(["run", f"{file}:careful", *arguments, "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["run", f"{file}:careful", *arguments]) == 2


def test_explain(file, capsys):
    assert main(["explain", f"{file}:rate"]) == 0
    assert "mask" in capsys.readouterr().out
    assert main(["explain", f"{file}:rote"]) == 2


def test_a_thousand_inputs_with_a_broken_line(file, tmp_path, capsys):
    inputs, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"text": f"Number {i}"}) for i in range(1000)]
    lines[617] = '{"text": "Number 617"'
    inputs.write_text("\n".join(lines))
    arguments = ["--inputs", str(inputs), "--particles", "2", "--block", "0", "--seed", "0"]
    assert main(["run", f"{file}:rate", *arguments, "--out", str(out)]) == 1
    error = capsys.readouterr().err.replace("\n", " ")
    assert "1 of 1000 lines failed, the first of them line 618: no JSON" in error
    found = results(out)
    assert list(found) == list(range(1, 1001))
    assert [number for number, result in found.items() if "error" in result] == [618]
