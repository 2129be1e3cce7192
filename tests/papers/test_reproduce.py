"""Tasks run once, in any number of processes, and resume after an interrupt; failures are reported and tried again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError, MissingExtraError
from simgpu.io import codestate
from simgpu.papers import cache, tasks
from simgpu.papers.answers import Changed, simulated
from simgpu.papers.cache import ResultCache
from simgpu.papers.checks.results import condition
from simgpu.papers.claims import Claim, Paper
from simgpu.papers.claims_file import PaperFile
from simgpu.papers.reproduce import Run, _died, reproduce
from simgpu.papers.tasks import Cell, Check, Done, Groups, Memory, restored, run_group, written
from simgpu.papers.verdicts import Verdict

#: A study whose cells take a moment.
STUDY = {
    "epochs": [48],
    "iterations": 1,
    **dict.fromkeys(f"traces.{label}" for label in ("AlexNet", "VGG16", "MobileNet", "ResNet", "SqueezeNet")),
}


def paper(claims: Mapping[str, Any], **values: Any) -> Paper:
    """A paper of these claims, whose checks are those of the tests."""
    file = PaperFile.model_validate(
        {"schema": "simgpu.claims/2", "paper": "P", "source": "S", "claims": claims, **values}
    )
    return Paper("cdma", file.paper, file.source, file.studies, file.claims, file.assumptions, tuple(file.figures))


def claim(**values: Any) -> dict[str, Any]:
    return {"where": "1", "states": "something", **values}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Checks of the tests in place of a paper's; what was called."""
    called: list[str] = []

    def doubled(of: float = 2.0) -> dict[str, Any]:
        called.append(f"doubled {of:g}")
        return {"value": 2 * of, "order": condition(of == 2, "one case")}

    def breaks() -> dict[str, Any]:
        called.append("breaks")
        raise RuntimeError("on purpose")

    def lacks() -> dict[str, Any]:
        raise MissingExtraError("this", "a-package", "an-extra")

    def divides() -> dict[str, Any]:
        return {"value": float("nan")}

    result: Mapping[str, Callable[..., Any]] = {
        "doubled": doubled,
        "breaks": breaks,
        "lacks": lacks,
        "divides": divides,
    }
    monkeypatch.setattr(tasks, "checks", lambda _: result)
    monkeypatch.setattr("simgpu.papers.answers.checks", lambda _: result)
    return called


NUMBER = claim(parts=[{"value": 4.2, "from": "doubled.value"}], causes="other")
ORDER = claim(kind="order", parts=[{"from": "doubled.order"}])
RULE = claim(kind="rule", parts=[{"test": "tests/papers/test_a.py::test_b"}])
OTHER = {"other": {"says": "It depends.", "steps": {"3": {"check": {"of": 3.0}}, "9": {"check": {"of": 9.0}}}}}


def test_a_check_runs_once_for_all_its_results(calls: list[str]) -> None:
    result = Run(paper({"number": NUMBER, "order": ORDER}, assumptions=OTHER).claims).outcome(causes=False)
    assert calls == ["doubled 2"]
    assert [each.verdict for each in result.claims] == [Verdict.CLOSE, Verdict.HOLDS]
    assert result["cdma.number"].parts[0].simulated == 4.0
    with pytest.raises(KeyError):
        result["cdma.nothing"]


def test_nothing_runs_for_a_rule_and_it_names_its_test(calls: list[str]) -> None:
    result = Run(paper({"number": NUMBER, "rule": RULE}, assumptions=OTHER).claims).outcome(causes=False)
    assert calls == ["doubled 2"]
    assert [each.claim.id for each in result.claims] == ["cdma.number"]
    assert [rule.id for rule in result.rules] == ["cdma.rule"]
    (row,) = result.to_dict()["rules"]
    assert row["parts"] == [
        {"part": "", "published": None, "test": "tests/papers/test_a.py::test_b", "broken": "", "input": "", "note": ""}
    ]
    assert result.rules_frame()["test"].tolist() == ["tests/papers/test_a.py::test_b"]
    assert not result.rules_of(fitted=True)


def test_experiments_run_for_claims_that_are_off_only(calls: list[str]) -> None:
    off = {**NUMBER, "parts": [{"value": 18.0, "from": "doubled.value"}]}
    result = Run(paper({"off": off, "close": NUMBER}, assumptions=OTHER).claims).outcome(causes=True)
    (experiment,) = result["cdma.off"].experiments
    steps = {step.label: step.parts[""] for step in experiment.steps}
    assert {label: (part.simulated, part.judged.verdict) for label, part in steps.items()} == {
        "3": (6.0, Verdict.OFF),
        "9": (18.0, Verdict.CLOSE),
    }
    assert not result["cdma.close"].experiments
    frame = result.causes_frame()
    assert frame[["claim", "assumption", "step", "simulated", "verdict"]].to_numpy().tolist() == [
        ["cdma.off", "other", "3", 6.0, "off"],
        ["cdma.off", "other", "9", 18.0, "within 10%"],
    ]
    assert sorted(calls) == ["doubled 2", "doubled 3", "doubled 9"]


def test_finished_work_is_cached(calls: list[str], tmp_path: Path) -> None:
    claims = paper({"number": NUMBER, "order": ORDER}, assumptions=OTHER).claims
    first = Run(claims, tmp_path).outcome(causes=False)
    again = Run(claims, tmp_path).outcome(causes=False)
    assert calls == ["doubled 2"]
    assert first.to_dict() == again.to_dict()
    Run(claims, tmp_path, restart=True).outcome(causes=False)
    assert calls == ["doubled 2"] * 2


def test_results_of_another_version_are_deleted(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = paper({"order": ORDER}).claims
    Run(claims, tmp_path).outcome(causes=False)
    monkeypatch.setattr(cache, "fingerprint", lambda: "another")
    Run(claims, tmp_path).outcome(causes=False)
    assert calls == ["doubled 2"] * 2
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == ["another"]


def test_an_interrupt_loses_nothing_that_is_finished(calls: list[str], tmp_path: Path) -> None:
    off = {**NUMBER, "parts": [{"value": 18.0, "from": "doubled.value"}]}
    claims = paper({"off": off}, assumptions=OTHER).claims

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(claims, tmp_path).outcome(causes=True, progress=stop)
    assert len(calls) == 2
    steps: list[tuple[int, int]] = []
    Run(claims, tmp_path).outcome(causes=True, progress=lambda *counts: steps.append(counts))
    assert steps == [(2, 3), (3, 3)]
    assert len(calls) == 3


def test_a_failed_check_is_reported_and_tried_again(calls: list[str], tmp_path: Path) -> None:
    broken = claim(parts=[{"value": 1.0, "from": "breaks.value"}])
    lacking = claim(parts=[{"value": 1.0, "from": "lacks.value"}])
    claims = paper({"broken": broken, "lacking": lacking, "order": ORDER}).claims
    for times in (1, 2):
        result = Run(claims, tmp_path).outcome(causes=False)
        assert [each.verdict for each in result.claims] == [Verdict.FAILED, Verdict.FAILED, Verdict.HOLDS]
        assert result["cdma.broken"].parts[0].judged.detail == "RuntimeError: on purpose"
        assert "an-extra" in result["cdma.lacking"].parts[0].judged.detail
        assert calls.count("breaks") == times


def test_a_damaged_file_is_ignored(calls: list[str], tmp_path: Path) -> None:
    claims = paper({"order": ORDER}).claims
    Run(claims, tmp_path).outcome(causes=False)
    (file,) = tmp_path.glob("*/*.json")
    key = json.dumps(json.loads(file.read_text())["key"])
    for text in ("", "{", "[]", "7", '{"key": "another", "result": 1}', f'{{"key": {key}}}'):
        file.write_text(text)
        assert Run(claims, tmp_path).outcome(causes=False)["cdma.order"].verdict is Verdict.HOLDS
    assert calls == ["doubled 2"] * 7


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match="simgpu reproduce did not write"):
        reproduce("cdma.sparsity.alexnet", folder=tmp_path, restart=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_unrelated_folders_in_the_cache_are_not_touched(calls: list[str], tmp_path: Path) -> None:
    claims = paper({"order": ORDER}).claims
    Run(claims, tmp_path).outcome(causes=False)
    (tmp_path / "thesis").mkdir()
    Run(claims, tmp_path, restart=True)
    assert (tmp_path / "thesis").is_dir()


def test_reproduce_continues_after_its_folder_was_removed(
    calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = paper({"order": ORDER}).claims
    first = Run(claims, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "fingerprint", lambda: "0123456789abcdef")
        Run(claims, tmp_path)
    assert first.outcome(causes=False)["cdma.order"].verdict is Verdict.HOLDS
    assert Run(claims, tmp_path).outcome(causes=False)["cdma.order"].verdict is Verdict.HOLDS
    assert calls == ["doubled 2"]


def _prints(monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setattr(codestate, "PACKAGE", folder)
    cache.fingerprint.cache_clear()
    result = cache.fingerprint()
    cache.fingerprint.cache_clear()
    return result


def test_the_fingerprint_covers_code_that_decides_results_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What numba keeps of compiled code appears in the middle of a first run."""
    for inside in ("memory/a.py", "papers/tasks.py", "papers/page/page.py", "cli/a.py"):
        (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / inside).write_text("1")
    before = _prints(monkeypatch, tmp_path)
    (tmp_path / "memory/__pycache__").mkdir()
    for inside in ("memory/__pycache__/a.nbi", "memory/.a.py.swp", "papers/page/page.py", "cli/a.py"):
        (tmp_path / inside).write_text("2")
        assert _prints(monkeypatch, tmp_path) == before, inside
    for inside in ("memory/a.py", "papers/tasks.py", "memory/table.csv"):
        (tmp_path / inside).write_text("2")
        assert _prints(monkeypatch, tmp_path) != before, inside
        before = _prints(monkeypatch, tmp_path)


@pytest.mark.parametrize("library", ["bayesian-optimization", "numba", "scikit-learn", "numpy"])
def test_libraries_that_compute_count(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _prints(monkeypatch, codestate.PACKAGE)
    known = codestate.version
    monkeypatch.setattr(codestate, "version", lambda name: "0.0.1" if name == library else known(name))
    assert _prints(monkeypatch, codestate.PACKAGE) != before


def test_an_extra_that_is_missing_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study shows a run that needs it as refused; here that would read as if the paper were wrong."""

    def lacking(*_: object, **__: object) -> None:
        raise MissingExtraError("this", "a-package", "an-extra")

    monkeypatch.setattr("simgpu.experiments.study.train", lacking)
    part = {"value": 1.0, "from": {"study": "cswap-6a", "run": "CSWAP"}}
    claims = paper({"one": claim(parts=[part])}, studies={"cswap-6a": STUDY}).claims
    run = Run(claims, tmp_path)
    (result,) = run.outcome(causes=False).claims[0].parts
    assert result.judged.verdict is Verdict.FAILED and "a-package" in result.judged.detail
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.slow
def test_processes_give_the_results_of_one(tmp_path: Path) -> None:
    rows = {
        "saved": claim(parts=[{"value": 0.2, "from": {"study": "cswap-6a", "run": "CSWAP", "measure": "time_saved"}}]),
        "other": claim(parts=[{"value": 0.2, "from": {"study": "cswap-6b", "run": "CSWAP", "form": "less_one"}}]),
    }
    claims = paper(rows, studies={"cswap-6a": STUDY, "cswap-6b": STUDY}).claims
    one = Run(claims).outcome(causes=False)
    two = Run(claims, tmp_path).outcome(causes=False, jobs=2)
    assert one.to_dict() == two.to_dict()
    assert all(isinstance(part.simulated, float) for each in one.claims for part in each.parts)
    json.dumps(one.to_dict(), allow_nan=False)


@pytest.mark.slow
def test_a_row_of_several_studies_is_of_all_their_traces() -> None:
    """The mean of the traces, not of the studies."""
    part = {"value": 1.0, "from": {"study": ["cswap-6a", "cswap-6b"], "run": "CSWAP"}}
    two = {**STUDY, "traces.SqueezeNet": {"zoo": "squeezenet", "input": "cifar10", "batch": 1280, "epochs": 50}}
    rows = {"both": claim(parts=[part])}
    for name in ("cswap-6a", "cswap-6b"):
        rows[name.replace("-", "_")] = claim(parts=[{"value": 1.0, "from": {"study": name, "run": "CSWAP"}}])
    result = Run(paper(rows, studies={"cswap-6a": STUDY, "cswap-6b": two}).claims).outcome(causes=False)
    both, first, second = (each.parts[0].simulated for each in result.claims)
    assert isinstance(first, float)
    assert isinstance(second, float)
    assert both == pytest.approx((first + 2 * second) / 3)


def test_a_cell_is_that_of_the_study() -> None:
    from simgpu.experiments.scenarios.load_study import load_study
    from simgpu.experiments.study import run_study

    result = run_study(load_study("cswap-6a", STUDY))
    cell = Cell("cswap-6a", written(STUDY), "Plain20", "CSWAP")
    assert restored(json.loads(json.dumps(cell.work()))) == result.cells["Plain20", "CSWAP"]


def test_a_cell_keeps_changes_of_another_run_that_the_rest_needs() -> None:
    """The budgets of the file are more than the memory of the changed node."""
    from simgpu.experiments.scenarios.load_study import load_study
    from simgpu.experiments.study import run_study

    changes = {"node.gpu.memory": "8 GB", "runs.moDNN.budgets": ["1 GB"]}
    cell = Cell.of("modnn-15", written(changes), "ResNet-34", "ideal")
    assert (
        json.loads(cell.changes) == changes == json.loads(Memory.of("modnn-15", written(changes), "ResNet-34").changes)
    )
    result = run_study(load_study("modnn-15", changes | {"published": []}))
    assert restored(json.loads(json.dumps(cell.work()))) == result.cells["ResNet-34", "ideal"]


def test_groups_share_a_trace_and_list_each_task_once() -> None:
    cells = [Cell("s", "{}", trace, run) for trace in "ab" for run in "xy"]
    groups = Groups.of([*cells, *reversed(cells), Check("cdma", "c")])
    assert [len(group) for group in groups.groups] == [2, 2, 1]


def test_a_group_returns_results_and_reasons_of_failures(calls: list[str]) -> None:
    group = (Check("cdma", "doubled"), Check("cdma", "breaks"), Check("cdma", "nothing"))
    done = run_group(Groups((group,)), 0)
    assert list(done.results) == [group[0].key]
    assert done.failed == {group[1].key: "RuntimeError: on purpose", group[2].key: "KeyError: 'nothing'"}


def test_a_nan_is_a_failure(calls: list[str], tmp_path: Path) -> None:
    result = Run(paper({"one": claim(parts=[{"value": 1.0, "from": "divides.value"}])}).claims, tmp_path)
    (part,) = result.outcome(causes=False)["cdma.one"].parts
    assert part.judged.verdict is Verdict.FAILED and "ValueError" in part.judged.detail
    assert not list(tmp_path.rglob("*.json"))


def test_an_unknown_run_of_a_study_is_an_error() -> None:
    part = {"value": 1.0, "from": {"study": "cswap-6a", "run": "CSVAP"}}
    with pytest.raises(InputError, match="has no run or trace 'CSVAP'"):
        Run(paper({"one": claim(parts=[part])}).claims).outcome(causes=False)


def test_an_experiment_changes_only_its_stated_settings(calls: list[str]) -> None:
    (one,) = paper({"number": NUMBER}, assumptions=OTHER).claims
    store = ResultCache()
    for of in (2.0, 5.0):
        task = Check("cdma", "doubled", json.dumps({} if of == 2 else {"of": of}))
        store.put(task.key, task.work())
    assert simulated(one, one.parts[0], store, {}) == 4.0
    assert simulated(one, one.parts[0], store, {}, Changed(check={"of": 5.0})) == 10.0
    assert isinstance(one, Claim)


def test_all_tasks_of_a_group_fail_when_its_process_dies(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(left: Groups, points: Iterable[int], *_: object) -> Iterator[Done]:
        for number in points:
            yield _died(number, "the process died")

    monkeypatch.setattr("simgpu.papers.reproduce.in_jobs", dead)
    result = Run(paper({"number": NUMBER, "order": ORDER}, assumptions=OTHER).claims).outcome(causes=False)
    assert {part.judged.detail for each in result.claims for part in each.parts} == {"the process died"}
    assert {each.verdict for each in result.claims} == {Verdict.FAILED}
