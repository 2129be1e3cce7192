"""Runs training iterations under one memory management method: plain, checkpointing, one of two offloads, or a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.recorder.workload import Workload
from simgpu.torch.applying import applied
from simgpu.torch.offload import AsyncOffload
from simgpu.torch.plan import Plan
from simgpu.torch.transfers import Copied, Tally
from simgpu.validation.devices import Device
from simgpu.validation.managed.by_size import BySize
from simgpu.validation.managed.save_on_cpu import save_on_cpu_hooks
from simgpu.validation.measured import Method

#: The settings of each method, named as its counterpart's parameters.
_KNOWN: dict[Method, tuple[str, ...]] = {
    Method.PLAIN: (),
    Method.CHECKPOINT: ("blocks",),
    Method.SAVE_ON_CPU: (),
    Method.ASYNC_OFFLOAD: ("prefetch", "stash", "min_bytes"),
    Method.PLAN: (),
}


class Managed:
    """A workload whose iterations run under one method."""

    def __init__(self, workload: Workload, tally: Tally, around: Callable[[], AbstractContextManager[object]]) -> None:
        self._workload = workload
        self._tally = tally
        self._around = around

    def step(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """Runs one iteration: forward, loss, backward, optimizer step, gradients released. Returns the loss.

        The host waits for the device only where the method requires it.
        """
        with self._around():
            return run_iteration(self._workload, optimizer, NoWatcher())

    def take_copied(self) -> Copied:
        """Returns the bytes copied in each direction since the last call."""
        return self._tally.take()


@contextmanager
def managed(
    method: Method, workload: Workload, device: Device, settings: Mapping[str, Any], plan: Plan | None = None
) -> Iterator[Managed]:
    """Runs a workload on the device under one method inside the context.

    If the device computes deterministically, the weights equal those after plain steps, bit for bit. Under
    `Method.CHECKPOINT`, batch normalization sees its inputs twice, so its running averages move faster; training does
    not use them.

    settings: all parameters of the counterpart: ``blocks`` (module paths) for `Method.CHECKPOINT`; ``prefetch``,
    ``stash`` (blocks) and ``min_bytes`` for `Method.ASYNC_OFFLOAD`; none for the others.
    plan: of `Method.PLAN`, which needs one.
    Raises `InputError` for other settings, for unknown module paths, and for a plan of another model.
    """
    check_settings(method, settings)
    tally = Tally()
    if method is Method.CHECKPOINT:
        with checkpointed(workload.module, settings["blocks"]):
            yield Managed(workload, tally, nullcontext)
    elif method is Method.SAVE_ON_CPU:
        yield Managed(workload, tally, save_on_cpu_hooks(device, tally))
    elif method is Method.ASYNC_OFFLOAD:
        choice = BySize(device.torch_device, settings["min_bytes"])
        prefetch, stash = settings["prefetch"], settings["stash"]
        yield Managed(workload, tally, AsyncOffload(device, tally, choice, prefetch=prefetch, stash=stash).step)
        device.synchronize()
    elif method is Method.PLAN:
        assert plan is not None
        with applied(plan, workload.module, tally, device):
            yield Managed(workload, tally, nullcontext)
            device.synchronize()
    else:
        yield Managed(workload, tally, nullcontext)


def check_settings(method: Method, settings: Mapping[str, Any]) -> None:
    """Raises `InputError` with every invalid setting.

    >>> check_settings(Method.ASYNC_OFFLOAD, {"prefetch": 2, "stash": 2, "min_bytes": 0})
    >>> check_settings(Method.CHECKPOINT, {"block": ["layer1"]})
    Traceback (most recent call last):
    simgpu.errors.InputError: checkpoint: settings: unknown setting 'block'; did you mean 'blocks'? known: blocks
    checkpoint: settings: 'blocks' is missing; give module paths
    """
    known = _KNOWN[method]
    problems = [
        Problem(method, "settings", f"unknown setting {name!r}", did_you_mean(name, known))
        for name in settings
        if name not in known
    ]
    for name in known:
        remedy = "give module paths" if name == "blocks" else "give an integer >= 0"
        if name not in settings:
            problems.append(Problem(method, "settings", f"{name!r} is missing", remedy))
        elif not (_are_paths if name == "blocks" else _is_count)(settings[name]):
            problems.append(Problem(method, name, f"{settings[name]!r} is invalid", remedy))
    if problems:
        raise InputError(problems)


def _are_paths(value: object) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return bool(value) and all(isinstance(path, str) for path in value)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


@contextmanager
def checkpointed(module: nn.Module, blocks: Sequence[str]) -> Iterator[None]:
    """Runs the forward of each named module under ``checkpoint(use_reentrant=False)`` inside the context.

    Other options keep PyTorch's defaults. PyTorch saves the random number generator's state per module, so that dropout
    repeats: about 5 kB of host memory, which counts as device memory on a CPU.

    Raises `InputError` for an unknown path, a repeated path, and a path inside another.
    """
    modules = dict(module.named_modules())
    _check_blocks(blocks, list(modules))
    wrapped = [modules[path] for path in blocks]
    before = [vars(block).get("forward") for block in wrapped]
    try:
        for block in wrapped:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        yield
    finally:
        for block, own_forward in zip(wrapped, before, strict=True):
            if own_forward is not None:
                block.forward = own_forward
            else:
                vars(block).pop("forward", None)


def _check_blocks(blocks: Sequence[str], known: Sequence[str]) -> None:
    paths = [path for path in known if path]
    problems = [
        Problem(Method.CHECKPOINT, "blocks", f"unknown module {path!r}", did_you_mean(path, paths))
        for path in blocks
        if path not in paths
    ]
    for place, path in enumerate(blocks):
        if path in blocks[:place]:
            problems.append(Problem(Method.CHECKPOINT, "blocks", f"{path!r} is listed twice", "remove one"))
        for other in blocks:
            if path.startswith(f"{other}."):
                message = f"{path!r} is inside {other!r}"
                problems.append(Problem(Method.CHECKPOINT, "blocks", message, "name only one of them"))
    if problems:
        raise InputError(problems)
