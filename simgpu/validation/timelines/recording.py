"""What a device did in one step: by PyTorch's profiler on CUDA, by intercepted operators on a CPU."""

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
from simgpu.validation.measured import MeasuredKind, MeasuredSpan, copy_span, from_first_start
from simgpu.validation.timelines.profile import spans_of_profile

#: Of the step that tries the profiler.
_LAUNCHES = 64
#: Wraps a tensor of the host that exists already.
_NEVER = frozenset(("aten::lift_fresh",))
#: Hand out memory, or point a tensor to some, and write none.
_SET_ASIDE = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_")
)


def record_timeline(device: Device, step: Callable[[], object], words: Collection[str]) -> tuple[MeasuredSpan, ...]:
    """What the streams of a device did in one step, in nanoseconds from the start of the first span.

    words: operators as the trace of the same model tells them; a kernel on the device is attributed to one of these
    where it can be. On a CUDA device the step runs twice, and the second counts; on a CPU once. Raises `InputError`
    where a CUDA device ran no kernel.
    """
    if device.kind == "cuda":
        return profiled_step(device, step, words)
    return dispatched_step(device, step, words)


def warm_up_profiler(device: Device) -> None:
    """Watch a GPU once, before anything on it is timed; nothing to do on a CPU.

    What PyTorch's profiler loads for a GPU (CUPTI) stays in the process and makes launches slower from then on, unless
    the environment variable ``TEARDOWN_CUPTI`` is 1. So steps that are timed before the first timeline would be faster
    than those after it. Raises `InputError` where the profiler sees no kernel of the GPU, before hours are spent.
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
        what = f"PyTorch's profiler saw no kernel that ran there: {error.problems[0].what}"
        remedy = "end what else watches the GPU (nsys, ncu, dcgmi), and see that PyTorch finds CUPTI"
        raise InputError.single(device.name, "kernel timeline", what, remedy) from None


def profiled_step(device: Device, step: Callable[[], object], words: Collection[str]) -> tuple[MeasuredSpan, ...]:
    """The kernels and copies of a step. It runs twice: getting the profiler going would distort the first time."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "profile.json"
        write_profile(device, step, file, (ProfilerActivity.CPU, ProfilerActivity.CUDA))
        return spans_of_profile(file, words)


def write_profile(device: Device, step: Callable[[], object], file: Path, activities: Collection[Any]) -> None:
    """A profile of the second of two steps. Each ends when all its work on the device has."""
    device.synchronize()
    with profile(
        activities=list(activities),
        schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda watching: watching.export_chrome_trace(str(file)),
    ) as watching:
        for _ in range(2):
            step()
            device.synchronize()
            watching.step()


def dispatched_step(device: Device, step: Callable[[], object], words: Collection[str]) -> tuple[MeasuredSpan, ...]:
    """The operators and copies of a step. The host's thread is the compute stream. words: see `record_timeline`."""
    device.synchronize()
    operators = _Operators(device, frozenset(words))
    with device.watch_copies() as copied:
        with operators:
            step()
        device.synchronize()
    copies = [copy_span(each.kind, "copy", each.start_ns, each.end_ns, each.bytes) for each in copied]
    return from_first_start([*operators.spans, *copies])


class _Operators(TorchDispatchMode):  # type: ignore[misc]
    """Notes when each operator ran that does work on the device.

    As for a recorder, that is one that touches memory and does not only make a view. Operators that only set memory
    aside count where the trace has them as kernels. What has to do with host memory is a copy between host and device,
    which the device tells.
    """

    def __init__(self, device: Device, words: frozenset[str]) -> None:
        super().__init__()
        self.spans: list[MeasuredSpan] = []
        self._device, self._words = device, words

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        start = perf_counter_ns()
        returned = func(*args, **named)
        end = perf_counter_ns()
        if self._is_kernel(func, args, named, returned):
            op = operator_name(func)
            self.spans.append(MeasuredSpan("compute", MeasuredKind.KERNEL, str(func), op, len(self.spans), start, end))
        return returned

    def _is_kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> bool:
        name = operator_name(func)
        if name in _NEVER or (name in _SET_ASIDE and name not in self._words):
            return False
        tensors = [leaf for leaf in tree_leaves((args, kwargs, returned)) if isinstance(leaf, torch.Tensor)]
        if any(self._device.is_host(tensor) for tensor in tensors):
            return False
        done = access(func, args, kwargs, returned)
        if done.overwritten or done.changed or not done.results:
            return bool(done.overwritten or done.changed or done.read)
        known = {_storage(tensor) for tensor in done.read}
        return any(_storage(tensor) not in known for _, tensor in done.results)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
