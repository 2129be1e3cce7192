"""What helps a run out of memory: each remedy is what a run with it gives."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import simgpu
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.explain.remedies import Remedy, what_helps
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.trace.chain import chain
from simgpu.trace.model import RELEASED_AT_END, Block, BlockKind, Kernel, Origin, Phase, Trace
from tests.cli.cli_helpers import simgpu as command
from tests.workloads.configured.test_decoder_iteration import SMALL, built

MIB = 2**20
NODE = NodeSpec("example", GpuSpec("gpu", 600 * MIB), LinkSpec("pcie", 10**10, 10**10))


def growing() -> Trace:
    """Each step keeps a small tensor and frees a large one, which grows: no freed block serves the next."""
    kernels, blocks = [], []
    for number, size in enumerate((40, 44, 48, 52)):
        name = f"k{number}"
        blocks.append(Block(f"large{number}", size * MIB, BlockKind.ACTIVATION, release=name))
        blocks.append(Block(f"small{number}", 3 * MIB, BlockKind.ACTIVATION, release=RELEASED_AT_END))
        kernels.append(Kernel(name, "conv", Phase.FORWARD, 1000, (), (f"large{number}", f"small{number}")))
    trace = chain([1], [1], [1])
    info = replace(trace.info, batch=4, origin=Origin.IMPORTED)
    return Trace(info, tuple(kernels), tuple(blocks), name="growing")


def by_name(remedies: tuple[Remedy, ...]) -> dict[str, Remedy]:
    return {remedy.change.partition(":")[0]: remedy for remedy in remedies}


def test_expandable_segments_help_where_freed_blocks_are_too_small() -> None:
    remedies = by_name(what_helps(growing(), NODE, "none", pool="caching", budget=120 * MIB))
    assert not remedies["as it is"].fits and remedies["expandable_segments"].fits
    as_it_is, expandable = remedies["as it is"].peak, remedies["expandable_segments"].peak
    assert as_it_is is not None and expandable is not None
    assert expandable <= 120 * MIB < as_it_is


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["caching", "counting"])
def test_each_remedy_is_what_a_run_with_it_gives(pool: str) -> None:
    trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    budget = 45 * MIB
    remedies = by_name(what_helps(trace, node, "none", pool=pool, budget=budget))
    ample = simgpu.simulate(trace, node, "none", pool=pool)
    assert remedies["as it is"].peak == ample.high_water > budget
    for name in ("checkpoint", "superneurons"):
        run = simgpu.simulate(trace, node, name, pool=pool, budget=budget)
        assert (remedies[name].peak, remedies[name].result) == (run.high_water, remedies[name].result)
        assert remedies[name].result is not None and remedies[name].result.iteration_ns == run.iteration_ns
    batch = remedies["largest batch"].batch
    fitting = simgpu.simulate(simgpu.at_batch(trace, batch), node, "none", pool=pool, budget=budget)
    assert remedies["largest batch"].peak == fitting.high_water <= budget
    with pytest.raises(OutOfMemoryError):
        simgpu.simulate(simgpu.at_batch(trace, batch + 1), node, "none", pool=pool, budget=budget)
    assert remedies["half the batch"].batch == 16
    assert ("expandable_segments" in remedies) == (pool == "caching")


def test_settings_are_tried_in_addition_to_those_given() -> None:
    given = "max_split_size_mb:256"
    remedies = by_name(what_helps(growing(), NODE, "none", pool="caching", budget=120 * MIB, allocator=given))
    assert "max_split_size_mb" not in remedies
    run = remedies["expandable_segments"].result
    assert run is not None and run.allocator == "max_split_size_mb:256,expandable_segments:True"


def test_what_a_trace_does_not_allow_is_said() -> None:
    single = replace(growing(), info=replace(growing().info, batch=1))
    remedies = by_name(what_helps(single, NODE, "none", pool="caching", budget=120 * MIB))
    assert remedies["smaller batch"].note == "the batch has one sample"
    assert remedies["checkpoint"].peak is None and remedies["checkpoint"].note
    with pytest.raises(InputError, match="remedies are simulated for one GPU"):
        what_helps(growing(), NODE, "none", gpus=2)
    with pytest.raises(InputError, match=r"what kernels read|reads"):
        what_helps(growing(), NODE, "capuchin", pool="caching", budget=120 * MIB)


@pytest.mark.slow
def test_explain_shows_what_helps() -> None:
    arguments = ("explain", "--trace", "resnet20-cifar-cpu", "--node", "laptop-2gb", "--memory", "45MiB")
    arguments += ("--policy", "none", "--set", "pool=caching", "-q")
    done = command(*arguments)
    assert done.exit_code == 3
    for line in (
        "what helps                  peak   change  step time  in the budget",
        "expandable_segments:True  64 MiB   +2 MiB             OOM",
        "half the batch: 16        26 MiB  -36 MiB   55.53 ms  fits",
        "checkpoint                32 MiB  -30 MiB   151.4 ms  fits",
    ):
        assert line in done.stdout
    report = json.loads(command(*arguments, "--json").stdout)["explanations"][0]
    assert [each["change"] for each in report["what_helps"]][:2] == ["as it is", "expandable_segments:True"]
    assert report["what_helps"][0] == {
        "change": "as it is",
        "peak_bytes": 62 * MIB,
        "fits": False,
        "batch": 32,
        "iteration_ns": None,
        "note": "",
    }
    assert "what_helps" not in json.loads(command(*arguments, "--json", "--no-what-if").stdout)["explanations"][0]


def test_recomputation_is_tried_inside_a_policy_for_one_of_several_gpus() -> None:
    trace = built(SMALL, 64).trace
    remedies = by_name(what_helps(trace, load_node("h100-x8"), "fsdp", budget="900 KiB"))
    result = remedies["checkpoint inside fsdp"].result
    assert result is not None and result.label == "fsdp(inside=checkpoint)"
