"""The time model compared with published figures and, if they are next to the repository, recordings."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from simgpu.cli.zoo import zoo
from simgpu.hardware.nodes import load_node
from simgpu.workloads.calibration.samples import SampleUse
from simgpu.workloads.calibration.validation import TimeModelValidation, ValidationRow, validate
from tests.workloads.calibration.made_up import product_sample


@pytest.mark.slow
def test_the_mean_error_of_held_out_published_figures_is_below_a_tenth() -> None:
    result = validate()
    held_out, fitted = result.summary(SampleUse.HELD_OUT), result.summary(SampleUse.FIT)
    assert held_out is not None
    assert fitted is not None
    assert (held_out.count > 50) and (fitted.count > 50)
    assert held_out.mean < 0.10
    assert fitted.mean < 0.10
    assert not result.skipped


@pytest.mark.slow
def test_the_error_of_held_out_recordings_is_small(compared: TimeModelValidation) -> None:
    rows = {(row.sample.network, row.sample.batch): row for row in compared.rows if row.sample.measures == "iteration"}
    h100, titan = rows["vgg13", 512], rows["resnet32", 56]
    assert h100.sample.use is SampleUse.SEEN_NETWORK
    assert titan.sample.use is SampleUse.HELD_OUT
    assert h100.sample.measured_ns == 346_344_000
    assert abs(h100.error) < 0.10
    assert abs(titan.error) < 0.10


@pytest.mark.slow
def test_fitted_and_held_out_networks_are_disjoint_and_skipped_rows_reported(
    compared: TimeModelValidation,
) -> None:
    fitted, held_out = (
        {row.sample.network for row in compared.rows if row.sample.use is use}
        for use in (SampleUse.FIT, SampleUse.HELD_OUT)
    )
    assert not fitted & held_out
    assert {"densenet121", "vgg13", "bert"} < fitted
    untold = {skipped.what.split(":")[0] for skipped in compared.skipped if not skipped.what.endswith(": memory")}
    assert untold == {"titan-v unet b6", "a100 bert b256", "a100 vit b256", "titanv-dtr/transformer-b10.log"}


def test_a_summary_gives_sizes_and_the_signed_mean() -> None:
    gpu = load_node("v100").gpu
    exact = product_sample(gpu, 1).modelled_ns()
    rows = (
        ValidationRow(product_sample(gpu, 4, SampleUse.HELD_OUT), 5),
        ValidationRow(product_sample(gpu, 2, SampleUse.HELD_OUT), 1),
        ValidationRow(product_sample(gpu, exact), exact),
    )
    result = TimeModelValidation(rows, ())
    held_out = result.summary(SampleUse.HELD_OUT, gpu="v100", network="product")
    assert held_out is not None
    assert (held_out.count, held_out.mean, held_out.bias, held_out.worst) == (2, 0.375, -0.125, rows[1])
    assert result.summary(SampleUse.HELD_OUT, network="another") is None


@pytest.mark.slow
def test_the_command_prints_every_gpu_and_both_means() -> None:
    result = CliRunner().invoke(zoo, ["validate"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert {"k80", "titan-x-maxwell", "p100-sxm2", "2080ti"} <= set(lines)
    assert any(line.startswith("all ") and line.count("%") == 6 for line in lines)
    assert any(line.startswith("resnet101 ") and line.count("%") == 3 for line in lines)
    assert max(map(len, lines)) <= 80
    description = result.output.partition("not compared")[2]
    assert "no measurement" in description
    assert "biglstm" in description
    assert "resnet101" not in description
    assert "peak memory" not in result.output, "published figures tell none"


@pytest.mark.slow
def test_the_command_lists_recordings_not_compared(recordings: Path) -> None:
    result = CliRunner().invoke(zoo, ["validate", "--recordings", str(recordings), "--parts"])
    assert result.exit_code == 0
    shown, _, description = result.output.partition("not compared")
    assert "titan-v" in shown.splitlines()
    assert "other samples of fitted networks" in shown
    assert "transformer-b10.log" in description
    assert "titan-v unet b6: iteration" in description
    memory = shown.partition("peak memory")[2].splitlines()
    assert [line.split()[:3] for line in memory if line.endswith(("framework", "lifetimes"))] == [
        ["vgg13", "h100", "512"],
        ["densenet121", "titan-v", "84"],
        ["resnet32", "titan-v", "56"],
        ["unet", "titan-v", "6"],
    ]
    assert "titan-v resnet32 b56 recorded: every ReLU allocates a new block" in " ".join(shown.split())
    assert max(map(len, result.output.splitlines())) <= 80
