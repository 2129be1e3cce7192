"""The folder of a policy holds all that it takes to run its program again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.experiments.compare import compare
from simgpu.experiments.outputs import write_outputs
from simgpu.hardware.nodes import load_node
from simgpu.machine.run import run_program
from simgpu.simulation.run import Result, simulate
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.validation.replay.program import of_result, read_program
from tests.semantics.hand_made import node as example_node
from tests.sets import slow_except

#: What a policy may do to tasks, and a trace and a node with which it does.
DONE = {
    "nothing": ("digits-cnn-cpu", "laptop-2gb", "none"),
    "no limit": ("digits-cnn-cpu", "laptop-2gb", "ideal"),
    "swaps": ("digits-cnn-cpu", "laptop-2gb", "vdnn"),
    "saved tensors": ("digits-cnn-cpu", "laptop-2gb", "save_on_cpu"),
    "relaunches": ("digits-cnn-cpu", "laptop-2gb", "superneurons"),
    "checkpoints": ("digits-cnn-cpu", "laptop-2gb", "checkpoint"),
    "copies beside": ("digits-cnn-cpu", "laptop-2gb", {"async_offload": {"min_bytes": 0}}),
    "sub-batches": ("digits-cnn-cpu", "laptop-2gb", "vdnn+"),
    "addresses": ("digits-cnn-cpu", "laptop-2gb", "modnn"),
    "algorithms": ("vgg16-b128-v100", "v100", {"vdnn": {"algorithms": "smallest"}}),
    "another order": ("vgg16-b128-v100", "2080ti", {"swapadvisor": {"population": 20, "generations": 5}}),
    "codecs on the GPU": ("photos-vgg-cpu", "v100", {"static": {"launch": "expert"}}),
    "codecs on the host": ("photos-vgg-cpu", "v100", {"vdnn++": {"threshold": 0.1}}),
}


def written(folder: Path, trace: Any, node: Any, policy: Any) -> tuple[Path, Result]:
    """The folder of a policy, and its result."""
    outcome = compare(trace, node, [policy])
    write_outputs(outcome, folder, about={}, timeline=["csv"])
    (result,) = outcome.results.values()
    (home,) = (path for path in folder.iterdir() if path.is_dir())
    return home, result


@pytest.mark.parametrize("done", slow_except(DONE, *({*DONE} - {"another order"})))
def test_a_program_that_was_read_back_runs_as_it_did(tmp_path: Path, done: str):
    trace, node, policy = DONE[done]
    home, result = written(tmp_path / "out", load_trace(trace), load_node(node), policy)
    outcome = read_program(home)
    assert (outcome.title, outcome.iteration_ns, outcome.pool) == (result.title, result.iteration_ns, result.pool)
    for again in (outcome, of_result(result)):
        run = run_program(again.program, again.graph, again.node, budget=again.budget, pool=again.pool)
        assert list(run.timeline) == list(result.timeline)
        assert run.timeline.memory("device").used.tolist() == result.timeline.memory("device").used.tolist()


@pytest.mark.slow
def test_the_example_runs_have_the_properties_they_are_chosen_for(tmp_path: Path):
    """Else they would prove nothing."""
    seen = {}
    for name, (trace, node, policy) in DONE.items():
        _, result = written(tmp_path / name, load_trace(trace), load_node(node), policy)
        kinds = {span.label for span in result.timeline}
        seen[name] = kinds | {type(transform).__name__ for transform in result.program.transforms}
    assert {"copy_d2h", "copy_h2d"} <= seen["swaps"]
    assert {"copy_d2h", "WithUnpacked"} <= seen["saved tensors"]
    assert "recompute" in seen["relaunches"]
    assert {"recompute", "Repeating"} <= seen["checkpoints"]
    assert {"copy_d2h", "copy_h2d", "WithUnpacked"} <= seen["copies beside"]
    assert "Split" in seen["sub-batches"]
    assert "WithAlgorithms" in seen["algorithms"]
    assert {"copy_d2h", "copy_h2d", "Reordered"} <= seen["another order"]
    assert {"encode", "decode", "WithEncodings"} <= seen["codecs on the GPU"]
    assert {"encode", "decode", "WithEncodings"} <= seen["codecs on the host"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trace = chain([10, 10, 10], [10, 10, 10], [400, 400, 400])
    return written(tmp_path_factory.mktemp("sound") / "out", trace, example_node(), "vdnn")[0]


@pytest.fixture
def home(sound: Path, tmp_path: Path) -> Path:
    shutil.copytree(sound.parent, tmp_path / "out")
    return tmp_path / "out" / sound.name


def changed(path: Path, change: Callable[[Any], Any]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def replaced(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


#: Damage to the folder, and the message about it.
DAMAGE: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "no program": (
        lambda home: (home / "program.json").unlink(),
        "vdnn: has no program.json: written by an earlier",
    ),
    "no tables": (
        lambda home: (home / "blocks.csv").unlink(),
        "vdnn: has no blocks.csv: written by an earlier",
    ),
    "cut off": (
        lambda home: (home / "program.json").write_text('{"schema":'),
        "program.json: line 1: is not JSON: Expecting value; is it cut off?",
    ),
    "another schema": (
        lambda home: replaced(home / "tasks.json", "simgpu.tasks/2", "simgpu.tasks/9"),
        "tasks.json: schema: 'simgpu.tasks/9' is not simgpu.tasks/2",
    ),
    "a number too few": (
        lambda home: changed(home / "tasks.json", lambda tasks: tasks["device_bytes"].pop()),
        "tasks.json: are no tasks as simgpu writes them: device_bytes has 6 numbers where the tables have 7 rows",
    ),
    "a negative number": (
        lambda home: changed(home / "tasks.json", lambda tasks: tasks["durations_ns"].__setitem__(0, -1)),
        "tasks.json: are no tasks as simgpu writes them: -1 is not a whole number >= 0",
    ),
    "a form of no block": (
        lambda home: changed(home / "tasks.json", lambda tasks: tasks["encoded"].append([0, 99, 1, 1])),
        "tasks.json: are no tasks as simgpu writes them: 99 is the number of no block",
    ),
    "a row too few": (
        lambda home: replaced(home / "kernels.csv", _last_row(home / "kernels.csv"), ""),
        "tasks.json: are no tasks as simgpu writes them: durations_ns has 6 numbers where the tables have 5 rows",
    ),
    "a block without a row": (
        lambda home: replaced(home / "kernels.csv", "x1", "y1"),
        "kernels.csv: row 2: names block 'y1', which has no row in blocks.csv",
    ),
    "a block twice": (
        lambda home: replaced(home / "blocks.csv", "\nx3,", "\nx2,"),
        "blocks.csv: row 4: 'x2' is listed twice",
    ),
    "a bad cell": (lambda home: replaced(home / "blocks.csv", ",400,", ",4.5,"), "blocks.csv: row 2, column bytes"),
    "tasks in another order": (
        lambda home: changed(home / "program.json", _swap_launches),
        "program.json: does not match kernels.csv, blocks.csv and tasks.json: compute[",
    ),
    "a number of no block": (
        lambda home: changed(home / "program.json", lambda program: program["resident"].append(99)),
        "program.json: does not match kernels.csv, blocks.csv and tasks.json: ",
    ),
    "no report": (lambda home: (home.parent / "report.json").unlink(), "vdnn: has no report.json in its parent folder"),
    "another report": (
        lambda home: replaced(home.parent / "report.json", "simgpu.report/2", "simgpu.study-report/1"),
        "report.json: schema: 'simgpu.study-report/1' is not 'simgpu.report/2'",
    ),
    "another policy's report": (
        lambda home: changed(home.parent / "report.json", lambda report: report["results"][0].update(label="none")),
        "report.json: has no entry 'vdnn'",
    ),
    "a report without the budget": (
        lambda home: changed(home.parent / "report.json", lambda report: report["results"][0].pop("budget_bytes")),
        "report.json: results, vdnn: budget_bytes: is missing or damaged",
    ),
    "a report of an unknown pool": (
        lambda home: changed(home.parent / "report.json", lambda report: report["results"][0].update(pool="lake")),
        "report.json: results, vdnn: pool: is missing or damaged",
    ),
}


def _last_row(table: Path) -> str:
    return table.read_text().splitlines(keepends=True)[-1]


def _swap_launches(program: dict[str, Any]) -> None:
    code = program["segments"][0]["streams"]["compute"]
    first, second, *_ = (each for each in code if each[0] == "Launch")
    first[1], second[1] = second[1], first[1]


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_policy_folder_is_refused(home: Path, damage: Callable[[Path], object], message: str):
    assert read_program(home).title == "vdnn: chain on bench"
    damage(home)
    with pytest.raises(InputError) as caught:
        read_program(home)
    assert message in str(caught.value)
    assert all(problem.file.startswith(str(home.parent)) and problem.remedy for problem in caught.value.problems)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("node.link.duplex", "simplex"),
        ("node.link.d2h_bandwidth", 0),
        ("node.link.latency_ns", -1),
        ("node.gpu.alignment", 0),
        ("node.gpu.copy_engines", True),
        ("node.host.pinned_memory", "much"),
        ("metrics.iteration_ns", -5),
        ("pool", ["counting"]),
    ],
)
def test_an_invalid_number_in_the_report_is_refused(home: Path, place: str, value: object):
    def damage(report: Any) -> None:
        *way, last = place.split(".")
        entry = report["results"][0]
        for key in way:
            entry = entry[key]
        entry[last] = value

    changed(home.parent / "report.json", damage)
    with pytest.raises(InputError, match=rf"results, vdnn: {place}: is missing or damaged"):
        read_program(home)


def test_all_damaged_files_are_reported_together(home: Path):
    (home / "program.json").write_text("{}")
    replaced(home / "blocks.csv", ",400,", ",4.5,")
    with pytest.raises(InputError) as caught:
        read_program(home)
    assert [Path(problem.file).name for problem in caught.value.problems] == ["blocks.csv", "program.json"]


def test_a_run_folder_is_refused_as_a_policy_folder(home: Path):
    with pytest.raises(InputError, match="is the folder of a run, not of one policy; give the folder of one policy"):
        read_program(home.parent)
    with pytest.raises(InputError, match="no such folder"):
        read_program(home.parent / "none")
    with pytest.raises(InputError, match="is not a folder"):
        read_program(home / "program.json")


@pytest.mark.parametrize(
    ("node", "policy", "message"),
    [
        ("laptop-2gb", "um", "has its blocks paged on demand"),
        ("titan-x-maxwell-cdma", "cdma", "with compression hardware; no real device has it"),
    ],
)
def test_a_program_that_no_device_can_run_is_refused(tmp_path: Path, node: str, policy: str, message: str):
    home, result = written(tmp_path / "out", load_trace("digits-cnn-cpu"), load_node(node), policy)
    for read in (lambda: read_program(home), lambda: of_result(result)):
        with pytest.raises(InputError) as caught:
            read()
        assert message in str(caught.value)


def test_a_plain_framework_on_a_node_that_could_compress_is_refused_for_its_node(tmp_path: Path):
    home, _ = written(tmp_path / "out", load_trace("digits-cnn-cpu"), load_node("buddy-gpu"), "none")
    with pytest.raises(InputError, match="is for node buddy-gpu with compression hardware"):
        read_program(home)


def test_programs_of_several_gpus_are_refused():
    two = load_node("k40-x4")
    result = simulate(load_trace("digits-cnn-cpu"), two, "none", gpus=2, exchange="gather")
    with pytest.raises(InputError, match="uses 2 GPUs, but a replay runs on one device"):
        of_result(result)
