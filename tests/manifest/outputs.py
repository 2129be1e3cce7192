"""Everything that the manifest runs, each as a folder of files.

The names of commands, options and keys that a renaming changes stand in this file alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from simgpu.cli import main
from simgpu.experiments.outputs import write_study
from simgpu.experiments.scenarios.catalogue import shipped_scenarios, shipped_studies
from simgpu.experiments.study import StudyResult
from simgpu.papers.reproduce import reproduce
from tests.experiments.test_golden_buddy import BUDDY
from tests.experiments.test_golden_buddy import some as some_of_buddy
from tests.experiments.test_golden_studies import CDMA, CSWAP, HOME, MODNN, ends, part, some
from tests.papers.test_outcomes import recorded

#: The shipped sweep that the manifest runs.
SWEEP = "memory-sweep"


def command(*words: str, ends_with: tuple[int, ...] = (0,)) -> None:
    """Runs a command in this process; fails where it ends with another status."""
    result = CliRunner().invoke(main, words)
    assert result.exit_code in ends_with, f"simgpu {' '.join(words)}: {result.exit_code}\n{result.output}"


def write_scenario(name: str, folder: Path) -> None:
    """What `simgpu run` writes of a scenario under all its policies."""
    every = ["--set", "outputs.timeline=[csv, perfetto]", "--set", "outputs.plots=[]"]
    command("run", name, *every, "-o", str(folder), "--quiet", ends_with=(0, 3))


def write_sweep(name: str, folder: Path) -> None:
    """What `simgpu sweep` writes."""
    command("sweep", name, "-o", str(folder), "--jobs", "1", "--quiet")


def study(name: str) -> StudyResult:
    """The study as far as its golden test runs it."""
    if name in BUDDY:
        return some_of_buddy(name)
    if name in MODNN:
        return part(name)
    return some(name) if name in HOME else ends(name)


def write_claims(folder: Path) -> None:
    """The outcome of every quick claim, times of this machine left out."""
    matches = reproduce(quick=True)
    folder.mkdir()
    rows = {each.claim.id: recorded(each) for each in matches.claims}
    (folder / "claims.json").write_text(json.dumps(rows), encoding="utf-8")


def everything() -> dict[str, Callable[[Path], None]]:
    """What writes each folder, by name."""
    parts: dict[str, Callable[[Path], None]] = {}
    for name in shipped_scenarios():
        parts[f"scenario {name}"] = lambda folder, name=name: write_scenario(name, folder)
    for name in sorted([*CSWAP, *CDMA, *MODNN, *HOME, *BUDDY]):
        parts[f"study {name}"] = lambda folder, name=name: write_study(study(name), folder, about={})
    parts[f"sweep {SWEEP}"] = lambda folder: write_sweep(SWEEP, folder)
    parts["quick claims"] = write_claims
    assert {name for name in parts if name.startswith("study")} == {f"study {name}" for name in shipped_studies()}
    return parts
