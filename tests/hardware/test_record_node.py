"""A node file measured on this machine: numbers derived from copies, the file, and errors without a GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError, MissingExtraError
from simgpu.hardware.nodes import load_node, load_node_file
from simgpu.hardware.spec import Duplex, LinkSpec, NodeSpec
from simgpu.recorder.machine.bandwidth import (
    DEFAULT_SIZES,
    CopyDirection,
    GpuProperties,
    Speeds,
    fit_latency,
    measure,
    measure_pageable,
)
from simgpu.recorder.machine.entry import (
    HostProperties,
    architecture,
    host_properties,
    measured_node,
    record_node,
)
from tests.cli.cli_helpers import simgpu
from tests.recorder.simulated_node import SimulatedNode, node, switch

DAY = "2024-05-17"
FACTS = GpuProperties("Test GPU", 8 * 2**30, 80, (7, 0), 7, "PyTorch 2")
HOST = HostProperties(64 * 2**30, 12)
GIGA = 10**9


@dataclass
class StandIn:
    """A device whose copies have a latency and a bandwidth; every third copy is slower."""

    latency_ns: int = 10_000
    bandwidths: dict[CopyDirection, int] = field(
        default_factory=lambda: {
            CopyDirection.OUT: 12 * GIGA,
            CopyDirection.IN: 10 * GIGA,
            CopyDirection.WITHIN: 400 * GIGA,
            CopyDirection.PAGEABLE_OUT: 2 * GIGA,
            CopyDirection.PAGEABLE_IN: 6 * GIGA,
        }
    )
    requested: list[tuple[CopyDirection, int, int]] = field(default_factory=list)

    def copy_times(self, way: CopyDirection, size: int, repetitions: int) -> Sequence[int]:
        self.requested.append((way, size, repetitions))
        undisturbed = self.latency_ns + size * GIGA // self.bandwidths[way]
        return [undisturbed * (5 if number % 3 == 2 else 1) for number in range(repetitions)]


def test_each_size_is_copied_both_ways_and_the_largest_also_within_the_device() -> None:
    device = StandIn()
    measure(device, [1024, 4096, 1024], repetitions=7)
    assert device.requested == [
        (CopyDirection.OUT, 1024, 7),
        (CopyDirection.OUT, 4096, 7),
        (CopyDirection.IN, 1024, 7),
        (CopyDirection.IN, 4096, 7),
        (CopyDirection.WITHIN, 4096, 7),
    ]


def test_speeds_are_medians_of_the_largest_copies() -> None:
    speeds = measure(StandIn(), DEFAULT_SIZES, repetitions=20)
    largest = max(DEFAULT_SIZES)
    assert speeds.d2h == largest * GIGA // (10_000 + largest * GIGA // (12 * GIGA))
    assert speeds.h2d == largest * GIGA // (10_000 + largest * GIGA // (10 * GIGA))
    assert speeds.within == 2 * largest * GIGA // (10_000 + largest * GIGA // (400 * GIGA)), "read plus written"
    assert speeds.latency_ns == 10_000
    pageable = measure_pageable(StandIn(), largest, repetitions=20)
    assert pageable == pytest.approx(3 * GIGA, rel=1e-3), "as much out at 2 GB/s as back at 6 GB/s"


@given(
    latency=st.integers(0, 100_000),
    out=st.integers(GIGA, 500 * GIGA),
    back=st.integers(GIGA, 500 * GIGA),
)
def test_fitted_line_recovers_the_latency(latency: int, out: int, back: int) -> None:
    times = {
        way: {size: latency + size * GIGA // speed for size in DEFAULT_SIZES}
        for way, speed in ((CopyDirection.OUT, out), (CopyDirection.IN, back))
    }
    assert abs(fit_latency(times) - latency) <= 1, "times are whole nanoseconds"


def test_a_fitted_line_that_starts_below_zero_gives_no_latency() -> None:
    assert fit_latency({CopyDirection.OUT: {1000: 100, 2000: 300}}) == 0


def test_scatter_of_large_copies_does_not_change_the_fitted_latency() -> None:
    times = {size: 10_000 + size * GIGA // (12 * GIGA) for size in DEFAULT_SIZES}
    times[max(DEFAULT_SIZES)] += 200_000  # a hundredth of its time plus twenty latencies
    assert fit_latency({CopyDirection.OUT: times}) == pytest.approx(10_000, rel=0.02)


def recorded(
    tmp_path: Path, facts: GpuProperties = FACTS, host: HostProperties = HOST, several: NodeSpec | None = None
) -> Path:
    path = tmp_path / "mine.yaml"
    group = SimulatedNode(several or node(1))
    text = measured_node("mine", facts, StandIn(), group, host, DEFAULT_SIZES, 20, DAY)
    path.write_text(text, encoding="utf-8")
    return path


def test_the_recorded_file_loads_with_the_measured_numbers(tmp_path: Path) -> None:
    node = load_node(recorded(tmp_path))
    expected = measure(StandIn(), DEFAULT_SIZES, 20)
    assert node.name == "mine"
    assert (node.gpu.name, node.gpu.memory, node.gpu.multiprocessors) == ("Test GPU", 8 * 2**30, 80)
    assert (node.gpu.architecture, node.gpu.copy_engines) == ("volta", 2)
    assert node.link.latency_ns == expected.latency_ns
    for result, measured in (
        (node.link.d2h_bandwidth, expected.d2h),
        (node.link.h2d_bandwidth, expected.h2d),
        (node.gpu.dram_bandwidth, expected.within),
        (node.host.pageable_bandwidth, measure_pageable(StandIn(), max(DEFAULT_SIZES), 20)),
    ):
        assert result is not None
        assert abs(result - measured) <= 500_000, "written to the MB/s"
    assert (node.host.memory, node.host.cores) == (64 * 2**30, 12)


def test_every_recorded_number_has_a_source_with_the_date(tmp_path: Path) -> None:
    file = load_node_file(recorded(tmp_path))
    values = file.model_dump(exclude_unset=True, include={"gpu", "link", "host"})
    numbers = {f"{part}.{key}" for part, inner in values.items() for key in inner} - {"gpu.name", "link.kind"}
    assert numbers == set(file.sources)
    assert all(DAY in source for key, source in file.sources.items() if key != "gpu.copy_engines")
    assert "median of 20 copies of 256 MiB" in file.sources["link.d2h_bandwidth"]


def test_unknown_values_are_omitted(tmp_path: Path) -> None:
    facts = replace(FACTS, copy_engines=None, capability=(2, 1))
    file = load_node_file(recorded(tmp_path, facts, HostProperties(None, None)))
    assert (file.gpu.architecture, file.host.memory, file.host.cores) == (None, None, None)
    assert not {"gpu.copy_engines", "gpu.architecture", "host.memory", "host.cores"} & set(file.sources)


def test_the_memory_of_the_context_is_recorded_where_it_was_measured(tmp_path: Path) -> None:
    file = load_node_file(recorded(tmp_path, replace(FACTS, context_memory=452 * 2**20)))
    assert file.gpu.context_memory == 452 * 2**20
    assert "without the allocator's, but with that of other programs" in file.sources["gpu.context_memory"]
    assert load_node(recorded(tmp_path)).gpu.context_memory is None


def test_several_gpus_are_recorded_with_what_they_share(tmp_path: Path) -> None:
    pairs = [switch((0, 1), 30, 25), switch((2, 3), 30, 25)]
    path = recorded(tmp_path, several=node(4, pairs, memory=80))
    file, result = load_node_file(path), load_node(path)
    assert result.gpus == 4
    assert result.switches == tuple(pairs)
    assert result.host.memory_bandwidth == 80 * GIGA
    assert "GPUs 2, 3 at once 30.000 GB/s device-to-host, 25.000 GB/s" in file.sources["switches[1].h2d_bandwidth"]
    assert "all GPUs at once 60.000 GB/s device-to-host" in file.sources["host.memory_bandwidth"]
    assert "No switch" not in path.read_text(encoding="utf-8")


def test_several_gpus_that_share_nothing_are_recorded_without_limits(tmp_path: Path) -> None:
    path = recorded(tmp_path, several=node(2, [switch((1,), 10, 10)]))
    result = load_node(path)
    assert (result.gpus, result.switches, result.host.memory_bandwidth) == (2, (), None)
    text = path.read_text(encoding="utf-8")
    assert "# No switch and no host.memory_bandwidth is given: copies of all GPUs at once" in text
    assert "# link is that of GPU 0. The slowest GPU alone copies at 40% of its rate device-to-host." in text


@pytest.mark.parametrize(("engines", "expected"), [(2, Duplex.HALF), (1, Duplex.FULL)])
def test_a_link_that_both_directions_share_is_half_duplex(tmp_path: Path, engines: int, expected: Duplex) -> None:
    half = replace(node(1), link=LinkSpec("wire", 20 * GIGA, 20 * GIGA, duplex=Duplex.HALF))
    path = recorded(tmp_path, replace(FACTS, copy_engines=engines), several=half)
    assert load_node(path).link.duplex is expected, "one engine serves one direction at a time on any link"


def test_an_architecture_without_parameters_is_omitted_with_a_comment(tmp_path: Path) -> None:
    path = recorded(tmp_path, replace(FACTS, capability=(11, 0)))
    assert load_node(path).gpu.architecture is None
    assert "# gpu.architecture is left out: kernel times cannot be modelled for embedded blackwell." in path.read_text()
    assert "To model durations" not in path.read_text()


@pytest.mark.parametrize(
    ("amd", "architecture", "source"),
    [("gfx942", "cdna3", "AMD's architecture gfx942"), ("gfx90a", None, "")],
)
def test_an_amd_gpu_has_the_architecture_of_its_name(
    tmp_path: Path, amd: str, architecture: str | None, source: str
) -> None:
    """PyTorch for ROCm reports (9, 4) for gfx942, which would be hopper's of CUDA."""
    file = load_node_file(path := recorded(tmp_path, replace(FACTS, capability=(9, 4), amd=amd)))
    assert file.gpu.architecture == architecture
    assert file.sources.get("gpu.architecture", "").endswith(source)
    assert ("kernel times cannot be modelled for AMD's gfx90a" in path.read_text()) == (architecture is None)


def test_a_single_copy_engine_is_recorded(tmp_path: Path) -> None:
    assert load_node(recorded(tmp_path, replace(FACTS, copy_engines=1))).gpu.copy_engines == 1


def test_the_memory_size_is_recorded_to_the_byte(tmp_path: Path) -> None:
    for size in (85_045_477_376, 12_884_180_993):
        assert load_node(recorded(tmp_path, replace(FACTS, memory=size))).gpu.memory == size


def test_a_link_too_fast_to_measure_is_no_error() -> None:
    instant = StandIn(latency_ns=0, bandwidths=dict.fromkeys(CopyDirection, 2**62))
    assert measure(instant, [1, 2], 3) == Speeds(2 * GIGA, 2 * GIGA, 1, 4 * GIGA)
    assert measure_pageable(instant, 2, 3) == 2 * GIGA


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        ((3, 5), "kepler"),
        ((5, 2), "maxwell"),
        ((6, 1), "pascal"),
        ((7, 0), "volta"),
        ((7, 5), "turing"),
        ((8, 6), "ampere"),
        ((8, 9), "ada"),
        ((9, 0), "hopper"),
        ((10, 3), "blackwell"),
        ((11, 0), "embedded blackwell"),
        ((12, 0), "blackwell-rtx"),
    ],
)
def test_the_architecture_follows_from_the_compute_capability(capability: tuple[int, int], name: str) -> None:
    assert architecture(capability) == name


def test_threads_of_one_core_count_as_one_core(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    threads = [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0), (0, 1), (1, 0), (1, 1)]
    info.write_text("\n".join(f"physical id\t: {socket}\ncore id\t\t: {core}\n" for socket, core in threads))
    assert host_properties(info).cores == 4


def test_unknown_cores_are_recorded_as_threads(tmp_path: Path) -> None:
    assert "threads" in host_properties(tmp_path / "none").cores_are


def test_wrong_arguments_are_reported_together() -> None:
    with pytest.raises(InputError) as caught:
        record_node("mine", sizes=[0, 1024], repetitions=0, date="today")
    assert [problem.place for problem in caught.value.problems] == ["sizes", "repetitions", "date"]
    with pytest.raises(InputError, match="one size cannot show the latency"):
        record_node("mine", sizes=[1024, 1024])


def test_missing_torch_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    result = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torch" else result(name, *more)
    )
    with pytest.raises(MissingExtraError, match=r"measuring a node needs torch.*simgpu with its extra 'record'"):
        record_node("mine")


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("there.yaml", [], "already exists; choose another name, or replace it with --force"),
        ("away/mine.yaml", [], "its folder does not exist; create"),
        ("mine.txt", [], "is not named as a YAML file; use a name that ends in .yaml"),
        ("mine.yaml", ["--sizes", "3, 1 MiB, x"], "--sizes: '3' has no unit"),
    ],
)
def test_the_command_reports_wrong_arguments_before_measuring(
    tmp_path: Path, name: str, options: list[str], expected: str
) -> None:
    (tmp_path / "there.yaml").write_text("mine", encoding="utf-8")
    done = simgpu("validate", "node", "-o", str(tmp_path / name), *options)
    assert done.exit_code == 2
    assert expected in done.stderr
    assert (tmp_path / "there.yaml").read_text(encoding="utf-8") == "mine"


def test_the_command_writes_and_prints_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(name: str, **arguments: object) -> str:
        assert arguments["sizes"] == [1024, 2048]
        return measured_node(name, FACTS, StandIn(), SimulatedNode(node(1)), HOST, [1024, 2048], 3, DAY)

    monkeypatch.setattr("simgpu.cli.record_node.record_node", stand_in)
    path = tmp_path / "desk.yaml"
    path.write_text("old", encoding="utf-8")
    done = simgpu("validate", "node", "-o", str(path), "--force", "--sizes", "1 KiB, 2 KiB")
    assert done.exit_code == 0
    assert load_node(path).name == "desk"
    assert "Test GPU" in done.stdout
    assert done.stdout.rstrip().endswith(path.name)
