"""From a model file to a partition: the order of the steps, and nothing else.

Owns: `partition_onnx`.
Must not know: how each step works.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.ort_session import WEIGHTS_FILE, open_session, runtime
from lazybatch.partition.manifest import save_manifest
from lazybatch.partition.onnx.cost import Costs
from lazybatch.partition.onnx.cuts import choose
from lazybatch.partition.onnx.extract import claim, extract
from lazybatch.partition.onnx.join import Verdict, judge
from lazybatch.partition.onnx.optimise import WHOLE_FILE, Optimised, optimise
from lazybatch.partition.onnx.plan import Plan
from lazybatch.partition.onnx.rows import Array, named_dims
from lazybatch.partition.onnx.source import Source, external_files, one_line, read_source
from lazybatch.partition.pieces import Partition, Piece


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
    _check_options(preempt_within_s, tolerance)
    source = read_source(Path(path))
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    claim(directory, (source.path, *external_files(source)))
    opener = partial(open_session, threads=threads, providers=providers)
    optimised = optimise(source, directory, opener)
    verdict = judge(source, optimised, batch_axes, _examples(example_inputs), tolerance, opener)
    plan = Plan(optimised, verdict, tolerance, opener)
    if plan.reason is not None and require_joinable:
        raise ModelError(f"{source.path}: rows cannot share a batch: {plan.reason}")
    costs = plan.costs()
    positions = []
    if costs is not None:
        cuts = plan.cuts()
        positions = choose(
            costs.per_node,
            cuts,
            dispatch_s=costs.dispatch_s,
            preempt_within_s=preempt_within_s,
            residuals=plan.residuals(),
        )
    pieces = extract(optimised.proto, positions, plan.shapes, costs.per_node if costs else (), directory)
    try:
        difference = plan.chain_differs(pieces)
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
        provenance=_provenance(digest, optimised, verdict, costs, pieces, preempt_within_s, tolerance, difference),
    )
    save_manifest(partition)
    return partition


def _check_options(preempt_within_s: float | None, tolerance: float | None) -> None:
    if preempt_within_s is not None and not preempt_within_s > 0:
        raise InvalidInput(f"preempt_within is {preempt_within_s}, expected seconds above 0")
    if tolerance is not None and not tolerance >= 0:
        raise InvalidInput(f"tolerance is {tolerance}, expected a number of at least 0")


def _examples(given: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> dict[str, list[Array]] | None:
    if given is None:
        return None
    requests = [given] if isinstance(given, Mapping) else list(given)
    if not requests:
        raise InvalidInput("example_inputs is empty, expected at least one request")
    return {name: [np.asarray(request[name]) for request in requests] for name in requests[0]}


def _example(verdict: Verdict) -> dict[str, object]:
    """Input name -> a shape at one row and the bounds of its integers that the model was seen to accept."""
    recipe = verdict.typical
    if recipe is None:
        return {}
    return {
        port.name: {
            "shape": [recipe.sizes[dim] if isinstance(dim, str) else dim for dim in named_dims(port)],
            "range": list(recipe.ranges[port.name]) if port.name in recipe.ranges else None,
        }
        for port in verdict.ports
    }


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


def _provenance(
    digest: str,
    optimised: Optimised,
    verdict: Verdict,
    costs: Costs | None,
    pieces: Sequence[Piece],
    preempt_within_s: float | None,
    tolerance: float | None,
    difference: str | None,
) -> dict[str, object]:
    """How the partition came about, for whoever reads the manifest."""
    notes = [note for note in (optimised.note, difference) if note]
    longest = max((piece.cost_share for piece in pieces), default=0.0) * (costs.whole_s if costs else 0.0)
    if preempt_within_s is not None and longest > preempt_within_s:
        notes.append(
            f"preempt_within is {preempt_within_s:g} s, but the longest node takes {longest:.3g} s: "
            "one operator, or no provable cut in it"
        )
    return {
        "model_sha256": digest,
        "runtime": f"onnxruntime {runtime().__version__}",
        "whole": WHOLE_FILE,
        "files": _sizes(optimised.path.parent, pieces),
        "batch_axes": dict(verdict.candidate),
        "probed_sizes": [dict(recipe.sizes) for recipe in verdict.recipes],
        "probed_ranges": [{k: list(v) for k, v in recipe.ranges.items()} for recipe in verdict.recipes],
        "example": _example(verdict),
        "whole_s": costs.whole_s if costs else None,
        "dispatch_s": costs.dispatch_s if costs else None,
        "longest_node_s": longest if costs else None,
        "preempt_within_s": preempt_within_s,
        "tolerance": tolerance,
        "notes": notes,
    }
