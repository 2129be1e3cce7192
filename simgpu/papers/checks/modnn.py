"""Checks of moDNN's numbers that no study reports (Chen et al., TPDS 2019): memory, gradient accumulation on hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import inf
from statistics import fmean
from typing import Any, Literal

from simgpu.experiments.study_measures import memory_of
from simgpu.graph.bounds import memory_bounds
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.tdfg import Tdfg
from simgpu.hardware.nodes import load_node
from simgpu.papers.checks.results import bars, condition
from simgpu.papers.tasks import loaded, written
from simgpu.policies.common.sub_batches import ALPHA, Counted, select_sub_batch, window_bytes
from simgpu.simulation.run import simulate, task_graph
from simgpu.trace.model import BlockKind, Phase, Trace

GB = 10**9
#: The networks of section 7 and the batch of each.
BATCHES = {"VGG-16": 256, "VGG-19": 256, "VGG-101": 128, "ResNet-34": 256, "ResNet-152": 256, "FCN-32s": 128}
NODE = "k40"
#: Networks whose gradient accumulation on host cores is timed.
_EXCHANGING = ("VGG-16", "ResNet-34")


def traces() -> dict[str, Trace]:
    """The six networks by label, as in the study of figures 9, 13 and 14."""
    return dict(loaded("modnn-14", "{}").traces)


def network(name: str) -> TaskGraph:
    """The task graph of one of the networks on a K40; it can be rescaled to other batches."""
    return task_graph(traces()[name], load_node(NODE))


@lru_cache
def _amounts() -> dict[str, dict[str, int]]:
    """The amounts of memory from `memory_of`, bytes, by network and name."""
    return {name: memory_of(trace) for name, trace in traces().items()}


def fits() -> dict[str, Any]:
    """Whether those of the paper's networks fit 12 GB, or exceed 24 GB, in the ideal case that do so in section 7.1."""
    needed = {name: amounts["all_at_once"] for name, amounts in _amounts().items()}
    detail = ", ".join(f"{name} {size / GB:.3g}" for name, size in needed.items()) + " GB"
    within = {name for name, size in needed.items() if size <= 12 * GB}
    beyond = {name for name, size in needed.items() if size > 24 * GB}
    return {
        "in_12": condition(within == {"ResNet-34"}, detail),
        "beyond_24": condition(beyond == {"VGG-16", "VGG-19", "VGG-101", "ResNet-152"}, detail),
    }


def vgg101() -> dict[str, Any]:
    """Ideal memory of VGG-101 and its lower bound, GB (section 7.1)."""
    amounts = _amounts()["VGG-101"]
    return {"ideal": amounts["all_at_once"] / GB, "bound": amounts["bound"] / GB}


def weights_offloaded(updates: Literal["none", "layer", "all"] = "none", without: str = "") -> dict[str, Any]:
    """Ideal memory over the memory lower bound with weights offloaded too, mean over the networks.

    updates: the weights that one task updates: those of one layer, all, or none (no update tasks are counted). without:
    an omitted network.
    """
    names = [name for name in BATCHES if name != without]
    return {"ratio": fmean(_all_at_once(name) / _where_weights_leave(name, updates) for name in names)}


def _all_at_once(name: str) -> int:
    return _amounts()[name]["all_at_once"]


def _where_weights_leave(name: str, updates: str) -> int:
    bounds = memory_bounds(network(name))
    if updates == "all":
        return bounds.offloaded.bytes
    graph = bounds.graph
    largest = 0
    if updates == "layer":
        updated = {b for k in _optimizer(graph) for b in graph.writes[k]}
        weights = (graph.sizes[b] for b in updated if graph.blocks[b].kind is BlockKind.WEIGHT)
        largest = 2 * max(weights)
    return max(bounds.without_updates.bytes, largest)


def _optimizer(graph: TaskGraph) -> list[int]:
    return [k for k, kernel in enumerate(graph.kernels) if kernel.phase is Phase.OPTIMIZER]


def alone(transfers: Literal["task", "vdnn"] = "task") -> dict[str, Any]:
    """Ideal memory over memory with transfers, for unpartitioned batches and the fastest algorithms (section 7.3).

    transfers: the definition of memory with transfers: that of the largest task, or the peak of a run of vDNN (all,
    fastest).
    """
    if transfers == "task":
        return {"transfers": fmean(amounts["all_at_once"] / amounts["transfers"] for amounts in _amounts().values())}
    from simgpu.experiments.study import cell_of

    changes = {"runs.transfers": {"policy": {"vdnn": {"algorithms": "fastest"}}}, "published": [], "iterations": 1}
    study = loaded("modnn-14", written(changes))
    (run,) = study.members("transfers")
    peaks = {name: cell_of(study, name, run).peak_bytes for name in BATCHES}
    return {"transfers": fmean(_all_at_once(name) / peak for name, peak in peaks.items() if peak)}


def power() -> dict[str, Any]:
    """Whether ResNet-34's average power rises at 5 and 6 GB, and falls below (section 7.4)."""
    from simgpu.experiments.study import cell_of

    study = loaded("modnn-15", "{}")
    powers = {run.label: cell_of(study, "ResNet-34", run).average_power or 0.0 for run in study.runs}
    changes = {label: power / powers["ideal"] - 1 for label, power in powers.items()}
    of_sign = {
        "rises": ({f"moDNN {size} GB": changes[f"moDNN {size} GB"] for size in (5, 6)}, 1),
        "falls": ({label: change for label, change in changes.items() if _gigabytes(label) < 5}, -1),
    }
    return {
        name: condition(
            all(change * sign > 0 for change in chosen.values()),
            ", ".join(f"{label} {change:+.1%}" for label, change in chosen.items()),
        )
        for name, (chosen, sign) in of_sign.items()
    }


def _gigabytes(label: str) -> float:
    return float(label.split()[1]) if label.startswith("moDNN ") else inf


def figures() -> dict[str, Any]:
    """Ideal memory over that of each technique, and the published means (figures 9 and 13)."""
    names = {"bound": "all", "sub_batch": "sub-batches", "transfers": "transfers", "algorithms": "algorithms"}
    groups = {
        network: {label: amounts["all_at_once"] / amounts[name] for name, label in names.items()}
        for network, amounts in _amounts().items()
    }
    groups["mean"] = {label: fmean(of[label] for of in groups.values()) for label in names.values()}
    published = {"mean": {"all": 59.0, "sub-batches": 42.0, "transfers": 4.1}}
    return {"saved": bars("all tensors at once over it", groups, published)}


def resnet34(counted: Counted = "touched") -> dict[str, Any]:
    """The smallest budget in which ResNet-34 runs with its full batch, GB (section 7.4). counted: as in equation 8."""
    graph, gpu = network("ResNet-34"), load_node(NODE).gpu
    need = window_bytes(Tdfg.of(graph, gpu.alignment), ALPHA, counted)
    sizes = [select_sub_batch(graph, gpu, budget, counted=counted).size for budget in (need, need - 1)]
    if sizes[0] != BATCHES["ResNet-34"] or sizes[1] >= sizes[0]:
        raise AssertionError(
            f"sub-batches at {need} B and one byte less are {sizes}, not the full batch and a smaller one"
        )
    return {"budget": need / GB}


def cores() -> dict[str, Any]:
    """Largest ratio over the networks of the accumulation time by one core to that by 20 cores (section 7.5)."""
    return {"times": max(accumulation_ns(name, 1) / accumulation_ns(name, 20) for name in _EXCHANGING)}


def accumulation_ns(name: str, cores: int) -> int:
    """Nanoseconds per iteration in which host cores accumulate gradients and update weights."""
    trace, node = traces()[name], load_node("k40-x4")
    result = simulate(trace, node, "modnn", gpus=4, exchange="host", cores=cores, iterations=1)
    spans = (span for span in result.timeline if span.stream.startswith("host") and not span.kind.is_stall)
    return sum(span.end_ns - span.start_ns for span in spans)


CHECKS: Mapping[str, Callable[..., dict[str, Any]]] = {
    check.__name__: check for check in (alone, cores, figures, fits, power, resnet34, vgg101, weights_offloaded)
}
