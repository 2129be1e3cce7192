"""Studies: a valid one is loaded; all mistakes in it and in its files are reported together."""

from __future__ import annotations

from pathlib import Path

import pytest

from simgpu.cli.schema import json_schema
from simgpu.errors import InputError
from simgpu.experiments.scenarios.catalogue import shipped_scenarios, shipped_studies
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.experiments.scenarios.load_study import load_study
from simgpu.experiments.scenarios.model import PolicyChoice
from simgpu.experiments.scenarios.study import PublishedNumber
from simgpu.graph.replicate import Exchange
from simgpu.io.shipped import shipped_names
from simgpu.program.data_parallel import DataParallel
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace

GOOD = """\
schema: simgpu.study/2
node: v100
overrides: {node.gpu.memory: 8 GiB, node.link.d2h_bandwidth: 10 GB/s}
traces:
  chain: chain
  AlexNet: {zoo: alexnet, batch: 16, epochs: 3}
runs:
  vDNN: {policy: {vdnn: {mode: conv}}}
  small: {policy: vdnn, overrides: {node.gpu.memory: 4 GiB}}
  other: {policy: none, node: titan-xp}
  oracle: {policy: ideal}
baseline: vDNN
epochs: [0, 2]
published:
  - {run: small, value: 1.2, source: section 1}
  - run: other
    vs: oracle
    aggregate: max
    excluding: [chain]
    measure: time_saved
    value: 0.3
    source: figure 2
    note: it is said so
"""


#: Budgets, several GPUs, and numbers of other things than throughput.
BUDGETS = """\
schema: simgpu.study/2
node: k40-x4
traces:
  AlexNet: {zoo: alexnet, batch: 32, framework: fused}
  VGG-11: {zoo: vgg11, batch: 16, framework: fused}
runs:
  ideal: {policy: ideal}
  moDNN:
    policy: modnn
    budget: 2 GB
    per_trace: {VGG-11: {budget: 3 GB, policy: {modnn: {sub_batch: 4}}}}
  sweep: {policy: modnn, budgets: [1 GB, 2 GB]}
  vDNN+: {policy: vdnn+, budgets: [2 GB, 1 GB, 4 GB]}
  four: {policy: modnn, data_parallel: {gpus: 4, exchange: host, cores: 2}}
baseline: [ideal, vDNN+]
tables: [time_increase, traffic]
published:
  - {run: moDNN, measure: time_increase, value: 0.03, source: figure 10}
  - {run: sweep, vs: vDNN+, value: 1.26, source: figure 12}
  - {run: sweep 2 GB, vs: moDNN, aggregate: VGG-11, measure: traffic_reduction, value: 4, source: figure 11}
  - {run: four, measure: peak_power, value: 0.5, source: figure 15}
  - {memory: bound, value: 59, source: figure 9}
  - {memory: algorithms, measure: memory_saved, value: 0.15, source: figure 13}
"""


def study_file(folder: Path, text: str = GOOD) -> Path:
    if not (folder / "chain").exists():
        write_trace(chain([5, 7], [10, 14], [100, 200]), folder / "chain")
    path = folder / "try.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(path: Path, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        load_study(path, overrides)
    return [str(problem).replace(str(path.parent) + "/", "") for problem in caught.value.problems]


def test_a_study_is_loaded_field_by_field(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path))
    assert (study.name, study.baseline, study.epochs, study.iterations, study.seed) == ("try", ("vDNN",), (0, 2), 3, 0)
    assert [(label, trace.name) for label, trace in study.traces.items()] == [
        ("chain", "chain"),
        ("AlexNet", "alexnet-b16-v100"),
    ]
    assert [(run.label, run.policy) for run in study.runs] == [
        ("vDNN", PolicyChoice("vdnn", {"mode": "conv"})),
        ("small", PolicyChoice("vdnn", {})),
        ("other", PolicyChoice("none", {})),
        ("oracle", PolicyChoice("ideal", {})),
    ]
    assert study.published == (
        PublishedNumber("small", "vDNN", "mean", 1.2, "throughput", "section 1"),
        PublishedNumber("other", "oracle", "max", 0.3, "time_saved", "figure 2", ("chain",), "it is said so"),
    )


def test_node_changes_of_a_run_have_priority_over_those_of_the_study(tmp_path: Path) -> None:
    gib, path = 2**30, study_file(tmp_path)

    def memory(overrides: dict[str, object]) -> list[int]:
        return [run.node.budget // gib for run in load_study(path, overrides).runs]

    assert memory({}) == [8, 4, 8, 8]
    assert memory({"node.gpu.memory": "2 GiB"}) == [2, 2, 2, 2]
    nodes = [run.node for run in load_study(path).runs]
    assert [node.gpu.name for node in nodes] == ["Tesla V100 PCIe", "Tesla V100 PCIe", "Titan Xp", "Tesla V100 PCIe"]
    assert {node.link.d2h_bandwidth for node in nodes} == {10**10}


def test_baselines_are_one_name_or_an_ordered_list(tmp_path: Path) -> None:
    text = GOOD.replace("baseline: vDNN", "baseline: [oracle, vDNN]")
    study = load_study(study_file(tmp_path, text))
    assert study.baseline == ("oracle", "vDNN")
    assert study.published[0].vs == "oracle"


def test_any_value_can_be_overridden(tmp_path: Path) -> None:
    changes: dict[str, object] = {"epochs": [1], "runs.small.policy": "none", "traces.AlexNet.batch": 8}
    study = load_study(study_file(tmp_path), changes)
    assert study.epochs == (1,)
    assert study.runs[1].policy == PolicyChoice("none", {})
    assert study.traces["AlexNet"].info.batch == 8


def test_a_null_trace_or_run_is_omitted_with_its_published_numbers(tmp_path: Path) -> None:
    path = study_file(tmp_path)
    study = load_study(path, {"traces.chain": None, "runs.small": None})
    assert list(study.traces) == ["AlexNet"]
    assert [run.label for run in study.runs] == ["vDNN", "other", "oracle"]
    assert [(row.run, row.excluding) for row in study.published] == [("other", ())]
    assert not load_study(path, {"traces.AlexNet": None, "runs.small": None}).published
    assert study.notes == ("Excluded: chain, small. Means cover the rest, even if the paper's cover all.",)


def test_an_omitted_trace_omits_its_settings(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, BUDGETS), {"traces.VGG-11": None})
    assert list(study.traces) == ["AlexNet"]
    assert all(row.aggregate != "VGG-11" for row in study.published)


def test_omitting_all_traces_or_a_baseline_is_refused(tmp_path: Path) -> None:
    result = problems_of(study_file(tmp_path), {"traces.chain": None, "traces.AlexNet": None})
    assert any("traces.chain" in problem for problem in result)
    (problem,) = problems_of(study_file(tmp_path), {"runs.vDNN": None})
    assert "vDNN" in problem


def test_repr_fits_one_screen(tmp_path: Path) -> None:
    lines = repr(load_study(study_file(tmp_path))).splitlines()
    assert lines[0].split() == ["study", "try"]
    assert "origin      modelled, not recorded, for Tesla V100 PCIe, by simgpu zoo 0.1.0, sparsity too" in lines
    assert any(line.startswith("run         epochs 0, 2, weighted equally") for line in lines)


def test_a_sweep_becomes_a_run_for_each_budget(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, BUDGETS))
    assert [(run.label, run.sweep, run.budget) for run in study.runs] == [
        ("ideal", "", None),
        ("moDNN", "", 2 * 10**9),
        ("sweep 1 GB", "sweep", 10**9),
        ("sweep 2 GB", "sweep", 2 * 10**9),
        ("vDNN+ 2 GB", "vDNN+", 2 * 10**9),
        ("vDNN+ 1 GB", "vDNN+", 10**9),
        ("vDNN+ 4 GB", "vDNN+", 4 * 10**9),
        ("four", "", None),
    ]
    sweep = study.members("sweep")
    assert [run.at for run in sweep] == ["1 GB", "2 GB"]
    partners = [study.compared(run, "vDNN+") for run in sweep]
    assert [partner and partner.label for partner in partners] == ["vDNN+ 1 GB", "vDNN+ 2 GB"]
    assert study.compared(study.members("four")[0], "vDNN+") is None
    assert study.compared(sweep[0], "ideal") == study.runs[0]


def test_a_run_may_have_settings_per_trace_and_several_gpus(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, BUDGETS))
    (run,), (four,) = study.members("moDNN"), study.members("four")
    assert run.on("AlexNet") == (PolicyChoice("modnn", {}), 2 * 10**9)
    assert run.on("VGG-11") == (PolicyChoice("modnn", {"sub_batch": 4}), 3 * 10**9)
    assert four.data_parallel == DataParallel(4, Exchange.HOST, 2)


def test_published_numbers_concern_two_runs_one_run_or_memory(tmp_path: Path) -> None:
    study = load_study(study_file(tmp_path, BUDGETS))
    assert study.tables == ("time_increase", "traffic")
    assert [(row.run, row.vs, row.measure, row.memory) for row in study.published] == [
        ("moDNN", "ideal", "time_increase", None),
        ("sweep", "vDNN+", "throughput", None),
        ("sweep 2 GB", "moDNN", "traffic_reduction", None),
        ("four", "", "peak_power", None),
        ("", "", "memory", "bound"),
        ("", "", "memory_saved", "algorithms"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("    budget: 2 GB", "    budget: 13 GiB", "line 10, runs.moDNN.budget: 13 GiB is more than the 12 GiB that"),
        ("    budget: 2 GB", "    budget: 2", "line 10, runs.moDNN.budget: 2 has no unit"),
        ("[1 GB, 2 GB]", "[1 GB, 20 GB]", "line 12, runs.sweep.budgets[1]: 20 GB is more than the 12 GiB"),
        (
            "[1 GB, 2 GB]",
            "[50]",
            "line 12, runs.sweep.budgets[0]: 50 has no unit: a size is a text with a unit, for example '8 GiB'; "
            "a budget may also be a part of the peak without offloading, such as '50%'",
        ),
        ("[1 GB, 2 GB]", "[1 GB, 1 GB]", "line 12, runs.sweep.budgets: two runs have the same label"),
        ("[1 GB, 2 GB]}", "[1 GB], budget: 2 GB}", "line 12, runs.sweep: a run has a budget or a sweep of budgets"),
        (
            "[1 GB, 2 GB]}",
            "[1 GB, 2 GB], per_trace: {AlexNet: {budget: 1 GB}}}",
            "line 12, runs.sweep: a sweep sets the budget on every trace",
        ),
        ("{VGG-11: {b", "{VGG11: {b", "line 11, runs.moDNN.per_trace.VGG11: there is no trace 'VGG11'; did you mean"),
        ("budget: 3 GB", "budget: 30 GB", "line 11, runs.moDNN.per_trace.VGG-11.budget: 30 GB is more than the"),
        ("sub_batch: 4", "sub_bach: 4", "line 11, runs.moDNN.per_trace.VGG-11.policy.modnn.sub_bach: policy 'modnn'"),
        (
            "{budget: 3 GB, policy: {modnn: {sub_batch: 4}}}",
            "{}",
            "line 11, runs.moDNN.per_trace.VGG-11: changes nothing",
        ),
        ("gpus: 4", "gpus: 5", "line 14, runs.four.data_parallel.gpus: node k40-x4 has 4 GPUs, not 5"),
        ("cores: 2", "cores: 21", "line 14, runs.four.data_parallel.cores: the host of node k40-x4 has 20 cores"),
        ("batch: 16", "batch: 18", "line 14, runs.four.data_parallel.gpus: a batch of 18 cannot be divided evenly"),
        ("exchange: host", "exchange: hots", "line 14, runs.four.data_parallel.exchange: 'hots' is not one of"),
        ("[time_increase, traffic]", "[time_lost]", "line 16, tables[0]: 'time_lost' is not one of the choices"),
        ("[time_increase, traffic]", "[]", "line 16, tables: [] is too short"),
        ("run: sweep 2", "run: sweep 3", "line 20, published[2].run: there is no run 'sweep 3 GB'; did you mean"),
        ("[2 GB, 1 GB, 4 GB]", "[1 GB]", "line 19, published[1].run: 'vDNN+' is a sweep, and has no run for every"),
        (
            "run: four, measure",
            "run: four, vs: ideal, measure",
            "line 21, published[3]: peak_power has no",
        ),
        ("memory: bound", "memory: bond", "line 22, published[4].memory: 'bond' is not one of the choices"),
        ("memory: bound", "memory: bound, run: four", "line 22, published[4]: needs either a run or an amount of"),
        ("memory: bound", "aggregate: mean", "line 22, published[4]: needs either a run or an amount of memory"),
        ("memory: bound", "memory: bound, vs: four", "line 22, published[4]: memory has no baseline"),
        (
            "memory: bound",
            "memory: bound, measure: time",
            "line 22, published[4]: time is not a measure of an amount",
        ),
        ("memory: bound", "run: four, measure: memory", "line 22, published[4]: memory is not a measure of a run"),
        ("value: 0.15", "value: 15", "line 23, published[5]: value 15 is not a share: write 20% as 0.2"),
    ],
)
def test_mistakes_in_budgets_gpus_and_measures_are_reported_with_their_place(
    old: str, new: str, expected: str, tmp_path: Path
) -> None:
    assert BUDGETS.count(old) == 1
    message = problems_of(study_file(tmp_path, BUDGETS.replace(old, new)))
    assert any(line.startswith(f"try.yaml: {expected}") for line in message), message
    assert len(message) == len(set(message))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("baseline: vDNN", "baseline: vDN", "line 12, baseline: there is no run 'vDN'; did you mean 'vDNN'?"),
        ("baseline: vDNN", "baseline: []", "line 12, baseline: [] is too short"),
        ("epochs: [0, 2]", "epochs: [-1]", "line 13, epochs[0]: -1 is too small; write at least 0"),
        ("epochs: [0, 2]", "epochs: 2", "line 13, epochs: 2 is not a list"),
        ("node: v100", "node: v10", "line 2, node: no shipped node is called 'v10'"),
        ("  chain: chain", "  mean: chain", "line 5, traces.mean: 'mean' is the name of an aggregate over all traces"),
        ("  chain: chain", "  chain: chian", "line 5, traces.chain: no shipped trace is called 'chian'"),
        ("  chain: chain", "  chain: 5", "line 5, traces.chain: 5 is neither a name nor a mapping"),
        ("batch: 16", "batch: 0", "line 6, traces.AlexNet.batch: 0 is too small"),
        ("policy: none", "policy: nune", "line 10, runs.other.policy: unknown policy 'nune'; did you mean 'none'?"),
        ("{mode: conv}", "{mod: conv}", "line 8, runs.vDNN.policy.vdnn.mod: policy 'vdnn' has no such parameter"),
        ("policy: none", "polcy: none", "line 10, runs.other.polcy: unknown key; did you mean 'policy'?"),
        ("{policy: none, node: titan-xp}", "none", "line 10, runs.other: 'none' is not a mapping"),
        (
            "titan-xp",
            "titanxp",
            "line 10, runs.other.node: no shipped node is called 'titanxp'; did you mean 'titan-xp",
        ),
        ("memory: 4 GiB", "memory: 4", "line 9, runs.small.overrides.node.gpu.memory: 4 has no unit"),
        ("memory: 4 GiB", "memry: 4 GiB", "line 9, runs.small.overrides.node.gpu.memry: unknown key"),
        ("node.gpu.memory: 4", "gpu.memory: 4", "line 9, runs.small.overrides.gpu.memory: is not a key of the node"),
        ("memory: 8 GiB", "memory: -8 GiB", "line 3, overrides.node.gpu.memory: '-8 GiB' is negative"),
        ("run: small", "run: smal", "line 15, published[0].run: there is no run 'smal'; did you mean 'small'?"),
        ("run: small", "run: vDNN", "line 15, published[0].run: 'vDNN' is compared with itself"),
        (
            "vs: oracle",
            "vs: orcale",
            "line 17, published[1].vs: there is no run 'orcale'; did you mean 'oracle'?",
        ),
        (
            "aggregate: max",
            "aggregate: median",
            "line 18, published[1].aggregate: there is no trace 'median'; did you mean 'mean'?",
        ),
        (
            "aggregate: max",
            "aggregate: AlexNet",
            "line 19, published[1].excluding: applies only to aggregates, and 'AlexNet' is one trace",
        ),
        ("[chain]", "[chan]", "line 19, published[1].excluding[0]: there is no trace 'chan'; did you mean 'chain'?"),
        ("[chain]", "[chain, AlexNet]", "line 19, published[1].excluding: excludes every trace"),
        ("time_saved", "time_lost", "line 20, published[1].measure: 'time_lost' is not one of the choices"),
        ("value: 0.3", "value: some", "line 21, published[1].value: 'some' should be a valid number"),
        ("    source: figure 2\n", "", "line 16, published[1].source: is missing; add it"),
        ("epochs: [0, 2]", "epoch: 2", "line 13, epoch: unknown key; did you mean 'epochs'?"),
    ],
)
def test_a_mistake_is_reported_at_its_place(old: str, new: str, expected: str, tmp_path: Path) -> None:
    message = problems_of(study_file(tmp_path, GOOD.replace(old, new)))
    assert any(line.startswith(f"try.yaml: {expected}") for line in message), message
    assert len(message) == len(set(message))


def test_all_problems_of_all_files_are_reported_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("v100", "v10").replace("policy: none", "policy: nune").replace("run: small", "run: smal")
    message = problems_of(study_file(tmp_path, text), {"traces.AlexNet.zoo": "alexnett", "seed": -1})
    places = [line.split(": ")[1] for line in message]
    assert places == ["seed", "line 2, node", "line 10, runs.other.policy"]
    message = problems_of(study_file(tmp_path, GOOD.replace("run: small", "run: smal")), {"traces.AlexNet.zoo": "alex"})
    assert [line.split(": ")[1] for line in message] == ["traces.AlexNet.zoo", "line 15, published[0].run"]


def test_loading_a_study_as_a_scenario_names_the_right_command() -> None:
    with pytest.raises(InputError, match=r"cswap-6a\.yaml: schema: is a study, not a scenario; use: simgpu study csw"):
        load_scenario("cswap-6a")
    with pytest.raises(InputError, match=r"quickstart\.yaml: schema: is a scenario, not a study; use: simgpu run qui"):
        load_study("quickstart")
    with pytest.raises(InputError, match="no shipped scenario or study is called 'cswap-6e'; did you mean 'cswap-6"):
        load_study("cswap-6e")


def test_every_shipped_file_is_a_scenario_or_a_study() -> None:
    assert sorted([*shipped_scenarios(), *shipped_studies()]) == list(shipped_names("scenarios"))


#: Studies of figures whose numbers the paper does not print.
FIGURES_WITHOUT_NUMBERS = ("buddy-5b", "buddy-13a")


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped_studies())
def test_shipped_studies_load_and_have_their_file_names(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    assert study.description
    assert study.paper
    assert study.published or name in FIGURES_WITHOUT_NUMBERS


def test_the_json_schema_has_all_sections() -> None:
    schema = json_schema("study")
    assert schema["required"] == ["schema", "node", "traces", "runs", "baseline"]
    assert schema["additionalProperties"] is False
    name, modelled, configured, *sweeps = schema["properties"]["traces"]["additionalProperties"]["anyOf"]
    assert (name["type"], modelled["required"]) == ("string", ["zoo", "batch"])
    assert configured["required"] == ["model"]
    assert [sweep["required"] for sweep in sweeps] == [["zoo", "batches"], ["trace", "batches"]]
    run, published = (schema["$defs"][part]["properties"] for part in ("RunSection", "PublishedSection"))
    assert "cswap" in run["policy"]["anyOf"][0]["enum"]
    (measures, _) = published["measure"]["anyOf"]
    assert {"throughput", "time_saved", "time_increase", "traffic_reduction", "memory"} <= set(measures["enum"])
    assert {"overlap", "swapping", "largest_batch", "best_throughput"} <= set(measures["enum"])
    assert schema["properties"]["tables"]["items"]["enum"][:2] == ["throughput", "time"]
    assert {"budget", "budgets", "data_parallel", "per_trace"} <= set(run)
