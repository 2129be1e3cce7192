"""A recording from start to end: warm-up, one pass for structure, several for time.

Lives here: the order of the passes and what is known before them. Does not live here: the passes themselves.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import torch

from simgpu.errors import InputError, did_you_mean
from simgpu.trace.model import BlockKind, Origin, Trace, TraceInfo
from simgpu.trace.recorder.assemble import assemble
from simgpu.trace.recorder.clocks import Clock, CudaClock, HostClock
from simgpu.trace.recorder.environment import device_name, find_device, remarks, tool_name
from simgpu.trace.recorder.gradient_sums import fold_sums
from simgpu.trace.recorder.iteration import NoWatcher, run_iteration
from simgpu.trace.recorder.layers import LayerTracker
from simgpu.trace.recorder.ledger import Ledger
from simgpu.trace.recorder.scratch import CudaScratch, NoScratch, Scratch
from simgpu.trace.recorder.structure import StructurePass
from simgpu.trace.recorder.timing import Signature, TimingPass
from simgpu.trace.recorder.workload import Workload, find_factory, make_workload

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": partial(torch.optim.Adam, lr=0.001),
}


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
    date: str

    @property
    def name(self) -> str:
        """The model's name: the factory's, as given or as it calls itself."""
        if isinstance(self.factory, str):
            return self.factory
        return getattr(self.factory, "__qualname__", type(self.factory).__qualname__)

    def run(self) -> Trace:
        """Make the recording."""
        device = find_device(self.device)
        new_optimizer = _find_optimizer(self.optimizer)
        factory = find_factory(self.factory) if isinstance(self.factory, str) else self.factory
        with _current(device), _own_random_state(device, self.seed):
            workload = make_workload(self.name, factory, self.batch).to(device)
            optimizer = new_optimizer(workload.module.parameters())
            self._warm_up(workload, optimizer)
            with _no_garbage_collection():
                structure, ledger = _structure(workload, optimizer, device)
                durations = [
                    _time(workload, optimizer, device, structure.signatures, self.name) for _ in range(self.repetitions)
                ]
        kernels, blocks = fold_sums(structure.kernels, ledger.blocks)
        return assemble(self._info(device, workload, optimizer), kernels, blocks, durations)

    def _warm_up(self, workload: Workload, optimizer: torch.optim.Optimizer) -> None:
        try:
            for _ in range(self.warmup):
                run_iteration(workload, optimizer, NoWatcher())
        except Exception as error:
            what = f"a training iteration raised {type(error).__name__}: {error}"
            remedy = "the iteration is loss(module(*inputs), *labels).backward() and an optimizer step"
            raise InputError.single(self.name, "iteration", what, remedy) from error

    def _info(self, device: torch.device, workload: Workload, optimizer: torch.optim.Optimizer) -> TraceInfo:
        notes = (
            f"{remarks(device)}Ran on {workload.data}, with weights {self.warmup} steps of {type(optimizer).__name__} "
            f"after the factory made them (seed {self.seed}). "
            f"Durations are the median of {self.repetitions} iterations."
        )
        return TraceInfo(
            model=self.name,
            batch=self.batch,
            device=device_name(device),
            dtype=_dtype(workload),
            origin=Origin.RECORDED,
            tool=tool_name(),
            date=self.date,
            notes=notes,
        )


def _find_optimizer(optimizer: str | Callable[..., Any]) -> Callable[..., torch.optim.Optimizer]:
    if not isinstance(optimizer, str):
        return optimizer
    if optimizer not in _OPTIMIZERS:
        what = f"{optimizer!r} is not an optimizer"
        raise InputError.single("record", "optimizer", what, did_you_mean(optimizer, _OPTIMIZERS))
    return _OPTIMIZERS[optimizer]


def _dtype(workload: Workload) -> str:
    """The element type that most of the weights' bytes have; the first input's where there are no weights."""
    bytes_: dict[torch.dtype, int] = {workload.inputs[0].dtype: 0}
    for parameter in workload.module.parameters():
        bytes_[parameter.dtype] = bytes_.get(parameter.dtype, 0) + parameter.nbytes
    return str(max(bytes_, key=lambda dtype: bytes_[dtype])).removeprefix("torch.")


def _structure(
    workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[StructurePass, Ledger]:
    parameters = dict(workload.module.named_parameters())
    ledger = Ledger(device)
    with LayerTracker(workload.module) as tracker:
        _enter_persistent(ledger, workload, optimizer, tracker)
        scratch: Scratch = CudaScratch(device) if device.type == "cuda" else NoScratch()
        structure = StructurePass(ledger, tracker, parameters, scratch)
        with structure:
            run_iteration(workload, optimizer, structure)
    return structure, ledger


def _enter_persistent(
    ledger: Ledger, workload: Workload, optimizer: torch.optim.Optimizer, tracker: LayerTracker
) -> None:
    """Enter what is there before the iteration: the batch, weights, buffers and optimizer state."""
    for kind, tensors in ((BlockKind.INPUT, workload.inputs), (BlockKind.LABEL, workload.labels)):
        for place, tensor in enumerate(tensors):
            ledger.keep(tensor, kind, f"{kind}.{place}" if place else str(kind))
    names = {}
    for name, parameter in workload.module.named_parameters():
        names[parameter] = name
        ledger.keep(parameter, BlockKind.WEIGHT, name, tracker.owner(name))
    for name, buffer in workload.module.named_buffers():
        ledger.keep(buffer, BlockKind.OTHER, name, tracker.owner(name))
    for parameter, state in optimizer.state.items():
        name = names.get(parameter, "state")
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                ledger.keep(value, BlockKind.OPTIMIZER_STATE, f"{name}.{key}", tracker.owner(name))


def _time(
    workload: Workload, optimizer: torch.optim.Optimizer, device: torch.device, expected: list[Signature], name: str
) -> list[int]:
    clock: Clock = CudaClock() if device.type == "cuda" else HostClock()
    timing = TimingPass(clock)
    with timing:
        run_iteration(workload, optimizer, timing)
    for place, (one, other) in enumerate(zip_longest(expected, timing.signatures)):
        if one != other:
            what = f"operator {place} is {_told(one)} in one iteration and {_told(other)} in another"
            remedy = "record a model that runs the same operators on the same shapes every time"
            raise InputError.single(name, "iteration", what, remedy)
    return timing.durations()


def _told(signature: Signature | None) -> str:
    return "missing" if signature is None else f"{signature[0]} of shape {signature[1]}"


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Events are recorded on the current device, so the recorded one must be it."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _own_random_state(device: torch.device, seed: int) -> Iterator[None]:
    """Seed torch, and put its random state back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """So that what is freed, and when, does not depend on when the collector happens to run."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
