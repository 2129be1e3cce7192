"""The cases that are recorded: their names, and that their modules are there."""

from __future__ import annotations

import pytest

from simgpu.validation.harness import CASES, SMALL_CASES, CasePlan
from simgpu.validation.measured import Method

ALL = (*CASES, *SMALL_CASES)


def test_each_set_has_three_networks_at_two_batch_sizes_each() -> None:
    for plans in (CASES, SMALL_CASES):
        models = [plan.model for plan in plans]
        assert len(set(models)) == 3
        assert all(models.count(model) == 2 for model in models)
        assert {plan.factory for plan in plans} == {"vgg16", "resnet50", "gpt2-small"}
    assert len({plan.name for plan in ALL}) == len(ALL)


@pytest.mark.parametrize("plan", ALL, ids=lambda plan: plan.name)
def test_every_block_is_checkpointed_and_none_inside_another(plan: CasePlan) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")
    from simgpu.recorder.workload import find_factory
    from simgpu.validation.managed.methods import check_settings

    with torch.device("meta"):
        module = find_factory(plan.factory)(batch=plan.batch, **plan.size).module
    paths = dict(module.named_modules())
    assert set(plan.blocks) <= paths.keys()
    repeated = {
        "vgg16": lambda path: path.startswith("stage"),
        "resnet50": lambda path: path.startswith("layer"),
        "gpt2-small": lambda path: path.startswith("blocks."),
    }[plan.factory]
    inside = {path for path in paths if repeated(path) and any(path.startswith(f"{block}.") for block in plan.blocks)}
    groups = {path for path in paths if any(block.startswith(f"{path}.") for block in plan.blocks)}
    assert {path for path in paths if repeated(path)} - inside - groups == set(plan.blocks)
    for method in Method:
        check_settings(method, plan.settings(method))
