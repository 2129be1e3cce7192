"""Small helpers for tests of plans: recordings of the models, random regions, comparisons of iterations."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from simgpu.plans.choices import Choices
from simgpu.plans.iteration import Checkpointed
from simgpu.plans.recorded import recorded
from simgpu.plans.regions import Region, Steps, disjoint
from simgpu.recorder.optimizers import find_optimizer, make_optimizer
from simgpu.recorder.workload import Workload, make_workload
from simgpu.torch.loop import Loop
from simgpu.torch.regions import Kept, Regions
from simgpu.torch.types import WHOLE
from simgpu.trace.model import Origin, Trace, TraceInfo
from tests.plans.models import MODELS

_CPU = torch.device("cpu")


class Training(NamedTuple):
    """A model of `MODELS` with its data, and an optimizer."""

    name: str
    workload: Workload
    optimizer: torch.optim.Optimizer

    def recorded(self, around: AbstractContextManager[Any] | None = None) -> Trace:
        """The iteration as it runs inside a context."""
        info = TraceInfo(self.name, 2, "cpu", "float32", Origin.RECORDED, "torch")
        with around or nullcontext():
            return recorded(self.workload, self.optimizer, _CPU, info)


def training(name: str, batch: int = 2) -> Training:
    """A model with fixed weights."""
    torch.manual_seed(0)
    workload = make_workload(name, MODELS[name], batch, None)
    return Training(name, workload, make_optimizer(find_optimizer("sgd"), workload.module))


def random_regions(steps: Steps, seed: int) -> tuple[Checkpointed, ...]:
    """Some regions of an iteration, of which some keep some results."""
    rng = random.Random(seed)
    choices = Choices(steps)
    regions = [each for each in steps.regions() if not steps.why_not(each)]
    rng.shuffle(regions)
    chosen: list[Region] = []
    result = []
    for region in regions:
        if rng.random() < 0.6 and disjoint([*chosen, region]):
            share = rng.choice([0.0, 0.3])
            chosen.append(region)
            kept = frozenset(k for k in choices.steps.keepable(region) if rng.random() < share)
            result.append(Checkpointed(region, kept))
    return tuple(result)


def kept_results(steps: Steps, regions: Sequence[Checkpointed]) -> dict[tuple[str, int], set[tuple[str, int]]]:
    """The argument of `regions_applied` for these regions."""
    result = {}
    for each in regions:
        seen: dict[str, int] = {}
        kept = set()
        for k in range(each.region.first, each.region.stop):
            op = steps.trace.kernels[k].op
            if k in each.keeps:
                kept.add((op, seen.get(op, 0)))
            seen[op] = seen.get(op, 0) + 1
        result[each.region.module, each.region.call] = kept
    return result


@contextmanager
def regions_applied(
    model: nn.Module, regions: Mapping[tuple[str, int], Kept], calls: Mapping[str, int]
) -> Iterator[None]:
    """Checkpoints these regions inside the context; a step is one call of the model."""
    applied = Regions(regions, calls)
    with Loop([[WHOLE]], lambda _: applied.begin()).followed(model), applied.applied(model):
        yield


def shape_of(trace: Trace) -> tuple[list[tuple[object, ...]], dict[int, tuple[object, ...]]]:
    """What is the same in two recordings of one iteration, whatever blocks are called.

    Operators with what they access; of each block its size and the kernel after which it is freed.
    """
    number: dict[str, int] = {}
    kernels = []
    for kernel in trace.kernels:
        accesses = (tuple(number.setdefault(b, len(number)) for b in each) for each in (kernel.reads, kernel.writes))
        kernels.append((kernel.op, *accesses))
    place = {kernel.id: at for at, kernel in enumerate(trace.kernels)}
    blocks = {
        number[each.id]: (each.bytes, each.persistent, place.get(each.release or "", each.release))
        for each in trace.blocks
        if each.id in number
    }
    return kernels, blocks


def saved_rows(trace: Trace) -> list[tuple[object, ...]]:
    """The saved tensors, with kernels as positions."""
    place = {kernel.id: at for at, kernel in enumerate(trace.kernels)}
    return [
        (row.bytes, *(place.get(name or "") for name in (row.packed_after, row.unpacked_before, row.freed_after)))
        for row in trace.saved
    ]
