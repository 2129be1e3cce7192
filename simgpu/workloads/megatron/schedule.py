"""The order of a pipeline's passes, one forward and one backward alternating (1F1B), and when each begins.

Source: ``forward_backward_pipelining_without_interleaving`` of Megatron-LM 0.20, core/pipeline_parallel/schedules.py.
A stage first runs forward as often as there are stages behind it, then forward and backward in turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Pass(NamedTuple):
    """Forward or backward of a micro-batch, numbered from 0."""

    backward: bool
    number: int


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Times of one stage (ns): of forward and of backward of a micro-batch."""

    forward_ns: int
    backward_ns: int


def passes(stage: int, stages: int, micro_batches: int) -> Iterator[Pass]:
    """The passes of a stage in order.

    >>> "".join(f"{'FB'[each.backward]}{each.number} " for each in passes(0, 2, 3))
    'F0 F1 B0 F2 B1 B2 '
    """
    ahead = min(stages - 1 - stage, micro_batches)
    yield from (Pass(False, number) for number in range(ahead))
    for number in range(micro_batches - ahead):
        yield Pass(False, ahead + number)
        yield Pass(True, number)
    yield from (Pass(True, number) for number in range(micro_batches - ahead, micro_batches))


def waits(times: Sequence[PassTimes], micro_batches: int, send_ns: int) -> list[list[int]]:
    """How long each stage waits before each of its passes (ns), in their order, with the message that it waits for.

    times: of each stage. send_ns: of a message between stages; sending takes the sender no time.

    >>> waits([PassTimes(10, 20), PassTimes(10, 20)], micro_batches=2, send_ns=0)
    [[0, 0, 20, 10], [10, 0, 0, 0]]
    """
    stages = len(times)
    order = [list(passes(stage, stages, micro_batches)) for stage in range(stages)]
    done: dict[tuple[int, Pass], int] = {}
    free, next_of = [0] * stages, [0] * stages
    found: list[list[int]] = [[] for _ in range(stages)]
    while any(place < len(own) for place, own in zip(next_of, order, strict=True)):
        for stage in range(stages):
            while next_of[stage] < len(order[stage]):
                each = order[stage][next_of[stage]]
                source = stage + 1 if each.backward else stage - 1
                ready = 0
                if 0 <= source < stages:
                    if (source, each) not in done:
                        break
                    ready = done[source, each] + send_ns
                begin = max(free[stage], ready)
                found[stage].append(begin - free[stage])
                took = times[stage].backward_ns if each.backward else times[stage].forward_ns
                free[stage] = done[stage, each] = begin + took
                next_of[stage] += 1
    return found
