"""Flows: bytes on their way over shared links, at rates that are fair and whole numbers.

A flow has a path over links, a number of bytes, and a cap on its rate. Rates change only when a flow starts or ends or
its cap changes, on whole nanoseconds; an end rounds up; a flow that is alone on its path takes exactly the closed form
of `simgpu.memory.transfer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import simpy

from simgpu.memory.transfer import NANO


def max_min_rates(paths: Sequence[tuple[str, ...]], caps: Sequence[int], capacities: Mapping[str, int]) -> list[int]:
    """Max-min fair rates in whole bytes per second.

    paths[i]: links flow i uses; caps[i]: its own limit. Flows are raised together until a link is full or a cap is
    reached; what a full link cannot divide evenly is left unused. The tightest limit is settled first, by name
    where equal, so the result does not depend on the order of the flows.

    >>> max_min_rates([("bus",), ("bus",)], [100, 30], {"bus": 100})
    [70, 30]
    >>> max_min_rates([("bus",), ("bus",)], [100, 100], {"bus": 101})
    [50, 50]
    """
    rates = [0] * len(paths)
    left = dict(capacities)
    open_flows = set(range(len(paths)))
    while open_flows:
        share = {
            link: left[link] // sum(link in paths[i] for i in open_flows)
            for link in sorted({link for i in open_flows for link in paths[i]})
        }
        limit = {i: min([caps[i], *(share[link] for link in paths[i])]) for i in open_flows}
        lowest = min(limit.values())
        for i in sorted(open_flows):
            if limit[i] == lowest:
                rates[i] = lowest
                open_flows.discard(i)
                for link in paths[i]:
                    left[link] -= lowest
    return rates


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes under way; `left` counts billionths of a byte, so that progress at any whole rate is exact.

    cap: tells its own limit, bytes per second; asked whenever rates are shared out.
    """

    path: tuple[str, ...]
    cap: Callable[[], int]
    left: int
    done: Callable[[], None]
    rate: int = 0
    timer: int = 0


@dataclass(slots=True, eq=False)
class FlowNetwork:
    """The flows under way over links of given capacity (bytes per second).

    settled: called after every event of the network, also one that turns out to mean nothing any more because the
    flow's rate has changed since: whoever waits for the last event of an instant must hear of each.
    """

    env: simpy.Environment
    capacities: Mapping[str, int]
    settled: Callable[[], None]
    flows: list[Flow] = field(default_factory=list)
    last: int = 0

    def start(self, path: tuple[str, ...], cap: Callable[[], int], size: int, done: Callable[[], None]) -> None:
        """Send `size` bytes; `done` is called when the last one has arrived."""
        self._progress()
        self.flows.append(Flow(path, cap, size * NANO, done))
        self._share()

    def share_anew(self) -> None:
        """Some flow's own limit has changed."""
        if self.flows:
            self._progress()
            self._share()

    def _progress(self) -> None:
        now = int(self.env.now)
        for flow in self.flows:
            flow.left -= flow.rate * (now - self.last)
        self.last = now

    def _share(self) -> None:
        rates = max_min_rates([f.path for f in self.flows], [f.cap() for f in self.flows], self.capacities)
        if not any(rates):
            # A link too slow to give every flow a whole byte per second serves the first and lets the others wait.
            rates[0] = 1
        for flow, rate in zip(self.flows, rates, strict=True):
            if rate != flow.rate:
                flow.rate = rate
                flow.timer += 1
                if rate:
                    timeout = self.env.timeout(-(-max(flow.left, 0) // rate))
                    timeout.callbacks.append(self._expiry(flow, flow.timer))

    def _expiry(self, flow: Flow, timer: int) -> Callable[[simpy.Event], None]:
        def expire(_: simpy.Event) -> None:
            if flow.timer == timer:
                self._progress()
                self.flows.remove(flow)
                if self.flows:
                    self._share()
                flow.done()
            self.settled()

        return expire
