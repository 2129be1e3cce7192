"""SimPy's own events in the machine's order."""

from __future__ import annotations

from collections.abc import Generator
from random import Random

import simpy

from simgpu.machine.instants import InstantOrder


def test_a_waiter_comes_before_a_timeout_of_the_same_instant() -> None:
    env, order = InstantOrder(streams=1), list[str]()
    happened = env.event()

    def waits(name: str, event: simpy.Event) -> Generator[simpy.Event, None, None]:
        yield event
        order.append(name)

    def signals(after: simpy.Event) -> Generator[simpy.Event, None, None]:
        yield after
        happened.succeed()

    env.process(waits("waiter", happened))
    env.process(signals(env.timeout(5)))
    env.process(waits("timeout", env.timeout(5)))
    env.run()
    assert order == ["waiter", "timeout"]


def test_run_until_a_time_ends_before_every_round_of_it() -> None:
    env, times = InstantOrder(streams=1), list[int]()

    def works(at: int) -> Generator[simpy.Event, None, None]:
        yield env.timeout(at)
        for _ in range(3):
            times.append(env.instant)
            yield env.timer(0, rank=0)

    env.process(works(1))
    env.process(works(5))
    for until in (2, 5, 6):
        env.run(until=until)
        assert times == [at for at in (1, 5) for _ in range(3) if at < until]


def test_work_that_need_not_wait_for_its_end_takes_the_same_course() -> None:
    courses = [_course(seed, waits_always) for waits_always in (True, False) for seed in range(20)]
    assert courses[:20] == courses[20:]


def _course(seed: int, waits_always: bool) -> list[tuple[int, int]]:
    """When each of two streams ends its works, which one event lets begin."""
    random, env, order = Random(seed), InstantOrder(streams=3), list[tuple[int, int]]()
    gate = env.timeout(5)

    def works(rank: int, durations: list[int]) -> Generator[simpy.Event, None, None]:
        yield gate
        for duration in durations:
            if waits_always or not env.has_passed(duration, rank):
                yield env.timer(duration, rank)
            order.append((env.instant, rank))

    for rank in (1, 2):
        env.process(works(rank, random.choices(range(4), k=rank * 4)))
    env.run()
    return order
