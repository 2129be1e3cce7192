"""Node configurations: units, overrides, and every mistake reported at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node, load_node_file, node_names
from simgpu.hardware.spec import Duplex, SwitchSpec

GOOD = """\
schema: simgpu.node/1
name: bench
gpu:
  name: a GPU
  memory: 8 GiB
link:
  kind: PCIe
  d2h_bandwidth: 11.7 GB/s
  h2d_bandwidth: 10.6 GB/s
"""


def problems_of(path: Path, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_node(path, overrides)
    return [str(problem).replace(str(path), path.name) for problem in caught.value.problems]


def node_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_units_become_integers(tmp_path: Path) -> None:
    extra = "  latency: 1.5 us\n  duplex: half\nhost:\n  pinned_memory: 16 GB\n"
    node = load_node(node_file(tmp_path, GOOD + extra))
    assert node.gpu.memory == 8 * 2**30
    assert node.link.d2h_bandwidth == 11_700_000_000
    assert node.link.latency_ns == 1500
    assert node.link.duplex is Duplex.HALF
    assert node.host.pinned_memory == 16_000_000_000
    assert (node.gpu.copy_engines, node.gpu.alignment, node.gpu.dram_bandwidth) == (2, 1, None)


def test_launches_take_no_time_unless_a_node_says_so(tmp_path: Path) -> None:
    path = node_file(tmp_path, GOOD)
    assert load_node(path).host.launch_ns == 0
    assert not {"launch_ns", "waits_for_copies"} & set(load_node(path).to_dict(context=True)["host"])
    node = load_node(path, {"host.launch": "15.9 us"})
    assert node.host.launch_ns == node.to_dict(context=True)["host"]["launch_ns"] == 15_900
    assert problems_of(path, {"host.launch": "-1 us"})[0].startswith("override: node.host.launch: ")
    assert all(load_node(name).host.launch_ns == 0 for name in node_names())


def test_an_architecture_without_parameters_is_refused_on_loading(tmp_path: Path) -> None:
    path = node_file(tmp_path, GOOD.replace("  memory: 8 GiB\n", "  memory: 8 GiB\n  architecture: voltta\n"))
    assert problems_of(path) == [
        "node.yaml: line 6, gpu.architecture: kernel times cannot be modelled for 'voltta': did you mean 'volta'? "
        "known: ada, ampere, blackwell, blackwell-rtx, cdna3, hopper, kepler, maxwell, pascal, turing, volta; leave it "
        "out for other architectures, which can run recorded traces"
    ]


def test_an_rtx_50_board_has_an_architecture_of_its_own(tmp_path: Path) -> None:
    text = GOOD.replace("  memory: 8 GiB\n", "  memory: 8 GiB\n  architecture: blackwell\n")
    assert load_node(node_file(tmp_path, text)).gpu.architecture == "blackwell"
    name = load_node(node_file(tmp_path, GOOD)).gpu.name
    [problem] = problems_of(node_file(tmp_path, text.replace(name, "GeForce RTX 5090")))
    assert "for a GeForce RTX 5090 it is blackwell-rtx" in problem


def test_a_node_of_one_gpu_has_no_peers() -> None:
    [problem] = problems_of(Path("h100-x8"), {"gpus": 1})
    assert "peers are other GPUs of the node, which has one" in problem


@pytest.mark.parametrize(
    ("key", "value", "known"), [("peers.wire", "network", "nvlink, pcie"), ("network.wire", "nvlink", "network")]
)
def test_a_wire_is_one_of_those_that_gpus_have_there(key: str, value: str, known: str) -> None:
    problems = problems_of(Path("h100-x8"), {key: value})
    assert problems == [f"override: node.{key}: '{value}' is not one of the choices; known: {known}"]


def test_overrides_change_values_the_name_and_the_sources() -> None:
    node = load_node("v100", {"gpu.memory": "8 GiB", "host.pinned_memory": "4 GiB"})
    assert (node.gpu.memory, node.host.pinned_memory) == (8 * 2**30, 4 * 2**30)
    assert node.name == "v100[gpu.memory=8 GiB, host.pinned_memory=4 GiB]"
    assert "gpu.memory" not in load_node_file("v100", {"gpu.memory": "8 GiB"}).sources
    assert load_node("v100").name == "v100", "an override must not leak into the next load"


def test_override_of_several_gpus_replaces_their_values() -> None:
    switch = {"gpus": [0], "d2h_bandwidth": "1 GB/s", "h2d_bandwidth": "1 GB/s"}
    file = load_node_file("k40-x4", {"switches": [switch], "gpus": 2})
    assert file.spec().switches == (SwitchSpec((0,), 10**9, 10**9),)
    assert not [key for key in file.sources if key.startswith(("switches", "gpus"))]


def test_the_error_for_a_bad_override_names_the_override_and_not_the_file(tmp_path: Path) -> None:
    path = node_file(tmp_path, GOOD)
    assert problems_of(path, {"gpu.memory": 8, "gpu.memoy": "8 GiB"}) == [
        "override: node.gpu.memory: 8 has no unit: a size is a text with a unit, for example '8 GiB'",
        (
            "override: node.gpu.memoy: unknown key; did you mean 'memory'? known: alignment, architecture, buddy, "
            "cdma, context_memory, copy_engines, dram_bandwidth, fp32_rate, memory, multiprocessors, name, power, "
            "reported_as, reserved, sustained_tensor_rate, tensor_rate"
        ),
    ]


def test_a_sustained_rate_without_matrix_units_is_refused(tmp_path: Path) -> None:
    text = GOOD.replace("  memory: 8 GiB\n", "  memory: 8 GiB\n  sustained_tensor_rate: 50 TFLOP/s\n")
    assert problems_of(node_file(tmp_path, text)) == [
        "node.yaml: line 3, gpu: sustained_tensor_rate needs tensor_rate: only matrix units sustain such a rate"
    ]


def test_all_problems_of_a_file_are_reported_at_once(tmp_path: Path) -> None:
    text = (
        GOOD.replace("8 GiB", "8")
        .replace("11.7 GB/s", "-11.7 GB/s")
        .replace("10.6 GB/s", "0 GB/s")
        .replace("kind:", "knid:")
    )
    reported = "\n".join(problems_of(node_file(tmp_path, text + "sources:\n  gpu.meory: somewhere\n")))
    for expected in (
        "node.yaml: line 5, gpu.memory: 8 has no unit",
        "node.yaml: line 8, link.d2h_bandwidth: '-11.7 GB/s' is negative",
        "node.yaml: line 9, link.h2d_bandwidth: '0 GB/s' is zero",
        "node.yaml: line 7, link.knid: unknown key; did you mean 'kind'?",
        "node.yaml: line 6, link.kind: is missing",
        "node.yaml: line 11, sources.gpu.meory: 'gpu.meory' is not in this file",
    ):
        assert expected in reported
    assert len(reported.splitlines()) == 6


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("8 GiB", "8 GiB\n  reserved: 9 GiB"), "line 3, gpu: reserved is not smaller than memory"),
        (("8 GiB", "8 GB/s"), "line 5, gpu.memory: '8 GB/s': 'GB/s' is not a unit of size"),
        (("8 GiB", "9999999999 TiB"), "line 5, gpu.memory: '9999999999 TiB' is too large"),
        (("8 GiB", "8 GiB\n  copy_engines: 3"), "line 6, gpu.copy_engines: 3 is not one of the choices; write 1 or 2"),
        (("name: a GPU", "name:"), "line 4, gpu.name: null is not a text"),
        (("name: a GPU", "name: ''"), "line 4, gpu.name: '' is empty"),
        (("gpu:\n  name: a GPU\n  memory: 8 GiB", "gpu: big"), "line 3, gpu: 'big' is not a mapping"),
        (("link:", "host: {memory: 1 GiB, pinned_memory: 2 GiB}\nlink:"), "line 6, host: pinned_memory exceeds"),
        (("link:", "gpus: 0\nlink:"), "line 6, gpus: 0 is too small; write at least 1"),
        (("link:", "switches: [{gpus: []}]\nlink:"), "line 6, switches[0].gpus: [] is too short"),
    ],
)
def test_each_mistake_gives_one_message(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    reported = problems_of(node_file(tmp_path, GOOD.replace(*change)))
    assert any(problem.startswith(f"node.yaml: {expected}") for problem in reported)
    assert len(reported) == (3 if "switches" in expected else 1), "a switch without bandwidths misses those too"


def test_unknown_node_suggests_the_closest() -> None:
    with pytest.raises(InputError, match=r"no shipped node is called '2080it'; did you mean '2080ti'\?"):
        load_node("2080it")


SWITCH = "  - {gpus: [GPUS], d2h_bandwidth: 16 GB/s, h2d_bandwidth: 8 GB/s}\n"


def test_switches_are_loaded_with_their_gpus(tmp_path: Path) -> None:
    switches = "gpus: 4\nswitches:\n" + SWITCH.replace("GPUS", "0, 1") + SWITCH.replace("GPUS", "3")
    node = load_node(node_file(tmp_path, GOOD + switches))
    assert node.gpus == 4
    assert node.switches == (
        SwitchSpec((0, 1), 16_000_000_000, 8_000_000_000),
        SwitchSpec((3,), 16_000_000_000, 8_000_000_000, Duplex.FULL),
    )


def test_unknown_gpus_and_gpus_behind_two_switches_are_refused(tmp_path: Path) -> None:
    switches = "gpus: 2\nswitches:\n" + SWITCH.replace("GPUS", "0, 1") + SWITCH.replace("GPUS", "1, 2")
    assert problems_of(node_file(tmp_path, GOOD + switches)) == [
        ("node.yaml: line 13, switches[1].gpus: GPU 1 is already in switches[0].gpus; list every GPU at most once"),
        ("node.yaml: line 13, switches[1].gpus: there is no GPU 2; use numbers below 2, or increase gpus"),
    ]


def test_the_host_section_is_loaded(tmp_path: Path) -> None:
    host = load_node(node_file(tmp_path, GOOD + "host: {memory: 256 GiB, cores: 20}\n")).host
    assert (host.memory, host.cores, host.pinned_memory) == (256 * 2**30, 20, None)


SSD = """\
memories:
  - name: ssd
    kind: NVMe SSD
    capacity: 2 TB
    alignment: 4 KiB
links:
  - between: [host, ssd]
    kind: PCIe 3.0 x4
    bandwidth: 1.8 GB/s
    return_bandwidth: 3.2 GB/s
    latency: 20 us
"""
SSD_SWITCH = "switches:\n  - {gpus: [0], d2h_bandwidth: 8 GB/s, h2d_bandwidth: 8 GB/s, links: [host-ssd]}\n"


def test_a_node_lists_its_memories_and_links(tmp_path: Path) -> None:
    node = load_node(node_file(tmp_path, GOOD + SSD_SWITCH + SSD))
    assert [(memory.name, memory.capacity, memory.alignment) for memory in node.memories] == [
        ("device", 8 * 2**30, 1),
        ("host", None, 1),
        ("ssd", 2 * 10**12, 4096),
    ]
    own, wire = node.links
    assert (own.ends, own.bandwidths, own.copy_engines) == (("device", "host"), (11_700_000_000, 10_600_000_000), 2)
    assert (wire.name, wire.bandwidths, wire.latency_ns) == ("host-ssd", (1_800_000_000, 3_200_000_000), 20_000)
    assert node.link_between("ssd", "host") is wire
    assert node.link_between("device", "ssd") is None
    assert node.switches[0].links == ("host-ssd",)


def test_a_link_has_the_same_bandwidth_both_ways_by_default(tmp_path: Path) -> None:
    node = load_node(node_file(tmp_path, GOOD + SSD.replace("    return_bandwidth: 3.2 GB/s\n", "")))
    assert node.links[1].bandwidths == (1_800_000_000, 1_800_000_000)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("name: ssd", "name: nvme0", "memories[0].name: 'nvme0' is not the name of a memory; write two or more"),
        ("name: ssd", "name: host", "memories[0].name: there is already a memory host; choose another name"),
        ("[host, ssd]", "[host, sdd]", "links[0].between[1]: there is no memory 'sdd'; did you mean 'ssd'?"),
        ("[host, ssd]", "[host, sdd]", "memories[0].name: no link reaches memory ssd; add one under links"),
        ("[host, ssd]", "[ssd, ssd]", "links[0].between: the link is between ssd and itself; name two memories"),
        ("[host, ssd]", "[host, device]", "links[0].between: this is the link of each GPU to the host; describe it"),
        ("[host, ssd]", "[device, ssd]", "switches[0].links: there is no link 'host-ssd' under links"),
        ("capacity: 2 TB", "allocator: best", "memories[0].allocator: "),
    ],
)
def test_mistakes_between_memories_links_and_switches_are_reported(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    problems = problems_of(node_file(tmp_path, GOOD + SSD_SWITCH + SSD.replace(old, new)))
    assert any(expected in problem for problem in problems), problems
