"""Manifests: what is written is read back, and damage is told by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lazybatch.errors import ModelError
from lazybatch.partition.manifest import MANIFEST_FILE, _checksum, load_partition, save_manifest
from lazybatch.partition.pieces import Boundary, Kind, Partition, Piece


def small(directory: Path) -> Partition:
    """A partition whose every field has something in it."""
    (directory / "piece_000.onnx").write_bytes(b"one")
    (directory / "piece_001.onnx").write_bytes(b"two")
    return Partition(
        model="net",
        fingerprint="f" * 64,
        directory=directory,
        pieces=(
            Piece("00-Conv", directory / "piece_000.onnx", ("x",), ("a/b", "n"), 3, (), 12, 0.25),
            Piece("01-Add", directory / "piece_001.onnx", ("a/b", "n"), ("ÿ",), 1, (("a/b", "ÿ"),), 0, 0.75),
        ),
        boundaries={
            "x": Boundary("x", "float32", Kind.ROWS, 0, (None, 3)),
            "a/b": Boundary("a/b", "float32", Kind.ROWS, 1, None, False),
            "n": Boundary("n", "int64", Kind.SIZE, None, (2,), True, (True, False)),
            "ÿ": Boundary("ÿ", "object", Kind.ROWS, 0, (None,)),
        },
        inputs=("x",),
        outputs=("ÿ",),
        joinable=True,
        reason=None,
        max_abs_diff=1e-7,
        provenance={"notes": ["a"], "whole_s": 0.5},
    )


def test_round_trip(tmp_path: Path) -> None:
    """Reading gives what was written."""
    partition = small(tmp_path)
    save_manifest(partition)
    assert load_partition(tmp_path) == partition


def test_moved_directory(tmp_path: Path) -> None:
    """A partition may be moved as a whole."""
    folder = tmp_path / "here"
    folder.mkdir()
    save_manifest(small(folder))
    there = folder.rename(tmp_path / "there")
    assert load_partition(there).pieces[0].path == there / "piece_000.onnx"


def test_refusal_is_kept(tmp_path: Path) -> None:
    """Why rows cannot join survives the file."""
    save_manifest(replace(small(tmp_path), joinable=False, reason="because", max_abs_diff=None))
    loaded = load_partition(tmp_path)
    assert (loaded.joinable, loaded.reason, loaded.max_abs_diff) == (False, "because", None)


def test_not_a_partition(tmp_path: Path) -> None:
    """A directory without a manifest is none."""
    with pytest.raises(ModelError, match="not a partition directory"):
        load_partition(tmp_path)


@pytest.mark.parametrize(
    ("key", "new", "says"),
    [
        ("format", "other", "not a partition manifest"),
        ("version", 99, "manifest version 99, expected 2; partition the model again"),
        ("pieces", None, "damaged manifest"),
        ("boundaries", [], "undescribed tensor"),
        ("boundaries", [{"name": "x"}], "damaged manifest"),
        ("model", ..., "damaged manifest: KeyError 'model'"),
    ],
)
def test_damage_is_named(tmp_path: Path, key: str, new: Any, says: str) -> None:
    """A manifest of another format or version, or with something missing, is refused in one line."""
    save_manifest(small(tmp_path))
    path = tmp_path / MANIFEST_FILE
    data = json.loads(path.read_text())
    if new is ...:
        del data[key]
    else:
        data[key] = new
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError, match=says):
        load_partition(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_broken_json(tmp_path: Path, text: str) -> None:
    """Half a file is no manifest."""
    (tmp_path / MANIFEST_FILE).write_text(text)
    with pytest.raises(ModelError, match="manifest"):
        load_partition(tmp_path)


def test_missing_piece(tmp_path: Path) -> None:
    """A piece that was deleted is missed at load."""
    save_manifest(small(tmp_path))
    (tmp_path / "piece_001.onnx").unlink()
    with pytest.raises(ModelError, match=r"piece_001\.onnx is missing"):
        load_partition(tmp_path)


def test_paths_do_not_lead_out(tmp_path: Path) -> None:
    """A manifest cannot point at files elsewhere, not even one with the right checksum."""
    save_manifest(small(tmp_path))
    path = tmp_path / MANIFEST_FILE
    data = json.loads(path.read_text())
    data["pieces"][0]["path"] = "../../etc/piece_000.onnx"
    data["checksum"] = _checksum(data)
    path.write_text(json.dumps(data))
    assert load_partition(tmp_path).pieces[0].path == tmp_path / "piece_000.onnx"


@pytest.mark.parametrize(("key", "new"), [("unit", ""), ("axis", [1]), ("dtype", 7), ("axis", 1)])
def test_a_changed_claim_is_refused(tmp_path: Path, key: str, new: Any) -> None:
    """What the manifest says of rows was proved; edited by hand it would mix them, or break much later."""
    save_manifest(small(tmp_path))
    path = tmp_path / MANIFEST_FILE
    data = json.loads(path.read_text())
    data["boundaries"][0][key] = new
    path.write_text(json.dumps(data))
    with pytest.raises(ModelError, match="changed after it was written"):
        load_partition(tmp_path)
