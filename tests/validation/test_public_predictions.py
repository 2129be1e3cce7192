"""Predictions of published rows: all are there, and they come out again where PyTorch is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pytest

from simgpu.validation.public.predicted import compared, covered_rows, median_error, predict, stored_predictions
from simgpu.validation.public.selection import FOLLOWED

COVERED = {row.id: row for row in covered_rows()}
PEAKS = compared(COVERED.values(), stored_predictions())
#: Rows that are quick to predict: LoRA of the first table; and with four bits, an adapter, BERT, a ViT, CS336, offload.
QUICK, SLOW = {"t-305"}, {"t-298", "t-321", "t-153", "t-089", "t-555", "t-206"}
#: A row of each project, and what is compared.
OF_A_PROJECT = {
    "transformers": ("t-154", "device"),
    "litgpt": ("t-319", "allocated"),
    "axolotl": ("t-110", "allocated delta"),
    "assignment2-systems": ("t-558", "allocated"),
    "ao": ("t-091", "allocated"),
    "prime-rl": ("t-208", "reserved"),
    "SimuMax": ("t-506", "allocated"),
    "torchtitan": ("t-039", "active"),
}


def installed(package: str, begins: str = "") -> bool:
    try:
        return version(package).startswith(begins)
    except PackageNotFoundError:
        return False


def test_every_covered_row_is_predicted_and_no_other() -> None:
    assert stored_predictions().keys() == COVERED.keys()


def test_the_median_error_of_the_peak_is_at_most_three_percent() -> None:
    error = median_error(PEAKS)
    assert error is not None and error <= 0.03


def test_many_rows_of_each_followed_project_are_predicted() -> None:
    assert len({peak.row.id for peak in PEAKS if peak.published is not None}) >= 40
    assert OF_A_PROJECT.keys() == FOLLOWED.keys() == {peak.row.project for peak in PEAKS}


@pytest.mark.parametrize("project", OF_A_PROJECT)
def test_a_row_of_each_project_is_predicted_within_three_percent(project: str) -> None:
    of_rows = {(peak.row.id, peak.kind): peak for peak in PEAKS if peak.row.project == project}
    error = of_rows[OF_A_PROJECT[project]].error
    assert error is not None and abs(error) <= 0.03


def test_every_error_above_three_percent_has_a_cause() -> None:
    for peak in PEAKS:
        assert peak.error is None or abs(peak.error) <= 0.03 or peak.cause, peak.row.id


def test_every_verdict_is_right() -> None:
    assert all(peak.is_right for peak in PEAKS)


@pytest.mark.skipif(
    not (installed("torch") and installed("transformers", "4.51")),
    reason="needs the extras 'record' and 'predict' with transformers 4.51",
)
@pytest.mark.parametrize(
    "name",
    [
        *QUICK,
        *(pytest.param(each, marks=pytest.mark.slow) for each in sorted(SLOW)),
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in COVERED if each not in QUICK | SLOW),
    ],
)
def test_a_prediction_comes_out_again(name: str) -> None:
    again = predict(COVERED[name])
    stored = stored_predictions()[name]
    kinds = ("allocated", "reserved", "above_start")
    assert [getattr(again, kind) for kind in kinds] == [getattr(stored, kind) for kind in kinds]
