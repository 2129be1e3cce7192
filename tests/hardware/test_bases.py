"""A node file with a base: inherited and changed values, their sources, and the places of mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.cli.schema import json_schema
from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node, load_node_file

UNDER = """\
schema: simgpu.node/1
name: under
description: the base
gpu:
  name: a GPU
  memory: 8 GiB
  fp32_rate: 10 TFLOP/s
link:
  kind: PCIe
  d2h_bandwidth: 12 GB/s
  h2d_bandwidth: 10 GB/s
gpus: 2
switches:
  - {gpus: [0, 1], d2h_bandwidth: 16 GB/s, h2d_bandwidth: 16 GB/s}
sources:
  gpu.memory: the base's memory
  gpu.fp32_rate: the base's rate
  switches[0].d2h_bandwidth: the base's switch
"""
OVER = "schema: simgpu.node/1\nname: over\nbase: under.yaml\n"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def over(folder: Path, rest: str = "") -> Path:
    write(folder, "under", UNDER)
    return write(folder, "over", OVER + rest)


def reported(path: Path, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_node(path, overrides)
    return [str(problem).replace(f"{path.parent}/", "") for problem in caught.value.problems]


def test_a_base_provides_missing_values_except_name_and_description(tmp_path: Path) -> None:
    node, base = load_node(over(tmp_path)), load_node(tmp_path / "under.yaml")
    assert (node.gpu, node.link, node.host, node.switches) == (base.gpu, base.link, base.host, base.switches)
    assert (node.name, node.description) == ("over", "")


def test_a_file_needs_its_own_name(tmp_path: Path) -> None:
    write(tmp_path, "under", UNDER)
    nameless = write(tmp_path, "over", "schema: simgpu.node/1\nbase: under.yaml\n")
    assert reported(nameless) == ["over.yaml: name: is missing; add it"]


def test_mappings_are_merged_and_everything_else_is_replaced(tmp_path: Path) -> None:
    changes = "gpu: {memory: 4 GiB}\nswitches: [{gpus: [1], d2h_bandwidth: 1 GB/s, h2d_bandwidth: 1 GB/s}]\n"
    node = load_node(over(tmp_path, changes))
    assert (node.gpu.name, node.gpu.memory, node.gpu.fp32_rate) == ("a GPU", 4 * 2**30, 10**13)
    assert [switch.gpus for switch in node.switches] == [(1,)]


def test_null_removes_a_value_of_the_base(tmp_path: Path) -> None:
    file = load_node_file(over(tmp_path, "gpu: {fp32_rate: null}\n"))
    assert file.gpu.fp32_rate is None
    assert "gpu.fp32_rate" not in file.sources


def test_sources_follow_their_values(tmp_path: Path) -> None:
    rest = "gpu: {memory: 4 GiB}\nsources: {link.d2h_bandwidth: my own measurement}\n"
    assert load_node_file(over(tmp_path, rest)).sources == {
        "gpu.fp32_rate": "the base's rate",
        "switches[0].d2h_bandwidth": "the base's switch",
        "link.d2h_bandwidth": "my own measurement",
    }
    replaced = "switches: [{gpus: [1], d2h_bandwidth: 1 GB/s, h2d_bandwidth: 1 GB/s}]\n"
    assert "switches[0].d2h_bandwidth" not in load_node_file(over(tmp_path, replaced)).sources


def test_a_base_may_be_shipped_and_have_a_base_itself(tmp_path: Path) -> None:
    write(tmp_path, "middle", "schema: simgpu.node/1\nname: middle\nbase: v100\ngpu: {memory: 16 GiB}\n")
    top = write(tmp_path, "top", "schema: simgpu.node/1\nname: top\nbase: middle.yaml\ngpu: {reserved: 1 GiB}\n")
    node, v100 = load_node(top), load_node("v100")
    assert node.link == v100.link
    assert node.budget == 15 * 2**30
    assert node.gpu.fp32_rate == v100.gpu.fp32_rate
    assert load_node_file(top).sources["link.d2h_bandwidth"] == load_node_file("v100").sources["link.d2h_bandwidth"]


def test_a_path_to_a_base_starts_at_the_files_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path, "under", UNDER)
    path = write(tmp_path / "mine", "over", OVER.replace("under.yaml", "../under.yaml"))
    monkeypatch.chdir("/")
    assert load_node(path).gpu.name == "a GPU"


def test_overrides_work_on_the_merged_file(tmp_path: Path) -> None:
    node = load_node(over(tmp_path), {"gpu.memory": "2 GiB"})
    assert (node.gpu.memory, node.gpu.name, node.name) == (2 * 2**30, "a GPU", "over[gpu.memory=2 GiB]")
    assert load_node("v100-pcie4", {"gpu.memory": "8 GiB"}).budget == 8 * 2**30


def test_a_base_cannot_be_changed_by_an_override(tmp_path: Path) -> None:
    (problem,) = reported(over(tmp_path), {"base": "v100"})
    assert problem.startswith("override: node.base: the base cannot be overridden; choose another")


def test_each_mistake_is_reported_in_its_own_file(tmp_path: Path) -> None:
    path = over(tmp_path, "gpu: {memory: 4}\nlink:\n  h2d_bandwidth: fast\nsources: {gpu.memoy: me}\n")
    write(tmp_path, "under", UNDER.replace("12 GB/s", "-12 GB/s") + "  gpu.latency: nowhere\n")
    problems = reported(path)
    for start in (
        "over.yaml: line 4, gpu.memory: 4 has no unit",
        "over.yaml: line 6, link.h2d_bandwidth: 'fast' is not a bandwidth",
        "over.yaml: line 7, sources.gpu.memoy: 'gpu.memoy' is not in this file",
        "under.yaml: line 10, link.d2h_bandwidth: '-12 GB/s' is negative",
        "under.yaml: line 19, sources.gpu.latency: 'gpu.latency' is not in this file",
    ):
        assert sum(problem.startswith(start) for problem in problems) == 1
    assert len(problems) == 5


def test_a_mistake_of_the_base_is_ignored_if_overridden(tmp_path: Path) -> None:
    path = over(tmp_path, "gpu: {memory: 4 GiB}\n")
    write(tmp_path, "under", UNDER.replace("8 GiB", "8"))
    assert load_node(path).gpu.memory == 4 * 2**30


def test_value_missing_in_all_files_is_reported_in_the_requested_one(tmp_path: Path) -> None:
    path = over(tmp_path)
    write(tmp_path, "under", "schema: simgpu.node/1\nname: under\ngpu: {name: a GPU, memory: 1 GiB}\n")
    assert reported(path) == ["over.yaml: link: is missing; add it"]


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("v10", "line 3, base: no shipped node is called 'v10'; did you mean 'v100'?"),
        ("gone.yaml", "line 3, base: no such file: gone.yaml; give a path that exists, or the name of a shipped node"),
        ("over.yaml", "line 3, base: circular bases: over.yaml -> over.yaml; remove the base of one"),
        ("7", "line 3, base: 7 is not a text"),
        ("''", "line 3, base: '' is empty"),
    ],
)
def test_an_invalid_base_is_refused(tmp_path: Path, base: str, expected: str) -> None:
    path = write(tmp_path, "over", OVER.replace("under.yaml", base))
    assert reported(path)[0].startswith(f"over.yaml: {expected}")


def test_circular_bases_are_reported_in_the_file_that_closes_the_cycle(tmp_path: Path) -> None:
    names = ("a", "b", "c")
    for name, base in zip(names, ("b", "c", "b"), strict=True):
        write(tmp_path, name, f"schema: simgpu.node/1\nname: {name}\nbase: {base}.yaml\n")
    (problem,) = reported(tmp_path / "a.yaml")
    assert problem.startswith("c.yaml: line 3, base: circular bases: b.yaml -> c.yaml -> b.yaml; remove the base")


def test_a_base_of_another_schema_is_refused(tmp_path: Path) -> None:
    path = over(tmp_path)
    write(tmp_path, "under", UNDER.replace("simgpu.node/1", "simgpu.scenario/2"))
    (problem,) = reported(path)
    assert problem.startswith("under.yaml: line 1, schema: 'simgpu.scenario/2' is not the schema expected here")


def test_the_json_schema_requires_all_values_only_without_a_base() -> None:
    schema = json_schema("node")
    assert schema["required"] == ["schema", "name"]
    assert schema["if"] == {"not": {"required": ["base"]}}
    assert schema["then"]["required"] == ["gpu", "link"]
    assert schema["then"]["properties"] == {
        "gpu": {"required": ["name", "memory"]},
        "link": {"required": ["kind", "d2h_bandwidth", "h2d_bandwidth"]},
    }
    assert not {"required"} & (schema["$defs"]["GpuSection"].keys() | schema["$defs"]["LinkSection"].keys())
    assert schema["$defs"]["SwitchSection"]["required"] == ["gpus", "d2h_bandwidth", "h2d_bandwidth"]
