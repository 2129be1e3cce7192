"""What `record_step` returns."""

from __future__ import annotations

from simgpu.errors import InputError
from simgpu.trace.model import Trace
from simgpu.trace.requests import MemoryRequests


class StepRecording:
    """What a step did; complete when the context of `record_step` has ended.

    requests: what it requested from the allocator, after the model's weights, buffers and gradients and the optimizer's
    state, which exist when it begins. With several steps in the context: the requests of all.
    """

    def __init__(self) -> None:
        self._requests: MemoryRequests | None = None
        self._trace: Trace | InputError | None = None

    @property
    def requests(self) -> MemoryRequests:
        """The requests, for `simgpu.explain_allocations`."""
        if self._requests is None:
            raise _unfinished()
        return self._requests

    @property
    def trace(self) -> Trace:
        """The step as a trace, for `simgpu.simulate`; with several steps in the context, the last of them.

        Raises `InputError` if no time model is known for the GPU.
        """
        if self._trace is None:
            raise _unfinished()
        if isinstance(self._trace, InputError):
            raise self._trace
        return self._trace

    def finish(self, requests: MemoryRequests, trace: Trace | InputError) -> None:
        """Sets what the step did."""
        self._requests, self._trace = requests, trace


def _unfinished() -> InputError:
    what = "the step has not ended, or has failed"
    return InputError.single("record_step", "recording", what, "use it after the with block")
