"""``simgpu compression profile``: ratio and overflow of arrays under each Buddy Compression design."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import click
from rich.text import Text

from simgpu.analysis.buddy_profile import (
    ALLOCATION_HEADINGS,
    DESIGN_HEADINGS,
    BuddyProfile,
    counted,
    profile_files,
    ratio_text,
    share_text,
    target_text,
)
from simgpu.cli.screen import Screen, facts, progress, quiet_option, table
from simgpu.cli.suggestions import traces_or_files
from simgpu.compression.buddy.targets import THRESHOLD, mean_overflow
from simgpu.errors import InputError
from simgpu.experiments.outputs import PROFILE_FOLDER, profile_document, write_profile
from simgpu.units import format_bytes
from simgpu.version import __version__

#: Rows of allocations printed on the terminal; files contain all.
_ROWS = 12
_SHARE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*")


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILES...", shell_complete=traces_or_files)
@click.option(
    "--threshold",
    default=f"{THRESHOLD:.0%}",
    show_default=True,
    metavar="SHARE",
    help="Largest share of an allocation's entries that may overflow, e.g. 30% or 0.3.",
)
@click.option("--no-mostly-zero", is_flag=True, help="Do not use the 16x target for mostly-zero allocations.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write tables and figures to this folder."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@quiet_option
def profile(
    files: tuple[str, ...], threshold: str, no_mostly_zero: bool, output: Path | None, as_json: bool, quiet: bool
) -> None:
    """Select target compression ratios for memory under Buddy Compression, and print ratio and overflow.

    Compares three designs: naive, per allocation, and final.

    FILES can be .npy files: each is one allocation, and files with the same name are its snapshots in order. They can
    be folders of .npy files or .npz archives: each is one snapshot. They can also be one folder with a folder per
    snapshot, or one trace (folder or shipped name).

    With -o, also plots compressibility across memory (Buddy Compression, figure 6), the effect of the threshold
    (figure 9) and, with several snapshots, the overflow in each (figure 8).

    \b
    simgpu compression profile weights.npy relu1.npy
    simgpu compression profile dumps/ --threshold 20% -o profile
    """
    share = _share(threshold)
    if output is not None:
        PROFILE_FOLDER.check(output)
    with progress(quiet) as say:
        result = profile_files(files, threshold=share, mostly_zero=not no_mostly_zero, progress=say)
        if output is not None:
            say("writing the outputs")
            write_profile(result, output, about={"simgpu": __version__})
    if as_json:
        click.echo(json.dumps(profile_document(result, {"simgpu": __version__}), indent=2, allow_nan=False))
        return
    show_profile(Screen(), result)
    if output is not None:
        click.echo(f"\nwritten to {output}")


def show_profile(screen: Screen, result: BuddyProfile) -> None:
    """Print a summary, the columns of figure 7, other thresholds (figure 9), and the targets of the final design."""
    screen.print(Text(result.snapshots.name, style="bold"))
    screen.print(facts(_facts(result)))
    screen.print()
    screen.print(table(DESIGN_HEADINGS, result.rows()))
    screen.print()
    screen.print(table(("threshold", "ratio", "overflow"), _sweep_rows(result)))
    screen.print()
    screen.print(table(("target", "allocations", "size", "overflow"), _target_rows(result)))
    screen.print()
    shown = result.allocation_rows(_ROWS)
    screen.print(table(ALLOCATION_HEADINGS, shown))
    if len(shown) < len(result.allocations):
        screen.print(Text(f"showing the {len(shown)} largest of {len(result.allocations)} allocations; -o writes all"))
    for note in result.snapshots.notes:
        screen.print(Text(note))


def _facts(result: BuddyProfile) -> Iterator[tuple[str, str]]:
    taken, labels = result.snapshots, result.snapshots.labels
    if taken.about:
        yield "origin", taken.about
    size = f"{format_bytes(taken.bytes)} in {taken.entries} {'entry' if taken.entries == 1 else 'entries'} of 128 B"
    yield "memory", f"{counted(len(result.allocations), 'allocation')}, {size}"
    yield "snapshots", f"{len(labels)}, {labels[0]} to {labels[-1]}" if len(labels) > 1 else "1"
    yield "threshold", f"{100 * result.threshold:.4g}% of an allocation's entries may overflow"
    yield "eight sizes", f"{ratio_text(result.optimistic_ratio)} if each entry had a compressed size of its own"
    if len(labels) > 1:
        shares = [moment.overflow for moment in result.drift]
        yield (
            "drift",
            f"{share_text(min(shares))} to {share_text(max(shares))} of entries overflow per snapshot, fixed targets",
        )


def _sweep_rows(result: BuddyProfile) -> Iterator[tuple[str, ...]]:
    for threshold, outcome in result.sweep.items():
        yield f"{100 * threshold:.4g}%", ratio_text(outcome.ratio), share_text(outcome.overflow)
    yield "by mean size", ratio_text(result.by_mean.ratio), share_text(result.by_mean.overflow)


def _target_rows(result: BuddyProfile) -> Iterator[tuple[str, ...]]:
    """For each target: number of allocations, their size, and the share of entries that overflow."""
    for target in sorted(set(result.final.targets)):
        members = [each for each in result.snapshots.allocations if result.targets[each.name] == target]
        overflow = share_text(mean_overflow(members, [target] * len(members)))
        yield target_text(target), str(len(members)), format_bytes(sum(each.bytes for each in members)), overflow


def _share(text: str) -> float:
    """Parses a fraction such as 0.3 or 30%."""
    match = _SHARE.fullmatch(text)
    share = Decimal(match[1]) / (100 if match[2] else 1) if match else Decimal(-1)
    if not 0 <= share <= 1:
        raise InputError.single("--threshold", "", f"{text!r} is not a share from 0% to 100%", "write 30% or 0.3")
    return float(share)
