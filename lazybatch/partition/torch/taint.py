"""What probes might not trigger: torch operators that tie the rows of a batch together only for some values.

Owns: what operators are called, the spread of two marks through a flat graph, *data* (depends on values of batched
inputs) and *size* (values computed from the number of rows), and the sentences that refuse joining for where they
arrive.
Must not know: how a graph is run or cut.

torch.export has already proved that no branch of Python was taken by the number of rows: it refuses such a module.
Left to look at are numbers computed from it that reach operators.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from lazybatch.partition.proof.inner import Walk
from lazybatch.partition.proof.ports import Port
from lazybatch.partition.proof.rows import Candidate

ATEN = torch.ops.aten
NORMALISES_BY_BATCH = frozenset(
    [
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_batch_norm_with_update",
        "_batch_norm_with_update_functional",
        "batch_norm",
        "cudnn_batch_norm",
    ]
)
PICKING = frozenset(
    [
        "gather",
        "index",
        "index_select",
        "take",
        "take_along_dim",
        "scatter",
        "scatter_add",
        "scatter_reduce",
        "index_put",
        "index_add",
        "index_copy",
        "index_reduce",
        "index_fill",
        "_unsafe_index",
        "_unsafe_index_put",
    ]
)
STEERING = frozenset(
    [
        "eq",
        "ne",
        "gt",
        "ge",
        "lt",
        "le",
        "minimum",
        "maximum",
        "clamp",
        "clamp_min",
        "clamp_max",
        "fmod",
        "remainder",
        "div",
        "floor_divide",
        "floor",
        "ceil",
        "round",
        "trunc",
        "amax",
        "amin",
        "max",
        "min",
        "argmax",
        "argmin",
        "topk",
        "sort",
        "argsort",
        "bucketize",
        "searchsorted",
        "heaviside",
        "sign",
        "isin",
        "logical_not",
    ]
)
"""Operators by which a number of rows can steer in steps that a few batch sizes need not show."""
WALKING = dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "_cummax_helper"), 1)
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


class Graph(Protocol):
    """What of a flat graph is needed here."""

    inputs: tuple[Port, ...]
    values: dict[str, fx.Node]
    names: dict[fx.Node, str]

    def operators(self) -> list[fx.Node]:
        """The operators, in order."""


@dataclass(slots=True)
class Marks:
    """Where the marks arrived."""

    data: set[str] = field(default_factory=set)
    size: set[str] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)
    scales: list[str] = field(default_factory=list)
    picks: bool = False


def operator_of(node: fx.Node) -> str:
    """An operator's name without namespace and overload."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target._schema.name).split("::")[-1]
    name = getattr(target, "name", None)
    return str(name() if callable(name) else getattr(target, "__name__", target))


def spread(graph: Graph, candidate: Candidate) -> Marks:
    """Follow the marks from the inputs through the graph. candidate: the batched inputs and their axes."""
    marks = Marks(data=set(candidate))
    walker = _Walker(graph, marks, _row_symbols(graph, candidate))
    for node in graph.operators():
        walker.visit(node)
    marks.refusals = list(dict.fromkeys(marks.refusals))
    return marks


def _row_symbols(graph: Graph, candidate: Candidate) -> frozenset[Any]:
    """The symbols that stand for the number of rows."""
    found: set[Any] = set()
    for name, axis in candidate.items():
        dim = graph.values[name].meta["val"].shape[axis]
        if isinstance(dim, torch.SymInt):
            found |= dim.node.expr.free_symbols
    return frozenset(found)


class _Walker:
    def __init__(self, graph: Graph, marks: Marks, rows: frozenset[Any]) -> None:
        self._names = graph.names
        self._marks = marks
        self._rows = rows

    def visit(self, node: fx.Node) -> None:
        name = self._names[node]
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat | int | float | bool):
            self._scalar(node, name, value)
            return
        read = [self._names[used] for used in node.all_input_nodes if used in self._names]
        data = any(used in self._marks.data for used in read)
        size = self._counts(node)
        self._judge(node, name, data, read)
        if data:
            self._marks.data.add(name)
        if size:
            self._marks.size.add(name)

    def _scalar(self, node: fx.Node, name: str, value: Any) -> None:
        """A Python number of the graph: a size, something computed from sizes, or an item of a tensor."""
        if self._data_dependent(value):
            self._marks.data.add(name)
            if operator_of(node) != "sym_size":
                self._refuse(node, "takes a number out of the values of the batch, one for all rows")
            return
        if not isinstance(value, torch.SymInt | torch.SymBool | torch.SymFloat):
            return
        expression = value.node.expr
        if self._rows.isdisjoint(expression.free_symbols):
            return
        self._marks.size.add(name)
        doubled = {symbol: 2 * symbol for symbol in self._rows & expression.free_symbols}
        if isinstance(value, torch.SymBool):
            if any(operator_of(user) != "_assert_scalar" for user in node.users):
                self._refuse(node, "compares the number of rows in the batch")
        elif (expression.subs(doubled) - 2 * expression).simplify() != 0:
            self._refuse(node, "steers by the number of rows in the batch")

    def _counts(self, node: fx.Node) -> bool:
        """Whether a value computed from the number of rows is an operand of the operator, not only one of its sizes."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload):
            return any(self._names.get(used) in self._marks.size for used in node.all_input_nodes)
        arguments = target._schema.arguments
        given = [(argument, node.args[k]) for k, argument in enumerate(arguments) if k < len(node.args)]
        given += [(argument, node.kwargs[argument.name]) for argument in arguments if argument.name in node.kwargs]
        operands = [value for kind, value in given if "int" not in str(kind.type)]
        return any(
            self._names.get(used) in self._marks.size
            for used in pytree.tree_leaves(operands)
            if isinstance(used, fx.Node)
        )

    def _data_dependent(self, value: Any) -> bool:
        return bool(free_unbacked_symbols(value))

    def _refuse(self, node: fx.Node, why: str) -> None:
        self._marks.refusals.append(f"operator {operator_of(node)} (makes {self._names[node]!r}) {why}")

    def _judge(self, node: fx.Node, name: str, data: bool, read: list[str]) -> None:
        operator = operator_of(node)
        if self._draws(node):
            self._refuse(node, "draws random numbers, so an answer depends on the draw and not on the row alone")
        elif isinstance(node.target, torch._ops.HigherOrderOperator) and data:
            self._refuse(node, "branches or loops in a graph of its own, so all rows may take one path")
        elif operator in NORMALISES_BY_BATCH and data and self._trains(node):
            self._refuse(node, "normalises by the mean of the whole batch (training mode)")
        elif "choose_qparams" in operator and data:
            self._marks.scales.append(
                f"operator {operator} (makes {name!r}) takes its scale from the whole tensor, so a row's answer "
                "depends on its batch mates"
            )
        elif data and any(self._data_dependent(value) for value in _tensors(node.meta.get("val"))):
            self._refuse(node, "returns as many values as it finds in the whole batch, not one share per row")
        if operator in STEERING and any(used in self._marks.size - self._marks.data for used in read):
            self._refuse(node, "steers by the number of rows in the batch")
        first = self._names.get(node.args[0]) if node.args and isinstance(node.args[0], fx.Node) else None
        if operator in PICKING and first in self._marks.data and not self._marks.data.isdisjoint(set(read) - {first}):
            self._marks.picks = True

    def _draws(self, node: fx.Node) -> bool:
        """Whether an operator is random as it is called here: in evaluation dropout does nothing."""
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded not in target.tags:
            return False
        flags = [argument(node, key) for key in ("train", "training") if takes(node, key)]
        chances = [argument(node, key) for key in ("dropout_p", "dropout", "p") if takes(node, key)]
        if flags:
            return bool(flags[0]) and (not chances or bool(chances[0]))
        return not chances or bool(chances[0])

    def _trains(self, node: fx.Node) -> bool:
        return not takes(node, "training") or bool(argument(node, "training"))


def takes(node: fx.Node, name: str) -> bool:
    """Whether an operator has an argument of this name."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and any(a.name == name for a in target._schema.arguments)


def argument(node: fx.Node, name: str) -> Any:
    """What an operator is given for an argument, its default where nothing."""
    if name in node.kwargs:
        return node.kwargs[name]
    target: Any = node.target
    for k, known in enumerate(target._schema.arguments):
        if known.name == name:
            return node.args[k] if k < len(node.args) else known.default_value
    return None


def walks(graph: Graph) -> list[Walk]:
    """Operators that carry a state along an axis: running sums, and recurrent layers along time."""
    found = []
    for node in graph.operators():
        operator = operator_of(node)
        over = node.args[0] if node.args else None
        if not isinstance(over, fx.Node) or over not in graph.names:
            continue
        if operator in WALKING:
            found.append(Walk(operator, graph.names[over], int(argument(node, "dim"))))
        elif operator in RECURRENT and takes(node, "batch_first"):
            found.append(Walk(operator, graph.names[over], 1 if argument(node, "batch_first") else 0))
    return found


def _tensors(value: Any) -> Iterable[Any]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
