"""A training of many epochs: notes of policies, weights of epochs, and decisions."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from simgpu.errors import InputError
from simgpu.experiments.training import AS_IT_IS, train
from simgpu.hardware.nodes import load_node
from simgpu.policies.base import PlanContext, Policy
from simgpu.program.instructions import Program
from simgpu.program.lowering import lower
from simgpu.program.placement import Placement
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace

TRACE, NODE = load_trace("vgg16-b128-v100"), load_node("v100", {"host.codec_bandwidth": "20 GB/s"})


@dataclass(frozen=True)
class Counting(Policy):
    """Keeps everything resident, and notes the number of planned epochs."""

    name = "counting"
    summary = source = "tests"

    def plan(self, context: PlanContext) -> Program:
        noted: MutableMapping[str, Any] = context.carried
        noted["epochs"] = [*noted.get("epochs", []), context.epoch]
        program = lower(context.graph, Placement())
        return replace(program, notes=(str(noted["epochs"]),))


def test_each_epoch_equals_the_iteration_of_simulate() -> None:
    training = train(TRACE, NODE, "oracle", epochs=[0, 30])
    for epoch in training.epochs:
        assert epoch.result.to_dict() == simulate(TRACE, NODE, "oracle", epoch=epoch.number).to_dict()


def test_a_policy_has_its_notes_of_earlier_epochs() -> None:
    training = train(TRACE, NODE, Counting(), epochs=[3, 7])
    assert [epoch.result.notes[-1] for epoch in training.epochs] == ["[3]", "[3, 7]"]


def test_a_new_training_starts_without_notes() -> None:
    policy = Counting()
    for _ in range(2):
        assert train(TRACE, NODE, policy, epochs=[3]).epochs[0].result.notes[-1] == "[3]"


def test_iterations_per_epoch_scale_the_total_time_and_not_the_rate() -> None:
    once, often = (train(TRACE, NODE, "oracle", epochs=[0, 30], iterations_per_epoch=n) for n in (1, 1000))
    times = [epoch.result.iteration_ns for epoch in once.epochs]
    assert once.total_ns == sum(times)
    assert often.total_ns == 1000 * once.total_ns
    assert once.samples_per_s == often.samples_per_s == 2 * 128 * 10**9 / sum(times)


@pytest.mark.slow
def test_by_default_all_epochs_of_the_trace_run() -> None:
    assert [epoch.number for epoch in train(TRACE, NODE, Counting()).epochs] == list(range(50))


def test_decisions_contain_the_codec_of_every_block() -> None:
    training = train(TRACE, NODE, "static", parameters={"launch": "expert"}, epochs=[0, 20])
    assert list(training.decisions)[:2] == ["image", "conv1_1"]
    assert training.decisions["image"] == (AS_IT_IS, AS_IT_IS)
    assert training.decisions["conv1_1"] == ("zvc", "zvc")
    assert training.counts == (12, 12)
    assert list(training.frame()["compressed"]) == [12, 12]


def test_tensors_encoded_by_the_host_count_as_compressed() -> None:
    """Only tensors with more than 60% zeros: none at first, some after twenty epochs."""
    training = train(TRACE, NODE, "vdnn++", epochs=[0, 20])
    sparse = {s.block for s in TRACE.sparsity if s.epoch == 20 and s.sparsity > 0.6}
    assert training.counts[0] == 0
    assert {block for block, row in training.decisions.items() if row[1] == "zvc"} == sparse & set(training.decisions)
    assert training.counts[1] > 0


def test_a_trace_without_epochs_is_refused() -> None:
    with pytest.raises(InputError, match="no epoch"):
        train(chain([5], [7], [100]), NODE, "vdnn")


def test_an_epoch_without_iterations_is_refused() -> None:
    with pytest.raises(InputError, match="iterations_per_epoch"):
        train(TRACE, NODE, "vdnn", epochs=[0], iterations_per_epoch=0)


def test_an_epoch_beyond_the_trace_is_refused() -> None:
    (epoch,) = train(TRACE, NODE, "oracle", epochs=[60]).epochs
    assert "the trace records epochs 0 to 49: epoch 49 is used in place of 60" in epoch.result.notes


def test_notes_with_changing_values_are_shown_for_the_last_epoch() -> None:
    notes = train(TRACE, NODE, "vdnn++", epochs=[0, 40]).notes
    (last,) = train(TRACE, NODE, "vdnn++", epochs=[40]).counts
    message = [note for note in notes if "the host compresses" in note]
    assert message == [f"the host compresses {last} of 12 sparse tensors: above 60% zeros"]
