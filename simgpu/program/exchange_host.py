"""moDNN's exchange of gradients (section 6.2, figure 8): beside the last sub-batch, by the host's cores.

As soon as the last sub-batch has made a gradient, it leaves by the program's own stream for copies out; when those of
all GPUs are on the host, its cores add them up and update the weight; the new weight comes back by the stream for
copies in, once the GPU has used the old one for the last time. Only at the end of the iteration all GPUs wait for each
other.

Copy streams run in order, so where a copy stands in one decides what it delays, and what delays it. A gradient stands
before the first copy that began, in a trial of the program on one GPU, when the gradient was made or later. A weight
stands before the first copy that began when the host was, by these times, expected to have updated it: gradients leave
one after the other, each at a GPU's fair share of its link and switch, and the host handles them in that order. That
order of times also keeps streams from waiting for each other in a circle: whatever stands before something else comes
to its turn earlier in the trial. Where work takes no time, the program's events tell what comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from simgpu.hardware.spec import NodeSpec
from simgpu.memory.transfer import copy_ns
from simgpu.program.exchange import Additions
from simgpu.program.instructions import (
    Acquire,
    Await,
    CopyIn,
    CopyOut,
    Instruction,
    Launch,
    Release,
    Signal,
    Space,
)
from simgpu.program.predicted import Place, Predicted
from simgpu.timeline.streams import StreamId


class _Use(NamedTuple):
    """Where a weight's gradient is made, and where the weight itself is used for the last time after that."""

    made: Place
    last: tuple[Place, ...]


@dataclass(frozen=True)
class _Expected:
    """Times (ns) at which a gradient is made and at which its weight may come back."""

    made: int
    back: int


def on_host(more: Additions, node: NodeSpec, trial: Predicted) -> None:
    """Add moDNN's exchange. The last repetition of the last sub-batch must be a segment of its own."""
    uses = [_use(more, u) for u in range(len(more.parts.updates))]
    expected = _expected(more, uses, node, trial)
    for u, use in enumerate(uses):
        more.after(use.made, more.signals("made", u))
        for place in use.last:
            more.after(place, more.signals("free", u, place.stream))
    since = more.since
    leaving = [(expected[u].made, 0, u) for u in range(len(uses))]
    coming = [(expected[u].back, 1, u) for u in range(len(uses))]
    reached: dict[StreamId, Place] = {}
    for time, comes, u in sorted([*leaving, *coming]):
        stream = more.back if comes else more.out
        place = more.behind(trial.place(since, stream, time), [uses[u].made, *(uses[u].last if comes else ())])
        place = reached[stream] = max(place, reached.get(stream, place))
        more.inserted[place].append(partial(_receive, more, u, uses[u]) if comes else partial(_send, more, u))
    for *_, u in sorted(leaving):
        more.host[since] += _accumulate(more, u)
    *_, latest = max(coming)
    more.finish(lambda gpu: [Await(more.event("back", latest, gpu))])


def _use(more: Additions, u: int) -> _Use:
    graph, parts, update = more.parts.graph, more.parts, more.parts.updates[u]
    before = [(k, number) for k, number in enumerate(parts.kernels[0][: parts.end]) if number is not None]
    makers = [k for k, number in before if update.gradient in graph.writes[number]]
    readers = [k for k, number in before if update.weight in graph.reads[number]]
    made = max(more.launches([makers[-1]]).values())
    last = more.launches(readers).values()
    return _Use(made, tuple(sorted(p for p in last if p.stream != made.stream or p > made)))


def _expected(more: Additions, uses: list[_Use], node: NodeSpec, trial: Predicted) -> list[_Expected]:
    """When gradients are made and weights may come back, by the trial and the machine's rates."""
    graph, parts = more.parts.graph, more.parts
    gpus = len(more.gpus)
    behind = [(s, sum(gpu < gpus for gpu in s.gpus)) for s in node.switches]
    shares = [s.d2h_bandwidth // count for s, count in behind if count]
    rate = max(min([node.link.d2h_bandwidth, *shares]), 1)
    made = [trial.end(use.made) for use in uses]
    back = [0] * len(uses)
    arrived = updated = 0
    for u in sorted(range(len(uses)), key=lambda u: (made[u], u)):
        size = graph.copy_sizes[parts.updates[u].gradient]
        arrived = max(arrived, made[u]) + copy_ns(size, rate, node.link.latency_ns)
        updated = max(updated, arrived) + graph.durations[parts.updating[u]]
        back[u] = max([updated, *(trial.end(place) for place in uses[u].last)])
    return [_Expected(*times) for times in zip(made, back, strict=True)]


def _send(more: Additions, u: int, gpu: int) -> list[Instruction]:
    block = more.gradient(u, gpu)
    return [
        Await(more.event("made", u, gpu)),
        Acquire((block,), Space.HOST),
        CopyOut(block),
        Signal(more.event("sent", u, gpu)),
    ]


def _accumulate(more: Additions, u: int) -> list[Instruction]:
    gradients = tuple(more.gradient(u, gpu) for gpu in more.gpus)
    return [
        *(Await(more.event("sent", u, gpu)) for gpu in more.gpus),
        Launch(more.parts.updating[u]),
        Release(gradients, Space.HOST),
        Signal(more.event("updated", u)),
    ]


def _receive(more: Additions, u: int, use: _Use, gpu: int) -> list[Instruction]:
    return [
        Await(more.event("updated", u)),
        *(Await(more.event("free", u, place.stream, gpu)) for place in use.last),
        CopyIn(more.parts.updates[u].weight),
        Signal(more.event("back", u, gpu)),
    ]
