"""``simgpu compression profile``: output, files and refused input."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace
from simgpu.trace.model import CompressedSize
from tests.cli.cli_helpers import simgpu, simgpu_process

PNG = b"\x89PNG"


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """Three snapshots: noise, zeros, and rising integers, a growing part of which is replaced by noise."""
    rng = np.random.default_rng(7)
    for number in range(3):
        folder = tmp_path / "dumps" / f"epoch-{number}"
        folder.mkdir(parents=True)
        np.save(folder / "noise.npy", rng.integers(0, 2**63, 1600))
        np.save(folder / "zeros.npy", np.zeros(3200, np.float32))
        counts = np.cumsum(rng.integers(1, 9, 3200)).astype(np.int32)
        counts[: 32 * 10 * (number + 1)] = rng.integers(0, 2**31, 32 * 10 * (number + 1))
        np.save(folder / "counts.npy", counts)
    return tmp_path / "dumps"


def test_it_prints_the_columns_of_figure_7_and_their_source(dumps: Path) -> None:
    done = simgpu("compression", "profile", dumps)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[:14] == [
        "dumps",
        "memory       3 allocations, 37.5 KiB in 300 entries of 128 B",
        "snapshots    3, epoch-0 to epoch-2",
        "threshold    30% of an allocation's entries may overflow",
        "eight sizes  2.15x if each entry had a compressed size of its own",
        "drift        3.33% to 10.00% of entries overflow per snapshot, fixed targets",
        "",
        "design          ratio  overflow",
        "naive           2.00x    40.00%",
        "per allocation  2.00x     6.67%",
        "final           2.29x     6.67%",
        "",
        "threshold     ratio  overflow",
        "10%           1.45x     0.00%",
    ]
    assert lines[-4:] == [
        "allocation      size  eight sizes  target  overflow",
        "counts      12.5 KiB        2.52x      4x    20.00%",
        "noise       12.5 KiB        1.00x      1x     0.00%",
        "zeros       12.5 KiB     all zero     16x     0.00%",
    ]
    assert all(len(line) <= 80 for line in lines)


def test_threshold_and_zero_case_are_options(dumps: Path) -> None:
    def targets(*options: str) -> dict[str, object]:
        document = json.loads(simgpu("compression", "profile", dumps, "--json", *options).stdout)
        return {each["name"]: each["target"] for each in document["allocations"]}

    assert targets() == {"counts": 32, "noise": 128, "zeros": 8}
    assert targets("--no-mostly-zero") == {"counts": 32, "noise": 128, "zeros": 32}
    assert targets("--threshold", "19.9%") == {"counts": 128, "noise": 128, "zeros": 8}
    assert targets("--threshold", "20 %") == targets("--threshold", ".2") == {"counts": 32, "noise": 128, "zeros": 8}


@pytest.mark.parametrize("threshold", ["30", "101%", "-1%", "many", "", "1.2"])
def test_a_threshold_outside_0_to_1_is_refused(threshold: str, dumps: Path) -> None:
    done = simgpu("compression", "profile", dumps, f"--threshold={threshold}")
    assert done.exit_code == 2
    assert done.stderr == f"Error: --threshold: '{threshold}' is not a share from 0% to 100%; write 30% or 0.3\n"


@pytest.mark.slow
def test_it_writes_tables_and_figures_reproducibly(dumps: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile"
    done = simgpu("compression", "profile", dumps, "-o", out)
    assert done.exit_code == 0
    assert done.stdout.endswith(f"written to {out}\n")
    files = {path.name: path.read_bytes() for path in out.iterdir()}
    pictures = {f"{name}.{kind}" for name in ("heatmap", "threshold", "drift") for kind in ("png", "csv")}
    assert files.keys() == {"report.json", "allocations.csv", *pictures}
    assert all(content.startswith(PNG) for name, content in files.items() if name.endswith(".png"))
    assert files["report.json"].decode() == simgpu("compression", "profile", dumps, "--json").stdout
    rows = list(csv.DictReader(files["allocations.csv"].decode().splitlines()))
    assert [(row["name"], row["target_ratio"]) for row in rows] == [
        ("counts", "4.0"),
        ("noise", "1.0"),
        ("zeros", "16.0"),
    ]
    assert files["drift.csv"].decode().splitlines()[0] == "snapshot,bytes,optimistic_ratio,overflow"
    assert files["threshold.csv"].decode().splitlines()[1] == "0.1,1.4545454545454546,0.0"
    assert simgpu("compression", "profile", dumps, "-o", out).exit_code == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == files


@pytest.mark.slow
def test_a_single_snapshot_has_no_drift_plot(dumps: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile"
    done = simgpu("compression", "profile", dumps / "epoch-0/noise.npy", dumps / "epoch-0/zeros.npy", "-o", out)
    assert done.exit_code == 0
    assert "\ndrift " not in done.stdout
    assert not (out / "drift.png").exists()
    assert (out / "heatmap.png").exists()


@pytest.mark.slow
def test_a_trace_has_no_heat_map_and_names_the_source_of_its_numbers(tmp_path: Path) -> None:
    rows = tuple(CompressedSize("x1", epoch, "bpc", "plain", 128, 8, 3) for epoch in (0, 5))
    write_trace(replace(chain([5], [7], [300]), compressibility=rows), tmp_path / "recorded")
    done = simgpu("compression", "profile", tmp_path / "recorded", "-o", tmp_path / "out")
    assert done.exit_code == 0
    assert "origin       modelled" in done.stdout
    assert "snapshots    2, epoch 0 to epoch 5" in done.stdout
    assert not (tmp_path / "out/heatmap.png").exists()
    assert (tmp_path / "out/drift.png").exists()


def test_only_the_12_largest_allocations_are_listed(tmp_path: Path) -> None:
    files = []
    for number in range(20):
        files.append(tmp_path / f"a{number:02}.npy")
        np.save(files[-1], np.zeros(32 * (number + 1), np.float32))
    lines = simgpu("compression", "profile", *files).stdout.splitlines()
    assert lines[0].startswith("20 files of ")
    assert lines[-1] == "showing the 12 largest of 20 allocations; -o writes all"
    assert [line.split()[0] for line in lines[-13:-1]] == [f"a{number:02}" for number in range(8, 20)]


def test_the_name_of_a_shipped_trace_is_accepted() -> None:
    done = simgpu("compression", "profile", "vgg16-b128-v100")
    assert done.exit_code == 2
    assert "compressibility.csv: has no sizes of memory-entries" in done.stderr


def test_mistakes_print_one_message_and_write_nothing(dumps: Path, tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    done = simgpu_process("compression", "profile", "missing", "text.npy", "dumps/epoch-0", "-o", "out", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "Error: missing: no such file or folder; check the path",
        "Error: text.npy: is no array; give .npy or .npz files, folders of .npy files, or a trace",
    ]
    assert not (tmp_path / "out").exists()


def test_a_folder_with_other_files_is_not_replaced(dumps: Path) -> None:
    done = simgpu("compression", "profile", dumps, "-o", dumps)
    assert done.exit_code == 2
    assert "contains files that are not from an earlier profile of simgpu" in done.stderr
    assert (dumps / "epoch-0/noise.npy").exists()


def test_without_files_it_is_a_usage_error() -> None:
    done = simgpu("compression", "profile")
    assert done.exit_code == 2
    assert "Missing argument 'FILES...'" in done.stderr
