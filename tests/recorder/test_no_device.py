"""Without a device: the same graph, sizes and lifetimes as a recording, at sizes that no memory here would hold."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from simgpu.cli import main
from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec
from simgpu.recorder import BUILT_IN_MODELS, BUILT_IN_OPTIMIZERS, record
from simgpu.recorder.modelled.pricing import priced_as_set
from simgpu.recorder.modelled.session import ModelledSession
from simgpu.recorder.workload import Workload
from simgpu.trace.check import check_trace
from simgpu.trace.folder import read_trace
from simgpu.trace.model import Block, BlockKind, Kernel, Origin, SavedTensor, Trace
from simgpu.workloads.timemodel.model import Tf32, TimeModel, time_model
from simgpu.workloads.timemodel.operation import Operation
from tests.recorder.live_bytes import live_bytes
from tests.recorder.small_models import block, kernels, named, only, plain_sgd, summed
from tests.recorder.variants import small
from tests.recorder.wide_models import resnet50
from tests.sets import slow_except

GPU = GpuSpec("a GPU", memory=2**34, architecture="volta")
_MIB = 2**20


@dataclass(frozen=True)
class _Way:
    name: str
    duration_ns: int
    workspace_bytes: int


class _ByBytes:
    """Stands in for a time model: a nanosecond a byte, and no choice of algorithms."""

    def __init__(self, gpu: GpuSpec) -> None:
        self.gpu = gpu

    def duration_ns(self, operation: Operation) -> int:
        return operation.bytes

    def algorithms(self, operation: Operation) -> Sequence[_Way]:
        return ()


class _TwoWays(_ByBytes):
    """Every direction of a convolution has a fast way that needs 1000 bytes for each way so far, and a frugal one."""

    def duration_ns(self, operation: Operation) -> int:
        return 10 if operation.convolution is not None else 7

    def algorithms(self, operation: Operation) -> Sequence[_Way]:
        if operation.convolution is None:
            return ()
        big = 1000 if operation.direction == "backward_data" else 2000
        return _Way("fast", 10, big), _Way("frugal", 30, 0)


def modelled(
    factory: Any, batch: int, time_model: Any = _ByBytes, *, optimizer: Any = "sgd", gpu: GpuSpec = GPU
) -> Trace:
    return ModelledSession(factory, batch, optimizer, gpu, "2026-01-01", lambda _: None, time_model).run()


def as_a_cpu_has_it(factory: Any, batch: int, optimizer: Any = "sgd") -> Trace:
    session = ModelledSession(factory, batch, optimizer, GPU, "", lambda _: None, _ByBytes, as_on_gpu=False)
    return session.run()


def graph(trace: Trace) -> tuple[list[Kernel], tuple[Block, ...], tuple[SavedTensor, ...]]:
    return [replace(kernel, duration_ns=0) for kernel in trace.kernels], trace.blocks, trace.saved


@pytest.mark.parametrize(
    "name",
    slow_except(sorted(BUILT_IN_MODELS), "digits-cnn", "mlp", "resnet20", "transformer", "words-lstm"),
)
def test_graph_sizes_and_lifetimes_are_those_of_a_recording(name: str) -> None:
    recorded = record(small(name), batch=3, repetitions=1, warmup=1)
    assert graph(as_a_cpu_has_it(small(name), 3)) == graph(recorded)


@pytest.mark.parametrize("optimizer", sorted(BUILT_IN_OPTIMIZERS))
def test_modelled_blocks_equal_recorded_ones_for_every_optimizer(optimizer: str) -> None:
    recorded = record("mlp", batch=3, repetitions=1, warmup=1, optimizer=optimizer)
    assert graph(as_a_cpu_has_it("mlp", 3, optimizer)) == graph(recorded)


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.out = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0])


class _Odd(nn.Module):
    """Tied weights, numbers made on the way, a sum of branches, a part that forward runs again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.inner[0].weight
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(self.inner, x, use_reentrant=False) * torch.tensor(0.5)
        z = self.tied(y + self.shift)
        return y + z.relu_() + y[:, :1]


def _odd(batch: int) -> tuple[Any, ...]:
    return _Odd(), torch.ones(batch, 4, requires_grad=False), (), summed


def _recurrent(batch: int) -> tuple[Any, ...]:
    return _Recurrent(), torch.ones(batch, 5, 4), (), summed


def _halved(batch: int) -> tuple[Any, ...]:
    return nn.Linear(4, 2).to(torch.bfloat16), torch.ones(batch, 4, dtype=torch.bfloat16), (), summed


def _convolutions(batch: int) -> tuple[Any, ...]:
    module = named(
        one=nn.Conv1d(2, 4, 3),
        flat=nn.Unflatten(1, (4, 1)),
        back=nn.ConvTranspose2d(4, 4, 2, groups=2),
        deep=nn.Flatten(),
    )
    return module, torch.ones(batch, 2, 8), (), summed


@pytest.mark.parametrize("factory", [_odd, _halved, _convolutions])
def test_modelled_blocks_equal_recorded_ones_for_unusual_models(factory: Callable[..., Any]) -> None:
    recorded = record(factory, batch=3, repetitions=1, warmup=1)
    assert graph(as_a_cpu_has_it(factory, 3)) == graph(recorded)


def test_modelled_blocks_equal_recorded_ones_for_recurrent_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    # The CPU's own library fuses the steps and keeps memory of its own, which only it knows; a GPU does not use it.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    recorded = record(_recurrent, batch=3, repetitions=1, warmup=1)
    assert graph(as_a_cpu_has_it(_recurrent, 3)) == graph(recorded)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    assert not [kernel for kernel in modelled(_recurrent, 3).kernels if "mkldnn" in kernel.op]


def test_data_and_modules_from_outside_the_factory_are_taken_in() -> None:
    module, data = nn.Linear(4, 2), torch.ones(3, 4)
    recorded = record(lambda: (module, data, (), summed), batch=3, repetitions=1, warmup=1)
    assert graph(as_a_cpu_has_it(lambda: (module, data, (), summed), 3)) == graph(recorded)
    assert type(module.weight) is nn.Parameter


@pytest.mark.slow
def test_a_large_model_takes_seconds_and_hardly_any_memory() -> None:
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    trace = modelled(resnet50, 512)
    assert time.monotonic() - begun < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024  # KiB
    assert check_trace(trace) == []
    weights = [b for b in trace.blocks if b.kind is BlockKind.WEIGHT]
    assert sum(b.bytes for b in weights) == 4 * 25_557_032  # He et al. 2016, as every implementation counts it
    stem = only_of_layer(trace, "aten::convolution", "conv1")
    # 64 channels of 112 x 112 from 7 x 7 x 3, two operations each.
    assert stem.flops == 2 * 512 * 64 * 112 * 112 * 7 * 7 * 3
    assert block(trace, stem.writes[0]).bytes == 512 * 64 * 112 * 112 * 4
    assert max(live_bytes(trace)) > 40_000 * _MIB


def only_of_layer(trace: Trace, op: str, layer: str) -> Kernel:
    (kernel,) = [k for k in trace.kernels if (k.op, k.layer, k.phase) == (op, layer, "forward")]
    return kernel


def test_a_trace_without_a_device_is_marked_modelled() -> None:
    trace = record("mlp", batch=8, gpu="v100", date="2026-01-01")
    assert (trace.info.origin, trace.info.device, trace.info.date) == (Origin.MODELLED, "Tesla V100 PCIe", "2026-01-01")
    assert "time model" in trace.info.tool and torch.__version__ in trace.info.tool
    assert "Nothing ran" in trace.info.notes and "durations" in trace.info.notes
    assert trace.sparsity == ()
    assert all(kernel.duration_ns > 0 for kernel in trace.kernels)


def test_the_command_writes_the_trace_and_refuses_options_of_a_run(tmp_path: Path) -> None:
    arguments = ["record", "mlp", "--batch", "8", "--gpu", "v100", "-o", str(tmp_path / "mlp")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    assert "modelled, not recorded, for Tesla V100 PCIe" in " ".join(done.output.split())
    assert check_trace(read_trace(tmp_path / "mlp")) == []
    refused = CliRunner().invoke(main, [*arguments, "--device", "cuda", "--force"])
    assert refused.exit_code == 2
    assert "record: device: it has no effect when the iteration is modelled for a GPU" in refused.output


def test_the_same_request_gives_the_same_trace() -> None:
    one, other = (record("transformer", batch=8, gpu="v100", date="2026-01-01") for _ in range(2))
    assert one == other


def test_durations_are_those_of_each_kernels_own_work() -> None:
    trace = modelled(lambda: (named(fc=nn.Linear(4, 8), relu=nn.ReLU()), torch.ones(5, 4), (), summed), 5)
    # Read input, weights and bias, write the result; then read and write it.
    assert only(trace, "addmm").duration_ns == 4 * (5 * 4 + 4 * 8 + 8 + 5 * 8)
    assert only(trace, "relu").duration_ns == 4 * 2 * 5 * 8
    assert only(trace, "threshold_backward").duration_ns == 4 * (2 * 5 * 8 + 1)  # one gradient, seen by every value


def _one_convolution(batch: int) -> tuple[Any, ...]:
    images = torch.ones(batch, 3, 8, 8, requires_grad=True)
    return named(conv=nn.Conv2d(3, 4, 3, padding=1)), images, (), summed


def test_convolutions_have_choices_and_the_workspace_of_the_fastest() -> None:
    trace = modelled(_one_convolution, 2, _TwoWays)
    forward, backward = only(trace, "convolution"), only(trace, "convolution_backward")
    rows = [(row.kernel, row.algorithm, row.duration_ns, row.workspace_bytes) for row in trace.algorithms]
    assert rows == [
        (forward.id, "fast", 10, 2000),
        (forward.id, "frugal", 30, 0),
        # Data, weights, and seven for the bias: the workspace serves one after the other.
        (backward.id, "fast+fast", 27, 2000),
        (backward.id, "fast+frugal", 47, 1000),
        (backward.id, "frugal+frugal", 67, 0),
    ]
    assert (forward.duration_ns, backward.duration_ns) == (10, 27)
    spaces = [b for b in trace.blocks if b.kind is BlockKind.WORKSPACE]
    assert [(b.bytes, b.release) for b in spaces] == [(2000, forward.id), (2000, backward.id)]
    assert check_trace(trace) == []


class _TwoBranches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class _NonZero(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x.nonzero()]


@pytest.mark.parametrize("deciding", [_TwoBranches, _NonZero])
def test_a_model_that_needs_values_is_refused(deciding: type[nn.Module]) -> None:
    with pytest.raises(InputError, match="needs the values of a tensor, which do not exist in a modelled iteration"):
        modelled(lambda: (named(fc=nn.Linear(4, 2), choice=deciding()), torch.ones(3, 4), (), summed), 3)


def test_a_foreign_tensor_in_the_model_is_refused() -> None:
    outside = torch.ones(2)

    class Adds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + outside

    with pytest.raises(InputError, match="created outside the factory and is neither a weight nor a buffer"):
        modelled(lambda: (named(fc=nn.Linear(4, 2), adds=Adds()), torch.ones(3, 4), (), summed), 3)


def test_a_users_mistakes_are_reported_as_in_a_recording() -> None:
    with pytest.raises(InputError, match="a training iteration raised RuntimeError"):
        modelled(lambda: (nn.Linear(4, 2), torch.ones(3, 5), (), summed), 3)
    with pytest.raises(InputError, match="did you mean 'vgg11'"):
        modelled("vgg111", 3)


def test_options_that_need_a_run_are_refused_with_a_gpu_name() -> None:
    with pytest.raises(InputError) as caught:
        record("mlp", batch=1, gpu="v100", device="cuda", repetitions=9, epochs=1, algorithms=True)
    assert [problem.place for problem in caught.value.problems] == ["device", "repetitions", "epochs", "algorithms"]
    assert "it has no effect when the iteration is modelled for a GPU" in str(caught.value)
    with pytest.raises(InputError, match="v10000"):
        record("mlp", batch=1, gpu="v10000")


def test_products_that_a_gpu_computes_in_another_format_are_named() -> None:
    gpu = replace(GPU, tensor_rate=10**14)
    note = "Products of bfloat16 are priced in single precision"
    assert note in modelled(_halved, 3, gpu=gpu).info.notes
    assert note not in modelled(_halved, 3, gpu=replace(gpu, architecture="ampere")).info.notes
    assert note not in modelled("mlp", 3, gpu=gpu).info.notes


def test_unknown_operators_are_timed_by_bytes_and_named() -> None:
    library = torch.library.Library("simgpu_unknown", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x + x, "CompositeExplicitAutograd")

    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.ops.simgpu_unknown.twice(x.detach())
            return x

    trace = modelled(lambda: (named(fc=nn.Linear(4, 2), twice=Twice()), torch.ones(3, 4), (), summed), 3)
    (kernel,) = [k for k in trace.kernels if k.op == "simgpu_unknown::twice"]
    assert kernel.duration_ns == 2 * 3 * 2 * 4
    assert trace.info.notes.endswith("as nothing else is known of them: simgpu_unknown::twice.")


def test_dropout_keeps_a_mask_of_one_byte_a_value_as_on_a_gpu() -> None:
    trace = modelled(lambda: (named(fc=nn.Linear(4, 8), drop=nn.Dropout(0.5)), torch.ones(5, 4), (), summed), 5)
    result, mask = (block(trace, name) for name in only(trace, "native_dropout").writes)
    assert (result.bytes, mask.bytes, mask.dtype) == (5 * 8 * 4, 5 * 8, "bool")
    assert only(trace, "native_dropout").pure is False
    assert mask.id in only(trace, "native_dropout_backward").reads


@pytest.mark.parametrize(
    ("turned", "ops"), [(False, ["aten::addmm"]), (True, ["aten::clone", "aten::mm", "aten::add_"])]
)
def test_linear_adds_its_bias_in_place_as_on_a_gpu(turned: bool, ops: list[str]) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(x.transpose(1, 2) if turned else x)

    trace = modelled(lambda batch: (named(layer=Layer()), torch.ones(batch, 3, 4, 4), (), summed), 2)
    assert [kernel.op for kernel in trace.kernels if kernel.layer == "layer.fc"][: len(ops)] == ops


def test_the_optimizer_steps_all_weights_at_once_and_counts_on_the_host_as_on_a_gpu() -> None:
    trace = modelled(
        lambda: (named(a=nn.Linear(4, 8), b=nn.Linear(8, 2)), torch.ones(5, 4), (), summed), 5, optimizer="adam"
    )
    steps = [kernel for kernel in trace.kernels if kernel.phase == "optimizer"]
    assert steps and all(kernel.op.startswith("aten::_foreach_") for kernel in steps)
    assert {"a.weight", "a.bias", "b.weight", "b.bias"} <= set(steps[-1].writes)
    states = [b.id for b in trace.blocks if b.kind is BlockKind.OPTIMIZER_STATE]
    assert len(states) == 2 * 4 and not [name for name in states if name.endswith(".step")]


def test_recording_without_a_device_has_no_side_effects() -> None:
    record("vgg11", batch=2, gpu="v100")
    after = record("vgg11", batch=2, repetitions=1, warmup=1)
    assert kernels(after, "bernoulli_") and not kernels(after, "native_dropout")
    assert torch.backends.mkldnn.enabled
    assert plain_sgd([torch.ones(1, requires_grad=True)]).param_groups[0]["foreach"] is None


def test_products_run_in_tf32_where_pytorch_is_set_so() -> None:
    gpu = load_node("a100").gpu

    def product(set_to: str) -> Any:
        def workload() -> Workload:
            torch.set_float32_matmul_precision(set_to)  # as a model's own module does
            return Workload(nn.Linear(2048, 2048, bias=False), torch.zeros(4096, 2048), (), lambda output: output.sum())

        return workload

    try:
        times = [
            [
                kernel.duration_ns
                for kernel in record(product(each), batch=4096, gpu="a100").kernels
                if "mm" in kernel.op
            ]
            for each in ("highest", "high")
        ]
        prices = priced_as_set(gpu)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert all(fast < slow for slow, fast in zip(*times, strict=True)) and times[0]
    assert isinstance(prices, TimeModel) and prices.tf32 is Tf32.ALL
    assert priced_as_set(gpu) == time_model(gpu)
