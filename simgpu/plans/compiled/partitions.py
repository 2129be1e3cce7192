"""Asks PyTorch's partitioner how it splits a traced step into forward and backward, for choices of what runs again."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomKnapsackSolver, CustomPartitionerFn
from torch.utils._ordered_set import OrderedSet

from simgpu.planning.highs import without_output
from simgpu.recorder.autocast import replaced
from simgpu.torch.graphs import GraphOperator, answered, asking, compiling, operators, unmark
from simgpu.torch.types import tensor_type


class Split(NamedTuple):
    """The graphs of forward and backward. again: names of the nodes that both of them run, views included."""

    forward: fx.GraphModule
    backward: fx.GraphModule

    @property
    def given(self) -> tuple[str, ...]:
        """The nodes whose results backward is given: what forward saves, and gradients of its results (tangents)."""
        return tuple(node.name for node in self.backward.graph.nodes if node.op == "placeholder")

    @property
    def saved(self) -> tuple[str, ...]:
        """The nodes whose results forward saves, inputs of the model included."""
        return tuple(name for name in self.given if not name.startswith("tangents"))

    @property
    def saved_types(self) -> list[tuple[str, int]]:
        """The number format and shape of each saved tensor, and its size in bytes, in the order of saving."""
        values = {node.name: node.meta["val"] for node in self.backward.graph.nodes if node.op == "placeholder"}
        tensors = [values[name] for name in self.saved]
        return [
            (tensor_type(str(each.dtype).removeprefix("torch."), each.shape), each.numel() * each.element_size())
            for each in tensors
        ]

    @property
    def again(self) -> tuple[str, ...]:
        """The nodes that run in forward and again in backward, in backward's order."""
        first = {node.name for node in self.forward.graph.nodes if node.op == "call_function"}
        return tuple(
            node.name for node in self.backward.graph.nodes if node.op == "call_function" and node.name in first
        )


class Query(CustomKnapsackSolver):
    """Answers with the nodes of some names, and notes the partitioner's question."""

    def __init__(self, again: Collection[str]) -> None:
        self.again = again
        self.known: dict[str, GraphOperator] = {}
        self.forward: frozenset[str] = frozenset()

    def __call__(
        self, memory: list[float], joint_graph: fx.Graph, max_memory: float, node_info: Any, banned: Sequence[fx.Node]
    ) -> tuple[list[int], list[int]]:
        self.forward = frozenset(node.name for node in joint_graph.nodes if node_info.is_required_fw(node))
        self.known = operators(joint_graph.nodes)
        return answered(joint_graph, node_info, banned, self.again)

    def uuid(self) -> None:
        """None: what depends on it is not cached."""
        return


class _Cuts:
    """PyTorch's minimum cuts of one graph. Those before its partitioner asks a solver are the same each time."""

    def __init__(self) -> None:
        self._own = partitioners.solve_min_cut
        self._known: dict[str, tuple[list[str], list[str]]] = {}

    def __call__(
        self, joint_graph: fx.Graph, node_info: Any, options: Any, dont_ban: Any = None
    ) -> tuple[list[fx.Node], OrderedSet[fx.Node]]:
        if dont_ban is not None:
            answer: tuple[list[fx.Node], OrderedSet[fx.Node]] = self._own(joint_graph, node_info, options, dont_ban)
            return answer
        if repr(options) not in self._known:
            saved, banned = self._own(joint_graph, node_info, options)
            self._known[repr(options)] = [node.name for node in saved], [node.name for node in banned]
        nodes = {node.name: node for node in joint_graph.nodes}
        first, second = self._known[repr(options)]
        return [nodes[name] for name in first], OrderedSet(nodes[name] for name in second)


class Joint(CustomPartitionerFn):
    """Notes the graph that TorchInductor gives to its partitioner, and splits it as PyTorch does without a budget."""

    def __init__(self) -> None:
        self._graph: fx.GraphModule | None = None
        self._inputs: Sequence[object] = ()
        self._settings: Mapping[str, Any] = {}
        self._cuts = _Cuts()
        self.count = 0

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        self._graph, self._inputs, self._settings = gm, joint_inputs, kwargs
        self._cuts = _Cuts()
        self.count += 1
        return self._split()

    def uuid(self) -> None:
        """None: what depends on it is not cached."""
        return

    @contextmanager
    def settings(self) -> Iterator[None]:
        """A context in which TorchInductor gives its graph to this partitioner."""
        with compiling(activation_memory_budget=1.0), inductor_config.patch(custom_partitioner_fn=self):
            yield

    @property
    def graph(self) -> fx.GraphModule:
        """The graph of forward and backward."""
        assert self._graph is not None
        return self._graph

    def usual(self) -> Split:
        """The split without a budget."""
        with functorch_config.patch(activation_memory_budget=1.0):
            return Split(*self._split())

    def split(self, again: Collection[str]) -> tuple[Split, Query]:
        """The split in which these nodes run again, and the question of PyTorch's partitioner."""
        query = Query(again)
        with asking(query):
            return Split(*self._split()), query

    def by_solver(self, solver: str, budget: float) -> Split:
        """The split by one of PyTorch's own solvers, such as ``dp``.

        budget: the part of what is saved without a budget that may be saved, from 0 to 1.
        """
        settings = {"activation_memory_budget": budget, "activation_memory_budget_solver": solver}
        # The solver `ilp` is HiGHS.
        with without_output(), functorch_config.patch(**settings):
            return Split(*self._split())

    def _split(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        given = {"compiler": "inductor", **self._settings}
        with replaced(partitioners, "solve_min_cut", self._cuts):
            forward, backward = partitioners.min_cut_rematerialization_partition(self.graph, self._inputs, **given)
        unmark(self.graph.graph)
        return forward, backward
