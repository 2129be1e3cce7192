"""Shipped nodes are complete, have sources, and match the figures of the papers."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from simgpu.hardware.nodes import gpu_called, load_node, load_node_file, node_names
from simgpu.hardware.spec import ArchitectureName
from simgpu.io.shipped import shipped_folder
from simgpu.simulation.run import simulate
from simgpu.trace.folder import load_trace
from simgpu.units import parse_bandwidth
from tests.papers.published import published

README = shipped_folder("configs") / "README.md"
GIGA = 10**9

#: Keys for names and structure, which need no source.
NO_QUANTITY = {
    *("gpu.reported_as", "gpu.name", "link.kind", *(f"switches[{number}].gpus" for number in range(4))),
    *("links[0].kind", "links[0].between", "links[0].over_gpu_link"),
    *("peers.kind", "peers.wire", "network.kind", "network.wire"),
}
_PARTS = {"gpu", "gpus", "link", "switches", "host", "links", "peers", "network"}
REAL = [name for name in node_names() if name != "laptop-2gb"]
NVLINK2 = [f"v100-nvlink2-{speed}" for speed in (50, 75, 100, 150, 200)]


@pytest.fixture(scope="module")
def claims() -> dict[str, Any]:
    """The figures stated by papers, by id."""
    return published()


def leaf_names(value: object, place: str = "") -> list[str]:
    """Dotted paths of the values in a file."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaf_names(inner, f"{place}.{key}" if place else key)]
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return [leaf for number, item in enumerate(value) for leaf in leaf_names(item, f"{place}[{number}]")]
    return [place]


@pytest.mark.parametrize("name", node_names())
def test_every_shipped_node_loads_and_has_the_name_of_its_file(name: str) -> None:
    node = load_node(name)
    assert node.name == name
    assert node.description
    assert 0 < node.budget <= node.gpu.memory


@pytest.mark.parametrize("name", node_names())
def test_every_quantity_has_a_source(name: str) -> None:
    file = load_node_file(name)
    parts = file.model_dump(exclude_unset=True, include=_PARTS)
    assert set(leaf_names(parts)) - NO_QUANTITY == set(file.sources)


@pytest.mark.parametrize("name", REAL)
def test_every_shipped_node_has_the_values_for_modelled_durations(name: str) -> None:
    gpu = load_node(name).gpu
    assert gpu.architecture in get_args(ArchitectureName)
    assert gpu.multiprocessors
    assert gpu.fp32_rate
    assert gpu.dram_bandwidth
    has_matrix_units = gpu.architecture not in {"kepler", "maxwell", "pascal"}
    assert (gpu.tensor_rate is not None) == has_matrix_units


@pytest.mark.parametrize(
    ("name", "h2d", "d2h"),
    [
        ("v100", "10.6 GB/s", "11.7 GB/s"),
        ("2080ti", "11.8 GB/s", "12.9 GB/s"),
        ("titan-x-maxwell", "12.8 GB/s", "12.8 GB/s"),
        ("k40", "10.0387 GB/s", "10.0467 GB/s"),
    ],
)
def test_bandwidths_match_the_measured_results(name: str, h2d: str, d2h: str) -> None:
    link = load_node(name).link
    assert (link.h2d_bandwidth, link.d2h_bandwidth) == (parse_bandwidth(h2d), parse_bandwidth(d2h))


@pytest.mark.parametrize(("name", "claim"), [("v100", "cswap.bandwidth.v100"), ("2080ti", "cswap.bandwidth.2080ti")])
def test_cswap_servers_have_the_published_effective_bandwidths(name: str, claim: str, claims: dict[str, Any]) -> None:
    link = load_node(name).link
    assert [link.h2d_bandwidth / GIGA, link.d2h_bandwidth / GIGA] == claims[claim]


@pytest.mark.parametrize("name", ["titan-x-maxwell", "titan-x-maxwell-x4", "titan-xp"])
def test_the_cdma_node_has_the_published_effective_bandwidth_of_vdnn(name: str, claims: dict[str, Any]) -> None:
    link = load_node(name).link
    assert link.h2d_bandwidth == link.d2h_bandwidth == claims["cdma.pcie_effective"][0] * GIGA


def test_four_gpus_of_the_cdma_node_share_two_switches(claims: dict[str, Any]) -> None:
    node = load_node("titan-x-maxwell-x4")
    assert sorted(gpu for switch in node.switches for gpu in switch.gpus) == list(range(node.gpus))
    for switch in node.switches:
        assert switch.d2h_bandwidth / len(switch.gpus) == claims["cdma.shared_link"] * GIGA
        assert switch.h2d_bandwidth == switch.d2h_bandwidth


def test_modnns_four_gpus_share_one_bus() -> None:
    """A bus as fast as pinned copies of one board; the boards' own copies are slower."""
    node, single, pinned = (load_node(name) for name in ("k40-x4", "k40-pageable", "k40"))
    (switch,) = node.switches
    assert switch.gpus == (0, 1, 2, 3)
    assert (switch.d2h_bandwidth, switch.h2d_bandwidth) == (pinned.link.d2h_bandwidth, pinned.link.h2d_bandwidth)
    assert single.gpu == pinned.gpu and single.link.h2d_bandwidth < pinned.link.h2d_bandwidth / 2
    assert (node.gpu, node.link, node.host) == (single.gpu, single.link, single.host)
    assert node.host.cores == 20


@pytest.mark.parametrize("name", NVLINK2)
def test_nvlink2_variants_differ_only_in_the_link(name: str) -> None:
    node, six_bricks = load_node(name), load_node("v100-nvlink2-150")
    speed = int(name.rpartition("-")[2]) * GIGA
    assert (node.link.d2h_bandwidth, node.link.h2d_bandwidth) == (speed, speed)
    assert node.gpu == six_bricks.gpu
    assert node.link.kind == f"NVLink2, {speed // (25 * GIGA)} bricks"


@pytest.mark.parametrize("name", ["titan-xp", "v100"])
def test_each_pcie_generation_doubles_the_bandwidth(name: str) -> None:
    links = [load_node(f"{name}{suffix}").link for suffix in ("", "-pcie4", "-pcie5")]
    for before, after in pairwise(links):
        assert after.d2h_bandwidth == 2 * before.d2h_bandwidth
        assert after.h2d_bandwidth == 2 * before.h2d_bandwidth


@pytest.mark.parametrize("name", node_names())
def test_unmeasured_link_is_marked(name: str) -> None:
    source = load_node_file(name).sources["link.d2h_bandwidth"]
    measured = ("effective bandwidth as the paper states it", "12.8 GB/s effective", "bandwidthTest", "nvbandwidth")
    assert any(word in source for word in measured) != any(
        word in source for word in ("NOT measured", "synthetic", "FITTED")
    )


def test_a_run_uses_one_gpu_of_several_and_notes_it() -> None:
    trace = load_trace("vgg11-cifar-cpu")
    four, one = (
        simulate(trace, load_node(name, {"gpu.memory": "1 GiB"}), "vdnn") for name in ("k40-x4", "k40-pageable")
    )
    assert four.iteration_ns == one.iteration_ns
    assert [note for note in four.notes if note not in one.notes] == [
        "one of the node's 4 GPUs runs, with its own link"
    ]


def test_the_examples_of_the_readme_load(tmp_path: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(examples) == 2
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.yaml"
        path.write_text(example, encoding="utf-8")
        assert load_node_file(path).sources


def test_the_readme_lists_the_nodes_without_a_host() -> None:
    (names,) = re.findall(
        r"\*\*Neither memory nor cores of a host are given\*\* for (.*?):",
        README.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )
    patterns = re.findall(r"`(.*?)`", names)
    without = [name for name in REAL if load_node(name).host.memory is None]
    assert [name for name in REAL if any(fnmatch(name, pattern) for pattern in patterns)] == without
    assert [name for name in without if load_node(name).host.cores is not None] == []


def test_every_node_is_explained_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8").replace("`-", "`v100-nvlink2-")
    assert [name for name in node_names() if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("device", "node"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("Tesla V100-PCIE-32GB", "v100"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_gpu_is_found_by_its_driver_name(device: str, node: str) -> None:
    names = ("h100", "h100-pcie", "v100", "a100", "a100-80gb", "a100-sxm-40gb", "mi300x")
    assert [name for name in names if load_node(name).gpu.is_called(device)] == [node]


def test_the_gpus_of_a_gb300_node_share_the_memory_of_their_grace_cpu() -> None:
    """Alone, a GPU's own link limits its copies; with all at once, the CPU's memory does."""
    node = load_node("gb300-x4")
    for switch in node.switches:
        shares = switch.d2h_bandwidth / len(switch.gpus), switch.h2d_bandwidth / len(switch.gpus)
        assert shares[0] < node.link.d2h_bandwidth and shares[1] < node.link.h2d_bandwidth


@pytest.mark.parametrize(("name", "one", "cpus"), [("gb300-x4", "gb300", 2), ("gh200-x4", "gh200", 4)])
def test_a_node_of_several_grace_cpus_has_the_memory_and_cores_of_all(name: str, one: str, cpus: int) -> None:
    """Copies of all GPUs at once, as measured, are not slower for the memory of their hosts."""
    several, host = load_node(name), load_node(one).host
    assert host.memory and host.cores and host.memory_bandwidth and several.host.memory_bandwidth
    assert (several.host.memory, several.host.cores) == (cpus * host.memory, cpus * host.cores)
    assert several.host.memory_bandwidth >= cpus * host.memory_bandwidth
    limits = several.switches or (several.link,) * several.gpus
    for way in ("d2h_bandwidth", "h2d_bandwidth"):
        assert sum(getattr(limit, way) for limit in limits) <= several.host.memory_bandwidth


def test_the_link_of_a_gh200_is_faster_towards_the_gpu() -> None:
    link = load_node("gh200").link
    assert link.h2d_bandwidth > 2 * link.d2h_bandwidth


@pytest.mark.slow
def test_a_gpu_is_found_by_its_name_as_if_all_nodes_were_read() -> None:
    gpus = [load_node(name).gpu for name in node_names()]
    called = {device for gpu in gpus for device in (gpu.name, *gpu.reported_as)}
    for device in called | {"CPU (AMD EPYC)", "GeForce", "v100", ""}:
        expected = next((gpu for gpu in gpus if gpu.is_called(device) and gpu.architecture), None)
        assert gpu_called(device) == expected, device
