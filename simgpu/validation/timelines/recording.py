"""Records a device's kernels and copies in one step: with PyTorch's profiler on CUDA, by interception on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simgpu.errors import InputError
from simgpu.recorder.operators import access, operator_name
from simgpu.validation.devices import Device
from simgpu.validation.devices.cpu import CpuDevice
from simgpu.validation.measured import MeasuredKind, MeasuredSpan, copy_span, from_first_start
from simgpu.validation.timelines.profile import spans_of_profile

#: Launches in the step that tests the profiler.
_LAUNCHES = 64
#: Wraps an existing host tensor; does no work.
_NEVER = frozenset(("aten::lift_fresh",))
#: Operators that allocate memory or assign a storage, and write nothing.
_ALLOCATING = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_")
)


def record_timeline(device: Device, step: Callable[[], object], operators: Collection[str]) -> tuple[MeasuredSpan, ...]:
    """Records the spans of one step on all streams; ns from the first start.

    operators: names of operators in the trace of the same model; a kernel is attributed to one of them if possible.

    On a CUDA device the step runs twice and the second is recorded; on a CPU it runs once. Raises `InputError` if a
    CUDA device ran no kernel.
    """
    if isinstance(device, CpuDevice):
        return dispatched_step(device, step, operators)
    return profiled_step(device, step, operators)


def warm_up_profiler(device: Device) -> None:
    """Profiles a GPU once, before any timing; does nothing on a CPU.

    PyTorch's profiler loads CUPTI, which stays in the process and slows down launches, unless the environment variable
    ``TEARDOWN_CUPTI`` is 1. Without the warm-up, steps timed before the first timeline would be faster than later ones.
    Raises `InputError` early if the profiler sees no kernel of the GPU.
    """
    if device.kind != "cuda":
        return
    tensor = device.empty(4)

    def step() -> None:
        for _ in range(_LAUNCHES):
            tensor.add_(1)

    try:
        profiled_step(device, step, ())
    except InputError as error:
        message = f"PyTorch's profiler saw no kernel on this device: {error.problems[0].what}"
        remedy = "stop other GPU profilers (nsys, ncu, dcgmi), and check that PyTorch finds CUPTI"
        raise InputError.single(device.name, "kernel timeline", message, remedy) from None


def profiled_step(device: Device, step: Callable[[], object], operators: Collection[str]) -> tuple[MeasuredSpan, ...]:
    """Records the kernels and copies of a step; runs it twice, since starting the profiler distorts the first run."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        write_profile(device, step, file, (ProfilerActivity.CPU, ProfilerActivity.CUDA))
        return spans_of_profile(file, operators)


def write_profile(device: Device, step: Callable[[], object], file: Path, activities: Collection[Any]) -> None:
    """Writes a profile of the second of two steps; each ends when the device is idle."""
    device.synchronize()
    with profile(
        activities=list(activities),
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
    ) as profiler:
        for _ in range(2):
            step()
            device.synchronize()
            profiler.step()


def dispatched_step(
    device: CpuDevice, step: Callable[[], object], operators: Collection[str]
) -> tuple[MeasuredSpan, ...]:
    """Records the operators and copies of a step on a CPU; the calling thread is the compute stream.

    operators: see `record_timeline`.
    """
    device.synchronize()
    interceptor = _Interceptor(device, frozenset(operators))
    with device.watch_copies() as copied:
        with interceptor:
            step()
        device.synchronize()
    copies = [copy_span(copy.kind, "copy", copy.start_ns, copy.end_ns, copy.bytes) for copy in copied]
    return from_first_start([*interceptor.spans, *copies])


class _Interceptor(TorchDispatchMode):
    """Records the times of operators that do work on the device.

    As in a recorder, these are the operators that access memory and do not only create a view. Operators that only
    allocate count if the trace has them as kernels. Operators on host memory are copies, which the device reports.
    """

    def __init__(self, device: Device, operators: frozenset[str]) -> None:
        super().__init__()
        self.spans: list[MeasuredSpan] = []
        self._device, self._operators = device, operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        start = perf_counter_ns()
        returned = func(*args, **keywords)
        end = perf_counter_ns()
        if self._is_kernel(func, args, keywords, returned):
            op = operator_name(func)
            self.spans.append(MeasuredSpan("compute", MeasuredKind.KERNEL, str(func), op, len(self.spans), start, end))
        return returned

    def _is_kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> bool:
        name = operator_name(func)
        if name in _NEVER or (name in _ALLOCATING and name not in self._operators):
            return False
        tensors = [leaf for leaf in tree_leaves((args, kwargs, returned)) if isinstance(leaf, torch.Tensor)]
        if any(self._device.is_host(tensor) for tensor in tensors):
            return False
        accessed = access(func, args, kwargs, returned)
        if accessed.overwritten or accessed.changed or not accessed.results:
            return bool(accessed.overwritten or accessed.changed or accessed.read)
        read_storages = {_storage(tensor) for tensor in accessed.read}
        return any(_storage(tensor) not in read_storages for _, tensor in accessed.results)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
