"""``simgpu validate record``: measure this machine, and models on it under four memory-management methods."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from simgpu.cli.group import INTERRUPTED, wrapped
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.settings import arguments_as_options
from simgpu.cli.suggestions import suggest
from simgpu.errors import InputError
from simgpu.recorder.assemble import spread
from simgpu.units import format_bandwidth, format_bytes, format_time
from simgpu.validation.harness import CASES, SMALL_CASES, CasePlan, Recorded, choose, record_cases
from simgpu.validation.harness.entry import DEFAULT_REPETITIONS, DEFAULT_WARMUP
from simgpu.validation.measured import Case, MeasuredMachine, MeasuredRun, Method
from simgpu.validation.outcome import STEADY

_POSITIVE = click.IntRange(min=1, max=10**6)
#: Each case has a row of its own, above the rows of its methods.
_HEADINGS = ("case and method", "step", "spread", "peak", "D2H", "H2D")


def _listed(title: str, plans: Sequence[CasePlan]) -> str:
    """The cases, one line per model."""
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
    help="Run only this case. Repeatable.",
)
@click.option("--small", is_flag=True, help="Use small models, for a CPU or a trial: takes minutes on two cores.")
@click.option(
    "--device",
    default="cuda",
    show_default=True,
    metavar="cuda|cuda:N|cpu",
    shell_complete=suggest(lambda: ("cuda", "cpu")),
    help="Device to run on.",
)
@click.option(
    "--warmup",
    metavar="N",
    type=_POSITIVE,
    default=DEFAULT_WARMUP,
    show_default=True,
    help="Untimed steps to run first.",
)
@click.option(
    "--repetitions",
    metavar="N",
    type=_POSITIVE,
    default=DEFAULT_REPETITIONS,
    show_default=True,
    help="Timed steps to run.",
)
@click.option(
    "--seed",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Random seed of weights and data.",
)
@click.option("--force", is_flag=True, help="Measure again the cases that are already in the folder.")
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
    """Measure this machine, and training iterations on it under five memory-management methods.

    For each case, records a trace, then runs the same training iteration with each method: plain (no memory
    management), checkpoint (activation checkpointing of every block), save_on_cpu (PyTorch's), an asynchronous offload,
    and a plan (simgpu plan) for a budget halfway between the smallest peak of a plan and the plain peak. Stores the
    time of each step, the peak memory, the bytes copied, and the device timeline of one step.

    Cases that are already in the folder are skipped, so the same command resumes after an interruption. Run it on an
    otherwise idle machine. Needs PyTorch and SciPy: install simgpu with the extras 'record' and 'calibrate'.

    \b
    simgpu validate record -o my-gpu
    simgpu validate record -o my-gpu --case vgg16-b32 --case resnet50-b32
    simgpu validate record -o my-cpu --device cpu --small
    """
    with arguments_as_options(("case",)):
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
        click.echo("stopped; finished cases are stored: run the same command to resume", err=True)
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
        f"{case.name}: method {method} was not run: {reason}"
        for case in recorded.recording.cases
        for method, reason in case.absent.items()
    }
    reasons |= {f"{name} was skipped: {reason}" for name, reason in recorded.left_out.items()}
    for line in sorted(reasons):
        click.echo(f"\n{wrapped(line, before=0)}", err=True)
    if unsteady := [case.name for case in recorded.recording.cases if not all(map(_is_steady, case.runs.values()))]:
        again = f"{' '.join(f'--case {name}' for name in unsteady)} --force"
        what = f"Warning: step times vary by over {STEADY:.0%}; record again with {again} on an idle machine"
        click.echo(f"\n{wrapped(what, before=0)}", err=True)
    if not recorded.recording.cases:
        remedy = "choose smaller cases with --case or --small"
        raise InputError.single(output, "", "none of the cases could be recorded", remedy)


def _machine_rows(machine: MeasuredMachine) -> list[tuple[str, str]]:
    copies = machine.copies
    alone = f"{format_bandwidth(copies.d2h)} D2H, {format_bandwidth(copies.h2d)} H2D"
    both = f"bidirectional {format_bandwidth(copies.bidirectional_d2h)} + {format_bandwidth(copies.bidirectional_h2d)}"
    return [
        ("device", f"{machine.device}, {format_bytes(machine.memory)}"),
        ("copies", f"{alone}; {both}; {format_time(copies.latency_ns)} latency"),
        (
            "launch",
            f"{format_time(machine.launch_ns)} per operator, {format_time(copies.blocking_ns)} per blocking copy",
        ),
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
