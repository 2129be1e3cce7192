"""The fit recovers the parameters behind measurements, and the shipped parameters are its result."""

from __future__ import annotations

import numpy as np
import pytest

from simgpu.hardware.nodes import load_node
from simgpu.workloads.calibration.fit import START, FitProblem, calibrate, written
from simgpu.workloads.calibration.samples import SampleUse
from simgpu.workloads.calibration.validation import TimeModelValidation
from simgpu.workloads.timemodel.parameters import PARAMETERS, load_parameters
from tests.workloads.calibration.made_up import product_sample


def test_the_shipped_table_is_the_output_of_the_fit() -> None:
    assert written(load_parameters()) == PARAMETERS.read_text()


def test_the_start_table_of_the_fit_has_all_architectures() -> None:
    assert load_parameters(START).architectures.keys() == load_parameters().architectures.keys()


@pytest.mark.slow
def test_the_shipped_parameters_are_at_the_minimum_of_the_fit(compared: TimeModelValidation) -> None:
    """A least-squares step from the shipped values gains almost nothing; from the start values it gains much."""
    problem = FitProblem([row.sample for row in compared.rows if row.sample.fitted], load_parameters(START))

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


def test_a_fit_recovers_the_share_of_a_synthetic_measurement() -> None:
    pytest.importorskip("scipy")
    gpu, truth = load_node("v100").gpu, load_parameters(START)
    volta = truth.architectures["volta"].model_copy(update={"compute": 0.6})
    changed = truth.model_copy(update={"architectures": {**truth.architectures, "volta": volta}})
    measured = product_sample(gpu, 1).modelled_ns(changed)
    slower = product_sample(gpu, 100 * measured, SampleUse.HELD_OUT)
    result = calibrate([product_sample(gpu, measured)] * 20 + [slower])
    assert product_sample(gpu, measured).modelled_ns(result) == pytest.approx(measured, rel=0.01)
    assert result.architectures["hopper"] == truth.architectures["hopper"]
