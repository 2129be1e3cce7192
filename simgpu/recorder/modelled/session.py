"""Models an iteration from start to end: runs it on fake tensors, and models durations for a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from simgpu.errors import InputError, SimgpuError
from simgpu.hardware.spec import GpuSpec
from simgpu.recorder.assemble import assemble
from simgpu.recorder.autocast import Autocasts, compute_format, watched
from simgpu.recorder.environment import tool_name
from simgpu.recorder.in_place_backward import fold_in_place
from simgpu.recorder.inputs import InputSpec
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.recorder.layers import LayerTracker
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.loop.training import TrainingLoop
from simgpu.recorder.loop.watch import watch_loop
from simgpu.recorder.modelled.cuda_autocast import autocast_as_on_gpu
from simgpu.recorder.modelled.fake_tensors import FakeTensors, fake_tensors
from simgpu.recorder.modelled.gpu_forms import gpu_forms, step_as_on_gpu, step_counts
from simgpu.recorder.modelled.hidden import CudaOperators
from simgpu.recorder.modelled.notes import assumed_loss, assumed_values, balanced, modelling_notes, uncounted_memory
from simgpu.recorder.modelled.pricing import WorkPass, all_algorithms, durations, priced_as_set, prices_of
from simgpu.recorder.notes import KernelNote
from simgpu.recorder.optimizers import find_optimizer, make_optimizer
from simgpu.recorder.saved import note_saved
from simgpu.recorder.session import (
    Around,
    main_dtype,
    micro_batch_notes,
    model_name,
    no_garbage_collection,
    output_life,
    own_random_state,
)
from simgpu.recorder.structure import StructurePass
from simgpu.recorder.unsupported import refuse_unsupported
from simgpu.recorder.watching import enter_persistent
from simgpu.recorder.workload import Workload, find_factory, make_workload
from simgpu.trace.model import Origin, Trace, TraceInfo
from simgpu.trace.requests import MemoryRequests
from simgpu.workloads.timemodel.prices import Prices

#: Device of the fake tensors: every build of PyTorch can create fake CPU tensors.
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class ModelledSession:
    """The arguments of `record` for a modelled iteration.

    time_model: returns the `Prices` of a GPU; by default `simgpu.recorder.modelled.pricing.priced_as_set`.
    as_on_gpu: whether operators have the form they have on a GPU (`gpu_forms`), or that on a CPU.
    around: a context for the model.
    """

    factory: str | Callable[..., Any]
    batch: int
    optimizer: str | Callable[..., Any]
    gpu: GpuSpec
    date: str
    progress: Callable[[str], None]
    time_model: Callable[[GpuSpec], Prices] = priced_as_set
    as_on_gpu: bool = True
    hold_output: bool = False
    grad_scaler: bool = False
    inputs: Mapping[str, InputSpec] | None = None
    micro_batches: int = 1
    around: Around | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return model_name(self.factory)

    def run(self) -> Trace:
        """Runs the model on fake tensors and returns the trace."""
        with ExitStack() as stack:
            mode, workload, autocasts = self._prepared(stack)
            prices = self.time_model(self.gpu)  # as the model's own module sets PyTorch
            optimizer = self._optimizer(stack, mode, workload.module)
            self._warm_up(workload, optimizer)
            self.progress(f"tracing {self.name}")
            with no_garbage_collection():
                work = WorkPass(prices)
                structure, ledger = self._structure(workload, optimizer, work)
                kernels, blocks = fold_in_place(structure.kernels, ledger.blocks)
                saves = note_saved(
                    self.name,
                    workload,
                    optimizer,
                    _CPU,
                    structure.signatures,
                    kernels,
                    blocks,
                    self.progress,
                    self._on_host(optimizer),
                )
            dtype, output = main_dtype(workload), output_life(workload)
        compute = compute_format(structure.flops, dtype, autocasts)
        choices = all_algorithms(prices, kernels, work.calls)
        times = durations(prices, kernels, blocks, work.calls)
        info = replace(self._info(dtype, kernels, work), output=output, compute=compute)
        info = replace(
            info,
            notes=" ".join(
                (
                    f"{info.notes}{assumed_values(mode)}{autocasts.notes}",
                    *micro_batch_notes(workload, self.batch),
                    *assumed_loss(workload),
                )
            ),
        )
        return assemble(info, kernels, blocks, [times], algorithms=choices, saves=saves)

    def requests(self, loop: TrainingLoop) -> MemoryRequests:
        """Runs a training loop on fake tensors and returns its requests for memory."""
        tool = f"{tool_name()} (fake tensors) for {self.gpu.name}"
        program = MemoryRequests(self.name, tool, capacity=self.gpu.allocatable)
        with ExitStack() as stack:
            mode, workload, _ = self._prepared(stack)
            self.progress(f"running {loop.iterations} iterations of {self.name} without a device")
            hidden = CudaOperators(self.gpu.architecture, prices_of(self.gpu)[0])
            stack.enter_context(no_garbage_collection())
            stack.enter_context(self._explained())
            program.notes += [*assumed_loss(workload), *uncounted_memory(workload.module, workload.loss)]
            watch_loop(workload, partial(self._optimizer, stack, mode), loop, hidden, self._on_host, program)
            program.notes += balanced(mode)
        return program

    def _prepared(self, stack: ExitStack) -> tuple[FakeTensors, Workload, Autocasts]:
        """Enters the contexts of a run without a device; returns the workload on fake tensors."""
        autocasts = stack.enter_context(self._autocast())
        factory = find_factory(self.factory) if isinstance(self.factory, str) else self.factory
        stack.enter_context(refuse_unsupported(self.name, may_compile=self.around is not None))
        stack.enter_context(own_random_state(_CPU, seed=0))
        mode = stack.enter_context(fake_tensors(self.name))
        stack.enter_context(gpu_forms(self.gpu.architecture) if self.as_on_gpu else nullcontext())
        mode.as_on_gpu = self.as_on_gpu
        samples = self.batch // self.micro_batches
        workload = mode.settle(make_workload(self.name, factory, samples, self.inputs, mode.mixtures.watch))
        if self.around is not None:
            stack.enter_context(self.around(workload.module))
        scaler = torch.amp.GradScaler("cuda" if self.as_on_gpu else "cpu") if self.grad_scaler else None
        workload = workload._replace(hold_output=self.hold_output, scaler=scaler, micro_batches=self.micro_batches)
        return mode, workload, autocasts

    def _optimizer(self, stack: ExitStack, mode: FakeTensors, module: torch.nn.Module) -> torch.optim.Optimizer:
        new = find_optimizer(self.optimizer) if isinstance(self.optimizer, str) else self.optimizer
        optimizer = make_optimizer(new, module)
        stack.enter_context(mode.watching(optimizer))
        if self.as_on_gpu:
            step_as_on_gpu(optimizer)
        return optimizer

    def _autocast(self) -> AbstractContextManager[Autocasts]:
        """Tracks autocast; with `as_on_gpu`, it also chooses formats by CUDA's rules."""
        return autocast_as_on_gpu(self.name) if self.as_on_gpu else watched(self.name, refuses=True)

    def _warm_up(self, workload: Workload, optimizer: torch.optim.Optimizer) -> None:
        """Runs one iteration, so that the optimizer's state exists."""
        with self._explained():
            run_iteration(workload, optimizer, NoWatcher())

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raises `InputError` naming the model if an iteration fails."""
        try:
            yield
        except SimgpuError:
            raise
        except Exception as error:
            what = f"a training iteration raised {type(error).__name__}: {error}"
            remedy = "make sure that loss(module(*inputs), *labels).backward() and an optimizer step work"
            raise InputError.single(self.name, "iteration", what, remedy) from error

    def _structure(
        self, workload: Workload, optimizer: torch.optim.Optimizer, work: WorkPass
    ) -> tuple[StructurePass, Ledger]:
        parameters = dict(workload.module.named_parameters())
        ledger = Ledger(_CPU, host=self._on_host(optimizer))
        with LayerTracker(workload.module) as tracker:
            enter_persistent(ledger, workload, optimizer, tracker)
            structure = StructurePass(ledger, tracker, parameters, work, has_values=False)
            with work, structure:
                run_iteration(workload, optimizer, structure)
        return structure, ledger

    def _on_host(self, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        return step_counts(optimizer) if self.as_on_gpu else []

    def _info(self, dtype: str, kernels: Sequence[KernelNote], work: WorkPass) -> TraceInfo:
        return TraceInfo(
            model=self.name,
            batch=self.batch,
            device=self.gpu.name,
            dtype=dtype,
            origin=Origin.MODELLED,
            tool=f"{tool_name()} (fake tensors), simgpu time model",
            date=self.date,
            notes=modelling_notes(self.gpu, kernels, work.calls, self.as_on_gpu),
        )
