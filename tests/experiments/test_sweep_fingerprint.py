"""Fingerprints of code and libraries: points computed by different ones run again, with a message."""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.experiments.processes import in_this_process
from simgpu.experiments.scenarios.load_sweep import make_sweep
from simgpu.experiments.sweep import cluster, fingerprint
from simgpu.experiments.sweep.point import run_point
from simgpu.experiments.sweep.run import run_points, run_sweep
from simgpu.io import codestate
from simgpu.io.codestate import Code, own_code
from simgpu.policies import registry
from tests.cli.cli_helpers import make_study
from tests.experiments.sweeps import results, small_sweep
from tests.policies.installed import command_with, write_distribution

#: A policy that keeps everything or offloads all it can, as a module next to it says.
POLICY = """
from dataclasses import dataclass
from simgpu.policies.base import Policy
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from mine_choices import KEEPS

@dataclass(frozen=True)
class Mine(Policy):
    name, summary, source = "mine", "keep all blocks, or do as vdnn does", "a test"

    def plan(self, context):
        from simgpu.policies.vdnn import Vdnn
        return lower(context.graph, Placement()) if KEEPS else Vdnn().plan(context)
"""
SWEEP = "sweep: {points: [{policies: none}, {policies: mine}, {policies: [none, mine]}]}"


def swept(folder: Path, site: Path, output: str = "out") -> tuple[str, str]:
    """The output of `simgpu sweep` about its points, and the step times of the policy `mine`."""
    done = command_with(site, arguments=["sweep", str(folder / "study.yaml"), "-o", output, "-j", "1"], cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    shown = "\n".join(line for line in lines if "not reused" in line or line.startswith("points "))
    return shown, "".join(line for line in lines if line.lstrip().startswith("mine"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("edited", ["strange_mine.py", "mine_choices.py"])
def test_points_of_an_external_policy_run_again_after_its_code_changed(tmp_path: Path, edited: str) -> None:
    site = write_distribution(
        tmp_path / "site",
        {"mine": "strange_mine:Mine"},
        {"strange_mine": POLICY, "mine_choices": "KEEPS = True\n"},
    )
    study = make_study(tmp_path)
    study.write_text(f"{study.read_text()}\n{SWEEP}\n")
    _, before = swept(tmp_path, site)
    again, same = swept(tmp_path, site)
    assert again == "points   3, 0 of them run in this call" and same == before
    changed = site / edited
    changed.write_text(changed.read_text().replace("KEEPS = True", "KEEPS = False").replace("if KEEPS", "if not KEEPS"))
    shown, after = swept(tmp_path, site)
    assert shown == "2 stored points not reused: code of policy mine changed\npoints   3, 2 of them run in this call"
    assert after != before
    assert after == swept(tmp_path, site, "anew")[1]
    assert (tmp_path / "out/results.csv").read_bytes() == (tmp_path / "anew/results.csv").read_bytes()
    (site / "strange-1.0.dist-info" / "entry_points.txt").unlink()
    done = command_with(site, arguments=["sweep", str(study), "-o", "out"], cwd=tmp_path)
    assert done.returncode == 2 and "unknown policy 'mine'" in done.stderr


def test_all_points_run_again_after_simgpu_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, known = small_sweep(3), own_code()
    run_sweep(sweep, folder=tmp_path)
    monkeypatch.setattr(fingerprint, "own_code", lambda: replace(known, digest="edited"))
    result = run_sweep(sweep, folder=tmp_path)
    assert (result.ran, result.notes) == (3, ("3 stored points not reused: code of simgpu changed",))
    assert "not reused: code of simgpu changed" in repr(result)
    assert run_sweep(sweep, folder=tmp_path).notes == ()


@pytest.mark.slow
def test_points_run_again_after_a_library_of_their_policy_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "iterations": 1}
    points = [{"policies": "none"}, {"policies": "superneurons"}]
    sweep = make_sweep({**values, "sweep": {"points": points}}, "a test")
    run_sweep(sweep, folder=tmp_path)
    known = codestate.version
    monkeypatch.setattr(codestate, "version", lambda name: "99" if name == "numba" else known(name))
    one = run_sweep(sweep, folder=tmp_path)
    was = codestate.versions(["numpy"])["numpy"]
    (note,) = one.notes
    assert (
        one.ran == 1 and note.endswith(" -> 99 (policy superneurons)") and note.startswith("1 stored point not reused")
    )
    monkeypatch.setattr(codestate, "version", lambda name: "99" if name in ("numba", "numpy") else known(name))
    both = run_sweep(sweep, folder=tmp_path)
    assert both.ran == 2
    assert both.notes == (f"2 stored points not reused: numpy {was} -> 99",)


@pytest.mark.slow
def test_results_of_older_code_are_stored_until_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restoring the earlier code restores its results, except for those replaced in the meantime."""
    sweep, known = small_sweep(3), own_code()
    run_sweep(sweep, folder=tmp_path)
    before = results(tmp_path)

    def one(points: object) -> object:
        yield next(in_this_process(sweep, points, run_point))  # type: ignore[call-overload]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(fingerprint, "own_code", lambda: replace(known, digest="edited"))
        run_points(sweep, one, folder=tmp_path)  # type: ignore[arg-type]
    assert run_sweep(sweep, folder=tmp_path).ran == 1
    assert results(tmp_path) == before


@pytest.mark.slow
def test_points_of_code_edited_while_in_use_are_not_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process continues with its loaded code, so it is unknown which code computed its points."""
    sweep, known = small_sweep(2), own_code()
    with monkeypatch.context() as patch:
        patch.setattr(fingerprint, "own_code", lambda: replace(known, changed_ns=codestate.LOADED_NS + 1))
        run_sweep(sweep, folder=tmp_path)
        assert run_sweep(sweep, folder=tmp_path).ran == 2
    why = "2 stored points not reused: code of simgpu was edited while in use"
    assert run_sweep(sweep, folder=tmp_path).notes == (why,)
    assert run_sweep(sweep, folder=tmp_path).ran == 0

    answers = iter([known, replace(known, digest="edited")])
    monkeypatch.setattr(fingerprint, "own_code", lambda: next(answers, known))
    assert "edited while the sweep ran" in run_sweep(sweep, folder=tmp_path, restart=True).notes[0]
    assert run_sweep(sweep, folder=tmp_path).ran == 2


@pytest.mark.slow
def test_an_external_policy_edited_after_loading_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process still runs the old code, so the digest of the new code must not be stored with its results."""
    text = POLICY.replace("from mine_choices import KEEPS", "KEEPS = True").replace('"mine"', '"edited"')
    site = write_distribution(tmp_path / "site", {"edited": "edited_mine:Mine"}, {"edited_mine": text})
    monkeypatch.syspath_prepend(str(site))
    registry._outside.cache_clear()
    try:
        sweep = small_sweep(1, policies="edited")
        assert len(fingerprint.fingerprint(sweep)["policies"]["edited"]["code"]) == 16
        later = time.time_ns() + 10**9
        os.utime(site / "edited_mine.py", ns=(later, later))
        assert fingerprint.fingerprint(sweep)["policies"]["edited"]["code"] == fingerprint.EDITED
    finally:
        registry._outside.cache_clear()


def test_points_without_a_fingerprint_run_again(tmp_path: Path) -> None:
    sweep = small_sweep(2)
    run_sweep(sweep, folder=tmp_path)
    with sqlite3.connect(tmp_path / "points.sqlite") as database:
        database.execute("alter table points drop column decided")
        database.execute("drop table decided")
    database.close()
    result = run_sweep(sweep, folder=tmp_path)
    assert result.ran == 2
    assert result.notes[0].startswith("2 stored points not reused: they were computed by an earlier simgpu")


def test_a_cluster_whose_workers_have_different_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    sweep, known = small_sweep(1), fingerprint.fingerprint(small_sweep(1))
    monkeypatch.setattr(
        cluster, "fingerprint", lambda sweep: {**known, "code": "another", "libraries": {"numpy": "1.0"}}
    )
    settings = {"processes": False, "n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as here, pytest.raises(InputError) as caught:
        run_sweep(sweep, dask=here.scheduler_address)
    assert "has other code or libraries: code of simgpu changed; numpy 1.0 -> " in str(caught.value)


def test_only_changed_content_of_a_file_invalidates_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("1")
    monkeypatch.setattr(codestate, "PACKAGE", tmp_path)
    before: Code = own_code()
    (tmp_path / "a.py").write_text("2")
    assert own_code().digest != before.digest
    (tmp_path / "a.py").write_text("1")
    assert own_code().digest == before.digest
