"""Typed data from text: schemas of classes, grammars, and what their texts hold."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, assert_type

from pydantic import BaseModel

from smcprog import (
    EOS,
    LEAVE,
    Constraint,
    Engine,
    Potential,
    choice,
    gen,
    grammar,
    json_schema,
    prompt,
    regex,
    smc_program,
)


class Order(BaseModel):
    """What is wanted of a text."""

    item: Literal["phone", "lamp"]
    count: int


@dataclass
class Person:
    """The same, without pydantic's class."""

    name: str
    age: int


@smc_program
def order(text: str) -> Order:
    """A model's instance."""
    prompt(f"Text: {text}\nJSON: ")
    found: Order = gen(json_schema(Order)).parsed
    return found


@smc_program
def person(text: str) -> Person:
    """A dataclass."""
    prompt(f"Text: {text}\nJSON: ")
    drawn = gen(json_schema(Person, strict=True), max_tokens=60)
    assert_type(drawn.parsed, Any)
    return drawn.parsed


@smc_program
def record(schema: dict[str, Any]) -> list[int]:
    """A schema that is made at run time."""
    prompt("Numbers: ")
    return gen(json_schema(schema)).parsed


@smc_program
def total(limit: int = 99) -> int:
    """A sum, by a grammar of lark."""
    prompt("A sum: ")
    text = gen(grammar('start: NUMBER ("+" NUMBER)~1..3\nNUMBER: /[1-9][0-9]?/'), stop=LEAVE)
    return min(limit, sum(int(part) for part in text.split("+")))


@smc_program
def yes_or_no(question: str, options: list[str]) -> bool:
    """Choices may come as a list, stops as a tuple."""
    prompt(question)
    answer = gen(choice(options))
    gen(regex("[a-z ]*"), stop=(EOS, ".", "\n"), keep_stop=True, max_tokens=8, hint="In short:")
    return answer == options[0]


def constraints() -> tuple[Constraint, ...]:
    """They are potentials."""
    made = (choice("a", "b"), regex("a+"), grammar('start: "a"'), json_schema({"const": 1}))
    potentials: list[Potential] = [*made, made[0] * made[1]]
    assert len(potentials) == 5
    return made


def main(engine: Engine, folder: Path) -> None:
    """Each kind of value keeps its type."""
    constraints()
    ordered = engine.run(order("Two lamps"), particles=4, seed=0)
    assert_type(ordered.best, Order)
    assert_type(ordered.best.count, int)
    assert_type(ordered.marginal("item"), dict[Any, float])
    people = engine.run([person("Ada is 36"), person("Bob is 9")], particles=2, seed=0)
    assert_type([posterior.best.name for posterior in people], list[str])
    numbers = engine.run(record({"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}))
    assert_type(numbers.best, list[int])
    assert_type(engine.run(total(), particles=4).best, int)
    answer = engine.run(yes_or_no("Is it?", [" yes", " no"]), particles=4, on_dead="return")
    assert_type(answer.marginal(), dict[bool, float])
