"""Nodes recorded once and replayed: CUDA graphs per node and number of rows, on tensors at fixed addresses.

Owns: `Frames`: which recordings there are, on which tensors they work, whose values lie there, and when values must
move; `Recorder`, and `CudaRecorder`, which records with torch's CUDA graphs.
Must not know: the scheduler, how rows are gathered, merged and handed out.

A *frame* belongs to one signature and number of rows: a tensor per value that crosses a cut, at an address that never
changes, and per node a recording that reads and writes these. The sub-batch whose values lie there owns the frame; it
runs from node to node without a copy. Where another one needs the frame, the owner's values move out, to memory of
their own; and a sub-batch that comes to a frame (it was parked, merged or thinned out) copies in what is alive. So rows
are copied when they are parked for somebody of the same shape, and when they merge, and never else.

Every frame takes memory of its own for its recordings, and a signature may hold what a single request gives (a number
that its whole batch shares). So rows of a signature are recorded when such rows come a second time.

What cannot be recorded is run as it is, from then on: `Frames.run` says so by None. `Frames` never calls torch.cuda
itself: with a recorder that replays by running again, all of this runs on a CPU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor

from lazybatch.executors.torch.piece import TorchPiece
from lazybatch.executors.torch.rows import TorchBatch

FRAMES_MAX = 64
"""Frames that are kept; the one that was used longest ago goes first."""
SIGNATURES_MAX = 1024
"""Signatures that are remembered as seen; the one that came first goes first."""
WARM_UP = 2
"""Runs before a recording: libraries choose their kernels and take their work space then."""

Replay = Callable[[], object]


class Recorder(Protocol):
    """Makes recordings."""

    def pool(self) -> Any:
        """Where recordings of one frame take memory; what one of them is done with serves the next."""

    def record(self, call: Callable[[], Sequence[Any]], pool: Any) -> tuple[Sequence[Any], Replay]:
        """What a call returned, and how to do it again: the same reads and writes, at the same addresses.

        The values are right only after a replay. Raises what cannot be recorded.
        """


class CudaRecorder:
    """Records CUDA graphs in one stream, each in its frame's pool of memory."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def pool(self) -> Any:
        """See `Recorder.pool`."""
        return torch.cuda.graph_pool_handle()

    def record(self, call: Callable[[], Sequence[Any]], pool: Any) -> tuple[Sequence[Any], Replay]:
        """See `Recorder.record`."""
        for _ in range(WARM_UP):
            call()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                made = call()
        finally:
            self._stream.synchronize()
        return made, graph.replay


@dataclass(slots=True)
class Frame:
    """The tensors and recordings of one signature and number of rows.

    fixed: value -> its tensor, or what it is where it is no tensor. replays: per node; None where not recorded.
    pool: memory for its recordings, and for no others.

    What a node takes for itself while it runs may be where later recordings of the pool put their results, and every
    replay writes over it. Other frames' values would be lost so, as they may be parked while this node runs. Within the
    frame none is: its values are those of one sub-batch, which runs forward, so a result is in danger only of nodes
    that run after it was made and were recorded before. These were recorded with all values they find alive in
    ``fixed``, this one among them: it has a place since then, and is copied there.
    """

    replays: list[Replay | None]
    pool: Any
    fixed: dict[str, Any] = field(default_factory=dict)
    owner: TorchBatch | None = None

    def holds(self, value: Any) -> bool:
        """Whether a value lies in this frame."""
        if not isinstance(value, Tensor):
            return False
        place = value.untyped_storage().data_ptr()
        return any(isinstance(one, Tensor) and one.untyped_storage().data_ptr() == place for one in self.fixed.values())

    def vacate(self) -> None:
        """The owner's values move out."""
        owner, self.owner = self.owner, None
        if owner is not None:
            for name, value in owner.values.items():
                if self.holds(value):
                    owner.values[name] = value.clone()


class Frames:
    """All frames of one executor. unrecorded: by node, why it is run as it is."""

    def __init__(self, pieces: Sequence[TorchPiece], recorder: Recorder) -> None:
        self.unrecorded: dict[str, str] = {}
        self._pieces = pieces
        self._recorder = recorder
        self._frames: OrderedDict[tuple[Hashable, int], Frame] = OrderedDict()
        self._first: dict[Hashable, ref[TorchBatch]] = {}

    def run(self, state: TorchBatch, node: int) -> Sequence[Any] | None:
        """Run a node on a sub-batch by its recording, made now if need be. None: it is to be run as it is.

        Raises `ExecutionError` where the node itself fails.
        """
        piece = self._pieces[node]
        if piece.name in self.unrecorded:
            return None
        frame = self._frame(state)
        if frame is None:
            return None
        if not self._claim(frame, state):
            self.unrecorded[piece.name] = "its inputs do not have one shape for each number of rows"
            return None
        if frame.replays[node] is None and not self._record(frame, state, node):
            return None
        replay = frame.replays[node]
        assert replay is not None, "it was recorded"
        replay()
        return [frame.fixed[name] for name in piece.outputs]

    def clear(self) -> None:
        """Let go of all recordings and their memory."""
        self._frames.clear()
        self._first.clear()

    def _frame(self, state: TorchBatch) -> Frame | None:
        """The sub-batch's frame; None for the first one of its signature, which may be the last."""
        key = (state.signature, state.rows)
        frame = self._frames.get(key)
        if frame is not None:
            self._frames.move_to_end(key)
        elif not self._is_first(state):
            frame = self._frames[key] = Frame([None] * len(self._pieces), self._recorder.pool())
            if len(self._frames) > FRAMES_MAX:
                _, old = self._frames.popitem(last=False)
                old.vacate()
        return frame

    def _is_first(self, state: TorchBatch) -> bool:
        first = self._first.setdefault(state.signature, ref(state))
        if len(self._first) > SIGNATURES_MAX:
            del self._first[next(iter(self._first))]
        return first() is state

    def _claim(self, frame: Frame, state: TorchBatch) -> bool:
        """Have the sub-batch's values lie in the frame; False where one is of another shape than there."""
        if frame.owner is not state:
            frame.vacate()
            frame.owner = state
        for name, value in state.values.items():
            place = frame.fixed.get(name)
            if place is value:
                continue
            if not isinstance(value, Tensor):
                if frame.fixed.setdefault(name, value) != value:
                    return False
                continue
            if place is None:
                place = frame.fixed[name] = value.clone()
            elif place.shape == value.shape:
                with torch.inference_mode():
                    place.copy_(value)
            else:
                return False
            state.values[name] = place
        return True

    def _record(self, frame: Frame, state: TorchBatch, node: int) -> bool:
        """Record a node on the frame's tensors; False where that cannot be."""
        piece = self._pieces[node]
        given: Mapping[str, Any] = dict(state.values)

        def call() -> Sequence[Any]:
            made = piece.run(given)
            for name, value in zip(piece.outputs, made, strict=True):
                place = frame.fixed.get(name)
                if isinstance(place, Tensor):  # a later node was recorded first, by a sub-batch that merged into here
                    with torch.inference_mode():
                        place.copy_(value)
            return made

        piece.run(given)  # what fails by itself fails here, as it would unrecorded
        try:
            made, replay = self._recorder.record(call, frame.pool)
        except Exception as error:
            self.unrecorded[piece.name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            return False
        for name, value in zip(piece.outputs, made, strict=True):
            frame.fixed.setdefault(name, value)
        frame.replays[node] = replay
        return True
