"""From a torch module to a partition: the order of the steps, and nothing else.

Owns: `partition_torch`, `load_program`, and the files of a partition's directory.
Must not know: how each step works.

A directory holds the manifest, the graph as text, and (where asked for) the exported program with its weights; a
partition without a program belongs to a module that somebody still holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.partition.costs import Costs
from lazybatch.partition.cuts import choose
from lazybatch.partition.manifest import MANIFEST_FILE, save_manifest
from lazybatch.partition.notes import check_options, provenance
from lazybatch.partition.pieces import Partition
from lazybatch.partition.plan import Plan
from lazybatch.partition.proof.rows import Array, Feeds
from lazybatch.partition.tensors import to_array
from lazybatch.partition.torch.cost import measure
from lazybatch.partition.torch.export import export, quiet
from lazybatch.partition.torch.extract import extract, modules
from lazybatch.partition.torch.flat import Flat, flat_of
from lazybatch.partition.torch.join import alone, judge_torch
from lazybatch.partition.torch.source import Source, open_program

GRAPH_FILE = "graph.txt"
PROGRAM_FILE = "whole.pt2"


def partition_torch(
    source: Source,
    directory: Path | str,
    *,
    preempt_within_s: float | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
    tolerance: float | None = None,
    require_joinable: bool = False,
    save_program: bool = False,
) -> Partition:
    """Cut a module and save the manifest in the directory (made if missing); see `load_program` for what serves it.

    The options are those of `partition_onnx`. save_program: write the program beside the manifest, so that the
    directory can be loaded without the module.
    Raises `InvalidInput` where files that are no partition's would be lost, `ModelError` naming the culprit; with
    require_joinable also where rows cannot share a batch.
    """
    check_options(preempt_within_s, tolerance)
    directory = Path(directory)
    _claim(directory)
    flat, verdict = judge_torch(source, batch_axes, tolerance)
    plan = Plan(flat, verdict, tolerance)
    if plan.reason is not None and verdict.reason is None:
        flat, verdict = alone(source, replace(verdict, reason=plan.reason, evidence=plan.evidence))
        plan = Plan(flat, verdict, tolerance)
    if plan.reason is not None and require_joinable:
        raise ModelError(f"module {source.name!r}: rows cannot share a batch: {plan.reason}")
    costs = _costs(plan, flat)
    positions = [] if costs is None else _positions(plan, costs, preempt_within_s)
    difference = _chain_differs(plan, flat, positions)
    if difference is not None:
        positions = []
    pieces = extract(flat, positions, costs.per_node if costs else (), directory / GRAPH_FILE)
    (directory / GRAPH_FILE).write_text("\n".join(flat.text()) + "\n", encoding="utf-8")
    digest = flat.digest
    if save_program:
        _save_program(source, plan.verdict.candidate, directory / PROGRAM_FILE, joinable=plan.reason is None)
    files = [directory / GRAPH_FILE, *([directory / PROGRAM_FILE] if save_program else [])]
    partition = Partition(
        model=source.name,
        fingerprint=_fingerprint(digest, source.device, positions),
        directory=directory,
        pieces=tuple(pieces),
        boundaries=plan.boundaries(pieces),
        inputs=tuple(port.name for port in flat.inputs),
        outputs=tuple(port.name for port in flat.outputs),
        joinable=plan.reason is None,
        reason=plan.reason,
        max_abs_diff=plan.evidence.max_abs_diff if plan.evidence else None,
        provenance={
            "framework": "torch",
            "model_sha256": digest,
            "runtime": f"torch {torch.__version__}",
            "cuts": positions,
            "whole": PROGRAM_FILE if save_program else None,
            "files": {file.name: file.stat().st_size for file in files},
            **provenance(verdict, costs, pieces, preempt_within_s, tolerance, (difference,)),
        },
    )
    save_manifest(partition)
    return partition


def load_program(partition: Partition, source: Source | None = None) -> Flat:
    """The graph of a partition: exported anew from its module, or read from its directory.

    Raises `ModelError` where it is not the graph that was cut.
    """
    if source is not None:
        flat = _exported(partition, source)
    else:
        file = partition.directory / PROGRAM_FILE
        if not file.is_file():
            raise ModelError(f"{partition.directory}: its torch program was not saved with it; load the module instead")
        flat = Flat(partition.model, open_program(file), partition.inputs)
    if flat.digest != partition.provenance.get("model_sha256"):
        raise ModelError(f"{partition.directory}: the module's graph is not the one that was cut; partition it again")
    return flat


def _exported(partition: Partition, source: Source) -> Flat:
    noted = partition.provenance.get("batch_axes")
    axes = {str(name): int(axis) for name, axis in noted.items()} if isinstance(noted, Mapping) else {}
    return flat_of(source, axes) if partition.joinable else flat_of(source, axes, 1, free=False)


def _save_program(source: Source, axes: Mapping[str, int], file: Path, *, joinable: bool) -> None:
    program = export(source, axes) if joinable else export(source, axes, rows=1, free=False)
    with quiet():
        torch.export.save(program, str(file))


def _claim(directory: Path) -> None:
    """Make the directory, and refuse one that holds something else of these names."""
    directory.mkdir(parents=True, exist_ok=True)
    mark = directory / MANIFEST_FILE
    found = [name for name in (GRAPH_FILE, PROGRAM_FILE) if (directory / name).exists()]
    if found and not mark.exists():
        raise InvalidInput(f"a partition in {directory} would overwrite {found[0]}, which is no partition's")
    mark.write_bytes(b"")


def _costs(plan: Plan, flat: Flat) -> Costs | None:
    """Measured at one row; None where no input is known that the module accepts."""
    verdict = plan.verdict
    if not verdict.recipes:
        return None
    return measure(flat, plan.feeds(verdict.typical or verdict.recipes[-1], 1))


def _positions(plan: Plan, costs: Costs, preempt_within_s: float | None) -> list[int]:
    return choose(costs.per_node, plan.cuts(), dispatch_s=costs.dispatch_s, preempt_within_s=preempt_within_s)


def _chain_differs(plan: Plan, flat: Flat, positions: Sequence[int]) -> str | None:
    """Why the chain is not the whole, where it is not."""
    if not positions:
        return None
    pieces = extract(flat, positions, (), Path(GRAPH_FILE))
    chain_modules = modules(flat, positions)

    def chain(feeds: Feeds) -> Mapping[str, Array]:
        values = dict(zip((port.name for port in flat.inputs), flat.tensors(feeds), strict=True))
        with torch.inference_mode():
            for piece, module in zip(pieces, chain_modules, strict=True):
                made = module(*(values[name] for name in piece.inputs))
                values.update(zip(piece.outputs, made, strict=True))
        return {port.name: np.array(to_array(values[port.name])) for port in flat.outputs}

    run, _ = flat.watch(())
    return plan.chain_differs(run, chain)


def _fingerprint(digest: str, device: str, positions: Sequence[int]) -> str:
    return hashlib.sha256(f"{digest} torch {torch.__version__} on {device} {list(positions)}".encode()).hexdigest()
