"""The parameter table of the time model: complete, with sources and bounds; errors of a damaged table."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from simgpu.errors import InputError
from simgpu.hardware.spec import ArchitectureName
from simgpu.workloads.timemodel.parameters import PARAMETERS, load_parameters


def damaged(tmp_path: Path, old: str, new: str) -> Path:
    text = PARAMETERS.read_text()
    assert text.count(old) == 1
    path = tmp_path / PARAMETERS.name
    path.write_text(text.replace(old, new))
    return path


def test_every_architecture_has_parameters() -> None:
    assert set(load_parameters().architectures) == set(get_args(ArchitectureName))


def test_a_table_without_an_architecture_is_refused(tmp_path: Path) -> None:
    text = PARAMETERS.read_text()
    block = text[text.index("  kepler:") : text.index("  maxwell:")]
    with pytest.raises(InputError, match=r"architectures\.kepler: is missing; add it"):
        load_parameters(damaged(tmp_path, block, ""))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  implicit_gemm: 0.75\n", "", "algorithms: line|algorithms.implicit_gemm: is missing"),
        ("  implicit_gemm: 0.75\n", "  implicit_gemm: 1.2\n", "is too large; write at most 1"),
        ("  implicit_gemm: 0.75\n", "  implicit_gem: 0.75\n", "implicit_gem"),
        ("  directions: ", "  direction: ", "'direction' is not in this file"),
        ("  directions: ", "  halves.rows: ", "directions.forward: has no source"),
    ],
)
def test_a_damaged_table_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_parameters(damaged(tmp_path, old, new))
