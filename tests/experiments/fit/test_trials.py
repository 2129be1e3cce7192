"""`fit` in several processes."""

from __future__ import annotations

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.policies.base import no_progress


@pytest.mark.slow
def test_the_answer_does_not_depend_on_the_number_of_processes() -> None:
    said: list[str] = []
    alone, together = (
        simgpu.fit("alexnet", "rtx3060", jobs=jobs, progress=said.append if jobs > 1 else no_progress)
        for jobs in (1, 2)
    )
    assert together.rows == alone.rows
    assert len(alone.rows) > 10
    assert said[-1].endswith("options tried, in 2 processes")


def test_a_number_of_processes_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="0 is not a whole number of at least 1"):
        simgpu.fit("resnet18", "rtx3060", batch=1, jobs=0)
