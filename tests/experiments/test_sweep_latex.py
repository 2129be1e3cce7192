"""LaTeX tables of a sweep: points by policies, outcomes in place of numbers, and escaped texts."""

from __future__ import annotations

import pytest

from simgpu.errors import InputError
from simgpu.experiments.scenarios.load_sweep import make_sweep
from simgpu.experiments.sweep.latex import escaped, latex_table
from simgpu.experiments.sweep.run import SweepResult, run_sweep

VALUES = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "iterations": 1}


def lines_of(result: SweepResult, metric: str = "iteration_ns") -> list[str]:
    return result.latex(metric).splitlines()


def test_rows_are_points_and_columns_are_policies() -> None:
    grid = {"budget": ["60%", "100%"], "policies[1].vdnn.mode": ["conv", "all"]}
    policies = ["none", {"vdnn": {"mode": "all"}}]
    lines = lines_of(run_sweep(make_sweep({**VALUES, "policies": policies, "sweep": {"grid": grid}}, "a 5% test")))
    assert lines[0].startswith("% a 5% test: step time (ms); recorded on CPU (AMD EPYC)")
    assert lines[1:6] == [
        r"\begin{tabular}{llrr}",
        r"\toprule",
        r"& & \multicolumn{2}{c}{step time (ms)} \\",
        r"\cmidrule(lr){3-4}",
        r"budget & policies{[}1].vdnn.mode & none & vdnn \\",
    ]
    assert lines[7:11] == [
        r"60\% & conv & OOM & OOM \\",
        r"60\% & all & OOM & 154.7 \\",
        r"100\% & conv & 110.1 & 111.8 \\",
        r"100\% & all & 110.1 & 154.7 \\",
    ]
    assert lines[11:] == [r"\bottomrule", r"\end{tabular}"]


def test_several_seeds_are_one_row_with_mean_and_deviation() -> None:
    policies = ["none", {"home": {"particles": 4, "iterations": 2}}]
    grid = {"seed": [0, 1, 2], "budget": ["60%", "100%"]}
    result = run_sweep(make_sweep({**VALUES, "policies": policies, "sweep": {"grid": grid}}, "a test"))
    spread = result.seed_spread().set_index(["budget", "policy"])
    mean, std = spread.loc[("60%", "home(particles=4, iterations=2)"), ["iteration_ns_mean", "iteration_ns_std"]] / 1e6
    assert lines_of(result)[7:9] == [
        rf"60\% & OOM & ${mean:.1f} \pm {std:.1f}$ \\",
        r"100\% & $110.1 \pm 0$ & $110.1 \pm 0$ \\",
    ]


def test_policies_that_differ_only_in_what_varies_have_their_own_columns() -> None:
    policies = [{"vdnn": {"mode": "dynamic"}}, {"vdnn": {"mode": "all"}}]
    sweep = {"grid": {"policies[1].vdnn.mode": ["conv", "all"]}}
    lines = lines_of(run_sweep(make_sweep({**VALUES, "policies": policies, "sweep": sweep}, "a test")))
    assert lines[5] == r"policies{[}1].vdnn.mode & vdnn(mode=dynamic) & vdnn(mode=conv) & vdnn \\"


def test_a_mean_of_some_seeds_says_of_how_many() -> None:
    result = run_sweep(make_sweep({**VALUES, "policies": "none", "sweep": {"grid": {"seed": [0, 1, 2]}}}, "a test"))
    rows = list(result.rows())
    rows[1] = {**rows[1], "outcome": "out of memory"}
    assert r"$110.1 \pm 0$ (2 of 3) \\" in latex_table(result.sweep, rows)


def test_a_value_that_is_twice_on_an_axis_is_refused() -> None:
    with pytest.raises(InputError, match=r"sweep\.grid\.seed\[2\]: is there twice on this axis"):
        make_sweep({**VALUES, "policies": "none", "sweep": {"grid": {"seed": [0, 1, 0]}}}, "a test")


@pytest.mark.parametrize("metric", ["slow", "policy", "steady"])
def test_a_metric_that_is_no_number_is_refused(metric: str) -> None:
    result = run_sweep(make_sweep({**VALUES, "policies": "none", "sweep": {"grid": {"seed": [0]}}}, "a test"))
    with pytest.raises(InputError, match=rf"argument metric: '{metric}' is not a numeric column of this sweep;"):
        result.latex(metric)


def test_special_characters_are_escaped_once() -> None:
    assert escaped("a_b & 5% $#~^ \\{x}\n[y") == (
        r"a\_b \& 5\% \$\#\textasciitilde{}\textasciicircum{} \textbackslash{}\{x\} {[}y"
    )
