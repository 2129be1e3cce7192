"""`save_on_cpu`: offloads every saved tensor, as `torch.autograd.graph.save_on_cpu(pin_memory=True)` does.

Where autograd saves a tensor, compute waits for its device-to-host copy; where backward unpacks it, compute waits for
its host-to-device copy. This holds for every saved tensor, weights too, and for each on its own: a tensor that two
operators save is copied twice, and of a view only its own bytes. The host keeps each copy until it is fetched.

Device memory:

* A block is released once the framework has dropped it and its last device-to-host copy has ended. Blocks that are not
  saved, or that the framework never drops, stay as in `none`.
* A fetched tensor occupies new memory, even where the saved one is still resident (a weight). It is released when the
  operator of backward that unpacked it is done: after the last kernel that reads any tensor unpacked with it.
* PyTorch copies a non-contiguous tensor through a temporary one on the device; this is not modelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from simgpu.graph.saved import backward_ends, readers, saved_tensors
from simgpu.graph.transforms import Unpacked, WithUnpacked
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.common.framework import framework, moments_of_saving, releases_after_offload, saved_note
from simgpu.program.eager import Eager
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class SaveOnCpu(Policy):
    """Offload every saved tensor where it is saved, and fetch it where backward unpacks it; compute waits each time."""

    name = "save_on_cpu"
    summary = "every saved tensor, weights too, is offloaded when saved and fetched when used; compute waits"
    source = "PyTorch, torch.autograd.graph.save_on_cpu"

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for several compute streams and for data parallelism."""
        graph, transforms = framework(context.graph, self.name)
        recorded = saved_tensors(graph)
        tensors = [tensor for tensor in recorded.tensors if tensor.bytes]
        read, until = readers(graph, tensors), backward_ends(graph, tensors)
        entering, saved = moments_of_saving(graph, tensors)
        fetched: defaultdict[int, list[int]] = defaultdict(list)
        for number, tensor in enumerate(tensors):
            fetched[tensor.before].append(number)
        writer = Eager(graph, releases_after_offload(graph, tensors, read))

        def offload(numbers: Sequence[int]) -> None:
            for number in numbers:
                form = len(graph.blocks) + number
                writer.wait(writer.copy_d2h(tensors[number].block, form, after=writer.signal()))

        for k in range(len(graph.kernels)):
            offload(entering[k])
            for number in fetched[k]:
                form = len(graph.blocks) + number
                writer.acquire((form,))
                writer.wait(writer.copy_h2d(form, after=writer.signal()))
                writer.release_after(form, until[number])
            writer.run(k)
            offload(saved[k])
            writer.release_ended(k)
        returned = (Unpacked(t.block, t.bytes, r) for t, r in zip(tensors, read, strict=True))
        return writer.program((*transforms, WithUnpacked(tuple(returned))), saved_note(recorded))
