"""From a model file to a partition: the order of the steps, and nothing else.

Owns: `partition_onnx`.
Must not know: how each step works.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.ort.session import WEIGHTS_FILE, open_session, runtime
from lazybatch.partition.costs import Costs
from lazybatch.partition.cuts import Residual, choose
from lazybatch.partition.manifest import save_manifest
from lazybatch.partition.notes import check_options, provenance
from lazybatch.partition.onnx.cost import measure
from lazybatch.partition.onnx.extract import claim, extract
from lazybatch.partition.onnx.graph import OnnxGraph, runner
from lazybatch.partition.onnx.join import judge_onnx
from lazybatch.partition.onnx.optimise import WHOLE_FILE, Opener, Optimised, optimise
from lazybatch.partition.onnx.source import Source, external_files, one_line, read_source
from lazybatch.partition.pieces import Partition, Piece
from lazybatch.partition.plan import Plan
from lazybatch.partition.proof.rows import Array, Feeds


def partition_onnx(
    path: Path | str,
    directory: Path | str,
    *,
    preempt_within_s: float | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
    example_inputs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    tolerance: float | None = None,
    require_joinable: bool = False,
    threads: int | None = None,
    providers: str | Sequence[str] | None = None,
) -> Partition:
    """Cut the model into pieces in the directory (made if missing) and save the manifest there.

    preempt_within_s: the longest time a server may be unpreemptible at one row; None: as many nodes as stay cheap.
    batch_axes: input name -> batch axis, or None where an input has none; None: found by probing.
    example_inputs: one or several requests the model accepts, with or without the batch axis.
    threads, providers: as for `open_session`.
    tolerance: allowed |joined - alone| over the row's magnitude, for models that cannot be exact.
    Raises `InvalidInput` where files that are no partition's would be lost.
    Raises `ModelError` naming the culprit; with require_joinable also where rows cannot share a batch.
    """
    check_options(preempt_within_s, tolerance)
    source = read_source(Path(path))
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    claim(directory, (source.path, *external_files(source)))
    opener = partial(open_session, threads=threads, providers=providers)
    optimised = optimise(source, directory, opener)
    verdict = judge_onnx(source, optimised, batch_axes, _examples(example_inputs), tolerance, opener)
    plan = Plan(OnnxGraph(optimised, opener), verdict, tolerance)
    if plan.reason is not None and require_joinable:
        raise ModelError(f"{source.path}: rows cannot share a batch: {plan.reason}")
    costs = _costs(plan, optimised, opener)
    positions = []
    if costs is not None:
        cuts = plan.cuts()
        positions = choose(
            costs.per_node,
            cuts,
            dispatch_s=costs.dispatch_s,
            preempt_within_s=preempt_within_s,
            residuals=residuals(plan, optimised),
        )
    pieces = extract(optimised.proto, positions, plan.shapes, costs.per_node if costs else (), directory)
    try:
        difference = _chain_differs(plan, optimised, pieces, opener)
    except Exception as error:
        difference = f"the nodes do not run one by one ({one_line(error)}); kept as one node"
    if difference is not None:
        pieces = extract(optimised.proto, [], plan.shapes, costs.per_node if costs else (), directory)
    digest = _digest(source)
    fingerprint = _fingerprint(digest, positions)
    evidence = plan.evidence
    partition = Partition(
        model=source.name,
        fingerprint=fingerprint,
        directory=directory,
        pieces=tuple(pieces),
        boundaries=plan.boundaries(pieces),
        inputs=tuple(port.name for port in optimised.inputs),
        outputs=tuple(port.name for port in optimised.outputs),
        joinable=plan.reason is None,
        reason=plan.reason,
        max_abs_diff=evidence.max_abs_diff if evidence else None,
        provenance={
            "model_sha256": digest,
            "runtime": f"onnxruntime {runtime().__version__}",
            "whole": WHOLE_FILE,
            "files": _sizes(directory, pieces),
            **provenance(verdict, costs, pieces, preempt_within_s, tolerance, (optimised.note, difference)),
        },
    )
    save_manifest(partition)
    return partition


def _examples(given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> dict[str, list[Array]] | None:
    if given is None:
        return None
    requests = [given] if isinstance(given, Mapping) else list(given)
    if not requests:
        raise InvalidInput("example_inputs is empty, expected at least one request")
    return {name: [np.asarray(request[name]) for request in requests] for name in requests[0]}


def digest_of(path: Path | str) -> str:
    """sha256 of a model file and its external data. Raises `ModelError` where it cannot be read."""
    return _digest(read_source(Path(path)))


def _digest(source: Source) -> str:
    digest = hashlib.sha256()
    for file in (source.path, *external_files(source)):
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _fingerprint(digest: str, positions: Sequence[int]) -> str:
    text = f"{digest} {runtime().__version__} {list(positions)}"
    return hashlib.sha256(text.encode()).hexdigest()


def _sizes(directory: Path, pieces: Sequence[Piece]) -> dict[str, int]:
    """File name -> bytes, so that a copy that was cut short is noticed before it is run."""
    files = [directory / WHOLE_FILE, directory / WEIGHTS_FILE, *(piece.path for piece in pieces)]
    return {file.name: file.stat().st_size for file in files if file.is_file()}


def _costs(plan: Plan, optimised: Optimised, opener: Opener) -> Costs | None:
    """Measured at one row; None where no input is known that the model accepts."""
    verdict = plan.verdict
    if not verdict.recipes:
        return None
    feeds = plan.feeds(verdict.typical or verdict.recipes[-1], 1)
    with tempfile.TemporaryDirectory() as scratch:
        return measure(optimised.path, optimised.proto, feeds, Path(scratch), opener)


def residuals(plan: Plan, optimised: Optimised) -> list[Residual]:
    """Convolutions that add into another value."""
    made = plan.graph.liveness.made
    found = []
    for position, node in enumerate(optimised.proto.graph.node):
        name = node.input[3] if node.op_type in ("Conv", "FusedConv") and len(node.input) > 3 else ""
        if name in made:
            found.append(Residual(made[name], position, plan.sizes.get(name, 0)))
    return found


def _chain_differs(plan: Plan, optimised: Optimised, pieces: Sequence[Piece], opener: Opener) -> str | None:
    """Why the chain is not the whole, where it is not."""
    if len(pieces) == 1:
        return None
    sessions = [opener(piece.path, optimise=False) for piece in pieces]

    def chain(feeds: Feeds) -> Mapping[str, Array]:
        values = dict(feeds)
        for piece, session in zip(pieces, sessions, strict=True):
            got = session.run(list(piece.outputs), {name: values[name] for name in piece.inputs})
            values.update(zip(piece.outputs, got, strict=True))
        return values

    return plan.chain_differs(runner(opener(optimised.path, optimise=False)), chain)
