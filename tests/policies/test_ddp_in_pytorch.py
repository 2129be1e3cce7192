"""`ddp` against PyTorch's DistributedDataParallel on a CPU: its buckets, and the peak of an iteration to the byte."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest

from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from tests.policies.test_fsdp_in_pytorch import model, sgd, squared, torch
from tests.sets import slow_except

LAYERS, WIDTH, BATCH, GPUS = 4, 300, 200, 4


def measured(bucket_mib: int | None) -> tuple[list[int], int]:
    """Bytes of the buckets in their order once they are rebuilt, and the most that is allocated in an iteration in
    addition to what it begins with."""
    from torch.profiler import ProfilerActivity, profile
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sizes: list[int] = []

    def exchanged(state: object, bucket: Any) -> Any:
        buffer = bucket.buffer()
        sizes.append(buffer.numel() * buffer.itemsize)
        future = torch.futures.Future()
        future.set_result(buffer)
        return future

    exchanged.__annotations__.clear()  # PyTorch refuses those that are text
    torch.distributed.init_process_group("fake", rank=0, world_size=GPUS, store=FakeStore())
    try:
        parallel = torch.nn.parallel.DistributedDataParallel(model(LAYERS, WIDTH), bucket_cap_mb=bucket_mib)
        parallel.register_comm_hook(None, exchanged)
        stepper, inputs = sgd(parallel.parameters()), torch.randn(BATCH, WIDTH)

        def step() -> None:
            sizes.clear()
            squared(parallel(inputs)).backward()
            stepper.step()
            stepper.zero_grad()

        for _ in range(3):
            step()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            step()
        events = profiled.profiler.kineto_results.events()
        return sizes, max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("bucket_mib", slow_except([None, 1, 2], 1))
def test_buckets_and_peak_are_those_of_distributed_data_parallel(bucket_mib: int | None) -> None:
    from simgpu.recorder import record

    trace = record(
        lambda: (model(LAYERS, WIDTH), torch.randn(BATCH, WIDTH), (), squared),
        batch=BATCH,
        repetitions=1,
        warmup=1,
        optimizer=sgd,
        date="2026-01-01",
    )
    result = simulate(
        trace, load_node("h100-x8"), "ddp", parameters={"gpus": GPUS, "bucket_mib": bucket_mib or 0}, iterations=1
    )
    buckets, peak = measured(bucket_mib)
    graph = result.graph
    assert [graph.sizes[b] for b, block in enumerate(graph.blocks) if block.id.startswith("bucket ")] == buckets
    assert len(buckets) > 1
    lasting = sum(block.bytes for block in graph.blocks if block.persistent)
    assert result.metrics.device_peak_bytes - lasting == peak
