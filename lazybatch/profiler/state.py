"""What a profile has measured so far, and the file that lets it be resumed.

Owns: `State`, and what two profiles must have in common for one to go on with the other's samples.
Must not know: how anything is measured, what becomes of the samples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lazybatch.errors import InvalidInput, TableMismatch
from lazybatch.executors.base import Model, Row
from lazybatch.profiles import accelerator_of, machine, machine_difference, read_json, write_json

_FORMAT, _VERSION = "lazybatch-profile-partial", 1
_OTHER = {"threads": "another number of threads", "inputs": "other inputs"}


class State:
    """What has been measured so far, and the file that keeps it.

    inputs: what ``rows`` were admitted from, where the caller gave it; None where the model made them up.
    """

    def __init__(
        self,
        model: Model,
        sizes: Sequence[int],
        rows: Sequence[Row],
        path: Path | None,
        rounds: Sequence[int] = (),
        inputs: Sequence[Any] | None = None,
    ) -> None:
        self.path = path
        self.accelerator = accelerator_of(model)
        self.nodes = tuple(node.name for node in model.graph.nodes)
        self.identity: dict[str, object] = {
            "model": model.name,
            "fingerprint": model.fingerprint,
            "nodes": list(self.nodes),
            "rows": repr((rows[0].signature, rows[0].size)),
            "threads": getattr(model, "threads", None),
            "inputs": "made up" if inputs is None else f"given, {_digest(inputs)}",
        }
        if rounds:
            self.identity["iterations"] = [str(count) for count in rounds]
        self.samples_ns: dict[int, list[list[int]]] = {size: [[] for _ in self.nodes] for size in sizes}
        self.spent_ns = dict.fromkeys(sizes, 0)
        self._saved = True
        if path is not None and path.exists():
            self._load(path)

    def passes(self, size: int) -> int:
        """Passes measured at this size."""
        return len(self.samples_ns[size][0])

    def add(self, size: int, times_ns: Sequence[int]) -> None:
        """Keep one pass."""
        for samples, time_ns in zip(self.samples_ns[size], times_ns, strict=True):
            samples.append(time_ns)
        self._saved = False

    def save(self) -> None:
        """Write the file, in one step; nothing to do without a path or without news."""
        if self.path is None or self._saved:
            return
        document = {
            "format": _FORMAT,
            "version": _VERSION,
            "identity": self.identity,
            "machine": machine(self.accelerator),
            "spent_ns": {str(size): spent for size, spent in self.spent_ns.items()},
            "samples_ns": {str(size): samples for size, samples in self.samples_ns.items()},
        }
        write_json(self.path, document)
        self._saved = True

    def forget(self) -> None:
        """Remove the file: the profile is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _load(self, path: Path) -> None:
        document = read_json(path, "partial profile", _FORMAT, _VERSION)
        identity, measured_on = document.get("identity"), document.get("machine")
        if not isinstance(identity, dict) or not isinstance(measured_on, dict):
            raise InvalidInput(f"partial profile {str(path)!r} is damaged: it does not say what it measured")
        for key, ours in self.identity.items():
            if identity.get(key) != ours:
                raise TableMismatch(
                    f"partial profile {str(path)!r} is of {_OTHER.get(key, 'another model')}: {key} "
                    f"{identity.get(key)!r} there, {ours!r} here; remove the file to start anew"
                )
        difference = machine_difference(measured_on, self.accelerator)
        if difference is not None:
            raise TableMismatch(
                f"partial profile {str(path)!r} is of another machine: {difference}; remove the file to start anew"
            )
        for size in self.samples_ns:
            self._load_size(path, document, size)

    def _load_size(self, path: Path, document: dict[str, Any], size: int) -> None:
        try:
            samples = document["samples_ns"].get(str(size))
            if samples is None:
                return
            counts = {len(node) for node in samples}
            whole = all(type(time_ns) is int and time_ns > 0 for node in samples for time_ns in node)
            spent_ns = int(document["spent_ns"][str(size)])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise InvalidInput(f"partial profile {str(path)!r} is damaged at batch size {size}") from None
        if len(samples) != len(self.nodes) or len(counts) != 1 or not whole or spent_ns < 0:
            raise InvalidInput(f"partial profile {str(path)!r} is damaged at batch size {size}")
        self.samples_ns[size], self.spent_ns[size] = samples, spent_ns


def _digest(inputs: Sequence[Any]) -> str:
    """The same for equal inputs, also in another process."""
    return hashlib.sha256(repr(_plain(list(inputs))).encode()).hexdigest()[:16]


def _plain(value: Any) -> object:
    """A value whose text says all of it: that of a long array leaves most of it out."""
    if isinstance(value, Mapping):
        return [(key, _plain(value[key])) for key in sorted(value, key=repr)]
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if callable(getattr(value, "tolist", None)):  # arrays and tensors of any framework
        return str(getattr(value, "dtype", "")), value.tolist()
    if repr(value) == object.__repr__(value):  # that would be its address, another one in every process
        return type(value).__qualname__
    return repr(value)
