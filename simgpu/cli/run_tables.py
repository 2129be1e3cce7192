"""A run told to a person: what was run, where its numbers come from, and the numbers.

Lives here: which lines are shown and in which words. Does not live here: the numbers (`simgpu.analysis`), or
looks (`simgpu.cli.screen`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from simgpu.cli.screen import WIDTH, Screen, facts, table
from simgpu.trace.epochs import epochs_of
from simgpu.units import format_bytes, format_energy, format_power, format_time

if TYPE_CHECKING:
    from simgpu.analysis.breakdown import CopyTime
    from simgpu.analysis.compression import Compression
    from simgpu.analysis.metrics import Metrics
    from simgpu.analysis.power import Power
    from simgpu.experiments.compare import Comparison, Run
    from simgpu.scenario.model import Scenario

_NAMES = 21  # columns that the names of a run's lines take, with the gap after them
_GAP = 2
_ABSENT = "-"
_SHORT = {"out of memory": "no memory", "refused": "refused"}


def show_header(screen: Screen, scenario: Scenario, comparison: Comparison) -> None:
    """What was run, on what, and how far the numbers can be trusted."""
    screen.print(Text(scenario.name, style="bold"))
    screen.print(facts([*scenario.facts(), ("run", _run_line(scenario, comparison))]))
    screen.print()


def show_comparison(screen: Screen, comparison: Comparison) -> None:
    """One line a policy."""
    rows = []
    for run, (label, time, *numbers, _) in zip(comparison, comparison.rows(), strict=True):
        unsteady = run.result is not None and run.result.steady is False
        rows.append((f"{label} *" if unsteady else label, time if run.result else _SHORT[run.failure], *numbers))
    for index, line in enumerate(_lines_of_rows(comparison.headings[:-1], rows)):
        screen.print(Text(line, style="" if index else "bold"))
    if any(result.steady is False for result in comparison.results.values()):
        screen.print("* unsteady: the last two iterations still differ; run more of them")
    if comparison.bound_note:
        screen.print()
        screen.print(Text(comparison.bound_note))
    _show_notes(screen, comparison)


def show_details(screen: Screen, comparison: Comparison) -> None:
    """One column a policy: speed, where the time went, traffic and memory; as many side by side as fit."""
    if not comparison.results:
        return
    for index, runs in enumerate(_side_by_side(comparison.runs)):
        if index:
            screen.print()
        rows = [(name, *texts) for name, texts in _lines(runs)]
        screen.print(table(("", *map(_heading, runs)), rows))
    for note in dict.fromkeys(result.energy_note for result in comparison.results.values() if result.energy_note):
        screen.print()
        screen.print(facts([("energy, power", note)]))
    _show_notes(screen, comparison)


def _lines_of_rows(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Names to the left, numbers to the right; a name that leaves them too little room has a line of its own."""
    widths = [max(map(len, column)) + _GAP for column in zip(headings, *rows, strict=True)]
    room = WIDTH - sum(widths[1:])
    width = max(len(row[0]) for row in (headings, *rows) if len(row[0]) <= room)
    for name, *numbers in (headings, *rows):
        if len(name) > width:
            yield name
        first = "" if len(name) > width else name
        yield first.ljust(width) + "".join(text.rjust(wide) for text, wide in zip(numbers, widths[1:], strict=True))


def _show_notes(screen: Screen, comparison: Comparison) -> None:
    """What policies have to say about their runs."""
    notes = [(label, note) for label, result in comparison.results.items() for note in result.notes]
    if notes:
        screen.print()
        screen.print(facts(notes))


def _run_line(scenario: Scenario, comparison: Comparison) -> str:
    results = comparison.results.values()
    pools = sorted({result.pool for result in results})
    budget = f"budget {format_bytes(scenario.budget)}" if scenario.budget is not None else ""
    count = scenario.iterations
    told = [
        f"{count} iterations, the last one reported" if count > 1 else "1 iteration",
        _steadiness([result.steady for result in results]),
        budget,
        f"{' and '.join(pools)} pool" if pools else "",
        f"seed {scenario.seed}",
        f"epoch {scenario.epoch}" if epochs_of(scenario.trace) else "",
    ]
    return "; ".join(part for part in told if part)


def _steadiness(steady: Sequence[bool | None]) -> str:
    if not steady:
        return ""
    if None in steady:
        return "one iteration does not tell whether it is steady"
    if all(steady):
        return "steady"
    return "some runs UNSTEADY, see below" if any(steady) else "UNSTEADY: iterations still differ"


def _heading(run: Run) -> str:
    """The policy's name, with its parameters on a second line."""
    name, _, parameters = run.label.partition("(")
    return f"{name}\n{parameters.removesuffix(')')}" if parameters else name


def _side_by_side(runs: Sequence[Run]) -> Iterator[tuple[Run, ...]]:
    """The runs in groups that fit the width."""
    group: list[Run] = []
    width = _NAMES
    for run in runs:
        needed = max(len("out of memory"), *map(len, _heading(run).splitlines()))
        if group and width + needed > WIDTH:
            yield tuple(group)
            group, width = [], _NAMES
        group.append(run)
        width += needed + _GAP
    if group:
        yield tuple(group)


def _lines(runs: Sequence[Run]) -> Iterator[tuple[str, list[str]]]:
    metrics = [run.result.metrics if run.result else None for run in runs]

    def line(name: str, cell: Callable[[Metrics], str]) -> tuple[str, list[str]]:
        return name, [cell(found) if found else _ABSENT for found in metrics]

    def part(name: str, nanoseconds: Callable[[Metrics], int]) -> Iterator[tuple[str, list[str]]]:
        if any(found and nanoseconds(found) for found in metrics):
            yield line(name, lambda found: _with_share(nanoseconds(found), found.iteration_ns))

    yield "iteration", [format_time(run.result.metrics.iteration_ns) if run.result else run.failure for run in runs]
    if not any(metrics):
        return
    yield line("samples/s", lambda found: _number(found.samples_per_s))
    yield line("slowdown", lambda found: f"{found.slowdown:.3f}x")
    if any(found and found.speedup is not None for found in metrics):
        yield line("speedup of the GPUs", lambda found: f"{found.speedup:.3f}x")
        yield line("  longer than alone", lambda found: _signed(found.together_ns))
    if any(run.result.steady is False for run in runs if run.result):
        yield "state", ["" if not run.result else "steady" if run.result.steady else "UNSTEADY" for run in runs]
    yield "", [""] * len(runs)
    yield from part("compute", lambda found: found.breakdown.compute)
    yield from part("  beside copies", lambda found: found.breakdown.overlap)
    yield from part("recompute", lambda found: found.breakdown.recompute)
    yield from part("codec", lambda found: found.breakdown.codec)
    yield from part("stalled on copy-out", lambda found: found.breakdown.stalled_copy_out)
    yield from part("stalled on copy-in", lambda found: found.breakdown.stalled_copy_in)
    yield from part("stalled on memory", lambda found: found.breakdown.stalled_memory)
    yield from part("stalled on host", lambda found: found.breakdown.stalled_host)
    yield from part("stalled otherwise", lambda found: found.breakdown.stalled_other)
    yield "", [""] * len(runs)
    yield line("copied out", lambda found: format_bytes(found.bytes_out))
    yield line("  beside compute", lambda found: _hidden(found.breakdown.copy_out))
    yield line("  link in use", lambda found: f"{found.link_utilisation_out:.1%}")
    yield line("copied in", lambda found: format_bytes(found.bytes_in))
    yield line("  beside compute", lambda found: _hidden(found.breakdown.copy_in))
    yield line("  link in use", lambda found: f"{found.link_utilisation_in:.1%}")
    if any(found and found.codec_share for found in metrics):
        yield line("swapping latency", lambda found: format_time(found.swapping_ns))
        yield line("  of it codecs", lambda found: f"{found.codec_share:.1%}" if found.codec_share else _ABSENT)
    yield "", [""] * len(runs)
    yield line("device memory, peak", lambda found: format_bytes(found.device_peak_bytes))
    yield line("  mean", lambda found: format_bytes(found.device_mean_bytes))
    if any(found and found.device_peak_used_bytes != found.device_peak_bytes for found in metrics):
        yield line("  peak with padding", lambda found: format_bytes(found.device_peak_used_bytes))
    if any(found and found.fragmentation is not None for found in metrics):
        yield line("  fragmentation", lambda found: _share(found.fragmentation))
    yield from _compression_lines([found.compression if found else None for found in metrics])
    yield line("host memory, peak", lambda found: format_bytes(found.host_peak_bytes))
    yield from _power_lines([found.power if found else None for found in metrics])


def _compression_lines(found: Sequence[Compression | None]) -> Iterator[tuple[str, list[str]]]:
    """What compressed memory saved, and what lies beside it; nothing where no run compresses."""

    def line(name: str, cell: Callable[[Compression], str]) -> tuple[str, list[str]]:
        return name, [cell(each) if each else _ABSENT for each in found]

    if not any(found):
        return
    yield line("  compressed", lambda each: f"{each.ratio:.2f}x")
    yield line("  metadata hits", lambda each: f"{each.hit_rate:.1%}")
    yield line("buddy memory, peak", lambda each: format_bytes(each.buddy_peak_bytes))
    yield line("  entries overflow", lambda each: f"{each.overflow_share:.1%}")
    yield line("  read by kernels", lambda each: format_bytes(each.read_bytes))
    yield line("  written", lambda each: format_bytes(each.written_bytes))


def _power_lines(powers: Sequence[Power | None]) -> Iterator[tuple[str, list[str]]]:
    """Energy by part, and power beside the limit of the board; nothing where no run knows them."""

    def line(name: str, cell: Callable[[Power], str]) -> tuple[str, list[str]]:
        return name, [cell(power) if power else _ABSENT for power in powers]

    def part(name: str, nanojoules: Callable[[Power], int]) -> tuple[str, list[str]]:
        return line(name, lambda power: f"{nanojoules(power) / power.energy_nj:.1%}" if power.energy_nj else _ABSENT)

    if not any(powers):
        return
    yield "", [""] * len(powers)
    yield line("energy", lambda power: format_energy(power.energy_nj))
    yield part("  idle", lambda power: power.idle_nj)
    yield part("  arithmetic", lambda power: power.arithmetic_nj)
    yield part("  to device memory", lambda power: power.dram_nj)
    yield part("  over the link", lambda power: power.link_nj)
    yield line("power, average", lambda power: format_power(1000 * power.average_w))
    yield line("  of the limit", lambda power: f"{power.average_share:.1%}")
    yield line("  largest in 20 ms", lambda power: format_power(1000 * power.largest_w))
    yield line("  of the limit", lambda power: f"{power.largest_share:.1%}")


def _with_share(part: int, whole: int) -> str:
    return f"{format_time(part)} {part / whole:4.0%}" if part else _ABSENT


def _hidden(copy: CopyTime) -> str:
    total = copy.hidden + copy.exposed
    return f"{copy.hidden / total:.1%}" if total else _ABSENT


def _share(value: float | None) -> str:
    return _ABSENT if value is None else f"{value:.1%}"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _signed(nanoseconds: int | None) -> str:
    """A difference of times."""
    if nanoseconds is None:
        return _ABSENT
    return f"-{format_time(-nanoseconds)}" if nanoseconds < 0 else format_time(nanoseconds)
