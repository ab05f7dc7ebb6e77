"""An exported program as one flat graph of named values, ready to be watched, cut and run.

Owns: `Flat`: the names of values, weights held once, and what torch.export leaves behind that is not computation.
Must not know: what operators mean for rows, cuts.

Every value has a name: inputs and outputs those that callers use, everything between the one torch gave it. An output
that is an input, a weight, or another output as well becomes a copy of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from lazybatch.errors import ExecutionError, ModelError
from lazybatch.partition.liveness import Liveness, Step
from lazybatch.partition.proof.inner import Turn, Walk
from lazybatch.partition.proof.ports import Port, one_line
from lazybatch.partition.proof.probe import Runner
from lazybatch.partition.proof.rows import Candidate, Feeds
from lazybatch.partition.proof.traits import Outcome
from lazybatch.partition.tensors import to_array
from lazybatch.partition.torch import taint
from lazybatch.partition.torch.export import Refused, dims_of, export, functional
from lazybatch.partition.torch.source import Source, answer_names, numpy_name, to_tensor

ATEN = torch.ops.aten
CHECKS = frozenset({ATEN._assert_tensor_metadata.default})
"""What they assert was true when the graph was traced, and is a matter of types, not of values."""
LAYOUT_FREE: dict[Any, Any] = {ATEN.view.default: ATEN.reshape.default}
"""A view asks for a layout that its input had when it was traced; rows that were merged may lie otherwise."""


class Flat:
    """A `Traced` graph of torch operators; see the module's text.

    values: value name -> fx node, in order of computation, inputs first. dtypes: value name -> NumPy's name, None for
    what is no array (tuples of tensors). symbols: input name -> axis -> whether its size may vary.
    """

    def __init__(self, name: str, program: Any, inputs: Sequence[str]) -> None:
        self.name = name
        self.root = nn.Module()
        self.graph = fx.Graph()
        self.values: dict[str, fx.Node] = {}
        self.dtypes: dict[str, str | None] = {}
        program = functional(program)
        self._weights: dict[tuple[Any, ...], str] = {}
        self._copy(program, tuple(inputs))
        self.names = {node: value for value, node in self.values.items()}
        self.inputs = tuple(self._port(self.values[label]) for label in inputs)
        self.liveness = Liveness(inputs, self._steps(), [port.name for port in self.outputs])
        self.root.eval()

    def _copy(self, program: Any, inputs: tuple[str, ...]) -> None:
        """Build the graph from the program's, with weights instead of the inputs that torch lifts them to."""
        kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        labels = iter(inputs)
        returned = next(node for node in program.graph.nodes if node.op == "output").args[0]
        answers = [
            node
            for node, spec in zip(returned, program.graph_signature.output_specs, strict=True)
            if self._is_answer(spec)
        ]
        shown = [node.meta["val"] if isinstance(node, fx.Node) else node for node in answers]
        outputs = answer_names(pytree.tree_unflatten(shown, program.call_spec.out_spec), inputs)
        taken = {*inputs, *outputs}
        env: dict[fx.Node, fx.Node] = {}
        for node in program.graph.nodes:
            if node.op == "placeholder":
                spec = kinds[node.name]
                if spec.kind is InputKind.USER_INPUT:
                    label = next(labels)
                    env[node] = self._name(label, self.graph.placeholder(f"input_{len(self.values)}"), node.meta)
                elif node.users:
                    env[node] = self._weight(self._tensor_of(program, spec))
            elif node.op == "get_attr":
                env[node] = self._attribute(node.target, getattr(program.graph_module, node.target))
            elif node.op == "call_function" and node.target not in CHECKS:
                made = self.graph.node_copy(node, lambda used: env[used])
                made.target = LAYOUT_FREE.get(made.target, made.target)
                label = node.name
                while label in taken or label in self.values:
                    label += "_"
                env[node] = self._name(label, made, node.meta)
        numbers = [value for value in shown if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)]
        if numbers or not outputs:
            raise ModelError(f"module {self.name!r} returns {'a number' if numbers else 'no tensor'}, not only tensors")
        self._return(outputs, [env[node] for node in answers if isinstance(node, fx.Node)])
        self.graph.eliminate_dead_code()
        kept = set(self.graph.nodes)
        self.values = {label: node for label, node in self.values.items() if node in kept}

    def _name(self, label: str, node: fx.Node, meta: Mapping[str, Any]) -> fx.Node:
        node.meta = dict(meta)
        self.values[label] = node
        self.dtypes[label] = _dtype(meta.get("val"))
        return node

    def _tensor_of(self, program: Any, spec: Any) -> Tensor:
        held = {InputKind.PARAMETER: program.state_dict, InputKind.CONSTANT_TENSOR: program.constants}
        if spec.kind is InputKind.BUFFER:
            source = program.state_dict if spec.target in program.state_dict else program.constants
        elif spec.kind in held:
            source = held[spec.kind]
        else:
            raise ModelError(f"module {self.name!r}: {spec.target or spec.arg.name} is no tensor and cannot be served")
        tensor: Tensor = source[spec.target].detach()
        return tensor

    def _weight(self, tensor: Tensor) -> fx.Node:
        """A weight as an attribute, held once however many names it has."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
        if key not in self._weights or not tensor.numel():
            self._weights[key] = f"weight_{len(self._weights)}"
            self.root.register_buffer(self._weights[key], tensor)
        node = self.graph.get_attr(self._weights[key])
        node.meta = {"val": tensor}
        return node

    def _attribute(self, target: str, value: Any) -> fx.Node:
        """A branch or loop body (a graph of its own), or a constant."""
        if isinstance(value, Tensor):
            return self._weight(value.detach())
        self.root.add_module(target, value)
        node = self.graph.get_attr(target)
        node.meta = {}
        return node

    def _is_answer(self, spec: Any) -> bool:
        """Whether something the program returns is part of the module's answer. Raises `ModelError` for effects."""
        if spec.kind is OutputKind.BUFFER_MUTATION:
            raise ModelError(
                f"module {self.name!r} writes its buffer {spec.target!r} whenever it runs, so an answer depends on "
                "earlier requests; if that is training, call eval() first"
            )
        if spec.kind not in (OutputKind.USER_OUTPUT, OutputKind.USER_INPUT_MUTATION):
            raise ModelError(f"module {self.name!r} has an effect besides its answer ({spec.kind.name.lower()})")
        return bool(spec.kind is OutputKind.USER_OUTPUT)

    def _return(self, names: Sequence[str], answers: Sequence[fx.Node]) -> None:
        """Name the outputs, and give those a copy that are something else, too."""
        ends: list[fx.Node] = []
        for name, node in zip(names, answers, strict=True):
            current = next((key for key, known in self.values.items() if known is node), None)
            if node.op != "call_function" or node in ends or current is None:
                node = self._name(name, self.graph.call_function(ATEN.clone.default, (node,)), node.meta)
            else:
                self.values = {name if key == current else key: known for key, known in self.values.items()}
                self.dtypes[name] = self.dtypes.pop(current)
            ends.append(node)
        self.graph.output(tuple(ends))
        self.outputs = tuple(self._port(node, name) for node, name in zip(ends, names, strict=True))

    def _port(self, node: fx.Node, name: str | None = None) -> Port:
        value = node.meta["val"]
        name = name or self.names[node]
        dtype = _dtype(value)
        if dtype is None:
            raise ModelError(f"module {self.name!r}: {name!r} is a {value.dtype} tensor; NumPy has no such type")
        return Port(name, dtype, dims_of(node))

    def _steps(self) -> list[Step]:
        return [
            Step(taint.operator_of(node), tuple(self.reads(node)), (self.names[node],)) for node in self.operators()
        ]

    def operators(self) -> list[fx.Node]:
        """The operators, in order: step k of the liveness is the k-th."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    def reads(self, node: fx.Node) -> list[str]:
        """Names of the values an operator reads, weights left out."""
        return [self.names[used] for used in node.all_input_nodes if used in self.names]

    def whole(self) -> fx.GraphModule:
        """All of it as one module: inputs in order, a tuple of the outputs."""
        return fx.GraphModule(self.root, self.graph)

    def watch(self, names: Sequence[str]) -> tuple[Runner, Mapping[str, str | None]]:
        """See `Traced.watch`."""
        outputs = [port.name for port in self.outputs]
        wanted = dict.fromkeys((*outputs, *names))
        types = {name: self.dtypes[name] for name in wanted}
        watched = {self.values[name]: name for name, dtype in types.items() if dtype is not None}
        module = self.whole()

        def run(feeds: Feeds) -> Outcome:
            found: Outcome = {}
            try:
                with torch.inference_mode():
                    _Watcher(module, {node.name: name for node, name in watched.items()}, found).run(
                        *self.tensors(feeds)
                    )
            except Exception as error:
                cause = error.__cause__ or error
                raise ExecutionError(one_line(cause)) from error
            return found

        return run, types

    def tensors(self, feeds: Mapping[str, Any]) -> list[Tensor]:
        """Arrays as the tensors that the graph takes, in its order, on its device."""
        values = [self.values[port.name].meta["val"] for port in self.inputs]
        return [
            to_tensor(np.asarray(feeds[port.name])).to(device=value.device, dtype=value.dtype)
            for port, value in zip(self.inputs, values, strict=True)
        ]

    def turns(self, names: Sequence[str], candidate: Candidate) -> list[Turn]:
        """None: a branch over rows is a graph of its own, which is refused whatever it hangs on."""
        return []

    def data(self, candidate: Candidate) -> set[str]:
        """See `Traced.data`."""
        return taint.spread(self, candidate).data

    def walks(self) -> list[Walk]:
        """See `Traced.walks`."""
        return taint.walks(self)

    @cached_property
    def digest(self) -> str:
        """sha256 over the graph and the bytes of its weights."""
        digest = hashlib.sha256()
        for module in (m for m in self.root.modules() if isinstance(m, fx.GraphModule)):
            digest.update(str(module.graph).encode())
        digest.update("\n".join(self.text()).encode())
        for name, tensor in self.root.named_buffers():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}".encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def text(self) -> list[str]:
        """The graph as lines that people can read, one per value."""
        return [f"{self.names.get(node, node.name)}: {node.format_node()}" for node in self.graph.nodes]


def flat_of(source: Source, axes: Mapping[str, int], rows: int | None = None, *, free: bool = True) -> Flat:
    """The graph of a module, exported for these batch axes; see `export`. The same object where it was made before.

    Raises what `export` raises, and `ModelError` for what cannot be served.
    """
    key = (tuple(sorted(axes.items())), rows, free)
    if key not in source.graphs:
        try:
            source.graphs[key] = Flat(source.name, export(source, axes, rows=rows, free=free), source.names)
        except (Refused, ModelError) as error:
            source.graphs[key] = error
    made = source.graphs[key]
    if isinstance(made, Exception):
        raise made
    flat: Flat = made
    return flat


class _Watcher(fx.Interpreter):
    """Runs a graph and keeps what some of its nodes made."""

    def __init__(self, module: fx.GraphModule, watched: Mapping[str, str], found: Outcome) -> None:
        super().__init__(module)
        self._watched, self._found = watched, found
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        """Run one node; a value that is watched is read at once."""
        value = super().run_node(n)
        name = self._watched.get(n.name)
        if name is not None:
            self._found[name] = to_array(value)
        return value


def _dtype(value: Any) -> str | None:
    """NumPy's name for what a node makes; None for what is no array."""
    if isinstance(value, Tensor):
        return None if value.layout is not torch.strided else numpy_name(value.dtype)
    if isinstance(value, bool | torch.SymBool):
        return "bool"
    if isinstance(value, int | torch.SymInt):
        return "int64"
    if isinstance(value, float | torch.SymFloat):
        return "float64"
    return None
