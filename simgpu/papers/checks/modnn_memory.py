"""moDNN's amounts of memory: equations 6 and 7 a second time, what its networks need, and their batches (section 7)."""

from __future__ import annotations

from functools import lru_cache
from statistics import fmean
from typing import Any, Literal

from simgpu.errors import OutOfMemoryError
from simgpu.experiments.study_measures import memory_of
from simgpu.graph.bounds import memory_bounds
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import algorithm_choices
from simgpu.hardware.nodes import load_node
from simgpu.papers.checks.found import bars, rule
from simgpu.papers.checks.modnn_by_hand import Round
from simgpu.papers.checks.modnn_networks import BATCHES, NODE, network, planned, traces
from simgpu.papers.tasks import loaded, written
from simgpu.program.instructions import CopyIn
from simgpu.program.verify import verify
from simgpu.trace.model import BlockKind, Phase

GB = 10**9
_GIVEN = (BlockKind.INPUT, BlockKind.LABEL)


@lru_cache
def _amounts() -> dict[str, dict[str, int]]:
    """By network and name, the amounts of `memory_of`."""
    return {name: memory_of(trace) for name, trace in traces().items()}


def stays(graph: TaskGraph) -> set[int]:
    """Section 3.2: weights, their gradients and all else that a network keeps reside; images and labels do not."""
    return {
        b
        for b, block in enumerate(graph.blocks)
        if block.kind is BlockKind.WEIGHT_GRADIENT or (block.persistent and block.kind not in _GIVEN)
    }


def workspace(graph: TaskGraph, k: int) -> int:
    """Of the algorithm of kernel k with the least."""
    own = sum(graph.sizes[b] for b in graph.writes[k] if graph.blocks[b].kind is BlockKind.WORKSPACE)
    return min([own, *(choice.workspace_bytes for choice in algorithm_choices(graph).get(k, ()))])


def equation_6(graph: TaskGraph, k: int, resident: set[int], alignment: int) -> int:
    """Bytes of what kernel k takes in and puts out beside what resides, and of its least workspace."""
    touched = {*graph.reads[k], *graph.writes[k]} - resident
    data = [graph.sizes[b] for b in touched if graph.blocks[b].kind is not BlockKind.WORKSPACE]
    return sum(-(-size // alignment) * alignment for size in (*data, workspace(graph, k)))


def equation_7(graph: TaskGraph, alignment: int) -> int:
    """The lower bound of an iteration at its own batch, from the rows of its trace alone."""
    resident = stays(graph)
    weights = sum(-(-graph.sizes[b] // alignment) * alignment for b in resident)
    return weights + max(equation_6(graph, k, resident, alignment) for k in range(len(graph.kernels)))


def bound() -> dict[str, Any]:
    """Equations 6 and 7 on the networks at one sample, and plans in no more memory than that."""
    node = load_node(NODE)
    alignment = node.gpu.alignment
    told, same, plans = [], True, True
    for name in BATCHES:
        graph = network(name)
        again = equation_7(graph.at_batch(1), alignment)
        same = same and memory_bounds(graph, alignment).bound.bytes == again
        told.append(f"{name} {again / GB:.4g}")
        if name in ("VGG-16", "ResNet-34", "FCN-32s"):
            case = planned(graph, node, again)
            verify(case.plan.program, graph, capacity=again, alignment=alignment)
            plans = plans and case.plan.sub_batch == 1 and _refused(graph, again - 1)
    return {
        "equation_7": rule(same, "to the byte: " + ", ".join(told) + " GB"),
        "any_budget": rule(plans, "VGG-16, ResNet-34 and FCN-32s are planned in their bound, a byte less is refused"),
    }


def _refused(graph: TaskGraph, budget: int) -> bool:
    try:
        planned(graph, load_node(NODE), budget)
    except OutOfMemoryError:
        return True
    return False


def batches() -> dict[str, Any]:
    """Section 7: which networks in which batches, and that partitioning leaves these as they are."""
    found = {
        study: {name: trace.info.batch for name, trace in loaded(study, "{}").traces.items()}
        for study in ("modnn-10", "modnn-12", "modnn-14", "modnn-17", "modnn-18")
    }
    sizes, images = {}, {}
    for name in BATCHES:
        case = planned(network(name), load_node(NODE), load_node(NODE).gpu.memory)
        sizes[name] = case.plan.sub_batch
        images[name] = sum(part.segment.repeat * _images(part) for part in case.rounds())
    once = all(images[name] == _bytes_of_images(name) for name in BATCHES)
    parts = ", ".join(f"{name} {batch} by {sizes[name]}" for name, batch in BATCHES.items())
    return {
        "of_networks": rule(all(each == BATCHES for each in found.values()), f"of {len(found)} studies"),
        "each_sample_once": rule(once, f"the images that are loaded in 12 GiB: {parts}"),
    }


def _images(part: Round) -> int:
    """Bytes of images that a round loads, those that come in again counted once."""
    loads = {each.block for each in part.codes[1] if isinstance(each, CopyIn)}
    return sum(part.graph.copy_sizes[b] for b in loads if part.graph.blocks[b].kind is BlockKind.INPUT)


def _bytes_of_images(name: str) -> int:
    graph = network(name)
    return sum(graph.sizes[b] for b, block in enumerate(graph.blocks) if block.kind is BlockKind.INPUT)


def fits() -> dict[str, Any]:
    """Section 7.1: which networks fit 12 and 24 GB in the ideal case."""
    needed = {name: amounts["all_at_once"] for name, amounts in _amounts().items()}
    told = ", ".join(f"{name} {size / GB:.3g}" for name, size in needed.items()) + " GB"
    within = {name for name, size in needed.items() if size <= 12 * GB}
    beyond = {name for name, size in needed.items() if size > 24 * GB}
    return {
        "in_12": rule(within == {"ResNet-34"}, told),
        "beyond_24": rule(beyond >= {"VGG-16", "VGG-19", "VGG-101", "ResNet-152"}, told),
    }


def vgg101() -> dict[str, Any]:
    """Section 7.1: GB of VGG-101 in the ideal case and at least."""
    amounts = _amounts()["VGG-101"]
    return {"ideal": amounts["all_at_once"] / GB, "bound": amounts["bound"] / GB}


def weights_offloaded(updates: Literal["none", "layer", "all"] = "none", without: str = "") -> dict[str, Any]:
    """Ideal memory over the bound where weights leave too, mean of the networks.

    updates: which weights a task updates, those of one layer, all at once, or none, as there are no such tasks.
    without: a network that is left out.
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
    """Section 7.3: ideal memory over that where data come and go, of whole batches by the fastest algorithms.

    transfers: what decides it, the most demanding task alone or what a run of vDNN (all, fastest) holds at its peak.
    """
    if transfers == "task":
        return {"transfers": fmean(amounts["all_at_once"] / amounts["transfers"] for amounts in _amounts().values())}
    from simgpu.experiments.study import cell_of

    changes = {"runs.transfers": {"policy": {"vdnn": {"algorithms": "fastest"}}}, "published": [], "iterations": 1}
    study = loaded("modnn-14", written(changes))
    (run,) = study.members("transfers")
    peaks = {name: cell_of(study, name, run).peak_bytes for name in BATCHES}
    return {"transfers": fmean(_all_at_once(name) / peak for name, peak in peaks.items() if peak)}


def figures() -> dict[str, Any]:
    """Figures 9 and 13, as ideal memory over that of each technique, and their published means."""
    names = {"bound": "all", "sub_batch": "sub-batches", "transfers": "transfers", "algorithms": "algorithms"}
    groups = {
        network: {told: amounts["all_at_once"] / amounts[name] for name, told in names.items()}
        for network, amounts in _amounts().items()
    }
    groups["mean"] = {told: fmean(of[told] for of in groups.values()) for told in names.values()}
    published = {"mean": {"all": 59.0, "sub-batches": 42.0, "transfers": 4.1}}
    return {"saved": bars("all tensors at once over it", groups, published)}
