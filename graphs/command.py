"""The commands of the zoo: `list`, `export` and `build`.

Owns: `run`: options, what is printed, exit statuses.
Must not know: how models are built and written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from graphs.build import BuildError, save
from graphs.export import ExportError, compare, describe, export
from graphs.plans import plan
from graphs.programs import compare_program, export_program
from graphs.sizes import FULL, TINY
from graphs.trained import TRAINED
from graphs.zoo import LENGTH_DEFAULT, LENGTH_MAX, ZOO


def _length(text: str) -> int | None:
    if text == "any":
        return None
    if text.isdecimal() and 2 <= int(text) <= LENGTH_MAX:
        return int(text)
    raise argparse.ArgumentTypeError(f"length {text!r}: expected 2 to {LENGTH_MAX}, or 'any'")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m graphs", description="Model zoo: seeded networks as ONNX files.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="show the models and their tensors")
    make = commands.add_parser(
        "export",
        help="build a model and write it as ONNX with a dynamic batch",
        description="Build a model with seeded weights, write it as ONNX with a dynamic batch (models with loops as a "
        "folder with a program.json), and check the files against torch on fresh inputs. Trained models with loops "
        f"({', '.join(TRAINED)}) are made from installed packages instead, and checked against these. Prints one JSON "
        "object per model. Example: python -m graphs export --model gnmt -o out/zoo",
    )
    _common(make, [*ZOO, *FULL, *TRAINED])
    make.add_argument(
        "--length",
        type=_length,
        default=LENGTH_DEFAULT,
        metavar="N",
        help=f"tokens per row of BERT or MiniLM, 2 to {LENGTH_MAX}, or 'any' of them (default {LENGTH_DEFAULT})",
    )
    make.add_argument("--tiny", action="store_true", help="models with loops: narrow and short ones, for tests")
    program = commands.add_parser(
        "build",
        help="build a model and write it as a torch program with a dynamic batch",
        description="Build a model with seeded weights and write it as an exported torch program with a dynamic batch, "
        "which `lazybatch` takes like an ONNX file. Prints one JSON object per model. "
        "Example: python -m graphs build --model all -o out/zoo",
    )
    _common(program, [*ZOO])
    program.add_argument(
        "--length",
        type=int,
        choices=range(2, LENGTH_MAX + 1),
        default=LENGTH_DEFAULT,
        metavar="N",
        help=f"tokens per row of BERT or MiniLM, 2 to {LENGTH_MAX} (default {LENGTH_DEFAULT})",
    )
    return parser


def _common(command: argparse.ArgumentParser, names: Sequence[str]) -> None:
    command.add_argument("--model", required=True, choices=[*names, "all"], help="which model; 'all' for each of them")
    command.add_argument("-o", "--output", required=True, type=Path, metavar="DIR", help="folder to write into")
    command.add_argument("--seed", type=int, default=0, help="seed of the weights (default 0)")


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 when all went well, 1 when a file differs from torch or cannot be made."""
    options = _parser().parse_args(arguments)
    if options.command == "list":
        for name, entry in ZOO.items():
            print(f"{name:12} {entry.title:12} {', '.join(entry.inputs)} -> {', '.join(entry.outputs)}")
        for name, size in FULL.items():
            made = plan(name, size)
            stages = " -> ".join(f"{part.name}{' (loop)' if part.loop else ''}" for part in made.parts)
            print(f"{name:12} {stages} -> {', '.join(made.outputs)}")
        for name, trained in TRAINED.items():
            print(f"{name:12} {trained.what}")
        return 0
    every = ZOO if options.command == "build" else [*ZOO, *FULL, *TRAINED]
    for name in every if options.model == "all" else [options.model]:
        try:
            print(json.dumps({"model": name, **_made(options, name)}), flush=True)
        except (BuildError, ExportError, OSError) as error:
            print(f"graphs: {error}", file=sys.stderr)
            return 1
    return 0


def _made(options: argparse.Namespace, name: str) -> dict[str, object]:
    """Write one model; what there is to say of it."""
    if options.command == "build":
        file = save(name, options.output, length=options.length, seed=options.seed)
        return {"file": str(file), "bytes": file.stat().st_size}
    if name in TRAINED:
        path = TRAINED[name].export(options.output)
        return {"file": str(path), **TRAINED[name].check(path)}
    if name in FULL:
        size = (TINY if options.tiny else FULL)[name]
        path = export_program(name, options.output, size=size, seed=options.seed)
        differences = compare_program(name, path, size=size, seed=options.seed)
        stages = {
            stage: {**describe(path.parent / f"{stage}.onnx"), "relative_difference_from_torch": difference}
            for stage, difference in differences.items()
        }
        return {"file": str(path), "stages": stages}
    path = export(name, options.output, length=options.length, seed=options.seed)
    difference = compare(name, path, length=options.length or LENGTH_DEFAULT, seed=options.seed)
    return {**describe(path), "relative_difference_from_torch": difference}
