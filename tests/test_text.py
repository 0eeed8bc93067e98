"""What a `Text` remembers; `.parsed` is the particle's own object, whatever others do to theirs."""

import copy
import dataclasses
import importlib
import json
import pickle
from typing import Annotated

import pytest
from typing_extensions import TypedDict

from smcprog import (
    EOS,
    LEAVE,
    Posterior,
    Text,
    condition,
    gen,
    json_schema,
    lm,
    prompt,
    regex,
    smc_program,
)
from smcprog.text import JsonText

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 9},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["n", "tags"],
    "additionalProperties": False,
}
# Resampled in every round, so that most particles are clones, made by replaying the program.
RESAMPLED = {"particles": 8, "block": 2, "ess_threshold": 2.0, "seed": 0}


class Movie(TypedDict):
    title: str
    year: int


@smc_program
def drawn(*potentials, stop=None, keep_stop=False):
    prompt("In JSON:")
    return gen(*potentials, stop=stop, keep_stop=keep_stop)


@smc_program
def changed(schema):
    """Each text's object is changed, and read again after another text."""
    prompt("In JSON:")
    found = []
    for i in range(3):
        text = gen(schema)
        text.parsed["tags"].append(i)
        prompt("\n")
        gen(lm**2, max_tokens=3)
        found.append((text, text.parsed["tags"]))
    return found


def test_each_particle_has_its_own_object(shipped_engine):
    posterior = shipped_engine.run(changed(json_schema(SCHEMA)), **RESAMPLED)
    assert sum(record.resampled for record in posterior.rounds) > 3
    assert posterior.unique_roots < 8
    objects = set()
    for value in posterior.values:
        for i, (text, tags) in enumerate(value):
            assert tags == [*json.loads(text)["tags"], i]
            assert text.parsed["tags"] == tags
            objects.add(id(text.parsed))
    assert len(objects) == 8 * 3


def test_a_text_given_to_another_program_is_copied_too(shipped_engine):
    text = shipped_engine.run(drawn(json_schema(SCHEMA)), **RESAMPLED).best

    @smc_program
    def reader(text):
        text.parsed["tags"].clear()
        prompt(text)
        gen(max_tokens=2)
        return text.parsed

    posterior = shipped_engine.run(reader(text), **RESAMPLED)
    assert all(value["tags"] == [] for value in posterior.values)
    assert text.parsed["tags"]


def test_without_a_schema_there_is_no_object(shipped_engine):
    text = shipped_engine.run(drawn(regex("[0-9]{2}")), particles=2, seed=0).values[0]
    assert type(text) is Text and text.parsed is None


@pytest.mark.parametrize("keep_stop", [False, True])
@pytest.mark.parametrize("stop", [None, EOS, (";", "\n"), ()])
def test_whatever_the_stop(shipped_engine, stop, keep_stop):
    program = drawn(json_schema(SCHEMA), stop=stop, keep_stop=keep_stop)
    for text in shipped_engine.run(program, particles=4, seed=1).values:
        assert text.parsed == json.loads(text)
        assert set(text.parsed) == {"n", "tags"}
        assert text.stop in {None: [LEAVE], EOS: [EOS], (): [None]}.get(stop, stop)


def test_the_first_of_several_schemas(shipped_engine):
    point = dataclasses.make_dataclass("Point", [("n", int), ("tags", list)])
    both = (regex(".{5,30}"), json_schema(SCHEMA))
    for text in shipped_engine.run(drawn(*both, json_schema(point)), particles=2, seed=0).values:
        assert text.parsed == json.loads(text)
    for text in shipped_engine.run(drawn(json_schema(point), *both), particles=2, seed=0).values:
        assert text.parsed == point(**json.loads(text))


def test_what_the_validators_of_a_class_refuse(shipped_engine):
    pydantic = importlib.import_module("pydantic")

    class Even(pydantic.BaseModel):
        n: Annotated[int, pydantic.Field(ge=0, le=9)]

        @pydantic.field_validator("n")
        @classmethod
        def _even(cls, n):
            assert n % 2 == 0
            return n

    @smc_program
    def even():
        prompt("An even number as JSON:")
        text = gen(json_schema(Even))
        try:
            found = text.parsed
        except ValueError:
            found = None
        condition(found is not None)
        return found

    posterior = shipped_engine.run(even(), particles=16, seed=0)
    some = [v for v, w in zip(posterior.values, posterior.weights, strict=True) if w]
    assert some and all(isinstance(value, Even) and value.n % 2 == 0 for value in some)


def test_copies_and_pickles_keep_it():
    for schema, parsed in (
        (json_schema(SCHEMA), {"n": 1, "tags": ["a"]}),
        (json_schema(Movie), {"title": "M", "year": 1931}),
    ):
        text = JsonText(schema.parse, json.dumps(parsed), EOS, -1.5, (3, 4))
        for other in (copy.copy(text), copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
            assert other == text and other.parsed == parsed
            assert (other.stop, other.logprob, other.tokens) == (EOS, -1.5, (3, 4))
        text.parsed["n"] = 7
        assert copy.deepcopy(text).parsed["n"] == 7
        assert copy.deepcopy(text).parsed is not text.parsed


def test_a_posterior_of_texts_is_saved(shipped_engine, tmp_path):
    posterior = shipped_engine.run(drawn(json_schema(SCHEMA)), particles=4, seed=0)
    posterior.save(tmp_path / "it.json")
    assert Posterior.load(tmp_path / "it.json").values == posterior.values
