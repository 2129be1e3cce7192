"""Measures alternative convolution algorithms by running the iteration under other backend settings.

PyTorch does not let a caller select a convolution's algorithm; the backend selects it by its settings. So each
algorithm is named after the setting, and its time and workspace are measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from statistics import median_low
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from simgpu.errors import InputError, SimgpuError
from simgpu.recorder.iteration import NoWatcher, run_iteration
from simgpu.recorder.notes import AlgorithmNote
from simgpu.recorder.operators import operator_name
from simgpu.recorder.scratch import CudaScratch, ProfiledScratch, ScratchMeter
from simgpu.recorder.timing import Signature, expect_same, signature, time_iteration
from simgpu.recorder.workload import Workload

_CONVOLUTIONS = frozenset(("aten::convolution", "aten::convolution_backward"))

#: Returns a context in which a backend setting applies.
Setting = Callable[[], AbstractContextManager[Any]]


def settings(device: torch.device) -> dict[str, Setting]:
    """Returns the settings that affect the convolutions of a device, by name; `default` changes nothing.

    On CUDA: cuDNN's autotuning (``benchmark``), only bitwise reproducible cuDNN algorithms (``deterministic``), and
    PyTorch's own kernels instead of cuDNN. On a CPU: PyTorch's own kernels instead of oneDNN.

    >>> list(settings(torch.device("cpu")))
    ['default', 'without-onednn']
    """
    if device.type != "cuda":
        return {"default": nullcontext, "without-onednn": partial(_set, torch.backends.mkldnn, enabled=False)}
    cudnn = torch.backends.cudnn
    return {
        "default": nullcontext,
        "benchmark": partial(_set, cudnn, benchmark=True),
        "deterministic": partial(_set, cudnn, deterministic=True),
        "without-cudnn": partial(_set, cudnn, enabled=False),
    }


@contextmanager
def _set(backend: Any, **values: bool) -> Iterator[None]:
    saved = {name: getattr(backend, name) for name in values}
    try:
        for name, value in values.items():
            setattr(backend, name, value)
        yield
    finally:
        for name, value in saved.items():
            setattr(backend, name, value)


def measure_algorithms(
    name: str,
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    expected: Sequence[Signature],
    recorded: Sequence[Sequence[int]],
) -> list[AlgorithmNote]:
    """Returns the duration and workspace of each convolution of the iteration under each setting of the device.

    recorded: durations of every operator call per repetition of the recording, used for `default`. The other settings
    are timed with as many repetitions, after one warm-up iteration and one that measures workspaces.

    Raises `InputError` naming `name` if an iteration fails under a setting, or runs other operators.
    """
    notes = []
    for setting, switch in settings(device).items():
        try:
            with switch():
                run_iteration(workload, optimizer, NoWatcher())
                scratch = _ScratchPass(CudaScratch(device) if device.type == "cuda" else ProfiledScratch())
                with scratch:
                    run_iteration(workload, optimizer, scratch)
                expect_same(name, expected, scratch.signatures)
                times = recorded
                if setting != "default":
                    times = [time_iteration(name, workload, optimizer, device, expected) for _ in recorded]
        except SimgpuError:
            raise
        except Exception as error:
            what = f"an iteration under the setting {setting!r} raised {type(error).__name__}: {error}"
            raise InputError.single(name, "algorithms", what, "record without --algorithms") from error
        for call, size in scratch.bytes.items():
            notes.append(AlgorithmNote(call, setting, median_low([one[call] for one in times]), size))
    return sorted(notes, key=lambda note: note.call)


class _ScratchPass(TorchDispatchMode, NoWatcher):
    """Measures the workspace of each convolution of one iteration."""

    def __init__(self, scratch: ScratchMeter) -> None:
        super().__init__()
        self.signatures: list[Signature] = []
        self.bytes: dict[int, int] = {}
        self._scratch = scratch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if operator_name(func) in _CONVOLUTIONS:
            self._scratch.start()
            returned = func(*args, **named)
            self.bytes[len(self.signatures)] = self._scratch.used()
        else:
            returned = func(*args, **named)
        self.signatures.append(signature(func, returned))
        return returned
