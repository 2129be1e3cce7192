"""``simgpu validate record``: measure this machine, and run models on it under four ways to manage memory."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from simgpu.cli.group import INTERRUPTED, wrapped
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.suggestions import suggest
from simgpu.errors import InputError
from simgpu.recorder.assemble import spread
from simgpu.units import format_bandwidth, format_bytes, format_time
from simgpu.validation.harness import CASES, SMALL_CASES, CasePlan, Recorded, choose, record_cases
from simgpu.validation.harness.entry import DEFAULT_REPETITIONS, DEFAULT_WARMUP
from simgpu.validation.measured import Case, MeasuredMachine, MeasuredRun, Method
from simgpu.validation.outcome import STEADY

_COUNT = click.IntRange(min=1, max=10**6)
#: A case stands in a row of its own, above its methods.
_HEADINGS = ("case and method", "step", "spread", "peak", "out", "in")


def _listed(title: str, plans: Sequence[CasePlan]) -> str:
    """A model a line, with its cases."""
    models = dict.fromkeys(plan.model for plan in plans)
    lines = [", ".join(plan.name for plan in plans if plan.model == model) for model in models]
    return "\b\n" + "\n  ".join([f"{title}:", *lines])


_LISTS = f"{_listed('Cases', CASES)}\n\n{_listed('Cases of --small', SMALL_CASES)}"


@click.command(epilog=_LISTS)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="DIR", help="Folder to write.")
@click.option(
    "--case",
    "cases",
    multiple=True,
    metavar="NAME",
    shell_complete=suggest(lambda: [plan.name for plan in (*CASES, *SMALL_CASES)]),
    help="Only this case; repeatable.",
)
@click.option("--small", is_flag=True, help="Small models, for a CPU or to try it: minutes on two cores.")
@click.option(
    "--device",
    default="cuda",
    show_default=True,
    metavar="cuda|cuda:N|cpu",
    shell_complete=suggest(lambda: ("cuda", "cpu")),
    help="Where they run.",
)
@click.option("--warmup", type=_COUNT, default=DEFAULT_WARMUP, show_default=True, help="Steps run first.")
@click.option("--repetitions", type=_COUNT, default=DEFAULT_REPETITIONS, show_default=True, help="Timed steps.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of weights and data.")
@click.option("--force", is_flag=True, help="Measure again what is there already.")
@quiet_option
def record(
    output: Path,
    cases: tuple[str, ...],
    small: bool,
    device: str,
    warmup: int,
    repetitions: int,
    seed: int,
    force: bool,
    quiet: bool,
) -> None:
    """Measure this machine and run models on it, really, under four ways to manage memory.

    For each case: its trace, then the same training iteration plain, with activation checkpointing of every block
    (checkpoint), with PyTorch's save_on_cpu, and with an asynchronous offload. Kept: the time of every step, peak
    memory, bytes copied, and what the device did in one step. Cases that are in the folder already are left as they
    are, so that the same command goes on where it was stopped. Best run while nothing else uses the machine. Needs
    PyTorch (the extra 'record').

    \b
    simgpu validate record -o my-gpu
    simgpu validate record -o my-gpu --case vgg16-b32 --case resnet50-b32
    simgpu validate record -o my-cpu --device cpu --small
    """
    plans = choose(SMALL_CASES if small else CASES, cases)
    try:
        with progress(quiet) as say:
            result = record_cases(
                output,
                plans,
                device=device,
                repetitions=repetitions,
                warmup=warmup,
                seed=seed,
                force=force,
                say=say,
            )
    except (KeyboardInterrupt, SystemExit) as stop:
        click.echo("stopped; cases that were done are kept, and the same command goes on", err=True)
        sys.exit(INTERRUPTED if isinstance(stop, KeyboardInterrupt) else stop.code)
    _show(result, output)


def _show(recorded: Recorded, output: Path) -> None:
    screen = Screen()
    screen.print(facts(_machine_rows(recorded.recording.machine)))
    if recorded.recording.cases:
        screen.print()
        screen.print(table(_HEADINGS, [row for case in recorded.recording.cases for row in _rows(case)], unbroken=(0,)))
        click.echo(f"\nwritten to {output}")
        click.echo(f"to compare it with its simulation: simgpu validate report {shlex.quote(str(output))}")
    reasons = {
        f"{case.name} has no {method}: {reason}"
        for case in recorded.recording.cases
        for method, reason in case.absent.items()
    }
    reasons |= {f"{name} is left out: {reason}" for name, reason in recorded.left_out.items()}
    for line in sorted(reasons):
        click.echo(f"\n{wrapped(line, before=0)}", err=True)
    if unsteady := [case.name for case in recorded.recording.cases if not all(map(_is_steady, case.runs.values()))]:
        again = f"{' '.join(f'--case {name}' for name in unsteady)} --force"
        what = f"Warning: steps vary by over {STEADY:.0%}; record again with {again} while nothing else runs"
        click.echo(f"\n{wrapped(what, before=0)}", err=True)
    if not recorded.recording.cases:
        remedy = "choose smaller ones with --case or --small"
        raise InputError.single(output, "", "none of the cases could be recorded", remedy)


def _machine_rows(machine: MeasuredMachine) -> list[tuple[str, str]]:
    copies = machine.copies
    alone = f"{format_bandwidth(copies.d2h)} D2H, {format_bandwidth(copies.h2d)} H2D"
    both = f"bidirectional {format_bandwidth(copies.bidirectional_d2h)} + {format_bandwidth(copies.bidirectional_h2d)}"
    return [
        ("device", f"{machine.device}, {format_bytes(machine.memory)}"),
        ("copies", f"{alone}; {both}; {format_time(copies.latency_ns)} latency"),
        ("launch", f"{format_time(machine.launch_ns)} an operator, {format_time(copies.blocking_ns)} a blocking copy"),
    ]


def _is_steady(run: MeasuredRun) -> bool:
    return (spread(run.step_ns) or 0) <= STEADY * run.median_ns


def _rows(case: Case) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(case.name, *[""] * (len(_HEADINGS) - 1))]
    for method in Method:
        run = case.runs.get(method)
        if run is None:
            rows.append((f"  {method}", *["-"] * (len(_HEADINGS) - 1)))
            continue
        apart = spread(run.step_ns)
        rows.append(
            (
                f"  {method}",
                format_time(run.median_ns),
                "-" if apart is None or not run.median_ns else f"{apart / run.median_ns:.1%}",
                format_bytes(run.peak_bytes),
                format_bytes(run.d2h_bytes),
                format_bytes(run.h2d_bytes),
            )
        )
    return rows
