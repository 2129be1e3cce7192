"""Several policies side by side: what a comparison holds and how it shows itself."""

from __future__ import annotations

import pytest

from simgpu.errors import InputError
from simgpu.experiments.compare import Comparison, compare
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.policies.vdnn import Vdnn
from simgpu.trace.chain import chain

TRACE = chain([5_000, 7_000, 9_000], [10_000, 14_000, 15_000], [100_000, 200_000, 300_000])
LINK = LinkSpec("PCIe", 10**10, 10**10)
ROOMY = NodeSpec("roomy", GpuSpec("gpu", 10**9), LINK)
TIGHT = NodeSpec("tight", GpuSpec("gpu", 550_000), LINK)


@pytest.fixture(scope="module")
def mixed() -> Comparison:
    return compare(TRACE, TIGHT, ["ideal", "none", {"vdnn": {"mode": "all"}}])


def test_every_form_of_a_policy_is_taken_and_named_alike() -> None:
    forms = ["vdnn", ("vdnn", {"mode": "conv"}), {"vdnn": {"mode": "conv"}}, Vdnn(mode="conv"), Vdnn()]
    told = compare(TRACE, ROOMY, forms)
    assert [run.label for run in told] == ["vdnn", "vdnn(mode=conv)", "vdnn(mode=conv)", "vdnn(mode=conv)", "vdnn"]
    times = [run.result.iteration_ns for run in told if run.result]
    assert len(times) == len(forms)
    assert times[1] == times[2] == times[3]
    assert times[0] == times[4] == 83_000


def test_out_of_memory_is_an_outcome(mixed: Comparison) -> None:
    assert mixed["none"].result is None
    assert "none" not in mixed.results
    assert mixed["ideal"].result is mixed.results["ideal"]
    with pytest.raises(KeyError):
        _ = mixed["nothing"]


def test_frame_has_a_row_a_run_and_a_column_a_metric(mixed: Comparison) -> None:
    frame = mixed.frame()
    assert list(frame.index) == ["ideal", "none", "vdnn(mode=all)"]
    assert frame.loc["ideal", "iteration_ns"] == 60_000
    assert frame.loc["none"].isna().all()


def test_repr_and_html_show_every_run(mixed: Comparison) -> None:
    lines = repr(mixed).splitlines()
    assert lines[0].split()[:3] == ["policy", "time", "samples/s"]
    assert lines[1].split()[:3] == ["ideal", "60", "us"]
    assert lines[2].startswith("none ")
    assert lines[2].endswith("out of memory")
    shown = mixed._repr_html_()
    assert shown.count("<tr>") == 4
    assert "<td>out of memory</td>" in shown


def test_a_single_iteration_cannot_be_called_steady() -> None:
    once = compare(TRACE, ROOMY, ["none"], iterations=1)
    assert repr(once).splitlines()[1].endswith("unsteady")
    assert not repr(compare(TRACE, ROOMY, ["none"])).splitlines()[1].endswith("unsteady")


def test_mistakes_are_told_before_anything_runs() -> None:
    started: list[str] = []
    with pytest.raises(InputError, match="unknown policy 'nune'"):
        compare(TRACE, ROOMY, ["ideal", "nune"], progress=started.append)
    assert not started
    with pytest.raises(ValueError, match="is not one policy"):
        compare(TRACE, ROOMY, [{"vdnn": {}, "none": {}}])


def test_progress_is_called_before_each_run() -> None:
    told: list[str] = []
    compare(TRACE, ROOMY, ["ideal", ("vdnn", {"mode": "conv"})], progress=told.append)
    assert told == ["ideal", "vdnn(mode=conv)"]
