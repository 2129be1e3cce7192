"""Records a step from start to end: on its own device, or on fake tensors."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._guards import active_fake_mode
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec
from simgpu.recorder.allocation_log import AllocationLog, HiddenMemory
from simgpu.recorder.assemble import assemble
from simgpu.recorder.autocast import compute_format, watched
from simgpu.recorder.clocks import CudaClock, HostClock
from simgpu.recorder.compiled_parts import CompiledParts
from simgpu.recorder.environment import device_name, device_notes, tool_name
from simgpu.recorder.in_place_backward import folded, in_place_operands
from simgpu.recorder.layers import LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.loop.watch import moved_tensors
from simgpu.recorder.modelled.cuda_autocast import autocast_as_on_gpu
from simgpu.recorder.modelled.fake_tensors import fake_tensors
from simgpu.recorder.modelled.gpu_forms import gpu_forms, step_as_on_gpu, step_counts
from simgpu.recorder.modelled.hidden import CudaOperators
from simgpu.recorder.modelled.notes import assumed_values, modelling_notes, uncounted_memory
from simgpu.recorder.modelled.pricing import WorkPass, all_algorithms, durations, prices_of
from simgpu.recorder.scratch import CudaScratch, NoScratch, ScratchMeter
from simgpu.recorder.session import no_garbage_collection
from simgpu.recorder.state import state_tensors
from simgpu.recorder.step.fake import LoopOnCpu, RealArguments, Stand, fake_parts
from simgpu.recorder.step.habits import habits_of_scripts
from simgpu.recorder.step.last import LastStep, last_step
from simgpu.recorder.step.recording import StepRecording
from simgpu.recorder.step.watch import StepPass
from simgpu.recorder.timing import MeteredTiming
from simgpu.recorder.unsupported import check_module, refuse_unsupported
from simgpu.torch.patching import Hook
from simgpu.trace.model import BlockKind, Origin, TraceInfo
from simgpu.trace.requests import MemoryRequests

_CPU = torch.device("cpu")


class _Samples(NamedTuple):
    """A call of the model or a part of it: the kernels before it, the part, its samples, and whether with gradients."""

    position: int
    part: nn.Module
    size: int
    trains: bool


class _Observation:
    """One step, or several, of a module and its optimizers on a device, while it runs."""

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        device: torch.device,
        scratch: ScratchMeter,
        hidden: HiddenMemory | None = None,
    ) -> None:
        self.name = _name(module)
        self.module = module
        self.samples: list[_Samples] = []
        self._optimizers = optimizers
        self._had_state = _has_state(optimizers)
        self._log = AllocationLog(hidden)
        self._is_fake = is_fake = hidden is not None
        self._ran_compiled = False
        on_host = step_counts if is_fake or device.type == "cuda" else _nothing_on_host
        host = [count for each in optimizers for count in on_host(each)]
        self.ledger = Ledger(device, host=host, log=self._log)
        self.tracker = LayerTracker(module)
        self.structure = StepPass(self.ledger, self.tracker, module, on_host, scratch, has_values=not is_fake)

    @contextmanager
    def compiled_parts(self) -> Iterator[None]:
        """Runs the compiled parts operator by operator."""

        def ran() -> None:
            self._ran_compiled = True
            self.structure.saves.notes.ran_compiled()

        with CompiledParts(self.module, ran, has_modes=self._is_fake).one_by_one():
            yield

    @contextmanager
    def running(self) -> Iterator[None]:
        """Observes what runs inside the context."""
        with self.tracker:
            parts = self.module.modules()
            counting = [part.register_forward_pre_hook(Hook(self._count), with_kwargs=True) for part in parts]
            try:
                self._keep_persistent()
                with self.structure.watching(self.module, self._optimizers):
                    yield
            finally:
                for handle in counting:
                    handle.remove()
        self.structure.name_inputs()

    def _keep_persistent(self) -> None:
        for tensor, name, kind in moved_tensors(self.module):
            self.ledger.keep(tensor, kind, name, self.tracker.owner(name))
        for name, parameter in self.module.named_parameters():
            if parameter.grad is not None:
                self.ledger.keep(parameter.grad, BlockKind.WEIGHT_GRADIENT, f"{name}.grad", self.tracker.owner(name))
        names = {parameter: name for name, parameter in self.module.named_parameters()}
        for each in self._optimizers:
            for name, key, value in state_tensors(each, names):
                self.ledger.keep(value, BlockKind.OPTIMIZER_STATE, f"{name}.{key}", self.tracker.owner(name))

    def _count(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.tracker.is_outermost:
            return
        trains = torch.is_grad_enabled()
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf.dim():
                self.samples.append(_Samples(len(self.structure.kernels), part, int(leaf.shape[0]), trains))
                return

    def requests(self, tool: str, capacity: int | None = None) -> MemoryRequests:
        """The requests of all that ran. capacity: bytes for the allocator, if known."""
        program = MemoryRequests(self.name, tool, capacity=capacity, notes=list(self._notes()))
        self._log.add_requests(program, self.ledger.blocks, self._in_place())
        return program

    def _notes(self) -> Iterator[str]:
        """What the requests do not show."""
        yield from self.compiled_notes()
        weights = set(self.module.parameters())
        for each in self._optimizers:
            if weights.isdisjoint(parameter for group in each.param_groups for parameter in group["params"]):
                yield f"{type(each).__name__} has no parameter of the model"
        steps = Counter(optimizer for optimizer, _ in self.structure.ends)
        if not self._had_state and _has_state(self._optimizers) and max(steps.values(), default=0) < 2:
            yield "the optimizer's state is allocated in the first step: record two for the peak of later ones"

    def compiled_notes(self) -> Iterator[str]:
        """What compiled parts would do otherwise."""
        if self._ran_compiled:
            yield "compiled parts ran operator by operator: fused, they take less time, and other memory at peaks"

    def _in_place(self) -> dict[int, int]:
        return in_place_operands(self.structure.kernels, self.ledger.blocks)

    def last(self) -> tuple[LastStep, int]:
        """The notes of the last step, and its samples: those of all its micro-batches.

        It begins where the optimizer that stepped last did so before. Samples without gradients count only if there
        are no others. Of a model of several parts, such as two networks that compete, the samples are those of the part
        that got fewest: another sees real and generated ones.
        """
        if not self.structure.kernels:
            what = "nothing ran on its device in the with block"
            raise InputError.single("record_step", self.name, what, "run a step there: model, backward, optimizer")
        ends = self.structure.ends
        same = [position for optimizer, position in ends if optimizer is ends[-1][0]]
        begin = same[-2] if len(same) > 1 else 0
        notes = folded(self.structure.kernels, self.ledger.blocks)
        step = last_step(notes.kernels, notes.blocks, self.structure.saves.result(notes.numbers), begin)
        seen = [each for each in self.samples if each.position >= begin]
        samples: Counter[nn.Module] = Counter()
        for each in [each for each in seen if each.trains] or seen:
            samples[each.part] += each.size
        return step, min(samples.values(), default=0) or 1


def _name(module: nn.Module) -> str:
    """The class of the module, or of the one that ``torch.compile`` has wrapped."""
    return type(getattr(module, "_orig_mod", module)).__name__


def _has_state(optimizers: Sequence[Optimizer]) -> bool:
    return any(True for each in optimizers for _ in state_tensors(each, {}))


def _nothing_on_host(_: Optimizer) -> list[torch.Tensor]:
    return []


@contextmanager
def record_real_step(module: nn.Module, optimizers: Sequence[Optimizer]) -> Iterator[StepRecording]:
    """Records a step that runs; see `record_step`."""
    name = _name(module)
    check_module(name, module, may_compile=True)
    device = next((tensor.device for tensor in module.parameters()), _CPU)
    if device.type not in ("cpu", "cuda"):
        what, remedy = f"its weights are on {device}, which cannot be recorded", "move it to cpu or cuda, or give gpu"
        raise InputError.single("record_step", "model", what, remedy)
    recording = StepRecording()
    is_cuda = device.type == "cuda"
    timing = MeteredTiming(CudaClock() if is_cuda else HostClock(), CudaScratch(device) if is_cuda else NoScratch())
    with ExitStack() as stack:
        stack.enter_context(refuse_unsupported(name, may_compile=True))
        autocasts = stack.enter_context(watched(name, refuses=device.type == "cpu"))
        stack.enter_context(no_garbage_collection())
        step = _Observation(module, optimizers, device, timing)
        with timing, step.compiled_parts(), step.running():
            yield recording
    assert timing.signatures == step.structure.signatures, "an operator has another's duration"
    (kernels, blocks, saves), samples = step.last()
    info = TraceInfo(
        model=name,
        batch=samples,
        device=device_name(device),
        dtype=_dtype(module),
        origin=Origin.RECORDED,
        tool=tool_name(),
        date=datetime.date.today().isoformat(),
        notes=f"{device_notes(device)}A step of a user's own loop. Durations are of one run.{autocasts.notes}"
        + "".join(f" {each.capitalize()}." for each in step.compiled_notes()),
        compute=compute_format(step.structure.flops, _dtype(module), autocasts),
    )
    trace = assemble(info, kernels, blocks, [timing.durations()], saves=saves)
    recording.finish(step.requests(f"{tool_name()} on {device_name(device)}"), trace)


@contextmanager
def record_fake_step(module: nn.Module, optimizers: Sequence[Optimizer], gpu: GpuSpec) -> Iterator[StepRecording]:
    """Records a step that computes nothing, as it would run on a GPU; see `record_step`."""
    name = _name(module)
    check_module(name, module, may_compile=True)
    if active_fake_mode() is not None:
        what = "it runs inside another context without a device"
        raise InputError.single("record_step", "context", what, "end the outer with block first")
    if any(type(each).__name__ == "LBFGS" for each in optimizers):
        what, remedy = "LBFGS decides by values how often it runs the model", "record it on a device, without gpu"
        raise InputError.single("record_step", "optimizer", what, remedy)
    recording = StepRecording()
    prices, missing = prices_of(gpu)
    with ExitStack() as stack:
        stack.enter_context(refuse_unsupported(name, may_compile=True))
        autocasts = stack.enter_context(autocast_as_on_gpu(name))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        mode = stack.enter_context(fake_tensors(name))
        mode.allow_non_fake_inputs = False
        mode.known.can_draw = False
        mode.as_on_gpu = True
        mode.mixtures.watch(module)
        stand = Stand(mode)
        stack.enter_context(gpu_forms(gpu.architecture))
        stack.enter_context(fake_parts(stand, module, optimizers))
        stack.enter_context(habits_of_scripts())
        stack.enter_context(no_garbage_collection())
        for each in optimizers:
            step_as_on_gpu(each)  # what is restored with the parameters
            stack.enter_context(mode.watching(each))
        work = None if prices is None else WorkPass(prices)
        hidden = CudaOperators(gpu.architecture, prices)
        step = _Observation(module, optimizers, _CPU, work or NoScratch(), hidden)
        mode.is_outside_model = lambda: step.tracker.running is None
        if work is not None:
            stack.enter_context(work)
        stand.on_host = step.ledger.moved_to_host
        step.structure.saves.stand = stand.fake
        loop = LoopOnCpu(stand, step.structure.to_device, step.structure.to_host)
        with step.compiled_parts(), step.running(), loop, RealArguments(stand):
            yield recording
        requests = step.requests(f"{tool_name()} (fake tensors) for {gpu.name}", gpu.allocatable)
        requests.notes += uncounted_memory(module)
        if assumed := assumed_values(mode).strip():
            requests.notes.append(assumed)
        dtype = _dtype(module)
    assert work is None or len(work.calls) == len(step.structure.signatures), "an operator has another's duration"
    if prices is None or work is None:
        assert missing is not None
        recording.finish(requests, missing)
        return
    (kernels, blocks, saves), samples = step.last()
    info = TraceInfo(
        model=name,
        batch=samples,
        device=gpu.name,
        dtype=dtype,
        origin=Origin.MODELLED,
        tool=f"{tool_name()} (fake tensors), simgpu time model",
        date=datetime.date.today().isoformat(),
        notes=f"{modelling_notes(gpu, kernels, work.calls)}{assumed_values(mode)}{autocasts.notes}"
        + "".join(f" {each.capitalize()}." for each in step.compiled_notes()),
        compute=compute_format(step.structure.flops, dtype, autocasts),
    )
    times, choices = durations(prices, kernels, blocks, work.calls), all_algorithms(prices, kernels, work.calls)
    recording.finish(requests, assemble(info, kernels, blocks, [times], algorithms=choices, saves=saves))


def _dtype(module: nn.Module) -> str:
    """The data type of most of the weights' bytes."""
    bytes_: Counter[str] = Counter()
    for parameter in module.parameters():
        bytes_[str(parameter.dtype).removeprefix("torch.")] += parameter.nbytes
    return bytes_.most_common(1)[0][0] if bytes_ else "float32"
