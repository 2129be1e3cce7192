"""`managed`: the way into the four methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from simgpu.validation.devices import Device
from simgpu.validation.managed.copied import Copied, Tally
from simgpu.validation.managed.settings import check_settings
from simgpu.validation.measured import Method

if TYPE_CHECKING:
    import torch

    from simgpu.recorder.workload import Workload


class Managed:
    """A workload whose iterations run under one method."""

    def __init__(self, workload: Workload, tally: Tally, around: Callable[[], AbstractContextManager[object]]) -> None:
        self._workload = workload
        self._tally = tally
        self._around = around

    def step(self, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        """One iteration: forward, loss, backward, optimizer step, gradients let go. Returns the loss.

        Nothing waits for the device beyond what the method needs.
        """
        from simgpu.recorder.iteration import NoWatcher, run_iteration

        with self._around():
            return run_iteration(self._workload, optimizer, NoWatcher())

    def take_copied(self) -> Copied:
        """Bytes that were copied to the host and back since this was last asked."""
        return self._tally.take()


@contextmanager
def managed(method: Method, workload: Workload, device: Device, settings: Mapping[str, Any]) -> Iterator[Managed]:
    """A workload that lies on the device, under one method until the context is left.

    Weights after any number of steps are those of plain steps, bit for bit, where the device computes the same values
    from the same values. Under `Method.CHECKPOINT` layers that keep statistics of their inputs (batch normalisation)
    see them twice, so their running averages move faster; in training they do not enter the result.

    settings: in the words of the twin's parameters, all of them: ``blocks`` (paths of modules) for
    `Method.CHECKPOINT`; ``prefetch``, ``stash`` (blocks) and ``min_bytes`` for `Method.ASYNC_OFFLOAD`; none else.
    Raises `InputError` for others, and for a path where no module is.
    """
    check_settings(method, settings)
    tally = Tally()
    if method is Method.CHECKPOINT:
        from simgpu.validation.managed.checkpoint import checkpointed

        with checkpointed(workload.module, settings["blocks"]):
            yield Managed(workload, tally, nullcontext)
    elif method is Method.SAVE_ON_CPU:
        from simgpu.validation.managed.save_on_cpu import save_on_cpu_hooks

        yield Managed(workload, tally, save_on_cpu_hooks(device, tally))
    elif method is Method.ASYNC_OFFLOAD:
        from simgpu.validation.managed.async_offload import AsyncOffload

        yield Managed(workload, tally, AsyncOffload(device, tally, **settings).step)
        device.synchronize()
    else:
        yield Managed(workload, tally, nullcontext)
