"""Recording cases on a device, one after the other: the trace, and the runs under each method."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from simgpu.recorder import record
from simgpu.recorder.optimizers import find_optimizer, make_optimizer
from simgpu.recorder.session import own_random_state
from simgpu.recorder.workload import find_factory, make_workload
from simgpu.trace.model import Trace
from simgpu.validation.devices import Device
from simgpu.validation.harness.cases import CasePlan
from simgpu.validation.harness.conditions import give_back_freed
from simgpu.validation.harness.shortage import shortage
from simgpu.validation.harness.steps import run_method
from simgpu.validation.measured import Case, MeasuredRun, Method


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
            found = self._unless_short(partial(self._run, method, words))
            if isinstance(found, str):
                absent[method] = found
            else:
                runs[method] = found
        if not runs:
            return absent[Method.PLAIN]
        made = self.plan.made(self.seed, self.warmup)
        return Case(self.plan.model, self.plan.batch, trace, runs, absent, made)

    def _unless_short(self, run: Callable[[], Any]) -> Any:
        """What `run` returns, or what memory it was short of; what it held is given back in both cases."""
        told = ""
        try:
            return run()
        except Exception as error:
            told = shortage(error)
            if not told:
                raise
        finally:
            empty(self.device)
        return told

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
