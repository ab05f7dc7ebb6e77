"""Latency tables as files, and whether a table belongs to a model and to this machine.

Owns: the file format, `LatencyTable` (the core's table with `save` and `load`), `machine`, `versions`, `check_table`.
Must not know: how tables are measured or used.

Provenance keys (all optional in a file; the profiler writes them all): fingerprint (of model and partition), machine
(see `machine`), versions, threads, date (ISO 8601, UTC), command, samples (per batch size), high_quantile, joinable,
reason (why not), inputs ("made up" or "given") and their signature; loops, of graphs that have some (`table_loops`).
A model that is padded to several lengths has a table of the longest and, under "shorter", one of each other length.

A file is a JSON object: "format", "version", "model", "batch_sizes", "provenance", "nodes" (each with "name" and, per
batch size, "median_ns" and "high_ns"), and what a table may lack: "shorter", and "engine", the engine's own time per
dispatch, measured on the same machine (`lazybatch.core.latency.EngineTime`): {"open_ns", "open_row_ns", "continue_ns",
"continue_row_ns", "move_ns", "move_row_ns"}, whole nanoseconds, of which one that is left out is 0. Nodes' times never
contain it. Without "engine" (older tables, those of other hardware) the engine counts as taking no time, in graphs with
loops as well.

A table without a fingerprint or a machine (written by hand, synthetic) makes no claim that could be wrong: only its
nodes are checked.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, Self

from lazybatch.core import latency
from lazybatch.core.graph import NodeGraph
from lazybatch.errors import InvalidInput, TableMismatch

FORMAT = "lazybatch-latency-table"
FORMAT_VERSION = 1
_COMPARED = ("cpu", "cores", "arch", "system")


class LatencyTable(latency.LatencyTable):
    """Node x batch size -> nanoseconds (median, and a high quantile), that can be saved and loaded."""

    __slots__ = ()

    def save(self, path: str | Path) -> None:
        """Write the table as JSON, whole or not at all. Raises `InvalidInput` if the file cannot be written."""
        save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a table. Raises `InvalidInput` saying what is wrong with the file."""
        return cls(**_read(Path(path)))


def save(table: latency.LatencyTable, path: str | Path) -> None:
    """Write a table as JSON, whole or not at all. Raises `InvalidInput` if the file cannot be written."""
    document = {"format": FORMAT, "version": FORMAT_VERSION, **_document(table)}
    if table.shorter:
        document["shorter"] = {str(length): _document(one) for length, one in table.shorter.items()}
    write_json(Path(path), document)


def _document(table: latency.LatencyTable) -> dict[str, object]:
    nodes = [
        {"name": name, "median_ns": list(median), "high_ns": list(high)}
        for name, median, high in zip(table.nodes, table.median_ns, table.high_ns, strict=True)
    ]
    engine = {} if table.engine is None else {"engine": dataclasses.asdict(table.engine)}
    return {
        "model": table.model,
        "batch_sizes": list(table.batch_sizes),
        "provenance": dict(table.provenance),
        **engine,
        "nodes": nodes,
    }


def load(path: str | Path) -> LatencyTable:
    """Read a table. Raises `InvalidInput` saying what is wrong with the file."""
    return LatencyTable.load(path)


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Replace a file by a JSON document in one step: a reader sees the old or the new, never half of one.

    Of a link, the file it leads to. What is no file, a pipe or a device, is written to and stays what it is.
    Raises `InvalidInput` where that cannot be done.
    """
    try:
        text = json.dumps(document, indent=1)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"cannot write {str(path)!r}: not all of it is JSON ({error})") from error
    temporary: str | None = None
    try:
        if not replaceable(path):
            path.write_text(text + "\n", encoding="utf-8")
            return
        target = Path(os.path.realpath(path))
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        # mkstemp makes private files; a table is for everyone who may read its folder.
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise InvalidInput(f"cannot write {str(path)!r}: {error.strerror or error}") from error


def replaceable(path: Path) -> bool:
    """Whether another file may be put in its place: there is none yet, or it is a regular one."""
    return path.is_file() or not path.exists()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_json(path: Path, what: str, form: str, version: int) -> dict[str, Any]:
    """A JSON object that says it is ``form`` in ``version``. Raises `InvalidInput` naming the file and the fault."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read the {what} {str(path)!r}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{str(path)!r} is not a {what}: damaged or not JSON ({error})") from error
    if not isinstance(document, dict) or document.get("format") != form:
        raise InvalidInput(f"{str(path)!r} is not a {what}: expected a JSON object with format {form!r}")
    if document.get("version") != version:
        raise InvalidInput(
            f"{what} {str(path)!r} has format version {document.get('version')!r}, this lazybatch reads {version}"
        )
    return document


def _read(path: Path) -> dict[str, Any]:
    document = read_json(path, "latency table", FORMAT, FORMAT_VERSION)
    try:
        fields = _fields(document)
        if "shorter" in document:
            fields["shorter"] = _shorter(_typed(document, "shorter", dict))
            latency.LatencyTable(**fields)
        return fields
    except InvalidInput as error:
        raise InvalidInput(f"latency table {str(path)!r}: {error}") from None


def _shorter(document: Mapping[str, Any]) -> dict[int, latency.LatencyTable]:
    """The tables at other padded lengths."""
    tables: dict[int, latency.LatencyTable] = {}
    for length, one in document.items():
        if not length.isdecimal() or int(length) < 1 or not isinstance(one, dict):
            raise InvalidInput(f"'shorter' must map lengths to tables, got {length!r}")
        tables[int(length)] = LatencyTable(**_fields(one))
    return tables


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    nodes = _typed(document, "nodes", list)
    names, median_ns, high_ns = [], [], []
    for number, node in enumerate(nodes):
        if not isinstance(node, dict):
            raise InvalidInput(f"node {number} must be an object, got {node!r}")
        names.append(_typed(node, "name", str))
        median_ns.append(_integers(node, "median_ns"))
        high_ns.append(_integers(node, "high_ns"))
    if len(set(names)) != len(names):
        raise InvalidInput(f"two nodes are called {next(name for name in names if names.count(name) > 1)!r}")
    fields: dict[str, Any] = {
        "model": _typed(document, "model", str),
        "nodes": tuple(names),
        "batch_sizes": _integers(document, "batch_sizes"),
        "median_ns": tuple(median_ns),
        "high_ns": tuple(high_ns),
        "provenance": _typed(document, "provenance", dict),
        "engine": _engine(document),
    }
    latency.LatencyTable(**fields)
    return fields


def _engine(document: Mapping[str, Any]) -> latency.EngineTime | None:
    if "engine" not in document:
        return None
    given = _typed(document, "engine", dict)
    known = [one.name for one in dataclasses.fields(latency.EngineTime)]
    for key in given:
        if key not in known:
            raise InvalidInput(f"'engine' holds {', '.join(map(repr, known))}, got {key!r}")
    return latency.EngineTime(**given)


def _typed(document: Mapping[str, Any], key: str, kind: type) -> Any:
    value = document.get(key)
    if not isinstance(value, kind):
        found = "is missing" if key not in document else f"must be a {kind.__name__}, got {value!r}"
        raise InvalidInput(f"{key!r} {found}")
    return value


def _integers(document: Mapping[str, Any], key: str) -> tuple[int, ...]:
    values = _typed(document, key, list)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidInput(f"{key!r} must be whole numbers without holes, got {value!r} in {values!r}")
    return tuple(values)


def machine(accelerator: str | None = None) -> dict[str, object]:
    """This machine as far as it decides how long a node takes: cpu model, usable cores, architecture, system; and the
    accelerator, where nodes run on one (`accelerator_of` a model)."""
    found: dict[str, object] = {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "arch": platform.machine(),
        "system": platform.system(),
        "release": platform.release(),
    }
    return found if accelerator is None else found | {"accelerator": accelerator}


def accelerator_of(model: object) -> str | None:
    """What the model's nodes run on, where it says so and that is not the CPU; else None."""
    found: str | None = getattr(model, "accelerator", None)
    return found


def usable_cores() -> int:
    """Cores this process may run on: fewer than the machine has, where it is pinned."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Processor", "cpu model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "unknown"


def versions() -> dict[str, str]:
    """Versions of Python and of those packages, of the ones that run models, that are installed."""
    found = {"python": platform.python_version()}
    for package in ("lazybatch", "numpy", "onnxruntime", "onnxruntime-gpu", "onnx", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


class Identified(Protocol):
    """What a table is compared with: any model."""

    @property
    def name(self) -> str:
        """Short name."""

    @property
    def graph(self) -> NodeGraph:
        """Its nodes."""

    @property
    def fingerprint(self) -> str:
        """Identity of model and partition."""


def check_table(table: latency.LatencyTable, model: Identified, allow_foreign: bool = False) -> None:
    """Refuse a table that was not measured for this model, partition and machine.

    allow_foreign: accept another model file, number of threads or machine; the nodes must be the same all the same.
    Raises `TableMismatch` naming both sides.
    """
    nodes = tuple(node.name for node in model.graph.nodes)
    if table.nodes != nodes:
        raise TableMismatch(f"model {model.name!r} has {_describe(nodes, table.nodes)}; profile this model again")
    if allow_foreign:
        return
    fingerprint = table.provenance.get("fingerprint")
    if fingerprint is not None and fingerprint != model.fingerprint:
        raise TableMismatch(
            f"the latency table was measured for model {table.model!r} ({_short(fingerprint)}), "
            f"this is model {model.name!r} ({_short(model.fingerprint)}): another file, partition or runtime; "
            "profile this model again"
        )
    threads, ours = table.provenance.get("threads"), getattr(model, "threads", None)
    if threads is not None and ours is not None and threads != ours:
        raise TableMismatch(
            f"the latency table of model {table.model!r} was measured with {threads} threads, here the model has "
            f"{ours}; profile again, or allow a foreign table"
        )
    measured_on = table.provenance.get("machine")
    accelerator = accelerator_of(model)
    difference = machine_difference(measured_on, accelerator) if isinstance(measured_on, Mapping) else None
    if difference is not None:
        raise TableMismatch(
            f"the latency table of model {table.model!r} was measured on another machine: {difference}; "
            "profile again, or allow a foreign table"
        )


def machine_difference(measured_on: Mapping[str, object], accelerator: str | None = None) -> str | None:
    """How the described machine differs from this one where it matters for times; None where it does not.

    accelerator: what nodes run on here. A description without one is of nodes that ran on the CPU.
    """
    here = machine()
    if measured_on.get("accelerator") != accelerator:
        return f"accelerator {measured_on.get('accelerator')!r} there, {accelerator!r} here"
    for key in _COMPARED:
        if key in measured_on and measured_on[key] != here.get(key):
            return f"{key} {measured_on[key]!r} there, {here.get(key)!r} here"
    return None


def _describe(ours: tuple[str, ...], theirs: tuple[str, ...]) -> str:
    if len(ours) != len(theirs):
        return f"{len(ours)} nodes, the latency table has {len(theirs)}"
    index = next(k for k, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
    return f"node {ours[index]!r} at position {index}, the latency table has {theirs[index]!r} there"


def _short(fingerprint: object) -> str:
    text = str(fingerprint)
    return text if len(text) <= 16 else text[:12] + "…"
