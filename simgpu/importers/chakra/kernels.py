"""Selects and orders the GPU kernels of a Chakra trace, and determines their operators, phases and layers.

- Kernels are compute nodes of the GPU: COMP_NODE with ``is_cpu_op`` false. If no compute node has ``is_cpu_op``, all
  compute nodes are kernels.
- Copies over the link and memory fills ("Memcpy HtoD", "Memset", MEM_LOAD_NODE, MEM_STORE_NODE) are dropped, because
  memory policies decide what is copied. A copy within the device counts as a kernel.
- Communication is refused: it ends when other GPUs are ready, which a trace of one GPU cannot replay.
- The operator is the innermost host node around a kernel, by ctrl_deps; if there is none, the kernel itself.
- Phase: optimizer inside an Optimizer annotation; backward inside a node of autograd's engine, or with a forward
  thread or parent; else by name (FWD, BWD_IG, BWD_WG and similar); forward by default.
- Order: after all dependencies, by recorded start, then by id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from simgpu.errors import InputError, Problem
from simgpu.importers.chakra.nodes import ChakraNode, Document
from simgpu.importers.pytorch_operators import innermost_purity, is_autograd_node, is_optimizer
from simgpu.trace.model import Phase

_TRANSFER = re.compile(r"Memset |Memcpy (?!DtoD)")
_TRANSFER_TYPES = ("MEM_LOAD_NODE", "MEM_STORE_NODE")
#: Prefixes of host nodes that are not operators.
_MARKS = ("ProfilerStep#", "Optimizer.", "[pytorch|")
#: Names that chakra_converter gives to the layers of a text workload.
_LAYER = re.compile(r"COMP_NODE_(.+)_(FWD|BWD_IG|BWD_WG)")
#: Words for phases in the names of trace generators.
_WORDS = (
    (Phase.OPTIMIZER, re.compile(r"(?i)(?<![a-z])(optimizer|opt|adamw?|sgd)(?![a-z])")),
    (Phase.BACKWARD, re.compile(r"(?i)(?<![a-z])(bwd|backward|bprop)(?![a-z])|Backward0?\b")),
    (Phase.FORWARD, re.compile(r"(?i)(?<![a-z])(fwd|forward|fprop)(?![a-z])")),
)


class Kernels:
    """The kernels of a document in order, and its nodes by id.

    Raises `InputError` if there is communication, if there are no kernels, or if durations are missing.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.by_id = {node.id: node for node in document.nodes}
        self._refuse_communication()
        compute = [node for node in document.nodes if node.type == "COMP_NODE"]
        #: Whether compute nodes record where they ran.
        self.is_known = any("is_cpu_op" in node.attributes for node in compute)
        result = [node for node in compute if not self.is_host(node) and not _TRANSFER.match(node.name)]
        if not result:
            raise self._nothing()
        self._require_durations(result)
        starts = [node.start_ns for node in result]
        #: Whether start times order the nodes: all but the first must have one.
        self.has_starts = len(result) > 1 and starts.count(0) <= 1
        chosen = {node.id for node in result}
        self.nodes = [node for node in ordered(document, chosen, self.has_starts) if node.id in chosen]
        self.transfers = [node for node in document.nodes if self.is_transfer(node)]

    def is_host(self, node: ChakraNode) -> bool:
        """Whether a compute node runs on the host; without ``is_cpu_op``, true only if other nodes have it."""
        return bool(node.attributes.get("is_cpu_op", self.is_known))

    def is_transfer(self, node: ChakraNode) -> bool:
        """Whether a node copies over the link or fills memory."""
        is_gpu = node.type == "COMP_NODE" and not self.is_host(node)
        return node.type in _TRANSFER_TYPES or (is_gpu and _TRANSFER.match(node.name) is not None)

    def around(self, node: ChakraNode) -> Iterator[ChakraNode]:
        """Yields the host nodes around a node, innermost first."""
        seen = {node.id}
        while parents := [number for number in node.ctrl_deps if number in self.by_id and number not in seen]:
            node = self.by_id[parents[0]]
            seen.add(node.id)
            yield node

    def operator(self, node: ChakraNode) -> ChakraNode:
        """The operator that launched a kernel, or the kernel itself."""
        return next((outer for outer in self.around(node) if not outer.name.startswith(_MARKS)), node)

    def pure(self, node: ChakraNode) -> bool | None:
        """The purity of the innermost operator with known purity; None if unknown."""
        return innermost_purity(outer.name for outer in (node, *self.around(node)))

    def layer(self, node: ChakraNode) -> str | None:
        """The layer in a node's name; None if there is none."""
        match = _LAYER.fullmatch(node.name)
        return match[1] if match else None

    @cached_property
    def phases(self) -> dict[int, Phase | None]:
        """The phase of each kernel by its id; None if unknown."""
        return {node.id: self._phase(node) for node in self.nodes}

    def _phase(self, node: ChakraNode) -> Phase | None:
        around = [node, *self.around(node)]
        if any(is_optimizer(outer.name) for outer in around):
            return Phase.OPTIMIZER
        if any(is_autograd_node(outer.name) for outer in around):
            return Phase.BACKWARD
        if any(outer.attributes.get(name) for outer in around for name in ("fw_parent", "fw_tid")):
            return Phase.BACKWARD
        if len(around) > 1:
            return Phase.FORWARD
        return next((phase for phase, word in _WORDS if word.search(node.name.replace("_", " "))), None)

    def _refuse_communication(self) -> None:
        result = [node for node in self.document.nodes if node.type.startswith("COMM_")]
        if result:
            first = result[0]
            what = f"{first.type} {first.label} is communication ({len(result)} such nodes); a trace has one GPU"
            raise InputError.single(self.document.path, first.place, what, "import an iteration that ran on one GPU")

    def _nothing(self) -> InputError:
        counts = Counter(node.type for node in self.document.nodes)
        listing = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "no nodes"
        what = f"contains no compute nodes of a GPU (COMP_NODE with is_cpu_op false); it has {listing}"
        remedy = "link the host's trace with the profile of the GPU (chakra_trace_link), then convert it"
        return InputError.single(self.document.path, "", what, remedy)

    def _require_durations(self, kernels: list[ChakraNode]) -> None:
        """Raise `InputError` if all kernels have 0 us, or if a kernel with operations (num_ops) has 0 us."""
        missing = [node for node in kernels if not node.duration_ns and node.attributes.get("num_ops")]
        if all(not node.duration_ns for node in kernels):
            missing = kernels
        if missing:
            what = "has no duration; simgpu replays recorded times"
            remedy = "use a trace of a real run, with duration_micros"
            file = str(self.document.path)
            raise InputError([Problem(file, node.place, f"node {node.label} {what}", remedy) for node in missing])


def ordered(document: Document, kernels: Iterable[int], by_start: bool) -> list[ChakraNode]:
    """Returns all nodes, each after its dependencies.

    kernels: ids of the nodes ordered by start (if `by_start`), then id; the other nodes are as early as possible.
    A missing parent is ignored, because converters drop nodes without work. Raises `InputError` for data dependencies
    on missing nodes, and for cycles.
    """
    import networkx as nx

    nodes = {node.id: node for node in document.nodes}
    timed = set(kernels)

    def key(number: int) -> tuple[bool, int, int]:
        is_kernel = number in timed
        return is_kernel, nodes[number].start_ns if is_kernel and by_start else 0, number

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(_dependencies(document, nodes))
    try:
        return [nodes[number] for number in nx.lexicographical_topological_sort(graph, key)]
    except nx.NetworkXUnfeasible:
        cycle = [edge[1] for edge in reversed(nx.find_cycle(graph))]
    first = cycle.index(min(cycle))
    path = " -> ".join(nodes[number].label for number in (*cycle[first:], *cycle[:first], cycle[first]))
    what = f"a cycle, each node depends on the next: {path}"
    raise InputError.single(document.path, nodes[cycle[first]].place, what, "convert it again")


def _dependencies(document: Document, nodes: Mapping[int, ChakraNode]) -> list[tuple[int, int]]:
    """Pairs of ids: a node, and a node that depends on it."""
    pairs, problems = [], []
    for node in document.nodes:
        if missing := [number for number in node.data_deps if number not in nodes]:
            what = f"node {node.label} depends on node {missing[0]}, which is not in the file: it seems cut off"
            problems.append(Problem(str(document.path), node.place, what, "copy or convert it again"))
        pairs += [(number, node.id) for number in (*node.ctrl_deps, *node.data_deps) if number in nodes]
    if problems:
        raise InputError(problems)
    return pairs
