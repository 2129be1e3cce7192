"""Where gradients meet, the trace has the sum that PyTorch's profiler shows in a run without the recorder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from simgpu.recorder import record
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.recorder.workload import Workload
from simgpu.trace.model import Phase

_WIDTH = 8
_SUMS = ("aten::add", "aten::add_")
_ENGINE = "autograd::engine::evaluate_function"


class _Meeting(nn.Module):
    """What goes in, and what becomes of a hidden layer's output that is used more than once."""

    def __init__(self, use: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH, bias=False)
        self._use = use

    def forward(self, x: Tensor) -> Tensor:
        return self._use(self.second, self.first(x))


def _square(output: Tensor) -> Tensor:
    return output.square().mean()


#: Each with the sums of gradients that PyTorch makes: in place, or as a third tensor.
MEETINGS: dict[str, tuple[Callable[[nn.Linear, Tensor], Tensor], list[str]]] = {
    "beside a shortcut": (lambda layer, h: layer(h.relu() + h), ["aten::add_"]),
    "of both sides of a product": (lambda layer, h: layer(h * h), ["aten::add_"]),
    "twice the same": (lambda layer, h: layer(h + h), ["aten::add"]),
    "of a weight that is used twice": (lambda layer, h: layer(layer(h).relu()), ["aten::add"]),
    "the first is a view": (lambda layer, h: layer(h.sigmoid() + h.t().tanh().t()), ["aten::add"]),
    "the second is a view": (lambda layer, h: layer(h.t().tanh().t() + h.sigmoid()), ["aten::add_"]),
}


def _below(events: Any) -> Iterator[Any]:
    for event in events:
        yield event
        yield from _below(event.children)


def _sums_unwatched(workload: Workload) -> list[str]:
    """Additions that autograd's engine makes itself, next to the nodes of the graph."""
    optimizer = torch.optim.SGD(workload.module.parameters(), lr=0.01)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run_iteration(workload, optimizer, NoWatcher())
    events = _below(profiler.profiler.kineto_results.experimental_event_tree())
    engine = (event for event in events if event.name.startswith(_ENGINE))
    return [each.name for event in engine for each in event.children if each.name in _SUMS]


@pytest.mark.parametrize("name", MEETINGS)
def test_gradient_sums_are_in_place_as_without_recording(name: str) -> None:
    use, expected = MEETINGS[name]

    def meeting(batch: int) -> Workload:
        torch.manual_seed(0)
        return Workload(_Meeting(use), (torch.randn(batch, _WIDTH),), (), _square)

    assert _sums_unwatched(meeting(_WIDTH)) == expected
    trace = record(meeting, batch=_WIDTH, repetitions=1, warmup=1)
    backward = [kernel for kernel in trace.kernels if kernel.phase is Phase.BACKWARD]
    assert [kernel.op for kernel in backward if kernel.op in _SUMS] == expected
