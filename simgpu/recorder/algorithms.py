"""Other ways to run the convolutions: the iteration again under other settings of the backend.

PyTorch does not let a caller name a convolution's algorithm; its settings decide which one the backend takes. So a
choice is named after the setting, and what it costs is measured.
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

#: Switches a setting of the backend on for a while.
Setting = Callable[[], AbstractContextManager[Any]]


def settings(device: torch.device) -> dict[str, Setting]:
    """The settings that change how a device convolves, by name; `default` is what PyTorch does if left alone.

    On CUDA: cuDNN choosing by trying (``benchmark``), held to algorithms that always give the same bits
    (``deterministic``), and PyTorch's own kernels instead of it. On a CPU: PyTorch's own kernels instead of oneDNN.

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
    """Each convolution of the iteration under each of the device's settings.

    recorded: durations of every operator call in each repetition of the recording, which stand for `default`; the
    other settings are timed as often, after an iteration to get used to them and one that looks at workspaces.

    Raises `InputError` naming `name` where an iteration fails under a setting, or runs other operators.
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


class _ScratchPass(TorchDispatchMode, NoWatcher):  # type: ignore[misc]
    """Measures what each convolution of one iteration takes and gives back while it runs."""

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
