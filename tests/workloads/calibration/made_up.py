"""A synthetic measurement."""

from __future__ import annotations

from simgpu.hardware.spec import GpuSpec
from simgpu.workloads.calibration.samples import Sample, SampleUse
from simgpu.workloads.timemodel.operation import GemmShape, Operation, OperationKind


def product_sample(gpu: GpuSpec, measured_ns: int, use: SampleUse = SampleUse.FIT) -> Sample:
    """A sample of ten products of 4096 x 4096 matrices with the given duration."""
    shape = GemmShape(4096, 4096, 4096)
    product = Operation(OperationKind.GEMM, 2 * shape.macs, 12 * 4096**2, 4096**2, gemm=shape)
    return Sample("v100", gpu, "product", 1, "iteration", ((product, 10),), measured_ns, use, "made up")
