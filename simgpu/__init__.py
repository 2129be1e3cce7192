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

if TYPE_CHECKING:
    from simgpu import buddy
    from simgpu.errors import InputError, OutOfMemoryError, SimgpuError
    from simgpu.experiments.compare import Comparison, compare
    from simgpu.experiments.largest_batch import MaxBatch
    from simgpu.experiments.least_memory import least_memory
    from simgpu.experiments.least_time import least_time
    from simgpu.experiments.max_batch import max_batch
    from simgpu.experiments.search import search_placement
    from simgpu.experiments.search_found import Search
    from simgpu.experiments.study import StudyResult, run_study
    from simgpu.experiments.sweep.run import SweepResult, run_sweep
    from simgpu.experiments.training import Training, train
    from simgpu.explain.explanation import Explanation, explain_result
    from simgpu.explain.smallest_budget import smallest_budget
    from simgpu.explain.what_if import what_if
    from simgpu.hardware.nodes import load_node, node_names
    from simgpu.hardware.spec import NodeSpec
    from simgpu.policies.registry import policy_names
    from simgpu.report.writing import write_report
    from simgpu.reproduction.outcome import Reproduction
    from simgpu.reproduction.reproduce import reproduce
    from simgpu.result import Result
    from simgpu.scenario.load import load_scenario, load_trace
    from simgpu.scenario.load_study import load_study
    from simgpu.scenario.load_sweep import load_sweep
    from simgpu.scenario.model import Scenario
    from simgpu.scenario.study import Study
    from simgpu.scenario.sweep import Sweep
    from simgpu.simulation import simulate
    from simgpu.timeline.model import Timeline
    from simgpu.trace.folder import write_trace
    from simgpu.trace.model import Trace
    from simgpu.trace.recorder import record

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "simgpu.experiments.compare",
    "Explanation": "simgpu.explain.explanation",
    "InputError": "simgpu.errors",
    "MaxBatch": "simgpu.experiments.largest_batch",
    "NodeSpec": "simgpu.hardware.spec",
    "OutOfMemoryError": "simgpu.errors",
    "Reproduction": "simgpu.reproduction.outcome",
    "Result": "simgpu.result",
    "Scenario": "simgpu.scenario.model",
    "Search": "simgpu.experiments.search_found",
    "SimgpuError": "simgpu.errors",
    "Study": "simgpu.scenario.study",
    "StudyResult": "simgpu.experiments.study",
    "Sweep": "simgpu.scenario.sweep",
    "SweepResult": "simgpu.experiments.sweep.run",
    "Timeline": "simgpu.timeline.model",
    "Trace": "simgpu.trace.model",
    "Training": "simgpu.experiments.training",
    "compare": "simgpu.experiments.compare",
    "explain_result": "simgpu.explain.explanation",
    "least_memory": "simgpu.experiments.least_memory",
    "least_time": "simgpu.experiments.least_time",
    "load_node": "simgpu.hardware.nodes",
    "load_scenario": "simgpu.scenario.load",
    "load_study": "simgpu.scenario.load_study",
    "load_sweep": "simgpu.scenario.load_sweep",
    "load_trace": "simgpu.scenario.load",
    "max_batch": "simgpu.experiments.max_batch",
    "node_names": "simgpu.hardware.nodes",
    "policy_names": "simgpu.policies.registry",
    "record": "simgpu.trace.recorder",
    "reproduce": "simgpu.reproduction.reproduce",
    "run_study": "simgpu.experiments.study",
    "run_sweep": "simgpu.experiments.sweep.run",
    "search_placement": "simgpu.experiments.search",
    "simulate": "simgpu.simulation",
    "smallest_budget": "simgpu.explain.smallest_budget",
    "train": "simgpu.experiments.training",
    "what_if": "simgpu.explain.what_if",
    "write_report": "simgpu.report.writing",
    "write_trace": "simgpu.trace.folder",
}
#: Modules with names of their own, such as ``simgpu.buddy.profile_arrays``.
_ROOMS = ("buddy",)

__all__ = [
    "Comparison",
    "Explanation",
    "InputError",
    "MaxBatch",
    "NodeSpec",
    "OutOfMemoryError",
    "Reproduction",
    "Result",
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
    "buddy",
    "compare",
    "explain_result",
    "least_memory",
    "least_time",
    "load_node",
    "load_scenario",
    "load_study",
    "load_sweep",
    "load_trace",
    "max_batch",
    "node_names",
    "policy_names",
    "record",
    "reproduce",
    "run_study",
    "run_sweep",
    "search_placement",
    "simulate",
    "smallest_budget",
    "train",
    "what_if",
    "write_report",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"simgpu.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'simgpu' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
