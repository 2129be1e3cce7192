"""``simgpu explain`` shows why policies are slow or do not fit, and what would help."""

from __future__ import annotations

import json

import pytest

from tests.cli.cli_helpers import simgpu

SMALL = ("explain", "quickstart", "--quiet")


def test_explain_lists_losses_by_tensor_engine_and_decision() -> None:
    done = simgpu(*SMALL, "--set", "policies=[vdnn: {mode: conv}]")
    assert done.exit_code == 0
    for message in (
        "vdnn(mode=conv): step time 111.8 ms, 1.671 ms over ideal (1.671 ms stalled)",
        "lost by engine: d2h 1.18 ms, h2d 490.7 us",
        "lost by layer: stage1_3 993.6 us, stage3_3.bn1 490.7 us, stage2_3 186.2 us",
        "stage1_3:add, 2 MiB, activation of stage1_3",
        "d2h, offload during k32 of stage2_1.conv1",
        "108.1 ms  96.7%    342  compute  compute",
        "2x link bandwidth      110.4 ms   -1.3%",
        "second copy engine            -          the node has one per direction",
    ):
        assert message in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_out_of_memory_is_explained_by_the_smallest_budget_and_limiting_kernel() -> None:
    done = simgpu(*SMALL, "--set", "policies=none")
    assert done.exit_code == 3
    for message in (
        "none: out of memory",
        "smallest budget  49.45 MiB (51849368 B), step time 110.1 ms; by bisection, the",
        "OOM below it     kernel k98 (aten::threshold_backward) requests 512 KiB, 502.6",
        "resident then    bn1:native_batch_norm, 2 MiB, activation of bn1",
    ):
        assert message in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


@pytest.mark.slow
def test_too_little_host_memory_is_reported_and_other_policies_explained() -> None:
    small = (*SMALL, "--set", "node.host.pinned_memory=1 MiB", "--set", "policies=[vdnn, home]")
    done = simgpu(*small)
    assert done.exit_code == 0
    assert "no sufficient budget budget: does not fit 1024 TiB either: out of host memory" in " ".join(
        done.stdout.split()
    )
    assert "home: step time 114.2 ms" in done.stdout
    vdnn, _ = json.loads(simgpu(*small, "--json", "--no-what-if").stdout)["explanations"]
    assert vdnn["smallest_budget"]["bytes"] is None
    assert "more host.pinned_memory" in vdnn["smallest_budget"]["message"]


def test_a_small_excess_over_the_budget_is_shown_in_bytes() -> None:
    done = simgpu("explain", "--trace", "hpc-cg", "--node", "v100", "--policy", "vdnn", "--memory", "1GiB", "--quiet")
    assert "needs 1218000004" in done.stdout
    assert "needs 1.134 GiB, which exceeds the 1.134 GiB capacity" not in " ".join(done.stdout.split())


def test_a_run_with_only_unlimited_policies_has_no_explanation() -> None:
    done = simgpu(*SMALL, "--set", "policies=ideal")
    assert done.exit_code == 0
    assert "nothing to explain: all policies have unlimited memory" in done.stdout


@pytest.mark.slow
def test_a_change_too_small_for_a_percentage_is_shown_as_time() -> None:
    four = ("--set", "node=k40-x4", "--set", "data_parallel.gpus=4", "--set", "policies=none")
    faster = next(line for line in simgpu(*SMALL, *four).stdout.splitlines() if line.startswith("2x link bandwidth"))
    assert faster.endswith(" ns")
    assert " -" in faster


def test_unlimited_policies_are_omitted_from_explanations() -> None:
    done = simgpu(*SMALL, "--no-what-if")
    assert done.exit_code == 0
    assert [line for line in done.stdout.splitlines() if line.startswith(("ideal", "none:", "vdnn"))] == [
        "none: out of memory",
        "vdnn(mode=conv): step time 111.8 ms, 1.671 ms over ideal (1.671 ms stalled)",
        "vdnn: step time 154.7 ms, 44.55 ms over ideal (44.55 ms stalled)",
    ]


@pytest.mark.slow
def test_json_contains_every_loss_and_critical_path_step() -> None:
    done = simgpu(*SMALL, "--json", "--set", "policies=[none, vdnn]", "--more-memory", "8 MiB")
    document = json.loads(done.stdout)
    assert document["schema"] == "simgpu.explanation/1"
    none, vdnn = document["explanations"]
    assert none["smallest_budget"]["bytes"] == 51849368
    assert none["failure"]["kind"] == "out of memory"
    assert sum(loss["ns"] for loss in vdnn["losses"]) == sum(vdnn["lost_ns"].values())
    assert sum(step["ns"] for step in vdnn["critical_path"]) == vdnn["iteration_ns"]
    assert [answer["change"] for answer in vdnn["what_if"]] == [
        "baseline",
        "2x link bandwidth",
        "+8 MiB device memory",
        "second copy engine",
        "instant codecs",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--more-memory", "much"), "--more-memory: 'much'"),
        (("--top", "0"), "0 is not in the range x>=1"),
        (("--set", "policies=vdn"), "did you mean 'vdnn'"),
    ],
)
def test_mistakes_are_reported_with_their_place(options: tuple[str, ...], message: str) -> None:
    done = simgpu(*SMALL, *options)
    assert done.exit_code == 2
    assert message in done.stderr
