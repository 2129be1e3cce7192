"""`save_on_cpu`: every saved tensor waits on the host, as `torch.autograd.graph.save_on_cpu(pin_memory=True)` does it.

Where autograd saves a tensor, compute waits until it has been copied out; where backward takes it back, compute waits
until it has been copied in. That is so for every tensor that is saved, weights too, and for each by itself: what two
operators save is copied twice, and of a view its own bytes. The host holds each from its copy out to its copy in.

What becomes of device memory:

* A block stays until the framework drops it and its last copy out has ended. What is not saved, or is held by somebody
  to the end, stays as in `none`.
* The tensor that comes back is new memory, also where the one that was saved is still there (a weight). It lives until
  the operator of backward that took it is done: the last kernel that reads anything of what was taken at once.
* PyTorch copies a tensor that is not contiguous through a temporary one on the device, which is not part of this.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from simgpu.graph.saved import backward_ends, readers, saved_tensors
from simgpu.graph.transforms import Unpacked, WithUnpacked
from simgpu.policies.base import PlanContext, Policy
from simgpu.policies.common.framework import framework, releases_with_saved, saved_note
from simgpu.program.eager import Eager
from simgpu.program.instructions import Program


@dataclass(frozen=True)
class SaveOnCpu(Policy):
    """Copy every saved tensor out where it is saved and in where backward takes it back, compute waiting each time."""

    name = "save_on_cpu"
    summary = "every saved tensor, weights too, is offloaded when saved and fetched when used; compute waits"
    source = "PyTorch, torch.autograd.graph.save_on_cpu"

    def plan(self, context: PlanContext) -> Program:
        """One iteration. Raises `InputError` for several compute streams and for GPUs that train together."""
        graph, transforms = framework(context.graph, self.name)
        result = saved_tensors(graph)
        tensors = [tensor for tensor in result.tensors if tensor.bytes]
        read, until = readers(graph, tensors), backward_ends(graph, tensors)
        saved: defaultdict[int, list[int]] = defaultdict(list)
        taken: defaultdict[int, list[int]] = defaultdict(list)
        for number, tensor in enumerate(tensors):
            saved[tensor.after].append(number)
            taken[tensor.before].append(number)
        writer = Eager(graph, releases_with_saved(graph, tensors, read))
        for k in range(-1, len(graph.kernels)):
            if k >= 0:
                for number in taken[k]:
                    form = len(graph.blocks) + number
                    writer.acquire((form,))
                    writer.wait(writer.copy_h2d(form, after=writer.signal()))
                    writer.release_after(form, until[number])
                writer.run(k)
            for number in saved[k]:
                form = len(graph.blocks) + number
                writer.wait(writer.copy_d2h(tensors[number].block, form, after=writer.signal()))
            if k >= 0:
                writer.release_ended(k)
        returned = (Unpacked(t.block, t.bytes, r) for t, r in zip(tensors, read, strict=True))
        return writer.program((*transforms, WithUnpacked(tuple(returned))), saved_note(result))
