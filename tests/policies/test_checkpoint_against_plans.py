"""`checkpoint` compared with the iteration of a plan, which is PyTorch's operator by operator (`tests/plans`)."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

from simgpu.plans import projections
from simgpu.plans.candidate import Candidate
from simgpu.plans.iteration import Checkpointed
from simgpu.plans.megatron import full
from simgpu.plans.regions import Region, Steps
from simgpu.recorder import record
from simgpu.trace.model import Trace
from tests.plans.models import Gpt
from tests.policies.framework_runs import peak, run, run_again

BLOCKS = ["blocks.*"]


@pytest.fixture(scope="module")
def gpt() -> Trace:
    """Four layers, with the times of a V100."""

    def factory(batch: int) -> tuple[object, ...]:
        return Gpt(layers=4), torch.randint(50, (batch, 12)), torch.randint(50, (batch * 12,)), nn.CrossEntropyLoss()

    return record(factory, batch=64, gpu="v100")


def layers_of(steps: Steps) -> list[Region]:
    return [region for region in steps.regions() if fnmatchcase(region.module, "blocks.[0-9]")]


def agree(tasks: Trace, candidate: Candidate, **parameters: object) -> None:
    """The same kernels run again, in the same order, and the peak of device memory is the same."""
    result = run(tasks, "checkpoint", **parameters)
    plain = run(candidate.planned.trace, "none")
    reruns = [tasks.kernels[entry.kernel].id for entry in candidate.planned.order if entry.region is not None]
    assert run_again(result.program, tasks) == reruns
    assert result.iteration_ns == plain.iteration_ns
    assert peak(result) == peak(plain)


@pytest.mark.parametrize(
    "keep", [(), ("addmm/3",), ("_scaled_dot_product_*",), ("gelu", "native_layer_norm", "addmm/3")]
)
def test_kept_results_of_every_layer(gpt: Trace, keep: tuple[str, ...]) -> None:
    """None of them is behind what backward needs last, where an early stop ends."""
    steps = Steps(gpt)
    regions = []
    for layer in layers_of(steps):
        kept: set[int] = set()
        for rule in keep:
            pattern, _, every = rule.partition("/")
            kernels = range(layer.first, layer.stop)
            matching = [k for k in kernels if fnmatchcase(gpt.kernels[k].op.removeprefix("aten::"), pattern)]
            kept.update(matching[:: int(every or 1)])
        regions.append(Checkpointed(layer, frozenset(kept & set(steps.keepable(layer)))))
    agree(gpt, Candidate(steps, tuple(regions)), blocks=BLOCKS, keep=keep)


def test_every_second_layer_and_groups_are_those_of_the_frameworks(gpt: Trace) -> None:
    steps = Steps(gpt)
    layers = layers_of(steps)
    of = {each.text: each.candidate for each in projections._transformers(steps, layers)}
    agree(gpt, of['{"every_n_layers": 2}'], blocks=BLOCKS, every=2)
    of = {each.text: each.candidate for each in projections._torchtitan(steps, layers)}
    agree(gpt, of['mode = "selective", selective_ac_option = "2"'], blocks=BLOCKS, first=1, every=2)
    megatron = dict(full(steps, layers))
    method = "--recompute-granularity full --recompute-method"
    agree(gpt, megatron[f"{method} block --recompute-num-layers 1"], blocks=BLOCKS, count=1)
    agree(gpt, megatron[f"{method} uniform --recompute-num-layers 2"], blocks=BLOCKS, group=2)
