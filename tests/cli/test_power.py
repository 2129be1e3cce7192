"""Energy and power on the command line: in the report, as JSON, as a figure, and if unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.cli_helpers import make_study, simgpu

POWER = "{limit: 250 W, idle: 34 W, arithmetic: 186 W, dram_energy: 3.92 pJ/bit, link_energy: 10 pJ/bit}"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    return make_study(tmp_path)


def state_power(study: Path) -> None:
    """Adds power figures to the node of the study."""
    node = study.parent / "node.yaml"
    stated = f"  memory: 8 GiB\n  fp32_rate: 14 TFLOP/s\n  power: {POWER}\n"
    node.write_text(node.read_text(encoding="utf-8").replace("  memory: 8 GiB\n", stated), encoding="utf-8")


def test_a_run_reports_energy_by_part_and_power_against_the_limit() -> None:
    message = simgpu(
        "run", "--trace", "vgg16-b128-v100", "--node", "v100", "--policy", "ideal", "--policy", "vdnn"
    ).output
    lines = {line.split("  ")[0].strip(): line for line in message.splitlines() if not line.startswith("  ")}
    parts = ("  idle", "  arithmetic", "  device memory", "  link", "  share of limit", "  peak (20 ms mean)")
    assert all(any(line.startswith(part) for line in message.splitlines()) for part in parts)
    assert lines["energy"].count(" J") == 2
    assert lines["average power"].count(" W") == 2
    assert "energy, power modelled per component of the Tesla V100 PCIe (sources: `simgpu list nodes`)" in " ".join(
        message.split()
    )
    assert max(map(len, message.splitlines())) <= 80


def test_json_has_every_number_with_its_source() -> None:
    report = json.loads(
        simgpu("run", "--trace", "vgg16-b128-v100", "--node", "v100", "--policy", "vdnn", "--json").stdout
    )
    assert report["node"]["gpu"]["power"] == {
        "limit_mw": 250_000,
        "idle_mw": 34_000,
        "arithmetic_mw": 186_000,
        "dram_fj": 31_360,
        "link_fj": 80_000,
    }
    (result,) = report["results"]
    metrics = result["metrics"]
    assert metrics["energy_idle_nj"] == 34 * metrics["iteration_ns"]
    assert 34 < metrics["average_power_w"] < metrics["peak_power_w"] < 250
    assert result["energy_note"].startswith("modelled per component")


def test_a_node_without_power_figures_reports_no_energy(study: Path) -> None:
    message = simgpu("run", study).output
    assert "energy" not in message
    assert "power" not in message


def test_a_trace_without_operations_explains_the_missing_energy(study: Path) -> None:
    state_power(study)
    printed = " ".join(simgpu("run", study).output.split())
    assert (
        "energy, power not known: operation counts are missing for 6 of 6 convolutions and matrix products" in printed
    )


def test_the_power_figure_is_written(tmp_path: Path) -> None:
    scenario = tmp_path / "power.yaml"
    scenario.write_text(
        "schema: simgpu.scenario/2\ntrace: vgg16-b128-v100\nnode: v100\npolicies: vdnn\n"
        "outputs: {timeline: [], plots: [power]}\n",
        encoding="utf-8",
    )
    assert simgpu("run", scenario, "-o", tmp_path / "out").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out" / "vdnn").iterdir()) == ["power.png"]


def test_a_power_figure_without_data_is_refused_before_anything_runs(study: Path) -> None:
    requested = ("run", study, "--set", "outputs.plots=[power]")
    done = simgpu(*requested)
    assert done.exit_code == 2
    assert "outputs.plots: cannot plot power: node bench does not state the power of its GPU" in " ".join(
        done.stderr.split()
    )
    state_power(study)
    done = simgpu(*requested)
    assert done.exit_code == 2
    assert "operation counts are missing for 6 of 6 convolutions and matrix products; remove power" in " ".join(
        done.stderr.split()
    )


def test_a_node_shows_its_power_figures_and_which_are_derived() -> None:
    message = " ".join(simgpu("list", "nodes", "k40").output.split())
    assert "power limit 235 W" in message
    assert "arithmetic 139.1 W DERIVED, not measured" in message
    assert "to DRAM 14 pJ/bit" in message
