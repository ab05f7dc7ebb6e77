"""The one place that opens ONNX Runtime sessions, so that all of them share one thread pool and one memory arena.

Owns: `open_session`, `runtime`, the process-wide settings, and the words for what ONNX Runtime refuses.
Must not know: partitions, boundaries, sub-batches.

Why process-wide: a model cut into thirty nodes has thirty sessions, and a pool per session makes their spinning
threads fight for the same cores (several times slower on small models). With one pool the chain costs what the whole
model costs. The price is a rule of ONNX Runtime's: once the pool exists, every other session of the process must be
opened with ``SessionOptions.use_per_session_threads = False``; sessions opened before keep their own threads.
``threads=1`` needs no pool: where nothing else is asked for, none is made, and other code is free to do as it likes.
Workers spin between nodes (the default): the next node of a chain follows within microseconds, and waking a sleeping
worker costs more than the dispatch itself.

Operators run one after another (sequential execution): nodes are short chains, there is nothing to run side by side.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lazybatch.errors import InvalidInput, ModelError

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
WEIGHTS_FILE = "weights.bin"
"""Weights of a saved optimised model lie in this file beside it, so that all pieces map one copy."""

THREADS_PER_CORE_MAX = 16
"""The pool's threads spin: with very many of them the process stands still."""

_PROVIDER_NAMES = {"cpu": CPU, "cuda": CUDA}
_FATAL_ONLY = 4  # what goes wrong is raised; logging it too would only repeat it on stderr

_lock = threading.Lock()
_pool_threads: int | None = None  # None: no pool made here (yet)
_arena_made = False


def runtime() -> Any:
    """The onnxruntime module. Raises `ModelError` where it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelError(
            f"ONNX models need ONNX Runtime, which cannot be imported ({error}); run `pip install lazybatch[onnx]`"
        ) from error
    return onnxruntime


def default_threads() -> int:
    """As many threads as this process may run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pool_threads() -> int | None:
    """Threads of this process's shared pool; None while there is none."""
    return _pool_threads


def provider_names(providers: str | Sequence[str] | None) -> list[str]:
    """ONNX Runtime's names for ``providers``: None or "cpu", "cuda", or names of its own; the CPU is always the last.

    Raises `InvalidInput` for a provider that this installation does not have.
    """
    asked = [providers] if isinstance(providers, str) else list(providers or ())
    names = [_PROVIDER_NAMES.get(name.lower(), name) for name in asked]
    available = runtime().get_available_providers()
    for name in names:
        if name not in available:
            raise InvalidInput(
                f"execution provider {name!r} is not available here; this ONNX Runtime has {', '.join(available)}"
            )
    return [*dict.fromkeys(name for name in names if name != CPU), CPU]


def open_session(
    model: Path | bytes,
    *,
    optimise: bool,
    save_to: Path | None = None,
    threads: int | None = None,
    providers: str | Sequence[str] | None = None,
    folder: Path | None = None,
    profile_to: Path | None = None,
    lasting: bool = True,
) -> Any:
    """An `onnxruntime.InferenceSession` on a file or on serialised bytes, under this process's shared settings.

    optimise: all graph optimisations, or none (for pieces of a model that was optimised before it was cut).
    save_to: write the optimised model there, its weights beside it in `WEIGHTS_FILE`.
    threads: of the shared pool; the first session decides, None takes what there is. providers: see `provider_names`.
    folder: where the external data of a model given as bytes lies. profile_to: prefix of a per-operator profile.
    lasting: False for a session that is run a few times and dropped: its memory is its own, and is given back.

    Raises `ModelError` for a model that ONNX Runtime does not load, `InvalidInput` for impossible options.
    """
    ort = runtime()
    names = provider_names(providers)
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    if not lasting:  # the shared arena keeps whatever it once needed, and a look at all values of a model needs much
        options.enable_cpu_mem_arena = False
    for key, value in _entries(save_to, folder, lasting).items():
        options.add_session_config_entry(key, value)
    if save_to is not None:
        options.optimized_model_filepath = str(save_to)
    if profile_to is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile_to)
    _share(ort, options, threads)
    source = model if isinstance(model, bytes) else str(model)
    try:
        try:
            return ort.InferenceSession(source, options, providers=names, enable_fallback=0)
        except RuntimeError as error:
            if "using a global thread pool" not in str(error):
                raise
            options.intra_op_num_threads = 0
            options.use_per_session_threads = False  # somebody else's pool: whatever its size, ONNX Runtime insists
            return ort.InferenceSession(source, options, providers=names, enable_fallback=0)
    except Exception as error:  # ONNX Runtime's own classes derive from Exception directly
        origin = str(model) if isinstance(model, Path) else "the model in memory"
        raise ModelError(f"ONNX Runtime cannot load {origin}: {reason(error)}") from error


def _entries(save_to: Path | None, folder: Path | None, lasting: bool) -> dict[str, str]:
    """The session configuration entries of `open_session`."""
    # Weights stay out of the arena: they never come back to it, and its blocks are powers of two.
    entries = {"session.use_device_allocator_for_initializers": "1"}
    if lasting:
        entries["session.use_env_allocators"] = "1"
    if save_to is not None:
        entries["session.optimized_model_external_initializers_file_name"] = WEIGHTS_FILE
        entries["session.optimized_model_external_initializers_min_size_in_bytes"] = "1024"
    if folder is not None:
        entries["session.model_external_initializers_file_folder_path"] = f"{folder}{os.sep}"
    return entries


def reason(error: BaseException) -> str:
    """What ONNX Runtime says, without prefixes and source positions, with the operator that failed: one line."""
    text = " ".join(str(error).split())
    running = re.search(r"while running (\S+) node\.", text)
    for marker in ("Status Message: ", "[ONNXRuntimeError] : "):
        _, found, rest = text.rpartition(marker)
        if found and rest:
            text = rest
    if text.startswith("/"):  # where in its own sources it found out
        text = text.split(") ", 1)[-1]
    return f"operator {running[1]}: {text}" if running else text


def _share(ort: Any, options: Any, threads: int | None) -> None:
    """Make the shared pool and arena where they are still missing, and have this session use them."""
    global _pool_threads, _arena_made
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise InvalidInput(f"threads must be a positive integer or None, got {threads!r}")
    if threads is not None and threads > (most := THREADS_PER_CORE_MAX * default_threads()):
        raise InvalidInput(f"threads={threads}: more than {most} would only take the processor from each other here")
    with _lock:
        if not _arena_made:
            place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
            ort.create_and_register_allocator(place, None)
            _arena_made = True
        if _pool_threads is None and threads == 1:
            options.intra_op_num_threads = 1
            return
        if _pool_threads is None:
            _pool_threads = _make_pool(ort, threads or default_threads())
        if threads is not None and threads != _pool_threads:
            raise InvalidInput(
                f"threads={threads}, but the thread pool of this process already has {_pool_threads}; ONNX Runtime "
                "cannot change it: give the same number everywhere, or none"
            )
        options.use_per_session_threads = False


def _make_pool(ort: Any, threads: int) -> int:
    """Make the pool, unless somebody else in this process already did; theirs is then used, whatever its size."""
    try:
        ort.set_global_thread_pool_sizes(threads, 1)
    except Exception as error:
        if "already been created" not in str(error):
            raise ModelError(f"ONNX Runtime's shared thread pool cannot be made: {reason(error)}") from error
    return threads
