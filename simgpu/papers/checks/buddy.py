"""Checks of Buddy Compression's claims (Choukse et al., ISCA 2020): ratios, footprints and slowdowns of programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np

from simgpu.compression.buddy.histograms import trace_allocations
from simgpu.compression.buddy.sources import read_snapshots
from simgpu.compression.buddy.targets import (
    RAW,
    TARGETS,
    THRESHOLD,
    ProfiledAllocation,
    compression_ratio,
    mean_overflow,
    optimistic_ratio,
)
from simgpu.experiments.scenarios.study import Study
from simgpu.experiments.study import cell_of
from simgpu.experiments.study_measures import StudyCell
from simgpu.papers.checks.results import bars, condition, lines
from simgpu.papers.tasks import loaded, written
from simgpu.simulation.run import simulate
from simgpu.trace.model import BlockKind, Trace
from simgpu.workloads.rescale.entry import at_batch

SOLVERS = ("ep", "cg", "seismic", "lbm", "multigrid")
NETWORKS = ("BigLSTM", "AlexNet", "Inception_V2", "SqueezeNet", "VGG16", "ResNet50")
#: Footprints of table 1, GB.
TABLE_1 = {
    "BigLSTM": 2.71,
    "AlexNet": 8.85,
    "Inception_V2": 3.21,
    "SqueezeNet": 2.03,
    "VGG16": 11.08,
    "ResNet50": 4.50,
}
#: Largest batch that is tried for a network: a power of two at which the footprint exceeds that of table 1.
LARGEST = {"BigLSTM": 64, "AlexNet": 2048, "Inception_V2": 128, "SqueezeNet": 256, "VGG16": 256, "ResNet50": 128}


def _study(name: str, changes: Mapping[str, object], keep: Sequence[str], of: Sequence[str]) -> Study:
    """A changed study with only the traces in `keep`. of: all traces that the study may have."""
    return loaded(name, written({**{f"traces.{label}": None for label in of if label not in keep}, **changes}))


def optimistic(compressibility: object = True, without: Sequence[str] = ()) -> dict[str, Any]:
    """Compression ratios if every memory-entry took its own of eight sizes (figure 3), geometric means over programs.

    Results hpc: five solvers with ten snapshots each; dl: the networks of the study buddy-7, all blocks except
    workspaces, over the epochs of the profile. compressibility: True for the default profile, measured in small
    networks, else a profile's name. without: omitted solvers.
    """
    included = [name for name in SOLVERS if name not in without]
    solvers = {name: optimistic_ratio(read_snapshots([f"hpc-{name}"]).allocations) for name in included}
    changes = {f"traces.{name}.compressibility": compressibility for name in NETWORKS}
    study = _study("buddy-7", changes, NETWORKS, (*SOLVERS, *NETWORKS))
    networks = {name: optimistic_ratio(_lasting(study.traces[name])) for name in NETWORKS}
    groups = {name: {"eight sizes": ratio} for name, ratio in {**solvers, **networks}.items()}
    hpc, dl = geometric_mean(solvers.values()), geometric_mean(networks.values())
    groups |= {"mean, HPC": {"eight sizes": hpc}, "mean, DL": {"eight sizes": dl}}
    published = {"mean, HPC": {"eight sizes": 2.51}, "mean, DL": {"eight sizes": 1.85}}
    return {"hpc": hpc, "dl": dl, "bars": bars("compression ratio by eight sizes", groups, published)}


def one_target(share: float = THRESHOLD) -> dict[str, float]:
    """Ratio and overflow with one target per program: the smallest that at most a given share of its entries exceeds.

    An alternative interpretation of the naive choice, which section 3.4 does not describe. Means over the solvers of
    the study buddy-7 and all their snapshots. share: largest share of entries that may exceed the target, 0 to 1.
    """
    study = _study("buddy-7", {}, SOLVERS, (*SOLVERS, *NETWORKS))
    programs = [list(trace_allocations(study.traces[name])) for name in SOLVERS]
    chosen = [(program, [smallest_for_all(program, share)] * len(program)) for program in programs]
    return {
        "ratio": fmean(compression_ratio(program, targets) for program, targets in chosen),
        "accesses": fmean(mean_overflow(program, targets) for program, targets in chosen),
    }


def smallest_for_all(program: Sequence[ProfiledAllocation], share: float) -> int:
    """The smallest target, in device bytes per entry, that at most this share of all entries exceeds."""
    return min(each for each in TARGETS if each == RAW or mean_overflow(program, [each] * len(program)) <= share)


def _lasting(trace: Trace) -> list[Any]:
    kinds = {block.id: block.kind for block in trace.blocks}
    return [each for each in trace_allocations(trace) if kinds[each.name] is not BlockKind.WORKSPACE]


def footprints(framework: str = "cudnn") -> dict[str, Any]:
    """Peak memory of an iteration in GB, at the batch, a power of two, whose peak is nearest to table 1 (as a ratio).

    framework: whose memory behaviour is modelled; cudnn represents Caffe, in which the paper ran its networks: a
    normalization in place saves no map there, as Caffe keeps a copy (its batch_norm_layer; simgpu.workloads.footprint).
    """
    peaks_gb, groups = {}, {}
    for network, stated in TABLE_1.items():
        peaks = _peaks(network, [2**n for n in range(3, LARGEST[network].bit_length())], framework)
        batch = min(peaks, key=lambda batch: abs(log(peaks[batch] / 1e9 / stated)))
        peaks_gb[network.lower()] = groups[f"{network}, batch {batch}"] = peaks[batch] / 1e9
    marks = {label: {"peak": stated} for label, stated in zip(groups, TABLE_1.values(), strict=True)}
    drawn = {label: {"peak": peak} for label, peak in groups.items()}
    return {**peaks_gb, "bars": bars("footprint in GB, at the batch nearest to it", drawn, marks)}


def transition(words: int = 20) -> dict[str, Any]:
    """The batch from which footprints grow linearly (figure 13a): there the growing part equals the constant part.

    From a line fitted to the peaks at 16, 32 and 64 samples (PyTorch). Result others: the largest batch of all networks
    except AlexNet. words: number of words over which BigLSTM is unrolled.
    """
    linear_from = {}
    for network in NETWORKS:
        variant = {"traces.BigLSTM.variant": {"vocabulary": 32768, "steps": words}} if network == "BigLSTM" else {}
        peaks = _peaks(network, (16, 32, 64), "pytorch", variant)
        growing, constant = np.polyfit(list(peaks), list(peaks.values()), 1)
        linear_from[network] = float(constant / growing)
    return {
        "alexnet": linear_from["AlexNet"],
        "others": max(batch for name, batch in linear_from.items() if name != "AlexNet"),
    }


def larger_batches(changed: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Speed at the larger batch that fits compressed, over that at the one that fits as it is, less one (figure 13c).

    The speed is that of unlimited memory at both batches: as in the paper, without what compression costs and gains.
    changed: overrides of the study.
    """
    study = loaded("buddy-13c", written(changed or {}))
    gains = {}
    for network, trace in study.traces.items():
        speeds = []
        for run in study.runs:
            batch = _cell(study, network, run.label).batch
            assert batch is not None
            speeds.append(simulate(at_batch(trace, batch), run.node, "ideal").metrics.samples_per_s)
        gains[network] = speeds[1] / speeds[0] - 1
    return {**gains, "mean": fmean(gains.values())}


def _peaks(
    network: str, batches: Sequence[int], framework: str, changes: Mapping[str, object] | None = None
) -> dict[int, int]:
    """Peak memory of an iteration in bytes, by batch."""
    more = {f"traces.{network}.batches": list(batches), f"traces.{network}.framework": framework, **(changes or {})}
    study = _study("buddy-13a", more, [network], NETWORKS)
    (run,) = study.runs
    cells = (cell_of(study, label, run) for label in study.traces)
    return {cell.batch: cell.peak_bytes or 0 for cell in cells}


def signs(in_flight: str = "448 KiB", compressibility: object = "published", cache: str = "4 KiB") -> dict[str, Any]:
    """Whether compression without overflow slows down or speeds up single programs (section 4.2).

    Results cg, lbm: whether bandwidth-only compression slows them down; networks: whether it speeds up all of them;
    seismic: whether metadata misses slow it down by more than 1%, compared with a cache for all metadata, and more than
    any other solver. in_flight: bytes in flight of the GPU; cache: metadata cache per slice; compressibility: profile
    of the networks.
    """
    changes: dict[str, object] = {"node.gpu.buddy.in_flight": in_flight, "node.gpu.buddy.metadata_cache.size": cache}
    changes |= {f"traces.{network}.compressibility": compressibility for network in NETWORKS}
    study = loaded("buddy-11", written(changes))
    times = {trace: _time(study, trace, "bandwidth") for trace in study.traces}
    large_cache = loaded("buddy-11", written(changes | {"node.gpu.buddy.metadata_cache.size": "4 MiB"}))
    lost = {name: _time(study, name, "150 GB/s") / _time(large_cache, name, "150 GB/s") - 1 for name in SOLVERS}
    networks = {network: times[network] for network in NETWORKS}
    return {
        "cg": condition(times["cg"] > 1, f"cg, of the kind of 354.cg: {times['cg']:.3f} times as long"),
        "lbm": condition(times["lbm"] > 1, f"lbm, of the kind of 360.ilbdc: {times['lbm']:.3f} times as long"),
        "networks": condition(max(networks.values()) < 1, _listed("{:.3f}", networks)),
        "seismic": condition(
            lost["seismic"] > 0.01 and lost["seismic"] == max(lost.values()),
            f"time lost to misses: {_listed('{:.2%}', lost)}",
        ),
    }


def _listed(form: str, values: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in values.items())


def _time(study: Study, trace: str, run: str, over: str = "ideal") -> float:
    """Time of a run divided by the time of the run `over`."""
    ours, theirs = (_cell(study, trace, label).samples_per_s for label in (run, over))
    assert ours and theirs
    return theirs / ours


def _cell(study: Study, trace: str, run: str) -> StudyCell:
    (labelled,) = (each for each in study.runs if each.label == run)
    return cell_of(study, trace, labelled)


def unified() -> dict[str, Any]:
    """Whether Unified Memory at 150% of the capacity is slower than pinned host memory for most solvers."""
    study = loaded("buddy-12", "{}")
    times = {name: _time(study, name, "UM 50%", over="pinned") for name in SOLVERS}
    slower = sum(time > 1 for time in times.values())
    return {
        "often": condition(
            slower > len(times) / 2, f"{slower} of {len(times)}, time over pinned: {_listed('{:.2f}', times)}"
        )
    }


def overflow() -> dict[str, Any]:
    """The share of live entries that overflow over one iteration, at constant targets (figure 8).

    Result steady: whether the share varies by at most 5 percentage points, for the two networks in the paper's figure.
    """
    study = loaded("buddy-8", "{}")
    last = {name: _cell(study, name, "buddy").drift[-10:] for name in study.traces}
    ranges = {name: (min(last[name]), max(last[name])) for name in ("SqueezeNet", "ResNet50")}
    return {
        "steady": condition(
            all(most - least <= 0.05 for least, most in ranges.values()),
            ", ".join(f"{name} {least:.1%} to {most:.1%}" for name, (least, most) in ranges.items()),
        ),
        "lines": lines(
            "entries that overflow",
            "moment of the iteration",
            {name: list(enumerate(shares, start=1)) for name, shares in last.items()},
            share=True,
        ),
    }


def metadata_hit_rate() -> dict[str, Any]:
    """Hit rate of the metadata cache by its size, all slices together (figure 5b)."""
    study = loaded("buddy-5b", "{}")
    curves = {
        trace: [
            (run.node.gpu.buddy.cache.total / 1024, cell_of(study, trace, run).metadata_hit_rate or 0)
            for run in study.runs
            if run.node.gpu.buddy is not None
        ]
        for trace in study.traces
    }
    return {"lines": lines("hits in the metadata cache", "KiB of all slices", curves, share=True, log=True)}


CHECKS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    check.__name__: check
    for check in (
        optimistic,
        one_target,
        footprints,
        larger_batches,
        transition,
        signs,
        unified,
        overflow,
        metadata_hit_rate,
    )
}
