"""The built-in policies fulfil the contract."""

from __future__ import annotations

from collections import Counter

from simgpu.timeline.model import SpanKind
from simgpu.trace.model import Phase
from tests.policies.contract import ITERATIONS, LINK, Parameters, PolicyContract, trace_of


class TestIdeal(PolicyContract):
    policy = "ideal"


class TestNone(PolicyContract):
    policy = "none"


class TestVdnn(PolicyContract):
    policy = "vdnn"
    parameter_sets = (
        {},
        {"mode": "conv"},
        {"mode": "dynamic"},
        {"mode": "all", "algorithms": "fastest"},
        {"mode": "conv", "algorithms": "smallest"},
        {"mode": "all", "algorithms": "fitting"},
    )


class TestVdnnPlusPlus(PolicyContract):
    policy = "vdnn++"
    parameter_sets = ({}, {"threshold": 0.9})


class TestCdma(PolicyContract):
    policy = "cdma"
    compressing = True


class TestStatic(PolicyContract):
    policy = "static"
    parameter_sets = ({"launch": "expert"}, {"launch": "random"}, {"launch": "grid_search"})


class TestCswap(PolicyContract):
    policy = "cswap"
    parameter_sets = (
        {"launch": "grid_search"},
        {"launch": "expert", "codec": "csr"},
        {"launch": "expert", "times": "exact", "sizes": "format"},
    )


class TestOracle(PolicyContract):
    policy = "oracle"
    parameter_sets = ({}, {"codec": "zvc"})


class TestVdnnPlus(PolicyContract):
    policy = "vdnn+"
    parameter_sets = (
        {},
        {"mode": "dynamic"},
        {"sub_batch": 1, "mode": "conv", "algorithms": "smallest"},
        {"counted": "live"},
    )


class TestModnn(PolicyContract):
    policy = "modnn"
    pools = ("addressed",)
    parameter_sets = ({}, {"sub_batch": 1}, {"algorithms": "fastest"}, {"algorithms": "smallest"}, {"counted": "live"})


class TestCapuchin(PolicyContract):
    policy = "capuchin"
    parameter_sets = ({}, {"version": "published"})


class TestSuperNeurons(PolicyContract):
    policy = "superneurons"


class TestHome(PolicyContract):
    policy = "home"
    parameter_sets = (
        {"particles": 40, "iterations": 20},
        {"particles": 10, "iterations": 4, "update": "full", "offload": "after", "drain": True},
    )


class TestJoint(PolicyContract):
    policy = "joint"
    parameter_sets = ({"evaluations": 500, "lower_bound": False},)


class TestCheckpoint(PolicyContract):
    policy = "checkpoint"
    copies_ahead = True
    parameter_sets = (
        {},
        {"blocks": 2},
        {"blocks": 3},
        {"blocks": 3, "inputs": "waiting"},
        {"inputs": "overlapped"},
        {"blocks": 4, "inputs": "overlapped"},
        {"blocks": 4, "first": 1, "every": 2, "early_stop": False},
        {"blocks": 4, "group": 2, "count": 2, "keep": ("conv*/2", "aten::add", "linear"), "inputs": "waiting"},
    )


class TestSaveOnCpu(PolicyContract):
    policy = "save_on_cpu"


class TestAsyncOffload(PolicyContract):
    policy = "async_offload"
    copies_ahead = True
    parameter_sets = (
        {"min_bytes": 1},
        {"min_bytes": 1, "prefetch": 0, "stash": 0},
        {"min_bytes": 60_000, "prefetch": 3, "stash": 1},
    )


class TestOffloadActivations(PolicyContract):
    policy = "offload_activations"
    copies_ahead = True
    parameter_sets = (
        {"min_offload_size": 0},
        {"min_offload_size": 1, "max_fwd_stash_size": 1, "saved_again": "offloaded"},
        {"min_offload_size": 60_000, "use_streams": False, "saved_again": "offloaded"},
    )


class TestOffloadGroups(PolicyContract):
    policy = "offload_groups"
    copies_ahead = True
    parameter_sets = (
        {"blocks": 3, "min_elements": 1},
        {"blocks": 4, "num_layers": 2, "min_elements": 1},
        {"blocks": 4, "num_layers": 2, "schedule": "transformer_engine_v1"},
        {"blocks": 4, "num_layers": 2, "schedule": "transformer_engine_v1", "double_buffering": True},
    )


class TestCheckmate(PolicyContract):
    policy = "checkmate"
    parameter_sets = ({"groups": 10, "evaluations": 2000}, {"groups": 12, "method": "rounding"})


class TestRevolve(PolicyContract):
    policy = "revolve"
    parameter_sets = ({}, {"snapshots": 2})


class TestG10(PolicyContract):
    policy = "g10"
    parameter_sets = ({}, {"target": 0.8, "fault_us": 0})


class TestFlashNeuron(PolicyContract):
    policy = "flashneuron"
    parameter_sets = ({}, {"drain": False})


class TestDeepUm(PolicyContract):
    policy = "deepum"
    parameter_sets = ({}, {"degree": 1})


class TestDeepUmPages(PolicyContract):
    policy = "deepum"
    pools = ("counting",)
    parameter_sets = ({"migrates": "pages"}, {"migrates": "pages", "degree": 1})

    def settles(self, parameters: Parameters) -> bool:
        """What was migrated longest ago leaves; chunks in turn, from one iteration on into the next."""
        return False


class TestAccumulate(PolicyContract):
    policy = "accumulate"
    copies_ahead = True
    parameter_sets = (
        {},
        {"micro_batches": 4},
        {"micro_batches": 2, "inside": "vdnn"},
        {"micro_batches": 2, "inside": "checkpoint"},
        {"micro_batches": 4, "inside": "checkpoint(inputs=overlapped)"},
        {"micro_batches": 4, "inside": "async_offload(min_bytes=1)"},
        {"micro_batches": 4, "inside": "save_on_cpu"},
        {"micro_batches": 4, "inside": "offload_activations(min_offload_size=1, max_fwd_stash_size=2)"},
        {"micro_batches": 4, "inside": "offload_groups(blocks=3, min_elements=1)"},
        {"micro_batches": 2, "inside": "joint(evaluations=2000, lower_bound=false)"},
    )


class TestOptimizerOnHost(PolicyContract):
    policy = "optimizer_on_host"
    copies_ahead = True
    parameter_sets = (
        {},
        {"overlap": "none", "fraction": 0.4},
        {"overlap": "gradients", "free_gradients": True, "inside": "checkpoint"},
        {"overlap": "step", "inside": "offload_activations(min_offload_size=1, max_fwd_stash_size=2)"},
        {"free_gradients": True, "inside": "accumulate(micro_batches=2, inside=save_on_cpu)"},
    )

    def test_runs_every_kernel_as_often_as_its_round_repeats(self, parameters, trace_name):
        """The GPU's kernels of the optimizer do not all run; the host's updates run once."""
        result = self.run(parameters, trace_name)
        spans = [span for span in result.timeline if span.iteration == ITERATIONS - 1 and span.kind is SpanKind.COMPUTE]
        ran = Counter(span.name for span in spans)
        own = {k.id for k in trace_of(trace_name).kernels if k.phase is not Phase.OPTIMIZER}
        assert own <= {name.split("@")[0] for name in ran}
        updates = [name for name in ran if name.startswith("update:")]
        assert updates and all(ran[name] == 1 for name in updates)

    def test_is_never_faster_than_compute_or_than_its_traffic(self, parameters, trace_name):
        """The host works while the GPU does: each of them takes its time."""
        result = self.run(parameters, trace_name)
        ended = [span for span in result.timeline if span.iteration == ITERATIONS - 1]
        for stream in ("compute", "host1"):
            busy = sum(s.end_ns - s.start_ns for s in ended if s.stream == stream and s.kind is SpanKind.COMPUTE)
            assert 0 < busy <= result.iteration_ns
        copied = result.metrics.copied_bytes
        assert result.iteration_ns * LINK.d2h_bandwidth >= copied["d2h"] * 10**9
        assert result.iteration_ns * LINK.h2d_bandwidth >= copied["h2d"] * 10**9


class TestWeightsOnHost(TestOptimizerOnHost):
    policy = "weights_on_host"
    parameter_sets = (
        {},
        {"blocks": 3, "reshard_after_forward": False, "inside": "checkpoint"},
        {"inside": "offload_activations(min_offload_size=1, max_fwd_stash_size=2)"},
    )


class TestFsdp(PolicyContract):
    policy = "fsdp"
    gpus = 4
    copies_ahead = True
    parameter_sets = (
        {"gpus": 4},
        {"gpus": 4, "blocks": 3, "reshard_after_forward": False, "inside": "checkpoint"},
        {"gpus": 4, "blocks": 2, "inside": "offload_activations(min_offload_size=1, max_fwd_stash_size=2)"},
        {"gpus": 1},
    )

    def test_runs_every_kernel_as_often_as_its_round_repeats(self, parameters, trace_name):
        """In addition to the kernels of the trace, those that exchange run once."""
        result = self.run(parameters, trace_name)
        spans = [span for span in result.timeline if span.iteration == ITERATIONS - 1 and span.kind is SpanKind.COMPUTE]
        ran = Counter(span.name for span in spans)
        assert {k.id for k in trace_of(trace_name).kernels} <= ran.keys()
        exchanges = [name for name in ran if self.adds(name)]
        assert bool(exchanges) == (parameters["gpus"] > 1) and set(ran.values()) == {1}

    def adds(self, kernel: str) -> bool:
        """Collectives, and the copies to their buffers and from them."""
        return kernel.startswith(("all_", "reduce_scatter ", "split_with_sizes_copy ", "chunk_cat ", "copy_ "))


class TestDdp(TestFsdp):
    policy = "ddp"
    parameter_sets = (
        {"gpus": 4},
        {"gpus": 4, "shards": "optimizer", "bucket_mib": 1, "inside": "checkpoint"},
        {"gpus": 4, "inside": "offload_activations(min_offload_size=1, max_fwd_stash_size=2)"},
    )


class TestLru(PolicyContract):
    policy = "lru"


class TestBelady(PolicyContract):
    policy = "belady"


class TestSwapAdvisor(PolicyContract):
    policy = "swapadvisor"
    copies_ahead = True
    parameter_sets = (
        {"population": 6, "generations": 2},
        {"population": 4, "generations": 1, "order": "recorded"},
    )


class TestDtr(PolicyContract):
    policy = "dtr"
    parameter_sets = (
        {},
        {"heuristic": "dtr"},
        {"heuristic": "local", "deallocation": "ignore"},
        {"heuristic": "msps"},
        {"heuristic": "lru"},
        {"heuristic": "size"},
    )
