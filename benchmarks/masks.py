"""What masks cost: their share of a run on SmolLM2, for grammars of JSON, SQL and arithmetic.

    SMCPROG_SMOLLM2=folder python benchmarks/masks.py             # 49,152 tokens, 8 particles
    python benchmarks/masks.py --models folder --particles 16 --dtype bfloat16

``folder`` has a target/ and a draft/ (tools/smollm2.py makes it). The time is that of the
processor, so that other work on the machine does not count. The masks' time is that of everything
the automata do: computing masks, taking tokens, forking for drafts and clones. Prints a table of
medians over runs; grammars are compiled before, which the table shows too.
"""

from __future__ import annotations

import argparse
import functools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from smcprog import Constraint, Engine, gen, grammar, prompt, smc_program
from smcprog.potentials.matcher import CompiledMatcher

JSON = """
?start: value
?value: object | array | ESCAPED_STRING | SIGNED_NUMBER | "true" | "false" | "null"
array: "[" [value ("," value)*] "]"
object: "{" [pair ("," pair)*] "}"
pair: ESCAPED_STRING ":" value
%import common (ESCAPED_STRING, SIGNED_NUMBER, WS)
%ignore WS
"""

SQL = """
start: "select"i columns "from"i NAME ["where"i cond] ["order"i "by"i NAME ["desc"i]] ";"?
columns: "*" | NAME ("," NAME)*
?cond: cond "and"i cond | cond "or"i cond | "not"i cond | "(" cond ")" | NAME OP value
?value: NAME | SIGNED_NUMBER | STRING
OP: "=" | "<" | ">" | "<=" | ">=" | "<>"
STRING: /'[^']*'/
NAME: /[a-zA-Z_][a-zA-Z_0-9]*/
%import common (SIGNED_NUMBER, WS)
%ignore WS
"""

ARITHMETIC = """
?start: sum
?sum: product | sum "+" product | sum "-" product
?product: atom | product "*" atom | product "/" atom
?atom: NUMBER | "-" atom | NAME | "(" sum ")"
%import common.CNAME -> NAME
%import common (NUMBER, WS_INLINE)
%ignore WS_INLINE
"""

TASKS = {
    "JSON": (
        JSON,
        'Three people in JSON:\n[{"name": "Ann", "age": 31, "children": ["Bo", "Cy"]}, '
        '{"name": "Ed", "age": 45, "children": []}, {"name": "Flo", "age": 8, "children": ["Al"]}]'
        "\n"
        "Three cities in JSON:\n",
    ),
    "SQL": (
        SQL,
        "SQL: select name, age from people where age > 30 and city = 'Rome' order by age desc;\n"
        "SQL: select title, year from books where year < 1990 or author = 'Eco' order by year;\n"
        "SQL:",
    ),
    "arithmetic": (
        ARITHMETIC,
        "Formula: (a + b) * 3 - c / (2 * x + 1)\n"
        "Formula: -y * (4 + z) / (n - 1) + 12 * m\n"
        "Formula:",
    ),
}


@smc_program
def write(text: str, constraint: Constraint, tokens: int):
    """Draw a text of a fixed length, unless nothing can follow it before."""
    prompt(text)
    return gen(constraint, stop=(), max_tokens=tokens)


class Clock:
    """Processor seconds and calls of the methods of the automata."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure `CompiledMatcher` within."""
        inner = ("_computed_mask", "advance", "fork", "accepts")
        kept = {name: getattr(CompiledMatcher, name) for name in inner}
        for name, method in kept.items():
            setattr(CompiledMatcher, name, self._timed(name, method))
        try:
            yield
        finally:
            for name, method in kept.items():
                setattr(CompiledMatcher, name, method)

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        self.seconds[name] = 0.0
        self.calls[name] = 0

        @functools.wraps(method)
        def timed(*args: Any) -> Any:
            begin = time.process_time()
            before = sum(self.seconds.values())
            try:
                return method(*args)
            finally:
                # Without what was measured inside it: to advance asks for the mask.
                inside = sum(self.seconds.values()) - before
                self.seconds[name] += time.process_time() - begin - inside
                self.calls[name] += 1

        return timed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("SMCPROG_SMOLLM2", "build/smollm2")
    parser.add_argument("--models", type=Path, default=Path(default))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--particles", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    engine = Engine(options.models / "target", options.models / "draft", dtype=options.dtype)
    vocabulary = engine.tokenization.vocabulary
    table = Table(
        "grammar", "compiled, s", "K", "rounds", "masks", "ms a mask", "ms a round", "share"
    )
    for name, (source, text) in TASKS.items():
        begin = time.process_time()
        constraint = grammar(source)
        constraint.start(vocabulary)
        compiled = time.process_time() - begin
        for block in (0, 4):
            found = []
            for seed in range(options.repeats + 1):  # the first warms up
                clock = Clock()
                begin = time.process_time()
                with clock.running():
                    posterior = engine.run(
                        write(text, constraint, options.tokens),
                        particles=options.particles,
                        block=block,
                        seed=seed,
                        on_dead="return",
                    )
                whole = time.process_time() - begin
                rounds = posterior.stats.rounds
                masks = clock.calls["_computed_mask"]
                one = clock.seconds["_computed_mask"] / masks
                spent = sum(clock.seconds.values())
                found.append((rounds, masks, 1e3 * one, 1e3 * whole / rounds, spent / whole))
            rounds, masks, one, whole, share = (
                median(column) for column in zip(*found[1:], strict=True)
            )
            shown = (f"{compiled:.2f}", block, rounds, masks, f"{one:.2f}", f"{whole:.0f}")
            table.add_row(name, *map(str, shown), f"{share:.1%}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
