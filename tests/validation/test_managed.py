"""Each way to manage memory: the same weights to the bit, and bytes and peaks as counted by hand."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from simgpu.errors import InputError
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.recorder.workload import Workload
from simgpu.validation.devices.cpu import CpuDevice
from simgpu.validation.managed.methods import managed
from simgpu.validation.measured import MeasuredKind, Method
from tests.validation.managed_workloads import (
    BLOCKS,
    ROWS,
    WIDTH,
    chain_of,
    input_optimizer,
    one_thread,
    optimizer_of,
    workload_of,
)

pytestmark = pytest.mark.usefixtures(one_thread.__name__)

_KINDS = sorted(BLOCKS)
_MIB = ROWS * WIDTH * 4


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice()
    yield opened
    opened.close()


def settings_of(method: Method, kind: str) -> dict[str, Any]:
    offload = {"prefetch": 2, "stash": 2, "min_bytes": 0}
    return {Method.CHECKPOINT: {"blocks": BLOCKS[kind]}, Method.ASYNC_OFFLOAD: offload}.get(method, {})


def after_three_steps(device: CpuDevice, kind: str, method: Method, hooks: Any = None) -> list[torch.Tensor]:
    """Losses and weights; with hooks of PyTorch's own, if any, around plain steps."""
    workload = workload_of(kind)
    optimizer = optimizer_of(workload)
    with managed(method, workload, device, settings_of(method, kind)) as run:
        if hooks is None:
            losses = [run.step(optimizer).detach() for _ in range(3)]
        else:
            with hooks:
                losses = [run.step(optimizer).detach() for _ in range(3)]
    return [*losses, *workload.module.parameters()]


def saved_in_a_plain_step(workload: Workload) -> tuple[list[torch.Tensor], list[int]]:
    """All that autograd saves, in order, and which of it backward takes back, in order; all of it is kept alive."""
    saved: list[torch.Tensor] = []
    taken: list[int] = []

    def pack(tensor: torch.Tensor) -> int:
        saved.append(tensor)
        return len(saved) - 1

    def unpack(place: int) -> torch.Tensor:
        taken.append(place)
        return saved[place]

    with saved_tensors_hooks(pack, unpack):
        run_iteration(workload, optimizer_of(workload), NoWatcher())
    return saved, taken


def offloaded(workload: Workload, min_bytes: int) -> tuple[list[int], list[int]]:
    """Bytes of each storage that autograd saves anything of, by first saving, without those that are always there.

    And which of them backward takes back, in order, as often as it does.
    """
    saved, taken = saved_in_a_plain_step(workload)
    module = workload.module
    always = [*module.parameters(), *module.buffers(), *workload.inputs, *workload.labels]
    lasting = {tensor.untyped_storage()._cdata for tensor in always}
    keys = [tensor.untyped_storage()._cdata for tensor in saved]
    sizes = {key: tensor.untyped_storage().nbytes() for key, tensor in zip(keys, saved, strict=True)}
    leaving = [key for key, size in sizes.items() if key not in lasting and size >= min_bytes]
    return [sizes[key] for key in leaving], [leaving.index(keys[place]) for place in taken if keys[place] in leaving]


def fetched(count: int, taken: list[int], stash: int, prefetch: int) -> list[int]:
    """Which of so many blocks are copied back, in order: with each that is taken those saved just before it."""
    there = set(range(count - stash, count))
    order = []
    for block in taken:
        for wanted in range(block, max(block - prefetch, 0) - 1, -1):
            if wanted not in there:
                there.add(wanted)
                order.append(wanted)
    return order


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("method", [Method.CHECKPOINT, Method.ASYNC_OFFLOAD])
def test_losses_and_weights_are_those_of_plain_steps_to_the_bit(device: CpuDevice, kind: str, method: Method) -> None:
    """With dropout, which must drop the same again where forward runs twice."""
    plain = after_three_steps(device, kind, Method.PLAIN)
    for expected, result in zip(plain, after_three_steps(device, kind, method), strict=True):
        assert torch.equal(expected, result)


@pytest.mark.parametrize("kind", _KINDS)
def test_save_on_cpu_gives_the_bits_of_pytorchs_own(device: CpuDevice, kind: str) -> None:
    """Which lays transposed weights out anew, so that products may add up in another order than in plain steps."""
    own = after_three_steps(device, kind, Method.PLAIN, save_on_cpu(pin_memory=True))
    plain = after_three_steps(device, kind, Method.PLAIN)
    result = after_three_steps(device, kind, Method.SAVE_ON_CPU)
    for expected, other, simulated in zip(own, plain, result, strict=True):
        assert torch.equal(expected, simulated)
        assert torch.allclose(other, simulated, rtol=1e-4, atol=1e-6)


def test_batch_normalisation_moves_its_averages_twice_where_it_is_checkpointed(device: CpuDevice) -> None:
    workload = workload_of("residual")
    with managed(Method.CHECKPOINT, workload, device, {"blocks": ["one"]}) as run:
        run.step(optimizer_of(workload))
    counted = {name: int(value) for name, value in workload.module.named_buffers() if name.endswith("tracked")}
    assert counted["one.bn1.num_batches_tracked"] == 2
    assert counted["two.bn1.num_batches_tracked"] == 1


@pytest.mark.parametrize("kind", _KINDS)
def test_save_on_cpu_copies_every_saved_tensor_both_ways(device: CpuDevice, kind: str) -> None:
    workload = workload_of(kind)
    saved, taken = saved_in_a_plain_step(workload)
    out = [tensor.nbytes for tensor in saved if tensor.nbytes]
    back = [saved[place].nbytes for place in taken if saved[place].nbytes]
    with managed(Method.SAVE_ON_CPU, workload, device, {}) as run, device.watch_copies() as copies:
        run.step(optimizer_of(workload))
        assert run.take_copied() == (sum(out), sum(back))
        assert run.take_copied() == (0, 0)
    assert [span.bytes for span in copies if span.kind is MeasuredKind.COPY_D2H] == out
    assert [span.bytes for span in copies if span.kind is MeasuredKind.COPY_H2D] == back
    assert {span.stream_role for span in copies} == {"compute"}


@pytest.mark.parametrize("kind", _KINDS)
def test_save_on_cpu_on_a_gpu_is_pytorchs_with_counted_bytes(device: CpuDevice, kind: str) -> None:
    """On the CPU build its hooks run too, and copy nothing back; what is counted is what is handed to them."""
    workload = workload_of(kind)
    saved, taken = saved_in_a_plain_step(workload)
    device.kind = "cuda"
    with managed(Method.SAVE_ON_CPU, workload, device, {}) as run:
        run.step(optimizer_of(workload))
        copied = run.take_copied()
    assert copied == (sum(tensor.nbytes for tensor in saved), sum(saved[place].nbytes for place in taken))


@pytest.mark.parametrize(("stash", "prefetch", "min_bytes"), [(0, 0, 1), (1, 2, 4096), (3, 1, 1)])
@pytest.mark.parametrize("kind", _KINDS)
def test_async_offload_copies_each_storage_once_and_fetches_released_ones(
    device: CpuDevice, kind: str, stash: int, prefetch: int, min_bytes: int
) -> None:
    workload = workload_of(kind)
    sizes, taken = offloaded(workload, min_bytes)
    back = [sizes[block] for block in fetched(len(sizes), taken, stash, prefetch)]
    settings = {"prefetch": prefetch, "stash": stash, "min_bytes": min_bytes}
    with managed(Method.ASYNC_OFFLOAD, workload, device, settings) as run:
        for _ in range(2):
            run.step(optimizer_of(workload))
            assert run.take_copied() == (sum(sizes), sum(back))
        with device.watch_copies() as copies:
            run.step(optimizer_of(workload))
    assert [span.bytes for span in copies if span.stream_role == "d2h"] == sizes
    assert [span.bytes for span in copies if span.stream_role == "h2d"] == back
    assert len(back) == len(sizes) - stash > 4


@pytest.mark.parametrize(
    ("prefetch", "fetched"), [(0, [0, 1, 1, 1, 1, 1]), (1, [1, 1, 1, 1, 1, 0]), (3, [3, 1, 1, 0, 0, 0])]
)
def test_backward_fetches_so_many_blocks_ahead(device: CpuDevice, prefetch: int, fetched: list[int]) -> None:
    """Six sigmoids save their six outputs, of which the stash keeps the last; a gradient comes between any two.

    So taking back the last fetches those ahead alone, and each after it one more, until none is left.
    """
    workload = chain_of(*(nn.Sigmoid() for _ in range(6)))
    seen: list[int] = []
    with managed(Method.ASYNC_OFFLOAD, workload, device, {"prefetch": prefetch, "stash": 1, "min_bytes": 0}) as run:

        def look(_gradient: torch.Tensor) -> None:
            seen.append(run.take_copied().h2d_bytes // _MIB)

        def watch(_layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            inputs[0].register_hook(look)

        for layer in workload.module:
            layer.register_forward_pre_hook(watch)
        run.step(input_optimizer(workload))
    assert seen == fetched


def peak_of(device: CpuDevice, workload: Workload, method: Method, settings: Mapping[str, Any]) -> int:
    """Bytes beyond what is held before the step."""
    optimizer = input_optimizer(workload)
    with managed(method, workload, device, settings) as run:
        run.step(optimizer)
        peak = device.peak_of(lambda: run.step(optimizer))
    return peak.peak_bytes - peak.initial_bytes


#: The loss and the gradient that backward begins with, a single value each.
_LOSS = 8


@pytest.mark.parametrize("held", [0, 1])
def test_plain_peak_is_all_outputs_but_the_last_and_two_gradients(device: CpuDevice, held: int) -> None:
    """The last is not needed once its gradient is there, and then held only by a loop that holds the model's output."""
    workload = chain_of(*(nn.Sigmoid() for _ in range(8)))._replace(hold_output=bool(held))
    assert peak_of(device, workload, Method.PLAIN, {}) == (7 + 2 + held) * _MIB + _LOSS


@pytest.mark.parametrize("held", [0, 1])
def test_save_on_cpu_holds_one_that_came_back_and_two_gradients(device: CpuDevice, held: int) -> None:
    workload = chain_of(*(nn.Sigmoid() for _ in range(8)))._replace(hold_output=bool(held))
    assert peak_of(device, workload, Method.SAVE_ON_CPU, {}) == (1 + 2 + held) * _MIB + _LOSS


@pytest.mark.parametrize(("stash", "prefetch"), [(0, 0), (0, 3), (1, 1), (3, 0), (3, 3)])
def test_async_offload_peak_is_fetched_blocks_and_two_gradients(device: CpuDevice, prefetch: int, stash: int) -> None:
    """Where the second last output is taken, of the stash all but the last output is there, fetched or not."""
    workload = chain_of(*(nn.Sigmoid() for _ in range(8)))
    settings = {"prefetch": prefetch, "stash": stash, "min_bytes": 0}
    blocks = max(1 + prefetch, stash - 1)
    assert peak_of(device, workload, Method.ASYNC_OFFLOAD, settings) == (blocks + 2) * _MIB + _LOSS


def test_checkpointing_peak_is_block_inputs_and_one_recomputed_block(device: CpuDevice) -> None:
    """Two blocks of four sigmoids. Backward of the first: the block's four outputs, two gradients.

    What the second block made again has gone by then, and what enters the first is the batch. The state of the random
    number generator is kept for both blocks.
    """
    workload = chain_of(*(nn.Sequential(*(nn.Sigmoid() for _ in range(4))) for _ in range(2)))
    states = 2 * torch.get_rng_state().nbytes
    peak = peak_of(device, workload, Method.CHECKPOINT, {"blocks": ["0", "1"]})
    assert peak == (4 + 2) * _MIB + states + _LOSS


@pytest.mark.parametrize("kind", ["residual", "tokens"])
def test_who_checkpoints_or_offloads_needs_less_than_plain(device: CpuDevice, kind: str) -> None:
    peaks = {}
    for method in (Method.PLAIN, Method.CHECKPOINT, Method.SAVE_ON_CPU, Method.ASYNC_OFFLOAD):
        workload = workload_of(kind)
        optimizer = optimizer_of(workload)
        with managed(method, workload, device, settings_of(method, kind)) as run:
            run.step(optimizer)
            peak = device.peak_of(lambda run=run, optimizer=optimizer: run.step(optimizer))
        peaks[method] = peak.peak_bytes - peak.initial_bytes
    assert max(peaks, key=peaks.__getitem__) is Method.PLAIN
    assert peaks[Method.SAVE_ON_CPU] < peaks[Method.ASYNC_OFFLOAD]  # which holds a stash, and what it fetched ahead


def test_checkpointed_modules_are_as_before_afterwards_also_after_an_error(device: CpuDevice) -> None:
    workload = workload_of("pictures")
    own = workload.module.second.forward = nn.Sequential.forward.__get__(workload.module.second)
    with (
        pytest.raises(ZeroDivisionError),
        managed(Method.CHECKPOINT, workload, device, {"blocks": ["first", "second"]}),
    ):
        assert "forward" in vars(workload.module.first) and workload.module.second.forward is not own
        raise ZeroDivisionError
    assert "forward" not in vars(workload.module.first)
    assert workload.module.second.forward is own


@pytest.mark.parametrize("method", [Method.SAVE_ON_CPU, Method.ASYNC_OFFLOAD])
def test_a_failed_step_removes_its_hooks(device: CpuDevice, method: Method) -> None:
    workload = workload_of("pictures")
    broken = workload.module.classifier.out.register_forward_pre_hook(lambda *_: 1 / 0)
    with managed(method, workload, device, settings_of(method, "pictures")) as run:
        with pytest.raises(ZeroDivisionError):
            run.step(optimizer_of(workload))
        broken.remove()
        assert run.take_copied().d2h_bytes > 0
        workload.module(*workload.inputs).sum().backward()
        assert run.take_copied() == (0, 0)
        workload.module.zero_grad()
        run.step(optimizer_of(workload))
        d2h_bytes, h2d_bytes = run.take_copied()
        assert d2h_bytes >= h2d_bytes > 0


def test_settings_and_paths_are_checked_all_at_once(device: CpuDevice) -> None:
    workload = workload_of("residual")
    wrong = {
        Method.PLAIN: ({"stash": 1}, "unknown setting 'stash'"),
        Method.ASYNC_OFFLOAD: ({"prefetch": -1, "stash": 1.5}, r"(?s)-1.*1\.5.*'min_bytes' is missing"),
        Method.CHECKPOINT: ({"blocks": ["tow", "one", "one.conv1"]}, r"(?s)did you mean 'two'.*'one.conv1' is inside"),
    }
    for method, (settings, message) in wrong.items():
        with pytest.raises(InputError, match=message), managed(method, workload, device, settings):
            pass
    for blocks in ("one", [], [1]):
        with (
            pytest.raises(InputError, match="blocks"),
            managed(Method.CHECKPOINT, workload, device, {"blocks": blocks}),
        ):
            pass


def test_streams_of_an_offload_end_with_it(device: CpuDevice) -> None:
    before = set(threading.enumerate())
    workload = workload_of("pictures")
    with managed(Method.ASYNC_OFFLOAD, workload, device, settings_of(Method.ASYNC_OFFLOAD, "pictures")) as run:
        run.step(optimizer_of(workload))
        own = set(threading.enumerate()) - before
        assert sorted(thread.name for thread in own) == ["simgpu-d2h", "simgpu-h2d"]
    del run
    for thread in own:
        thread.join(timeout=30)
        assert not thread.is_alive()
