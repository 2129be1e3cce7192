"""The policies that compress: the cost of each, in closed form where there is one, and how they compare."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.compression.codecs.costs import NodeCosts
from simgpu.errors import InputError, OutOfMemoryError
from simgpu.graph.encodings import Encoder, Encoding
from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import HostSpec, NodeSpec
from simgpu.io.shipped import shipped_names
from simgpu.policies.cswap import swapping_cost_ns
from simgpu.policies.registry import make_policy
from simgpu.simulation.run import Result, simulate
from simgpu.timeline.model import SpanKind
from simgpu.trace.chain import chain
from simgpu.trace.folder import load_trace
from simgpu.trace.model import CompressedSize, Origin, SparsitySample, Trace
from tests.policies.networks import Layer, network
from tests.semantics.hand_made import GB, node

VGG = "vgg16-b128-v100"
V100 = load_node("v100")


def sparse_chain(
    forward: list[int], backward: list[int], sizes: list[int], zeros: list[float], *, measured: bool = True
) -> Trace:
    """A chain of ReLUs; every layer's input after the first has this share of zeros.

    measured: compressed sizes count only the non-zeros, as in equations 3 and 4, instead of ZVC's sizes.
    """
    trace = chain(forward, backward, sizes, op="relu")
    # Only convolutions are offloaded; here every layer is to be.
    kernels = tuple(replace(k, layer=f"{k.layer}") for k in trace.kernels)
    message = [
        (f"x{n}", size, share) for n, (size, share) in enumerate(zip(sizes, zeros, strict=True), start=1) if n > 1
    ]
    rows = tuple(CompressedSize(b, 0, "zvc", "nchw", size, round(size * (1 - share)), 1) for b, size, share in message)
    samples = tuple(SparsitySample(b, 0, share) for b, _, share in message)
    return replace(trace, kernels=kernels, sparsity=samples, compressibility=rows if measured else ())


def with_convolutions(trace: Trace) -> Trace:
    """The same chain where each layer also has a convolution that takes no time, which makes vDNN offload its input."""
    extra = [
        replace(k, id=f"{k.id}.conv", op="conv2d", duration_ns=0, writes=(), reads=k.reads[:1])
        for k in trace.kernels
        if k.id.startswith("F")
    ]
    kernels = []
    for kernel in trace.kernels:
        kernels += [e for e in extra if e.id == f"{kernel.id}.conv"]
        kernels.append(kernel)
    return replace(trace, kernels=tuple(kernels))


def v100(link: int = 10 * GB, **host: int) -> NodeSpec:
    """A V100 with copies at 10 bytes a nanosecond and no latency."""
    plain = node(10**12, out=link, back=link)
    return replace(plain, gpu=replace(V100.gpu, memory=10**12), host=HostSpec(**host))


def layers(count: int = 5, size: int = 400_000_000, ns: int = 20_000_000, zeros: float = 0.5) -> Trace:
    return with_convolutions(sparse_chain([ns] * count, [2 * ns] * count, [size] * count, [zeros] * count))


def codec_ns(result: Result) -> int:
    return result.metrics.breakdown.codec


# --- vdnn++ ---------------------------------------------------------------------------------------------------


def test_host_compression_reduces_pinned_memory_but_not_traffic() -> None:
    trace, on = layers(zeros=0.8), v100(codec_bandwidth=100 * GB)
    plain, host = (
        simulate(trace, on, policy, parameters=p) for policy, p in (("vdnn", {"mode": "conv"}), ("vdnn++", {}))
    )
    assert (host.metrics.copied_bytes["d2h"], host.metrics.copied_bytes["h2d"]) == (
        plain.metrics.copied_bytes["d2h"],
        plain.metrics.copied_bytes["h2d"],
    )
    assert host.metrics.shared_peak_bytes["host"] < plain.metrics.shared_peak_bytes["host"]
    assert host.iteration_ns >= plain.iteration_ns


def test_decoding_on_the_host_precedes_the_prefetch() -> None:
    """Each step with a fetch waits for decoding, then for the copy."""
    count, size, ns = 5, 400_000_000, 20_000_000
    on = v100(codec_bandwidth=4 * GB)
    result = simulate(layers(count, size, ns, zeros=0.8), on, "vdnn++")
    copy, decode = size // 10, size // 4
    hidden_out, hidden_in = ns, 2 * ns
    forward = count * ns + (count - 1) * max(copy - hidden_out, 0)
    # The sparsity of x1 is unknown, so it is not encoded; the other offloaded blocks are.
    backward = count * 2 * ns + max(copy - hidden_in, 0) + (count - 2) * max(decode + copy - hidden_in, 0)
    # The host still encodes the last tensors when the first one is fetched.
    assert result.iteration_ns >= forward + backward
    assert result.metrics.breakdown.stalled_host > 0


def test_tensors_below_the_sparsity_threshold_are_not_encoded_on_the_host() -> None:
    result = simulate(layers(zeros=0.6), v100(codec_bandwidth=GB), "vdnn++")
    assert not (result.timeline.kind == SpanKind.ENCODE).any()


def test_a_host_of_unknown_speed_is_refused() -> None:
    with pytest.raises(InputError, match=r"node\.host\.codec_bandwidth"):
        simulate(layers(zeros=0.8), v100(), "vdnn++")


# --- static, cswap, oracle ------------------------------------------------------------------------------------


def test_static_pays_for_every_sparse_tensor() -> None:
    trace, on = layers(), v100()
    result = simulate(trace, on, "static", parameters={"launch": "expert"})
    costs = NodeCosts(trace, on)
    blocks = [block for block in trace.blocks if block.id in ("x2", "x3", "x4")]
    grid, threads = 640, 128
    encodings = [Encoding(0, "zvc", Encoder.GPU, grid, threads) for _ in blocks]
    expected = sum(costs.encode_ns(b, e) + costs.decode_ns(b, e) for b, e in zip(blocks, encodings, strict=True))
    assert codec_ns(result) == expected


def test_the_advisor_compresses_the_tensors_selected_by_equations_1_to_4() -> None:
    """Independently for each tensor of VGG-16, from the trace alone."""
    trace = load_trace(VGG)
    result = simulate(trace, V100, "cswap", parameters={"launch": "expert", "times": "exact", "codec": "zvc"}, epoch=9)
    costs = NodeCosts(trace, V100, 9)
    compressed = {n.removesuffix(":zvc") for n in _encoded(result)}
    graph_layers = _step_times(trace)
    for name, (hidden_out, hidden_in) in _windows(result, graph_layers).items():
        block = trace.block_by_id[name]
        zeros = costs.sparsity(block)
        if zeros is None:
            assert name not in compressed
            continue
        link = V100.link.d2h_bandwidth, V100.link.h2d_bandwidth
        work = Encoding(0, "zvc", Encoder.GPU, 640, 128)
        both = costs.encode_ns(block, work) + costs.decode_ns(block, work)
        plain = swapping_cost_ns(block.bytes, (hidden_out, hidden_in), link)
        small = swapping_cost_ns(round(block.bytes * (1 - zeros)), (hidden_out, hidden_in), link, both)
        assert (name in compressed) == (small < plain), name


def _encoded(result: Result) -> set[str]:
    return {span.name for span in result.timeline if span.kind is SpanKind.ENCODE}


def _step_times(trace: Trace) -> list[tuple[str, str, int]]:
    """Layer, phase and nanoseconds of each layer step in order."""
    steps: list[tuple[str, str, int]] = []
    for kernel in trace.kernels:
        here = kernel.layer or "", kernel.phase.value
        if steps and steps[-1][:2] == here:
            steps[-1] = (*here, steps[-1][2] + kernel.duration_ns)
        else:
            steps.append((*here, kernel.duration_ns))
    return steps


def _windows(result: Result, steps: list[tuple[str, str, int]]) -> dict[str, tuple[int, int]]:
    """For each swapped block the computation during its copy out and during its copy in, read from the timeline."""
    outcome: dict[str, list[int]] = {}
    spans = [span for span in result.timeline if span.iteration == 1]
    compute = [span for span in spans if span.kind is SpanKind.COMPUTE]
    ends = []
    position = 0
    for layer, phase, ns in steps:
        begin = compute[position].start_ns
        taken = 0
        while position < len(compute) and (taken < ns or compute[position].end_ns == compute[position].start_ns):
            taken += compute[position].end_ns - compute[position].start_ns
            position += 1
        ends.append((begin, ns, layer, phase))
    for span in spans:
        if span.kind is SpanKind.COPY:
            kernel_during = max((begin, ns) for begin, ns, _, _ in ends if begin <= span.start_ns)
            outcome.setdefault(span.name.removesuffix(":zvc"), []).append(kernel_during[1])
    return {name: (values[0], values[1]) for name, values in outcome.items()}


def test_cswap_equals_static_if_every_tensor_is_worth_compressing() -> None:
    trace, on = layers(zeros=0.9), v100(link=GB)
    runs = [simulate(trace, on, policy, parameters={"launch": "expert"}) for policy in ("cswap", "static")]
    assert runs[0].iteration_ns == runs[1].iteration_ns
    assert _encoded(runs[0]) == _encoded(runs[1])


@dataclass(frozen=True)
class Net:
    forward: list[int]
    backward: list[int]
    sizes: list[int]
    zeros: list[float]


@st.composite
def nets(draw: st.DrawFn) -> Net:
    count = draw(st.integers(2, 6))
    times = st.lists(st.integers(0, 50_000_000), min_size=count, max_size=count)
    shares = st.lists(st.floats(0.05, 0.95), min_size=count, max_size=count)
    sizes = draw(st.lists(st.integers(1_000, 400_000_000), min_size=count, max_size=count))
    return Net(draw(times), draw(times), sizes, draw(shares))


@settings(deadline=None, max_examples=25)
@given(nets(), st.integers(GB // 2, 64 * GB))
def test_cswap_is_never_slower_than_static_or_vdnn_and_the_oracle_bounds_it(net: Net, link: int) -> None:
    """Under its own cost model: true codec times, no latency, sizes as the equations have them, one tensor a layer."""
    trace = with_convolutions(sparse_chain(net.forward, net.backward, net.sizes, net.zeros))
    on = v100(link)
    own = {"launch": "expert", "times": "exact", "codec": "zvc", "sizes": "format"}
    cswap = simulate(trace, on, "cswap", parameters=own, iterations=2).iteration_ns
    static = simulate(trace, on, "static", parameters={"launch": "expert"}, iterations=2).iteration_ns
    vdnn = simulate(trace, on, "vdnn", parameters={"mode": "conv"}, iterations=2).iteration_ns
    oracle = simulate(trace, on, "oracle", iterations=2).iteration_ns
    # Effective bandwidths are measured from copies that round up to whole nanoseconds.
    tolerance = 2 * len(net.sizes)
    assert cswap <= min(static, vdnn) + tolerance
    assert oracle <= cswap + tolerance


SPARSE = [name for name in shipped_names("traces") if load_trace(name).sparsity]


@pytest.mark.slow
@pytest.mark.parametrize("epoch", [0, 10, 48])
@pytest.mark.parametrize("name", SPARSE)
def test_the_oracle_bounds_cswap_on_shipped_traces(name: str, epoch: int) -> None:
    trace = load_trace(name)
    oracle = simulate(trace, V100, "oracle", epoch=epoch).iteration_ns
    for policy in ("cswap", "static"):
        bound = simulate(trace, V100, policy, parameters={"launch": "grid_search"}, epoch=epoch)
        assert oracle <= bound.iteration_ns


def test_the_oracle_takes_no_time_for_its_codecs() -> None:
    result = simulate(load_trace(VGG), V100, "oracle")
    assert codec_ns(result) == 0
    assert _encoded(result)


# --- cdma -----------------------------------------------------------------------------------------------------

ENGINE = CdmaSpec("zvc", 200 * GB, buffer=70_000, latency_ns=350, kernel_bandwidth=100 * GB)


def test_cdma_equals_vdnn_on_a_node_with_the_engine() -> None:
    trace, on = load_trace(VGG), load_node("titan-x-maxwell-cdma")
    cdma, vdnn = simulate(trace, on, "cdma"), simulate(trace, on, "vdnn", parameters={"mode": "all"})
    without = simulate(trace, load_node("titan-x-maxwell"), "vdnn", parameters={"mode": "all"})
    assert cdma.iteration_ns == vdnn.iteration_ns < without.iteration_ns
    assert cdma.metrics.copied_bytes["d2h"] < without.metrics.copied_bytes["d2h"]
    assert cdma.metrics.device_peak_bytes == without.metrics.device_peak_bytes
    assert cdma.metrics.shared_peak_bytes["host"] < without.metrics.shared_peak_bytes["host"]


def test_cdma_needs_the_engine() -> None:
    with pytest.raises(InputError, match="no compressing DMA engine"):
        simulate(load_trace(VGG), V100, "cdma")


# --- input that all of them refuse ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["vdnn++", "static", "cswap", "oracle", "cdma"])
def test_a_trace_without_sparsity_is_refused(policy: str) -> None:
    on = load_node("titan-x-maxwell-cdma") if policy == "cdma" else V100
    with pytest.raises(InputError, match="neither sparsity nor compressed sizes"):
        simulate(chain([5, 5], [5, 5], [10, 10]), on, policy)


def test_a_threshold_above_1_is_refused() -> None:
    with pytest.raises(InputError, match=r"parameters\.threshold"):
        simulate(layers(), v100(), make_policy("vdnn++", {"threshold": 1.5}))


def test_unmeasured_sizes_are_not_invented() -> None:
    """The size under RLE is unknown for a recorded trace that has only sparsity."""
    trace = layers()
    trace = replace(trace, info=replace(trace.info, origin=Origin.RECORDED), compressibility=())
    with pytest.raises(InputError, match="the size of 'x2' in rle is unknown"):
        NodeCosts(trace, V100).encoded_bytes(trace.block_by_id["x2"], "rle")


# --- notes of results -----------------------------------------------------------------------------------------


def test_a_result_names_the_nodes_compressing_engine() -> None:
    on = load_node("titan-x-maxwell-cdma")
    assert "the DMA engine of titan-x-maxwell-cdma compresses copies (zvc)" in simulate(load_trace(VGG), on).notes
    plain = chain([5, 5], [5, 5], [10, 10])
    assert "compresses nothing" in " ".join(simulate(plain, on).notes)


def test_a_result_marks_modelled_sizes() -> None:
    rle = load_node("titan-x-maxwell-cdma", {"gpu.cdma.codec": "rle"})
    assert "sizes in rle are modelled from sparsity, not measured" in simulate(load_trace(VGG), rle).notes


def test_ideal_has_no_copies_and_no_note_on_the_engine() -> None:
    assert not any(
        "DMA engine" in note for note in simulate(load_trace(VGG), load_node("titan-xp-cdma"), "ideal").notes
    )


# --- effects beyond the equations ------------------------------------------------------------------------


def fire(zeros: float = 0.8, writer: str = "cat") -> Trace:
    """Two ReLUs joined by an operator that only moves their values, then a convolution; a fire module in small."""
    layers = (
        Layer("expand1", "relu", ("x",), "a", 400_000_000, forward_ns=20_000_000),
        Layer("expand3", "relu", ("x",), "b", 400_000_000, forward_ns=20_000_000),
        Layer("join", writer, ("a", "b"), "c", 800_000_000, saved=(), forward_ns=5_000_000),
        Layer("next", "conv2d", ("c",), "d", 8, forward_ns=20_000_000, backward_ns=20_000_000),
        Layer("last", "conv2d", ("d",), "e", 8, forward_ns=20_000_000, backward_ns=20_000_000),
        Layer("end", "linear", ("e",), "f", 8, forward_ns=20_000_000, backward_ns=20_000_000),
    )
    return replace(network(*layers), sparsity=tuple(SparsitySample(b, 0, zeros) for b in "abc"))


@pytest.mark.parametrize(
    ("writer", "is_sparse"),
    [("cat", True), ("aten::native_dropout", True), ("add", False), ("gelu", False), ("avg_pool2d", False)],
)
def test_operators_that_only_move_values_keep_the_sparsity(writer: str, is_sparse: bool) -> None:
    result = simulate(fire(writer=writer), v100(), "static", parameters={"launch": "expert"})
    assert ("c:zvc" in _encoded(result)) == is_sparse


def test_the_advisor_accounts_for_copies_compressed_by_the_node() -> None:
    trace, on = load_trace(VGG), load_node("titan-x-maxwell-cdma", {"gpu.memory": "64 GiB"})
    own = {"launch": "expert", "times": "exact", "codec": "zvc", "sizes": "format"}
    cswap = simulate(trace, on, "cswap", parameters=own)
    assert cswap.iteration_ns <= simulate(trace, on, "vdnn", parameters={"mode": "conv"}).iteration_ns


def test_recorded_times_are_used_if_the_profiling_run_does_not_fit() -> None:
    trace, tight = load_trace(VGG), "10150 MiB"
    with pytest.raises(OutOfMemoryError):
        simulate(trace, V100, "vdnn", parameters={"mode": "conv"}, budget=tight)
    parameters = {"launch": "expert", "times": "exact"}
    assert simulate(trace, V100, "oracle", budget=tight).metrics.device_peak_bytes <= 10150 * 2**20
    assert _encoded(simulate(trace, V100, "cswap", parameters=parameters)) >= {"conv1_1:zvc"}


def test_measured_sizes_without_sparsity_are_enough() -> None:
    message = layers(zeros=0.8)
    alone = replace(message, sparsity=())
    for policy in ("oracle", "static"):
        parameters = {"launch": "expert"} if policy == "static" else {}
        assert _encoded(simulate(alone, v100(), policy, parameters=parameters)) == {"x2:zvc", "x3:zvc", "x4:zvc"}


def test_a_block_of_eight_byte_numbers_is_not_compressed() -> None:
    trace = layers(zeros=0.8)
    blocks = tuple(replace(b, dtype="int64") if b.id == "x3" else b for b in trace.blocks)
    rows = tuple(row for row in trace.compressibility if row.block != "x3")
    assert _encoded(simulate(replace(trace, blocks=blocks, compressibility=rows), v100(), "oracle")) == {
        "x2:zvc",
        "x4:zvc",
    }


def test_a_codec_without_known_sizes_compresses_nothing_and_adds_a_note() -> None:
    trace = layers(zeros=0.8)
    trace = replace(trace, info=replace(trace.info, origin=Origin.RECORDED), compressibility=())
    result = simulate(trace, v100(), "cswap", parameters={"codec": "rle", "launch": "expert"})
    assert "nothing is compressed: no sparse tensor's size in rle is known" in result.notes


def test_tensors_of_one_layer_share_the_overlapping_computation() -> None:
    """Four inputs of one convolution: each copy alone would overlap completely, all four together do not."""
    size, ns = 200_000_000, 20_000_000
    makers = [Layer(f"relu{n}", "relu", ("x",), f"a{n}", size, forward_ns=ns, backward_ns=ns) for n in range(4)]
    joined = Layer("conv", "conv2d", tuple(f"a{n}" for n in range(4)), "b", 8, forward_ns=ns, backward_ns=ns)
    rest = [
        Layer("conv2", "conv2d", ("b",), "c", 8, forward_ns=ns, backward_ns=ns),
        Layer("fc", "linear", ("c",), "d", 8, forward_ns=ns, backward_ns=ns),
    ]
    trace = network(*makers, joined, *rest)
    trace = replace(trace, sparsity=tuple(SparsitySample(f"a{n}", 0, 0.8) for n in range(4)))
    own = {"launch": "expert", "times": "exact", "codec": "zvc", "sizes": "format"}
    vdnn = simulate(trace, v100(), "vdnn", parameters={"mode": "conv"}).iteration_ns
    static = simulate(trace, v100(), "static", parameters={"launch": "expert"}).iteration_ns
    cswap = simulate(trace, v100(), "cswap", parameters=own).iteration_ns
    oracle = simulate(trace, v100(), "oracle").iteration_ns
    assert oracle <= cswap <= min(vdnn, static)
    assert cswap < vdnn


def test_out_of_pinned_memory_names_the_bytes_held() -> None:
    on = load_node("titan-x-maxwell-cdma", {"host.pinned_memory": "1 GB"})
    with pytest.raises(OutOfMemoryError) as caught:
        simulate(load_trace(VGG), on, "cdma")
    assert sum(size for _, size in caught.value.holders) + caught.value.free == 10**9
