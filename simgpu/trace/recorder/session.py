"""A recording from start to end: training if asked for, warm-up, one pass for structure, several for time.

Lives here: the order of the passes and what is known before them. Does not live here: the passes themselves.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from simgpu.errors import InputError
from simgpu.trace.model import Origin, Trace, TraceInfo
from simgpu.trace.recorder.algorithms import measure_algorithms
from simgpu.trace.recorder.assemble import assemble
from simgpu.trace.recorder.environment import device_name, find_device, remarks, tool_name
from simgpu.trace.recorder.gradient_sums import fold_sums
from simgpu.trace.recorder.iteration import NoWatcher, run_iteration
from simgpu.trace.recorder.layers import LayerTracker
from simgpu.trace.recorder.ledger import Ledger
from simgpu.trace.recorder.maps import Maps, Measure, kept_in
from simgpu.trace.recorder.optimizers import find_optimizer, make_optimizer
from simgpu.trace.recorder.persistent import enter_persistent
from simgpu.trace.recorder.scratch import CudaScratch, NoScratch, Scratch, framework_peak
from simgpu.trace.recorder.structure import StructurePass
from simgpu.trace.recorder.timing import expect_same, time_iteration
from simgpu.trace.recorder.training import Training, train
from simgpu.trace.recorder.workload import Workload, find_factory, make_workload


@dataclass(frozen=True)
class Session:
    """What `record` was asked for, checked as far as that needs no PyTorch."""

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
    say: Callable[[str], None]
    measure: Measure | None = None
    save_maps: Path | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return model_name(self.factory)

    def run(self) -> Trace:
        """Make the recording."""
        device = find_device(self.device)
        new_optimizer = find_optimizer(self.optimizer) if isinstance(self.optimizer, str) else self.optimizer
        factory = find_factory(self.factory) if isinstance(self.factory, str) else self.factory
        with kept_in(self.save_maps) as folder, _current(device), own_random_state(device, self.seed):
            workload = make_workload(self.name, factory, self.batch).to(device)
            optimizer = make_optimizer(new_optimizer, workload.module)
            training = self._train(workload, optimizer, device) if self.epochs else None
            self.say(f"recording {self.name}")
            self._warm_up(workload, optimizer)
            with no_garbage_collection():
                peak = framework_peak(device, lambda: run_iteration(workload, optimizer, NoWatcher()))
                maps = Maps(None if training else self.measure, folder)
                structure, ledger = _structure(workload, optimizer, device, maps)
                calls = structure.signatures
                if training:
                    expect_same(self.name, training.forward, calls[: len(training.forward)])
                durations = [
                    time_iteration(self.name, workload, optimizer, device, calls) for _ in range(self.repetitions)
                ]
                choices = (
                    measure_algorithms(self.name, workload, optimizer, device, calls, durations)
                    if self.algorithms
                    else []
                )
            kernels, blocks = fold_sums(structure.kernels, ledger.blocks)
            info = self._info(device, workload, optimizer, training, peak)
            trace = assemble(info, kernels, blocks, durations, training.values if training else (), choices)
            maps.name_files(blocks, trace.blocks)
        return trace

    def _train(self, workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device) -> Training:
        return train(self.name, workload, optimizer, device, self.epochs, self.say, Maps(self.measure))

    def _warm_up(self, workload: Workload, optimizer: torch.optim.Optimizer) -> None:
        try:
            for _ in range(self.warmup):
                run_iteration(workload, optimizer, NoWatcher())
        except Exception as error:
            what = f"a training iteration raised {type(error).__name__}: {error}"
            remedy = "the iteration is loss(module(*inputs), *labels).backward() and an optimizer step"
            raise InputError.single(self.name, "iteration", what, remedy) from error

    def _info(
        self,
        device: torch.device,
        workload: Workload,
        optimizer: torch.optim.Optimizer,
        training: Training | None,
        peak: int | None,
    ) -> TraceInfo:
        steps = self.warmup + (training.steps if training else 0) + (peak is not None)
        notes = (
            f"{remarks(device)}Ran on {workload.data}, with weights {steps} steps of {type(optimizer).__name__} "
            f"after the factory made them (seed {self.seed}). "
            f"Durations are the median of {self.repetitions} iterations."
        )
        if training:
            notes = f"{notes} {training.told()}"
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
        )


def model_name(factory: str | Callable[..., Any]) -> str:
    """The factory's name, as given or as it calls itself."""
    return factory if isinstance(factory, str) else getattr(factory, "__qualname__", type(factory).__qualname__)


def main_dtype(workload: Workload) -> str:
    """The element type that most of the weights' bytes have; the first input's where there are no weights."""
    bytes_: dict[torch.dtype, int] = {workload.inputs[0].dtype: 0}
    for parameter in workload.module.parameters():
        bytes_[parameter.dtype] = bytes_.get(parameter.dtype, 0) + parameter.nbytes
    return str(max(bytes_, key=lambda dtype: bytes_[dtype])).removeprefix("torch.")


def _structure(
    workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device, maps: Maps
) -> tuple[StructurePass, Ledger]:
    parameters = dict(workload.module.named_parameters())
    ledger = Ledger(device)
    with LayerTracker(workload.module) as tracker:
        enter_persistent(ledger, workload, optimizer, tracker)
        scratch: Scratch = CudaScratch(device) if device.type == "cuda" else NoScratch()
        structure = StructurePass(ledger, tracker, parameters, scratch, maps=maps)
        with structure:
            run_iteration(workload, optimizer, structure)
    return structure, ledger


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Events are recorded on the current device, so the recorded one must be it."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def own_random_state(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch, and put its random state back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """So that what is freed, and when, does not depend on when the collector happens to run."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
