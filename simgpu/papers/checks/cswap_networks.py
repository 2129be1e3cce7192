"""Checks of CSWAP's networks: swapping latency, the share of transfers, and its undocumented AlexNet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from simgpu.experiments.scenarios.study import Study
from simgpu.experiments.training import train
from simgpu.hardware.nodes import load_node
from simgpu.papers.checks.cswap_layers import EPOCHS, latencies, study_of, trained
from simgpu.papers.checks.results import condition
from simgpu.simulation.run import Result, simulate
from simgpu.workloads.builder import NetworkBuilder
from simgpu.workloads.modelled import build_trace, trace_of
from simgpu.workloads.network import Network
from simgpu.workloads.sparsity.generator import with_sparsity

_VDNN = "vdnn", {"mode": "conv"}
_CSWAP = "cswap", {"launch": "grid_search"}
_SHOWN = range(0, EPOCHS, 8)
#: Studies by node and data set (0: CIFAR10, 1: ImageNet).
STUDIES = {("v100", 0): "cswap-6a", ("2080ti", 0): "cswap-6b", ("v100", 1): "cswap-6c", ("2080ti", 1): "cswap-6d"}


def latency_saved() -> dict[str, Any]:
    """Share of vDNN's swapping latency (copies and codecs, overlapped or not) that CSWAP saves at most, by node."""
    saved = {
        node: [
            _saved(study, network)
            for at in (0, 1)
            for study in [study_of(STUDIES[node, at])]
            for network in study.traces
        ]
        for node in ("v100", "2080ti")
    }
    return {f"most_{node}": max(each) for node, each in saved.items()}


def _saved(study: Study, network: str) -> float:
    before, after = (sum(map(sum, latencies(trained(study, network, *policy)).values())) for policy in (_VDNN, _CSWAP))
    return 1 - after / before


def transfers(changed: Mapping[str, object] | None = None, exposed: bool = False) -> dict[str, Any]:
    """Share of vDNN's iteration in which a copy runs, on V100 and CIFAR10.

    exposed: count only time in which nothing else runs.
    """
    study = study_of("cswap-6a", changed)
    share = {network: _transferring(study, network, exposed) for network in study.traces}
    others = [each for network, each in share.items() if network not in ("AlexNet", "Plain20")]
    return {
        "alexnet": share["AlexNet"],
        "plain20": share["Plain20"],
        "others": condition(max(others) < 0.5, f"{min(others):.0%} to {max(others):.0%}"),
    }


def _transferring(study: Study, network: str, exposed: bool) -> float:
    result = simulate(study.traces[network], study.runs[0].node, _VDNN[0], parameters=_VDNN[1])
    return _shares(result, ("swapping",) if exposed else ("swapping", "overlap"))


def _shares(result: Result, parts: tuple[str, ...]) -> float:
    times = result.metrics.breakdown.parts
    return sum(times[part] for part in parts) / sum(times.values())


def slowdown(changed: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Reduction of CSWAP's mean speedup over vDNN from the V100 to the 2080 Ti, on CIFAR10."""
    means = []
    for name in ("cswap-6a", "cswap-6b"):
        study = study_of(name, changed)
        means.append(fmean(_gain(study, network) for network in study.traces))
    return {"lower": 1 - means[1] / means[0]}


def _gain(study: Study, network: str) -> float:
    before, after = (trained(study, network, *policy) for policy in (_VDNN, _CSWAP))
    return before.total_ns / after.total_ns


def alexnet(form: str = "", compute: float = 1, zeros: bool = False) -> dict[str, Any]:
    """Results of variants of AlexNet, whose form the paper does not describe: V100, CIFAR10, batch 2560.

    form: empty for the zoo's AlexNet, else the sizes of the first two kernels and the stride of the first, such as ``3,
    3, 2``. compute: factor on the GPU's rates for the kernels. zeros: use the sparsity profile of other networks
    instead of that of AlexNet on ImageNet.
    """
    rates = load_node("v100").gpu
    assert rates.fp32_rate is not None and rates.dram_bandwidth is not None
    gpu = load_node(
        "v100",
        {
            "gpu.fp32_rate": f"{rates.fp32_rate * compute / 1e12} TFLOP/s",
            "gpu.dram_bandwidth": f"{rates.dram_bandwidth * compute / 1e9} GB/s",
        },
    ).gpu
    if form:
        plain = trace_of(_small_alexnet(*map(int, form.split(","))), batch=2560, gpu=gpu)
    else:
        plain = build_trace("alexnet", input="cifar10", batch=2560, gpu=gpu)
    trace = with_sparsity(plain, EPOCHS, _as_other_networks() if zeros else None)
    node = load_node("v100")
    first = simulate(trace, node, _VDNN[0], parameters=_VDNN[1])
    vdnn, host, cswap = (
        train(trace, node, policy, parameters=given, epochs=_SHOWN, iterations=2).total_ns
        for policy, given in (_VDNN, ("vdnn++", {}), _CSWAP)
    )
    return {
        "transfer_share": _shares(first, ("swapping", "overlap")),
        "time_saved": 1 - cswap / vdnn,
        "over_vdnnpp": host / cswap,
    }


def _as_other_networks() -> Any:
    from simgpu.workloads.sparsity.generator import GENERAL, load_profile

    return load_profile(GENERAL).model_copy(update={"depths": {}})


def _small_alexnet(first: int, second: int, stride: int) -> Network:
    """AlexNet's five convolutions for 32 x 32 images. first, second: sizes of these kernels; stride: of the first."""
    net = NetworkBuilder("alexnet", "after Krizhevsky, arXiv:1404.5997")
    x = net.input("image", (3, 32, 32))
    x = net.relu("relu1", net.convolution("conv1", x, 64, first, stride=stride, padding=first // 2))
    x = net.max_pool("pool1", x, 2, 2)
    x = net.relu("relu2", net.convolution("conv2", x, 192, second, padding=second // 2))
    x = net.max_pool("pool2", x, 2, 2)
    for number, width in ((3, 384), (4, 256), (5, 256)):
        x = net.relu(f"relu{number}", net.convolution(f"conv{number}", x, width, 3, padding=1))
    return net.finish(net.linear("fc", net.flatten("flatten", net.max_pool("pool5", x, 2, 2)), 10))


CHECKS: dict[str, Callable[..., Mapping[str, Any]]] = {
    "latency_saved": latency_saved,
    "transfers": transfers,
    "slowdown": slowdown,
    "alexnet": alexnet,
}
