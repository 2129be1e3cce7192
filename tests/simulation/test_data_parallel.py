"""Several GPUs under any policy: shares of the batch, results, and refused input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import simgpu
from simgpu.analysis.breakdown import breakdown
from simgpu.errors import InputError
from simgpu.experiments.scenarios.load import make_scenario
from simgpu.experiments.scenarios.load_sweep import make_sweep
from simgpu.hardware.spec import HostSpec, NodeSpec
from simgpu.program.data_parallel import DataParallel, priced
from simgpu.program.text import to_json
from simgpu.simulation.run import Result, simulate
from simgpu.timeline.export import write_csv
from simgpu.timeline.model import SpanKind
from simgpu.timeline.perfetto import write_perfetto
from simgpu.trace.model import BlockKind, Trace
from simgpu.workloads.modelled import build_trace
from simgpu.workloads.rescale import at_batch
from tests.cli.cli_helpers import simgpu as command_line
from tests.semantics.networks import network, several
from tests.sets import slow_except

GPU_EXCHANGES = [(gpus, exchange) for gpus in (2, 4) for exchange in ("gather", "host")]


@pytest.fixture(scope="module")
def node() -> NodeSpec:
    return simgpu.load_node("k40-x4")


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return simgpu.load_trace("resnet20-cifar-cpu")


@pytest.fixture(scope="module")
def resnet(node: NodeSpec) -> Trace:
    return build_trace("resnet34", batch=64, gpu=node.gpu)


def same_bytes(first: Result, second: Result, folder: Path) -> bool:
    texts = []
    for result in (first, second):
        write_csv(result.timeline, folder / "timeline.csv")
        texts.append((folder / "timeline.csv").read_bytes() + json.dumps(result.to_dict()).encode())
    return texts[0] == texts[1]


# --- any policy --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["ideal", "none", "vdnn", "modnn"])
@pytest.mark.parametrize(("gpus", "exchange"), GPU_EXCHANGES)
def test_policies_run_on_several_gpus_and_are_steady(
    node: NodeSpec, recorded: Trace, policy: str, gpus: int, exchange: str
):
    result = simulate(recorded, node, policy, gpus=gpus, exchange=exchange)
    assert result.steady
    assert result.trace.batch == recorded.info.batch
    assert result.metrics.samples_per_s == pytest.approx(recorded.info.batch * 1e9 / result.iteration_ns)
    assert result.metrics.breakdown.total == result.iteration_ns
    assert len(result.timeline.device_memories) == gpus


@pytest.mark.parametrize("budget", slow_except(["40 MiB", "120 MiB"], "40 MiB"))
def test_every_gpu_respects_the_budget(node: NodeSpec, budget: str):
    trace = build_trace("resnet20", batch=64, gpu=node.gpu)
    for exchange in ("gather", "host"):
        result = simulate(trace, node, "modnn", gpus=4, exchange=exchange, budget=budget)
        assert result.steady
        assert all(curve.used.max() <= result.budget for curve in result.timeline.device_memories)


@pytest.mark.slow
def test_modnns_exchange_scales_better_than_the_naive_one(node: NodeSpec, resnet: Trace):
    naive, hosted = (simulate(resnet, node, "ideal", gpus=4, exchange=exchange) for exchange in ("gather", "host"))
    assert naive.metrics.speedup is not None
    assert hosted.metrics.speedup is not None
    assert 1 < naive.metrics.speedup < hosted.metrics.speedup


@pytest.mark.slow
def test_more_cores_never_slow_the_exchange(node: NodeSpec, resnet: Trace):
    times = [simulate(resnet, node, "modnn", gpus=4, cores=cores).iteration_ns for cores in (1, 2, 20)]
    assert times == sorted(times, reverse=True)


def test_host_encoding_for_several_gpus_takes_longer():
    trace = simgpu.load_trace("vgg16-b128-v100")
    node = simgpu.load_node("v100", {"gpus": 2, "host.accumulate_bandwidth": "12 GB/s"})
    above = {"threshold": 0.3}
    alone = simulate(at_batch(trace, 64, node.gpu), node, "vdnn++", parameters=above)
    together = simulate(trace, node, "vdnn++", parameters=above, gpus=2)

    def longest(result: Result) -> int:
        chosen = result.timeline.kind == SpanKind.ENCODE
        return int((result.timeline.end_ns - result.timeline.start_ns)[chosen].max(initial=0))

    assert 0 < 2 * longest(alone) == longest(together)


# --- one GPU -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["ideal", "none", "vdnn", "modnn"])
def test_gpus_1_gives_the_same_bytes_as_the_default(node: NodeSpec, recorded: Trace, policy: str, tmp_path: Path):
    plain, one = simulate(recorded, node, policy), simulate(recorded, node, policy, gpus=1, exchange="gather", cores=9)
    assert same_bytes(plain, one, tmp_path)
    assert to_json(plain.program) == to_json(one.program)
    assert one.metrics.speedup is None
    assert "elsewhere" not in to_json(plain.program)


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(node: NodeSpec, recorded: Trace, tmp_path: Path):
    first, second = (simulate(recorded, node, "vdnn", gpus=3 + 1, exchange="host") for _ in range(2))
    assert same_bytes(first, second, tmp_path)


# --- results -----------------------------------------------------------------------------------------------


def test_metrics_of_several_gpus_match_the_hand_calculation(node: NodeSpec, resnet: Trace):
    result = simulate(resnet, node, "none", gpus=2, exchange="gather")
    metrics, share = result.metrics, simulate(at_batch(resnet, 32, node.gpu), node, "none")
    single = simulate(resnet, node, "ideal").iteration_ns
    assert metrics.speedup == single / result.iteration_ns
    assert metrics.together_ns == result.iteration_ns - share.iteration_ns
    assert result.ideal_ns == share.ideal_ns
    weights = sum(
        block.bytes for block in resnet.blocks if block.persistent and f"{block.id}.grad" in resnet.block_by_id
    )
    # A gradient to GPU 0 through the host, and a weight back the same way.
    assert (metrics.copied_bytes["d2h"], metrics.copied_bytes["h2d"]) == (2 * weights, 2 * weights)
    assert metrics.device_peak_bytes == max(int(curve.live.max()) for curve in result.timeline.device_memories)
    assert result.to_dict()["data_parallel"] == {"gpus": 2, "exchange": "gather", "cores": 1}
    assert {"speedup", "together_ns"} <= set(result.to_dict()["metrics"])
    assert result.notes[0] == "2 GPUs train 32 of 64 samples each; GPU 0 gathers the gradients and updates the weights"
    assert "2 of the node's 4 GPUs run" in result.notes


@pytest.mark.parametrize("exchange", ["gather", "host"])
def test_an_iteration_ends_when_all_gpus_have_their_weights(node: NodeSpec, resnet: Trace, exchange: str):
    timeline = simulate(resnet, node, "ideal", gpus=2, exchange=exchange).timeline
    for number, end in enumerate(timeline.iteration_ends_ns):
        mine = timeline.copies("h2d") & (timeline.iteration == number)
        assert end == timeline.end_ns[mine].max()


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["gather", "host"])
@pytest.mark.parametrize("policy", ["ideal", "none", "modnn"])
def test_the_first_iteration_includes_its_exchange(node: NodeSpec, resnet: Trace, policy: str, exchange: str):
    one, two, five = (
        simulate(resnet, node, policy, gpus=2, exchange=exchange, iterations=count) for count in (1, 2, 5)
    )
    assert one.iteration_ns == two.iteration_ns == five.iteration_ns
    assert (one.steady, two.steady, five.steady) == (None, True, True)
    assert one.metrics.breakdown == five.metrics.breakdown
    assert (one.metrics.copied_bytes["d2h"], one.metrics.copied_bytes["h2d"]) == (
        five.metrics.copied_bytes["d2h"],
        five.metrics.copied_bytes["h2d"],
    )


@pytest.mark.slow
def test_the_breakdown_of_each_gpu_adds_up(node: NodeSpec, resnet: Trace):
    result = simulate(resnet, node, "vdnn", gpus=2, exchange="gather")
    parts = [breakdown(result.timeline, gpu=gpu) for gpu in (0, 1)]
    assert [part.total for part in parts] == [result.iteration_ns] * 2
    # GPU 0 adds gradients and runs the optimizer while the other one waits.
    assert parts[0].compute > parts[1].compute
    assert parts[0].stalled < parts[1].stalled


def test_waiting_for_the_host_is_reported_as_its_own_cause():
    trace = network([1000], batch=2)
    on = replace(several(2), host=HostSpec(accumulate_bandwidth=10**6))
    parts = simulate(trace, on, "ideal", gpus=2).metrics.breakdown
    assert parts.stalled_host == 4 * 1000 * 1000


def test_output_files_distinguish_the_gpus(node: NodeSpec, recorded: Trace, tmp_path: Path):
    timeline = simulate(recorded, node, "vdnn", gpus=2).timeline
    frame = timeline.memory_frame()
    assert sorted(set(zip(frame["gpu"], frame["memory"], strict=True))) == [(-1, "host"), (0, "device"), (1, "device")]
    assert set(timeline.frame()["gpu"]) == {0, 1}
    write_perfetto(timeline, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert names == {"gpu 0": 1, "gpu 1": 2}
    counted = {(event["pid"], event["name"]) for event in events if event["ph"] == "C"}
    assert counted == {(1, "device memory"), (2, "device memory"), (1, "host memory")}


@pytest.mark.slow
def test_outputs_of_several_gpus_note_that_they_exchange_through_the_host():
    """Speedups with moDNN's exchange through host memory do not apply to training with NCCL."""
    text = "NCCL's collectives and links between GPUs"
    base = {"trace": "resnet20-cifar-cpu", "node": "k40-x4", "policies": "none", "iterations": 1}
    for gpus, times in ((2, 1), (1, 0)):
        values = {**base, "data_parallel": {"gpus": gpus}}
        run = simgpu.compare(make_scenario(values, "a test"))["none"]
        swept = simgpu.run_sweep(make_sweep({**values, "sweep": {"grid": {"seed": [1]}}}, "a test"))
        for notes in (run.result.notes, swept.notes):
            assert sum(text in note for note in notes) == times
    for study, times in (("modnn-17", 1), ("modnn-14", 0)):
        assert sum(text in fact for _, fact in simgpu.load_study(study).facts()) == times
    for command in ("run", "compare"):
        shown = " ".join(command_line(command, "--help").stdout.split())
        assert "as in moDNN (2019). Policies ddp and fsdp have NCCL's collectives instead." in shown
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert "(`data_parallel`: any policy, gradients through the host as in moDNN, or the host alone shared)" in readme


def test_notes_describe_the_optimizers_place():
    on = replace(several(2), host=HostSpec(accumulate_bandwidth=10**9))
    on = replace(on, gpu=replace(on.gpu, dram_bandwidth=10**10))
    recorded, none = network([10, 10], step=500, batch=2), network([10, 10], step=None, batch=2)
    gathered, hosted = (simulate(recorded, on, "none", gpus=2, exchange=how).notes for how in ("gather", "host"))
    replaced = "the host's update replaces the recorded optimizer (1 us on one GPU)"
    assert f"{replaced}: the speedup may exceed the number of GPUs" in hosted
    assert not any("optimizer" in note for note in gathered)
    for how in ("gather", "host"):
        notes = simulate(none, on, "none", gpus=2, exchange=how).notes
        assert "the trace has no optimizer: weights are updated by plain gradient descent" in notes


def test_notes_name_weights_without_known_gradients():
    trace = network([10, 100, 100], batch=2)
    blocks = tuple(replace(b, kind=BlockKind.OTHER, bytes=7) if b.id == "w1.grad" else b for b in trace.blocks)
    on = replace(several(2), host=HostSpec(accumulate_bandwidth=10**9))
    notes = simulate(replace(trace, blocks=blocks), on, "none", gpus=2).notes
    assert "weight 'w1' has no known gradient: not exchanged, each GPU keeps its own" in notes
    assert not any("no gradient" in note for note in simulate(trace, on, "none", gpus=2).notes)


def test_figures_show_every_gpu(node: NodeSpec, recorded: Trace):
    result = simulate(recorded, node, "vdnn", gpus=2, exchange="gather")
    streams, memory = result.plot().axes
    assert "gpu1.compute" in [label.get_text() for label in streams.get_yticklabels()]
    assert memory.get_ylabel().startswith("memory of GPU 0")
    assert "live on the other GPUs" in [text.get_text() for text in memory.get_legend().get_texts()]


# --- refused input ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"gpus": 5}, "node k40-x4 has 4 GPUs, not 5"),
        ({"gpus": 3}, "a batch of 64 cannot be divided evenly among 3 GPUs; take a batch of 63 or 66"),
        ({"gpus": 2, "cores": 21}, "the host of node k40-x4 has 20 cores, not 21"),
        ({"gpus": 0}, "0 is not a whole number of at least 1"),
        ({"gpus": 2.0}, "2.0 is not a whole number of at least 1"),
        ({"gpus": 2, "cores": 0}, "0 is not a whole number of at least 1"),
        ({"gpus": 2, "exchange": "gahter"}, "'gahter' is not one of the choices; did you mean 'gather'"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(node: NodeSpec, resnet: Trace, arguments: dict[str, object], what: str):
    with pytest.raises(InputError, match=what) as caught:
        simulate(resnet, node, "ideal", **arguments)  # type: ignore[arg-type]
    assert all(problem.place.startswith("argument ") for problem in caught.value.problems)


def test_a_host_of_unknown_speed_is_refused(resnet: Trace, node: NodeSpec):
    silent = replace(node, host=HostSpec())
    with pytest.raises(InputError, match=r"node\.host\.accumulate_bandwidth: is not set for node k40-x4"):
        simulate(resnet, silent, "ideal", gpus=4)
    assert simulate(resnet, silent, "ideal", gpus=4, exchange="gather").steady


def test_gathering_on_a_gpu_of_unknown_memory_bandwidth_is_refused():
    with pytest.raises(InputError, match=r"node\.gpu\.dram_bandwidth: is not set"):
        simulate(network([10], batch=2), several(2), "ideal", gpus=2, exchange="gather")


def test_a_trace_without_weights_is_refused(node: NodeSpec):
    from simgpu.trace.chain import chain

    trace = chain([5], [7], [100])
    with pytest.raises(InputError, match="which other GPUs or the host would need"):
        simulate(replace(trace, info=replace(trace.info, batch=4)), node, "ideal", gpus=4)


# --- costs of the exchange ------------------------------------------------------------------------------------


def test_gpu_0_adds_gradients_at_a_share_of_its_memory_bandwidth(node: NodeSpec):
    how = priced(DataParallel(4, simgpu.program.data_parallel.Exchange.GATHER), node)
    share = how.bandwidth / (node.gpu.dram_bandwidth or 1)
    assert 0.5 < share < 1 + 1e-6  # a K40 reaches all of it, in whole nanoseconds
    assert how.overhead_ns > 1000


def test_more_cores_add_gradients_faster_until_memory_is_the_limit(node: NodeSpec):
    rates = [priced(DataParallel(4, cores=cores), node).bandwidth for cores in (1, 2, 3, 20)]
    one = node.host.accumulate_bandwidth or 0
    assert rates == [one, 2 * one, node.host.accumulate_limit, node.host.accumulate_limit]
    # As far as more cores helped in the paper (moDNN, section 7.5).
    assert 2 <= rates[-1] / one <= 3
