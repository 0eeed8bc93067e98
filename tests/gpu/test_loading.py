"""What can be loaded, and what the errors of the rest say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import GenerationConfig

from smcprog.errors import ModelError, VocabularyError
from smcprog.gpu import loading
from smcprog.gpu.loading import Loaded, check_ids, check_vocabularies, end_ids, load
from tests.gpu.tiny import causal_lm, tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    causal_lm().to(torch.bfloat16).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def copied(folder: Path, to: Path, without: str) -> Path:
    for file in folder.iterdir():
        if file.name != without:
            (to / file.name).write_bytes(file.read_bytes())
    return to


def test_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(str(folder), "cpu", "auto")
    assert loaded.model.dtype == torch.float32
    assert loaded.tokenizer.get_vocab() == tokenizer().get_vocab()
    assert load(folder, "cpu", "bfloat16").model.dtype == torch.bfloat16
    monkeypatch.chdir(folder.parent)
    load(folder.name, "cpu", torch.float64)


def test_a_pair_keeps_its_dtype() -> None:
    model = causal_lm().double()
    assert load((model, tokenizer()), "auto", "auto").model is model
    assert model.dtype == torch.float64
    assert load((model, tokenizer()), "auto", "float32").model.dtype == torch.float32


def test_an_unknown_dtype() -> None:
    with pytest.raises(ValueError, match="no floating-point type"):
        load((causal_lm(), tokenizer()), "cpu", "int8")


@pytest.mark.parametrize("where", ["./nowhere", "~/nowhere", "/nowhere/at/all", "a/b/c"])
def test_a_missing_path_never_asks_the_hub(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_from_pretrained", None)
    with pytest.raises(ModelError, match="there is no model folder"):
        load(where, "cpu", "auto")


def test_a_path_that_exists_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match="there is no model folder 'models/missing'"):
        load("models/missing", "cpu", "auto")


def test_a_hub_failure_keeps_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", unreachable)
    with pytest.raises(ModelError, match="no network") as raised:
        load("someone/some-model", "cpu", "auto")
    assert isinstance(raised.value.__cause__, OSError)


def test_pickled_weights_are_not_opened(folder: Path, tmp_path: Path) -> None:
    copied(folder, tmp_path, without="model.safetensors")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(ModelError, match="pickled weights only.*save_pretrained"):
        load(tmp_path, "cpu", "auto")


def test_a_checkpoint_that_brings_its_own_code(folder: Path, tmp_path: Path) -> None:
    copied(folder, tmp_path, without="config.json")
    config = {
        "model_type": "their_own",
        "auto_map": {
            "AutoConfig": "code.TheirConfig",
            "AutoModelForCausalLM": "code.TheirModel",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text("raise SystemExit('code from the checkpoint was run')")
    with pytest.raises(ModelError, match="configuration"):
        load(tmp_path, "cpu", "auto")


def test_no_tokenizer(folder: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    with pytest.raises(ModelError, match="the tokenizer of .* cannot be loaded"):
        load(tmp_path, "cpu", "auto")


def test_missing_weights(folder: Path, tmp_path: Path) -> None:
    copied(folder, tmp_path, without="config.json")
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 3
    config["layer_types"] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"lacks 9 weights .*layers\.2"):
        load(tmp_path, "cpu", "auto")


def test_end_ids_come_from_the_first_that_names_them() -> None:
    loaded = Loaded(causal_lm(), tokenizer())
    loaded.model.generation_config = GenerationConfig(eos_token_id=[0, 1])
    assert end_ids(loaded) == (0, 1)
    loaded.model.generation_config = None
    assert end_ids(loaded) == (0,)
    loaded.model.config.eos_token_id = None
    assert end_ids(loaded) == (tokenizer().eos_token_id,)


def test_vocabularies_that_differ() -> None:
    check_vocabularies(tokenizer(290), tokenizer(290))
    with pytest.raises(VocabularyError, match="280 and 290 tokens, 10 of which differ, .*missing"):
        check_vocabularies(tokenizer(290), tokenizer(280))


def test_a_tokenizer_that_outgrows_its_model() -> None:
    check_ids("target", tokenizer(290), 290)
    with pytest.raises(VocabularyError, match="up to id 289, but its model has only 289"):
        check_ids("target", tokenizer(290), 289)
