"""``simgpu zoo solve``: run a solver, measure its arrays, and write one of its steps as a trace."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click
import numpy as np

from simgpu.cli.screen import Screen, facts, progress, quiet_option
from simgpu.cli.suggestions import suggest
from simgpu.cli.trace_folder import folder_options, refuse_another, refuse_inside, show_written
from simgpu.compression.buddy.snapshots import Seen, Snapshots, classes_of, collect
from simgpu.compression.buddy.stored import FILE, save_entries
from simgpu.compression.codecs.entries import ENTRY_SIZES
from simgpu.io.atomic import atomic_folder
from simgpu.trace.folder import foreign_files, write_trace
from simgpu.trace.model import Trace
from simgpu.trace.stats import trace_stats
from simgpu.units import format_bytes, format_time
from simgpu.workloads.solvers.catalogue import SOLVERS, solver_of
from simgpu.workloads.solvers.solver import SNAPSHOTS, Solver, State
from simgpu.workloads.solvers.tracing import NODE, solver_trace


@click.command()
@click.argument("solver", shell_complete=suggest(lambda: SOLVERS))
@folder_options
@click.option(
    "--size", metavar="N", type=int, help="Problem size of the measured run. Default: see simgpu zoo solvers."
)
@click.option(
    "--snapshots",
    metavar="N",
    type=int,
    default=SNAPSHOTS,
    show_default=True,
    help="Number of times to measure the solver's memory during the run.",
)
@click.option(
    "--arrays",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Also write the measured arrays: a folder per snapshot, with a .npy file per allocation.",
)
@quiet_option
def solve(
    solver: str, output: Path, force: bool, size: int | None, snapshots: int, arrays: Path | None, quiet: bool
) -> None:
    """Run SOLVER and write one of its steps as a modelled trace.

    A small problem is run to measure how compressible the memory is. The kernels and blocks in the trace have the
    size of the benchmark that the solver resembles; their times are estimated. All results state that the trace is
    modelled. The file entries.npz in the trace folder contains the compressed size of each memory-entry of the run;
    simgpu compression profile reads it.

    \b
    simgpu zoo solve cg -o my-cg
    simgpu zoo solve seismic -o my-seismic --size 64 --arrays my-arrays
    simgpu compression profile my-arrays
    """
    with progress(quiet) as say:
        chosen = solver_of(solver, size)
        moments = chosen.moments(snapshots)
        refuse_another(output, force)
        refuse_inside({"-o": output, "--arrays": arrays})
        seen: list[dict[str, Seen]] = []
        with ExitStack() as folders:
            folder = None if arrays is None else folders.enter_context(atomic_folder(arrays, _anything))
            for step, state in zip(moments, chosen.snapshots(snapshots), strict=True):
                say(f"step {step} of {chosen.steps}")
                seen.append({name: Seen(array.nbytes, classes_of(array)) for name, array in state.items()})
                if folder is not None:
                    _save(state, folder / f"step-{step:0{len(str(chosen.steps))}}")
            result = collect(chosen.name, [f"step {step}" for step in moments], seen, _about(chosen))
            trace = solver_trace(chosen, _histograms(result))
            say(f"writing {output}")
            part = folders.enter_context(atomic_folder(output, foreign_files))
            write_trace(trace, part)
            save_entries(result, part / FILE)
    Screen().print(facts(_facts(chosen, trace)))
    if arrays is not None:
        click.echo(f"\narrays written to {arrays}")
    show_written(output, NODE)


def _anything(folder: Path) -> str:
    return "files"


def _save(state: State, folder: Path) -> None:
    folder.mkdir()
    for name, array in state.items():
        np.save(folder / f"{name}.npy", array)


def _histograms(snapshots: Snapshots) -> list[dict[str, dict[int, int]]]:
    return [
        {
            each.name: dict(zip(ENTRY_SIZES, each.snapshots[0], strict=True))
            for each in snapshots.in_snapshot(number).values()
        }
        for number in range(len(snapshots.labels))
    ]


def _about(solver: Solver) -> str:
    return f"simgpu zoo solve {solver.name}, run at {solver.scale}"


def _facts(solver: Solver, trace: Trace) -> list[tuple[str, str]]:
    stats = trace_stats(trace)
    return [
        *trace.facts(),
        ("solver", solver.what),
        ("resembles", f"{solver.like} (uses none of its code)"),
        ("measured", f"{solver.scale}, {format_bytes(solver.bytes)}, {solver.steps} steps"),
        ("modelled", f"{solver.reference().scale}, {format_bytes(solver.reference().bytes)}"),
        ("kernels", f"{stats.kernels}, {stats.blocks} blocks"),
        ("step", f"{format_time(stats.compute_ns)} of compute, by the time model"),
    ]
