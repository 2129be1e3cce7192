"""Several policies side by side: the contents of a comparison and its display."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from matplotlib.patches import Rectangle

from simgpu.errors import InputError, MissingExtraError
from simgpu.experiments.compare import Comparison, compare
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.policies.vdnn import Vdnn
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace
from simgpu.trace.model import Origin

TRACE = chain([5_000, 7_000, 9_000], [10_000, 14_000, 15_000], [100_000, 200_000, 300_000])
LINK = LinkSpec("PCIe", 10**10, 10**10)
ROOMY = NodeSpec("roomy", GpuSpec("gpu", 10**9), LINK)
TIGHT = NodeSpec("tight", GpuSpec("gpu", 550_000), LINK)


@pytest.fixture(scope="module")
def mixed() -> Comparison:
    return compare(TRACE, TIGHT, ["ideal", "none", {"vdnn": {"mode": "all"}}])


def test_every_form_of_a_policy_is_accepted_with_the_same_label() -> None:
    forms = ["vdnn", ("vdnn", {"mode": "conv"}), {"vdnn": {"mode": "conv"}}, Vdnn(mode="conv"), Vdnn()]
    message = compare(TRACE, ROOMY, forms)
    assert [run.label for run in message] == ["vdnn", "vdnn(mode=conv)", "vdnn(mode=conv)", "vdnn(mode=conv)", "vdnn"]
    times = [run.result.iteration_ns for run in message if run.result]
    assert len(times) == len(forms)
    assert times[1] == times[2] == times[3]
    assert times[0] == times[4] == 83_000


def test_out_of_memory_is_an_outcome_of_a_comparison(mixed: Comparison) -> None:
    assert mixed["none"].result is None
    assert "none" not in mixed.results
    assert mixed["ideal"].result is mixed.results["ideal"]
    with pytest.raises(KeyError):
        _ = mixed["nothing"]


def test_a_policy_that_refuses_the_trace_does_not_end_the_comparison() -> None:
    mixed = compare(TRACE, ROOMY, ["cdma", "none", "cswap"])
    assert [(run.failure, run.refused) for run in mixed] == [("refused", True), ("", False), ("refused", True)]
    assert list(mixed.results) == ["none"]
    assert mixed["cdma"].to_dict()["refused"]["message"] == str(mixed["cdma"].outcome)
    assert mixed["cdma"].to_dict()["refused"]["problems"][0]["place"] == "node.gpu.cdma"
    assert mixed.frame().loc["cdma", ["iteration_ns"]].isna().all()
    assert "refused" in repr(mixed).splitlines()[2]


def test_a_policy_with_a_missing_package_does_not_end_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(self: object, context: object) -> None:
        raise MissingExtraError("this", "a-package", "an-extra")

    monkeypatch.setattr(Vdnn, "plan", plan)
    message = compare(TRACE, ROOMY, ["none", "vdnn"])["vdnn"].to_dict()["refused"]
    assert (message["package"], message["extra"]) == ("a-package", "an-extra")
    with pytest.raises(MissingExtraError):
        compare(TRACE, ROOMY, ["vdnn"])


def test_if_every_policy_refuses_each_reason_is_given_once() -> None:
    with pytest.raises(InputError) as each:
        compare(TRACE, ROOMY, ["cdma", "cswap"])
    assert [problem.place for problem in each.value.problems] == ["cdma", "cswap"]
    with pytest.raises(InputError) as alone:
        compare(TRACE, ROOMY, ["cdma"])
    assert [problem.place for problem in alone.value.problems] == ["node.gpu.cdma"]
    with pytest.raises(InputError) as shared:
        compare(TRACE, ROOMY, ["ideal", "none"], iterations=0)
    assert [problem.place for problem in shared.value.problems] == ["argument iterations"]


def test_the_frame_has_a_row_per_run_and_a_column_per_metric(mixed: Comparison) -> None:
    frame = mixed.frame()
    assert list(frame.index) == ["ideal", "none", "vdnn"]
    assert frame.loc["ideal", "iteration_ns"] == 60_000
    about = ["trace", "node", "origin", "device", "date"]
    assert list(frame.columns[-5:]) == about
    assert frame.loc["none"].drop(about).isna().all()
    assert list(frame.loc["none", about]) == ["chain", "tight", "modelled", "hand-made", ""]


def test_a_frame_without_results_keeps_its_metadata() -> None:
    frame = compare(TRACE, TIGHT, ["none"]).frame()
    assert list(frame.index) == ["none"]
    assert list(frame.loc["none"]) == ["chain", "tight", "modelled", "hand-made", ""]


def test_repr_and_html_show_every_run(mixed: Comparison) -> None:
    caption, *lines = repr(mixed).splitlines()
    assert caption == "chain on tight; modelled, not recorded, for hand-made"
    assert lines[0].split()[:4] == ["policy", "step", "time", "samples/s"]
    assert lines[1].split()[:3] == ["ideal", "60", "us"]
    assert lines[2].startswith("none ")
    assert lines[2].endswith("OOM")
    shown = mixed._repr_html_()
    assert shown.count("<tr>") == 4
    assert "<td>OOM</td>" in shown
    assert f"<caption>{caption}</caption>" in shown


def test_a_single_iteration_cannot_be_called_steady() -> None:
    once = compare(TRACE, ROOMY, ["none"], iterations=1)
    assert repr(once).splitlines()[-1].endswith("one iteration")
    assert not repr(compare(TRACE, ROOMY, ["none"])).splitlines()[-1].endswith(("one iteration", "unsteady"))


def test_mistakes_are_reported_before_anything_runs() -> None:
    started: list[str] = []
    with pytest.raises(InputError, match="unknown policy 'nune'"):
        compare(TRACE, ROOMY, ["ideal", "nune"], progress=started.append)
    assert not started
    with pytest.raises(InputError, match="is not one policy"):
        compare(TRACE, ROOMY, [{"vdnn": {}, "none": {}}])


def test_a_policy_need_not_be_in_a_list() -> None:
    assert [run.label for run in compare(TRACE, ROOMY, "ideal")] == ["ideal"]


def test_the_gap_to_the_bound_is_given_only_where_the_bound_applies() -> None:
    result = compare(TRACE, ROOMY, ["ideal", "none", ("modnn", {"sub_batch": 1})], pool="addressed", bound=True)
    at = result.headings.index("gap")
    assert [row[at] for row in result.rows()] == ["-", "0.0%", "-"]


def test_progress_is_called_before_each_run() -> None:
    message: list[str] = []
    compare(TRACE, ROOMY, ["ideal", ("vdnn", {"mode": "conv"})], progress=message.append)
    assert message == ["ideal", "vdnn(mode=conv)"]


def test_arguments_override_a_scenario(tmp_path: Path) -> None:
    text = "schema: simgpu.scenario/2\ntrace: chain\nnode: laptop-2gb\npolicies: [none, vdnn]\n"
    write_trace(TRACE, tmp_path / "chain")
    (tmp_path / "own.yaml").write_text(
        text + "iterations: 4\nseed: 7\nbudget: 1 MB\npool: addressed\nalignment: 1 KiB\n"
    )
    scenario = load_scenario(tmp_path / "own.yaml")
    for run in (own := compare(scenario)):
        assert run.result is not None
        assert (run.result.iterations, run.result.seed, run.result.budget) == (4, 7, 1_000_000)
        assert (run.result.pool, run.result.node.gpu.alignment, run.result.node.name) == (
            "addressed",
            1024,
            "laptop-2gb",
        )
    assert list(own.results) == ["none", "vdnn"]
    (other,) = compare(scenario, ROOMY, ["ideal"], iterations=2, seed=0, budget="2 MB", pool="counting", alignment=1)
    assert other.result is not None
    assert (other.result.iterations, other.result.seed, other.result.budget) == (2, 0, 2_000_000)
    assert (other.result.pool, other.result.node.gpu.alignment, other.result.node.name) == ("counting", 1, "roomy")


def test_a_trace_needs_a_node_and_a_name_must_be_loaded() -> None:
    with pytest.raises(InputError, match="argument trace: 'quickstart' is neither a trace nor a scenario; use"):
        compare("quickstart")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="argument node: is missing; load one with"):
        compare(TRACE)


def test_run_and_result_have_the_same_label(mixed: Comparison) -> None:
    for label, result in mixed.results.items():
        assert result.label == label
        assert f"policy      {label}\n" in repr(result)
    conv = compare(TRACE, ROOMY, [Vdnn(mode="conv")])["vdnn(mode=conv)"]
    assert conv.parameters == {"mode": "conv", "algorithms": "recorded"}


def test_the_plot_of_a_result_has_phases_and_provenance(mixed: Comparison) -> None:
    result = mixed.results["vdnn"]
    figure = result.plot()
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert legend[:2] == ["forward", "backward"]
    title = "vdnn: chain on tight\nmodelled, not recorded, for hand-made"
    assert [result.plot(what).axes[0].get_title(loc="left") for what in ("run", "timeline", "memory")] == [title] * 3
    assert [len(result.plot(what).axes) for what in ("run", "timeline", "memory")] == [2, 1, 1]


def test_an_unknown_device_is_not_named() -> None:
    info = replace(TRACE.info, origin=Origin.IMPORTED, device="not recorded")
    result = compare(replace(TRACE, info=info), ROOMY, ["none"]).results["none"]
    assert "batch 1, imported, device not recorded\n" in repr(result)
    assert result.plot().axes[0].get_title(loc="left").endswith("\nimported, device not recorded")


@pytest.mark.parametrize("what", ["memory", "run"])
def test_the_plot_of_ideal_shows_the_exceeded_budget(mixed: Comparison, what: Literal["memory", "run"]) -> None:
    ideal = mixed.results["ideal"]
    assert ideal.metrics.device_peak_bytes > TIGHT.budget
    axes = ideal.plot(what).axes[-1]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["live blocks", "budget 537.1 KiB"]
    assert any(set(line.get_ydata()) == {TIGHT.budget / 2**10} for line in axes.lines)


def test_the_plot_of_a_comparison_has_a_bar_per_run_as_long_as_its_iteration(mixed: Comparison) -> None:
    (ax,) = mixed.plot().axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["ideal", "none", "vdnn"]
    assert [text.get_text() for text in ax.texts if text.get_text() == "OOM"] == ["OOM"]
    ends = {patch.get_y(): patch.get_x() + patch.get_width() for patch in ax.patches if isinstance(patch, Rectangle)}
    times = [mixed.results[run].iteration_ns for run in ("ideal", "vdnn")]
    assert [ends[row] * 1000 for row in sorted(ends)] == pytest.approx(times)
