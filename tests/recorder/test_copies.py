"""Copies through PyTorch: for real in host memory, and the CUDA device's parts against stand-ins."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.recorder.clocks import HostClock
from simgpu.recorder.machine.bandwidth import CopyDirection, measure
from simgpu.recorder.machine.cuda_copies import TorchCopies, TorchGroup, copy_engines, open_device, open_group
from simgpu.recorder.machine.entry import record_node
from simgpu.recorder.machine.shared_capacities import Mode
from simgpu.recorder.machine.together import measure_together

_CPU = torch.device("cpu")


@dataclass
class CountingClock:
    """Counts marks; a copy takes the number of its mark."""

    marks: list[int] = field(default_factory=list)

    def mark(self) -> int:
        self.marks.append(len(self.marks))
        return self.marks[-1]

    def durations(self, pairs: Any) -> list[int]:
        assert all(end == begin + 1 for begin, end in pairs), "nothing else is timed"
        return [end for _, end in pairs]


def test_warm_up_copies_are_run_and_not_counted() -> None:
    clock = CountingClock()
    assert TorchCopies(_CPU, clock).copy_times(CopyDirection.OUT, 100, 4) == [7, 9, 11, 13]


@pytest.mark.parametrize("way", CopyDirection)
def test_a_copy_moves_every_byte(way: CopyDirection, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[int, bool]] = []
    copy = torch.Tensor.copy_

    def watched(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        moved.append((source.nbytes, target.data_ptr() != source.data_ptr()))
        return copy(target, source, non_blocking)

    monkeypatch.setattr(torch.Tensor, "copy_", watched)
    TorchCopies(_CPU, HostClock()).copy_times(way, 12_345, 1)
    assert set(moved) == {(12_345, True)}


@dataclass
class Stream(AbstractContextManager[None]):
    """Notes each time that it becomes the current stream."""

    number: int
    used: list[int]

    def __enter__(self) -> None:
        self.used.append(self.number)

    def __exit__(self, *error: object) -> None:
        pass


def test_streams_of_several_devices_copy_one_after_the_other_from_the_start() -> None:
    used: list[int] = []
    streams = count()
    group = TorchGroup([TorchCopies(_CPU, CountingClock())] * 3, lambda device: Stream(next(streams), used))
    times = group.times_together([2, 0], (CopyDirection.OUT, CopyDirection.IN), 100, copies=3)
    assert used == [0, 1, 2, 3] * 3, "no stream is done before all have begun"
    assert times == [[1, 9, 17], [3, 11, 19], [5, 13, 21], [7, 15, 23]]


def test_several_devices_measured_for_real_in_host_memory() -> None:
    group = TorchGroup([TorchCopies(_CPU, HostClock())] * 3, lambda device: nullcontext())
    rates = measure_together(group, 2**16, repetitions=3)
    assert set(rates[Mode.BOTH]) >= {(0,), (1,), (2,), (0, 1, 2)}
    assert all(rate > 0 for each in rates.values() for several in each.values() for rate in several)


def test_all_devices_of_the_first_one_s_kind_are_measured_together(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [("A", 8), ("B", 8), ("A", 8), ("A", 4)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(kinds))
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: SimpleNamespace(name=kinds[index][0], total_memory=kinds[index][1]),
    )
    assert [copies.device.index for copies in open_group("cuda").devices] == [0, 2]
    assert [copies.device.index for copies in open_group("cuda:1").devices] == [1]


def test_host_memory_measured_for_real() -> None:
    speeds = measure(TorchCopies(_CPU, HostClock()), [2**16, 2**20, 2**24], repetitions=5)
    assert speeds.d2h > 0 and speeds.h2d > 0
    assert speeds.latency_ns >= 0


def test_a_too_large_copy_is_named_with_a_remedy() -> None:
    with pytest.raises(InputError, match=r"out of memory for a copy of 4611686018427387904 bytes, host to device"):
        TorchCopies(_CPU, HostClock()).copy_times(CopyDirection.IN, 2**62, 1)


@pytest.mark.parametrize("name", ["cpu", "cuda:x", "mps", ""])
def test_only_a_cuda_device_has_a_link(name: str) -> None:
    with pytest.raises(InputError, match=r"is not a CUDA device: only a GPU has a link .*; give cuda or cuda:N"):
        open_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch sees a CUDA device")
def test_without_a_gpu_the_error_names_the_remedy() -> None:
    with pytest.raises(
        InputError, match=r"device: 'cuda': PyTorch \S+ sees no CUDA device; run it on the machine with"
    ):
        record_node("mine")


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"'cuda:2': PyTorch \S+ sees 2 CUDA devices; give cuda:0 to cuda:1"):
        open_device("cuda:2")


def test_a_gpu_that_fails_is_named_with_what_it_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(index: int) -> None:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nFor debugging consider")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", busy)
    with pytest.raises(InputError) as caught:
        record_node("mine", device="cuda:1")
    assert str(caught.value) == (
        "record_node: device: 'cuda:1' failed: CUDA error: CUDA-capable device(s) is/are busy or unavailable; "
        "end other programs on the GPUs; or choose another GPU with --device or CUDA_VISIBLE_DEVICES"
    )


@pytest.mark.parametrize(("hip", "amd"), [("6.4", "gfx942"), (None, "")])
def test_amd_s_name_of_the_architecture_is_read_under_rocm(
    monkeypatch: pytest.MonkeyPatch, hip: str | None, amd: str
) -> None:
    """PyTorch for CUDA has the name of the GPU in its place."""
    facts = {"major": 9, "minor": 4, "multi_processor_count": 304, "gcnArchName": "gfx942:sramecc+:xnack-"}
    board = SimpleNamespace(name="AMD Instinct MI300X", total_memory=192 * 2**30, **facts)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (2**30, 2**31))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: board)
    assert open_device("cuda")[0].amd == amd


@dataclass
class Driver:
    """The CUDA driver, as far as it is asked."""

    result: int = 0
    calls: list[str] = field(default_factory=list)

    def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's name
        self.calls.append(f"init {flags}")
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802 - the driver's name
        device._obj.value = 40 + index
        return 0

    def cuDeviceGetAttribute(self, count: Any, attribute: int, device: ctypes.c_int) -> int:  # noqa: N802 - the driver's name
        self.calls.append(f"attribute {attribute} of {device.value}")
        count._obj.value = 3
        return self.result


def test_the_driver_reports_the_copy_engines() -> None:
    driver = Driver()
    assert copy_engines(1, lambda library: driver) == 3  # type: ignore[arg-type,return-value]
    assert driver.calls == ["init 0", "attribute 40 of 41"]


def test_a_missing_or_silent_driver_gives_no_copy_engines() -> None:
    def absent(library: str) -> ctypes.CDLL:
        raise OSError(library)

    assert copy_engines(0, absent) is None
    assert copy_engines(0, lambda library: Driver(result=101)) is None  # type: ignore[arg-type,return-value]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no CUDA device")
def test_a_gpu_measured_for_real(tmp_path: Any) -> None:
    path = tmp_path / "this.yaml"
    path.write_text(record_node("this", sizes=[2**16, 2**20, 2**24, 2**26]), encoding="utf-8")
    node = load_node(path)
    assert node.gpu.memory == torch.cuda.get_device_properties(0).total_memory
    assert node.gpu.dram_bandwidth is not None
    assert node.gpu.dram_bandwidth > node.link.d2h_bandwidth
    assert node.link.latency_ns < 1_000_000
