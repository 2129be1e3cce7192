"""`record_step`: a step of the user's own loop, as it runs and on fake tensors."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, TensorDataset

import simgpu
from simgpu.errors import InputError
from simgpu.trace.check import check_trace
from simgpu.trace.model import Phase, Trace
from simgpu.trace.requests import MemoryRequests

CLASSES = 10


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(8 * 36, CLASSES)
    )


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), foreach=True)


X, Y = torch.randn(4, 3, 8, 8), torch.arange(4) % CLASSES


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor = X, y: torch.Tensor = Y) -> None:
    optimizer.zero_grad()
    cross_entropy(model(x), y).backward()
    optimizer.step()


def phases(trace: Trace) -> list[Phase]:
    """The phases of the kernels, each run of equal ones once."""
    result: list[Phase] = []
    for kernel in trace.kernels:
        if not result or result[-1] is not kernel.phase:
            result.append(kernel.phase)
    return result


def sizes(program: MemoryRequests) -> list[int]:
    """Bytes of each event, negative for frees; without workspaces, which only a GPU has."""
    given = [(n >= 0, program.requests[n if n >= 0 else ~n]) for n in program.order]
    return [request.size if begins else -request.size for begins, request in given if request.category != "workspace"]


def test_a_step_that_runs_is_a_valid_trace_with_its_phases_and_durations() -> None:
    model = convolutions()
    optimizer = adam(model)
    step(model, optimizer)
    with simgpu.record_step(model, optimizer) as recording:
        step(model, optimizer)
    trace = recording.trace
    assert check_trace(trace) == []
    assert phases(trace) == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert trace.info.batch == 4 and trace.info.model == "Sequential"
    assert all(kernel.duration_ns > 0 for kernel in trace.kernels)
    assert {"0.weight", "0.weight.grad", "0.weight.exp_avg", "1.running_mean", "input"} <= set(trace.block_by_id)


def test_fake_tensors_request_what_the_running_step_does() -> None:
    """But for workspaces: the same operators, with one multi-tensor optimizer, allocate and free in the same order."""
    model = convolutions()
    optimizer = adam(model)
    step(model, optimizer)
    with simgpu.record_step(model, optimizer) as real:
        step(model, optimizer)
    with simgpu.record_step(model, optimizer, gpu="a100") as fake:
        step(model, optimizer)
    # The counts of steps are on the CPU with a GPU, and on the recorded device without one.
    counts = [4] * len(list(model.parameters()))
    assert sorted(size for size in sizes(real.requests)) == sorted(sizes(fake.requests) + counts)
    assert [kernel.op for kernel in real.trace.kernels][:8] == [kernel.op for kernel in fake.trace.kernels][:8]


def test_several_steps_on_fake_tensors_give_the_requests_of_all_and_the_trace_of_the_last() -> None:
    model = convolutions()
    optimizer = adam(model)
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        for _ in range(3):
            step(model, optimizer)
    trace = recording.trace
    assert check_trace(trace) == []
    assert sum(kernel.op == "aten::convolution" for kernel in trace.kernels) == 1
    assert trace.block_by_id["0.weight.exp_avg"].persistent
    categories = [request.category for request in recording.requests.requests]
    assert categories.count("optimizer_state") == 2 * len(list(model.parameters()))
    assert simgpu.simulate(trace, simgpu.load_node("a100"), "none", pool="caching").metrics.iteration_ns > 0


def test_a_step_on_fake_tensors_leaves_everything_as_it_was() -> None:
    model = convolutions()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    parameters, state = list(model.parameters()), optimizer.state
    before = {name: value.clone() for name, value in model.state_dict().items()}
    moments = [values["exp_avg"].clone() for values in state.values()]
    with simgpu.record_step(model, optimizer, gpu="a100"):
        step(model, optimizer)
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert optimizer.state is state and optimizer.param_groups[0]["foreach"] is None
    assert all(torch.equal(values["exp_avg"], moment) for values, moment in zip(state.values(), moments, strict=True))
    step(model, optimizer)


def test_a_failing_step_leaves_everything_as_it_was_and_raises_its_own_error() -> None:
    model = convolutions()
    parameters = list(model.parameters())
    with pytest.raises(KeyError, match="mine"), simgpu.record_step(model, gpu="a100") as recording:
        raise KeyError("mine")
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    with pytest.raises(InputError, match="the step has not ended, or has failed"):
        _ = recording.requests


def test_gradient_accumulation_has_several_forwards_and_all_samples() -> None:
    model = convolutions()
    optimizer = adam(model)
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        for _ in range(2):
            optimizer.zero_grad()
            for part in range(2):
                cross_entropy(model(X[2 * part : 2 * part + 2]), Y[2 * part : 2 * part + 2]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    trace = recording.trace
    assert check_trace(trace) == [] and trace.info.batch == 4
    order = [phase for phase in phases(trace) if phase is not Phase.OPTIMIZER]
    assert order == [Phase.FORWARD, Phase.BACKWARD] * 2
    norms = [kernel for kernel in trace.kernels if "norm" in kernel.op and "batch" not in kernel.op]
    assert norms and all(kernel.phase is Phase.OPTIMIZER for kernel in norms)


class Attention(nn.Module):
    """A layer with attention, a tied output and a dictionary as output, like a Hugging Face model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 32, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(tokens)
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        x = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        logits = self.out(x)
        return {"loss": cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def test_cuda_names_autocast_attention_and_dictionaries_work_without_a_gpu() -> None:
    model = Attention()
    optimizer = adam(model)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        scaler = torch.amp.GradScaler("cuda")  # outside, it would see that there is no GPU
        batch = {"tokens": tokens.to("cuda"), "labels": tokens.cuda(non_blocking=True)}
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(**batch)["loss"]
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            assert loss.item() == 1.0  # values do not exist
    ops = {kernel.op for kernel in recording.trace.kernels}
    assert "aten::_scaled_dot_product_flash_attention" in ops
    assert recording.trace.info.compute.startswith("float16")
    assert "values of tensors, which do not exist" in recording.trace.info.notes


def test_a_model_without_memory_is_recorded() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(40_000, 50_000), nn.ReLU(), nn.Linear(50_000, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters())
    with simgpu.record_step(model, optimizer, gpu="h100") as recording:
        for _ in range(2):
            step(model, optimizer, torch.randn(4, 40_000), Y)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert weights > 8 * 10**9 and next(model.parameters()).device.type == "meta"
    assert simgpu.explain_allocations(recording.requests).allocated > 4 * weights


def test_requests_and_kernels_have_the_module_and_the_line_of_the_step(tmp_path: Path) -> None:
    model = convolutions()
    with simgpu.record_step(model, gpu="a100") as recording:
        model(X).sum().backward()
    stacks = {str(request.stack[-1]): request.stack for request in recording.requests.requests}
    frame = stacks["0 activation, convolution"][0]
    assert frame.file.endswith("test_step.py") and frame.line > 0
    assert "0.weight weight" in stacks
    convolution = next(kernel for kernel in recording.trace.kernels if kernel.op == "aten::convolution")
    assert convolution.layer == "0" and convolution.source == f"recorder/test_step.py:{frame.line} {frame.function}"
    written = tmp_path / "step"
    simgpu.write_trace(recording.trace, written)
    assert simgpu.load_trace(written).kernels == recording.trace.kernels


def test_a_gpu_without_a_time_model_has_requests_and_no_trace() -> None:
    gpu = simgpu.load_node("laptop-2gb").gpu
    model = convolutions()
    with simgpu.record_step(model, gpu=gpu) as recording:
        model(X).sum().backward()
    assert recording.requests.order
    with pytest.raises(InputError, match="the time model needs it"):
        _ = recording.trace


@pytest.mark.parametrize(
    ("model", "optimizer", "message"),
    [
        ("resnet", (), "record_step: model: it is a str, not a module"),
        (nn.Linear(2, 2), ["adam"], "record_step: optimizer: it is a str"),
    ],
)
def test_wrong_arguments_are_refused(model: Any, optimizer: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simgpu.record_step(model, optimizer)


def test_a_parameter_of_another_module_is_refused() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 4)
    with pytest.raises(InputError, match="belongs neither to the model"), simgpu.record_step(model, gpu="a100"):
        other(model(torch.ones(1, 4)))


def test_an_empty_step_is_refused() -> None:
    with pytest.raises(InputError, match="nothing ran on its device"), simgpu.record_step(convolutions(), gpu="a100"):
        pass


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


def test_the_report_knows_the_gpu_and_names_what_did_not_fit() -> None:
    model = nn.Sequential(nn.Linear(64, 2**20, bias=False), nn.ReLU())
    gpu = replace(simgpu.load_node("a100").gpu, memory=2**30, context_memory=None)
    with simgpu.record_step(model, gpu=gpu) as recording:
        model(torch.randn(256, 64)).sum().backward()
    report = simgpu.explain_allocations(recording.requests)
    facts = dict(report.facts())
    assert facts["verdict"].startswith("out of memory in 1 GiB: 1 GiB requested")
    assert facts["requested by"].startswith("0 activation, mm, recorder/test_step.py:")
    assert facts["fits with"] == "none of the settings that were tried"


@pytest.mark.parametrize("capacity", ["8 GiB", 0, -1])
def test_a_capacity_that_is_no_number_of_bytes_is_refused(capacity: Any) -> None:
    model = nn.Linear(2, 2)
    with simgpu.record_step(model, gpu="a100") as recording:
        model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(InputError, match="is not a number of bytes"):
        simgpu.explain_allocations(recording.requests, capacity=capacity)


def test_a_recording_is_no_trace_of_allocations() -> None:
    model = nn.Linear(2, 2)
    with simgpu.record_step(model, gpu="a100") as recording:
        model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(InputError, match="or the requests of a record_step"):
        simgpu.explain_allocations(recording)  # type: ignore[arg-type]


class Ignoring(nn.Module):
    """Ignores its mask."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_an_input_that_no_kernel_uses_is_left_out() -> None:
    model = Ignoring()
    optimizer = torch.optim.SGD(model.parameters())
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        for _ in range(2):
            model(torch.randn(2, 4).to("cuda"), mask=torch.ones(2, 4).to("cuda")).sum().backward()
            optimizer.step()
    trace = recording.trace
    assert check_trace(trace) == []
    assert all(set(call.inputs) <= set(trace.block_by_id) for call in trace.modules)


@pytest.mark.parametrize("gpu", ["a100", None])
def test_a_recording_inside_a_step_is_refused(gpu: str | None) -> None:
    model = convolutions()
    outer, inner = (simgpu.record_step(model, gpu=gpu) for _ in range(2))
    with pytest.raises(InputError, match=r"another iteration is being recorded|inside another context"), outer, inner:
        pass
    for form in ({"gpu": "a100"}, {}):
        with (
            pytest.raises(InputError, match=r"another iteration is being recorded"),
            simgpu.record_step(model, gpu=gpu),
        ):
            simgpu.record("resnet20", batch=2, **form)
    optimizer = adam(model)
    with simgpu.record_step(model, optimizer, gpu=gpu) as recording:
        step(model, optimizer)
    assert recording.trace.kernels


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


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.ASGD])
def test_counts_of_steps_that_exist_are_known(kind: Any) -> None:
    model = convolutions()
    optimizer = kind(model.parameters())
    step(model, optimizer)
    with simgpu.record_step(model, optimizer, gpu="a100"):
        step(model, optimizer)


def test_hooks_of_parameters_and_optimizers_that_search_are_refused() -> None:
    model = convolutions()
    with (
        pytest.raises(InputError, match="decides by values"),
        simgpu.record_step(model, torch.optim.LBFGS(model.parameters()), gpu="a100"),
    ):
        pass
    model[0].weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(InputError, match="has a hook"), simgpu.record_step(model, gpu="a100"):
        pass


def test_gradients_that_are_part_of_a_graph_are_not_summed_in_place() -> None:
    def sums(create_graph: bool) -> int:
        model = nn.Linear(64, 64, bias=False)
        x = torch.randn(8, 64, requires_grad=False)
        with simgpu.record_step(model, gpu="a100") as recording:
            hidden = model(x)
            torch.autograd.grad((hidden.sin() + hidden.cos()).sum(), model.weight, create_graph=create_graph)
        return sum(kernel.op == "aten::add_" for kernel in recording.trace.kernels)

    assert (sums(create_graph=False), sums(create_graph=True)) == (1, 0)


def test_optimizers_that_step_unequally_often_share_the_last_step() -> None:
    generator, critic = nn.Linear(8, 8), nn.Linear(8, 1)
    model = nn.ModuleList([generator, critic])
    slow, fast = adam(generator), adam(critic)
    noise = torch.randn(4, 8)
    with simgpu.record_step(model, [slow, fast], gpu="a100") as recording:
        for _ in range(2):
            for _ in range(3):
                fast.zero_grad()
                critic(generator(noise).detach()).sum().backward()
                fast.step()
            slow.zero_grad()
            critic(generator(noise)).sum().backward()
            slow.step()
    trace = recording.trace
    assert check_trace(trace) == [] and trace.info.batch == 16
    products = [kernel for kernel in trace.kernels if kernel.op == "aten::addmm"]
    assert len(products) == 8 and {kernel.layer for kernel in products} == {"0", "1"}
    assert {kernel.phase for kernel in products} == {Phase.FORWARD}


@pytest.mark.parametrize(("momentum", "count"), [(0.0, 0), (0.9, 1)])
def test_only_an_optimizer_with_state_needs_two_steps(momentum: float, count: int) -> None:
    model = convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    with simgpu.record_step(model, optimizer, gpu="a100") as recording:
        step(model, optimizer)
    assert len(recording.requests.notes) == count


def test_sums_in_a_recomputed_part_are_in_place() -> None:
    """Reentrant checkpointing runs autograd inside autograd."""
    from torch.utils.checkpoint import checkpoint

    class Part(nn.Module):
        def __init__(self, recomputes: bool) -> None:
            super().__init__()
            self.fc, self.recomputes = nn.Linear(64, 64), recomputes

        def branches(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.fc(x).relu()
            return hidden.sin() + hidden.cos()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.sigmoid().requires_grad_()
            return checkpoint(self.branches, x, use_reentrant=True) if self.recomputes else self.branches(x)

    results = []
    for recomputes in (False, True):
        part = Part(recomputes)
        with simgpu.record_step(part, gpu="a100") as recording:
            part(torch.randn(8, 64)).sum().backward()
        results.append(sum(kernel.op == "aten::add_" for kernel in recording.trace.kernels))
    assert results == [1, 1]


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


def test_change_of_memory_format_inside_is_refused() -> None:
    model = nn.Conv2d(3, 8, 3)
    with pytest.raises(InputError, match="changes its memory format"), simgpu.record_step(model, gpu="a100"):
        model.to(memory_format=torch.channels_last)


def test_masks_of_minus_infinity_are_not_taken_to_be_finite() -> None:
    model, given = nn.Linear(64, 4), torch.full((8, 8), float("-inf"))
    answers: list[bool] = []
    with simgpu.record_step(model, gpu="a100"):
        mask = torch.full((8, 8), float("-inf")).triu(1)
        answers += [bool((mask == float("-inf")).any()), bool(torch.isinf(mask).any()), bool(torch.isnan(mask).any())]
        model(torch.randn(8, 64)).sum().backward()
    assert answers == [True, True, False]
    with pytest.raises(InputError, match="needs the values"), simgpu.record_step(model, gpu="a100"):
        assert (given == float("-inf")).all()


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


def test_rms_normalization_needs_the_memory_of_one_operator() -> None:
    peaks = []
    for norm in (nn.RMSNorm, nn.LayerNorm):
        model = nn.Sequential(norm(512), nn.Linear(512, 512, bias=False))
        with simgpu.record_step(model, gpu="a100") as recording:
            model(torch.randn(4096, 512, device="cuda")).sum().backward()
        peaks.append(simgpu.explain_allocations(recording.requests).allocated)
    assert peaks[0] == pytest.approx(peaks[1], rel=0.001)


def test_layer_normalization_saves_float32_statistics_as_on_cuda() -> None:
    model = nn.LayerNorm(512, dtype=torch.bfloat16)
    with simgpu.record_step(model, gpu="a100") as recording:
        model(torch.randn(4096, 512, dtype=torch.bfloat16, device="cuda")).sum().backward()
    assert [request.size for request in recording.requests.requests].count(4096 * 4) == 2


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
