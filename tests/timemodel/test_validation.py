"""The time model against measurements: published ones always, recordings where they are beside the repository."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from simgpu.cli.zoo import zoo
from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.model import Block, BlockKind, Kernel, Phase
from simgpu.trace.timemodel.calibration import START, Problem, calibrate
from simgpu.trace.timemodel.operation import GemmShape, Operation, OperationKind
from simgpu.trace.timemodel.parameters import load_parameters
from simgpu.trace.timemodel.recorded_dtr import dtr_operations
from simgpu.trace.timemodel.samples import Sample, Skipped, Use
from simgpu.trace.timemodel.validation import Row, Validation, validate

RECORDINGS = Path(__file__).parents[3] / "shared" / "data"
needs_recordings = pytest.mark.skipif(
    not RECORDINGS.is_dir(), reason="the recordings are not beside the repository (../shared/data)"
)


def sample(gpu: GpuSpec, measured_ns: int, use: Use = Use.FIT) -> Sample:
    shape = GemmShape(4096, 4096, 4096)
    product = Operation(OperationKind.GEMM, 2 * shape.macs, 12 * 4096**2, 4096**2, gemm=shape)
    return Sample("v100", gpu, "product", 1, "iteration", ((product, 10),), measured_ns, use, "made up")


def test_published_figures_held_out_are_met_within_a_tenth_in_the_mean() -> None:
    found = validate()
    held_out, fitted = found.summary(Use.HELD_OUT), found.summary(Use.FIT)
    assert held_out is not None
    assert fitted is not None
    assert (held_out.count > 50) and (fitted.count > 50)
    assert held_out.mean < 0.10
    assert fitted.mean < 0.10
    assert not found.skipped


@needs_recordings
def test_recordings_held_out_are_met() -> None:
    rows = {
        (row.sample.network, row.sample.batch): row
        for row in validate(RECORDINGS).rows
        if row.sample.measures == "iteration"
    }
    h100, titan = rows["vgg13", 512], rows["resnet32", 56]
    assert h100.sample.use is Use.SEEN_NETWORK
    assert titan.sample.use is Use.HELD_OUT
    assert h100.sample.measured_ns == 346_344_000
    assert abs(h100.error) < 0.10
    assert abs(titan.error) < 0.10


@needs_recordings
def test_no_network_is_on_both_sides_and_recordings_without_an_iteration_are_told() -> None:
    found = validate(RECORDINGS)
    fitted, held_out = (
        {row.sample.network for row in found.rows if row.sample.use is use} for use in (Use.FIT, Use.HELD_OUT)
    )
    assert not fitted & held_out
    assert {"densenet121", "vgg13", "bert"} < fitted
    untold = {skipped.what.split(":")[0] for skipped in found.skipped}
    assert untold == {"titan-v unet b6", "a100 bert b256", "a100 vit b256", "titanv-dtr/transformer-b10.log"}


def test_a_summary_tells_sizes_and_the_mean_with_sign() -> None:
    gpu = load_node("v100").gpu
    exact = sample(gpu, 1).modelled_ns()
    rows = (Row(sample(gpu, 4, Use.HELD_OUT), 5), Row(sample(gpu, 2, Use.HELD_OUT), 1), Row(sample(gpu, exact), exact))
    found = Validation(rows, ())
    held_out = found.summary(Use.HELD_OUT, gpu="v100", network="product")
    assert held_out is not None
    assert (held_out.count, held_out.mean, held_out.bias, held_out.worst) == (2, 0.375, -0.125, rows[1])
    assert found.summary(Use.HELD_OUT, network="another") is None


@needs_recordings
def test_the_parameters_are_those_that_the_fit_finds() -> None:
    """From the shipped values a step of least squares has nothing left to gain, and from the first guesses much."""
    problem = Problem([row.sample for row in validate(RECORDINGS).rows if row.sample.fitted], load_parameters(START))

    def cost_and_gain(logs: np.ndarray) -> tuple[float, float]:
        residuals, free = problem.residuals(logs), logs < problem.bounds[1] - 2e-3
        slopes = problem.jacobian(logs)[:, free]
        step = np.linalg.lstsq(slopes, -residuals, rcond=None)[0]
        cost = float(residuals @ residuals)
        return cost, 1 - float(np.sum((residuals + slopes @ step) ** 2)) / cost

    fitted, gain = cost_and_gain(problem.logs(load_parameters()))
    guessed, more = cost_and_gain(problem.start)
    assert gain < 0.01 < 0.2 < more
    assert fitted < guessed / 2


def test_a_fit_finds_the_share_that_made_the_measurement() -> None:
    pytest.importorskip("scipy")
    gpu, truth = load_node("v100").gpu, load_parameters(START)
    volta = truth.architectures["volta"].model_copy(update={"compute": 0.6})
    changed = truth.model_copy(update={"architectures": {**truth.architectures, "volta": volta}})
    measured = sample(gpu, 1).modelled_ns(changed)
    slower = sample(gpu, 100 * measured, Use.HELD_OUT)
    found = calibrate([sample(gpu, measured)] * 20 + [slower])
    assert sample(gpu, measured).modelled_ns(found) == pytest.approx(measured, rel=0.01)
    assert found.architectures["hopper"] == truth.architectures["hopper"]


def test_missing_recordings_are_told_and_a_missing_folder_is_refused(tmp_path: Path) -> None:
    skipped = validate(tmp_path).skipped
    assert len(skipped) == 7
    assert skipped[0] == Skipped("h100 vgg13 b128", f"{tmp_path / 'h100-triosim/vgg13'} is not there")
    with pytest.raises(InputError, match="no such folder"):
        validate(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("sizes", "kernel", "stride"),
    [
        ((56 * 16 * 224**2, 9 * 16 * 16, 56 * 16 * 224**2), 3, 1),
        ((84 * 3 * 224**2, 49 * 3 * 64, 84 * 64 * 112**2), 7, 2),
    ],
)
def test_a_logged_convolutions_shape_follows_from_its_sizes(
    sizes: tuple[int, int, int], kernel: int, stride: int
) -> None:
    blocks = {name: Block(name, 4 * size, BlockKind.OTHER) for name, size in zip("xwy", sizes, strict=True)}
    call = Kernel("1", "cudnn_convolution", Phase.FORWARD, 1000, ("x", "w"), ("y",))
    found = dtr_operations(call, blocks, 56 if kernel == 3 else 84)
    assert found is not None
    shape = found[0].convolution
    assert shape is not None
    assert (shape.kernel, shape.stride, shape.in_size) == ((kernel, kernel), (stride, stride), (224, 224))


def test_the_command_prints_every_gpu_and_both_means() -> None:
    result = CliRunner().invoke(zoo, ["validate"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert {"k80", "titan-x-maxwell", "p100-sxm2", "2080ti"} <= set(lines)
    assert any(line.startswith("all ") and line.count("%") == 6 for line in lines)
    assert any(line.startswith("resnet101 ") and line.count("%") == 3 for line in lines)
    assert max(map(len, lines)) <= 80
