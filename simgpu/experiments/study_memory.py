"""How much memory an iteration needs by each technique alone, and by all of them (moDNN, figures 9 and 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simgpu.graph.bounds import all_at_once, memory_bounds, task_bytes
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg

if TYPE_CHECKING:
    from simgpu.trace.model import Trace

#: The amounts of `memory_of`, and what each is called over its column.
AMOUNTS: Mapping[str, str] = {
    "all_at_once": "all at once",
    "bound": "bound",
    "weights_leave": "weights leave",
    "sub_batch": "sub-batch",
    "transfers": "transfers",
    "algorithms": "algorithms",
}


def memory_of(trace: Trace) -> dict[str, int]:
    """Bytes that an iteration needs, by the names of `AMOUNTS`.

    all_at_once: all tensors at once, with the largest workspace of the fastest algorithms (moDNN's ideal memory,
    section 7). bound: equation 7. weights_leave: the same where weights leave too, without the optimizer's kernels, as
    published. The others are one technique alone (section 7.3): sub_batch, where everything stays of one sample at a
    time; transfers, what the most demanding task of the whole batch needs by its fastest algorithm; algorithms, where
    everything stays and each convolution runs in the least workspace. Where nobody can tell the iteration at one
    sample, bound, weights_leave and sub_batch are of the whole batch.

    >>> from simgpu.trace.folder import load_trace
    >>> found = memory_of(load_trace("vgg16-b128-v100"))
    >>> found["bound"] < found["sub_batch"] < found["transfers"] < found["algorithms"] < found["all_at_once"]
    True
    """
    graph = TaskGraph.of(trace)
    bounds, whole = memory_bounds(graph), Tdfg.of(graph)
    tasks = range(len(whole.kinds))
    fastest, smallest = (max(way(k).workspace for k in tasks) for way in (whole.fastest, whole.smallest))
    return {
        "all_at_once": bounds.all_at_once.bytes,
        "bound": bounds.bound.bytes,
        "weights_leave": bounds.without_updates.bytes,
        "sub_batch": all_at_once(Tdfg.of(bounds.graph)).bytes,
        "transfers": whole.resident_bytes + max(task_bytes(whole, k, whole.fastest(k)) for k in tasks),
        "algorithms": bounds.all_at_once.bytes - fastest + smallest,
    }
