"""A step on the CPU, watched operator by operator with the host's clock."""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simgpu.recorder.operators import access, operator_name
from simgpu.validation.measured import MeasuredKind, MeasuredSpan
from simgpu.validation.timelines.spans import copy_span, from_first_start

if TYPE_CHECKING:
    from simgpu.validation.devices import Device


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


#: Wraps a tensor of the host that exists already.
_NEVER = frozenset(("aten::lift_fresh",))
#: Hand out memory, or point a tensor to some, and write none.
_SET_ASIDE = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_")
)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
