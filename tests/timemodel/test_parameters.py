"""The tables beside the time model: complete, sourced, bounded; what a damaged one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node, node_names
from simgpu.trace.timemodel.calibration import START, written
from simgpu.trace.timemodel.parameters import PARAMETERS, load_parameters
from simgpu.trace.timemodel.published import PUBLISHED, load_published


def damaged(tmp_path: Path, old: str, new: str, original: Path = PARAMETERS) -> Path:
    text = original.read_text()
    assert text.count(old) == 1
    path = tmp_path / original.name
    path.write_text(text.replace(old, new))
    return path


def test_every_shipped_architecture_has_parameters() -> None:
    architectures = {load_node(name).gpu.architecture for name in node_names()} - {None}
    assert architectures <= set(load_parameters().architectures)


def test_a_table_written_and_read_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "again.yaml"
    path.write_text(written(load_parameters()))
    assert load_parameters(path) == load_parameters()


def test_the_table_before_the_fit_is_a_table() -> None:
    assert load_parameters(START).architectures.keys() == load_parameters().architectures.keys()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("  implicit_gemm: 0.75\n", "", "algorithms: line|algorithms.implicit_gemm: is missing"),
        ("  implicit_gemm: 0.75\n", "  implicit_gemm: 1.2\n", "is too large; write at most 1"),
        ("  implicit_gemm: 0.75\n", "  implicit_gem: 0.75\n", "implicit_gem"),
        ("  directions: ", "  direction: ", "'direction' is not in this file"),
        ("  directions: ", "  halves.rows: ", "directions.forward: has no source"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_parameters(damaged(tmp_path, old, new))


def test_published_figures_are_durations_or_rates_of_known_sources() -> None:
    published = load_published()
    assert {figure.source for figure in published.figures} == set(published.sources)
    by_value = {figure.value: figure.duration_ns for figure in published.figures}
    assert by_value["41.59 ms"] == 41_590_000
    assert by_value["219 samples/s"] == 292_237_443


def test_the_rule_that_holds_figures_out_is_by_network_alone() -> None:
    published = load_published()
    networks = {figure.network for figure in published.figures}
    assert set(published.fitted_networks) < networks
    assert len(networks - set(published.fitted_networks)) >= 5


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"219 samples/s"', '"219"', "'219' is no duration and no rate"),
        ('"219 samples/s", source: tensorflow', '"219 samples/s", source: tensorflo', "did you mean 'tensorflow'"),
    ],
)
def test_a_damaged_figure_is_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_published(damaged(tmp_path, old, new, PUBLISHED))
