"""`offload_activations`: the activation offloading of torchtune and TRL, as their `OffloadActivations` does it.

Sources: pytorch/torchtune 0.7.0, torchtune/training/_activation_offloading.py, commit bd2a0fc7 of 2026-04-23; and
huggingface/trl 1.10.0.dev0, trl/models/activation_offloading.py, commit f2cd5771 of 2026-07-24, which adapted it.
Hooks of `torch.autograd.graph.saved_tensors_hooks` see every saved tensor. One copy stream serves both directions.

* Saved tensors have numbers in the order of saving; small ones, weights and those of the head count too. A tensor of
  `min_offload_size` bytes or more that is neither a parameter nor a buffer is offloaded: compute first waits for the
  offloads in the stash whose numbers are at least `max_fwd_stash_size` smaller, and drops these tensors. Then the copy
  waits for the kernels launched so far, and the tensor enters the stash, which holds its device memory.
* Backward: what is still in the stash when the first operator unpacks an offloaded tensor is used from there. When
  this operator ends, compute waits for all offloads left in the stash, and drops them.
* An operator's other tensors are fetched one after the other, and compute waits for each. The copy stream does not wait
  for compute before a copy, so a fetch starts as soon as the stream gets to it. Fetched tensors are freed in the order
  of the copy stream: when an operator with offloaded tensors ends, the stream gets an order to wait for the end of the
  one before it. So an operator's tensors are fetched while the operator before it runs, and not earlier.
* `use_streams=False`: both copies are on the compute stream, without a stash.
* `saved_again` is the difference between the two: torchtune offloads a tensor that is saved twice twice. TRL does not
  offload a tensor that begins where one in the stash does: it stays on the device until backward frees it, and then so
  does what is saved from there later. An offload of all activations may so need more memory than checkpointing. TRL
  before that commit never forgot the address of an offloaded tensor, so that what later had the same address stayed
  too; that is not modelled.

What the sources leave open, or the trace does not record, is decided here:

* The host launches work without delay, so that only streams order it. A fetched tensor has device memory from when its
  copy may begin until its operator has ended, as in the memory pool of the copy stream; PyTorch counts it from the call
  on. So during an operator its own tensors and those of the next one count here, in `max_memory_allocated` its own and
  those of the one before; and those of the first two from the last offload on, there from backward on.
* Two saved tensors begin at the same address if both cover the same block. Views of a part count as different.
* Parameters and buffers are persistent blocks other than inputs and labels, as TRL finds them by their storage.
  torchtune asks for the class of the tensor, and so offloads the transposed view of a weight that a product saves.
* Blocks that are changed in place after they were saved stay: PyTorch refuses to use such tensors.
* Outputs of backward that are views of a fetched tensor, and copies of non-contiguous ones, are not modelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.graph.passes import passes_of
from simgpu.graph.saved import Saved, backward_ends, readers, saved_tensors
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import Unpacked, WithUnpacked
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.framework import (
    framework,
    is_activation,
    moments_of_saving,
    releases_with_savers,
    saved_note,
)
from simgpu.program.eager import Eager
from simgpu.program.instructions import DATA, DEVICE, HOST, Program
from simgpu.units import format_bytes

#: The output head by TRL's list of attributes of a model, in its order; torchtune looks for the first alone.
_HEADS = ("output", "lm_head", "decoder.output", "decoder.lm_head", "final_layer_norm", "ln_f", "head")


@dataclass(frozen=True)
class OffloadActivations(Policy):
    """Offload saved tensors on a copy stream, keep the last few saved ones, and fetch one operator ahead."""

    name = "offload_activations"
    summary = (
        "torchtune's and TRL's offload of saved tensors: a bounded stash in forward, one operator ahead in backward"
    )
    source = "torchtune 0.7.0 and TRL 1.10.0.dev0, OffloadActivations"

    max_fwd_stash_size: int = parameter(5, "number of consecutive saved tensors that may hold their device memory")
    min_offload_size: int = parameter(1024, "smaller saved tensors stay on the device, bytes")
    use_streams: bool = parameter(True, "whether copies overlap with kernels, on a stream of their own")
    saved_again: Literal["resident", "offloaded"] = parameter(
        "resident",
        "what happens to a tensor that is saved again: it stays, as in TRL, or is offloaded, as in torchtune",
    )
    head: str = parameter("auto", "module whose saved tensors stay, by its path in layer tags; auto: the output head")

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for a stash below 1, a negative size, an unknown head, several compute
        streams, and for GPUs that train together."""
        self._check()
        graph, transforms = framework(context.graph, self.name)
        recorded = saved_tensors(graph)
        head = _head(graph, self.head)
        large = [
            tensor.bytes >= max(self.min_offload_size, 1)
            and is_activation(graph, tensor)
            and not _is_in(graph, tensor, head)
            for tensor in recorded.tensors
        ]
        hooks = _Hooks(graph, recorded.tensors, large, self.max_fwd_stash_size, self.saved_again == "resident")
        if self.use_streams:
            hooks.call()
        else:
            hooks.call_on_one_stream()
        writing = _Offloading(graph, hooks, self.use_streams)
        writing.write()
        returned = tuple(
            Unpacked(hooks.tensors[n].block, hooks.tensors[n].bytes, writing.read[n]) for n in hooks.offloaded
        )
        notes = (*saved_note(recorded), *_note(hooks, head))
        return writing.writer.program((*transforms, WithUnpacked(returned)), notes)

    def _check(self) -> None:
        least = {"max_fwd_stash_size": 1, "min_offload_size": 0}
        low = [(name, value) for name, value in least.items() if int(getattr(self, name)) < value]
        if low:
            raise InputError(
                Problem("", f"parameters.{name}", f"{getattr(self, name)} is too small", f"give {value} or more")
                for name, value in low
            )


def _head(graph: TaskGraph, named: str) -> str:
    """The path of the module whose saved tensors stay, empty for none."""
    layers = dict.fromkeys(graph.layers.name_of(k) for k in range(len(graph.kernels)))
    paths = {".".join(parts[:n]) for name in layers if (parts := name.split(".")) for n in range(1, len(parts) + 1)}
    if named == "auto":
        return next((name for name in _HEADS if name in paths), "")
    if named and named not in paths:
        what = f"no layer is '{named}' or lies in it"
        raise InputError.single("", "parameters.head", what, did_you_mean(named, sorted(paths)))
    return named


def _is_in(graph: TaskGraph, tensor: Saved, head: str) -> bool:
    """Whether the head saved a tensor."""
    layer = graph.layers.name_of(tensor.before)
    return bool(head) and (layer == head or layer.startswith(f"{head}."))


def _note(hooks: _Hooks, head: str) -> tuple[str, ...]:
    """What is offloaded, and what stays because it was saved before."""
    tensors = hooks.tensors
    sizes = [sum(tensors[n].bytes for n in numbers) for numbers in (hooks.offloaded, hooks.staying)]
    kept = f"; saved tensors of {head} stay" if head else ""
    note = f"{len(hooks.offloaded)} of {len(tensors)} saved tensors are offloaded, {format_bytes(sizes[0])}{kept}"
    again = f"{len(hooks.staying)} saved again stay on the device, {format_bytes(sizes[1])}"
    return (note, again) if hooks.staying else (note,)


class _Node(NamedTuple):
    """An operator of backward: its first and last kernel, and the numbers of its offloaded tensors."""

    first: int
    last: int
    numbers: tuple[int, ...]


@dataclass
class _Hooks:
    """The decisions of the hooks, in the order in which PyTorch calls them. Saved tensors are named by their numbers.

    large: by number, whether a tensor would be offloaded if it is not saved again. dropped: by number, those that leave
    the stash just before it enters. left: the kernel after which each has left the stash. fetched: those that are not
    used from the stash. flushed: by kernel, those that leave the stash when the operator ends there. staying: those
    that stay because they were saved before.
    """

    graph: TaskGraph
    tensors: tuple[Saved, ...]
    large: Sequence[bool]
    stash_size: int
    keeps_second: bool
    offloaded: list[int] = field(default_factory=list)
    staying: list[int] = field(default_factory=list)
    dropped: dict[int, list[int]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    fetched: set[int] = field(default_factory=set)
    flushed: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.entering, self.saved = moments_of_saving(self.graph, self.tensors)
        self.read = readers(self.graph, self.tensors)
        #: The last kernels of micro-batches.
        self.ended = {part.first - 1 for part in passes_of(self.graph)}
        self.nodes: tuple[_Node, ...] = ()
        #: What is in the stash, and the block behind each complete tensor that is there or stays.
        self._stash: list[int] = []
        self._known: dict[int, int | None] = {}

    def call(self) -> None:
        """The hooks with a copy stream: what is saved, taken back, and when each leaves the stash."""
        ends: dict[int, int] = {}
        for tensor, last, kernels in zip(self.tensors, backward_ends(self.graph, self.tensors), self.read, strict=True):
            ends[tensor.before] = max(ends.get(tensor.before, tensor.before), last, *kernels[-1:])
        taken: defaultdict[int, list[int]] = defaultdict(list)
        for number, tensor in enumerate(self.tensors):
            taken[tensor.before].append(number)
        ending: defaultdict[int, list[int]] = defaultdict(list)
        for first, last in ends.items():
            ending[last].append(first)
        for k in range(len(self.graph.kernels)):
            for number in self.entering[k]:
                self._pack(number, k)
            self.fetched.update(n for n in taken.get(k, ()) if n in self.dropped and n not in self._stash)
            if any(n in self.dropped for first in ending.get(k, ()) for n in taken[first]):
                self._flush(k)
            if k in self.ended:
                self._known.clear()
            for number in self.saved[k]:
                self._pack(number, k)
        nodes = (_Node(k, ends[k], tuple(n for n in taken[k] if n in self.dropped)) for k in sorted(ends))
        self.nodes = tuple(node for node in nodes if node.numbers)

    def call_on_one_stream(self) -> None:
        """The hooks without a copy stream, where nothing is stashed."""
        for k in range(len(self.graph.kernels)):
            if k in self.ended:
                self._known.clear()
            for number in (*self.entering[k], *self.saved[k]):
                if self.large[number] and not self._is_again(number):
                    self.offloaded.append(number)
                    self.left[number] = k
        self.fetched.update(self.offloaded)

    def packs(self, numbers: Iterable[int]) -> bool:
        """Whether any of these saved tensors is offloaded."""
        return any(number in self.dropped for number in numbers)

    def _pack(self, number: int, k: int) -> None:
        if not self.large[number] or self._is_again(number):
            return
        old = [other for other in self._stash if other <= number - self.stash_size]
        self._leave(old, k)
        self.dropped[number] = old
        self.offloaded.append(number)
        self._stash.append(number)

    def _flush(self, k: int) -> None:
        if self._stash:
            self.flushed[k] = list(self._stash)
            self._leave(self.flushed[k], k)

    def _leave(self, numbers: Iterable[int], k: int) -> None:
        for number in list(numbers):
            self._stash.remove(number)
            self.left[number] = k
            block = self.tensors[number].block
            if self._known.get(block) == number:
                del self._known[block]

    def _is_again(self, number: int) -> bool:
        """Whether the tensor stays because one that begins where it does is in the stash, or stays itself."""
        block = self.tensors[number].block
        if not self.keeps_second or self.tensors[number].bytes < self.graph.copy_sizes[block]:
            return False
        if block in self._known:
            self._known[block] = None
            self.staying.append(number)
            return True
        self._known[block] = number
        return False


class _Places(NamedTuple):
    """Where operators fetch, by kernel: before it and after it, and by the first kernel of the operator at whose end
    the one after the next is fetched. begins, ends: the operators that begin before, and end after a kernel."""

    before: defaultdict[int, list[_Node]]
    after: defaultdict[int, list[_Node]]
    behind: defaultdict[int, list[_Node]]
    begins: defaultdict[int, list[_Node]]
    ends: defaultdict[int, list[_Node]]


def _places(graph: TaskGraph, hooks: _Hooks, nodes: Sequence[_Node]) -> _Places:
    """Where these operators are fetched: as early as the copy stream may begin.

    The first two of a round are fetched behind its last offload, the others at the end of the one before the one
    before; none later than it begins.
    """
    places = _Places(*[defaultdict[int, list[_Node]](list) for _ in range(5)])
    for node in nodes:
        places.begins[node.first].append(node)
        places.ends[node.last].append(node)
    for part in graph.rounds:
        own = [node for node in nodes if part.first <= node.first < part.stop]
        offloads = sorted(
            k for k, numbers in hooks.saved.items() if k in range(part.first, part.stop) and hooks.packs(numbers)
        )
        for number, node in enumerate(own):
            last = next((k for k in reversed(offloads) if k < node.first), -1)
            earlier = own[number - 2] if number > 1 else None
            if earlier is not None and last < earlier.last < node.first:
                places.behind[earlier.first].append(node)
            elif last >= 0 and (earlier is None or earlier.last <= last):
                places.after[last].append(node)
            else:
                places.before[node.first].append(node)
    return places


@dataclass
class _Offloading:
    """Writes the iteration. read: for each offloaded tensor, the kernels that read its fetched copy. left, arrived: the
    events at the ends of its copies."""

    graph: TaskGraph
    hooks: _Hooks
    use_streams: bool
    read: dict[int, tuple[int, ...]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    arrived: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph, hooks = self.graph, self.hooks
        self.read = {n: hooks.read[n] if n in hooks.fetched else () for n in hooks.offloaded}
        self.form = {n: len(graph.blocks) + place for place, n in enumerate(hooks.offloaded)}
        left = {n: hooks.left[n] for n in hooks.offloaded}
        self.writer = Eager(graph, releases_with_savers(graph, hooks.tensors, left, self.read))
        self.fetching = [
            node._replace(numbers=fetched)
            for node in hooks.nodes
            if (fetched := tuple(n for n in node.numbers if n in hooks.fetched))
        ]
        self.places = _places(graph, hooks, self.fetching)

    def write(self) -> None:
        """Write all kernels with the copies and releases between them."""
        hooks, places = self.hooks, self.places
        fetches = self._fetches_on_one_stream()
        for k in range(len(self.graph.kernels)):
            self._offload(hooks.entering[k])
            self._fetch(places.before[k])
            for node in places.begins[k]:
                for number in node.numbers:
                    self.writer.wait(self.arrived[number])
            for number, until in fetches[k]:
                self._fetch_waiting(number, until)
            self.writer.run(k)
            self._end(places.ends[k], hooks.flushed.get(k, ()))
            self._offload(hooks.saved[k])
            self._fetch(places.after[k])
            self.writer.release_ended(k)

    def _offload(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number not in self.form:
                continue
            block, form = self.hooks.tensors[number].block, self.form[number]
            if not self.use_streams:
                self.writer.wait(self.writer.copy_d2h(block, form, after=self.writer.signal()))
                continue
            self._drop(self.hooks.dropped[number])
            self.writer.wait(self.writer.signal(), DATA)
            code = self.writer.code[DATA]
            code.acquire((form,), HOST)
            code.copy(block, DEVICE, HOST, form)
            self.left[number] = self.writer.signal(DATA)

    def _drop(self, numbers: Iterable[int]) -> None:
        """Compute waits for these offloads, whose tensors leave the stash; a copy that nobody fetches is freed."""
        for number in numbers:
            self.writer.wait(self.left[number])
            if number not in self.hooks.fetched:
                self.writer.release((self.form[number],), HOST)

    def _fetch(self, nodes: Iterable[_Node]) -> None:
        """Compute requests the memory for these operators' tensors, and the copy stream fetches one after the other."""
        for node in nodes:
            self.writer.acquire(self.form[n] for n in node.numbers)
            self.writer.wait(self.writer.signal(), DATA)
            code = self.writer.code[DATA]
            for number in node.numbers:
                code.copy(self.form[number], HOST, DEVICE)
                code.release((self.form[number],), HOST)
                self.arrived[number] = self.writer.signal(DATA)

    def _end(self, nodes: Iterable[_Node], flushed: Iterable[int]) -> None:
        """The hooks at the end of an operator, one for each of its tensors: the first one empties the stash."""
        alone = [node for node in nodes if len(node.numbers) == 1]
        for node in alone:
            self._free(node)
        self._drop(flushed)
        for node in nodes:
            if node not in alone:
                self._free(node)

    def _free(self, node: _Node) -> None:
        """An operator's tensors are freed, and the one after the next may be fetched."""
        self.writer.release(self.form[n] for n in node.numbers)
        self._fetch(self.places.behind[node.first])

    def _fetches_on_one_stream(self) -> defaultdict[int, list[tuple[int, int]]]:
        """By kernel, the numbers of the tensors to fetch before it, and the kernel after which each is dropped."""
        fetches: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        if not self.use_streams:
            ends = backward_ends(self.graph, self.hooks.tensors)
            for number in self.hooks.offloaded:
                fetches[self.hooks.tensors[number].before].append((number, ends[number]))
        return fetches

    def _fetch_waiting(self, number: int, until: int) -> None:
        form = self.form[number]
        self.writer.acquire((form,))
        self.writer.wait(self.writer.copy_h2d(form, after=self.writer.signal()))
        self.writer.release_after(form, until)
