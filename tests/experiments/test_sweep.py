"""Sweeps: identical bytes in any executor, points stored as they finish, and isolated failures."""

from __future__ import annotations

import csv
import json
import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from pytest_regressions.file_regression import FileRegressionFixture

import simgpu
from simgpu.errors import InputError, MissingExtraError
from simgpu.experiments.processes import in_processes, in_this_process
from simgpu.experiments.scenarios.load_sweep import load_sweep, make_sweep
from simgpu.experiments.sweep import cluster, folder, point
from simgpu.experiments.sweep.cluster import on_cluster
from simgpu.experiments.sweep.point import died, run_point
from simgpu.experiments.sweep.run import run_points, run_sweep
from simgpu.trace.chain import chain
from simgpu.trace.folder import write_trace
from tests.experiments.sweeps import dies_at_0, dies_at_3, results, small_sweep

PINNED = ("iteration_ns", "d2h_bytes", "h2d_bytes", "device_peak_bytes", "retired_instructions", "spans")
COLUMNS = ["point", "budget", "node.link.d2h_bandwidth", "node.link.h2d_bandwidth", "policy", "outcome", *PINNED]


@pytest.mark.slow
def test_results_match_the_golden_ones(tmp_path: Path, file_regression: FileRegressionFixture) -> None:
    run_sweep(load_sweep("memory-sweep"), folder=tmp_path / "out")
    with (tmp_path / "out" / "results.csv").open(encoding="utf-8", newline="") as file:
        lines = [",".join(row[column] for column in COLUMNS) for row in csv.DictReader(file)]
    file_regression.check("\n".join([",".join(COLUMNS), *lines]) + "\n", extension=".csv")


@pytest.mark.slow
def test_each_row_equals_a_run_of_the_scenario_of_its_point(tmp_path: Path) -> None:
    sweep = load_sweep("memory-sweep", {"sweep.grid.budget": ["16 MiB", "40 MiB"]})
    frame = run_sweep(sweep).frame()
    assert len(frame) == 16
    for number in range(sweep.count):
        for run in simgpu.compare(sweep.scenario(number)):
            (row,) = frame[(frame.point == number) & (frame.policy == run.label)].to_dict("records")
            assert row["outcome"] == (run.failure or "ok")
            assert json.loads(row["parameters"]) == run.parameters
            if run.result is None:
                assert row["message"] == str(run.outcome)
                continue
            message = run.result.to_dict()
            assert {key: row[key] for key, value in message["metrics"].items() if value is not None} == {
                key: value for key, value in message["metrics"].items() if value is not None
            }
            for key in ("steady", "ideal_ns", "high_water_bytes", "retired_instructions", "spans", "budget_bytes"):
                assert row[key] == message[key]
            assert (row["origin"], row["device"]) == ("recorded", run.result.trace.device)


@pytest.mark.slow
def test_one_process_two_processes_and_a_cluster_write_identical_results(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    sweep = load_sweep("memory-sweep", {"sweep.grid.budget": ["16 MiB", "40 MiB"]})
    run_sweep(sweep, folder=tmp_path / "one")
    run_sweep(sweep, folder=tmp_path / "two", jobs=2)
    threads = {"processes": False, "n_workers": 1, "threads_per_worker": 2, "dashboard_address": None}
    with distributed.LocalCluster(**threads) as here:
        run_sweep(sweep, folder=tmp_path / "cluster", dask=here.scheduler_address)
    assert results(tmp_path / "one") == results(tmp_path / "two") == results(tmp_path / "cluster")
    assert sorted(file.name for file in (tmp_path / "two").iterdir()) == sorted(
        ["points.sqlite", "results.csv", "results.parquet", "sweep.json"]
    )


@pytest.mark.slow
def test_csv_parquet_and_frame_are_equal(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    result = run_sweep(load_sweep("memory-sweep", {"iterations": 1}), folder=tmp_path / "out")
    frame = result.frame()
    parquet = pandas.read_parquet(tmp_path / "out" / "results.parquet")
    assert list(frame.columns) == list(parquet.columns)
    message = [{key: value for key, value in row.items() if not pandas.isna(value)} for row in frame.to_dict("records")]
    stored = [
        {key: value for key, value in row.items() if not pandas.isna(value)} for row in parquet.to_dict("records")
    ]
    assert message == stored
    with (tmp_path / "out" / "results.csv").open(encoding="utf-8", newline="") as file:
        written = [{key: text for key, text in row.items() if text} for row in csv.DictReader(file)]
    assert written == [{key: str(value) for key, value in row.items() if value != ""} for row in message]
    assert frame.iteration_ns.dtype == "Int64", "some rows have none, and yet it is a whole number"


def test_swept_seed_iterations_epoch_and_pool_have_one_column_each(tmp_path: Path) -> None:
    points = [{"seed": 1, "pool": "addressed"}, {"iterations": 2}]
    base = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none"}
    frame = run_sweep(make_sweep({**base, "sweep": {"points": points}}, "a test")).frame()
    assert list(frame.columns).count("seed") == 1
    assert frame.seed.tolist() == [1, 0] and frame.iterations.tolist() == [3, 2]
    assert frame.pool.tolist() == ["addressed", "counting"]


def test_integers_of_more_than_64_bits_are_exact(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    base = {"trace": "resnet20-cifar-cpu", "node": "laptop-2gb", "policies": "none", "iterations": 1}
    run_sweep(make_sweep({**base, "sweep": {"grid": {"seed": [7, 2**63]}}}, "a test"), folder=tmp_path)
    assert pandas.read_parquet(tmp_path / "results.parquet").seed.tolist() == ["7", str(2**63)]


@pytest.mark.slow
def test_the_same_call_resumes_a_stopped_sweep(tmp_path: Path) -> None:
    sweep, ran = small_sweep(), []

    def stopping(at: int, points: object) -> object:
        for number, outcome in enumerate(in_this_process(sweep, points, run_point)):  # type: ignore[arg-type]
            if number == at:
                raise KeyboardInterrupt
            ran.append(outcome.point)
            yield outcome

    for at in (2, 3):
        with pytest.raises(KeyboardInterrupt):
            run_points(sweep, partial(stopping, at), folder=tmp_path / "out")  # type: ignore[arg-type]
        assert [file.name for file in (tmp_path / "out").iterdir()] == ["points.sqlite"]
    assert ran == [0, 1, 2, 3, 4]
    message: list[tuple[int, int]] = []
    result = run_sweep(sweep, folder=tmp_path / "out", progress=lambda done, total: message.append((done, total)))
    assert (result.ran, message) == (1, [(5, 6), (6, 6)])
    assert run_sweep(sweep, folder=tmp_path / "out").ran == 0
    run_sweep(sweep, folder=tmp_path / "undisturbed")
    assert results(tmp_path / "out") == results(tmp_path / "undisturbed")


def test_a_sweep_without_a_finished_point_writes_no_folder(tmp_path: Path) -> None:
    def none(points: object) -> object:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        run_points(small_sweep(), none, folder=tmp_path / "out")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_points_that_crashed_or_lacked_a_package_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = small_sweep(3, policies=["none", "vdnn"])
    full = point.simulate
    raised: list[Exception] = [MissingExtraError("planning", "numba", "fast"), ZeroDivisionError("by hand")]

    def broken(*arguments: object, **settings: object) -> object:
        if arguments[3].seed and arguments[2].name == "vdnn" and raised:  # type: ignore[attr-defined]
            raise raised.pop(0)
        return full(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(point, "simulate", broken)
    first = run_sweep(sweep, folder=tmp_path / "out")
    assert first.counts == {"ok": 4, "out of memory": 0, "refused": 1, "error": 1}
    messages = [row["message"] for row in first.rows() if row["outcome"] != "ok"]
    assert messages[0].startswith("planning needs numba")
    assert messages[1].startswith("ZeroDivisionError: by hand (in tests.experiments.test_sweep.broken, line ")
    again = run_sweep(sweep, folder=tmp_path / "out")
    assert (again.ran, again.counts["ok"]) == (2, 6)
    run_sweep(sweep, folder=tmp_path / "undisturbed")
    assert results(tmp_path / "out") == results(tmp_path / "undisturbed")


def test_problems_of_a_loaded_point_are_in_its_row(tmp_path: Path) -> None:
    write_trace(chain([5, 7], [10, 14], [100, 200]), tmp_path / "chain")
    values = {"trace": str(tmp_path / "chain"), "node": "laptop-2gb", "policies": ["none", {"vdnn": {"mode": "conv"}}]}
    sweep = make_sweep({**values, "sweep": {"grid": {"budget": ["1 GiB", "3 GiB"]}}}, "a test")
    result = run_sweep(sweep)
    rows = list(result.rows())
    assert [(row["point"], row["policy"], row["outcome"]) for row in rows] == [
        (0, "none", "ok"),
        (0, "vdnn(mode=conv)", "ok"),
        (1, "none", "refused"),
        (1, "vdnn(mode=conv)", "refused"),
    ]
    assert "3 GiB is more than the 2 GiB that node laptop-2gb has" in rows[2]["message"]
    assert run_sweep(
        make_sweep({**values, "policies": "oracle", "sweep": {"grid": {"seed": [1]}}}, "a test")
    ).counts == {
        "ok": 0,
        "out of memory": 0,
        "refused": 1,
        "error": 0,
    }


@pytest.mark.slow
@pytest.mark.parametrize(("work", "dead"), [(dies_at_3, 3), (dies_at_0, 0)])
def test_a_point_that_kills_its_process_affects_no_other(tmp_path: Path, work: object, dead: int) -> None:
    sweep = small_sweep(5)
    engine = partial(in_processes, sweep, jobs=2, run=work, died=died)
    result = run_points(sweep, engine, folder=tmp_path / "out")  # type: ignore[arg-type]
    assert result.counts == {"ok": 4, "out of memory": 0, "refused": 0, "error": 1}
    (row,) = (row for row in result.rows() if row["outcome"] == "error")
    assert (row["point"], row["seed"]) == (dead, dead)
    assert row["message"] == "the process that ran it died: the system may have ended it for lack of memory"
    assert run_sweep(sweep, folder=tmp_path / "out").ran == 1


@pytest.mark.slow
def test_the_number_of_points_in_flight_is_limited() -> None:
    sweep, given = small_sweep(200), []
    finished = in_processes(sweep, (given.append(number) or number for number in range(200)), 2, run_point, died)
    next(finished)
    assert len(given) <= 2 * 2 + 1
    finished.close()


@pytest.mark.slow
def test_a_folder_of_another_sweep_is_refused_and_restart_replaces_it(tmp_path: Path) -> None:
    home = tmp_path / "out"
    run_sweep(small_sweep(2), folder=home)
    before = results(home)
    for other, message in (
        (small_sweep(3), "the sweep's axes differ"),
        (small_sweep(2, policies="vdnn", budget="1 GiB"), "the scenario's policies, budget differ"),
    ):
        with pytest.raises(InputError, match=f"contains the results of another sweep: {message}; .* --restart"):
            run_sweep(other, folder=home)
    assert results(home) == before
    assert run_sweep(small_sweep(3), folder=home, restart=True).ran == 3
    assert len((home / "results.csv").read_text().splitlines()) == 4


def test_a_sweep_goes_on_with_another_engine(tmp_path: Path) -> None:
    run_sweep(small_sweep(2, engine="simpy"), folder=tmp_path / "out")
    assert run_sweep(small_sweep(2, engine="compiled"), folder=tmp_path / "out").ran == 0


def test_changed_files_or_another_simgpu_version_start_another_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_trace(chain([5, 7], [10, 14], [100, 200]), tmp_path / "chain")
    sweep = small_sweep(2, trace=str(tmp_path / "chain"))
    run_sweep(sweep, folder=tmp_path / "out")
    monkeypatch.setattr(folder, "__version__", "99")
    with pytest.raises(InputError, match=rf"of simgpu {simgpu.__version__}, this is 99;"):
        run_sweep(sweep, folder=tmp_path / "out")
    monkeypatch.undo()
    kernels = tmp_path / "chain" / "kernels.csv"
    kernels.write_text(kernels.read_text().replace("14", "15"))
    with pytest.raises(InputError, match=r"the files of trace .*chain differ"):
        run_sweep(sweep, folder=tmp_path / "out")


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    sweep = small_sweep(2)
    store = folder.open_store(sweep, tmp_path / "out", restart=False)
    with pytest.raises(InputError, match=r"another sweep is running in this folder; wait for it"):
        run_sweep(sweep, folder=tmp_path / "out")
    store.close()
    assert run_sweep(sweep, folder=tmp_path / "out").ran == 2


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="contains files that are not from a sweep of simgpu"):
        run_sweep(small_sweep(1), folder=tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with sqlite3.connect(other / "points.sqlite") as database:
        database.execute("pragma application_id = 1")
        database.execute("create table mine (x)")
    database.close()
    with pytest.raises(InputError, match="contains files that are not from a sweep of simgpu"):
        run_sweep(small_sweep(1), folder=other)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.txt", "other"]


@pytest.mark.slow
@pytest.mark.parametrize("start", (1024, 4096, 9000))
def test_a_damaged_database_is_reported_without_a_traceback(tmp_path: Path, start: int) -> None:
    home = tmp_path / "out"
    run_sweep(small_sweep(12, policies=["none", "vdnn"]), folder=home)
    content = bytearray((home / "points.sqlite").read_bytes())
    content[start : start + 9000] = bytes(value ^ 0x5A for value in content[start : start + 9000])
    (home / "points.sqlite").write_bytes(content)
    with pytest.raises(
        InputError, match=r"points\.sqlite: is damaged: .*; remove it, or choose another folder with -o"
    ):
        run_sweep(small_sweep(12, policies=["none", "vdnn"]), folder=home)


def test_without_pyarrow_only_csv_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "has_parquet", lambda: False)
    run_sweep(small_sweep(1), folder=tmp_path / "out")
    assert not (tmp_path / "out" / "results.parquet").exists()
    monkeypatch.undo()
    assert run_sweep(small_sweep(1), folder=tmp_path / "out").ran == 0
    assert (tmp_path / "out" / "results.parquet").exists()


@pytest.mark.slow
def test_a_result_prints_as_a_table(tmp_path: Path) -> None:
    result = run_sweep(small_sweep(41))
    text = repr(result)
    assert text.startswith("a test: 41 points; 41 ok\n")
    assert text.endswith("1 more rows: see frame()")
    assert result._repr_html_().count("<tr>") == 41


def test_jobs_must_be_a_positive_integer() -> None:
    with pytest.raises(InputError, match=r"argument jobs: 0 is not a whole number of at least 1"):
        run_sweep(small_sweep(1), jobs=0)


class TestCluster:
    def test_workers_must_have_the_same_simgpu_and_the_same_files(self) -> None:
        sweep = small_sweep(1)
        code = {"code": "c0de", "libraries": {"numpy": "2.0"}, "policies": {}}
        here = cluster.Shared(sweep, point.run_point, "1.0", sweep.inputs(), code)
        message = [
            str(problem)
            for answer in (
                ("1.0", here.inputs, code),
                ("", {}, {}),
                ("0.9", {}, {}),
                ("1.0", {"node laptop-2gb": "f00"}, code),
                ("1.0", here.inputs, {**code, "code": "other", "libraries": {"numpy": "2.1"}}),
                ("1.0", here.inputs, {}),
                OSError("x"),
            )
            for problem in cluster._differences("tcp://there:1", answer, here)
        ]
        assert [line.partition(": ")[2].partition(";")[0] for line in message] == [
            "cannot import simgpu",
            "has simgpu 0.9, this machine has 1.0",
            "node laptop-2gb has other files there",
            "trace resnet20-cifar-cpu is missing there",
            "has other code or libraries: code of simgpu changed",
            "has other modules of simgpu",
            "does not answer: OSError('x')",
        ]

    @pytest.mark.slow
    def test_a_cluster_without_workers_is_refused_and_a_passed_client_stays_open(self, tmp_path: Path) -> None:
        distributed = pytest.importorskip("distributed")
        with (
            distributed.LocalCluster(processes=False, n_workers=0, dashboard_address=None) as empty,
            distributed.Client(empty, set_as_default=False) as client,
        ):
            with pytest.raises(InputError, match="cluster: has no workers"):
                run_sweep(small_sweep(1), folder=tmp_path / "out", dask=client)
            assert not (tmp_path / "out").exists()
            empty.scale(1)
            client.wait_for_workers(1)
            finished = on_cluster(small_sweep(3), range(3), client)
            assert sorted(result.point for result in finished) == [0, 1, 2]
            assert client.status == "running", "a client that was given stays open"

    @pytest.mark.parametrize("address", ["127.0.0.1", "nonsense:::x", "http://127.0.0.1:8787"])
    def test_no_client_is_created_for_an_invalid_address(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        distributed = pytest.importorskip("distributed")
        built: list[object] = []
        monkeypatch.setattr(distributed, "Client", lambda *args, **settings: built.append(args))
        with pytest.raises(InputError, match=r"no Dask cluster answers there: .*; give the address that its scheduler"):
            run_sweep(small_sweep(1), dask=address)
        assert not built, "one that fails to start holds up the end of the program"

    def test_without_distributed_the_error_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "distributed", None)
        with pytest.raises(MissingExtraError, match=r"needs distributed, .* its extra 'dask'"):
            run_sweep(small_sweep(1), dask="tcp://127.0.0.1:1")


@pytest.mark.slow
def test_a_script_needs_no_main_guard_and_runs_once(tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    script.write_text(
        "import simgpu\n"
        "print('run')\n"
        "sweep = simgpu.load_sweep('memory-sweep', {'sweep.grid.budget': ['52 MiB']})\n"
        "print(simgpu.run_sweep(sweep, jobs=2).counts['ok'])\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("run\n8\n", "")


def test_a_swept_budget_in_percent_is_a_part_of_each_points_own_peak(tmp_path: Path) -> None:
    write_trace(chain([5, 7], [10, 14], [100, 200]), tmp_path / "one")
    write_trace(chain([5, 7], [10, 14], [100, 300]), tmp_path / "two")
    values = {"node": "laptop-2gb", "policies": "ideal", "iterations": 1}
    grid = {"trace": [str(tmp_path / "one"), str(tmp_path / "two")], "budget": ["50%", "120%", "300 B", "1000000000%"]}
    frame = run_sweep(make_sweep({**values, "sweep": {"grid": grid}}, "a test")).frame()
    assert list(frame.budget) == [*grid["budget"], *grid["budget"]]
    assert list(frame.budget_bytes.dropna()) == [150, 360, 300, 200, 480, 300]
    assert list(frame.plain_peak_bytes.dropna()) == [300, 300, 400, 400]
    assert list(frame.outcome) == [*["ok"] * 3, "refused", *["ok"] * 3, "refused"]
    with pytest.raises(InputError, match=r"budget: '0%' is not a percentage above 0%"):
        make_sweep({**values, "trace": grid["trace"][0], "sweep": {"grid": {"budget": ["50%", "0%"]}}}, "a test")
