"""Asynchronous offload where it is hard: slow copies, odd tensors, graphs that are used in other ways, errors."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.recorder.workload import Workload
from simgpu.torch.offload import AsyncOffload, Block
from simgpu.torch.transfers import Tally
from simgpu.validation.devices.cpu import CpuDevice
from simgpu.validation.devices.cpu_streams import CpuEvent, WorkerThread
from simgpu.validation.managed.by_size import BySize
from simgpu.validation.managed.methods import managed
from simgpu.validation.measured import Method
from tests.validation.managed_workloads import chain_of, input_optimizer, one_thread, optimizer_of, workload_of

pytestmark = pytest.mark.usefixtures(one_thread.__name__)

_ALL = {"prefetch": 1, "stash": 1, "min_bytes": 0}


class SlowCopies(CpuDevice):
    """Its copy streams take a millisecond longer for every copy than they need, so that compute is always ahead."""

    def new_stream(self, role: str) -> WorkerThread:
        stream = super().new_stream(role)
        copy = stream.copy

        def late(target: torch.Tensor, source: torch.Tensor) -> None:
            stream.busy(1_000_000)
            copy(target, source)

        stream.copy = late  # type: ignore[method-assign]
        return stream


class NoCopies(CpuDevice):
    """Whatever is asked of its copy streams comes after an error."""

    def new_stream(self, role: str) -> WorkerThread:
        stream, error = super().new_stream(role), CpuEvent()
        error.reach(ConnectionError("the link is down"))
        stream.wait(error)
        return stream


@pytest.fixture
def device() -> Iterator[CpuDevice]:
    opened = CpuDevice()
    yield opened
    opened.close()


@pytest.fixture
def slow() -> Iterator[SlowCopies]:
    opened = SlowCopies()
    yield opened
    opened.close()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Memory must go without the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Calls(nn.Module):
    """A function of the input and one weight, as a module."""

    def __init__(self, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = nn.Parameter(torch.rand(8, 8))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, self.weight)


def workload_calling(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Workload:
    module = Calls(function)
    return Workload(module, (torch.rand(8, 8),), (), torch.sum)


def weights_after(
    device: CpuDevice, workload: Workload, method: Method, settings: dict[str, int]
) -> list[torch.Tensor]:
    optimizer = optimizer_of(workload)
    with managed(method, workload, device, settings) as run:
        for _ in range(2):
            run.step(optimizer)
    return [weight.detach().clone() for weight in workload.module.parameters()]


def expect_the_weights_of_plain_steps(device: CpuDevice, make: Callable[[], Workload], **settings: int) -> None:
    plain = weights_after(device, make(), Method.PLAIN, {})
    result = weights_after(device, make(), Method.ASYNC_OFFLOAD, _ALL | settings)
    for expected, weight in zip(plain, result, strict=True):
        assert expected.isfinite().all() and torch.equal(expected, weight)


@pytest.mark.parametrize(("kind", "prefetch", "stash"), [("pictures", 0, 0), ("residual", 2, 1), ("tokens", 1, 3)])
def test_no_value_is_used_before_its_copy_is_over(slow: SlowCopies, kind: str, prefetch: int, stash: int) -> None:
    expect_the_weights_of_plain_steps(slow, lambda: workload_of(kind), prefetch=prefetch, stash=stash, min_bytes=1024)


@pytest.mark.parametrize("stash", [0, 1, 2, 4])
def test_a_full_stash_releases_its_oldest_block_after_its_copy(
    slow: SlowCopies, stash: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    alive: weakref.WeakSet[Block] = weakref.WeakSet()
    start_offload, release = Block.start_offload, Block.release

    def watched_offload(block: Block, *arguments: Any) -> None:
        held.append(sum(other.data is not None for other in alive))
        start_offload(block, *arguments)
        alive.add(block)

    def watched_release(block: Block) -> None:
        copy = block._pending_copy
        assert copy is not None
        assert block.number == min(other.number for other in alive if other.data is not None)
        release(block)
        assert copy.is_done() and block.data is None

    monkeypatch.setattr(Block, "start_offload", watched_offload)
    monkeypatch.setattr(Block, "release", watched_release)
    workload = workload_of("pictures")
    with managed(Method.ASYNC_OFFLOAD, workload, slow, {"prefetch": 2, "stash": stash, "min_bytes": 0}) as run:
        run.step(optimizer_of(workload))
    assert max(held) == stash


def test_compute_waits_only_for_the_copy_of_its_own_block(slow: SlowCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead: list[int] = []
    alive: weakref.WeakSet[Block] = weakref.WeakSet()
    fetch, use = Block.fetch, Block.use

    def watched_fetch(block: Block, *arguments: Any) -> None:
        fetch(block, *arguments)
        alive.add(block)

    def watched_use(block: Block) -> torch.UntypedStorage:
        result = use(block)
        assert block._pending_copy is None or block.is_offloading
        ahead.append(sum(other._pending_copy is not None for other in alive))
        return result

    monkeypatch.setattr(Block, "fetch", watched_fetch)
    monkeypatch.setattr(Block, "use", watched_use)
    workload = chain_of(*(nn.Sigmoid() for _ in range(6)))
    with managed(Method.ASYNC_OFFLOAD, workload, slow, {"prefetch": 3, "stash": 0, "min_bytes": 0}) as run:
        run.step(input_optimizer(workload))
    assert ahead == [3, 3, 3, 2, 1, 0]


def test_an_unreferenced_block_is_released_after_its_copy(slow: SlowCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[Any] = []
    start_offload = Block.start_offload

    def watched_offload(block: Block, *arguments: Any) -> None:
        start_offload(block, *arguments)
        copies.append(block._pending_copy)

    monkeypatch.setattr(Block, "start_offload", watched_offload)
    batch = torch.rand(8, 8)
    offload = AsyncOffload(slow, Tally(), BySize(slow.torch_device, 0), prefetch=1, stash=9)
    module = Calls(lambda x, w: (x @ w).sigmoid().exp().sin())
    with offload.step():
        result = module(batch)
        assert len(copies) == 2
        del result
        assert all(copy.is_done() for copy in copies)


_ODD: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x, w: (x @ w).t().exp() * (x @ w),
    "expanded": lambda x, w: (x @ w).sum(0, keepdim=True).exp().expand(8, 8) * x.exp(),
    "two views of one storage": lambda x, w: (y := (x @ w).sigmoid())[:3].exp().sum() * y[3:].sin().sum(),
    "every other element": lambda x, w: ((x @ w).sigmoid()[::2, 1::2] ** 2).exp(),
    "saved twice": lambda x, w: (y := (x @ w).sigmoid()) * y * y.sin(),
    "empty": lambda x, w: torch.cat([(x @ w)[:0].exp(), (x @ w).exp()]),
    "a single value": lambda x, w: (x @ w).mean().sigmoid().exp(),
    "another type": lambda x, w: (x @ w).double().exp().float().sigmoid(),
    "conjugated": lambda x, w: ((x @ w).exp() * (1 + 2j)).conj().mul(x.exp() * 1j).abs(),
    "changed in place before it is saved": lambda x, w: (x @ w).mul_(2).relu_().sin(),
    "of a part of the graph that is not used": lambda x, w: ((x @ w).exp().sin(), (x @ w).cos())[1],
}


@pytest.mark.parametrize("what", sorted(_ODD))
@pytest.mark.parametrize("stash", [0, 2])
def test_odd_tensors_come_back_as_they_were(slow: SlowCopies, what: str, stash: int) -> None:
    expect_the_weights_of_plain_steps(slow, lambda: workload_calling(_ODD[what]), stash=stash)


@pytest.mark.parametrize("stash", [0, 9])
def test_a_gradient_taken_within_forward_may_be_differentiated_again(slow: SlowCopies, stash: int) -> None:
    def penalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = (x @ weight).sigmoid().pow(3)
        (gradient,) = torch.autograd.grad(y.sum(), weight, create_graph=True)
        return y.sum() + gradient.square().sum()

    expect_the_weights_of_plain_steps(slow, lambda: workload_calling(penalised), stash=stash)


@pytest.mark.parametrize("stash", [0, 9])
def test_backward_may_run_twice_through_a_retained_graph(slow: SlowCopies, stash: int) -> None:
    module = Calls(lambda x, w: (x @ w).sigmoid().exp().sin())
    batch, offload = (
        torch.rand(8, 8),
        AsyncOffload(slow, Tally(), BySize(slow.torch_device, 0), prefetch=1, stash=stash),
    )
    module(batch).sum().backward()
    once = module.weight.grad.clone()
    module.weight.grad = None
    with offload.step():
        loss = module(batch).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert torch.equal(module.weight.grad, once + once)


def test_backward_may_run_in_another_thread_as_it_does_on_a_gpu(slow: SlowCopies) -> None:
    module = Calls(lambda x, w: (x @ w).sigmoid().exp().sin())
    choice, batch = BySize(slow.torch_device, 0), torch.rand(8, 8)
    offload = AsyncOffload(slow, Tally(), choice, prefetch=1, stash=1)
    module(batch).sum().backward()
    expected, module.weight.grad = module.weight.grad, None
    with offload.step():
        loss = module(batch).sum()
        backward = threading.Thread(target=loss.backward)
        backward.start()
        backward.join()
    assert torch.equal(module.weight.grad, expected)


@pytest.mark.parametrize("stash", [0, 9])
def test_a_saved_tensor_that_is_changed_in_place_is_an_error_as_without_hooks(device: CpuDevice, stash: int) -> None:
    def changed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        saved = (x @ weight).exp()
        result = saved.sin()
        saved.mul_(2)
        return result.exp()

    for method, settings in ((Method.PLAIN, {}), (Method.ASYNC_OFFLOAD, _ALL | {"stash": stash})):
        workload = workload_calling(changed)
        if method is Method.PLAIN or stash:
            with pytest.raises(RuntimeError, match=r"in.?place"), managed(method, workload, device, settings) as run:
                run.step(optimizer_of(workload))


@pytest.mark.parametrize("stash", [0, 1, 9])
def test_a_tensor_saved_again_after_a_change_is_another_block(device: CpuDevice, stash: int) -> None:
    """The first saving serves a graph that nobody runs backward through; the values that count are the later ones."""

    def twice(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = (x @ weight).detach()
        first = y.requires_grad_().sin().mul(y)
        with torch.no_grad():
            y.mul_(2)
        second = y.detach() * weight.sin()
        del first
        return second

    expect_the_weights_of_plain_steps(device, lambda: workload_calling(twice), stash=stash)


def test_persistent_tensors_created_in_the_first_step_are_not_offloaded_later(device: CpuDevice) -> None:
    table: list[torch.Tensor] = []

    def masked(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if not table:
            table.append(torch.ones(8, 8).tril())
        return weight * table[0]

    workload = workload_calling(masked)
    with managed(Method.ASYNC_OFFLOAD, workload, device, _ALL) as run:
        copied = []
        for _ in range(3):
            run.step(optimizer_of(workload))
            copied.append(run.take_copied().d2h_bytes)
    assert copied == [table[0].nbytes, 0, 0]


def test_steps_free_all_blocks_and_reuse_host_buffers(
    slow: SlowCopies, no_collection: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    new = slow.host_buffer

    def counted(nbytes: int) -> torch.Tensor:
        built.append(nbytes)
        return new(nbytes)

    monkeypatch.setattr(slow, "host_buffer", counted)
    workload = workload_of("residual")
    optimizer = optimizer_of(workload)
    with managed(Method.ASYNC_OFFLOAD, workload, slow, {"prefetch": 2, "stash": 2, "min_bytes": 0}) as run:
        run.step(optimizer)
        d2h_bytes, buffers = run.take_copied().d2h_bytes, len(built)
        assert sum(built) == d2h_bytes
        held = {slow.peak_of(lambda: run.step(optimizer)).initial_bytes for _ in range(3)}
        assert len(held) == 1 and len(built) == buffers
    assert slow.peak_of(lambda: None).initial_bytes == held.pop()


def test_an_error_on_a_copy_stream_ends_the_step() -> None:
    device, workload = NoCopies(), workload_of("pictures")
    with (
        pytest.raises(ConnectionError, match="the link is down"),
        managed(Method.ASYNC_OFFLOAD, workload, device, _ALL) as run,
    ):
        run.step(optimizer_of(workload))
