"""From a module to a functional program of ATen operators, and torch.export's refusals in plain words.

Owns: `export` and `Refused`.
Must not know: what operators do, what a row is beyond the axes it is given, cuts.

The program is functional: in-place operators and writes through views have become new values, so that no value changes
after it was made, wherever the graph is cut. Operators stay whole (nothing is decomposed further), so they run the
kernels that the module runs.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx

from lazybatch.errors import ModelError
from lazybatch.partition.proof.ports import one_line
from lazybatch.partition.torch.source import Source

ROWS_MAX = 1 << 16
ROWS_TRACED = 3
"""Rows of the run that is traced where the examples have one."""

_FIXED = re.compile(r"your code specialized it to be a constant \((\d+)\)")
_GUARDED = re.compile(r"satisfy the generated guard (.+?)\.?\s*(?:-|Suggested|The error|$)")


class Refused(Exception):
    """torch.export will not let the number of rows vary; the text says why."""


def export(source: Source, axes: Mapping[str, int], *, rows: int | None = None, free: bool = True) -> Any:
    """The program. axes: input -> the axis along which ``rows`` lie (by default as many as in the examples, but not 1,
    which torch.export takes for a fixed size); empty: every size as in the examples. free: whether
    it is to be run with any number of rows, and not with as many only.

    Raises `Refused` where it cannot be exported with a free number of rows, `ModelError` where not even with a fixed
    one.
    """
    tensors = with_rows(source, axes, rows or _rows_traced(source, axes)) if axes else source.tensors
    spec = None
    if axes and free:
        batch = torch.export.Dim("batch", min=1, max=ROWS_MAX)
        spec = (tuple({axes[name]: batch} if name in axes else None for name in source.names),)
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(source.called(), tensors, dynamic_shapes=spec)
    except Exception as error:
        if spec is not None:
            raise Refused(_constraint(error) or f"torch.export: {explain(error)}") from error
        raise ModelError(f"module {source.name!r} cannot be exported: {explain(error)}") from error
    return program


def discovered(source: Source) -> list[tuple[int | str, ...]] | None:
    """Per input, which sizes may vary as far as torch.export sees: equal symbols for sizes that must be equal.

    None where it does not export with all sizes free.
    """
    free = torch.export.Dim.AUTO
    spec = (tuple(dict.fromkeys(range(tensor.ndim), free) for tensor in source.tensors),)
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(source.called(), source.tensors, dynamic_shapes=spec)
    except Exception:
        return None
    inputs = set(program.graph_signature.user_inputs)
    return [dims_of(node) for node in program.graph.nodes if node.name in inputs]


def dims_of(node: fx.Node) -> tuple[int | str, ...]:
    """The shape of the tensor a node makes; where a size may vary, what it is called: equal texts are equal sizes."""
    return tuple(dim if isinstance(dim, int) else str(dim) for dim in node.meta["val"].shape)


def functional(program: Any) -> Any:
    """The program without in-place operators. Raises `ModelError` where torch cannot make it so."""
    try:
        with quiet(), torch.no_grad():
            return program.run_decompositions({})
    except Exception as error:
        raise ModelError(f"the exported program cannot be made functional: {explain(error)}") from error


def with_rows(source: Source, axes: Mapping[str, int], rows: int) -> tuple[Tensor, ...]:
    """The example tensors with exactly so many rows, repeated or cut."""
    made = []
    for name, tensor in zip(source.names, source.tensors, strict=True):
        axis = axes.get(name)
        if axis is not None:
            order = torch.arange(rows, device=tensor.device) % tensor.shape[axis]
            tensor = tensor.index_select(axis, order)
        made.append(tensor.detach())
    return tuple(made)


def _rows_traced(source: Source, axes: Mapping[str, int]) -> int:
    shapes = source.shapes
    given = {shapes[name][axis] for name, axis in axes.items()}
    rows = given.pop()
    return rows if not given and rows > 1 else ROWS_TRACED


def _constraint(error: BaseException) -> str | None:
    """Why the rows may not vary, where that is what torch.export says."""
    text = one_line_of(error)
    if "Constraints violated" not in text:
        return None
    fixed = _FIXED.search(text)
    if fixed:
        return f"torch.export: the module computes with a fixed number of rows ({fixed[1]}), not with any number"
    guard = _GUARDED.search(text)
    if guard:
        said = re.sub(r"L\['[^']*'\](?:\[\d+\])?\.size\(\)\[\d+\]", "rows", guard[1])
        return f"torch.export: the module decides by the number of rows (it was traced where {said.strip()})"
    return f"torch.export: {text[:300]}"


def one_line_of(error: BaseException) -> str:
    """All of what was raised in one line."""
    return " ".join(str(error).split())


def explain(error: BaseException) -> str:
    """What torch says, in one line, with a hint for what a user can change."""
    text = one_line(error)
    if "data-dependent" in text or type(error).__name__.startswith("GuardOnDataDependent"):
        where = re.search(r"\(([\w/.]+\.py:\d+ in \w+)\)", one_line_of(error))
        at = f" at {where[1]}" if where and "torch" not in where[1] else ""
        first = text.split(". ")[0].split(" For more")[0].split(" (unhinted")[0]
        return f"its control flow depends on values of its inputs{at} ({first[:200]}); use torch.cond or torch.where"
    for end in ("For more information", "The error above", "The following call", "Suggested fix"):
        text = text.split(end)[0]
    return f"{type(error).__name__}: {text.strip()}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's exporter: what it cannot do it raises, and its notes about itself say nothing of the model."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch._export", "torch.fx", "torch._dynamo")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        nowhere = io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
