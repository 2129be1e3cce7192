"""The files of a Buddy Compression profile: a folder that appears whole or not at all.

report.json                     every number, as `simgpu compression profile --json` prints it
allocations.csv                 one row an allocation: its target, and how much of it overflows
threshold.csv, threshold.png    ratio and overflow by Buddy Threshold
drift.csv, drift.png            of several snapshots: overflow in each
heatmap.csv, heatmap.png        of arrays: compressed bytes by place, as many rows as the picture has
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.experiments.outputs import REPORT, check_folder, holds_other_than
from simgpu.io.atomic import atomic_folder

if TYPE_CHECKING:
    from simgpu.analysis.buddy_profile import BuddyProfile

SCHEMA = "simgpu.buddy-profile/1"


def check_profile_outputs(folder: Path) -> None:
    """Before long work: `InputError` where the folder can be neither made nor replaced. Touches nothing."""
    check_folder(folder, _not_ours)


def write_profile(profile: BuddyProfile, folder: Path, *, about: Mapping[str, Any]) -> None:
    """Writes a profile's report, tables and pictures as one folder, whole or not at all.

    about: what the report says beside the profile. A folder that an earlier profile wrote is replaced. Raises
    `InputError` when the system refuses, or the folder holds anything else.
    """
    from simgpu.analysis.plots import save_figure

    folder = folder.absolute()
    check_profile_outputs(folder)
    with atomic_folder(folder, _not_ours) as part:
        profile.frame().to_csv(part / "allocations.csv", lineterminator="\n")
        profile.sweep_frame().to_csv(part / "threshold.csv", lineterminator="\n")
        save_figure(profile.plot("threshold"), part / "threshold.png")
        if len(profile.drift) > 1:
            profile.drift_frame().to_csv(part / "drift.csv", lineterminator="\n")
            save_figure(profile.plot("drift"), part / "drift.png")
        if (heat_map := profile.heat_map()) is not None:
            heat_map.frame().to_csv(part / "heatmap.csv", lineterminator="\n", float_format="%.4g")
            save_figure(profile.plot("heatmap"), part / "heatmap.png")
        report = json.dumps(profile_document(profile, about), indent=2, allow_nan=False)
        (part / REPORT).write_text(report + "\n", encoding="utf-8")


def profile_document(profile: BuddyProfile, about: Mapping[str, Any]) -> dict[str, Any]:
    """The report as plain data: its schema, and every number."""
    return {"schema": SCHEMA, **about, **profile.to_dict()}


def _not_ours(folder: Path) -> str:
    return holds_other_than(folder, SCHEMA.partition("/")[0] + "/", "profile")
