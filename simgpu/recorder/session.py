"""A recording from start to end: optional training, warm-up, then passes for structure, time and memory snapshots."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from simgpu.errors import InputError, SimgpuError
from simgpu.recorder.algorithms import measure_algorithms
from simgpu.recorder.assemble import assemble
from simgpu.recorder.autocast import compute_format, watched
from simgpu.recorder.contents import Maps, Measure, MeasureEntries, MemorySnapshots, Values, output_folder, spread_over
from simgpu.recorder.environment import device_name, device_notes, find_device, tool_name
from simgpu.recorder.in_place_backward import fold_in_place
from simgpu.recorder.inputs import InputSpec
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.recorder.notes import BlockNote, KernelNote
from simgpu.recorder.optimizers import find_optimizer, make_optimizer
from simgpu.recorder.saved import note_saved
from simgpu.recorder.scratch import framework_peak
from simgpu.recorder.structure import StructurePass
from simgpu.recorder.timing import Signature, expect_same, time_iteration
from simgpu.recorder.training import TrainingLog, train
from simgpu.recorder.unsupported import refuse_unsupported
from simgpu.recorder.watching import watch
from simgpu.recorder.workload import Workload, find_factory, make_workload
from simgpu.trace.model import Origin, OutputLife, Trace, TraceInfo

#: A context around a model while it runs, in which it may be compiled.
Around = Callable[[torch.nn.Module], AbstractContextManager[None]]


@dataclass(frozen=True)
class Session:
    """The arguments of `record`, already checked except where that needs PyTorch. around: a context for the model."""

    factory: str | Callable[..., Any]
    batch: int
    device: str
    repetitions: int
    warmup: int
    seed: int
    optimizer: str | Callable[..., Any]
    epochs: int
    algorithms: bool
    date: str
    progress: Callable[[str], None]
    measure: Measure | None = None
    save_maps: Path | None = None
    measure_entries: MeasureEntries | None = None
    dump_memory: Path | None = None
    snapshots: int = 0
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
        """Runs the recording and returns its trace."""
        device = find_device(self.device)
        new_optimizer = find_optimizer(self.optimizer) if isinstance(self.optimizer, str) else self.optimizer
        with (
            watched(self.name, refuses=device.type == "cpu") as autocasts,
            output_folder(self.save_maps) as folder,
            output_folder(self.dump_memory) as dump,
            _current(device),
            own_random_state(device, self.seed),
            refuse_unsupported(self.name, may_compile=self.around is not None),
            ExitStack() as stack,
        ):
            factory = find_factory(self.factory) if isinstance(self.factory, str) else self.factory
            scaler = torch.amp.GradScaler(device.type) if self.grad_scaler else None
            workload = make_workload(self.name, factory, self.batch // self.micro_batches, self.inputs).to(device)
            workload = workload._replace(hold_output=self.hold_output, scaler=scaler, micro_batches=self.micro_batches)
            if self.around is not None:
                stack.enter_context(self.around(workload.module))
            optimizer = make_optimizer(new_optimizer, workload.module)
            training = self._train(workload, optimizer, device) if self.epochs else None
            self.progress(f"recording {self.name}")
            self._warm_up(workload, optimizer)
            with no_garbage_collection():
                peak = framework_peak(device, lambda: run_iteration(workload, optimizer, NoWatcher()))
                values = Values(
                    Maps(None if training else self.measure, folder), None if training else self.measure_entries
                )
                structure, kernels, blocks = self._structure(workload, optimizer, device, values)
                calls = structure.signatures
                if training:
                    expect_same(self.name, training.calls, calls[: len(training.calls)])
                durations = [
                    time_iteration(self.name, workload, optimizer, device, calls) for _ in range(self.repetitions)
                ]
                choices = (
                    measure_algorithms(self.name, workload, optimizer, device, calls, durations)
                    if self.algorithms
                    else []
                )
                info = self._info(device, workload, optimizer, training, peak)
                compute = compute_format(structure.flops, info.dtype, autocasts)
                info = replace(info, compute=compute, notes=info.notes + autocasts.notes)
                epochs = training.seen_of(blocks) if training else ()
                saves = note_saved(self.name, workload, optimizer, device, calls, kernels, blocks, self.progress)
                trace = assemble(info, kernels, blocks, durations, epochs, choices, saves)
                values.maps.name_files(blocks, trace.blocks)
                if dump is not None:
                    self._dump(workload, optimizer, device, dump, trace, calls)
        return trace

    def _train(self, workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device) -> TrainingLog:
        look_at = Values(Maps(self.measure), self.measure_entries)
        return train(self.name, workload, optimizer, device, self.epochs, self.progress, look_at)

    def _structure(
        self, workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device, values: Values
    ) -> tuple[StructurePass, list[KernelNote], list[BlockNote]]:
        """Returns the pass over an iteration, and the iteration's kernels and blocks."""
        structure, ledger = watch(
            workload, optimizer, device, lambda watcher: run_iteration(workload, optimizer, watcher), values
        )
        return structure, *fold_in_place(structure.kernels, ledger.blocks)

    def _dump(
        self,
        workload: Workload,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        folder: Path,
        trace: Trace,
        calls: Sequence[Signature],
    ) -> None:
        """Runs another iteration with the operators and blocks of the trace, and takes snapshots of its memory."""
        if self.snapshots > len(trace.kernels):
            what = f"{self.snapshots} exceeds the {len(trace.kernels)} kernels of the iteration"
            raise InputError.single("record", "snapshots", what, f"give at most {len(trace.kernels)}")
        self.progress(f"taking {self.snapshots} snapshots of memory")
        times = [kernel.duration_ns for kernel in trace.kernels]
        snapshots = MemorySnapshots(folder, spread_over(times, self.snapshots))
        again, _, blocks = self._structure(workload, optimizer, device, Values(snapshots=snapshots))
        expect_same(self.name, calls, again.signatures)
        snapshots.name_files(blocks, trace.blocks, [kernel.id for kernel in trace.kernels])

    def _warm_up(self, workload: Workload, optimizer: torch.optim.Optimizer) -> None:
        try:
            for _ in range(self.warmup):
                run_iteration(workload, optimizer, NoWatcher())
        except SimgpuError:
            raise
        except Exception as error:
            what = f"a training iteration raised {type(error).__name__}: {error}"
            remedy = "make sure that loss(module(*inputs), *labels).backward() and an optimizer step work"
            raise InputError.single(self.name, "iteration", what, remedy) from error

    def _info(
        self,
        device: torch.device,
        workload: Workload,
        optimizer: torch.optim.Optimizer,
        training: TrainingLog | None,
        peak: int | None,
    ) -> TraceInfo:
        steps = self.warmup + (training.steps if training else 0) + (peak is not None)
        notes = (
            f"{device_notes(device)}Ran on {workload.data}, with weights {steps} steps of {type(optimizer).__name__} "
            f"after the factory made them (seed {self.seed}). "
            f"Durations are the median of {self.repetitions} iterations."
        )
        notes = " ".join((notes, *micro_batch_notes(workload, self.batch)))
        if workload.scaler is not None:
            notes = f"{notes} Gradients are scaled (torch.amp.GradScaler)."
        if training:
            notes = f"{notes} {training.summary()}"
        return TraceInfo(
            model=self.name,
            batch=self.batch,
            device=device_name(device),
            dtype=main_dtype(workload),
            origin=Origin.RECORDED,
            tool=tool_name(),
            date=self.date,
            notes=notes,
            framework_peak_bytes=peak,
            output=output_life(workload),
        )


def model_name(factory: str | Callable[..., Any]) -> str:
    """Returns the factory's name: the given string, or its ``__qualname__``."""
    return factory if isinstance(factory, str) else getattr(factory, "__qualname__", type(factory).__qualname__)


def micro_batch_notes(workload: Workload, batch: int) -> Iterator[str]:
    """Says that the batch is split, if it is."""
    count = workload.micro_batches
    if count > 1:
        yield f"The batch runs in {count} micro-batches of {batch // count}, whose gradients are added up."


def output_life(workload: Workload) -> OutputLife:
    """Returns how long the loop references the module's output."""
    return OutputLife.HELD if workload.hold_output else OutputLife.RELEASED


def main_dtype(workload: Workload) -> str:
    """Returns the data type of most of the weights' bytes; that of the first input if there are no weights."""
    bytes_: dict[torch.dtype, int] = {next(iter(workload.input_tensors().values())).dtype: 0}
    for parameter in workload.module.parameters():
        bytes_[parameter.dtype] = bytes_.get(parameter.dtype, 0) + parameter.nbytes
    return str(max(bytes_, key=lambda dtype: bytes_[dtype])).removeprefix("torch.")


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Makes the recorded device current, because events are recorded on the current device."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def own_random_state(device: torch.device, seed: int) -> Iterator[None]:
    """Seeds torch, and restores its random state on exit."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disables garbage collection, so that block lifetimes do not depend on when the collector runs."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
