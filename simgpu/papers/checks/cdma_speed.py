"""Checks of cDMA's figure 13: performance of vDNN with and without the engine, and its sensitivity to bandwidths."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from simgpu.experiments.study import cell_of
from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.spec import NodeSpec
from simgpu.papers.checks.cdma_maps import ZeroPattern, with_sizes
from simgpu.papers.checks.cdma_traces import GPUS, study
from simgpu.papers.checks.results import bars, lines

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.study import Study, StudyRun
    from simgpu.trace.model import Trace

GIGA = 10**9
#: Read bandwidths of the sweep, bytes per second; the last one is effectively unlimited.
_READ = tuple(GIGA * rate for rate in (16, 32, 48, 64, 100, 150, 200, 10_000))
#: Link bandwidths of the sweep, bytes per second, each way: PCIe 3.0's 12.8 GB/s, and its multiples.
_LINKS = tuple(GIGA * tenths // 10 for tenths in (64, 128, 256, 512, 1024))
#: Published values in figures: vDNN's mean relative performance on Pascal (section III), and speedups (abstract,
#: section VII-C).
_LOST = {"mean": {"vDNN": 0.49}}
_GAINED = {"mean": {"Maxwell": 0.32, "Pascal": 0.53}, "best": {"Maxwell": 0.61, "Pascal": 0.79}}
#: Samples per second by network and run.
Speeds = Mapping[str, Mapping[str, float]]


def speeds(
    gpu: str,
    runs: Iterable[str],
    *,
    speed: float = 1.0,
    copies: bool = False,
    change: Callable[[Trace], Trace] = lambda trace: trace,
) -> dict[str, dict[str, float]]:
    """Samples per second by network and run of the study for a GPU.

    speed: factor on the GPU's peak rates. copies: whether concatenations copy. change: applied to each trace.
    """
    of = study(gpu, speed, copies)
    changed = replace(of, traces={name: change(trace) for name, trace in of.traces.items()})
    chosen = [run for run in of.runs if run.label in set(runs)]
    return {name: {run.label: speed_of(changed, name, run) for run in chosen} for name in changed.traces}


def speed_of(of: Study, network: str, run: StudyRun) -> float:
    """Samples per second of a run. Raises `ValueError` if it is out of memory or unsupported."""
    cell = cell_of(of, network, run)
    if cell.samples_per_s is None:
        raise ValueError(f"{run.label} on {network}: {cell.out_of_memory or cell.refused}")
    return cell.samples_per_s


def performance(
    *,
    speed: float = 1.0,
    copies: bool = False,
    overlapping: bool = False,
    channels: float = 0.0,
    length: float = 0.0,
    runs: Sequence[str] = (),
) -> dict[str, Any]:
    """Performance on both GPUs (figure 13), and the numbers of section VII-B.

    speed: factor on the GPUs' peak rates. copies: whether concatenations copy. overlapping, channels, length: as in
    `ZeroPattern`. runs: labels of the runs to simulate; only results that follow from these are returned. Empty for
    all.
    """
    zeros = ZeroPattern(channels, length, overlapping)

    def change(trace: Trace) -> Trace:
        return with_sizes(trace, zeros)

    labels = tuple(runs) or tuple(run.label for run in study(GPUS[0]).runs)
    by_gpu = {gpu: speeds(gpu, labels, speed=speed, copies=copies, change=change) for gpu in GPUS}
    results: dict[str, Any] = {}
    for gpu, of in by_gpu.items():
        if {"vDNN", "ZV", "ideal"}.issubset(labels):
            results |= _gains(gpu, of)
        if not runs:
            results[f"{gpu}_figure"] = _figure(of, _LOST if gpu == "pascal" else {})
    if not runs:
        results["gains_figure"] = _gains_figure(by_gpu)
    if {"ZV", "ZL"}.issubset(labels):
        leads = [each["ZL"] / each["ZV"] - 1 for of in by_gpu.values() for each in of.values()]
        google = [of["GoogLeNet"]["ZL"] / of["GoogLeNet"]["ZV"] - 1 for of in by_gpu.values()]
        results |= {"zlib": fmean(leads), "googlenet": max(google)}
    if {"RL", "ZV", "ZL", "BW"}.issubset(labels):
        every = [each for of in by_gpu.values() for each in of.values()]
        results["throttled"] = fmean(each["BW"] / max(each["RL"], each["ZV"], each["ZL"]) for each in every)
    return results


def _gains(gpu: str, of: Speeds) -> dict[str, float]:
    gains = [each["ZV"] / each["vDNN"] - 1 for each in of.values()]
    relative = [each["vDNN"] / each["ideal"] for each in of.values()]
    numbers = {"gain": fmean(gains), "best": max(gains), "loss": 1 - fmean(relative), "worst": 1 - min(relative)}
    return {f"{gpu}_{name}": value for name, value in numbers.items()}


def _figure(of: Speeds, marks: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    groups = {
        name: {label: each[label] / each["ideal"] for label in each if label != "ideal"} for name, each in of.items()
    }
    labels = next(iter(groups.values()))
    groups["mean"] = {label: fmean(each[label] for each in groups.values()) for label in labels}
    return bars("performance over the oracle's", groups, marks, share=True)


def _gains_figure(by_gpu: Mapping[str, Speeds]) -> dict[str, Any]:
    gains = {
        gpu.capitalize(): {name: each["ZV"] / each["vDNN"] - 1 for name, each in of.items()}
        for gpu, of in by_gpu.items()
    }
    groups = {name: {gpu: of[name] for gpu, of in gains.items()} for name in by_gpu[GPUS[0]]}
    groups["mean"] = {gpu: fmean(of.values()) for gpu, of in gains.items()}
    groups["best"] = {gpu: max(of.values()) for gpu, of in gains.items()}
    return bars("performance gained over vDNN's", groups, _GAINED, share=True)


def reading() -> dict[str, Any]:
    """Speedup over vDNN by the engine's read bandwidth, on Maxwell (section V-C)."""
    of = study("maxwell")
    runs = {run.label: run for run in of.runs}
    slow = {name: speed_of(of, name, runs["vDNN"]) for name in of.traces}
    gains = {
        rate: fmean(speed_of(of, name, reading_at(runs["ZV"], rate)) / slow[name] - 1 for name in of.traces)
        for rate in _READ
    }
    *limited, unlimited = _READ
    points = [(rate / GIGA, gains[rate] / gains[unlimited]) for rate in limited]
    curves, marks = {"ZV": points}, {"ZV": [(200, 0.99)]}
    figure = lines("share of the benefit without a limit", "GB/s that the engine reads", curves, marks, share=True)
    return {"share": gains[200 * GIGA] / gains[unlimited], "figure": figure}


def reading_at(run: StudyRun, rate: int) -> StudyRun:
    """The run with an engine that reads `rate` bytes per second and has a buffer of the matching size."""
    engine = run.node.gpu.cdma
    assert engine is not None
    changed: CdmaSpec = replace(engine, read_bandwidth=rate, buffer=rate * engine.latency_ns // GIGA)
    return replace(run, node=replace(run.node, gpu=replace(run.node.gpu, cdma=changed)))


def links() -> dict[str, Any]:
    """Performance of vDNN with and without the engine by link bandwidth, on Pascal (section VIII)."""
    of = replace(study("pascal"), epochs=(8, 24, 48))
    runs = {run.label: run for run in of.runs}
    ideal = {name: speed_of(of, name, runs["ideal"]) for name in of.traces}

    def relative(label: str, rate: int) -> float:
        run = replace(runs[label], node=linked(runs[label].node, rate))
        return fmean(speed_of(of, name, run) / ideal[name] for name in of.traces)

    curves = {label: [(rate / GIGA, relative(label, rate)) for rate in _LINKS] for label in ("vDNN", "ZV")}
    return {
        "figure": lines("performance over the oracle's", "GB/s of the link, each way", curves, share=True, log=True)
    }


def linked(node: NodeSpec, rate: int) -> NodeSpec:
    """The node with a link of `rate` bytes per second in each direction."""
    return replace(node, link=replace(node.link, d2h_bandwidth=rate, h2d_bandwidth=rate))
