"""`record_step` around what scripts do besides: batches from loaders, copies to the host, measures, checkpoints."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import simgpu
from simgpu.errors import InputError
from simgpu.trace.check import check_trace
from tests.recorder.steps import X, Y, adam, convolutions, step


def inputs_of(recording: Any) -> int:
    """The most bytes of inputs at one time."""
    now = most = 0
    for number in recording.requests.order:
        request = recording.requests.requests[number if number >= 0 else ~number]
        now += (request.size if number >= 0 else -request.size) * (request.category == "input")
        most = max(most, now)
    return most


def test_batches_on_the_host_take_memory_only_where_they_are_copied() -> None:
    model = nn.Linear(64, 4)
    batches, seen = [torch.randn(32, 64) for _ in range(3)], []
    with simgpu.record_step(model, gpu="a100") as recording:
        for batch in batches:
            model(batch.to("cuda")).sum().backward()
            seen.append(batch.float().mul(2))
    assert inputs_of(recording) == 32 * 64 * 4
    dataset = torch.randn(1000, 64)
    for place in ("cuda", "cpu"):  # a loop whose device is the CPU does not copy its batch
        with simgpu.record_step(model, gpu="a100") as recording:
            for number in range(3):
                model(dataset[32 * number : 32 * number + 32].to(place)).sum().backward()
        assert inputs_of(recording) == 32 * 64 * 4


def test_what_is_copied_to_the_host_takes_no_memory() -> None:
    model, outputs = nn.Linear(64, 64), []
    with simgpu.record_step(model, gpu="a100") as recording:
        for _ in range(3):
            outputs.append(model(torch.randn(32, 64).to("cuda")).detach().cpu() * 2)
    order = recording.requests.order
    held = {number for number in order if number >= 0 and ~number not in order}
    assert sum(recording.requests.requests[number].category == "activation" for number in held) <= 1


def test_parameters_that_the_loop_knows_by_names_of_its_own_are_replaced_too() -> None:
    model = convolutions()
    optimizer, parameters = adam(model), list(model.parameters())

    def events(given: list[nn.Parameter] | None) -> int:
        with simgpu.record_step(model, optimizer, gpu="a100") as recording:
            for _ in range(2):
                chosen = given or list(model.parameters())
                cross_entropy(model(X), Y).backward()
                nn.utils.clip_grad_norm_(chosen, 1.0)
                optimizer.step()
                for parameter in chosen:
                    parameter.grad = None
        return len(recording.requests.order)

    assert events(parameters) == events(None)
    with simgpu.record_step(model, gpu="a100"):
        gradients = torch.autograd.grad(model(X).sum(), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= 0.1 * gradient


class Caching(nn.Module):
    """Keeps a constant that its first forward creates."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.cache = nn.Linear(4, 4), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.cache is None:
            self.cache = torch.ones(4)
        return self.fc(x) * self.cache


def test_cached_constants_other_models_and_learning_rates_are_as_before_too() -> None:
    model, other = Caching(), nn.Linear(4, 1)
    optimizer = torch.optim.Adam([*model.parameters(), *other.parameters()], lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(2):
        with simgpu.record_step(model, optimizer, gpu="a100"):
            other(model(torch.randn(2, 4))).sum().backward()
            optimizer.step()
            schedule.step()
        assert model.cache is None and other.weight.grad is None
        assert optimizer.param_groups[0]["lr"] == 0.01
    other(model(torch.randn(2, 4))).sum().backward()
    optimizer.step()


def test_habits_of_scripts_work_without_a_gpu() -> None:
    model = convolutions()
    optimizer = adam(model)
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        model.to("cuda").cuda()
        torch.cuda.synchronize()
        step(model, optimizer)
        loss = cross_entropy(model(X), Y)
        assert f"{loss:.3f}" == "1.000"
    first, assumed = recording.requests.notes
    assert first == "the optimizer's state is allocated in the first step: record two for the peak of later ones"
    assert "they are taken to be one" in assumed
    assert "record two for the peak" in repr(simgpu.explain_allocations(recording.requests))
    with pytest.raises(InputError, match="convert it before the with block"), simgpu.record_step(model, gpu="a100"):
        model.half()


class Listing(nn.Module):
    """Keeps what it computes in a list, like a model that collects losses of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.seen = nn.Linear(4, 4), [1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.fc(x)
        self.seen.append(result.detach())
        return result


def test_a_list_of_the_model_has_its_content_again() -> None:
    model = Listing()
    seen = model.seen
    with simgpu.record_step(model, gpu="a100"):
        model(torch.ones(1, 4)).sum().backward()
    assert model.seen is seen and seen == [1]


def test_averages_of_the_weights_are_updated() -> None:
    model = convolutions()
    average = [parameter.detach().clone().requires_grad_() for parameter in model.parameters()]
    optimizer = adam(model)
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        step(model, optimizer)
        with torch.no_grad():
            for mean, parameter in zip(average, model.parameters(), strict=True):
                mean.mul_(0.9).add_(parameter, alpha=0.1)
    assert check_trace(recording.trace) == []


def test_guards_against_nan_and_infinity_find_none() -> None:
    model = nn.Linear(64, 4)
    optimizer = adam(model)
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        loss = model(torch.randn(8, 64)).sum()
        assert not torch.isnan(loss)
        assert torch.isfinite(loss)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert not any((torch.isnan(each) | torch.isinf(each)).any() for each in gradients)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
    assert "Checks for NaN and infinity find none." in recording.requests.notes


def test_values_that_the_loop_reads_are_one() -> None:
    model = nn.Linear(64, 4)
    with simgpu.record_step(model, gpu="a100"):
        output = model(torch.randn(8, 64).to("cuda"))
        assert output.detach().cpu().numpy().sum() == 8 * 4
        assert output.argmax(1).tolist() == [1] * 8
        assert torch.arange(3).tolist() == [0, 1, 2]


def test_tensors_that_the_loop_makes_on_the_host_take_no_memory() -> None:
    model, dataset = nn.Linear(64, 4), torch.randn(1000, 64)
    with simgpu.record_step(model, gpu="a100") as recording:
        chosen = torch.randint(0, len(dataset), (32,))
        model(dataset[chosen].to(torch.device("cuda"))).sum().backward()
        kept = [torch.zeros(10**6), torch.zeros(10**6, device="cpu"), model.weight.new_zeros(10**5)]
    assert len(kept) == 3
    assert inputs_of(recording) == 32 * 64 * 4
    assert max(request.size for request in recording.requests.requests if request.category != "workspace") == 4 * 10**5


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_buffer_that_the_model_replaces_is_freed(device: str) -> None:
    class Averaging(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(64, 4)
            self.register_buffer("average", torch.zeros(10**5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.average = self.average * 0.5
            return self.fc(x)

    model = Averaging().to(device)
    with simgpu.record_step(model, gpu="a100") as recording:
        for _ in range(3):
            model(torch.randn(8, 64)).sum().backward()
    requests, living = recording.requests.requests, set()
    for number in recording.requests.order:
        if number >= 0:
            living.add(number)
        else:
            living.remove(~number)
    assert [requests[number].size for number in living].count(4 * 10**5) == 1
    assert model.average.device.type == device


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_a_data_loader_are_loaded_inside(workers: int) -> None:
    model, data = nn.Linear(64, 4), TensorDataset(torch.randn(96, 64))
    with simgpu.record_step(model, gpu="a100") as recording:
        for (x,) in DataLoader(data, batch_size=32, shuffle=True, num_workers=workers):
            model(x.to("cuda")).sum().backward()
    assert inputs_of(recording) == 32 * 64 * 4


def test_samples_of_an_evaluation_do_not_count() -> None:
    model = nn.Linear(64, 4)
    optimizer = adam(model)
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        model(torch.randn(8, 64)).sum().backward()
        with torch.no_grad():
            model(torch.randn(100, 64))
        optimizer.step()
    assert recording.trace is not None and recording.trace.info.batch == 8


def test_trace_of_a_loop_that_copies_its_batches_is_valid() -> None:
    model, data = nn.Linear(64, 4), TensorDataset(torch.randn(96, 64))
    optimizer = adam(model)
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        for (x,) in DataLoader(data, batch_size=32):
            model(x.to("cuda")).sum().backward()
            optimizer.step()
    assert recording.trace is not None and check_trace(recording.trace) == []


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_batch_made_inside_counts_once_on_either_device(device: str) -> None:
    model = nn.Linear(64, 4)
    with simgpu.record_step(model, gpu="a100") as recording:
        model(torch.randn(1000, 64).to(device)).sum().backward()
    assert [request.size for request in recording.requests.requests].count(1000 * 64 * 4) == 1


def test_what_scripts_measure_and_save_inside_does_nothing(tmp_path: Path) -> None:
    model = nn.Linear(64, 4)
    with simgpu.record_step(model, gpu="a100"):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        model(torch.randn(8, 64).pin_memory().to("cuda")).sum().backward()
        end.record()
        torch.save(model.state_dict(), tmp_path / "model.pt")
        assert begin.elapsed_time(end) == torch.cuda.memory_allocated() == 0
    assert not list(tmp_path.iterdir())


def test_samples_of_competing_networks_are_those_of_one() -> None:
    generator, critic = nn.Linear(16, 64), nn.Linear(64, 1)
    model = nn.ModuleList([generator, critic])
    optimizer = adam(model)
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        made = generator(torch.randn(8, 16))
        (critic(torch.randn(8, 64)).sum() - critic(made).sum()).backward()
        optimizer.step()
    assert recording.trace is not None and recording.trace.info.batch == 8


def test_batches_drawn_from_an_array_are_on_the_host_with_values() -> None:
    data, model = np.arange(4096), nn.Embedding(4096, 8)
    with simgpu.record_step(model, gpu="a100") as recording:
        chosen = torch.randint(len(data) - 256, (4,))
        x = torch.stack([torch.from_numpy(data[i : i + 256]) for i in chosen])
        assert x.shape == (4, 256)
        model(x.to("cuda")).sum().backward()
    assert [each.size for each in recording.requests.requests].count(256 * 8) == 0
    assert inputs_of(recording) == 4 * 256 * 8


def test_model_is_copied_inside() -> None:
    model = nn.Linear(64, 4)
    with simgpu.record_step(model, gpu="a100"):
        model(torch.randn(8, 64)).sum().backward()
        averaged = copy.deepcopy(model)
        assert averaged.weight.shape == (4, 64)


def test_function_of_the_users_own_is_not_taken_to_write_in_place() -> None:
    class Selected(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(places)
            return x.gather(0, places)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            (places,) = ctx.saved_tensors
            return gradient.new_zeros(5000).scatter(0, places, gradient), None

    weight = nn.ParameterList([torch.zeros(5000)])
    with simgpu.record_step(weight, gpu="a100") as recording:
        Selected.apply(weight[0] * 2, torch.arange(5000, device="cuda")).sum().backward()
    made = [each for each in recording.requests.requests if "scatter" in str(each.stack[-1])]
    assert len(made) == 1


def test_copies_of_a_model_are_made_and_called_while_it_is_recorded() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), torch.ones(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with simgpu.record_step(model, optimizer) as recording:
        for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            copied(x)
        model(x).sum().backward()
        optimizer.step()
    assert [each.module for each in recording.trace.modules] == [".", "0", "1"]
