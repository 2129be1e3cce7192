"""Records one case on a device: its trace, then its steps under each method, timed, measured and profiled."""

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
from simgpu.trace.model import Trace
from simgpu.validation.devices import Device
from simgpu.validation.harness.cases import CasePlan
from simgpu.validation.managed.methods import managed
from simgpu.validation.measured import Case, MeasuredRun, Method
from simgpu.validation.timelines.recording import record_timeline


@dataclass(frozen=True)
class CaseSession:
    """One case on a device."""

    plan: CasePlan
    device: Device
    repetitions: int
    warmup: int
    seed: int
    say: Callable[[str], None]

    def run(self) -> Case | str:
        """The case; or why there is none, where its trace finds too little memory."""
        self.say(f"{self.plan.name}: trace")
        trace = self._unless_short(self._trace)
        if isinstance(trace, str):
            return trace
        words = {kernel.op for kernel in trace.kernels}
        runs, absent = {}, {}
        for method in Method:
            self.say(f"{self.plan.name}: {method}")
            result = self._unless_short(partial(self._run, method, words))
            if isinstance(result, str):
                absent[method] = result
            else:
                runs[method] = result
        if not runs:
            return absent[Method.PLAIN]
        setup = self.plan.setup(self.seed, self.warmup)
        return Case(self.plan.model, self.plan.batch, trace, runs, absent, setup)

    def _unless_short(self, run: Callable[[], Any]) -> Any:
        """What `run` returns, or what memory it was short of; what it held is given back in both cases."""
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
            progress=lambda what: self.say(f"{self.plan.name}: {what}"),
        )
        return replace(trace, name=self.plan.name)

    def _run(self, method: Method, words: set[str]) -> MeasuredRun:
        """On a model of its own, with the same weights and data every time."""
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
                words=words,
            )

    def _factory(self) -> Callable[..., Any]:
        """The plan's factory with its keywords, under the plan's name."""
        factory = partial(find_factory(self.plan.factory), **self.plan.size)
        factory.__qualname__ = self.plan.model  # type: ignore[attr-defined]
        return factory


def empty(device: Device) -> None:
    """Give back what nobody refers to any more, so that no run finds memory cut up by the one before."""
    gc.collect()
    give_back_freed()
    if device.kind == "cuda":
        torch.cuda.empty_cache()
        _empty_pinned()


def _empty_pinned() -> None:
    """PyTorch keeps pinned memory too. Its older releases offer no public way to give it back."""
    public = getattr(getattr(torch, "accelerator", None), "empty_host_cache", None)
    give_back = public or getattr(torch._C, "_host_emptyCache", None)
    if give_back is not None:
        give_back()


#: What PyTorch says on a GPU, on a host, of pinned memory and through the libraries of CUDA.
_SHORTAGE = re.compile(r"out of memory|can't allocate memory|tried to allocate|_ALLOC_FAILED", re.IGNORECASE)


def shortage(error: BaseException) -> str:
    """In one line what memory was missing; empty where the exception, and what it was raised from, is something else.

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
            outcome = next((at for at, sentence in enumerate(sentences) if "allocate" in sentence.lower()), 0)
            return ". ".join(sentences[: outcome + 1]).rstrip(".")
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
    words: Collection[str],
) -> MeasuredRun:
    """What came of a model's iteration under a method.

    warmup: steps before those timed. words: operators of the model's trace, for the timeline. The steps that measure
    memory and that are watched come after those timed, so that they slow none of them down. Garbage collection is off,
    as while the trace is recorded, so that what is held does not depend on when it happens to run.
    """
    with managed(method, workload, device, settings) as run, no_garbage_collection():

        def step() -> None:
            run.step(optimizer)

        for _ in range(warmup):
            step()
        times = tuple(_timed(device, step) for _ in range(repetitions))
        run.take_copied()
        peak = device.peak_of(step)
        d2h_bytes, h2d_bytes = run.take_copied()
        spans = record_timeline(device, step, words)
    return MeasuredRun(
        method, dict(settings), times, peak.peak_bytes, peak.initial_bytes, d2h_bytes, h2d_bytes, tuple(spans)
    )


def _timed(device: Device, step: Callable[[], None]) -> int:
    """Host time of a step, from when the device has nothing to do to when it has nothing to do again."""
    device.synchronize()
    begin = time.perf_counter_ns()
    step()
    device.synchronize()
    return time.perf_counter_ns() - begin


#: Numbers of parameters of glibc's mallopt (malloc.h), and what they are without anybody's doing.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_KEEPING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
_USUAL = {_MMAP_MAX: 65536, _TRIM_THRESHOLD: 128 * 2**10, _TOP_PAD: 128 * 2**10}


@contextmanager
def conditions(device: Device) -> Iterator[dict[str, str]]:
    """Yields the settings that decide how fast the device is, by name, as `MeasuredMachine.settings` has them.

    On a GPU they are PyTorch's, as they are. On a CPU, PyTorch's operators leave one core to the threads that stand for
    copy engines; and memory that is freed stays with the process, as it does in PyTorch's allocator for GPUs: else the
    system would be asked for it again in every step, which takes longer the more memory a method needs. Both are undone
    at the end.
    """
    if device.kind != "cpu":
        yield _of_pytorch()
        return
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, _cores() - 1)))
    keeps = _configure_malloc(_KEEPING)
    try:
        yield {"threads": str(torch.get_num_threads()), "freed memory": "kept" if keeps else "as the system has it"}
    finally:
        torch.set_num_threads(before)
        if keeps:
            _configure_malloc(_USUAL)
            give_back_freed()


def give_back_freed() -> None:
    """What was freed goes back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _of_pytorch() -> dict[str, str]:
    return {
        "products of float32": torch.get_float32_matmul_precision(),
        "TF32 in convolutions": _on(torch.backends.cudnn.allow_tf32),
        "cuDNN benchmark": _on(torch.backends.cudnn.benchmark),
        "PyTorch's profiler": "loaded before anything is timed",
        "deterministic algorithms": _on(torch.are_deterministic_algorithms_enabled()),
    }


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _cores() -> int:
    """Those this program may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _configure_malloc(values: dict[int, int]) -> bool:
    """Whether the C library understood: glibc's does."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(parameter, value) for parameter, value in values.items())
