"""The cache: one entry per key, whole or absent, and no harm where it cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from lazybatch.errors import ModelError
from lazybatch.partition.cache import CACHE_VARIABLE, cache_directory, cache_key, cached_partition
from lazybatch.partition.manifest import MANIFEST_FILE, save_manifest
from lazybatch.partition.pieces import Partition
from tests.partition.test_manifest import small


class Builder:
    """Builds the small partition and counts how often."""

    def __init__(self) -> None:
        self.built: list[Path] = []

    def __call__(self, directory: Path) -> Partition:
        """Build into the directory."""
        self.built.append(directory)
        partition = small(directory)
        save_manifest(partition)
        return partition


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_where(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment decides; otherwise it lies below the user's home."""
    assert cache_directory() == root
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_directory() == Path.home() / ".cache" / "lazybatch"


def test_built_once(root: Path) -> None:
    """The second call takes what the first one left; nothing half-built stays."""
    build = Builder()
    key = cache_key({"model": "a"})
    first, second = cached_partition(key, build), cached_partition(key, build)
    assert first == second
    assert len(build.built) == 1
    assert [entry.name for entry in root.iterdir()] == [key[:32]]
    assert first.pieces[0].path.is_file()


def test_keys_differ_by_every_part() -> None:
    """Another model, option or type of option is another entry."""
    assert len({cache_key({"a": value}) for value in (None, 1, "1", 0.5, {"x": 0}, {"x": None})}) == 6
    assert cache_key({"a": 1, "b": 2}) == cache_key({"b": 2, "a": 1})


@pytest.mark.parametrize("damage", ["manifest", "piece"])
def test_damaged_entry_is_built_anew(root: Path, damage: str) -> None:
    """Damage is repaired without a word."""
    build = Builder()
    partition = cached_partition("k" * 64, build)
    if damage == "manifest":
        (partition.directory / MANIFEST_FILE).write_text("{")
    else:
        partition.pieces[0].path.unlink()
    assert cached_partition("k" * 64, build) == partition
    assert len(build.built) == 2
    assert len(list(root.iterdir())) == 1


def test_another_process_was_faster(root: Path) -> None:
    """Who comes second takes the entry that is there."""
    build = Builder()

    def slow(directory: Path) -> Partition:
        cached_partition("k" * 64, build)
        return build(directory)

    assert cached_partition("k" * 64, slow).directory == root / ("k" * 32)
    assert len(list(root.iterdir())) == 1


def test_failing_build_leaves_nothing(root: Path) -> None:
    """What cannot be built is not remembered."""

    def fail(directory: Path) -> Partition:
        raise ModelError("no")

    with pytest.raises(ModelError, match="no"):
        cached_partition("k" * 64, fail)
    assert list(root.iterdir()) == []


def test_unwritable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the cache cannot be made, the partition lives in a temporary directory."""
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file" / "cache"))
    partition = cached_partition("k" * 64, Builder())
    assert partition.pieces[0].path.is_file()
    assert tmp_path not in partition.directory.parents
