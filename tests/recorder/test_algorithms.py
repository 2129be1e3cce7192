"""Other ways to run convolutions: real ones on this processor, those of a GPU against stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.errors import InputError
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import with_algorithms
from simgpu.recorder import algorithms, record
from simgpu.recorder.algorithms import settings
from simgpu.recorder.scratch import ProfiledScratch, framework_peak
from simgpu.trace.check import check_trace
from simgpu.trace.model import Trace
from tests.recorder.small_models import named, plain_sgd, summed

_CHANNELS, _SIDE = 5, 16


def _convolutions(batch: int) -> tuple[Any, ...]:
    module = named(
        conv1=nn.Conv2d(_CHANNELS, 8, 3, padding=1, bias=False),
        relu=nn.ReLU(),
        conv2=nn.Conv2d(8, 4, 3, padding=1, bias=False),
    )
    return module, torch.randn(batch, _CHANNELS, _SIDE, _SIDE), (), summed


@pytest.fixture(scope="module")
def trace() -> Trace:
    return record(_convolutions, batch=1, repetitions=3, warmup=1, optimizer=plain_sgd, algorithms=True)


def test_every_convolution_has_a_row_for_every_setting(trace: Trace) -> None:
    convolving = [kernel.id for kernel in trace.kernels if kernel.op.startswith("aten::convolution")]
    assert len(convolving) == 4
    result = [(choice.kernel, choice.algorithm) for choice in trace.algorithms]
    assert result == [(kernel, name) for kernel in convolving for name in ("default", "without-onednn")]
    assert all(choice.duration_ns > 0 for choice in trace.algorithms)
    assert check_trace(trace) == []


def test_the_default_takes_as_long_as_the_kernel_that_was_recorded(trace: Trace) -> None:
    recorded = {kernel.id: kernel.duration_ns for kernel in trace.kernels}
    defaults = [choice for choice in trace.algorithms if choice.algorithm == "default"]
    assert defaults and all(choice.duration_ns == recorded[choice.kernel] for choice in defaults)


def test_without_onednn_backward_unfolds_the_sample_into_columns(trace: Trace) -> None:
    (first,) = [kernel for kernel in trace.kernels if kernel.layer == "conv1" and kernel.phase == "backward"]
    (choice,) = [c for c in trace.algorithms if (c.kernel, c.algorithm) == (first.id, "without-onednn")]
    columns = 4 * _CHANNELS * 3 * 3 * _SIDE**2
    assert choice.workspace_bytes == columns


def test_a_policy_may_choose_one(trace: Trace) -> None:
    graph = TaskGraph.of(trace)
    choice = next(c for c in trace.algorithms if c.algorithm == "without-onednn" and c.workspace_bytes)
    number = graph.kernel_number[choice.kernel]
    assert with_algorithms(graph, {number: choice.algorithm}).durations[number] == choice.duration_ns


def test_algorithms_are_measured_only_on_request() -> None:
    assert record(_convolutions, batch=2, repetitions=1, warmup=1).algorithms == ()


def test_a_setting_holds_while_it_is_on_and_no_longer() -> None:
    def now() -> tuple[bool, bool, bool, bool]:
        cudnn = torch.backends.cudnn
        return torch.backends.mkldnn.enabled, cudnn.enabled, cudnn.benchmark, cudnn.deterministic

    before = now()
    assert before == (True, True, False, False)
    expected = {
        "default": before,
        "without-onednn": (False, True, False, False),
        "benchmark": (True, True, True, False),
        "deterministic": (True, True, False, True),
        "without-cudnn": (True, False, False, False),
    }
    seen = {}
    for device in ("cuda", "cpu"):
        for name, switch in settings(torch.device(device)).items():
            with pytest.raises(ZeroDivisionError), switch():
                seen[name] = now()
                raise ZeroDivisionError
            assert now() == before
    assert seen == expected


def test_a_failure_under_a_setting_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def broken() -> Iterator[None]:
        raise RuntimeError("no such engine")
        yield

    monkeypatch.setattr(algorithms, "settings", lambda device: {"odd": broken})
    with pytest.raises(InputError) as caught:
        record(_convolutions, batch=2, repetitions=1, warmup=1, algorithms=True)
    assert "algorithms: an iteration under the setting 'odd' raised RuntimeError: no such engine" in str(caught.value)
    assert "record without --algorithms" in str(caught.value)


def test_profiled_scratch_is_what_an_operator_takes_and_gives_back() -> None:
    library = torch.library.Library("simgpu_scratch", "DEF")
    library.define("double(Tensor x) -> Tensor")

    def double(x: torch.Tensor) -> torch.Tensor:
        first = torch.empty(1000)
        del first
        torch.empty(300)
        return x + x

    library.impl("double", double, "CompositeExplicitAutograd")
    scratch = ProfiledScratch()
    x = torch.ones(10)
    scratch.start()
    torch.ops.simgpu_scratch.double(x)
    assert scratch.used() == 4 * 1000
    scratch.start()
    retained = x + x
    assert (scratch.used(), retained.numel()) == (0, 10)


class _Memory:
    """Stands in for torch.cuda's memory statistics."""

    peak = 9000

    def reset_peak_memory_stats(self, device: object) -> None:
        self.peak = 100

    def max_memory_allocated(self, device: object) -> int:
        return self.peak


def test_the_frameworks_peak_is_of_the_run_alone_and_only_on_a_gpu() -> None:
    memory = _Memory()

    def run() -> None:
        memory.peak += 23

    assert framework_peak(torch.device("cuda", 0), run, memory) == 123
    assert framework_peak(torch.device("cpu"), run, memory) is None
    assert memory.peak == 123
