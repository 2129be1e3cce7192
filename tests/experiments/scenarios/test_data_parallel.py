"""Scenarios with several GPUs: the loaded section, and mistakes reported with their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.experiments.compare import compare
from simgpu.experiments.scenarios.load import load_scenario
from simgpu.graph.replicate import Exchange
from simgpu.program.data_parallel import DataParallel
from tests.cli.cli_helpers import simgpu

GOOD = """\
schema: simgpu.scenario/2
trace: {zoo: resnet20, batch: 64}
node: k40-x4
policies: [vdnn]
"""


def problems_of(folder: Path, more: str, overrides: dict[str, object] | None = None, text: str = GOOD) -> list[str]:
    path = folder / "try.yaml"
    path.write_text(text + more, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def loaded(folder: Path, more: str, overrides: dict[str, object] | None = None) -> DataParallel | None:
    path = folder / "try.yaml"
    path.write_text(GOOD + more, encoding="utf-8")
    return load_scenario(path, overrides).data_parallel


def test_the_data_parallel_section_is_loaded_with_its_defaults(tmp_path: Path):
    assert loaded(tmp_path, "") is None
    assert loaded(tmp_path, "data_parallel: {gpus: 4}\n") == DataParallel(4, Exchange.HOST, 1)
    section = "data_parallel: {gpus: 2, exchange: gather, cores: 5}\n"
    assert loaded(tmp_path, section) == DataParallel(2, Exchange.GATHER, 5)


def test_one_gpu_gives_no_data_parallelism(tmp_path: Path):
    assert loaded(tmp_path, "data_parallel: {gpus: 1}\n") is None


def test_overrides_can_add_data_parallelism(tmp_path: Path):
    assert loaded(tmp_path, "", {"data_parallel.gpus": 2, "data_parallel.cores": 3}) == DataParallel(2, cores=3)


def test_a_scenario_prints_its_gpus(tmp_path: Path):
    path = tmp_path / "try.yaml"
    path.write_text(GOOD + "data_parallel: {gpus: 4, cores: 20}\n", encoding="utf-8")
    facts = dict(load_scenario(path).facts())
    message = "4 train 16 of 64 samples each; 20 cores of the host add up the gradients and update the weights"
    assert facts["gpus"] == message


@pytest.mark.slow
def test_a_run_trains_on_all_gpus(tmp_path: Path):
    path = tmp_path / "try.yaml"
    path.write_text(GOOD + "data_parallel: {gpus: 2, exchange: gather}\n", encoding="utf-8")
    scenario = load_scenario(path)
    (run,) = compare(scenario)
    assert run.result is not None
    assert run.result.parallel_run is not None
    assert run.result.parallel_run.how == scenario.data_parallel
    (other,) = compare(scenario, gpus=4, exchange="host", cores=2)
    assert other.result is not None
    assert other.result.parallel_run is not None
    assert other.result.parallel_run.how == DataParallel(4, Exchange.HOST, 2)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{gpus: 8}", "data_parallel.gpus: node k40-x4 has 4 GPUs, not 8"),
        ("{gpus: 3}", "data_parallel.gpus: a batch of 64 cannot be divided evenly among 3 GPUs"),
        ("{gpus: 2, cores: 40}", "data_parallel.cores: the host of node k40-x4 has 20 cores, not 40"),
        ("{gpus: 2, exchange: nccl}", "data_parallel.exchange: 'nccl' is not one of the choices"),
        ("{gpus: none}", "data_parallel.gpus: 'none'"),
        ("{gpus: 0}", "data_parallel.gpus: 0"),
        ("{exchange: host}", "data_parallel.gpus: is missing"),
        ("{gpus: 2, host_cores: 4}", "data_parallel.host_cores: unknown key"),
    ],
)
def test_a_mistake_is_reported_at_its_place(tmp_path: Path, section: str, message: str):
    (problem,) = problems_of(tmp_path, f"data_parallel: {section}\n")
    assert problem.startswith(f"try.yaml: line 5, {message}")


def test_mistakes_are_reported_together(tmp_path: Path):
    result = problems_of(tmp_path, "data_parallel: {gpus: 7, cores: 99}\nbudget: 1 TiB\n")
    assert len(result) == 4


def test_a_node_without_a_host_cannot_exchange_through_it(tmp_path: Path):
    text = GOOD.replace("k40-x4", "titan-x-maxwell-x4")
    (problem,) = problems_of(tmp_path, "data_parallel: {gpus: 4}\n", text=text)
    assert "data_parallel.exchange: host needs node.host.accumulate_bandwidth, which is not set" in problem
    assert "or use the exchange gather" in problem


def test_the_command_line_runs_on_several_gpus(tmp_path: Path):
    settings = ("--set", "data_parallel.gpus=2", "--set", "data_parallel.cores=2")
    done = simgpu("run", "--trace", "resnet20-cifar-cpu", "--node", "k40-x4", "--policy", "none", *settings)
    assert done.exit_code == 0
    assert "2 train 16 of 32 samples each; 2 cores of the host" in " ".join(done.output.split())
    assert "multi-GPU speedup" in done.output
    done = simgpu("run", "--trace", "resnet20-cifar-cpu", "--node", "k40-x4", "--policy", "none", "--json", *settings)
    (run,) = json.loads(done.stdout)["results"]
    assert run["data_parallel"] == {"gpus": 2, "exchange": "host", "cores": 2}


@pytest.mark.slow
def test_an_out_of_memory_message_names_the_gpu():
    budget = ("--memory", "1 MiB", "--set", "data_parallel.gpus=2")
    done = simgpu("run", "--trace", "resnet20-cifar-cpu", "--node", "k40-x4", "--policy", "none", *budget)
    assert done.exit_code == 3
    assert "out of device memory" in done.output
