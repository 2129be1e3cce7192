"""The operation of a logged operator is derived from its name and sizes."""

from __future__ import annotations

import pytest

from simgpu.trace.model import Block, BlockKind, Kernel, Phase
from simgpu.workloads.calibration.recorded_samples import dtr_operations


@pytest.mark.parametrize(
    ("sizes", "kernel", "stride"),
    [
        ((56 * 16 * 224**2, 9 * 16 * 16, 56 * 16 * 224**2), 3, 1),
        ((84 * 3 * 224**2, 49 * 3 * 64, 84 * 64 * 112**2), 7, 2),
    ],
)
def test_the_shape_of_a_logged_convolution_is_derived_from_its_sizes(
    sizes: tuple[int, int, int], kernel: int, stride: int
) -> None:
    blocks = {name: Block(name, 4 * size, BlockKind.OTHER) for name, size in zip("xwy", sizes, strict=True)}
    call = Kernel("1", "cudnn_convolution", Phase.FORWARD, 1000, ("x", "w"), ("y",))
    result = dtr_operations(call, blocks, 56 if kernel == 3 else 84)
    assert result is not None
    shape = result[0].convolution
    assert shape is not None
    assert (shape.kernel, shape.stride, shape.in_size) == ((kernel, kernel), (stride, stride), (224, 224))
