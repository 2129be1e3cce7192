"""Builds samples from the published figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simgpu.trace.model import Phase
from simgpu.workloads.calibration.published import PublishedFigure, PublishedFile
from simgpu.workloads.calibration.recorded_samples import operations_by_phase
from simgpu.workloads.calibration.samples import Sample, SampleUse, Skipped, counted
from simgpu.workloads.catalogue import NETWORKS
from simgpu.workloads.timemodel.operation import Direction, Operation

#: Phases of an iteration that a published figure covers, by the figure's `measures`.
_PHASES = {
    "forward": (Phase.FORWARD,),
    "backward": (Phase.BACKWARD,),
    "both": (Phase.FORWARD, Phase.BACKWARD),
    "iteration": tuple(Phase),
}


def published_samples(published: PublishedFile) -> Iterator[Sample | Skipped]:
    """Yields a sample for each published figure; figures of networks that are not in the zoo are skipped."""
    for figure in published.figures:
        if figure.network in NETWORKS:
            yield _sample(published, figure)
        else:
            yield Skipped(f"{figure.gpu} {figure.network} b{figure.batch}", "the zoo has no such network")


def _sample(published: PublishedFile, figure: PublishedFigure) -> Sample:
    phases = operations_by_phase(figure.network, figure.batch, tuple(figure.variant.items()))
    parts = _PHASES[figure.measures]
    kernels = [operation for phase in parts for _, operation in phases[phase]]
    if figure.input_gradient and Phase.BACKWARD in parts:
        kernels.append(_input_gradient(phases[Phase.FORWARD]))
    return Sample(
        figure.gpu,
        published.gpu(figure.gpu),
        figure.network,
        figure.batch,
        figure.measures,
        counted(kernels),
        figure.duration_ns,
        SampleUse.FIT if figure.network in published.fitted_networks else SampleUse.HELD_OUT,
        published.sources[figure.source].title,
        tf32=figure.tf32,
        without=figure.without,
    )


def _input_gradient(forward: tuple[tuple[str, Operation], ...]) -> Operation:
    """The first convolution's data gradient: training omits this kernel, but some benchmarks run it."""
    first = next(operation for _, operation in forward if operation.convolution is not None)
    shape = first.convolution
    assert shape is not None
    values = shape.batch * shape.in_channels * shape.in_size[0] * shape.in_size[1]
    return replace(first, direction=Direction.BACKWARD_DATA, results=values, added_bytes=0)
