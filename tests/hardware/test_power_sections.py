"""The power section of a node file, and the values of the shipped nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.cli.schema import json_schema
from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node, load_node_file, node_names
from simgpu.hardware.spec import PowerSpec

POWER = "limit: 235 W, idle: 62 W, arithmetic: 139.1 W, dram_energy: 14 pJ/bit, link_energy: 10 pJ/bit"
FILE = f"""\
schema: simgpu.node/1
name: bench
gpu:
  name: a GPU
  memory: 8 GiB
  fp32_rate: 4.29 TFLOP/s
  power: {{{POWER}}}
link:
  kind: PCIe
  d2h_bandwidth: 11.7 GB/s
  h2d_bandwidth: 10.6 GB/s
"""
STATED = [name for name in node_names() if load_node(name).gpu.power is not None]


def problems_of(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "node.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_node(path)
    return [str(problem).replace(str(path), path.name) for problem in caught.value.problems]


def test_powers_and_energies_become_integers(tmp_path: Path) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(FILE, encoding="utf-8")
    assert load_node(path).gpu.power == PowerSpec(235_000, 62_000, 139_100, dram_fj=112_000, link_fj=80_000)
    per_byte = FILE.replace("14 pJ/bit", "112 pJ/B")
    path.write_text(per_byte, encoding="utf-8")
    power = load_node(path).gpu.power
    assert power is not None
    assert power.dram_fj == 112_000


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("235 W", "235"), "gpu.power.limit: 235 has no unit: a power is a text with a unit, for example '235 W'"),
        (("235 W", "235 J"), "gpu.power.limit: '235 J': 'J' is not a unit of power; known: mW, W, kW"),
        (("62 W", "0 W"), "gpu.power.idle: '0 W' is zero: a power is more than 0, for example '235 W'"),
        (
            ("14 pJ/bit", "14 W"),
            "gpu.power.dram_energy: '14 W': 'W' is not a unit of energy of moved data; "
            "known: fJ/B, pJ/B, nJ/B, fJ/bit, pJ/bit",
        ),
        (("139.1 W", "174 W"), "gpu.power: idle plus arithmetic exceeds limit"),
        (("  fp32_rate: 4.29 TFLOP/s\n", ""), "gpu: power needs fp32_rate"),
        (("idle: 62 W, ", ""), "gpu.power.idle: is missing; add it"),
        (("idle:", "idel:"), "gpu.power.idel: unknown key; did you mean 'idle'?"),
    ],
)
def test_each_mistake_gives_one_message(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    reported = problems_of(tmp_path, FILE.replace(*change))
    assert any(expected in problem for problem in reported), reported
    assert len(reported) == (2 if "idel" in expected else 1), "what is misspelt is missing too"


def test_section_values_can_be_changed_and_the_section_removed(tmp_path: Path) -> None:
    changed = load_node_file("k40", {"gpu.power.idle": "20 W"})
    assert changed.gpu.power is not None
    assert changed.gpu.power.idle == 20_000
    assert "gpu.power.idle" not in changed.sources
    assert "gpu.power.limit" in changed.sources
    based = tmp_path / "silent.yaml"
    based.write_text("schema: simgpu.node/1\nname: silent\nbase: k40\ngpu:\n  power: null\n", encoding="utf-8")
    file = load_node_file(based)
    assert file.gpu.power is None
    assert not [key for key in file.sources if key.startswith("gpu.power")]


def test_the_json_schema_contains_the_power_section() -> None:
    section = json_schema("node")["$defs"]["PowerSection"]
    assert section["properties"]["limit"]["examples"] == ["235 W"]
    assert section["required"] == ["limit", "idle", "arithmetic", "dram_energy", "link_energy"]


def test_the_modnn_node_has_the_power_limit_of_figure_15() -> None:
    power = load_node("k40").gpu.power
    assert power is not None
    assert power.limit_mw == 235_000
    assert load_node("k40-x4").gpu.power == power


@pytest.mark.parametrize("name", [name for name in STATED if load_node_file(name).base is None])
def test_arithmetic_power_is_the_limit_minus_the_other_parts(name: str) -> None:
    """All parts at their peaks draw the limit, within the printed precision."""
    node = load_node(name)
    power, gpu = node.gpu.power, node.gpu
    assert power is not None
    assert gpu.dram_bandwidth is not None
    link = node.link.d2h_bandwidth + node.link.h2d_bandwidth
    moving_mw = (gpu.dram_bandwidth * power.dram_fj + link * power.link_fj) / 10**12
    assert power.arithmetic_mw == pytest.approx(power.limit_mw - power.idle_mw - moving_mw, abs=100)
    assert load_node_file(name).sources["gpu.power.arithmetic"].startswith("DERIVED")
