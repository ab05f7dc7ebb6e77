"""One way in: whatever a user has, as a model that can be served.

Owns: `load`: telling apart model files, modules, partition directories and callables, and the use of the cache.
Must not know: how models are cut or run. Frameworks are imported only when a source needs them.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lazybatch.errors import InvalidInput, ModelError
from lazybatch.executors.base import Model
from lazybatch.executors.callable import CallableModel
from lazybatch.executors.padding.pad import Pad
from lazybatch.executors.padding.padded import PaddedModel, Whole
from lazybatch.executors.partitioned import PartitionedModel
from lazybatch.partition.cache import cache_key, cached_partition, temporary_partition
from lazybatch.partition.manifest import load_partition
from lazybatch.partition.pieces import Partition
from lazybatch.program import Program
from lazybatch.program.file import JSON_SUFFIX, is_program, load_program
from lazybatch.program_loading import load_stages

if TYPE_CHECKING:
    from lazybatch.partition.torch import Source

PROGRAM_SUFFIX = ".pt2"
"""Of files that `torch.export.save` writes."""


def load(
    source: Any,
    *,
    preempt_within: float | None = None,
    batch_axes: Mapping[str, int | None] | None = None,
    example_inputs: Any = None,
    tolerance: float | None = None,
    require_joinable: bool = False,
    threads: int | None = None,
    providers: str | Sequence[str] | None = None,
    device: Any = None,
    cache: bool = True,
    pad: Pad | None = None,
) -> Model:
    """A model ready to be served, from an ONNX file, a torch module, a partition directory, a callable list -> list, or
    a program of stages (`lazybatch.Program`, its ``program.json``, or the directory that holds one).

    A torch module (or exported program, or the ``.pt2`` file of one) is exported with ``torch.export``; it must be in
    evaluation mode, and needs ``example_inputs`` as its ``forward`` takes them, batch axis included: a tensor, a tuple
    of arguments, or a dict of arguments by name. Rows go in as arrays or tensors, and come out as arrays.

    preempt_within: the longest time, in seconds, the server may be unpreemptible at one row; None: as fine as stays
    cheap. batch_axes: input -> axis (None: the same for all rows); None: found and proved by probing.
    example_inputs: one request, or several, that the model accepts. tolerance: allowed deviation of joined rows over
    the row's own magnitude, for models that cannot be exact (dynamic quantisation). require_joinable: refuse a model
    whose rows cannot share a batch, instead of serving them one at a time. threads: that operators share.
    providers: of ONNX Runtime. device: of a torch module; None: where its weights lie. cache: keep the partition below
    ``LAZYBATCH_CACHE`` (default ``~/.cache/lazybatch``). pad: how rows of different lengths are padded so that they may
    share batches; tried on rows of many lengths, and refused with a reason where it changes an answer.
    Of a program all of these are for every stage, but for ``batch_axes``, ``example_inputs``, ``tolerance`` and
    ``pad``, which each stage has itself.

    Raises `ModelError` saying which part of the model is the culprit, `InvalidInput` for impossible options.
    """
    if pad is not None:
        whole = load(
            source,
            preempt_within=preempt_within,
            batch_axes=batch_axes,
            example_inputs=example_inputs,
            tolerance=tolerance,
            threads=threads,
            providers=providers,
            device=device,
            cache=cache,
        )
        return _padded(whole, pad)
    cutting = {
        "preempt_within": preempt_within,
        "batch_axes": batch_axes,
        "example_inputs": example_inputs,
        "tolerance": tolerance,
    }
    given = [name for name, value in cutting.items() if value is not None]
    if is_program(source):
        program = source if isinstance(source, Program) else load_program(source)
        options = {**cutting, "require_joinable": require_joinable, "threads": threads, "cache": cache}
        return _program_model(program, options, providers, device)
    if _is_torch(source):
        if providers is not None:
            raise InvalidInput("providers are ONNX Runtime's; a torch module takes device")
        return _torch_model(source, cutting, threads, device, require_joinable, cache)
    if callable(source) and not isinstance(source, str | Path):
        if given or require_joinable or threads is not None or providers is not None or device is not None:
            raise InvalidInput(f"a callable is served whole: it takes no {', '.join(given) or 'ONNX options'}")
        return CallableModel(source)
    if not isinstance(source, str | Path):
        raise InvalidInput(f"cannot load a {type(source).__name__}; expected a path or a callable")
    path = Path(source)
    if path.is_dir():
        if given:
            raise InvalidInput(f"{path} is partitioned already: {', '.join(given)} cannot be changed any more")
        partition = load_partition(path)
        if partition.provenance.get("framework") == "torch":
            return _accepted(_torch_partition(partition, threads, device), require_joinable)
    else:
        partition = _partition(path, cutting, threads, providers, cache)
    from lazybatch.executors.ort.model import OrtModel

    if device is not None:
        raise InvalidInput(f"device={device!r} is for torch modules; ONNX models take providers")
    return _accepted(OrtModel(partition, threads=threads, providers=providers), require_joinable)


def _program_model(program: Program, options: Mapping[str, Any], providers: Any, device: Any) -> Model:
    """A program with its models loaded."""
    from lazybatch.executors.program.model import ProgramModel

    models = load_stages(program, load, _is_torch, options, providers=providers, device=device)
    try:
        model = ProgramModel(program, models)
    except ModelError as error:
        raise ModelError(f"program {program.name!r}: {error}") from error
    return _accepted(model, options["require_joinable"])


def takes_examples(path: Path) -> bool:
    """Whether a file is probed with rows that its user may give: programs of both kinds bring their own."""
    return path.is_file() and path.suffix not in (PROGRAM_SUFFIX, JSON_SUFFIX)


def _accepted(model: Model, require_joinable: bool) -> Model:
    """The model, unless it had to be joinable and is not."""
    if require_joinable and model.reason is not None:
        raise ModelError(f"model {model.name!r}: rows cannot share a batch: {model.reason}")
    return model


def _padded(model: Model, pad: Any) -> Model:
    """The model behind a padding rule that has been tried."""
    if not isinstance(pad, Pad):
        raise InvalidInput(f"pad must be a lazybatch.Pad, got {pad!r}")
    if not isinstance(model, PartitionedModel):
        raise InvalidInput(f"model {model.name!r} is not a single network: it cannot be padded as one")
    return PaddedModel(cast(Whole, model), pad)


def _is_torch(source: Any) -> bool:
    """Whether it is torch's to load; torch is not imported to find out."""
    if isinstance(source, str | Path):
        return Path(source).suffix == PROGRAM_SUFFIX
    torch: Any = sys.modules.get("torch")
    try:
        kinds = torch.nn.Module | torch.export.ExportedProgram
    except AttributeError:  # not imported, or another thread is at it: nobody has a module yet
        return False
    return isinstance(source, kinds)


def _torch_model(
    given: Any, cutting: Mapping[str, Any], threads: int | None, device: Any, require_joinable: bool, cache: bool
) -> Model:
    """A torch module as a model, its cuts from the cache where it may be used."""
    try:
        import lazybatch.executors.torch.model as runtime
        import lazybatch.partition.torch as cutter
    except ImportError as error:
        raise ModelError(f"torch modules need torch ({error}); run `pip install lazybatch[torch]`") from error
    source = cutter.read_source(given, cutting["example_inputs"], device=device)

    def build(directory: Path) -> Partition:
        return cutter.partition_torch(
            source,
            directory,
            preempt_within_s=cutting["preempt_within"],
            batch_axes=cutting["batch_axes"],
            tolerance=cutting["tolerance"],
        )

    partition = cached_partition(_torch_key(source, cutting), build) if cache else temporary_partition(build)
    model = runtime.TorchModel(partition, cutter.load_program(partition, source), source=source, threads=threads)
    return _accepted(model, require_joinable)


def _torch_key(source: Source, cutting: Mapping[str, Any]) -> str:
    """What a torch module's partition is kept under: all that its cuts, costs and proof depend on."""
    import lazybatch.executors.torch.model as runtime
    import lazybatch.partition.torch as cutter

    parts = {
        **cutting,
        "model": source.name,
        "graph": cutter.identity(source, cutting["batch_axes"]),
        "runtime": f"torch {runtime.torch_version()}",
        "device": source.device,
        "example_inputs": _digest_examples([dict(zip(source.examples, row, strict=True)) for row in source.rows()]),
    }
    return cache_key(parts)


def _torch_partition(partition: Partition, threads: int | None, device: Any) -> Model:
    """The model of a directory that a torch module was partitioned into, its program with it."""
    try:
        import lazybatch.executors.torch.model as runtime
        import lazybatch.partition.torch as cutter
    except ImportError as error:
        raise ModelError(f"torch modules need torch ({error}); run `pip install lazybatch[torch]`") from error
    if device is not None:
        raise InvalidInput(f"{partition.directory} is partitioned already: device cannot be changed any more")
    return runtime.TorchModel(partition, cutter.load_program(partition), threads=threads)


def _partition(
    path: Path,
    cutting: Mapping[str, Any],
    threads: int | None,
    providers: str | Sequence[str] | None,
    cache: bool,
) -> Partition:
    """The partition of a model file, from the cache where it may be used."""
    try:
        from lazybatch.partition.onnx import digest_of, partition_onnx
    except ImportError as error:
        raise ModelError(f"ONNX models need the onnx packages ({error}); run `pip install lazybatch[onnx]`") from error
    from lazybatch.executors.ort.session import runtime

    def build(directory: Path) -> Partition:
        return partition_onnx(
            path,
            directory,
            preempt_within_s=cutting["preempt_within"],
            batch_axes=cutting["batch_axes"],
            example_inputs=cutting["example_inputs"],
            tolerance=cutting["tolerance"],
            threads=threads,
            providers=providers,
        )

    if not cache:
        return temporary_partition(build)
    parts = {
        **cutting,
        "model": path.stem,
        "digest": digest_of(path),
        "runtime": runtime().__version__,
        "providers": providers,
        "example_inputs": _digest_examples(cutting["example_inputs"]),
    }
    return cached_partition(cache_key(parts), build)


def _digest_examples(examples: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None) -> list[dict[str, str]] | None:
    """What example inputs contribute to the key: shape, type and bytes."""
    if examples is None:
        return None
    requests = [examples] if isinstance(examples, Mapping) else list(examples)
    return [{name: _digest_array(value) for name, value in sorted(request.items())} for request in requests]


def _digest_array(value: Any) -> str:
    array = np.asarray(value)
    data = repr(array.tolist()).encode() if array.dtype.kind in "OSU" else np.ascontiguousarray(array).tobytes()
    return f"{array.dtype} {array.shape} {hashlib.sha256(data).hexdigest()}"
