"""``simgpu zoo solve``: its list, the traces it builds, its output, and refused input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simgpu.compression.buddy.stored import load_entries
from simgpu.trace.folder import read_trace
from simgpu.trace.model import Origin
from simgpu.workloads.solvers.catalogue import SOLVERS
from tests.cli.cli_helpers import simgpu


def built(out: Path, *more: object, solver: str = "ep") -> tuple[int, str, str]:
    done = simgpu("zoo", "solve", solver, "--size", 64, "-o", out, *more)
    return done.exit_code, " ".join(done.stdout.split()), done.stderr


def test_list_shows_every_solver_and_its_benchmark() -> None:
    done = simgpu("zoo", "solvers")
    assert done.exit_code == 0
    message = " ".join(done.stdout.split())
    for name, solver in SOLVERS.items():
        assert f"{name} {solver.like}" in message


def test_build_writes_a_trace_with_entry_sizes(tmp_path: Path) -> None:
    code, message, _ = built(tmp_path / "out")
    assert code == 0
    trace, entries = read_trace(tmp_path / "out"), load_entries(tmp_path / "out" / "entries.npz")
    assert (trace.info.model, trace.info.origin) == ("ep", Origin.MODELLED)
    assert {row.epoch for row in trace.compressibility} == set(range(10))
    assert [each.name for each in entries.allocations] == [block.id for block in trace.blocks]
    assert entries.labels == tuple(f"step {step}" for step in range(4, 41, 4))
    assert "352.ep (uses none of its code)" in message and "measured 64 threads" in message


def test_build_is_reproducible(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert built(tmp_path / name)[0] == 0
    for file in ("trace.yaml", "kernels.csv", "blocks.csv", "compressibility.csv", "entries.npz"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_written_arrays_are_readable_by_compression_profile(tmp_path: Path) -> None:
    arrays = tmp_path / "arrays"
    code, message, _ = built(tmp_path / "out", "--snapshots", 2, "--arrays", arrays)
    assert code == 0 and f"arrays written to {arrays}" in message
    assert sorted(folder.name for folder in arrays.iterdir()) == ["step-20", "step-40"]
    assert np.load(arrays / "step-40" / "tally0.npy").sum() > np.load(arrays / "step-20" / "tally0.npy").sum()
    of_arrays, of_trace = (simgpu("compression", "profile", path, "-q") for path in (arrays, tmp_path / "out"))
    assert of_arrays.exit_code == of_trace.exit_code == 0
    tables = [done.stdout.partition("design")[2].partition("entries are from")[0] for done in (of_arrays, of_trace)]
    assert tables[0].strip() == tables[1].strip() != ""
    assert "entries are from a smaller run" in " ".join(of_trace.stdout.split())


def test_entries_of_another_run_are_refused(tmp_path: Path) -> None:
    assert built(tmp_path / "one")[0] == built(tmp_path / "two", "--snapshots", 3)[0] == 0
    (tmp_path / "one" / "entries.npz").write_bytes((tmp_path / "two" / "entries.npz").read_bytes())
    done = simgpu("compression", "profile", tmp_path / "one")
    assert done.exit_code == 2
    assert "allocation seeds" in done.stderr


def test_another_trace_is_replaced_only_with_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert built(out)[0] == 0
    code, _, error = built(out, "--snapshots", 2)
    assert code == 2 and "contains a different trace" in error
    assert built(out, "--snapshots", 2, "--force")[0] == 0
    assert len(load_entries(out / "entries.npz").labels) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cgg", "-o", "x"), "did you mean 'cg'"),
        (("cg", "-o", "x", "--size", 1), "use at least 32"),
        (("multigrid", "-o", "x", "--size", 20), "20 is not a power of two; use for example 16 or 32"),
        (("ep", "-o", "x", "--size", 64, "--snapshots", 41), "41 snapshots of a run of 40 steps"),
        (("ep", "-o", "x", "--size", 64, "--arrays", "x"), "--arrays: 'x' is the folder of -o, or inside it"),
        (("ep", "-o", "x", "--size", 64, "--arrays", "x/arrays"), "--arrays: 'x/arrays' is the folder of -o"),
        (("ep", "-o", "x/trace", "--size", 64, "--arrays", "x"), "-o: 'x/trace' is the folder of --arrays, or inside"),
    ],
)
def test_invalid_arguments_are_refused_and_write_nothing(
    arguments: tuple[object, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = simgpu("zoo", "solve", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())
    assert not any(tmp_path.iterdir())


def test_a_foreign_arrays_folder_is_refused_and_not_changed(tmp_path: Path) -> None:
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    (arrays / "mine.txt").write_text("mine")
    code, _, error = built(tmp_path / "out", "--arrays", arrays)
    assert code == 2 and "arrays" in error
    assert [entry.name for entry in arrays.iterdir()] == ["mine.txt"]
    assert not (tmp_path / "out").exists()


def test_the_shipped_traces_run() -> None:
    done = simgpu("run", "--trace", "hpc-cg", "--policy", "ideal", "--node", "p100", "-q")
    assert done.exit_code == 0
    assert simgpu("trace", "show", "hpc-cg").exit_code == 0
