"""Tables of a trace whose cells are unusually long."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.trace.folder import read_trace, write_trace
from simgpu.trace.model import Block, BlockKind
from tests.trace.small import SMALL


@pytest.fixture(autouse=True)
def _usual_limit_of_csv():
    before = csv.field_size_limit(131_072)
    yield
    csv.field_size_limit(before)


def _with_many_weights(count: int):
    """The small trace, whose optimizer updates this many weights more in its one kernel."""
    weights = [Block(f"decoder.layers.{n}.weight", 4, BlockKind.WEIGHT, persistent=True) for n in range(count)]
    *others, step = SMALL.kernels
    names = tuple(weight.id for weight in weights)
    step = replace(step, reads=(*step.reads, *names), writes=(*step.writes, *names))
    return replace(SMALL, kernels=(*others, step), blocks=(*SMALL.blocks, *weights))


def test_a_kernel_that_names_thousands_of_blocks_is_written_and_read(tmp_path: Path) -> None:
    trace = _with_many_weights(8000)
    write_trace(trace, tmp_path / "many")
    assert max(map(len, (tmp_path / "many" / "kernels.csv").read_text().splitlines())) > 2 * 131_072
    assert read_trace(tmp_path / "many").kernels == trace.kernels


def test_an_open_quote_in_a_long_file_is_an_error_with_its_place(tmp_path: Path) -> None:
    write_trace(_with_many_weights(8000), tmp_path / "cut")
    kernels = tmp_path / "cut" / "kernels.csv"
    header, _, rows = kernels.read_text().partition("\n")
    kernels.write_text(f'{header}\n"{rows}')
    with pytest.raises(InputError, match=r"kernels\.csv: row \d+: not readable as CSV .* a quote left open"):
        read_trace(tmp_path / "cut")
