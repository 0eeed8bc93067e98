"""The command line: `smcprog demo`, `run`, `explain`, `bench` and `distill`."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import json
import secrets
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smcprog.distillation import DistillReport
from smcprog.dsl.program import BoundProgram, Program
from smcprog.errors import SmcprogError
from smcprog.gpu.engine import Engine
from smcprog.inference.posterior import Posterior

EXAMPLES = """examples:
  smcprog demo
  smcprog run review.py:review --arg text="Great phone, bad battery" --particles 16 --seed 0
  smcprog run review.py:review --arg text="Fine" --target ./target --draft ./draft --json out.json
  smcprog run review.py:review --inputs reviews.jsonl --out results.jsonl
  smcprog explain review.py:review
  smcprog bench review.py:review --arg text="Fine" --target ./target --draft ./draft
  smcprog distill --target ./target --layers 0,1,2,29 --out ./draft --minutes 60
"""


class UsageError(Exception):
    """A command that cannot be understood; exit code 2."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 done, 1 failed, 2 misused."""
    options = parser().parse_args(argv)
    console = Console()
    try:
        COMMANDS[options.command](console, options)
    except UsageError as error:
        return complain(error, 2)
    except KeyboardInterrupt:
        return complain("interrupted", 130)
    except Exception as error:
        if options.debug:
            raise
        if isinstance(error, SmcprogError | ValueError | OSError):
            return complain(error, 1)
        if options.command == "distill":
            raise
        return complain(own_frames(error, Path(options.program.rpartition(":")[0])), 1)
    return 0


def own_frames(error: Exception, file: Path) -> str:
    """An error of the user's code, with the frames that lie in the user's file."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == file.resolve()
    ]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return f"an error in {file}\n{''.join(lines)}(--debug shows the whole traceback)"


def complain(error: object, code: int) -> int:
    """Print an error without its traceback."""
    message = f"[bold red]smcprog:[/] {escape(str(error))}"
    Console(stderr=True).print(message, highlight=False, soft_wrap=True)
    return code


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    root = argparse.ArgumentParser(
        prog="smcprog",
        description="Run generation programs by sequential Monte Carlo speculative decoding.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = root.add_subparsers(dest="command", required=True, metavar=" | ".join(COMMANDS))
    for name, about in (
        ("demo", "run the review program on the models that ship with the package"),
        ("run", "run a program of your own"),
        ("explain", "print the plan of a program: its statements, and where each is evaluated"),
        ("bench", "measure what its rounds cost, and the speed-up over autoregressive decoding"),
    ):
        command = commands.add_parser(
            name, help=about, description=about[0].upper() + about[1:] + "."
        )
        command.add_argument("--debug", action="store_true", help="show tracebacks")
        if name != "demo":
            command.add_argument("program", metavar="FILE.py:PROGRAM")
        if name == "explain":
            continue
        if name != "demo":
            add_program(command)
        if name == "run":
            command.add_argument("--json", type=Path, metavar="PATH", help="save the posterior")
            command.add_argument(
                "--inputs",
                type=Path,
                metavar="FILE.jsonl",
                help="run the program on each line, a JSON object of its arguments",
            )
            command.add_argument(
                "--out", type=Path, metavar="FILE.jsonl", help="where the results of --inputs go"
            )
        particles = {"demo": 128, "run": 16, "bench": 8}[name]
        command.add_argument(
            "--particles", type=int, default=particles, metavar="N", help=f"default {particles}"
        )
        default = "default 2, 4 and 8 in turn" if name == "bench" else "default 4 with a draft"
        command.add_argument(
            "--block", type=block_size, metavar="K", help=f"tokens drafted a round ({default})"
        )
        command.add_argument(
            "--seed", type=int, default=None if name == "run" else 0, help="of all random numbers"
        )
        if name == "demo":
            command.set_defaults(program="smcprog.demo:review")
    add_distill(commands)
    return root


def add_program(command: argparse.ArgumentParser) -> None:
    """The options that say with which arguments to run, and on which models."""
    command.add_argument(
        "--arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an argument of the program: text for a parameter annotated str, else JSON where it "
        "reads as JSON",
    )
    command.add_argument("--target", help="path or hub name (default: the shipped pair)")
    command.add_argument("--draft", help="path or hub name of the draft model")
    command.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    command.add_argument("--dtype", default="auto", help="auto, float32, bfloat16")


def block_size(text: str) -> int | Literal["auto"]:
    """A number of tokens, or "auto"."""
    return "auto" if text == "auto" else int(text)


def add_distill(commands: Any) -> None:
    """The options of `smcprog distill`."""
    about = "make a draft for a target: fewer layers, or narrower ones, trained on its own text"
    command = commands.add_parser(
        "distill",
        help=about,
        description=f"{about[0].upper()}{about[1:]}. The same command again goes on where it was "
        "interrupted.",
    )
    option = command.add_argument
    option("--target", required=True, help="path or hub name")
    option("--out", type=Path, required=True, metavar="DIR", help="the draft's folder")
    option(
        "--layers",
        type=numbers,
        metavar="0,1,2,29",
        help="layers of the target that the draft keeps",
    )
    option("--width", type=int, help="or: hidden size of a narrow draft")
    option("--depth", type=int, help="its layers")
    option("--heads", type=int, help="its attention heads (default: of the target's size)")
    option("--minutes", type=float, help="the time it may take (default 60)")
    option("--steps", type=int, help="optimiser steps, instead of a time")
    option("--divergence", choices=("kl", "chi2"), default="kl", help="the loss (default kl)")
    option("--prompts", type=Path, metavar="FILE", help="one prompt a line (default: BOS)")
    option("--batch", type=int, default=4, help="texts in a step (default 4)")
    option("--length", type=int, default=128, help="tokens of a text (default 128)")
    option("--learning-rate", type=float, default=1e-3, metavar="RATE", help="default 0.001")
    option(
        "--train-embedding",
        action=argparse.BooleanOptionalAction,
        help="let embedding and LM head learn, too (default: in a narrow draft only)",
    )
    option("--seed", type=int, default=0, help="default 0")
    option("--device", default="auto", help="auto, cpu, cuda, cuda:1 ...")
    option("--dtype", default="auto", help="auto, float32, bfloat16: the target's")
    option("--debug", action="store_true", help="show tracebacks")


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers between commas."""
    return tuple(int(part) for part in text.split(","))


def demo(console: Console, options: argparse.Namespace) -> None:
    """The review program on the shipped pair."""
    from smcprog.demo import TEXT, review

    console.print(escape(str(review.plan())), highlight=False, soft_wrap=True)
    posterior = execute(Engine(), review(TEXT), options, progress=True)
    show(console, posterior)
    for key in ("label", "stars"):
        marginal = ", ".join(f"{k}: {v:.2f}" for k, v in posterior.marginal(key).items())
        console.print(f"[bold]{key}[/]  {escape(marginal)}", highlight=False)


def run(console: Console, options: argparse.Namespace) -> None:
    """A program from a file of the user's."""
    program = load_program(options.program)
    if options.inputs is not None or options.out is not None:
        run_file(console, program, options)
        return
    call = bind(program, options.arg)
    if options.json is not None and not options.json.parent.is_dir():
        raise UsageError(f"--json: the folder {options.json.parent} does not exist")
    engine = engine_of(options)
    posterior = execute(engine, call, options, progress=sys.stderr.isatty())
    if options.json is not None:
        try:
            posterior.save(options.json)
        except TypeError as error:
            raise UsageError(f"--json: {error}") from error
    show(console, posterior)
    if options.json is not None:
        console.print(f"saved to {escape(str(options.json))}", highlight=False, soft_wrap=True)


def run_file(console: Console, program: Program[Any], options: argparse.Namespace) -> None:
    """A program over a file of inputs."""
    from smcprog.inference.batch import run_inputs
    from smcprog.inference.settings import check_seed, check_settings

    if options.inputs is None or options.out is None:
        raise UsageError("--inputs and --out go together: a file of inputs, and one for results")
    if options.json is not None:
        raise UsageError("--json is for one run; with --inputs the results go to --out")
    if not options.inputs.is_file():
        raise UsageError(f"--inputs: there is no file {options.inputs}")
    if options.out.exists() or not options.out.parent.is_dir():
        raise UsageError(f"--out: {options.out} exists, or its folder does not; name a new file")
    common = arguments_of(program, options.arg)
    engine = engine_of(options)
    costs = engine.roofline() if options.block == "auto" and engine.has_draft else None
    settings = check_settings(options.particles, options.block, engine.has_draft, costs=costs)
    seed = secrets.randbits(63) if options.seed is None else check_seed(options.seed)
    counts = run_inputs(
        engine, program, options.inputs, options.out, settings, seed, common, sys.stderr.isatty()
    )
    console.print(
        f"{counts.done} results are in {escape(str(options.out))}", highlight=False, soft_wrap=True
    )
    if counts.failed:
        raise SmcprogError(
            f"{counts.failed} of {counts.done + counts.failed} lines failed, the first of them "
            f"{counts.first_error}"
        )


def explain(console: Console, options: argparse.Namespace) -> None:
    """The plan of a program."""
    plan = load_program(options.program).plan()
    console.print(escape(plan.explain()), highlight=False, soft_wrap=True)


def engine_of(options: argparse.Namespace) -> Engine:
    """The engine that the options name. Raises UsageError."""
    if options.draft and not options.target:
        raise UsageError("--draft needs --target: a draft proposes for one target")
    return Engine(options.target, options.draft, device=options.device, dtype=options.dtype)


def bench(console: Console, options: argparse.Namespace) -> None:
    """What a program's rounds cost, and the speed-up that was predicted and measured."""
    program = load_program(options.program)
    call = bind(program, options.arg)
    engine = engine_of(options)

    def token_seconds(particles: int, block: Any) -> tuple[float, int]:
        """Seconds for one token of one sequence, while N are drawn, and the longest context."""
        settings = {"particles": particles, "block": block, "seed": options.seed}
        engine.run(call, on_dead="return", **settings)  # warms up
        posterior = engine.run(call, on_dead="return", **settings)
        drawn = sum(len(tokens) for record in posterior.rounds for tokens in record.tokens)
        if not drawn:
            raise UsageError(f"{program.name} drew no token: there is nothing to measure")
        stats = posterior.stats
        return stats.seconds * particles / drawn, stats.unshared_kv_tokens // particles

    alone, context = token_seconds(1, 0)
    limit = engine.context_limit
    costs = engine.roofline(context if limit is None else min(context, limit - 1))
    console.print(escape(program.plan().explain(costs)), highlight=False, soft_wrap=True)
    table = Table("N", "K", "ms a token", "predicted S", "measured S")
    table.add_row("1", "0", f"{1000 * alone:.1f}", "1.00", "1.00")
    blocks = [options.block] if options.block is not None else [2, 4, 8]
    for block in blocks if engine.has_draft else [0]:
        seconds, _ = token_seconds(options.particles, block)
        predicted = "-" if block == "auto" else f"{costs.speedup(options.particles, block):.2f}"
        table.add_row(
            str(options.particles),
            str(block),
            f"{1000 * seconds:.1f}",
            predicted,
            f"{alone / seconds:.2f}",
        )
    console.print(table)
    console.print("S: tokens of one sequence a second, over those of N = 1, K = 0")


def distill(console: Console, options: argparse.Namespace) -> None:
    """A draft for a target."""
    from smcprog import distillation

    names = inspect.signature(distillation.distill).parameters.keys() & vars(options).keys()
    report = distillation.distill(**{name: getattr(options, name) for name in names})
    console.print(fit_table(report))
    console.print(
        f"[bold]parameters[/] {report.draft_parameters:,} of {report.target_parameters:,}   "
        f"[bold]step time[/] {report.step_ratio:.2f} of the target's\n"
        f"[bold]tokens[/] {report.sampled_tokens:,} drawn, {report.trained_tokens:,} trained on in "
        f"{report.steps} steps   [bold]time[/] {report.seconds:.0f} s\n"
        f"the draft is in {escape(str(options.out))}",
        highlight=False,
        soft_wrap=True,
    )


def fit_table(report: DistillReport) -> Table:
    """How well a draft fits, before and after its training."""
    table = Table("on held-out text of the target's", "before", "after")
    for name, key in (
        ("1 - TV: accepted by rejection", "overlap"),
        ("KL(p || q), nats", "kl"),
        ("ESS after a token, share", "ess_token"),
        ("ESS after a block of 4, share of 16", "ess_block"),
    ):
        table.add_row(name, *(f"{getattr(fit, key):.3f}" for fit in (report.before, report.after)))
    return table


def execute(
    engine: Engine, call: BoundProgram, options: argparse.Namespace, progress: bool
) -> Posterior:
    """Run with the options of the command."""
    return engine.run(
        call,
        particles=options.particles,
        block=options.block,
        seed=options.seed,
        progress=progress,
    )


def load_program(spec: str) -> Program[Any]:
    """The program that FILE.py:PROGRAM names; the file is executed.

    Raises:
        UsageError
    """
    path, colon, name = spec.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(f"{spec!r}: name a program as FILE.py:PROGRAM")
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"there is no file {path}")
    module_spec = importlib.util.spec_from_file_location(file.stem, file)
    if module_spec is None or module_spec.loader is None:
        raise UsageError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.parent.resolve()))
    module_spec.loader.exec_module(module)
    programs = {n: p for n, p in vars(module).items() if isinstance(p, Program)}
    if name not in programs:
        found = ", ".join(programs) or "none: decorate a function with @smc_program"
        raise UsageError(f"{path} has no program {name!r}; its programs: {found}")
    return programs[name]


def bind(program: Program[Any], arguments: Sequence[str]) -> BoundProgram:
    """A call of the program with the arguments of ``--arg``.

    Raises:
        UsageError
    """
    try:
        return program(**arguments_of(program, arguments))
    except TypeError as error:
        raise UsageError(f"{error}; give its arguments as --arg NAME=VALUE") from error


def arguments_of(program: Program[Any], arguments: Sequence[str]) -> dict[str, Any]:
    """The arguments of ``--arg``, by name.

    Raises:
        UsageError
    """
    parameters = inspect.signature(program).parameters
    values: dict[str, Any] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        if not equals:
            raise UsageError(f"--arg {argument!r}: say NAME=VALUE")
        if name not in parameters:
            raise UsageError(
                f"--arg {name}: {program.name} has no such parameter; it takes "
                f"{', '.join(parameters)}"
            )
        annotation = parameters[name].annotation
        values[name] = text if annotation in (str, "str") else read_value(text)
    return values


def read_value(text: str) -> Any:
    """JSON where the text reads as JSON, else the text itself."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def show(console: Console, posterior: Posterior) -> None:
    """Print the weighted values, equal ones pooled, and how the run went."""
    console.print(value_table(posterior))
    stats = posterior.stats
    drawn = sum(len(tokens) for record in posterior.rounds for tokens in record.tokens)
    console.print(
        f"[bold]log evidence[/] {posterior.log_evidence:.3f}   "
        f"[bold]ESS[/] {posterior.ess:.1f} of {len(posterior)}   "
        f"[bold]unique roots[/] {posterior.unique_roots}   "
        f"[bold]rounds[/] {stats.rounds}, {stats.resamplings} resampled\n"
        f"[bold]speed[/] {drawn} tokens in {stats.seconds:.2f} s "
        f"({drawn / stats.seconds:.0f} tokens/s), {stats.target_passes} target passes   "
        f"[bold]KV[/] {stats.peak_kv_tokens} tokens at the peak, unshared "
        f"{stats.unshared_kv_tokens}   [bold]seed[/] {posterior.seed}",
        highlight=False,
        soft_wrap=True,
    )
    notes = [f"round {d.round}: {d.number} died of {d.source}" for d in posterior.deaths]
    if 4 * posterior.unique_roots < len(posterior):
        notes.append(
            f"the population descends from {posterior.unique_roots} of its first {len(posterior)} "
            "particles, so these probabilities are rough: take more particles, or a smaller block"
        )
    if any(posterior.truncated):
        notes.append(f"{sum(posterior.truncated)} of {len(posterior)} were cut at max_tokens")
    for note in notes:
        console.print(escape(note), highlight=False, soft_wrap=True)


def value_table(posterior: Posterior) -> Table:
    """Values and probabilities, largest first; dicts have a column for each key."""
    rows = posterior.pooled()
    if not all(isinstance(value, dict) for value, _ in rows):
        table = Table("probability", "value")
        for value, mass in rows:
            table.add_row(f"{mass:.3f}", escape(str(value)))
        return table
    keys = list(dict.fromkeys(key for value, _ in rows for key in value))
    table = Table("probability", *map(str, keys))
    for value, mass in rows:
        table.add_row(f"{mass:.3f}", *(escape(str(value.get(key, ""))) for key in keys))
    return table


COMMANDS = {"demo": demo, "run": run, "explain": explain, "bench": bench, "distill": distill}
