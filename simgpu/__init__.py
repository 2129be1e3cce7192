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
    from simgpu.explain.smallest_budget import smallest_budget, smallest_budgets
    from simgpu.explain.what_if import what_if
    from simgpu.hardware.nodes import load_node, node_names
    from simgpu.hardware.spec import NodeSpec
    from simgpu.importers.snapshot.load import load_snapshot
    from simgpu.papers.reproduce import reproduce
    from simgpu.papers.reproduction import Reproduction
    from simgpu.policies.registry import policy_names
    from simgpu.recorder import record
    from simgpu.report.writing import write_report
    from simgpu.simulation.config import RunConfig
    from simgpu.simulation.result import Result
    from simgpu.simulation.run import simulate
    from simgpu.timeline.model import Timeline
    from simgpu.trace.folder import load_trace, write_trace
    from simgpu.trace.model import Trace
    from simgpu.workloads.rescale.entry import at_batch


_HOMES = {
    "AllocationReport": "simgpu.explain.allocations",
    "at_batch": "simgpu.workloads.rescale.entry",
    "BuddyProfile": "simgpu.analysis.buddy_profile",
    "Comparison": "simgpu.experiments.compare",
    "Explanation": "simgpu.explain.explanation",
    "InputError": "simgpu.errors",
    "MaxBatch": "simgpu.experiments.largest_batch",
    "NodeSpec": "simgpu.hardware.spec",
    "OutOfMemoryError": "simgpu.errors",
    "Reproduction": "simgpu.papers.reproduction",
    "Result": "simgpu.simulation.result",
    "RunConfig": "simgpu.simulation.config",
    "Scenario": "simgpu.experiments.scenarios.model",
    "Search": "simgpu.experiments.search_result",
    "SimgpuError": "simgpu.errors",
    "Study": "simgpu.experiments.scenarios.study",
    "StudyResult": "simgpu.experiments.study",
    "Sweep": "simgpu.experiments.scenarios.sweep",
    "SweepResult": "simgpu.experiments.sweep.run",
    "Timeline": "simgpu.timeline.model",
    "Trace": "simgpu.trace.model",
    "Training": "simgpu.experiments.training",
    "compare": "simgpu.experiments.compare",
    "explain_allocations": "simgpu.explain.allocations",
    "explain_result": "simgpu.explain.explanation",
    "memory_lower_bound": "simgpu.experiments.bounds",
    "time_lower_bound": "simgpu.experiments.bounds",
    "load_node": "simgpu.hardware.nodes",
    "load_snapshot": "simgpu.importers.snapshot.load",
    "load_scenario": "simgpu.experiments.scenarios.load",
    "load_study": "simgpu.experiments.scenarios.load_study",
    "load_sweep": "simgpu.experiments.scenarios.load_sweep",
    "load_trace": "simgpu.trace.folder",
    "max_batch": "simgpu.experiments.max_batch",
    "node_names": "simgpu.hardware.nodes",
    "policy_names": "simgpu.policies.registry",
    "profile_arrays": "simgpu.analysis.buddy_profile",
    "profile_files": "simgpu.analysis.buddy_profile",
    "profile_snapshots": "simgpu.analysis.buddy_profile",
    "record": "simgpu.recorder",
    "reproduce": "simgpu.papers.reproduce",
    "run_study": "simgpu.experiments.study",
    "run_sweep": "simgpu.experiments.sweep.run",
    "search_placement": "simgpu.experiments.search",
    "simulate": "simgpu.simulation.run",
    "smallest_budget": "simgpu.explain.smallest_budget",
    "smallest_budgets": "simgpu.explain.smallest_budget",
    "train": "simgpu.experiments.training",
    "what_if": "simgpu.explain.what_if",
    "write_report": "simgpu.report.writing",
    "write_trace": "simgpu.trace.folder",
}

__all__ = [
    "AllocationReport",
    "BuddyProfile",
    "Comparison",
    "Explanation",
    "InputError",
    "MaxBatch",
    "NodeSpec",
    "OutOfMemoryError",
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
    "load_node",
    "load_scenario",
    "load_snapshot",
    "load_study",
    "load_sweep",
    "load_trace",
    "max_batch",
    "memory_lower_bound",
    "node_names",
    "policy_names",
    "profile_arrays",
    "profile_files",
    "profile_snapshots",
    "record",
    "reproduce",
    "run_study",
    "run_sweep",
    "search_placement",
    "simulate",
    "smallest_budget",
    "smallest_budgets",
    "time_lower_bound",
    "train",
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
