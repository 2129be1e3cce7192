"""Records one case on a device: its trace, then its steps under each method (time, memory, timeline)."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from simgpu.recorder import record
from simgpu.recorder.optimizers import find_optimizer, make_optimizer
from simgpu.recorder.session import no_garbage_collection, own_random_state
from simgpu.recorder.workload import Workload, find_factory, make_workload
from simgpu.torch.plan import Plan
from simgpu.trace.model import Trace
from simgpu.validation.devices import Device
from simgpu.validation.harness.cases import CasePlan
from simgpu.validation.harness.halfway import plan_halfway
from simgpu.validation.managed.methods import managed
from simgpu.validation.measured import Case, MeasuredMachine, MeasuredRun, Method
from simgpu.validation.timelines.recording import record_timeline


@dataclass(frozen=True)
class CaseSession:
    """Records one case on a device."""

    plan: CasePlan
    machine: MeasuredMachine
    device: Device
    repetitions: int
    warmup: int
    seed: int
    say: Callable[[str], None]

    def run(self) -> Case | str:
        """Returns the case, or the reason if its trace runs out of memory."""
        self.say(f"{self.plan.name}: trace")
        trace = self._or_shortage(self._trace)
        if isinstance(trace, str):
            return trace
        operators = {kernel.op for kernel in trace.kernels}
        runs: dict[Method, MeasuredRun] = {}
        absent: dict[Method, str] = {}
        for method in Method:
            self.say(f"{self.plan.name}: {method}")
            applied = self._applied(trace, runs) if method is Method.PLAN else None
            if isinstance(applied, str):
                absent[method] = applied
                continue
            result = self._or_shortage(partial(self._run, method, operators, applied))
            if isinstance(result, str):
                absent[method] = result
            else:
                runs[method] = result
        if not runs:
            return absent[Method.PLAIN]
        setup = self.plan.setup(self.seed, self.warmup)
        return Case(self.plan.model, self.plan.batch, trace, runs, absent, setup)

    def _or_shortage(self, run: Callable[[], Any]) -> Any:
        """Returns the result of `run`, or the OOM message; frees its memory in both cases."""
        text = ""
        try:
            return run()
        except Exception as error:
            text = shortage(error)
            if not text:
                raise
        finally:
            empty(self.device)
        return text

    def _trace(self) -> Trace:
        trace = record(
            self._factory(),
            batch=self.plan.batch,
            device=str(self.device.torch_device),
            seed=self.seed,
            optimizer=self.plan.optimizer,
            progress=lambda message: self.say(f"{self.plan.name}: {message}"),
        )
        return replace(trace, name=self.plan.name)

    def _applied(self, trace: Trace, runs: Mapping[Method, MeasuredRun]) -> Plan | str:
        """The plan of the case, or the reason if there is none."""
        if Method.PLAIN not in runs:
            return "nothing can be planned without a plain run"
        return plan_halfway(self.machine, trace, runs[Method.PLAIN])

    def _run(self, method: Method, operators: set[str], plan: Plan | None) -> MeasuredRun:
        """Runs a method on a new model, with the same weights and data every time."""
        with own_random_state(self.device.torch_device, self.seed):
            workload = make_workload(self.plan.model, self._factory(), self.plan.batch).to(self.device.torch_device)
            optimizer = make_optimizer(find_optimizer(self.plan.optimizer), workload.module)
            return run_method(
                method,
                workload,
                optimizer,
                self.device,
                self.plan.settings(method),
                warmup=self.warmup,
                repetitions=self.repetitions,
                operators=operators,
                plan=plan,
            )

    def _factory(self) -> Callable[..., Any]:
        """The plan's factory with its keyword arguments, named after the plan's model."""
        sized: Any = partial(find_factory(self.plan.factory), **self.plan.size)  # it takes any attribute
        sized.__qualname__ = self.plan.model
        factory: Callable[..., Any] = sized
        return factory


def empty(device: Device) -> None:
    """Returns unused memory to the system, so that no run starts with memory fragmented by the previous one."""
    gc.collect()
    trim_freed_memory()
    if device.kind == "cuda":
        torch.cuda.empty_cache()
        _empty_pinned()


def _empty_pinned() -> None:
    """Empties PyTorch's cache of pinned memory; older releases have no public function for it."""
    public = getattr(getattr(torch, "accelerator", None), "empty_host_cache", None)
    empty_cache = public or getattr(torch._C, "_host_emptyCache", None)
    if empty_cache is not None:
        empty_cache()


#: PyTorch's OOM messages: of a GPU, a host, pinned memory and CUDA's libraries.
_SHORTAGE = re.compile(r"out of memory|can't allocate memory|tried to allocate|_ALLOC_FAILED", re.IGNORECASE)


def shortage(error: BaseException) -> str:
    """The OOM message in one line; empty if neither the exception nor one of its causes is an OOM.

    >>> shortage(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 3 GiB\\nsee the notes"))
    'CUDA out of memory. Tried to allocate 2.00 GiB'
    >>> shortage(RuntimeError("the sizes of a and b do not match"))
    ''
    """
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause)
        if isinstance(cause, MemoryError):
            return text or "out of memory on the host"
        if isinstance(cause, RuntimeError) and _SHORTAGE.search(text):
            sentences = text.partition("\n")[0].split(". ")
            last = next((at for at, sentence in enumerate(sentences) if "allocate" in sentence.lower()), 0)
            return ". ".join(sentences[: last + 1]).rstrip(".")
        cause = cause.__cause__
    return ""


def run_method(
    method: Method,
    workload: Workload,
    optimizer: torch.optim.Optimizer,
    device: Device,
    settings: Mapping[str, Any],
    *,
    warmup: int,
    repetitions: int,
    operators: Collection[str],
    plan: Plan | None = None,
) -> MeasuredRun:
    """Measures a model's training step under a method.

    warmup: steps before the timed ones.
    repetitions: timed steps.
    operators: operators of the model's trace, for the timeline.
    plan: of `Method.PLAN`.

    The steps for peak memory and for the timeline come after the timed ones, so that they do not slow them down.
    Garbage collection is off, as during the recording of the trace, so that memory does not depend on when it runs.
    """
    with managed(method, workload, device, settings, plan) as run, no_garbage_collection():

        def step() -> None:
            run.step(optimizer)

        for _ in range(warmup):
            step()
        times = tuple(_timed(device, step) for _ in range(repetitions))
        run.take_copied()
        peak = device.peak_of(step)
        d2h_bytes, h2d_bytes = run.take_copied()
        spans = record_timeline(device, step, operators)
    return MeasuredRun(
        method, dict(settings), times, peak.peak_bytes, peak.initial_bytes, d2h_bytes, h2d_bytes, tuple(spans), plan
    )


def _timed(device: Device, step: Callable[[], None]) -> int:
    """Host time of a step, from an idle device to an idle device, nanoseconds."""
    device.synchronize()
    begin = time.perf_counter_ns()
    step()
    device.synchronize()
    return time.perf_counter_ns() - begin


#: Parameter numbers of glibc's mallopt (malloc.h), values that keep freed memory in the process, and the defaults.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_KEEP_FREED = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
_DEFAULTS = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 128 * 2**10, _TOP_PAD: 128 * 2**10}


@contextmanager
def conditions(device: Device) -> Iterator[dict[str, str]]:
    """Yields the settings that affect the device's speed, by name, for `MeasuredMachine.settings`.

    On a GPU: PyTorch's settings, unchanged. On a CPU: PyTorch's operators use one core less, for the threads that act
    as copy engines; and the process keeps freed memory, like PyTorch's GPU allocator. Otherwise every step would
    request it from the system again, which slows down methods that need more memory. Both are undone at the end.
    """
    if device.kind != "cpu":
        yield _pytorch_settings()
        return
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, _cores() - 1)))
    keeps = _configure_malloc(_KEEP_FREED)
    try:
        yield {
            "threads": str(torch.get_num_threads()),
            "freed memory": "retained by the process" if keeps else "system default",
        }
    finally:
        torch.set_num_threads(before)
        if keeps:
            _configure_malloc(_DEFAULTS)
            trim_freed_memory()


def trim_freed_memory() -> None:
    """Returns freed memory to the system, if the C library supports it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _pytorch_settings() -> dict[str, str]:
    return {
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "TF32 in convolutions": _on(torch.backends.cudnn.allow_tf32),
        "cuDNN benchmark": _on(torch.backends.cudnn.benchmark),
        "profiler": "loaded before timing",
        "deterministic algorithms": _on(torch.are_deterministic_algorithms_enabled()),
    }


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _cores() -> int:
    """Number of cores this process may use; of all cores if the system does not report it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _configure_malloc(values: dict[int, int]) -> bool:
    """Sets mallopt parameters; returns False if the C library has no mallopt (glibc does)."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(parameter, value) for parameter, value in values.items())
