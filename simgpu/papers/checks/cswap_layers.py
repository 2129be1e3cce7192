"""Checks of CSWAP's tensors: sizes and sparsity of VGG16's tensors, and the epochs in which each is compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from statistics import fmean
from typing import Any

from simgpu.compression.codecs.gpu.paper import VGG16_SIZES
from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.scenarios.study import Study
from simgpu.experiments.training import Training, departures, train
from simgpu.hardware.nodes import load_node
from simgpu.papers.checks.results import bars, cells, lines
from simgpu.simulation.run import simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.model import Trace
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.sparsity.generator import with_sparsity

EPOCHS = 50


@lru_cache
def vgg16() -> Trace:
    """VGG16 on ImageNet at batch 128, with the sparsity of fifty epochs."""
    return with_sparsity(build_trace("vgg16", batch=128, gpu=load_node("v100").gpu), EPOCHS)


@lru_cache
def swapped() -> dict[str, str]:
    """The paper's names of the sparse tensors that vDNN swaps, by block, in the order of their offloads."""
    trace = vgg16()
    left = departures(simulate(trace, load_node("v100"), "vdnn", parameters={"mode": "conv"}))
    sparse = {sample.block for sample in trace.sparsity}
    return dict(zip([block for block in left if block in sparse], VGG16_SIZES, strict=True))


def tensors() -> dict[str, Any]:
    """Sizes and sparsity of VGG16's twelve swapped sparse tensors (sections II-B and V-B)."""
    trace, names = vgg16(), swapped()
    zeros = {name: [each.sparsity for each in trace.sparsity if each.block == block] for block, name in names.items()}
    sizes = [trace.block_by_id[block].bytes / 2**20 for block in names]
    return {
        "first_mib": sizes[0],
        "last_mib": sizes[-1],
        "least": min(map(min, zeros.values())),
        "most": max(map(max, zeros.values())),
        "relu4_first": zeros["ReLU4"][0],
        "relu4_last": zeros["ReLU4"][-1],
        "max4_most": max(zeros["MAX4"]),
    }


_MS = 10**6
_TUNED = {"launch": "grid_search"}
#: Parameters of the advisor with true instead of predicted times and sizes.
_MEASURED = {**_TUNED, "times": "exact", "sizes": "format"}
_CODEC = (SpanKind.ENCODE, SpanKind.DECODE)
_FIGURE_8 = ("AlexNet", "VGG16", "MobileNet", "SqueezeNet")


def study_of(name: str, changed: Mapping[str, object] | None = None) -> Study:
    """A study of the paper's figures. changed: changes to it, as in experiments."""
    return load_study(name, dict(changed or {}))


def trained(
    study: Study, network: str, policy: str, parameters: Mapping[str, object], epochs: Iterable[int] | None = None
) -> Training:
    """The training of a network of a study under a policy. epochs: None for those of the study."""
    numbers = study.epochs if epochs is None else epochs
    return train(study.traces[network], study.runs[0].node, policy, parameters=parameters, epochs=numbers, iterations=2)


def latencies(training: Training) -> dict[str, tuple[int, int]]:
    """Nanoseconds of copies and of codecs by block, in the last iterations of all epochs, overlapped or not."""
    by_block: dict[str, list[int]] = {}
    for epoch in training.epochs:
        timeline = epoch.result.timeline
        last = timeline.iteration == epoch.result.iterations - 1
        took = (timeline.end_ns - timeline.start_ns)[last].tolist()
        for name, kind, ns in zip(timeline.name[last].tolist(), timeline.kind[last].tolist(), took, strict=True):
            if kind in (SpanKind.COPY, *_CODEC):
                block = timeline.names[name].partition(":")[0]
                by_block.setdefault(block, [0, 0])[kind in _CODEC] += ns
    return {block: (copies, codec) for block, (copies, codec) in by_block.items()}


def static_layers(launch: str = "expert") -> dict[str, Any]:
    """Time to swap VGG16's tensors uncompressed and with static compression, on ImageNet and V100 (figure 3).

    launch: how the codec's launch settings are chosen. Section II-C comes before any tuning, so an expert chooses them.
    """
    study, names = study_of("cswap-6c"), swapped()
    plain = latencies(trained(study, "VGG16", "vdnn", {"mode": "conv"}))
    static = latencies(trained(study, "VGG16", "static", {"launch": launch}))
    both = {name: (sum(plain[block]), *static[block]) for block, name in names.items()}
    copies, codec = (sum(each[place] for each in both.values()) for place in (1, 2))
    return {
        "slower": [name for name, (before, moved, coded) in both.items() if moved + coded > before],
        "codec_share": codec / (copies + codec),
        "figure_3": bars(
            "ms to swap a tensor out and in",
            {
                name: {
                    "as it is": before / len(study.epochs) / _MS,
                    "static": (moved + coded) / len(study.epochs) / _MS,
                    "static, copies alone": moved / len(study.epochs) / _MS,
                }
                for name, (before, moved, coded) in both.items()
            },
        ),
    }


def layers(
    study: str = "cswap-6c", changed: Mapping[str, object] | None = None, classifier: str = "in layers"
) -> dict[str, Any]:
    """VGG16's tensors that are offloaded compressed, by epoch (figure 9).

    classifier: ``at once`` to make everything after the last convolution one layer, which the first prefetch overlaps.
    """
    loaded = study_of(study, changed)
    trace = loaded.traces["VGG16"]
    if classifier == "at once":
        trace = _with_one_classifier(trace)
    node = loaded.runs[0].node
    training = train(trace, node, "cswap", parameters=_TUNED, epochs=range(EPOCHS), iterations=2)
    rows = dict(zip(VGG16_SIZES, _sparse(training), strict=True))
    shown = range(0, EPOCHS, 4)
    return {
        "first": training.counts[0],
        "epoch_48": training.counts[48],
        "never": [name for name, row in rows.items() if not any(row)],
        "figure_9": cells(
            list(rows),
            [str(epoch) for epoch in shown],
            [["compressed" if row[epoch] else "as it is" for epoch in shown] for row in rows.values()],
            along="epoch",
            down="tensor",
        ),
    }


def _with_one_classifier(trace: Trace) -> Trace:
    """VGG16 with its last pooling, linear layers and loss as one layer."""
    named = [kernel.layer or "" for kernel in trace.kernels]
    after = [name.startswith(("pool5", "fc", "drop", "loss")) for name in named]
    kernels = [
        replace(kernel, layer="classifier") if behind else kernel
        for kernel, behind in zip(trace.kernels, after, strict=True)
    ]
    return replace(trace, kernels=tuple(kernels))


def _sparse(training: Training) -> list[tuple[str | None, ...]]:
    """Decisions on the twelve tensors of VGG16, by epoch. The image, which is first and has no zeros, is omitted."""
    _, *rows = training.decisions.values()
    return rows


def counts() -> dict[str, Any]:
    """Number of tensors that are offloaded compressed, by epoch, in four networks (figure 8)."""
    loaded, epochs = study_of("cswap-6c"), range(0, EPOCHS, 2)
    compressed = {name: trained(loaded, name, "cswap", _TUNED, epochs).counts for name in _FIGURE_8}
    curves = {name: list(zip(epochs, each, strict=True)) for name, each in compressed.items()}
    return {"figure_8": lines("tensors offloaded compressed", "epoch", curves, {"VGG16": [(0, 5), (48, 9)]})}


def decisions() -> dict[str, Any]:
    """Share of decisions that are equal with predicted and true times and sizes, V100, both data sets (figure 11)."""
    right: dict[str, list[bool]] = {}
    for study in map(study_of, ("cswap-6a", "cswap-6c")):
        for network in study.traces:
            ours, true = (trained(study, network, "cswap", given).decisions for given in (_TUNED, _MEASURED))
            sparse = {sample.block for sample in study.traces[network].sparsity}
            right.setdefault(network, []).extend(
                ours[block][at] == codec
                for block, row in true.items()
                if block in sparse
                for at, codec in enumerate(row)
            )
    accuracy = {network: fmean(each) for network, each in right.items()}
    return {
        "mean": fmean(accuracy.values()),
        "figure_11": bars(
            "share of right decisions",
            {
                **{network: {"here": share} for network, share in accuracy.items()},
                "mean": {"here": fmean(accuracy.values())},
            },
            {"mean": {"here": 0.942}},
            share=True,
        ),
    }


CHECKS: dict[str, Callable[..., Mapping[str, Any]]] = {
    "tensors": tensors,
    "static_layers": static_layers,
    "layers": layers,
    "counts": counts,
    "decisions": decisions,
}
