"""`fsdp` against PyTorch's FSDP2 on a CPU: the peak of an iteration, to the byte. Its process group is PyTorch's fake
one, which exchanges nothing, and the profiler reports each allocation. Each peak is behind forward of the groups."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest

from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate

torch = pytest.importorskip("torch")
distributed = pytest.importorskip("torch.distributed.fsdp")


def model(layers: int, width: int) -> Any:
    """Two layers that no group has, around `layers` groups: the first one's input then needs a gradient."""
    nn = torch.nn
    blocks = (nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(layers))
    return nn.Sequential(nn.Linear(width, width), *blocks, nn.Linear(width, width))


def squared(output: Any) -> Any:
    return (output * output).sum()


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters: Any) -> Any:
    return torch.optim.AdamW(parameters, foreach=False)


def measured(
    gpus: int,
    layers: int,
    width: int,
    batch: int,
    optimizer: Callable[[Any], Any],
    reshard: bool,
    mixed: bool,
    micro_batches: int,
) -> int:
    """The most bytes that PyTorch allocates in an iteration in addition to what it begins with."""
    from torch.profiler import ProfilerActivity, profile
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=gpus, store=FakeStore())
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (gpus,))
        sharded = model(layers, width)
        half = distributed.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        policy = half if mixed else distributed.MixedPrecisionPolicy()
        for block in list(sharded)[1:-1]:
            distributed.fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
        distributed.fully_shard(sharded, mesh=mesh, mp_policy=policy)
        stepper = optimizer(sharded.parameters())
        inputs = torch.randn(batch, width, dtype=torch.bfloat16 if mixed else torch.float32)

        def step() -> None:
            for part in inputs.chunk(micro_batches):
                loss = squared(sharded(part))
                root = loss / micro_batches if micro_batches > 1 else loss
                root.backward()
            stepper.step()
            stepper.zero_grad()

        # Without oneDNN, whose products in bfloat16 have memory of their own.
        with torch.backends.mkldnn.flags(enabled=False):
            step()
            with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
                step()
        events = profiled.profiler.kineto_results.events()
        return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("gpus", "layers", "width", "batch", "optimizer", "reshard", "mixed", "micro_batches"),
    [
        pytest.param(8, 4, 64, 64, sgd, True, False, 1, marks=pytest.mark.slow),
        pytest.param(8, 3, 60, 16, adamw, True, False, 1, marks=pytest.mark.slow),
        pytest.param(3, 5, 50, 200, sgd, True, False, 1, marks=pytest.mark.slow),
        pytest.param(4, 3, 64, 96, adamw, False, False, 1, marks=pytest.mark.slow),
        (4, 4, 128, 256, adamw, True, True, 1),
        (4, 4, 64, 192, adamw, True, False, 3),
    ],
    ids=["even", "padded", "three GPUs", "weights stay", "mixed precision", "micro-batches"],
)
def test_the_peak_is_that_of_fully_shard_to_the_byte(
    gpus: int,
    layers: int,
    width: int,
    batch: int,
    optimizer: Callable[[Any], Any],
    reshard: bool,
    mixed: bool,
    micro_batches: int,
) -> None:
    from simgpu.recorder import record

    dtype = torch.bfloat16 if mixed else torch.float32
    trace = record(
        lambda: (model(layers, width).to(dtype), torch.randn(batch // micro_batches, width, dtype=dtype), (), squared),
        batch=batch,
        micro_batches=micro_batches,
        repetitions=1,
        warmup=1,
        optimizer=optimizer,
        date="2026-01-01",
    )
    blocks = [str(n) for n in range(1, layers + 1)]
    parameters = {"gpus": gpus, "blocks": blocks, "reshard_after_forward": reshard, "mixed_precision": mixed}
    result = simulate(trace, load_node("h100-x8"), "fsdp", parameters=parameters)
    lasting = sum(block.bytes for block in result.graph.blocks if block.persistent)
    expected = measured(gpus, layers, width, batch, optimizer, reshard, mixed, micro_batches)
    assert result.metrics.device_peak_bytes - lasting == expected
