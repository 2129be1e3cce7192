"""Derives what the GPUs of a node share on their way to the host from measured rates of their copies.

The model is that of `simgpu.hardware.sharing`: each GPU has its own link, each may be behind one switch, and the copies
of all GPUs share the bandwidth of the host's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import combinations

from simgpu.hardware.spec import Duplex, SwitchSpec
from simgpu.recorder.machine.bandwidth import CopyDirection

#: Smallest relative difference of two rates that counts; less is the variation of copies.
NOISE = 0.05


class Mode(Enum):
    """What each GPU copies at the same time: in one direction, or in both."""

    D2H = (CopyDirection.OUT,)
    H2D = (CopyDirection.IN,)
    BOTH = (CopyDirection.OUT, CopyDirection.IN)

    @property
    def directions(self) -> tuple[CopyDirection, ...]:
        """The directions of a GPU's copies."""
        directions: tuple[CopyDirection, ...] = self.value
        return directions


MODES = tuple(Mode)

#: By mode and by the GPUs that copy at the same time, the bytes per second of each, both directions together.
Rates = dict[Mode, dict[tuple[int, ...], tuple[int, ...]]]
_Pair = tuple[int, int]
#: Bytes per second of some copies together, by mode.
Totals = Mapping[Mode, int]


@dataclass(frozen=True, slots=True)
class SharedCapacities:
    """What the copies of a node's GPUs share, bytes per second.

    duplex: of each GPU's own link. switches: those that limit some of the GPUs, or all of them. memory_bandwidth: of
    the host's memory, both directions together; None if copies of all GPUs do not reach it.
    """

    duplex: Duplex
    switches: tuple[SwitchSpec, ...] = ()
    memory_bandwidth: int | None = None


def shared_capacities(rates: Rates) -> SharedCapacities:
    """Derives what GPUs share from the rates of each alone and, where measured, of several at the same time.

    >>> alone = {(0,): (10,), (1,): (10,)}
    >>> rates = {Mode.D2H: {**alone, (0, 1): (6, 6)}, Mode.H2D: {**alone, (0, 1): (7, 7)}}
    >>> shared_capacities(rates | {Mode.BOTH: {(0,): (20,), (1,): (20,), (0, 1): (13, 13)}}).switches
    (SwitchSpec(gpus=(0, 1), d2h_bandwidth=12, h2d_bandwidth=14, duplex=<Duplex.FULL: 'full'>, links=()),)
    """
    first = {mode: rates[mode][(0,)][0] for mode in MODES}
    duplex = _duplex(first, first[Mode.D2H] + first[Mode.H2D])
    every = _every(rates)
    some = groups(rates)
    parts = [*some, *((gpu,) for gpu in every if not any(gpu in each for each in some))]
    together = {part: _total(rates, part) for part in parts}
    whole = _total(rates, every)
    switches = []
    for part in some:
        # What the group reaches is its own limit only if all GPUs together reach more.
        own = {mode: mode in short_modes(rates, part) and _is_less(together[part][mode], whole[mode]) for mode in MODES}
        alone = _sum(_total(rates, (gpu,)) for gpu in part)
        limit = _limit(part, alone, {mode: (together[part] if own[mode] else alone)[mode] for mode in MODES})
        switches += [limit] if limit else []
    last = _limit(every, _sum(together.values()), whole)
    if last is None:
        return SharedCapacities(duplex, tuple(switches))
    if last.duplex is Duplex.FULL and not switches:
        return SharedCapacities(duplex, (last,))
    memory = max(whole.values()) if last.duplex is Duplex.FULL else max(last.d2h_bandwidth, last.h2d_bandwidth)
    return SharedCapacities(duplex, tuple(switches), memory)


def short_modes(rates: Rates, gpus: tuple[int, ...]) -> list[Mode]:
    """The modes in which one of some GPUs is slower at the same time as the others than alone."""
    return [
        mode
        for mode in MODES
        if gpus in rates[mode]
        and any(
            _is_less(together, rates[mode][(gpu,)][0]) for gpu, together in zip(gpus, rates[mode][gpus], strict=True)
        )
    ]


def pairs_fall_short(rates: Rates) -> bool:
    """Whether every measured pair is slower than each of its GPUs alone, in some mode."""
    return any(
        all(share < 1 - NOISE for share in shares.values()) for mode in MODES if (shares := _shares(rates, mode))
    )


def groups(rates: Rates) -> list[tuple[int, ...]]:
    """The GPUs that share something that others do not, two or more each.

    Those of a pair that gets a smaller share of its rates alone than other pairs; or else those that are faster while
    one of them does not copy.
    """
    every = _every(rates)
    slow = []
    for mode in MODES:
        shares = _shares(rates, mode)
        best = max(shares.values(), default=0.0)
        slow += [pair for pair, share in shares.items() if share < (1 - NOISE) * best]
    by_mode = (_proper(list(_faster_without(rates[mode], every)), every) for mode in MODES)
    return _proper(slow, every) or next((some for some in by_mode if some), [])


def _faster_without(rates: Mapping[tuple[int, ...], tuple[int, ...]], every: tuple[int, ...]) -> Iterator[_Pair]:
    """Pairs of a GPU and one that is faster while the first does not copy."""
    for absent in every:
        others = tuple(gpu for gpu in every if gpu != absent)
        if len(others) > 1 and others in rates:
            before = dict(zip(every, rates[every], strict=True))
            after = zip(others, rates[others], strict=True)
            yield from ((absent, gpu) for gpu, rate in after if _is_less(before[gpu], rate))


def _proper(pairs: list[_Pair], every: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The GPUs that pairs connect; none where that is all of them."""
    group = {gpu: {gpu} for gpu in every}
    for one, other in pairs:
        joined = group[one] | group[other]
        group.update(dict.fromkeys(joined, joined))
    several = sorted({tuple(sorted(each)) for each in group.values() if len(each) > 1})
    return [each for each in several if len(each) < len(every)]


def _shares(rates: Rates, mode: Mode) -> dict[_Pair, float]:
    """The rates of each measured pair over the sum of each alone; none for two GPUs, which are all."""
    every = _every(rates)
    return {
        (one, other): sum(rates[mode][one, other]) / (rates[mode][(one,)][0] + rates[mode][(other,)][0])
        for one, other in combinations(every, 2)
        if len(every) > 2 and (one, other) in rates[mode]
    }


def _limit(gpus: tuple[int, ...], apart: Totals, together: Totals) -> SwitchSpec | None:
    """What limits copies at the same time, as a switch; None where they are as fast as apart.

    Copies in both directions at once may be the only ones that reach it: then the directions share it.
    """
    limited = [mode for mode in MODES if _is_less(together[mode], apart[mode])]
    if not limited:
        return None
    d2h, h2d = together[Mode.D2H], together[Mode.H2D]
    if limited != [Mode.BOTH] and _duplex(together, min(d2h + h2d, apart[Mode.BOTH])) is Duplex.FULL:
        return SwitchSpec(gpus, d2h, h2d)
    shared = max(together[mode] for mode in limited)
    return SwitchSpec(gpus, shared, shared, Duplex.HALF)


def _duplex(totals: Totals, separate: int) -> Duplex:
    """Full if both directions at once are nearer to `separate`, their rate without sharing, than to the faster one."""
    faster = max(totals[Mode.D2H], totals[Mode.H2D])
    return Duplex.FULL if 2 * totals[Mode.BOTH] >= faster + separate else Duplex.HALF


def _total(rates: Rates, gpus: tuple[int, ...]) -> Totals:
    """What some GPUs reach at the same time; in a mode that was not measured, the sum of each alone."""
    alone = {mode: sum(rates[mode][(gpu,)][0] for gpu in gpus) for mode in MODES}
    return {mode: sum(rates[mode][gpus]) if gpus in rates[mode] else alone[mode] for mode in MODES}


def _sum(totals: Iterable[Totals]) -> Totals:
    each = list(totals)
    return {mode: sum(one[mode] for one in each) for mode in MODES}


def _every(rates: Rates) -> tuple[int, ...]:
    """All GPUs, each of which was measured alone."""
    return tuple(sorted(gpus[0] for gpus in rates[Mode.D2H] if len(gpus) == 1))


def _is_less(one: float, other: float) -> bool:
    return one < (1 - NOISE) * other
