"""Entries of a measured node file on copies at the same time: duplex of a link, number of GPUs, what they share."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.hardware.spec import Duplex, SwitchSpec
from simgpu.recorder.machine.shared_capacities import MODES, NOISE, Mode, Rates, shared_capacities

#: Key of a node file, its value, and the source of the value.
Entry = tuple[str, object, str]

_NAMES = {Mode.D2H: "device-to-host", Mode.H2D: "host-to-device", Mode.BOTH: "in both directions at once"}
_NOT_SHARED = """\
# No switch and no host.memory_bandwidth is given: copies of all GPUs at once are as fast as those of each alone,
# {}.
"""
_LINKS_DIFFER = """\
# link is that of GPU 0. The slowest GPU alone copies at {} of its rate {}.
"""


@dataclass(frozen=True, slots=True)
class SharingEntries:
    """Entries of the file, the GPUs of each of its switches, and comments for its head."""

    entries: list[Entry]
    switches: tuple[tuple[int, ...], ...] = ()
    comment: str = ""


def sharing_entries(rates: Rates, copy_engines: int | None, by: str, median: str) -> SharingEntries:
    """Returns the entries for measured rates of one GPU or several.

    by: what measured them, and when. median: what each rate is the median of. The duplex of a link is not known with
    one copy engine, which serves one direction at a time.
    """
    count = sum(len(gpus) == 1 for gpus in rates[Mode.D2H])
    every, result = tuple(range(count)), shared_capacities(rates)
    entries: list[Entry] = []
    if result.duplex is Duplex.HALF and copy_engines != 1:
        entries.append(("link.duplex", "half", f"{by}: {median}, pinned, of one GPU: {_together(rates, (0,))}"))
    if count == 1:
        return SharingEntries(entries)
    entries.append(("gpus", count, f"seen by PyTorch, with the name and the memory of the first; {by}"))
    measured = f"{by}: {median}, pinned, of each stream while all copy"
    for number, switch in enumerate(result.switches):
        source = f"{measured}: GPUs {', '.join(map(str, switch.gpus))} at once {_together(rates, switch.gpus)}"
        entries += [(f"switches[{number}].{key}", value, source) for key, value in _values(switch)]
    if result.memory_bandwidth is not None:
        source = f"{measured}: all GPUs at once {_together(rates, every)}; what their copies reach, so a lower bound"
        entries.append(("host.memory_bandwidth", speed(result.memory_bandwidth), source))
    shares = bool(result.switches) or result.memory_bandwidth is not None
    comment = "" if shares else _NOT_SHARED.format(_together(rates, every))
    return SharingEntries(entries, tuple(switch.gpus for switch in result.switches), _slowest(rates, every) + comment)


def speed(bytes_per_second: int) -> str:
    """Formats a bandwidth, rounded to 1 MB/s, which is much less than copies vary.

    >>> speed(12_345_678_901)
    '12.346 GB/s'
    """
    return f"{bytes_per_second / 10**9:.3f} GB/s"


def _values(switch: SwitchSpec) -> list[tuple[str, str]]:
    values = [("d2h_bandwidth", speed(switch.d2h_bandwidth)), ("h2d_bandwidth", speed(switch.h2d_bandwidth))]
    return [*values, ("duplex", "half")] if switch.duplex is Duplex.HALF else values


def _together(rates: Rates, gpus: tuple[int, ...]) -> str:
    """The sum of some GPUs' rates at the same time, by mode."""
    return ", ".join(f"{speed(sum(rates[mode][gpus]))} {_NAMES[mode]}" for mode in MODES)


def _slowest(rates: Rates, every: tuple[int, ...]) -> str:
    """A comment for each mode in which a GPU's own link is slower than the first's; a node's links are all equal."""
    shares = {mode: min(rates[mode][(gpu,)][0] for gpu in every) / rates[mode][(0,)][0] for mode in MODES}
    return "".join(_LINKS_DIFFER.format(f"{s:.0%}", _NAMES[mode]) for mode, s in shares.items() if s < 1 - NOISE)
