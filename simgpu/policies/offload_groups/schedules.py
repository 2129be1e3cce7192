"""When each group of saved tensors is copied, dropped, fetched and awaited, in TransformerEngine and Megatron-LM.

The functions take the groups of one pass in order. Moments are kernels after which something happens; "before" a layer
is after the kernel in front of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import NamedTuple

from simgpu.policies.offload_groups.groups import SavedGroup


class GroupSchedule(NamedTuple):
    """The moments of one group.

    copied: when its copies to the host begin, one after the other; None: each when the tensor is saved. awaited: when
    compute waits for their end; None: never. left: when the tensors are dropped; None: each when its copy has ended.
    fetched: when the copies back begin. arrived: when compute waits for all of them; None: for each where it is used.
    dropped: when the fetched tensors are dropped; None: each when its operator of backward has ended. buffered: whether
    their device memory is there from the begin of the pass on, and not only when they are fetched.
    """

    group: SavedGroup
    copied: int | None
    awaited: int | None
    left: int | None
    fetched: int
    arrived: int | None = None
    dropped: int | None = None
    buffered: bool = False


def transformer_engine(layers: Sequence[SavedGroup], count: int, stop: int) -> list[GroupSchedule]:
    """`DefaultOffloadSynchronizer`: the first `count` layers; each is gone when the layer `len(layers) - count` behind
    it begins, and its fetch begins when backward of the layer in front of that one does.

    stop: the last kernel of backward in the pass.
    """
    ahead = len(layers) - count
    schedules = []
    for n, group in enumerate(layers[:count]):
        left = layers[n + ahead - 1].commit
        dropped = layers[n - 1].begin - 1 if n else stop
        schedules.append(GroupSchedule(group, None, left, left, layers[n + ahead - 1].begin - 1, dropped=dropped))
    return schedules


def windows(layers: int, count: int) -> list[int]:
    """For each of `count` groups the layer at whose end it is dropped, and before whose backward it is fetched.

    >>> windows(8, 3), windows(4, 3)
    ([2, 5, 7], [1, 2, 3])
    """
    size, rest = divmod(layers, count)
    return [size * (n + 1) - 1 + min(n + 1, rest) for n in range(count)]


def transformer_engine_v1(
    layers: Sequence[SavedGroup], count: int, stop: int, *, double_buffering: bool
) -> list[GroupSchedule]:
    """`AsyncDoubleBufferGroupOffloadHandler`: the first `count` layers, spread over windows of all. The next one is
    copied when the one before it is gone, and fetched when the one behind it has arrived.

    stop: the last kernel of backward in the pass. double_buffering: two layers' buffers are there all the time, which
    groups have in turn.
    """
    window = windows(len(layers), count)
    begins = [layers[each].begin - 1 for each in window]
    schedules = []
    for n, group in enumerate(layers[:count]):
        left = layers[window[n]].commit
        copied = layers[window[n - 1]].commit if n else group.commit
        arrived = begins[n - 1] if n else group.begin - 1
        each = GroupSchedule(group, copied, left, left, begins[n], arrived=arrived)
        if double_buffering:
            each = each._replace(dropped=begins[n - 2] if n > 1 else stop, buffered=n >= count - 2)
        schedules.append(each)
    return schedules


def megatron(
    groups: Sequence[SavedGroup], with_tensors: Collection[int], fraction: float, max_inflight: int
) -> list[GroupSchedule]:
    """`ChunkOffloadHandler`: all groups but the last of each name, and of the others the first `fraction`.

    with_tensors: the positions of the groups that have tensors to offload. max_inflight: for each name, as many may be
    under way before compute waits for the oldest; -1: it never waits.
    """
    last = {group.name: n for n, group in enumerate(groups)}
    eligible = [n for n, group in enumerate(groups) if n != last[group.name] and n in with_tensors]
    kept = len(eligible) - int(len(eligible) * (1 - fraction))
    offloaded = sorted(eligible[:kept], key=lambda n: groups[n].commit)
    fetched = _fetches(groups, offloaded)
    pending: defaultdict[str, list[int]] = defaultdict(list)
    awaited: dict[int, int] = {}
    for n in offloaded:
        queue = pending[groups[n].name]
        queue.append(n)
        while 0 <= max_inflight < len(queue):
            awaited[queue.pop(0)] = groups[n].commit
    return [
        GroupSchedule(groups[n], groups[n].commit, awaited.get(n), None, fetched[n], arrived=groups[n].begin - 1)
        for n in offloaded
    ]


def _fetches(groups: Sequence[SavedGroup], offloaded: Sequence[int]) -> dict[int, int]:
    """When each is fetched: at the end of each group's backward, the last that is still away; else where it begins."""
    away = list(offloaded)
    fetched: dict[int, int] = {}
    ends = [(group.end, False, n) for n, group in enumerate(groups)]
    begins = [(groups[n].begin - 1, True, n) for n in offloaded]
    for moment, is_begin, n in sorted(ends + begins):
        if not is_begin and away:
            fetched[away.pop()] = moment
        elif is_begin and n in away:
            away.remove(n)
            fetched[n] = moment
    return fetched
