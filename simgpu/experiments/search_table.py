"""What became of each feature map in a run: when it left and came back, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simgpu.planning.options import Action, Option
from simgpu.timeline.model import SpanKind

if TYPE_CHECKING:
    from simgpu.graph.saved import FeatureMap
    from simgpu.graph.taskgraph import TaskGraph
    from simgpu.policies.placing import Chosen
    from simgpu.timeline.model import Timeline

#: Start and end (ns after the iteration began) of the first span with a kind and a name.
_Spans = Mapping[tuple[SpanKind, str], tuple[int, int]]

_SHOWN = (SpanKind.COMPUTE, SpanKind.RECOMPUTE, SpanKind.COPY_OUT, SpanKind.COPY_IN)


@dataclass(frozen=True, slots=True)
class PlacedMap:
    """One feature map in the iteration that a run reports.

    layer: that makes it. bytes: as allocated for, without padding. action: keep, swap, swap with a codec, recompute.
    ahead: of a swap, layer steps between the fetch and the next use, as the option has them; None of others.
    overhead_ns: what it adds to the iteration (HOME, TC 2022, algorithm 2). left_ns: when its copy out had ended, or
    its last use in forward where it is made again; back_ns: when its copy in, or the kernel that makes it again, had
    ended; needed_ns: when its next use began. All count from the start of the iteration; None where that does not
    happen, or where nothing ran.
    """

    name: str
    layer: str
    bytes: int
    action: str
    ahead: int | None
    overhead_ns: int
    left_ns: int | None
    back_ns: int | None
    needed_ns: int | None


def placed_maps(graph: TaskGraph, chosen: Chosen, timeline: Timeline | None) -> tuple[PlacedMap, ...]:
    """All feature maps, in the order in which they are made; none where the program is of no vector.

    graph: that the policy planned on. timeline: of the run, None where there was none.
    """
    if chosen.vector is None:
        return ()
    decisions, spans = chosen.evaluator.decisions, _spans(timeline) if timeline is not None else {}
    picked = [options[number] for options, number in zip(decisions.options, chosen.vector, strict=True)]
    overheads = chosen.evaluator.overheads(chosen.vector)
    return tuple(
        _placed(graph, each, option, overhead, spans)
        for each, option, overhead in zip(decisions.maps, picked, overheads, strict=True)
    )


def _spans(timeline: Timeline) -> _Spans:
    """Of the last iteration."""
    begin, last = timeline.window(-1)[0], len(timeline.iteration_ends_ns) - 1
    found: dict[tuple[SpanKind, str], tuple[int, int]] = {}
    for span in timeline:
        if span.iteration == last and span.kind in _SHOWN:
            found.setdefault((span.kind, span.name), (span.start_ns - begin, span.end_ns - begin))
    return found


def _placed(graph: TaskGraph, each: FeatureMap, option: Option, overhead: int, spans: _Spans) -> PlacedMap:
    block, maker = graph.blocks[each.block], graph.uses[each.block][0]

    def at(kind: SpanKind, name: str, end: bool) -> int | None:
        return spans[kind, name][end] if (kind, name) in spans else None

    left = back = None
    if option.action is Action.SWAP:
        moved = block.id if option.encoding is None else f"{block.id}:{option.encoding.codec}"
        left, back = at(SpanKind.COPY_OUT, moved, True), at(SpanKind.COPY_IN, moved, True)
    elif option.action is Action.RECOMPUTE:
        writer = max(k for k in graph.uses[each.block] if k <= each.after and each.block in graph.writes[k])
        left = at(SpanKind.COMPUTE, graph.kernels[each.after].id, True)
        back = at(SpanKind.RECOMPUTE, graph.kernels[writer].id, True)
    return PlacedMap(
        name=block.id,
        layer=graph.layers.name_of(maker),
        bytes=block.bytes,
        action=_word(option),
        ahead=option.ahead if option.action is Action.SWAP else None,
        overhead_ns=overhead,
        left_ns=left,
        back_ns=back,
        needed_ns=at(SpanKind.COMPUTE, graph.kernels[each.before].id, False),
    )


def _word(option: Option) -> str:
    """The action in a word or two."""
    word = option.action.name.lower()
    return word if option.encoding is None else f"{word} with {option.encoding.codec}"
