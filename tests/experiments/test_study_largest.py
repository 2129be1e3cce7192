"""Studies of the largest batch that fits each run: a small version of HOME's table 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.experiments.max_batch import max_batch
from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.scenarios.study import Study
from simgpu.experiments.study import StudyResult, run_study
from simgpu.experiments.study_tables import failures, published_rows, study_tables
from simgpu.hardware.nodes import load_node
from simgpu.trace.folder import load_trace

FILE = """\
schema: simgpu.study/2
name: try
node: v100
largest_batch: true
traces:
  AlexNet: {zoo: alexnet, input: cifar10, batch: 64}
  recorded: resnet20-cifar-cpu
runs:
  none: {policy: none, budget: 200 MB}
  vDNN: {policy: vdnn, budget: 200 MB}
  tiny: {policy: none, budget: 1 MB}
  endless: {policy: ideal}
baseline: none
tables: [largest_batch, batch_ratio, throughput]
published:
  - {run: vDNN, aggregate: sum, measure: batch_ratio, value: 2.2, source: "4.4"}
  - {run: vDNN, aggregate: mean, measure: batch_ratio, value: 2.39, source: "4.4"}
  - {run: tiny, aggregate: sum, measure: batch_ratio, value: 1, source: "4.4"}
"""


def study_of(folder: Path, *changes: tuple[str, str]) -> Study:
    text = FILE
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = folder / "try.yaml"
    path.write_text(text, encoding="utf-8")
    return load_study(path)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return run_study(study_of(tmp_path_factory.mktemp("largest")))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["none", "vdnn"])
def test_a_run_uses_the_batch_found_by_max_batch(policy: str, result: StudyResult) -> None:
    run = {"none": "none", "vdnn": "vDNN"}[policy]
    (outcome,) = max_batch(load_trace("resnet20-cifar-cpu"), load_node("v100"), [policy], budget="200 MB")
    assert outcome.result is not None
    cell = result.cells["recorded", run]
    assert (cell.batch, cell.iteration_ns) == (outcome.batch, (outcome.result.iteration_ns,))
    assert cell.samples_per_s == pytest.approx(outcome.result.metrics.samples_per_s)
    assert cell.batch != 32, "of the trace, where the search begins"


@pytest.mark.slow
def test_improvements_are_given_per_network_and_for_the_sums(result: StudyResult) -> None:
    batches = {key: cell.batch for key, cell in result.cells.items()}
    networks = ("AlexNet", "recorded")
    gains = [batches[network, "vDNN"] / batches[network, "none"] for network in networks]
    assert [result.value("batch_ratio", network, "vDNN", "none") for network in networks] == gains
    of_sums, of_ratios, nothing = result.comparisons()
    simulated, expected = (sum(batches[network, run] for network in networks) for run in ("vDNN", "none"))
    assert of_sums.simulated == simulated / expected
    assert of_ratios.simulated == pytest.approx(sum(gains) / 2)
    assert of_ratios.simulated != of_sums.simulated
    assert nothing.simulated is None
    assert published_rows(result)[0][0] == "vDNN over none, sum, largest batch"


@pytest.mark.slow
def test_without_a_limit_or_a_fitting_batch_there_is_no_largest_batch(result: StudyResult) -> None:
    assert result.cells["recorded", "tiny"].out_of_memory
    assert result.cells["recorded", "endless"].refused
    assert result.value("largest_batch", "recorded", "tiny") is None
    assert any("endless: " in text and "any batch fits" in text for text in failures(result))
    (first, *_), _ = study_tables(result)[0].rows[:2]
    assert first == "AlexNet"


def test_tables_have_no_column_for_the_batch_of_the_trace(result: StudyResult) -> None:
    largest, gains, rates = study_tables(result)
    for table in (largest, gains, rates):
        assert table.headings == ("", "none", "vDNN", "tiny", "endless")
    row = dict(zip(largest.headings, largest.rows[1], strict=True))
    assert row["vDNN"] == str(result.cells["recorded", "vDNN"].batch)
    assert (row["tiny"], row["endless"]) == ("OOM", "refused")


def test_the_frame_and_the_facts_contain_the_largest_batch(result: StudyResult) -> None:
    assert result.frame().loc[("recorded", "vDNN"), "batch"] == result.cells["recorded", "vDNN"].batch
    assert ("batch", "the largest that fits, for each run") in result.study.facts()
    assert result.to_dict()["largest_batch"] is True


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("batch: 64", "batches: [32, 64]"), "largest_batch: cannot be combined with the sweep of batches of AlexNet"),
        (("baseline: none", "baseline: none\nepochs: [0, 1]"), "the largest batch is searched for one epoch"),
        (("{policy: ideal}", "{policy: ideal, data_parallel: {gpus: 2}}"), "the largest batch is searched for one GPU"),
        (
            ("aggregate: mean, measure: batch_ratio", "aggregate: sum"),
            "throughput cannot be summed: write mean, min or max",
        ),
    ],
)
def test_studies_whose_largest_batch_cannot_be_searched_are_refused(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        study_of(tmp_path, change)
