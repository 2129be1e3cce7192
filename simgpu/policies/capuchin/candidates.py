"""What Capuchin's measured iteration makes of each feature map: a candidate to leave, with its times.

Candidates are accessed more than once, and their gap covers a moment at which memory does not suffice (public summaries
say: an access in the period of peak memory). They are the feature maps of HOME's view (`simgpu.graph.saved`);
Capuchin's tensors are finer in number, not in kind. A source must still be there at the back access: a block whose last
use comes before it has to be made again as well, with its own time.
"""

from __future__ import annotations

from simgpu.graph.recompute import Ancestry
from simgpu.graph.saved import FeatureMap, feature_maps
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.spec import NodeSpec
from simgpu.memory.pool import aligned
from simgpu.memory.transfer import copy_ns, sending_rate
from simgpu.policies.capuchin.accesses import Accesses
from simgpu.policies.capuchin.hybrid import Candidate, Situation


def candidates_of(
    accesses: Accesses, node: NodeSpec, budget: int
) -> tuple[dict[int, FeatureMap], tuple[Candidate, ...]]:
    """Feature maps that help where memory exceeds `budget` bytes, and what is known of each; both by block number.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> from simgpu.policies.capuchin.passive import demand
    >>> graph = TaskGraph.of(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]))
    >>> starts, ends = (0, 5, 12, 21, 39, 53), (5, 12, 21, 39, 53, 63)
    >>> told = Accesses(graph, starts, ends, demand(graph), swapping_ns=0)
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("bus", 10**10, 10**10))
    >>> _, (x2,) = candidates_of(told, node, budget=500)
    >>> x2.number, x2.evicted_ns, x2.back_ns, x2.in_ns, x2.remake_ns
    (1, 12, 39, 20, 5)
    """
    graph = accesses.graph
    ancestry = Ancestry(graph)
    short = [k for k, held in enumerate(accesses.demand) if held > budget]
    maps = {each.block: each for each in feature_maps(graph) if any(each.after < k < each.before for k in short)}
    found = []
    for b, each in maps.items():
        kernels, sources = _remake(graph, ancestry, each, maps)
        out_ns, in_ns = (_copy_ns(graph, node, b, rate) for rate in (node.link.d2h_bandwidth, node.link.h2d_bandwidth))
        candidate = Candidate(
            number=b,
            bytes=aligned(graph.sizes[b], node.gpu.alignment),
            evicted_ns=accesses.ends_ns[each.after],
            back_ns=accesses.starts_ns[each.before],
            out_ns=out_ns,
            in_ns=in_ns,
            remake_ns=None if ancestry.why_not(b) else sum(graph.durations[k] for k in kernels),
            sources=sources,
            kernels=kernels,
        )
        found.append(candidate)
    return maps, tuple(found)


def _copy_ns(graph: TaskGraph, node: NodeSpec, b: int, rate: int) -> int:
    """Time of a copy that has the link to itself."""
    size, raw = graph.copy_sizes[b], graph.blocks[b].bytes
    taken = node.gpu.cdma.kernel_bandwidth if node.gpu.cdma is not None else 0
    return copy_ns(size, sending_rate(node.gpu, taken, size, raw, rate), node.link.latency_ns)


def situation_of(accesses: Accesses) -> Situation:
    """The list of accesses and the peak of memory. Accesses are told by the kernels that make them."""
    return Situation(accesses.starts_ns, accesses.peak.start_ns, accesses.peak.end_ns)


def _remake(
    graph: TaskGraph, ancestry: Ancestry, each: FeatureMap, maps: dict[int, FeatureMap]
) -> tuple[frozenset[int], frozenset[int]]:
    """The kernels that make a feature map again, and the other candidates that they need."""
    kernels: set[int] = set()
    sources: set[int] = set()
    seen = {each.block}
    waiting = [each.block]
    while waiting:
        for k in ancestry.writers[waiting.pop()]:
            kernels.add(k)
            for r in ancestry.inputs[k]:
                if r in seen:
                    continue
                seen.add(r)
                released = graph.needed_releases[r]
                if released is not None and released < each.before:
                    waiting.append(r)
                elif r in maps:
                    sources.add(r)
    return frozenset(kernels), frozenset(sources)
