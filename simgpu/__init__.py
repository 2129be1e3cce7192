"""Replay a recorded training iteration on a described GPU node under a memory policy.

    import simgpu

    trace = simgpu.load_trace("vgg11-cifar-cpu")
    node = simgpu.load_node("v100", {"gpu.memory": "8 GiB"})
    result = simgpu.simulate(trace, node, "vdnn", parameters={"mode": "conv"})
    result.timeline.frame()
    simgpu.compare(trace, node, ["ideal", "none", "vdnn"])
    simgpu.compare(simgpu.load_scenario("quickstart"))

Importing the package is cheap: every name below loads its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from simgpu.version import __version__

if TYPE_CHECKING:
    from simgpu.analysis.buddy_profile import BuddyProfile, profile_arrays, profile_files, profile_snapshots
    from simgpu.errors import InputError, OutOfMemoryError, SimgpuError
    from simgpu.experiments.bounds import memory_lower_bound, time_lower_bound
    from simgpu.experiments.compare import Comparison, compare
    from simgpu.experiments.fit.entry import fit
    from simgpu.experiments.fit.gpu_table import GpuTable, fit_gpus
    from simgpu.experiments.fit.result import Fit
    from simgpu.experiments.largest_batch import MaxBatch
    from simgpu.experiments.max_batch import max_batch
    from simgpu.experiments.scenarios.load import load_scenario
    from simgpu.experiments.scenarios.load_study import load_study
    from simgpu.experiments.scenarios.load_sweep import load_sweep
    from simgpu.experiments.scenarios.model import Scenario
    from simgpu.experiments.scenarios.study import Study
    from simgpu.experiments.scenarios.sweep import Sweep
    from simgpu.experiments.search import search_placement
    from simgpu.experiments.search_result import Search
    from simgpu.experiments.study import StudyResult, run_study
    from simgpu.experiments.sweep.run import SweepResult, run_sweep
    from simgpu.experiments.training import Training, train
    from simgpu.explain.allocations import AllocationReport, explain_allocations
    from simgpu.explain.explanation import Explanation, explain_result
    from simgpu.explain.remedies import what_helps
    from simgpu.explain.smallest_budget import smallest_budget, smallest_budgets
    from simgpu.explain.what_if import what_if
    from simgpu.hardware.nodes import load_node, node_names
    from simgpu.hardware.spec import NodeSpec
    from simgpu.importers.snapshot.load import load_snapshot
    from simgpu.papers.reproduce import reproduce
    from simgpu.papers.reproduction import Reproduction
    from simgpu.plans.compiled.recording import record_compiled
    from simgpu.plans.entry import plan
    from simgpu.policies.registry import policy_names
    from simgpu.recorder import record
    from simgpu.recorder.requests import record_requests
    from simgpu.recorder.step.entry import record_step
    from simgpu.report.writing import write_report
    from simgpu.simulation.config import RunConfig
    from simgpu.simulation.result import Result
    from simgpu.simulation.run import simulate
    from simgpu.timeline.model import Timeline
    from simgpu.torch.plan import Plan, read_plan
    from simgpu.trace.folder import load_trace, write_trace
    from simgpu.trace.model import Trace
    from simgpu.workloads.rescale.entry import at_batch


#: By module, the names that it is home to.
_NAMES = {
    "simgpu.analysis.buddy_profile": ("BuddyProfile", "profile_arrays", "profile_files", "profile_snapshots"),
    "simgpu.errors": ("InputError", "OutOfMemoryError", "SimgpuError"),
    "simgpu.experiments.bounds": ("memory_lower_bound", "time_lower_bound"),
    "simgpu.experiments.compare": ("Comparison", "compare"),
    "simgpu.experiments.fit.entry": ("fit",),
    "simgpu.experiments.fit.gpu_table": ("GpuTable", "fit_gpus"),
    "simgpu.experiments.fit.result": ("Fit",),
    "simgpu.experiments.largest_batch": ("MaxBatch",),
    "simgpu.experiments.max_batch": ("max_batch",),
    "simgpu.experiments.scenarios.load": ("load_scenario",),
    "simgpu.experiments.scenarios.load_study": ("load_study",),
    "simgpu.experiments.scenarios.load_sweep": ("load_sweep",),
    "simgpu.experiments.scenarios.model": ("Scenario",),
    "simgpu.experiments.scenarios.study": ("Study",),
    "simgpu.experiments.scenarios.sweep": ("Sweep",),
    "simgpu.experiments.search": ("search_placement",),
    "simgpu.experiments.search_result": ("Search",),
    "simgpu.experiments.study": ("StudyResult", "run_study"),
    "simgpu.experiments.sweep.run": ("SweepResult", "run_sweep"),
    "simgpu.experiments.training": ("Training", "train"),
    "simgpu.explain.allocations": ("AllocationReport", "explain_allocations"),
    "simgpu.explain.explanation": ("Explanation", "explain_result"),
    "simgpu.explain.remedies": ("what_helps",),
    "simgpu.explain.smallest_budget": ("smallest_budget", "smallest_budgets"),
    "simgpu.explain.what_if": ("what_if",),
    "simgpu.hardware.nodes": ("load_node", "node_names"),
    "simgpu.hardware.spec": ("NodeSpec",),
    "simgpu.importers.snapshot.load": ("load_snapshot",),
    "simgpu.papers.reproduce": ("reproduce",),
    "simgpu.papers.reproduction": ("Reproduction",),
    "simgpu.plans.entry": ("plan",),
    "simgpu.policies.registry": ("policy_names",),
    "simgpu.recorder": ("record",),
    "simgpu.recorder.requests": ("record_requests",),
    "simgpu.plans.compiled.recording": ("record_compiled",),
    "simgpu.recorder.step.entry": ("record_step",),
    "simgpu.report.writing": ("write_report",),
    "simgpu.simulation.config": ("RunConfig",),
    "simgpu.simulation.result": ("Result",),
    "simgpu.simulation.run": ("simulate",),
    "simgpu.timeline.model": ("Timeline",),
    "simgpu.torch.plan": ("Plan", "read_plan"),
    "simgpu.trace.folder": ("load_trace", "write_trace"),
    "simgpu.trace.model": ("Trace",),
    "simgpu.workloads.rescale.entry": ("at_batch",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

__all__ = [
    "AllocationReport",
    "BuddyProfile",
    "Comparison",
    "Explanation",
    "Fit",
    "GpuTable",
    "InputError",
    "MaxBatch",
    "NodeSpec",
    "OutOfMemoryError",
    "Plan",
    "Reproduction",
    "Result",
    "RunConfig",
    "Scenario",
    "Search",
    "SimgpuError",
    "Study",
    "StudyResult",
    "Sweep",
    "SweepResult",
    "Timeline",
    "Trace",
    "Training",
    "__version__",
    "at_batch",
    "compare",
    "explain_allocations",
    "explain_result",
    "fit",
    "fit_gpus",
    "load_node",
    "load_scenario",
    "load_snapshot",
    "load_study",
    "load_sweep",
    "load_trace",
    "max_batch",
    "memory_lower_bound",
    "node_names",
    "plan",
    "policy_names",
    "profile_arrays",
    "profile_files",
    "profile_snapshots",
    "read_plan",
    "record",
    "record_compiled",
    "record_requests",
    "record_step",
    "reproduce",
    "run_study",
    "run_sweep",
    "search_placement",
    "simulate",
    "smallest_budget",
    "smallest_budgets",
    "time_lower_bound",
    "train",
    "what_helps",
    "what_if",
    "write_report",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'simgpu' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
