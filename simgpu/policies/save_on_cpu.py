"""`save_on_cpu`: offloads every saved tensor, as `torch.autograd.graph.save_on_cpu` does.

Where autograd saves a tensor, compute waits for its device-to-host copy; where backward unpacks it, compute waits for
its host-to-device copy. This holds for every saved tensor, weights too, and for each on its own: a tensor that two
operators save is copied twice, and of a view only its own bytes. The host keeps each copy until it is fetched.

Device memory:

* A block is released once the framework has dropped it and its last device-to-host copy has ended. Blocks that are not
  saved, or that the framework never drops, stay as in `none`.
* A fetched tensor occupies new memory, even where the saved one is still resident (a weight). It is released when the
  operator of backward that unpacked it is done: after the last kernel that reads any tensor unpacked with it.
* With `pin_memory` false, PyTorch's default, the host's memory is pageable: the driver copies through a pinned buffer
  and blocks the host, so compute waits as above, at the node's ``host.pageable_bandwidth``. Where launches take time,
  the next one begins when the copy has ended. PyTorch allocates new host memory for each copy; what that takes is not
  modelled.
* PyTorch copies a non-contiguous tensor through a temporary one on the device; this is not modelled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simgpu.errors import InputError
from simgpu.graph.saved import backward_ends, readers, saved_tensors
from simgpu.graph.transforms import Unpacked, WithUnpacked
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.framework import framework, moments_of_saving, releases_after_offload, saved_note
from simgpu.program.eager import Eager
from simgpu.program.instructions import Program
from simgpu.units import format_bandwidth

#: How often a byte of a pageable copy passes the host's memory: the engine writes or reads pinned memory, and the host
#: reads it from there and writes it to its place, or the reverse (CUDA C++ best practices guide, pinned memory).
_STAGED = 3


@dataclass(frozen=True)
class SaveOnCpu(Policy):
    """Offload every saved tensor where it is saved, and fetch it where backward unpacks it; compute waits each time."""

    name = "save_on_cpu"
    summary = "every saved tensor, weights too, is offloaded when saved and fetched when used; compute waits"
    source = "PyTorch, torch.autograd.graph.save_on_cpu"

    pin_memory: bool = parameter(True, "whether host memory is pinned; if not, copies are slower")

    def machine(self, node: NodeSpec) -> NodeSpec:
        """The node with the link's rate for this memory, and with several GPUs a third of the host's bandwidth; its
        threads wait for the copies.

        Raises `InputError` where the node does not state it."""
        if self.pin_memory:
            return node
        rate = node.host.pageable_bandwidth
        if rate is None:
            what = f"is not set for node {node.name}, so the time of copies of pageable memory is unknown"
            remedy = "measure it with simgpu validate node, or let the policy have pin_memory: true"
            raise InputError.single("", "node.host.pageable_bandwidth", what, remedy)
        kind = f"{node.link.kind}, pageable copies"
        host, memory = node.host, node.host.memory_bandwidth
        if node.gpus > 1 and memory is not None:
            host = replace(host, memory_bandwidth=max(memory // _STAGED, 1))
        host = replace(host, waits_for_copies=host.launch_ns > 0)
        return replace(node, host=host, link=replace(node.link, kind=kind, d2h_bandwidth=rate, h2d_bandwidth=rate))

    def plan(self, context: PlanContext) -> Program:
        """One iteration.

        Raises `InputError` for several compute streams, for data parallelism, and for pageable memory inside of another
        policy.
        """
        notes = self._notes(context.node)
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
                writer.release_after(form, max(until[number], k))  # an operator may drop it before any kernel runs
            writer.run(k)
            offload(saved[k])
            writer.release_ended(k)
        returned = (Unpacked(t.block, t.bytes, r) for t, r in zip(tensors, read, strict=True))
        return writer.program((*transforms, WithUnpacked(tuple(returned))), (*notes, *saved_note(recorded)))

    def _notes(self, node: NodeSpec) -> tuple[str, ...]:
        """What memory is copied, if it is not pinned."""
        if self.pin_memory:
            return ()
        rate = node.host.pageable_bandwidth
        if rate is None or max(node.link.d2h_bandwidth, node.link.h2d_bandwidth) > rate:
            what = "false inside of another policy, whose copies are of pinned memory"
            raise InputError.single("", "parameters.pin_memory", what, "run save_on_cpu alone, or leave it true")
        pageable = f"copies are of pageable memory, {format_bandwidth(rate)} each way"
        slowest = min(node.link.d2h_bandwidth, node.link.h2d_bandwidth)
        if slowest == rate:
            return (pageable,)
        return (f"{pageable} on one GPU alone, {format_bandwidth(slowest)} on each of these",)
