"""`record_step`: a step of the user's own loop, as it runs and on fake tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import simgpu
from simgpu.errors import InputError
from simgpu.trace.check import check_trace
from simgpu.trace.model import Phase
from tests.recorder.steps import CLASSES, X, Y, adam, convolutions, phases, sizes, step


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


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.ASGD])
def test_counts_of_steps_that_exist_are_known(kind: Any) -> None:
    model = convolutions()
    optimizer = kind(model.parameters())
    step(model, optimizer)
    with simgpu.record_step(model, optimizer, gpu="a100"):
        step(model, optimizer)


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
