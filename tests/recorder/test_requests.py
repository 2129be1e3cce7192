"""What a training loop requests from a GPU's allocator, against sequences and sums counted by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn

import simgpu
from simgpu.errors import InputError
from simgpu.trace.requests import MemoryRequests

MIB = 2**20
WEIGHT, BATCH, OUTPUT = 512 * 256 * 4, 64 * 256 * 4, 64 * 512 * 4
CUBLAS, CUBLAS_ON_HOPPER = 8_519_680, 32 * MIB


def linear(batch: int) -> tuple[Any, ...]:
    """One matrix product, whose loss is the sum of its results."""
    return nn.Linear(256, 512, bias=False), (torch.randn(batch, 256),), (), lambda output: output.sum()


def requests(factory: Callable[..., Any] = linear, **arguments: Any) -> MemoryRequests:
    defaults = {"batch": 64, "gpu": "a100", "optimizer": "plain-sgd", "iterations": 1}
    return simgpu.record_requests(factory, **(defaults | arguments))


def sizes(program: MemoryRequests) -> list[int]:
    """The bytes of each event, negative for frees."""
    return [
        program.requests[number].size if number >= 0 else -program.requests[~number].size for number in program.order
    ]


def live(program: MemoryRequests, category: str) -> list[int]:
    """Bytes of a category after each event."""
    result, now = [], 0
    for number in program.order:
        request = program.requests[number if number >= 0 else ~number]
        now += (request.size if number >= 0 else -request.size) * (request.category == category)
        result.append(now)
    return result


def test_two_iterations_of_a_product_request_what_pytorch_does() -> None:
    first = [WEIGHT, BATCH, OUTPUT, CUBLAS, 4, -OUTPUT]  # model.to(device), the batch, the product, its workspace, loss
    first += [4, WEIGHT, CUBLAS, -4]  # gradient of the loss; of the weight, with the workspace of backward's thread
    again = [-WEIGHT, BATCH, -BATCH]  # zero_grad; the new batch exists before the name drops the old one
    again += [OUTPUT, 4, -OUTPUT, -4, 4, WEIGHT, -4]  # the loss of before is dropped by its name, too
    assert sizes(requests(iterations=2)) == first + again


def test_hopper_has_a_larger_workspace_for_products() -> None:
    on_hopper = [CUBLAS_ON_HOPPER if size == CUBLAS else size for size in sizes(requests(iterations=2))]
    assert sizes(requests(gpu="h100", iterations=2)) == on_hopper


def test_a_held_output_lives_until_the_next_is_assigned() -> None:
    order = sizes(requests(iterations=2, hold_output=True))
    second = [place for place, size in enumerate(order) if size == OUTPUT][1]
    assert order.count(-OUTPUT) == 1 and order.index(-OUTPUT) == second + 1


@pytest.mark.parametrize(
    ("zero_grad", "at_forward", "at_end"), [("start", 0, WEIGHT), ("before-backward", WEIGHT, WEIGHT), ("end", 0, 0)]
)
def test_gradients_live_as_zero_grad_lets_them(zero_grad: str, at_forward: int, at_end: int) -> None:
    program = requests(iterations=2, zero_grad=zero_grad)
    gradients = live(program, "weight_gradient")
    second_product = [place for place, size in enumerate(sizes(program)) if size == OUTPUT][1]
    assert gradients[second_product] == at_forward and gradients[-1] == at_end


#: Bytes of state for each weight, and of what a step allocates at once for all weights, in weights. Moments and sums of
#: squares; roots, and for Adagrad and RMSprop the scaled gradients.
STATE = {"plain-sgd": (0, 0), "sgd": (1, 0), "adam": (2, 1), "adamw": (2, 1), "rmsprop": (1, 1), "adagrad": (1, 2)}


@pytest.mark.parametrize("optimizer", STATE)
def test_optimizers_keep_their_state_and_allocate_in_a_step(optimizer: str) -> None:
    states, temporary = STATE[optimizer]
    program = requests(optimizer=optimizer, iterations=2)
    assert live(program, "optimizer_state")[-1] == states * WEIGHT
    assert max(live(program, "other")) == temporary * WEIGHT


@pytest.mark.parametrize("kind", ["foreach", "for-loop", "fused"])
def test_forms_of_adam_differ_in_what_a_step_allocates(kind: str) -> None:
    """Four equal weights: foreach takes the roots of all at once, fused none.

    A loop takes one root and its quotient, while its name still holds the quotient of the weight before.
    """

    def factory(batch: int) -> tuple[Any, ...]:
        layers = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
        return layers, (torch.randn(batch, 256),), (), lambda output: output.sum()

    form = {"foreach": {}, "for-loop": {"foreach": False}, "fused": {"fused": True}}[kind]
    program = requests(factory, optimizer=lambda weights: torch.optim.Adam(weights, **form), iterations=2)
    weight = 256 * 256 * 4
    expected = {"foreach": 4 * weight, "for-loop": 3 * weight, "fused": 0}[kind]
    assert expected <= max(live(program, "other")) < expected + weight / 2
    assert live(program, "optimizer_state")[-1] >= 8 * weight


def test_adafactor_reads_values_that_do_not_exist() -> None:
    """Its step compares the root mean square of each weight: it is taken to be one."""
    program = requests(optimizer=torch.optim.Adafactor, iterations=2)
    assert live(program, "optimizer_state")[-1] == (512 + 256) * 4


def test_a_tied_weight_is_moved_once_and_its_gradients_are_summed_in_place() -> None:
    def factory(batch: int) -> tuple[Any, ...]:
        first, second = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)
        second.weight = first.weight
        return nn.Sequential(first, nn.Tanh(), second), (torch.randn(batch, 64),), (), lambda output: output.sum()

    program = requests(factory)
    assert Counter(request.category for request in program.requests)["weight"] == 1
    # A product's gradient of a weight is a view of a transposed result, which the sum cannot reuse.
    assert max(live(program, "weight_gradient")) == 64 * 64 * 4


@pytest.mark.parametrize(
    ("channels_last", "channels", "copies"), [(False, 64, True), (True, 64, False), (False, 3, False)]
)
def test_a_convolution_on_tensor_cores_needs_its_operands_with_channels_last(
    channels_last: bool, channels: int, copies: bool
) -> None:
    def factory(batch: int) -> tuple[Any, ...]:
        module, x = nn.Conv2d(channels, 64, 3, bias=False), torch.randn(batch, channels, 10, 10)
        if channels_last:
            module, x = module.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        return module, (x,), (), lambda output: output.sum()

    workspaces = [request for request in requests(factory, batch=8).requests if request.category == "workspace"]
    needed = 4 * (8 * channels * 10 * 10 + 8 * 64 * 8 * 8 + 64 * channels * 3 * 3)
    # Forward, and backward for the weight; the batch needs no gradient.
    assert [(each.size, each.optional) for each in workspaces] == [(needed, True)] * (2 if copies else 0)


def test_a_depthwise_convolution_needs_no_workspace() -> None:
    def factory(batch: int) -> tuple[Any, ...]:
        return nn.Conv2d(32, 32, 3, groups=32), (torch.randn(batch, 32, 8, 8),), (), lambda output: output.sum()

    assert not [request for request in requests(factory).requests if request.category == "workspace"]


def test_requests_name_the_layer_and_the_line_that_runs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.fc(x))

    line = Model.forward.__code__.co_firstlineno + 1
    program = requests(lambda batch: (Model(), (torch.randn(batch, 16),), (), lambda output: output.sum()))
    stacks = {str(request.stack[-1]): request.stack for request in program.requests}
    assert "fc.weight weight" in stacks and "input input" in stacks
    for where in ("fc activation, addmm", "Model activation, relu"):
        frame = stacks[where][0]
        assert (frame.function, frame.line) == ("forward", line) and frame.file.endswith("test_requests.py")


def test_a_report_shows_what_holds_the_memory_and_whether_it_fits() -> None:
    report = simgpu.explain_allocations(requests(iterations=2), capacity=32 * MIB)
    assert report.failure is None
    contents = {holder.where: holder.bytes for holder in report.contents}
    assert contents["workspace"] == 2 * CUBLAS and contents["weight"] == WEIGHT
    assert simgpu.explain_allocations(requests(), capacity=16 * MIB).failure is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch": 0}, "record: batch: 0 is not a number of samples"),
        ({"iterations": 0}, "record: iterations: 0 is not a number of iterations"),
        ({"zero_grad": "never"}, "record: zero_grad: 'never' is not a place"),
        ({"gpu": "b100"}, "no shipped node is called 'b100'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        requests(**arguments)
    assert message in str(caught.value)


def test_memory_that_is_not_counted_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.cells(x.transpose(0, 1))[0]

    def recurrent(batch: int) -> Any:
        return Recurrent(), torch.ones(batch, 3, 4), (), lambda y: y.sum()

    (note,) = simgpu.record_requests(recurrent, batch=2, gpu="h100").notes
    assert note == "LSTM: modelled step by step; cuDNN runs all steps at once, with memory of its own."
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert "cudnn.benchmark is on" in simgpu.record_requests(recurrent, batch=2, gpu="h100").notes[1]


def test_loss_is_noted_where_the_factory_gives_none() -> None:
    program = simgpu.record_requests(lambda batch: (nn.Linear(4, 3), torch.ones(batch, 4)), batch=2, gpu="h100")
    assert program.notes == ["Loss: cross-entropy of random labels, because the factory returns no loss."]


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"])
def test_result_of_a_loss_has_the_memory_that_its_storage_has(loss: str) -> None:
    compute = getattr(nn.functional, loss)
    real = compute(torch.rand(500, 64), torch.rand(500, 64)).untyped_storage().nbytes()
    program = simgpu.record_requests(
        lambda batch: (
            nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()),
            torch.rand(batch, 64),
            torch.rand(batch, 64),
            compute,
        ),
        batch=500,
        gpu="h100",
        iterations=1,
    )
    results = [each.size for each in program.requests if str(each.stack[-1]).endswith(loss)]
    assert results == [real]
