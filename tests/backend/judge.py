"""Judging one backend case: the whole model against the same model node by node.

Owns: what counts as matched, refused or mismatched; the two variants of a case.
Must not know: processes, shards, printing.

*as_is*: the case as the suite has it; most have no batch axis, so this is about cutting and wiring.
*relaxed*: its leading dimension is declared free and its data cut into single rows; this is about joining: whatever is
declared joinable must give each row what it gets alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from lazybatch.errors import ModelError
from tests import serving
from tests.backend.corpus import BackendCase
from tests.backend.outcome import Outcome, Status
from tests.loading import load_fine
from tests.whole import Whole, aligned, close_to_peak, describe, same_bits

RELATIVE, ABSOLUTE = 2e-5, 1e-6
"""How far a joined row may lie from the same row alone, next to the largest number of that output: kernels for one row
and for several add in another order."""


def _close(got: Any, want: Any) -> bool:
    return close_to_peak(got, want, RELATIVE, ABSOLUTE)


def _first_difference(got: Mapping[str, Any], want: Mapping[str, Any], *, exact: bool) -> str | None:
    if set(got) != set(want):
        return f"outputs {sorted(got)}, expected {sorted(want)}"
    for name, array in want.items():
        if not (same_bits if exact else _close)(got[name], array):
            return f"{name!r} is {describe(got[name])}, expected {describe(array)}"
    return None


def _off_suite(case: BackendCase, answers: list[dict[str, Any]]) -> bool:
    """Whether the whole model itself is not what the suite expects (then it is a poor witness, and counted)."""
    for outputs, wanted in zip(answers, case.wanted, strict=True):
        if wanted is None:
            continue
        for got, want in zip(outputs.values(), wanted, strict=False):
            if isinstance(want, np.ndarray) and isinstance(got, np.ndarray) and want.dtype.kind in "fiu":
                if got.shape != want.shape:
                    return True
                if not np.allclose(got, want.astype(got.dtype), rtol=case.rtol, atol=case.atol, equal_nan=True):
                    return True
    return False


def _whole_answers(path: Path, feeds: tuple[dict[str, Any], ...]) -> tuple[list[dict[str, Any]], bool]:
    """Single runs' answers, and whether they are answers: the same again, and the same in a fresh session."""
    whole, other = Whole(path), Whole(path)
    answers = [whole.run(each) for each in feeds]
    again = [session.run(each) for session in (whole, other) for each in feeds]
    same = all(_first_difference(b, a, exact=True) is None for a, b in zip(answers * 2, again, strict=True))
    return answers, same


def _refusal(error: ModelError) -> tuple[Status, str]:
    if len(str(error)) < 10:
        return Status.MISMATCHED, f"refused without a reason: {error!r}"
    return Status.REFUSED, str(error)


def as_is(case: BackendCase, folder: Path) -> Outcome:
    """The case as it is: `model.run` on its data must give the bits of the whole model."""
    path = folder / "model.onnx"
    onnx.save(case.model, path)
    try:
        wanted, settled = _whole_answers(path, case.feeds)
    except Exception as error:
        return Outcome(case.id, Status.NOT_ACCEPTED, str(error).replace("\n", " ")[:200])
    if not settled:
        return Outcome(case.id, Status.NO_ONE_ANSWER)
    began = time.perf_counter()
    try:
        model = load_fine(path)
    except ModelError as error:
        return Outcome(case.id, *_refusal(error))
    except Exception as error:
        return Outcome(case.id, Status.MISMATCHED, f"load raised {type(error).__name__}: {error}")
    seconds = time.perf_counter() - began
    nodes = len(model.graph)
    for feeds, want in zip(case.feeds, wanted, strict=True):
        try:
            difference = _first_difference(model.run(aligned(feeds)), want, exact=True)
        except Exception as error:
            difference = f"run raised {type(error).__name__}: {error}"
        if difference:
            return Outcome(case.id, Status.MISMATCHED, difference, nodes, model.joinable, seconds=seconds)
    return Outcome(case.id, Status.MATCHED, "", nodes, model.joinable, _off_suite(case, wanted), seconds)


def _relax(case: BackendCase) -> tuple[onnx.ModelProto, list[dict[str, Any]], list[str]] | None:
    """The model with a free leading dimension, single-row feeds, and which inputs have the batch axis."""
    feeds = case.feeds[0]
    weights = {tensor.name for tensor in case.model.graph.initializer}
    if not feeds or any(not isinstance(item, np.ndarray) for item in feeds.values()):
        return None
    if any(not tensor.type.HasField("tensor_type") for tensor in case.model.graph.input):
        return None
    first = next((item for item in feeds.values() if item.ndim), None)
    if first is None or first.size == 0:
        return None
    count = first.shape[0]
    batched = [name for name, item in feeds.items() if item.ndim and item.shape[0] == count]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.graph.value_info[:]
    for tensor in model.graph.input:
        if tensor.name in batched and tensor.name not in weights:
            dim = tensor.type.tensor_type.shape.dim[0]
            dim.Clear()
            dim.dim_param = "N"
    for tensor in model.graph.output:
        if tensor.type.HasField("tensor_type"):
            tensor.type.tensor_type.ClearField("shape")
    if count > 1:
        singles = [{n: v[k : k + 1] if n in batched else v for n, v in feeds.items()} for k in range(min(count, 4))]
    else:
        singles = [feeds]
    mixed = np.random.default_rng(5)
    for base in list(singles):  # the same numbers at other places: still of the values the operator expects
        other = {
            n: mixed.permuted(v.reshape(1, -1), axis=1).reshape(v.shape) if n in batched else v for n, v in base.items()
        }
        singles.append(other)
    return model, singles[:6], batched


def relaxed(case: BackendCase, folder: Path) -> Outcome:
    """The case with a free batch: rows served together, and preempted and merged, must get what each gets alone."""
    made = _relax(case) if len(case.feeds) else None
    if made is None:
        return Outcome(case.id, Status.SKIPPED, "no leading dimension")
    proto, singles, batched = made
    path = folder / "model.onnx"
    onnx.save(proto, path)
    try:
        alone, settled = _whole_answers(path, tuple(singles))
    except Exception as error:
        return Outcome(case.id, Status.NOT_ACCEPTED, str(error).replace("\n", " ")[:200])
    if not settled:
        return Outcome(case.id, Status.NO_ONE_ANSWER)
    began = time.perf_counter()
    try:
        model = load_fine(path)
    except ModelError as error:
        return Outcome(case.id, *_refusal(error))
    except Exception as error:
        return Outcome(case.id, Status.MISMATCHED, f"load raised {type(error).__name__}: {error}")
    seconds = time.perf_counter() - began
    if model.joinable == bool(model.reason):
        return Outcome(case.id, Status.MISMATCHED, f"joinable={model.joinable} with reason {model.reason!r}")
    requests = [{n: v[0] if n in batched else v for n, v in single.items()} for single in singles]
    try:
        difference = _serve(model, requests, alone)
    except Exception as error:
        difference = f"serving raised {type(error).__name__}: {error}"
    status = Status.MISMATCHED if difference else Status.MATCHED
    return Outcome(case.id, status, difference or "", len(model.graph), model.joinable, seconds=seconds)


def _serve(model: Any, requests: list[dict[str, Any]], alone: list[dict[str, Any]]) -> str | None:
    wanted = [serving.answer(model, outputs) for outputs in alone]
    ways = {
        "together": serving.together(model, requests),
        "merged": serving.interleaved(model, requests, seed=1)[0],
    }
    for way, answers in ways.items():
        for k, (got, want) in enumerate(zip(answers, wanted, strict=True)):
            if not isinstance(got, dict):
                return f"{way}, row {k}: {got!r}"
            difference = _first_difference(got, want, exact=not model.joinable)
            if difference:
                return f"{way}, row {k} (joinable={model.joinable}): {difference}"
    return None
