"""Backward in the trace is in place where PyTorch's profiler shows that, in a run without the recorder."""

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


_PLACES = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [6, 7], [7, 0]])
#: Each with the operator that writes the gradient of the selected values, and whether it may be in place.
SELECTIONS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "maximum": (lambda h: h.max(1)[0], "aten::scatter_"),
    "top k": (lambda h: h.topk(2)[0], "aten::scatter_"),
    "sorted": (lambda h: h.sort(1)[0], "aten::scatter_"),
    "gathered": (lambda h: h.gather(1, _PLACES), "aten::scatter_add_"),
    "running maximum": (lambda h: h.cummax(1)[0], "aten::scatter_add_"),
    "selected rows": (lambda h: h.index_select(0, _PLACES[:, 0]), "aten::index_add_"),
    "indexed rows": (lambda h: h[_PLACES[:, 0]], "aten::_index_put_impl_"),
    "forward's own": (lambda h: h.scatter(1, _PLACES, 0.0), "aten::scatter"),
}

#: Each with the sums of gradients that PyTorch makes: in place, or as a third tensor.
MEETINGS: dict[str, tuple[Callable[[nn.Linear, Tensor], Tensor], list[str]]] = {
    "with a shortcut": (lambda layer, h: layer(h.relu() + h), ["aten::add_"]),
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


def _selecting(use: Callable[[Tensor], Tensor]) -> Workload:
    torch.manual_seed(0)
    return Workload(_Meeting(lambda _, h: use(h)), (torch.randn(_WIDTH, _WIDTH),), (), _square)


def _unwatched(workload: Workload) -> list[Any]:
    """Everything that autograd's engine ran, by the profiler."""
    optimizer = torch.optim.SGD(workload.module.parameters(), lr=0.01)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run_iteration(workload, optimizer, NoWatcher())
    events = _below(profiler.profiler.kineto_results.experimental_event_tree())
    return [event for event in events if event.name.startswith(_ENGINE)]


def _sums_unwatched(workload: Workload) -> list[str]:
    """Additions that autograd's engine makes itself, next to the nodes of the graph."""
    return [each.name for event in _unwatched(workload) for each in event.children if each.name in _SUMS]


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


@pytest.mark.parametrize("name", SELECTIONS)
def test_gradient_of_selected_values_is_written_in_place_as_without_recording(name: str) -> None:
    use, expected = SELECTIONS[name]
    assert expected in {each.name for event in _unwatched(_selecting(use)) for each in _below(event.children)}
    trace = record(lambda batch: _selecting(use), batch=_WIDTH, repetitions=1, warmup=1)
    backward = {kernel.op: kernel for kernel in trace.kernels if kernel.phase is Phase.BACKWARD}
    op = backward["aten::index_put_" if expected == "aten::_index_put_impl_" else expected]
    assert (op.writes[0] in op.reads) is expected.endswith("_")
