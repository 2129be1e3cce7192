"""Settings of runs, as one RunConfig or by keyword, and errors for wrong arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.simulation.config import RunConfig
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain

TRACE = chain([5, 7], [10, 14], [100, 200])
NODE = NodeSpec("bench", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"iterations": 2.5}, "argument iterations"),
        ({"iterations": "3"}, "argument iterations"),
        ({"iterations": 0}, "argument iterations"),
        ({"budget": True}, "argument budget"),
        ({"budget": 1.5}, "argument budget"),
        ({"budget": "8"}, "argument budget"),
        ({"budget": -1}, "argument budget"),
        ({"alignment": 0}, "argument alignment"),
        ({"alignment": "half"}, "argument alignment"),
        ({"seed": -1}, "argument seed"),
        ({"seed": "a"}, "argument seed"),
        ({"pool": "swimming"}, "argument pool"),
        ({"policy": {"vdnn": {"mode": "conv"}}}, "argument policy"),
        ({"trace": "vgg13"}, "argument trace"),
        ({"node": "h100"}, "argument node"),
        ({"config": {"seed": 1}}, "argument config"),
        ({"exchange": "rings"}, "argument exchange"),
        ({"gpus": 0}, "argument gpus"),
        ({"cores": 0}, "argument cores"),
        ({"epoch": -1}, "argument epoch"),
        ({"enigne": "simpy"}, "argument enigne"),
        ({"bugdet": None}, "argument bugdet"),
    ],
    ids=str,
)
def test_the_error_for_a_wrong_argument_names_it_with_a_remedy(arguments: dict[str, Any], place: str) -> None:
    values: dict[str, Any] = {"trace": TRACE, "node": NODE, **arguments}
    with pytest.raises(InputError) as caught:
        simulate(values.pop("trace"), values.pop("node"), **values)
    assert [problem.place for problem in caught.value.problems] == [place]


def test_all_wrong_arguments_are_reported_at_once() -> None:
    with pytest.raises(InputError) as caught:
        simulate("vgg13", NODE, iterations=0, seed=-1, pool="x", budget="8")  # type: ignore[arg-type]
    places = [problem.place for problem in caught.value.problems]
    assert places == [f"argument {name}" for name in ("trace", "budget", "iterations", "seed", "pool")]


@pytest.mark.parametrize("entry", ["simulate", "compare"])
def test_an_unknown_setting_is_reported_with_the_closest_known_one(entry: str) -> None:
    with pytest.raises(InputError, match="argument enigne: there is no such setting; did you mean 'engine'"):
        getattr(simgpu, entry)(TRACE, NODE, ["none"] if entry == "compare" else "none", enigne="simpy")


def test_an_unknown_choice_reads_alike_in_a_call_and_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "try.yaml"
    file.write_text(
        "schema: simgpu.scenario/2\ntrace: vgg11-cifar-cpu\nnode: v100\npolicies: [none]\nengine: compield\n"
    )
    for wrong in (lambda: simgpu.load_scenario(file), lambda: RunConfig(engine="compield")):  # type: ignore[arg-type]
        with pytest.raises(InputError) as caught:
            wrong()
        text = "engine: 'compield' is not one of the choices; did you mean 'compiled'? known: auto, compiled, simpy"
        assert str(caught.value).endswith(text)


def test_a_config_is_the_same_as_its_settings_by_keyword() -> None:
    config = RunConfig(budget="1 kB", iterations=2, seed=5, pool="addressed", alignment=64, epoch=3)
    one = simulate(TRACE, NODE, "none", config)
    other = simulate(TRACE, NODE, "none", budget="1 kB", iterations=2, seed=5, pool="addressed", alignment=64, epoch=3)
    assert one.to_dict() == other.to_dict()
    assert (one.budget, one.iterations, one.seed, one.pool, one.node.gpu.alignment, one.epoch) == (
        1000, 2, 5, "addressed", 64, 3,
    )  # fmt: skip


def test_a_keyword_overrides_the_config_and_none_does_not() -> None:
    result = simulate(TRACE, NODE, "none", RunConfig(budget=900, seed=5), seed=6, budget=None)
    assert (result.budget, result.seed) == (900, 6)


def test_a_config_reports_all_its_problems() -> None:
    with pytest.raises(InputError) as caught:
        RunConfig(budget=-1, cores=0, exchange="rings")
    assert len(caught.value.problems) == 3


def test_sizes_may_be_text_with_units() -> None:
    assert simulate(TRACE, NODE, "none", budget="1 kB", alignment="64 B").budget == 1000


def test_a_run_longer_than_the_clock_raises() -> None:
    slow = NodeSpec("slow", GpuSpec("gpu", 1000), LinkSpec("pcie", 1, 1, latency_ns=2**62))
    three = chain([5, 7, 9], [10, 14, 18], [100, 200, 300])
    with pytest.raises(InputError, match="18 years"):
        simulate(three, slow, "vdnn")


def test_the_package_exports_simulate_and_run_config() -> None:
    assert simgpu.simulate is simulate
    assert simgpu.RunConfig is RunConfig


def test_results_compare_as_objects() -> None:
    one, other = simulate(TRACE, NODE, "none"), simulate(TRACE, NODE, "vdnn")
    assert one.timeline == one.timeline
    assert one.timeline != other.timeline
    assert one.timeline.memories[0] != other.timeline.memories[0]
