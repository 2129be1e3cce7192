"""`memory_lower_bound` is what ``simgpu memory-bound`` prints, in one call."""

import json

import pytest
from click.testing import CliRunner

import simgpu
from simgpu.cli import main


@pytest.mark.slow
def test_the_result_equals_the_output_of_simgpu_memory_bound():
    trace, node = simgpu.load_trace("vgg16-b128-v100"), simgpu.load_node("v100")
    result = simgpu.memory_lower_bound(trace, node)
    message = json.loads(
        CliRunner().invoke(main, ["memory-bound", "vgg16-b128-v100", "--node", "v100", "--json"]).stdout
    )
    assert result.bound.bytes == message["bound"]["bytes"]
    assert result.all_at_once.bytes == message["all_at_once"]["bytes"]
    assert result.offloaded.bytes == message["offloaded"]["bytes"]
    assert result.batch == message["bounds_batch"] == 1


def test_alignment_raises_the_memory_lower_bound():
    trace, node = simgpu.load_trace("resnet20-cifar-cpu"), simgpu.load_node("laptop-2gb")
    plain, padded = simgpu.memory_lower_bound(trace, node), simgpu.memory_lower_bound(trace, node, alignment="1 MiB")
    assert padded.bound.bytes > plain.bound.bytes
    assert padded.all_at_once.bytes % 2**20 == 0


def test_wrong_trace_and_node_are_reported_together():
    with pytest.raises(simgpu.InputError) as refused:
        simgpu.memory_lower_bound("vgg16-b128-v100", "v100")  # type: ignore[arg-type]
    assert [problem.place for problem in refused.value.problems] == ["argument trace", "argument node"]
