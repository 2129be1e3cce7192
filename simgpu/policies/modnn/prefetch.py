"""When to prefetch, and whether it is of use (moDNN, section 5.2.2)."""

from __future__ import annotations

from collections.abc import Iterable

from simgpu.policies.modnn.memory import DeviceMemory
from simgpu.policies.modnn.tasks import Tasks


def should_start(tasks: Tasks, now: int, task: int, missing: Iterable[int]) -> bool:
    """Equation 9: whether fetching what a task lacks would delay it if it began only after task `now`.

    Its expected start is the sum of the fastest times up to it, later by every delay so far; since these delays are in
    the present time too, what is left to compare is the transfers with the fastest times of the tasks in between.
    """
    return sum(tasks.in_ns[b] for b in missing) > tasks.fast[task] - tasks.fast[now + 1]


def will_fit(tasks: Tasks, memory: DeviceMemory, now: int, task: int, capacity: int) -> bool:
    """Whether all tasks after `now` up to `task` will find memory without defragmentation, by a guess ahead.

    As the paper guesses: from before task `now` on, every block can be offloaded but what nobody has used since it was
    made or fetched, and everything that the tasks in between lack is fetched in time and thus used. capacity: bytes
    for data blocks.
    """
    held = set(memory.unused)
    for index in range(now, task + 1):
        each = tasks.tasks[index]
        if index > now:
            least = min((choice.workspace_bytes for choice in each.choices), default=0)
            if sum(tasks.sizes[b] for b in held.union(each.touched)) + least > capacity:
                return False
        held.update(each.outputs)
        held.difference_update(each.inputs, each.dying, each.saved)
    return True
