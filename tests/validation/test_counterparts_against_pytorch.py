"""Each counterpart against PyTorch on the CPU: the same bytes, the same peak and the same order, with no tolerance.

`save_on_cpu` and the asynchronous offload are hooks of `simgpu.validation.managed` there, the former PyTorch's own
written out for a CPU; the rest is PyTorch's. A model's iteration is recorded once, and run for real under each method.
The counterpart is given the recording, the machine and the plain run. Time is not compared here; it is made up.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch

from simgpu.plans.choices import Choices
from simgpu.plans.entry import plan as make_plan
from simgpu.plans.regions import Steps
from simgpu.plans.search import smallest
from simgpu.recorder import record
from simgpu.recorder.optimizers import find_optimizer, make_optimizer
from simgpu.recorder.session import own_random_state
from simgpu.recorder.workload import find_factory, make_workload
from simgpu.timeline.model import SpanKind
from simgpu.torch import regions
from simgpu.torch.plan import Plan
from simgpu.trace.model import Trace
from simgpu.validation.calibration import Calibration, calibrate
from simgpu.validation.comparison import Counterpart, Numbers, simulate_counterpart
from simgpu.validation.devices import open_device
from simgpu.validation.harness.session import run_method
from simgpu.validation.managed import methods
from simgpu.validation.measured import Copies, MeasuredKind, MeasuredMachine, MeasuredRun, Method
from simgpu.validation.timelines.comparison import compare_timelines
from tests.sets import slow_rows_except

_COPIES = Copies(d2h=10**9, h2d=10**9, bidirectional_d2h=10**9, bidirectional_h2d=10**9, latency_ns=10, blocking_ns=100)
MACHINE = MeasuredMachine("a CPU", "cpu", 2**40, 1, 2, _COPIES, 5, "a CPU", "2026-01-31")


@dataclass(frozen=True)
class Model:
    """A small network: its factory's words, and the modules that are checkpointed."""

    factory: str
    batch: int
    blocks: tuple[str, ...]
    size: Mapping[str, int] = field(default_factory=dict)

    @property
    def make(self) -> Callable[..., Any]:
        return partial(find_factory(self.factory), **self.size)


#: With shortcuts and batch norms; with dropouts; with a weight that is used twice, at both ends; and a plain one.
MODELS = {
    "mlp": Model("mlp", 4, ("fc2", "relu2")),
    "resnet20": Model("resnet20", 2, tuple(f"stage{stage}_{n}" for stage in (1, 2, 3) for n in (1, 2, 3))),
    "transformer": Model("transformer", 2, ("encoder.layers.0", "encoder.layers.1")),
    "gpt": Model(
        "gpt2-small",
        2,
        ("blocks.0", "blocks.1"),
        {"tokens": 16, "layers": 2, "width": 32, "heads": 2, "vocabulary": 512},
    ),
}
#: Little, so that blocks of small networks leave; under it some stay.
MIN_BYTES = 4096
SETTINGS: dict[str, tuple[Method, dict[str, Any]]] = {
    "plain": (Method.PLAIN, {}),
    "save_on_cpu": (Method.SAVE_ON_CPU, {}),
    "async_offload": (Method.ASYNC_OFFLOAD, {"prefetch": 2, "stash": 2, "min_bytes": MIN_BYTES}),
    "async_offload at once": (Method.ASYNC_OFFLOAD, {"prefetch": 0, "stash": 0, "min_bytes": MIN_BYTES}),
    "async_offload far ahead": (Method.ASYNC_OFFLOAD, {"prefetch": 4, "stash": 1, "min_bytes": 1}),
    "checkpoint": (Method.CHECKPOINT, {}),
}


@pytest.fixture(scope="module", autouse=True)
def _quietly() -> Iterator[None]:
    """One thread computes, and what was there before is not looked through for living tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)
    recorded.cache_clear()
    plain.cache_clear()


@cache
def recorded(name: str) -> Trace:
    return record(MODELS[name].make, batch=MODELS[name].batch, repetitions=1, warmup=1)


@cache
def plain(name: str) -> MeasuredRun:
    return really(name, Method.PLAIN, {})


def really(name: str, method: Method, settings: Mapping[str, Any], plan: Plan | None = None) -> MeasuredRun:
    """What PyTorch does with a model under a method."""
    model, device = MODELS[name], open_device("cpu")
    words = {kernel.op for kernel in recorded(name).kernels}
    try:
        with own_random_state(torch.device("cpu"), seed=0):
            workload = make_workload(name, model.make, model.batch).to(torch.device("cpu"))
            optimizer = make_optimizer(find_optimizer("sgd"), workload.module)
            return run_method(
                method, workload, optimizer, device, settings, warmup=1, repetitions=1, operators=words, plan=plan
            )
    finally:
        device.close()
        del workload, optimizer
        gc.collect()


def calibrated(name: str) -> Calibration:
    return calibrate(MACHINE, recorded(name), plain(name))


def settings_of(name: str, way: str) -> tuple[Method, dict[str, Any]]:
    method, settings = SETTINGS[way]
    return method, {"blocks": list(MODELS[name].blocks)} if method is Method.CHECKPOINT else settings


def both(name: str, way: str) -> tuple[MeasuredRun, Counterpart]:
    method, settings = settings_of(name, way)
    real = plain(name) if method is Method.PLAIN else really(name, method, settings)
    return real, simulate_counterpart(calibrated(name), method, settings)


def expect_same(real: MeasuredRun, counterpart: Counterpart) -> None:
    assert counterpart.numbers is not None and counterpart.result is not None, counterpart.reason
    measured = Numbers.measured(real)
    assert counterpart.numbers._replace(step_ns=0) == measured._replace(step_ns=0)
    comparison = compare_timelines(real.spans, counterpart.result)
    divergences = [stream.order_divergence for stream in comparison.streams.values()]
    assert comparison.is_same_order, [row for row in divergences if row is not None]


@pytest.mark.parametrize("way", [way for way in SETTINGS if way != "checkpoint"])
@pytest.mark.parametrize("name", MODELS)
def test_copied_bytes_peak_memory_and_copy_order_match_pytorch(name: str, way: str) -> None:
    real, counterpart = both(name, way)
    expect_same(real, counterpart)
    if way != "plain" and name != "mlp":
        assert min(real.d2h_bytes, real.h2d_bytes) > 0


@pytest.mark.parametrize("name", MODELS)
def test_checkpointing_is_that_of_pytorch_but_for_the_state_of_its_random_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That state is left out here: on a CPU it lies where tensors do. A dropout draws another mask of the same size."""
    without = partial(methods.checkpoint, preserve_rng_state=False)
    monkeypatch.setattr(methods, "checkpoint", without)
    real, counterpart = both(name, "checkpoint")
    expect_same(real, counterpart)
    assert counterpart.result is not None
    kernels = sum(span.kind is MeasuredKind.KERNEL for span in real.spans)
    last = len(counterpart.result.timeline.iteration_ends_ns) - 1
    again = [span for span in counterpart.result.timeline if span.kind is SpanKind.RECOMPUTE and span.iteration == last]
    assert kernels - sum(span.kind is MeasuredKind.KERNEL for span in plain(name).spans) == len(again) > 0


@pytest.mark.parametrize(
    ("name", "offload"),
    slow_rows_except(
        [(name, offload) for name in MODELS if name != "mlp" for offload in (False, True)],
        ("gpt", True),
        ("resnet20", False),
    ),
)
def test_a_plan_runs_as_its_counterpart_but_for_the_state_of_random_numbers(
    name: str, offload: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("scipy", reason="SciPy is not installed: simgpu with its extra 'calibrate'")
    monkeypatch.setattr(regions, "checkpoint", partial(regions.checkpoint, preserve_rng_state=False))
    monkeypatch.setattr(regions, "_SCRATCH", {})  # later plain runs begin without it
    calibration = calibrated(name)
    steps = Steps(calibration.trace)
    least = smallest(Choices(steps, offload=offload), calibration.node)
    made = make_plan(calibration.trace, calibration.node, least.peak, offload=offload)
    assert made.offload if offload else made.recompute
    real = really(name, Method.PLAN, {}, made)
    expect_same(real, simulate_counterpart(calibration, Method.PLAN, {}, made))


@pytest.mark.parametrize("name", MODELS)
def test_checkpointing_holds_the_random_state_of_each_part_until_its_backward_ends(name: str) -> None:
    """The peak is that of the counterpart's memory with one state for each part that is between the two, and one for a
    part that runs again: the state that is put back when it has."""
    real, counterpart = both(name, "checkpoint")
    assert counterpart.result is not None
    timeline = counterpart.result.timeline
    last, begin = len(timeline.iteration_ends_ns) - 1, timeline.iteration_ends_ns[-2]
    layers = {kernel.id: kernel.layer or "" for kernel in recorded(name).kernels}
    held = []
    for block in MODELS[name].blocks:
        own = [span for span in timeline if f"{layers.get(span.name, '')}.".startswith(f"{block}.")]
        for kind in (SpanKind.COMPUTE, SpanKind.RECOMPUTE):
            spans = [span for span in own if span.kind is kind and span.iteration == last]
            if spans:
                held.append((min(span.start_ns for span in spans), max(span.end_ns for span in spans)))
    state = torch.get_rng_state().nbytes
    memory = timeline.memory("device")
    used = [(int(t), int(u)) for t, u in zip(memory.time_ns, memory.used, strict=True) if t >= begin]
    peak = max(u + state * sum(start <= t < end for start, end in held) for t, u in used)
    assert real.peak_bytes == peak + calibrated(name).reserved
