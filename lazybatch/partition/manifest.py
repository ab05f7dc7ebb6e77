"""Partitions on disk: one directory, its pieces, and a manifest that describes them.

Owns: the manifest's format and its version.
Must not know: the framework a model came from; how pieces are made or run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lazybatch.errors import ModelError
from lazybatch.partition.pieces import Boundary, Kind, Partition, Piece

MANIFEST_FILE = "partition.json"
FORMAT = "lazybatch-partition"
VERSION = 2


def save_manifest(partition: Partition) -> None:
    """Write the manifest beside the pieces, whole or not at all."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "model": partition.model,
        "fingerprint": partition.fingerprint,
        "joinable": partition.joinable,
        "reason": partition.reason,
        "max_abs_diff": partition.max_abs_diff,
        "inputs": list(partition.inputs),
        "outputs": list(partition.outputs),
        "pieces": [{**asdict(piece), "path": piece.path.name} for piece in partition.pieces],
        "boundaries": [asdict(boundary) for boundary in partition.boundaries.values()],
        "provenance": dict(partition.provenance),
    }
    data["checksum"] = _checksum(data)
    path = partition.directory / MANIFEST_FILE
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(data, indent=1, ensure_ascii=True), encoding="utf-8")
    os.replace(draft, path)


def load_partition(directory: Path | str) -> Partition:
    """Read a partition back. Raises `ModelError` where it is missing, damaged, or changed by hand, or of another
    version."""
    directory = Path(directory)
    path = directory / MANIFEST_FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{directory}: not a partition directory: {path.name} cannot be read ({error})") from error
    except ValueError as error:
        raise ModelError(f"{path}: damaged manifest: {error}") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ModelError(f"{path}: not a partition manifest")
    if data.get("version") != VERSION:
        raise ModelError(
            f"{path}: manifest version {data.get('version')!r}, expected {VERSION}; partition the model again"
        )
    try:
        partition = _read(directory, data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{path}: damaged manifest: {type(error).__name__} {error}") from error
    if data.get("checksum") != _checksum(data):
        raise ModelError(
            f"{path}: the manifest was changed after it was written; what it says of rows is proved no more"
        )
    for piece in partition.pieces:
        if not piece.path.is_file():
            raise ModelError(f"{directory}: piece {piece.path.name} is missing")
    sizes = partition.provenance.get("files")
    for name, nbytes in sizes.items() if isinstance(sizes, Mapping) else ():
        file = directory / Path(name).name
        have = file.stat().st_size if file.is_file() else 0
        if have != nbytes:
            raise ModelError(f"{file}: {have} of {nbytes} bytes are there; partition the model again")
    return partition


def _checksum(data: Mapping[str, Any]) -> str:
    """sha256 over everything else the manifest holds, however it is laid out."""
    text = json.dumps({key: value for key, value in data.items() if key != "checksum"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _read(directory: Path, data: dict[str, Any]) -> Partition:
    pieces = tuple(_piece(directory, entry) for entry in data["pieces"])
    boundaries = {entry["name"]: _boundary(entry) for entry in data["boundaries"]}
    for piece in pieces:
        for name in (*piece.inputs, *piece.outputs):
            if name not in boundaries:
                raise ValueError(f"piece {piece.name!r} uses an undescribed tensor {name!r}")
    return Partition(
        model=data["model"],
        fingerprint=data["fingerprint"],
        directory=directory,
        pieces=pieces,
        boundaries=boundaries,
        inputs=tuple(data["inputs"]),
        outputs=tuple(data["outputs"]),
        joinable=data["joinable"],
        reason=data["reason"],
        max_abs_diff=data["max_abs_diff"],
        provenance=data["provenance"],
    )


def _piece(directory: Path, entry: dict[str, Any]) -> Piece:
    return Piece(
        name=entry["name"],
        path=directory / Path(entry["path"]).name,
        inputs=tuple(entry["inputs"]),
        outputs=tuple(entry["outputs"]),
        operators=entry["operators"],
        in_place=tuple((source, target) for source, target in entry["in_place"]),
        weights_bytes=entry["weights_bytes"],
        cost_share=entry["cost_share"],
    )


def _boundary(entry: dict[str, Any]) -> Boundary:
    dims, mask = entry["dims"], entry["proportional"]
    return Boundary(
        name=entry["name"],
        dtype=entry["dtype"],
        kind=Kind(entry["kind"]),
        axis=entry["axis"],
        dims=None if dims is None else tuple(dims),
        unit=entry["unit"],
        proportional=None if mask is None else tuple(mask),
    )
