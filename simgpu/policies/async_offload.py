"""`async_offload`: saved tensors leave during compute and come back ahead of their use, through hooks of PyTorch.

The twin of an implementation over `torch.autograd.graph.saved_tensors_hooks` with two copy streams of its own. It goes
by blocks, not by tensors: what several operators save, or save views of, is copied once.

* Forward. Where a block is first saved, its copy out starts behind what compute has been given. The last `stash` blocks
  that left still hold their device memory. When there is one more, compute waits for the oldest copy, and its block is
  let go as soon as the framework has dropped it too.
* Backward takes blocks back in the reverse order of saving, more or less. Where it first takes one, compute takes
  memory for it and for those of the `prefetch` blocks saved before it that are away and not on their way; they are
  copied in, one after another, behind what compute has been given; then compute waits for its own block. What an
  operator takes at once it takes in the order in which it saved it. What is still in the stash is used where it is.
* What was copied in lives until the last operator of backward that takes something of it is done. Weights and whatever
  else was there before the iteration, blocks of less than `min_bytes`, and those that are changed in place after they
  were saved, stay as in `none`. What somebody else still holds is copied out and in all the same, and is there twice.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from simgpu.errors import InputError, Problem
from simgpu.graph.saved import Saved, backward_ends, readers, saved_tensors
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import Unpacked, WithUnpacked
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.framework import framework, releases_with_saved, saved_note
from simgpu.program.eager import Eager
from simgpu.program.instructions import Program, Space


@dataclass(frozen=True)
class AsyncOffload(Policy):
    """Copy blocks out during forward, keep the last few, and fetch a few ahead in backward."""

    name = "async_offload"
    summary = "saved blocks are offloaded during forward, and prefetched a few ahead of their use in backward"
    source = "PyTorch, an offload over torch.autograd.graph.saved_tensors_hooks with streams of its own"

    prefetch: int = parameter(2, "number of blocks fetched ahead of the one that backward uses")
    stash: int = parameter(2, "number of offloaded blocks that may still hold their device memory")
    min_bytes: int = parameter(1 << 20, "smaller blocks stay on the device")

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for a negative parameter, for several compute streams, and for GPUs that
        train together."""
        wrong = [(name, value) for name, value in self.parameters.items() if isinstance(value, int) and value < 0]
        if wrong:
            raise InputError(Problem("", f"parameters.{n}", f"{v} is negative", "give 0 or more") for n, v in wrong)
        graph, transforms = framework(context.graph, self.name)
        saved = saved_tensors(graph)
        blocks = _leaving(graph, saved.tensors, self.min_bytes)
        until: dict[int, int] = {}
        for tensor, end in zip(saved.tensors, backward_ends(graph, saved.tensors), strict=True):
            until[tensor.block] = max(until.get(tensor.block, end), end)
        taken = _taken_back(blocks, saved.tensors)
        offload = _Offload(graph, blocks, until, _pushed_out(blocks, self.stash), taken, self.prefetch)
        offload.write()
        returned = tuple(Unpacked(b.block, b.bytes, r) for b, r in zip(blocks, offload.read, strict=True))
        return offload.writer.program((*transforms, WithUnpacked(returned)), saved_note(saved))


def _leaving(graph: TaskGraph, tensors: tuple[Saved, ...], min_bytes: int) -> list[Saved]:
    """The blocks that leave, in the order of their first saves: whole, and taken back when their first tensor is."""
    first: dict[int, Saved] = {}
    for tensor in tensors:
        b = tensor.block
        if b in first:
            first[b] = first[b]._replace(before=min(first[b].before, tensor.before))
        elif _may_leave(graph, tensor, min_bytes):
            first[b] = tensor._replace(bytes=graph.copy_sizes[b])
    return list(first.values())


def _may_leave(graph: TaskGraph, tensor: Saved, min_bytes: int) -> bool:
    b = tensor.block
    # PyTorch refuses to use what was changed in place since it was saved.
    changed = any(k > tensor.after and b in graph.writes[k] for k in graph.uses[b])
    return not graph.blocks[b].persistent and graph.sizes[b] >= max(min_bytes, 1) and not changed


def _taken_back(blocks: list[Saved], tensors: tuple[Saved, ...]) -> dict[int, list[int]]:
    """Before each kernel the numbers of the blocks that backward first takes there, in the order in which it does.

    What an operator saved it takes back in the order in which it saved it.
    """
    numbers = {(block.block, block.before): number for number, block in enumerate(blocks)}
    result: defaultdict[int, dict[int, None]] = defaultdict(dict)
    for tensor in tensors:
        number = numbers.get((tensor.block, tensor.before))
        if number is not None:
            result[tensor.before][number] = None
    return {k: list(there) for k, there in result.items()}


def _pushed_out(blocks: list[Saved], stash: int) -> dict[int, int]:
    """For each block that is one too many for the stash, the one there that is let go for it; both by their number."""
    held: list[int] = []
    pushed = {}
    # Between two kernels, what was saved after the first is there before the second takes back.
    moments = [(block.after + 1, 1, number) for number, block in enumerate(blocks)]
    moments += [(block.before, 2, number) for number, block in enumerate(blocks)]
    for _, what, number in sorted(moments):
        if what == 2:
            held = [other for other in held if other != number]
        else:
            held.append(number)
            if len(held) > stash:
                pushed[number] = held.pop(0)
    return pushed


@dataclass
class _Offload:
    """Writes the iteration. Blocks that leave are told by their number in `blocks`.

    until: by position, the kernel after which backward is done with a block. pushed, taken: as `_pushed_out`
    and `_taken_back` tell. read: for each block the kernels that read what was copied in. out, back: events of the ends
    of copies.
    """

    graph: TaskGraph
    blocks: list[Saved]
    until: dict[int, int]
    pushed: dict[int, int]
    taken: dict[int, list[int]]
    prefetch: int
    out: dict[int, int] = field(default_factory=dict)
    back: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        blocks = self.blocks
        let_go = {number: blocks[by].after for by, number in self.pushed.items()}
        self.away = sorted(let_go)
        self.read: list[tuple[int, ...]] = [()] * len(blocks)
        for number, kernels in zip(self.away, readers(self.graph, [blocks[n] for n in self.away]), strict=True):
            self.read[number] = kernels
        held = [each._replace(after=let_go.get(n, self.until[each.block])) for n, each in enumerate(blocks)]
        releases = releases_with_saved(self.graph, held, self.read)
        self.writer = Eager(self.graph, releases)
        self.saved: defaultdict[int, list[int]] = defaultdict(list)
        self.stashed: defaultdict[int, list[int]] = defaultdict(list)
        for number, block in enumerate(blocks):
            self.saved[block.after].append(number)
            if number not in let_go:
                release = releases[block.block]
                self.stashed[len(self.graph.kernels) - 1 if release is None else release].append(number)

    def write(self) -> None:
        """All kernels, and what is done between them."""
        for k in range(-1, len(self.graph.kernels)):
            if k >= 0:
                for number in self.taken.get(k, ()):
                    self._take_back(number)
                self.writer.run(k)
            for number in self.saved[k]:
                self._leave(number)
            for number in self.stashed[k] if k >= 0 else ():
                self.writer.wait(self.out[number])
                self.writer.release((self._form(number),), Space.HOST)
            if k >= 0:
                self.writer.release_ended(k)

    def _form(self, number: int) -> int:
        return len(self.graph.blocks) + number

    def _leave(self, number: int) -> None:
        """A block's copy out begins; where it is one too many for the stash, compute waits for the oldest there."""
        writer = self.writer
        self.out[number] = writer.copy_d2h(self.blocks[number].block, self._form(number), after=writer.signal())
        if number in self.pushed:
            writer.wait(self.out[self.pushed[number]])

    def _take_back(self, number: int) -> None:
        """Copies in of a block and of those ahead begin, as far as they are away; compute waits for the block's own."""
        writer = self.writer
        window = range(number, max(number - self.prefetch, 0) - 1, -1)
        wanted = [other for other in window if other in self.away and other not in self.back]
        if wanted:
            for other in wanted:
                writer.acquire((self._form(other),))
                writer.release_after(self._form(other), self.until[self.blocks[other].block])
            here = writer.signal()
            for other in wanted:
                self.back[other] = writer.copy_h2d(self._form(other), after=here)
        if number in self.back:
            writer.wait(self.back[number])
