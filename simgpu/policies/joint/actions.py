"""What `joint` may do with a feature map beyond HOME's three actions: fetch it at other moments, or encode it."""

from __future__ import annotations

from collections.abc import Iterator

from simgpu.errors import InputError
from simgpu.graph.encodings import Encoding, EncodingCosts
from simgpu.graph.saved import FeatureMap
from simgpu.graph.taskgraph import TaskGraph
from simgpu.planning.options import SWAP, Action, Decisions, Option, fetch_kernel
from simgpu.policies.base import PlanContext
from simgpu.policies.cswap import CODECS, SwappingExecutor, executor_of, known_codecs
from simgpu.policies.sparse import sparse_swaps
from simgpu.program.placement import Swap
from simgpu.trace.model import Phase

#: Layer steps between the fetch of a block and its use. One is HOME's; none takes the least memory, the others double.
AHEAD = (0, 1, 2, 4, 8, 16, 32, 64)
#: Those with which an encoded block may be fetched: each is one more option for each codec.
AHEAD_ENCODED = (0, 1, 4, 16)


def with_all_actions(context: PlanContext, decisions: Decisions) -> Decisions:
    """The decisions with every other moment to fetch, and every codec that is not worse than another in every way.

    What is encoded is what CSWAP encodes, outputs of ReLU and max pooling of which the trace tells the zeros, by the
    GPU, at the best launch setting that there is for it. A GPU of which codec times are not known encodes nothing.
    """
    encodings = _encodings(context, decisions)
    return decisions.with_options(
        [*_at_other_moments(context.graph, each), *_encoded(context.graph, each, encodings.get(each.block, []))]
        for each in decisions.maps
    )


def _moments(graph: TaskGraph, each: FeatureMap, distances: tuple[int, ...]) -> Iterator[int]:
    """Distances with different moments to fetch, in backward but for HOME's."""
    seen: set[int] = set()
    for ahead in distances:
        fetch = fetch_kernel(graph, each.after, each.before, ahead)
        if fetch not in seen and (ahead == SWAP.ahead or graph.kernels[fetch].phase is not Phase.FORWARD):
            seen.add(fetch)
            yield ahead


def _at_other_moments(graph: TaskGraph, each: FeatureMap) -> list[Option]:
    return [Option(Action.SWAP, ahead) for ahead in _moments(graph, each, AHEAD) if ahead != SWAP.ahead]


def _encoded(graph: TaskGraph, each: FeatureMap, encodings: list[Encoding]) -> list[Option]:
    moments = tuple(_moments(graph, each, AHEAD_ENCODED))
    return [Option(Action.SWAP, ahead, encoding) for encoding in encodings for ahead in moments]


def _encodings(context: PlanContext, decisions: Decisions) -> dict[int, list[Encoding]]:
    """For each block that may be encoded, its encodings that are not worse than another in every way."""
    graph, costs = context.graph, context.graph.costs
    if costs is None:
        return {}
    swaps = [Swap(each.block, each.after, each.before, each.before) for each in decisions.maps]
    sparse = sparse_swaps(graph, swaps, costs)
    codecs = known_codecs(graph, sparse, costs, CODECS)
    if not codecs:
        return {}
    try:
        executor = executor_of(context, sparse, costs, codecs, "grid_search")
    except InputError:
        return {}
    return {swap.block: _worth_it(graph, costs, executor, swap.block, codecs) for swap in sparse}


def _worth_it(
    graph: TaskGraph, costs: EncodingCosts, executor: SwappingExecutor, b: int, codecs: tuple[str, ...]
) -> list[Encoding]:
    block = graph.blocks[b]
    found: list[tuple[tuple[int, int, int], Encoding]] = []
    for codec in codecs:
        if not costs.is_known(block, codec) or costs.encoded_bytes(block, codec) >= graph.copy_sizes[b]:
            continue
        encoding = executor.encoding(b, codec)
        price = (
            costs.encoded_bytes(block, codec),
            costs.encode_ns(block, encoding),
            costs.decode_ns(block, encoding),
        )
        if not any(all(a <= c for a, c in zip(other, price, strict=True)) for other, _ in found):
            found.append((price, encoding))
    return [encoding for _, encoding in found]
