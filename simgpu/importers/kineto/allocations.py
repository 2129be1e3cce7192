"""Device memory as the profiler saw it come and go, in terms of the kernels of an iteration."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from simgpu.errors import InputError
from simgpu.importers.kineto.attribution import Attribution
from simgpu.importers.kineto.nesting import innermost
from simgpu.importers.kineto.profile import MemoryEvent, Thread


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory that was allocated in the iteration: where, when (ns), how much; freed: when, None while it is held.

    op: position of the innermost operator around the allocation, -1 where none.
    """

    thread: Thread
    at: int
    bytes: int
    op: int
    freed: int | None = None

    def is_held(self, moment: int) -> bool:
        return self.at <= moment and (self.freed is None or moment <= self.freed)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """All memory events of the iteration's device.

    held_before: bytes allocated when the first kernel was launched, less what was allocated in the iteration; -1
    where the recording has no totals. let_go: (bytes, moment) of memory from before the iteration, freed after its
    first launch. peak: the most that was allocated at once, as the framework counts; None where it does not.
    """

    allocations: tuple[Allocation, ...]
    let_go: tuple[tuple[int, int], ...]
    held_before: int
    peak: int | None


def device_memory(attribution: Attribution) -> DeviceMemory | None:
    """The memory events of an iteration; None where the recording has none."""
    iteration, profile = attribution.iteration, attribution.profile
    device = iteration.kernels[0].device
    events = sorted(
        (event for event in profile.memory if event.device == device and iteration.contains(event.at)),
        key=lambda event: (event.at, event.number),
    )
    if not events:
        return None
    around = innermost(attribution.ops, [(event.thread, event.at) for event in events])
    first_launch = min(launched.at for launched in attribution.launched)
    held: dict[int, Allocation] = {}
    allocations, let_go = [], []
    before = events[0].total - events[0].bytes if events[0].total >= 0 else -1
    for event, op in zip(events, around, strict=True):
        if event.bytes > 0:
            _require_free(profile.path, event, held)
            allocation = Allocation(event.thread, event.at, event.bytes, op)
            allocations.append(allocation)
            held[event.address] = allocation
        elif event.address in held:
            held.pop(event.address).freed = event.at
        elif event.at >= first_launch:
            let_go.append((-event.bytes, event.at))
        elif before >= 0:
            before += event.bytes
    peak = max(event.total for event in events)
    return DeviceMemory(tuple(allocations), tuple(let_go), max(before, -1), peak if peak >= 0 else None)


def _require_free(path: object, event: MemoryEvent, held: dict[int, Allocation]) -> None:
    if event.address in held:
        what = f"allocates address {event.address}, which was allocated before and not freed"
        remedy = "the events of several processes or devices are mixed, or some are missing: record it again"
        raise InputError.single(str(path), f"event {event.number} ([memory])", what, remedy)


class Moments:
    """From moments of the CPU to kernels: a free that follows a launch lets go after that kernel."""

    def __init__(self, attribution: Attribution) -> None:
        self.attribution = attribution
        self.order = attribution.launch_order
        self._at = [attribution.launched[position].at for position in self.order]

    def kernels_from(self, moment: int) -> int | None:
        """The first kernel launched at or after a moment; None where none."""
        place = bisect_right(self._at, moment - 1)
        return self.order[place] if place < len(self.order) else None

    def kernel_until(self, moment: int) -> int | None:
        """The last kernel launched up to a moment; None where none."""
        place = bisect_right(self._at, moment)
        return self.order[place - 1] if place else None

    def is_idle(self, allocation: Allocation) -> bool:
        """Whether no kernel was launched while the memory was held."""
        first = bisect_right(self._at, allocation.at - 1)
        return allocation.freed is not None and bisect_right(self._at, allocation.freed) <= first

    def writers(self, allocation: Allocation) -> list[int]:
        """Kernels that the operator around an allocation launched while it was held.

        The innermost such operator; of those inside it, the first that launched one.
        """
        attribution = self.attribution
        for op in attribution.operators(allocation.op):
            end = attribution.ops[op].end
            first = bisect_right(self._at, allocation.at - 1)
            inside = [
                position
                for position in self.order[first : bisect_right(self._at, end)]
                if allocation.is_held(attribution.launched[position].at)
                and op in attribution.chain(attribution.launched[position].op)
            ]
            if inside:
                launcher = attribution.launched[inside[0]].op
                return [position for position in inside if attribution.launched[position].op == launcher]
        return []
