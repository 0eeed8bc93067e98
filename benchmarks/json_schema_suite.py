"""json_schema against the JSON-Schema-Test-Suite, with the `jsonschema` library as the judge.

    python benchmarks/json_schema_suite.py                # the first 300 schemas of draft2020-12
    python benchmarks/json_schema_suite.py --schemas 9999 --optional

Each schema is either refused by name, or every text that its masks allow is an instance. Texts are
drawn in two ways: by a run of the shipped pair, where particles die whose texts are not complete
at --max-tokens; and by random walks over the masks, uniform or towards the characters of the schema
and of JSON's escapes. The suite's own instances are tried too, in compact form: no invalid one may
pass, and the share of the valid ones that pass is shown. Prints a table; exits with 1 on a wrong
acceptance.

The suite comes with the source distribution of `jsonschema`, fetched once into --cache.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from jsonschema.validators import Draft202012Validator
from rich.console import Console
from rich.table import Table

from smcprog import Engine, Posterior, gen, prompt, smc_program
from smcprog.errors import GrammarError
from smcprog.potentials.base import Matcher
from smcprog.potentials.json_schema import JsonSchema, json_schema
from smcprog.vocabulary import BYTES, Vocabulary, unpack

PIECES = ['{"', '":', '": ', ", ", '"]', '"}', "}}", "]}", "[]", "{}", "null", "true", "false"]
PIECES += ["\\u00", "\\n", "12", "0.", "é", "\\ud8", '"a"', '"foo', "bar", ',"', "[1", "-1", "😀"]
TOKENS = Vocabulary(
    [*(bytes([i]) for i in range(256)), *(piece.encode() for piece in PIECES), b"\xc3", b'\xa9"']
)


@smc_program
def instance(schema: JsonSchema, max_tokens: int):
    """An instance, as the models write it."""
    prompt("A value in JSON:\n")
    return gen(schema, max_tokens=max_tokens)


def suite(cache: Path) -> Path:
    """The folder of draft2020-12, downloaded where it is missing."""
    archives = list(cache.glob("jsonschema-*.tar.gz"))
    if not archives:
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--no-binary", ":all:", "jsonschema", "-d", cache], check=True)
        archives = list(cache.glob("jsonschema-*.tar.gz"))
    folder = cache / archives[0].name.removesuffix(".tar.gz")
    if not folder.exists():
        with tarfile.open(archives[0]) as archive:
            archive.extractall(cache, filter="data")
    return folder / "json" / "tests" / "draft2020-12"


def groups(folder: Path, optional: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The groups of the suite: a schema each, with instances."""
    files = sorted(folder.glob("*.json"))
    if optional:
        files += sorted((folder / "optional").rglob("*.json"))
    for path in files:
        for group in json.loads(path.read_text()):
            yield path.stem, group


def walk(matcher: Matcher, vocabulary: Vocabulary, rng: random.Random, liked: set[int]) -> bytes:
    """A text that the masks lead to, or b"" where it did not end within 400 steps.

    After 60 steps it makes for the end.
    """
    text = b""
    closing = [vocabulary.tokens.index(char) for char in (b'"', b"}", b"]")]
    eager = rng.random()
    for step in range(400):
        ending = step > 60
        if matcher.accepts() and (ending or rng.random() < 0.3):
            return text
        allowed = np.flatnonzero(unpack(matcher.mask(), vocabulary.size)).tolist()
        if not allowed:
            assert matcher.accepts(), f"a dead end after {text!r}"
            return text
        preferred = [t for t in allowed if t in liked] if rng.random() < eager else []
        if ending:
            preferred = [t for t in closing if t in allowed]
        token = rng.choice(preferred or allowed)
        assert matcher.advance(token)
        text += vocabulary.tokens[token]
    return b""


def accepted(constraint: JsonSchema, text: str) -> bool:
    """Whether the constraint accepts the whole text."""
    matcher = constraint.start(BYTES)
    return all(map(matcher.advance, text.encode())) and matcher.accepts()


def in_order(value: Any, schema: Any) -> Any:
    """The value with the keys of its objects in the order of the schema, as far as is plain."""
    if isinstance(value, dict):
        properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
        keys = [*(k for k in properties if k in value), *(k for k in value if k not in properties)]
        return {key: in_order(value[key], properties.get(key)) for key in keys}
    return value


def texts_of(value: Any, schema: Any) -> set[str]:
    """The compact texts of an instance: in its own order and in the schema's."""
    return {
        json.dumps(v, separators=(",", ":"), ensure_ascii=False)
        for v in (value, in_order(value, schema))
    }


def reason(source: str) -> str:
    """Why a particle died, without the schema and the place."""
    found = re.search(r"\(([^()]*)\)$", source)
    return found[1] if found else source


def run_models(
    engine: Engine, constraint: JsonSchema, options: argparse.Namespace, count: Counter[str]
) -> Posterior:
    """Run one schema through the models, and count what became of its particles."""
    posterior = engine.run(
        instance(constraint, options.max_tokens),
        particles=options.particles,
        seed=options.seed,
        on_dead="return",
    )
    count["populations"] += 1
    count["particles"] += options.particles
    for death in posterior.deaths:
        count[f"died: {reason(death.source)}"] += death.number
    if not posterior.values:
        why = " and ".join(sorted({reason(death.source) for death in posterior.deaths}))
        count[f"all died: {why}"] += 1
    return posterior


def main() -> None:
    """Run the suite and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemas", type=int, default=300)
    parser.add_argument("--particles", type=int, default=4, help="of each run; 0 for no runs")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--walks", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--optional", action="store_true", help="its optional folder, formats too")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "smcprog-suite")
    options = parser.parse_args()

    engine = Engine()
    rng = random.Random(options.seed)
    count: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    wrong: list[str] = []
    begin = time.perf_counter()
    for name, group in groups(suite(options.cache), options.optional):
        if count["schemas"] == options.schemas:
            break
        count["schemas"] += 1
        schema = group["schema"]
        where = f"{name}: {group['description']}"
        try:
            constraint = json_schema(schema)
            constraint.start(BYTES)
        except GrammarError as error:
            empty = "no instance" in str(error)
            count["no instance"] += empty
            refusals["no instance" if empty else refused_for(str(error))] += 1
            count["refused"] += not empty
            if empty and any(test["valid"] for test in group["tests"]):
                wrong.append(f"{where}: {error}, but the suite has one")
            continue
        judge = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
        if options.particles:
            posterior = run_models(engine, constraint, options, count)
            for value in posterior.values:
                if value is not None:
                    count["instances"] += 1
                    if not judge.is_valid(value.parsed) or value.parsed != json.loads(value):
                        wrong.append(f"{where}: {value}")
        characters = {*json.dumps(schema, ensure_ascii=False).encode(), *b'{}[]:,"\\u0061'}
        for i in range(options.walks):
            vocabulary = TOKENS if i % 2 else BYTES
            liked = {t for t, b in enumerate(vocabulary.tokens) if b and characters.issuperset(b)}
            text = walk(constraint.start(vocabulary), vocabulary, rng, liked)
            count["walks" if text else "unfinished walks"] += 1
            if text and not valid(judge, text):
                wrong.append(f"{where}: {text.decode(errors='replace')}")
        for test in group["tests"]:
            passes = any(accepted(constraint, text) for text in texts_of(test["data"], schema))
            kind = "valid" if test["valid"] else "invalid"
            count[kind] += 1
            count[f"{kind} accepted"] += passes
            if passes and not test["valid"]:
                wrong.append(f"{where}: {test['data']!r} ({test['description']})")
            if test["valid"] and not passes:
                refusals_of_valid.append(f"{where}: {test['data']!r}")
    report(count, refusals, wrong, time.perf_counter() - begin)
    sys.exit(bool(wrong))


refusals_of_valid: list[str] = []


def refused_for(message: str) -> str:
    """What a schema was refused for, without the places."""
    keyword = re.search(r'the keyword "([^"]+)"(?: \'[^\']*\')? ([^;]*)', message)
    if keyword:
        return f"{keyword[1]}: {re.sub('#[^ ]*/', '', keyword[2])}"
    if "not in this schema" in message:
        return "a reference to another document"
    return "a $dynamicRef with several targets" if "several targets" in message else message[:70]


def valid(judge: Draft202012Validator, text: bytes) -> bool:
    """What the judge says of a text."""
    try:
        judge.validate(json.loads(text.decode()))
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


def report(count: Counter[str], refusals: Counter[str], wrong: list[str], seconds: float) -> None:
    """Print the table, and what is not perfect line by line."""
    console = Console()
    table = Table(title=f"JSON-Schema-Test-Suite, draft2020-12 ({seconds:.0f} s)")
    table.add_column("what")
    table.add_column("number", justify="right")
    share = count["refused"] / max(count["schemas"], 1)
    table.add_row("schemas", str(count["schemas"]))
    table.add_row("refused by name", f"{count['refused']} ({share:.0%})")
    table.add_row("refused, since they have no instance", str(count["no instance"]))
    table.add_row("runs of the models", str(count["populations"]))
    table.add_row("their particles", str(count["particles"]))
    table.add_row("texts of the last population, judged", str(count["instances"]))
    for what, times in count.items():
        if "died: " in what:
            table.add_row(what, str(times))
    table.add_row("random texts judged", str(count["walks"]))
    table.add_row("random walks without an end", str(count["unfinished walks"]))
    table.add_row("valid instances accepted", f"{count['valid accepted']} of {count['valid']}")
    table.add_row(
        "invalid instances accepted", f"{count['invalid accepted']} of {count['invalid']}"
    )
    table.add_row("wrong acceptances", str(len(wrong)))
    console.print(table)
    for reason, times in refusals.most_common():
        console.print(f"{times:4} refused: {reason}", markup=False)
    for line in refusals_of_valid:
        console.print(f"valid, but not accepted: {line}", markup=False)
    for line in wrong:
        console.print(f"WRONG {line}", markup=False)


if __name__ == "__main__":
    main()
