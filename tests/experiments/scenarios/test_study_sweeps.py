"""Studies that sweep batches, budgets, or shares of each trace's peak."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.scenarios.model import PolicyChoice
from simgpu.trace.stats import trace_stats
from tests.experiments.scenarios.test_load_study import problems_of, study_file

#: Sweeps of batches.
BATCHES = """\
schema: simgpu.study/2
node: v100
traces:
  VGG: {zoo: vgg11, input: cifar10, batches: [16, 8]}
  chain: {trace: chain, batches: [1, 2]}
  AlexNet: {zoo: alexnet, batch: 16}
runs:
  none: {policy: none}
  vDNN:
    policy: vdnn
    per_trace: {VGG 8: {budget: 2 GB}, VGG: {policy: {vdnn: {mode: conv}}, budget: 1 GB}}
baseline: none
tables: [samples_per_s, breakdown]
published:
  - {run: vDNN, aggregate: VGG, measure: largest_batch, value: 16, source: figure 6}
  - {run: vDNN, aggregate: VGG 8, measure: overlap, value: 1, source: figure 7}
  - {run: vDNN, aggregate: max, excluding: [chain, VGG 8], value: 2, source: figure 6}
"""


def test_a_sweep_becomes_a_trace_for_each_batch(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, BATCHES))
    assert [(label, trace.info.batch, trace.name) for label, trace in study.traces.items()] == [
        ("VGG 16", 16, "vgg11-cifar10-b16-v100"),
        ("VGG 8", 8, "vgg11-cifar10-b8-v100"),
        ("chain 1", 1, "chain"),
        ("chain 2", 2, "chain"),
        ("AlexNet", 16, "alexnet-b16-v100"),
    ]
    assert study.sweeps == {"VGG": ("VGG 16", "VGG 8"), "chain": ("chain 1", "chain 2")}
    assert study.networks == {**study.sweeps, "AlexNet": ("AlexNet",)}
    assert [study.network(trace) for trace in ("VGG 8", "AlexNet")] == ["VGG", "AlexNet"]
    assert [kernel.duration_ns for kernel in study.traces["chain 2"].kernels] == [10, 14, 28, 20]


def test_settings_of_one_batch_have_priority_over_settings_of_the_sweep(tmp_path: Path) -> None:
    (_, run) = load_study(study_file(tmp_path, BATCHES)).runs
    conv = PolicyChoice("vdnn", {"mode": "conv"})
    assert run.on("VGG 16") == (conv, 10**9)
    assert run.on("VGG 8") == (conv, 2 * 10**9)
    assert run.on("chain 1") == (PolicyChoice("vdnn", {}), None)


def test_a_null_sweep_is_omitted_with_its_batches(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, BATCHES), {"traces.VGG": None})
    assert list(study.traces) == ["chain 1", "chain 2", "AlexNet"]
    assert [(row.aggregate, row.excluding) for row in study.published] == [("max", ("chain",))]
    assert study.runs[1].changed == {}
    assert study.notes == ("Excluded: VGG. Means cover the rest, even if the paper's cover all.",)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[16, 8]", "[16, 0]", "line 4, traces.VGG.batches[1]: 0 is too small; write at least 1"),
        ("[16, 8]", "[]", "line 4, traces.VGG.batches: [] is too short"),
        ("[16, 8]", "[16, 8, 16]", "line 4, traces.VGG.batches: 16 is listed twice: give each batch once"),
        ("[16, 8]", "16", "line 4, traces.VGG.batches: 16 is not a list"),
        ("batches: [16, 8]", "batch: 4, batches: [16, 8]", "line 4, traces.VGG.batch: unknown key; did you mean"),
        ("vgg11", "vgg12", "line 4, traces.VGG.zoo: 'vgg12' is not in the zoo; did you mean"),
        ("trace: chain, ", "trace: chian, ", "line 5, traces.chain.trace: no shipped trace is called 'chian'"),
        ("trace: chain, ", "trace: chain, zoo: vgg11, ", "line 5, traces.chain.zoo: unknown key"),
        ("{trace: chain, batches: [1, 2]}", "{trace: chain}", "line 5, traces.chain.batches: is missing; add it"),
        ("  AlexNet:", "  VGG 8:", "line 6, traces.VGG 8: is also the label of 'VGG' at that batch"),
        ("{VGG 8: {", "{VGG 9: {", "line 11, runs.vDNN.per_trace.VGG 9: there is no trace 'VGG 9'; did you mean"),
        ("[samples_per_s, br", "[samples, br", "line 13, tables[0]: 'samples' is not one of the choices"),
        (
            "aggregate: VGG,",
            "aggregate: VGG 8,",
            "line 15, published[0].aggregate: there is no sweep of batches 'VGG 8'; did you mean 'VGG'",
        ),
        (
            "aggregate: VGG 8,",
            "aggregate: VGG 9,",
            "line 16, published[1].aggregate: there is no trace 'VGG 9'; did you mean",
        ),
        ("overlap, value: 1,", "overlap, value: 57,", "line 16, published[1]: value 57 is not a share: write 20% as"),
        ("overlap,", "overlap, vs: none,", "line 16, published[1]: overlap has no baseline: drop vs"),
        ("[chain, VGG 8]", "[chain, VGG, AlexNet]", "line 17, published[2].excluding: excludes every trace"),
        ("[chain, VGG 8]", "[chain, VGG 16, VGG 8, AlexNet]", "line 17, published[2].excluding: excludes every trace"),
    ],
)
def test_a_mistake_in_batches_is_reported_once_with_its_place(
    old: str, new: str, expected: str, tmp_path: Path
) -> None:
    assert BATCHES.count(old) == 1
    message = problems_of(study_file(tmp_path, BATCHES.replace(old, new)))
    assert [line.startswith(f"try.yaml: {expected}") for line in message].count(True) == 1, message


OVERSUBSCRIBED = """\
schema: simgpu.study/2
node: laptop-2gb
traces: {VGG: vgg11-cifar-cpu, ResNet: resnet20-cifar-cpu}
runs:
  all: {policy: none}
  less: {policy: vdnn, oversubscription: [0%, 0.1, 50%]}
baseline: all
"""


def test_oversubscription_sweeps_budgets_relative_to_the_peak_of_each_trace(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, OVERSUBSCRIBED))
    assert [run.label for run in study.runs] == ["all", "less 0%", "less 0.1", "less 50%"]
    assert [run.label for run in study.members("less")] == ["less 0%", "less 0.1", "less 50%"]
    for label, trace in study.traces.items():
        peak = trace_stats(trace).peak_recorded
        assert peak is not None
        budgets = [run.on(label)[1] for run in study.runs]
        assert budgets == [None, peak.bytes, -(-peak.bytes * 10 // 11), -(-peak.bytes * 2 // 3)]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("50%]", "150%]", "line 6, runs.less.oversubscription[2]: '150%' is not a share"),
        ("50%]", "0%]", "line 6, runs.less.oversubscription: two runs have the same label"),
        ("[0%, 0.1, 50%]", "[0%], budget: 1 GB", "line 6, runs.less: a run has budgets or shares of oversubscription"),
        ("node: laptop-2gb", "node: laptop-2gb\noverrides: {node.gpu.memory: 40 MB}", "line 7, runs.less.oversubsc"),
    ],
)
def test_a_mistake_in_oversubscription_is_reported_with_its_place(
    old: str, new: str, expected: str, tmp_path: Path
) -> None:
    message = problems_of(study_file(tmp_path, OVERSUBSCRIBED.replace(old, new)))
    assert any(line.startswith(f"try.yaml: {expected}") for line in message), message


PERCENT = """\
schema: simgpu.study/2
node: v100
traces: {chain: chain, other: chain}
runs:
  half: {policy: vdnn, budget: 50%, per_trace: {other: {budget: 75%}}}
  sweep: {policy: vdnn, budgets: [40%, 80%]}
baseline: half
"""


def test_budgets_in_percent_are_parts_of_each_traces_peak(tmp_path: Path) -> None:
    half, *sweep = load_study(study_file(tmp_path, PERCENT)).runs
    assert [half.on(trace)[1] for trace in ("chain", "other")] == [150, 225]
    assert [(run.label, run.peak_part, run.on("chain")[1]) for run in sweep] == [
        ("sweep 40%", 0.4, 120),
        ("sweep 80%", 0.8, 240),
    ]


def test_a_sweep_mixes_no_sizes_with_percentages(tmp_path: Path) -> None:
    (message,) = problems_of(study_file(tmp_path, PERCENT.replace("[40%,", "[4 GiB,")))
    assert "runs.sweep: a sweep has budgets as sizes or as percentages: write two runs, one with each" in message
