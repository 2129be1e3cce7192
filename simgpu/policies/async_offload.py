"""`async_offload`: saved tensors are offloaded during forward and prefetched in backward, through hooks of PyTorch.

The policy models an implementation over `torch.autograd.graph.saved_tensors_hooks` with two copy streams of its own. It
offloads blocks, not tensors: a block that several operators save, or save views of, is copied once.

* Forward: the offload of a block starts where the block is first saved, after the kernels launched so far. The last
  `stash` offloaded blocks keep their device memory. When one more is offloaded, compute waits for the oldest copy; that
  block is released as soon as the framework has dropped it too.
* Backward needs blocks roughly in the reverse order of saving. At the first use of an offloaded block, compute acquires
  memory for it and for those of the `prefetch` blocks saved before it that are neither resident nor being fetched. They
  are copied in one after another; then compute waits for its own block. An operator unpacks its saved tensors in the
  order in which it saved them. Blocks still in the stash are used where they are.
* A fetched block is released after the last operator of backward that uses it. Persistent blocks such as weights,
  blocks smaller than `min_bytes`, and blocks changed in place after they were saved stay as in `none`. A block that the
  framework still holds is offloaded and fetched all the same, and then exists twice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass, field

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.graph.saved import Saved, autograd_ends, readers, saved_tensors
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import Unpacked, WithUnpacked
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.framework import framework, moments_of_saving, releases_after_offload, saved_note
from simgpu.program.eager import Eager
from simgpu.program.instructions import HOST, Program


@dataclass(frozen=True)
class AsyncOffload(Policy):
    """Offload blocks during forward, keep the last few, and prefetch a few in backward."""

    name = "async_offload"
    summary = "saved blocks are offloaded during forward, and prefetched a few ahead of their use in backward"
    source = "PyTorch, an offload over torch.autograd.graph.saved_tensors_hooks with streams of its own"

    prefetch: int = parameter(2, "number of blocks fetched ahead of the one that backward uses")
    stash: int = parameter(2, "number of offloaded blocks that may still hold their device memory")
    min_bytes: int = parameter(1 << 20, "smaller blocks stay on the device")
    blocks: Sequence[str] = parameter((), "the blocks that are offloaded, if large enough; none named: all")

    def __post_init__(self) -> None:
        # A list, as files have it, cannot be hashed.
        object.__setattr__(self, "blocks", tuple(self.blocks))

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for a negative parameter, for several compute streams, and for GPUs that
        train together."""
        negative = [(name, value) for name, value in self.parameters.items() if isinstance(value, int) and value < 0]
        if negative:
            raise InputError(Problem("", f"parameters.{n}", f"{v} is negative", "give 0 or more") for n, v in negative)
        graph, transforms = framework(context.graph, self.name)
        saved = saved_tensors(graph)
        blocks = _offloaded_blocks(graph, saved.tensors, self.min_bytes, self._named(graph))
        until: dict[int, int] = {}
        for tensor, end in zip(saved.tensors, autograd_ends(graph, saved.tensors), strict=True):
            until[tensor.block] = max(until.get(tensor.block, end), end)
        fetched = _fetch_order(blocks, saved.tensors)
        offload = _Offload(graph, blocks, until, _stash_evictions(blocks, self.stash), fetched, self.prefetch)
        offload.write()
        returned = tuple(Unpacked(b.block, b.bytes, r) for b, r in zip(blocks, offload.read, strict=True))
        return offload.writer.program((*transforms, WithUnpacked(returned)), saved_note(saved))

    def _named(self, graph: TaskGraph) -> Container[int]:
        """The blocks that may be offloaded."""
        known = {block.id: b for b, block in enumerate(graph.blocks)}
        unknown = [name for name in self.blocks if name not in known]
        if unknown:
            raise InputError(
                Problem("", "parameters.blocks", f"no block is '{name}'", did_you_mean(name, known)) for name in unknown
            )
        return {known[name] for name in self.blocks} if self.blocks else range(len(graph.blocks))


def _offloaded_blocks(
    graph: TaskGraph, tensors: tuple[Saved, ...], min_bytes: int, named: Container[int]
) -> list[Saved]:
    """The offloaded blocks in the order of their first saves: fetched when the first tensor is needed, and freed with
    the last one."""
    first: dict[int, Saved] = {}
    for tensor in tensors:
        b = tensor.block
        if b in first:
            known = first[b].freed is not None and tensor.freed is not None
            freed = max(first[b].freed or 0, tensor.freed or 0) if known else None
            first[b] = first[b]._replace(before=min(first[b].before, tensor.before), freed=freed)
        elif b in named and _can_offload(graph, tensor, min_bytes):
            first[b] = tensor._replace(bytes=graph.copy_sizes[b])
    return list(first.values())


def _can_offload(graph: TaskGraph, tensor: Saved, min_bytes: int) -> bool:
    b = tensor.block
    # PyTorch refuses to use a tensor that was changed in place since it was saved.
    changed = any(k > tensor.after and b in graph.writes[k] for k in graph.uses[b])
    return not graph.blocks[b].persistent and graph.sizes[b] >= max(min_bytes, 1) and not changed


def _fetch_order(blocks: list[Saved], tensors: tuple[Saved, ...]) -> dict[int, list[int]]:
    """By kernel, the numbers of the blocks that backward first needs there, in the order in which it unpacks them.

    An operator unpacks its saved tensors in the order in which it saved them.
    """
    numbers = {(block.block, block.before): number for number, block in enumerate(blocks)}
    order: defaultdict[int, dict[int, None]] = defaultdict(dict)
    for tensor in tensors:
        number = numbers.get((tensor.block, tensor.before))
        if number is not None:
            order[tensor.before][number] = None
    return {k: list(numbers_there) for k, numbers_there in order.items()}


def _stash_evictions(blocks: list[Saved], stash: int) -> dict[int, int]:
    """By number, each block that overflows the stash and the block that is evicted from the stash for it."""
    stashed: list[int] = []
    evicted = {}
    # Between two kernels, blocks saved after the first enter the stash before the second unpacks any.
    moments = [(block.after + 1, 1, number) for number, block in enumerate(blocks)]
    moments += [(block.before, 2, number) for number, block in enumerate(blocks)]
    for _, what, number in sorted(moments):
        if what == 2:
            stashed = [other for other in stashed if other != number]
        else:
            stashed.append(number)
            if len(stashed) > stash:
                evicted[number] = stashed.pop(0)
    return evicted


@dataclass
class _Offload:
    """Writes the iteration. Offloaded blocks are named by their number in `blocks`.

    until: by block position, the last kernel of backward that needs the block. evicted, fetched: results of
    `_stash_evictions` and `_fetch_order`. read: for each block, the kernels that read the fetched copy. offload_ended,
    fetch_ended: events at the ends of copies. gone: the blocks that have been evicted so far.
    """

    graph: TaskGraph
    blocks: list[Saved]
    until: dict[int, int]
    evicted: dict[int, int]
    fetched: dict[int, list[int]]
    prefetch: int
    offload_ended: dict[int, int] = field(default_factory=dict)
    fetch_ended: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        blocks = self.blocks
        freed_after = {number: blocks[by].after for by, number in self.evicted.items()}
        self.offloaded = sorted(freed_after)
        self.read: list[tuple[int, ...]] = [()] * len(blocks)
        for number, kernels in zip(
            self.offloaded, readers(self.graph, [blocks[n] for n in self.offloaded]), strict=True
        ):
            self.read[number] = kernels
        device_copies = [
            each._replace(after=freed_after.get(n, self.until[each.block])) for n, each in enumerate(blocks)
        ]
        releases = releases_after_offload(self.graph, device_copies, self.read)
        self.writer = Eager(self.graph, releases)
        self.entering, self.saved = moments_of_saving(self.graph, blocks)
        self.stashed: defaultdict[int, list[int]] = defaultdict(list)
        for number, block in enumerate(blocks):
            if number not in freed_after:
                release = releases[block.block]
                self.stashed[len(self.graph.kernels) - 1 if release is None else release].append(number)

    def write(self) -> None:
        """Write all kernels with the copies and releases between them."""
        for k in range(len(self.graph.kernels)):
            for number in self.entering[k]:
                self._offload(number)
            for number in self.fetched.get(k, ()):
                self._fetch(number)
            self.writer.run(k)
            for number in self.saved[k]:
                self._offload(number)
            for number in self.stashed[k]:
                self.writer.wait(self.offload_ended[number])
                self.writer.release((self._form(number),), HOST)
            self.writer.release_ended(k)

    def _form(self, number: int) -> int:
        return len(self.graph.blocks) + number

    def _offload(self, number: int) -> None:
        """Begin a block's offload; where the stash overflows, compute waits for the oldest copy in it."""
        writer = self.writer
        self.offload_ended[number] = writer.copy_d2h(
            self.blocks[number].block, self._form(number), after=writer.signal()
        )
        if number in self.evicted:
            writer.wait(self.offload_ended[self.evicted[number]])
            self.gone.add(self.evicted[number])

    def _fetch(self, number: int) -> None:
        """Begin to fetch a block and those ahead of it that are not resident; compute waits for the block itself."""
        writer = self.writer
        window = range(number, max(number - self.prefetch, 0) - 1, -1)
        missing = [other for other in window if other in self.gone and other not in self.fetch_ended]
        if missing:
            for other in missing:
                writer.acquire((self._form(other),))
                writer.release_after(self._form(other), self.until[self.blocks[other].block])
            here = writer.signal()
            for other in missing:
                self.fetch_ended[other] = writer.copy_h2d(self._form(other), after=here)
        if number in self.fetch_ended:
            writer.wait(self.fetch_ended[number])
