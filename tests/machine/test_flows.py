"""Flows over shared links: max-min fair integer rates, and progress over time."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.machine.flows import FlowNetwork, max_min_rates

LINKS = ("a", "b", "c")
paths = st.lists(st.sampled_from(LINKS), min_size=1, max_size=3, unique=True).map(tuple)
networks = st.fixed_dictionaries({link: st.integers(1, 60) for link in LINKS})
flows = st.lists(st.tuples(paths, st.integers(1, 60)), min_size=1, max_size=5)


def brute_force_rates(wanted: list[tuple[tuple[str, ...], int]], capacities: dict[str, int]) -> list[int]:
    """Raise all flows by one byte per second at a time; a flow stops at its cap, or if a link of its path cannot give
    every flow that still rises on it one more."""
    rates = [0] * len(wanted)
    rising = set(range(len(wanted)))
    while rising:
        stopped = set()
        for i in rising:
            path, cap = wanted[i]
            for link in path:
                used = sum(rates[j] for j, (other, _) in enumerate(wanted) if link in other)
                more = sum(link in wanted[j][0] for j in rising)
                if used + more > capacities[link]:
                    stopped.add(i)
            if rates[i] >= cap:
                stopped.add(i)
        rising -= stopped
        if not stopped:
            for i in rising:
                rates[i] += 1
    return rates


@settings(deadline=None)
@given(flows, networks)
def test_rates_equal_brute_force_max_min_fairness(
    wanted: list[tuple[tuple[str, ...], int]], capacities: dict[str, int]
):
    result = max_min_rates([path for path, _ in wanted], [cap for _, cap in wanted], capacities)
    assert result == brute_force_rates(wanted, capacities)


@given(flows, networks, st.randoms())
def test_rates_do_not_depend_on_the_order_of_the_flows(wanted: list[tuple[tuple[str, ...], int]], capacities, chance):
    order = list(range(len(wanted)))
    chance.shuffle(order)
    there = max_min_rates([p for p, _ in wanted], [c for _, c in wanted], capacities)
    mixed = max_min_rates([wanted[i][0] for i in order], [wanted[i][1] for i in order], capacities)
    assert mixed == [there[i] for i in order]


@given(flows, networks)
def test_no_link_exceeds_its_capacity(wanted: list[tuple[tuple[str, ...], int]], capacities: dict[str, int]):
    rates = max_min_rates([path for path, _ in wanted], [cap for _, cap in wanted], capacities)
    for link, capacity in capacities.items():
        assert sum(rate for rate, (path, _) in zip(rates, wanted, strict=True) if link in path) <= capacity
    assert all(rate <= cap for rate, (_, cap) in zip(rates, wanted, strict=True))


def ends(sent: list[tuple[int, int, int]], capacity: int) -> list[int]:
    """End times of flows (start ns, cap, bytes) over one link."""
    env = simpy.Environment(initial_time=0)
    network = FlowNetwork(env, {"link": capacity})
    done = [-1] * len(sent)

    def begin(index: int, cap: int, size: int) -> None:
        passed = network.send(("link",), size, lambda: cap)
        passed.callbacks.append(lambda _: done.__setitem__(index, int(env.now)))

    for index, (start, cap, size) in enumerate(sent):
        env.timeout(start).callbacks.append(lambda _, i=index, c=cap, s=size: begin(i, c, s))
    env.run()
    return done


def fair(caps: list[int], capacity: int) -> list[Fraction]:
    """Max-min fair rates on one link as fractions: the smallest cap below an equal share is settled first."""
    rates = [Fraction(0)] * len(caps)
    left = Fraction(capacity)
    for settled, i in enumerate(sorted(range(len(caps)), key=lambda i: caps[i])):
        rates[i] = min(Fraction(caps[i]), left / (len(caps) - settled))
        left -= rates[i]
    return rates


def slow_ends(sent: list[tuple[int, int, int]], capacity: int) -> list[int]:
    """The same, nanosecond by nanosecond, with caps and capacity in bytes per nanosecond."""
    left = [Fraction(size) for *_, size in sent]
    done = [-1] * len(sent)
    now = 0
    while -1 in done:
        active = [i for i, (start, *_) in enumerate(sent) if start <= now and done[i] < 0]
        for i in [i for i in active if left[i] <= 0]:
            done[i] = now
        active = [i for i in active if done[i] < 0]
        for i, rate in zip(active, fair([sent[i][1] for i in active], capacity), strict=True):
            left[i] -= rate
        now += 1
    return done


G = 10**9


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([(0, G, 10)], [10]),
        ([(0, G, 0)], [0]),
        ([(0, G, 10), (0, G, 10)], [20, 20]),
        ([(0, G, 10), (5, G, 10)], [15, 20]),
        ([(0, G, 10), (10, G, 10)], [10, 20]),
        ([(0, G // 4, 10), (0, G, 30)], [40, 40]),
        ([(0, G, 10), (0, G, 10), (0, G, 10)], [31, 31, 31]),
    ],
)
def test_flows_on_one_link_share_it_fairly(sent: list[tuple[int, int, int]], expected: list[int]):
    assert ends(sent, G) == expected


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from([3, 5, 10]), st.integers(0, 40)), min_size=1, max_size=4),
    st.sampled_from([4, 7, 10]),
)
def test_progress_equals_a_simulation_of_every_nanosecond(sent: list[tuple[int, int, int]], capacity: int):
    """Rates of a few bytes per nanosecond, scaled so that the network's rates in bytes per second divide evenly."""
    unit = G * 5040
    fast = [(start, cap * unit, size * 5040) for start, cap, size in sent]
    assert ends(fast, capacity * unit) == slow_ends(sent, capacity)


@given(st.integers(1, 10**12), st.integers(0, 10**12))
def test_a_single_flow_matches_the_closed_form(rate: int, size: int):
    assert ends([(0, rate, size)], rate) == [ceil(Fraction(size * 10**9, rate))]


def test_a_link_below_one_byte_per_second_and_flow_still_delivers():
    """One byte per second for two flows: both must end."""
    assert -1 not in ends([(0, 1, 2), (0, 1, 2)], 1)
