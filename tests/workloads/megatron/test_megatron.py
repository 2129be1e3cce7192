"""One GPU of a job of Megatron-LM: what it holds and exchanges, in closed forms, and what was measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simgpu.errors import InputError
from simgpu.hardware.collectives import Collective, Group, collective_ns
from simgpu.hardware.nodes import load_node
from simgpu.trace.model import BlockKind, Phase
from simgpu.trace.stats import trace_stats
from simgpu.workloads.configured.config import decoder_of
from simgpu.workloads.configured.decoder import Decoder
from simgpu.workloads.configured.entry import SampleSizes
from simgpu.workloads.configured.options import TrainingOptions
from simgpu.workloads.megatron.entry import Job, megatron_iteration, megatron_of
from simgpu.workloads.megatron.layout import Layout
from simgpu.workloads.megatron.schedule import PassTimes, waits

_NODE = load_node("b200-x8")
_SMALL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
}


def _small() -> Decoder:
    return decoder_of(_SMALL)


def _job(layout: Layout, batch: int = 1, micro_batches: int = 1) -> Job:
    return Job(_small(), layout, _NODE, batch, 128, micro_batches)


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_layer_saves_its_part_of_everything(tensor: int) -> None:
    saved = megatron_iteration(_job(Layout(tensor=tensor))).saved
    of_layer = sum(each.block.bytes for each in saved if each.layer.startswith("decoder.layers.1"))
    rows, width, inner, heads, keys, each = 128, 256, 512, 8, 4, 32
    normalized = 2 * (2 * 2 * rows * width + 4 * rows)  # input, result, and the root of each row's mean square
    attention = 2 * rows * (2 * heads + 2 * keys) * each + 4 * rows * heads  # q, k, v, result; sums in float32
    feed_forward = 2 * rows * 3 * inner
    random_state = 16 + 8
    assert of_layer == (normalized + attention + feed_forward) // tensor + random_state


@pytest.mark.parametrize("tensor", [1, 4])
def test_normalized_heads_are_saved_before_their_normalization(tensor: int) -> None:
    """Copies of queries and keys, and a number for each head of each row; the weights are all-reduced with others."""
    qwen3 = decoder_of({**_SMALL, "model_type": "qwen3", "head_dim": 32})
    layout = Layout(tensor=tensor)
    plain, normalized = (megatron_iteration(Job(model, layout, _NODE, 1, 128)) for model in (_small(), qwen3))
    assert normalized.saved_bytes - plain.saved_bytes == 4 * (2 * 32 + 4) * 128 * (8 + 4) // tensor
    assert normalized.parameters - plain.parameters == 4 * 2 * 32
    reduced = [kernel for kernel in normalized.trace.kernels if kernel.op == "all_reduce"]
    group = Group(tensor)
    weights = 9 * 256 + 4 * 2 * 32
    expected = [collective_ns(Collective.ALL_REDUCE, 4 * weights, group, _NODE)] if tensor > 1 else []
    assert [kernel.duration_ns for kernel in reduced] == expected


@pytest.mark.parametrize("layout", [Layout(), Layout(tensor=2), Layout(tensor=4, data=2), Layout(tensor=2, pipeline=2)])
def test_all_gpus_together_have_the_weights_once(layout: Layout) -> None:
    """Each GPU of a group has all normalizations; the embedding's rows are padded to 128 for each GPU."""
    stages = [megatron_iteration(_job(layout), stage) for stage in range(layout.pipeline)]
    norms, words = 9 * 256, -(-1000 // (128 * layout.tensor)) * 128 * layout.tensor
    layer = 256 * (8 + 2 * 4 + 8) * 32 + 256 * 3 * 512
    assert sum(stage.parameters for stage in stages) == norms + (4 * layer + 2 * words * 256) // layout.tensor


@pytest.mark.parametrize("data", [1, 2, 8])
def test_the_optimizer_state_is_divided_and_weights_and_gradients_are_not(data: int) -> None:
    result = megatron_iteration(_job(Layout(data=data)))
    held = dict.fromkeys(BlockKind, 0)
    for block in result.trace.blocks:
        held[block.kind] += block.bytes if block.persistent else 0
    assert held[BlockKind.WEIGHT] == 2 * result.parameters
    assert held[BlockKind.WEIGHT_GRADIENT] == 4 * result.parameters
    assert held[BlockKind.OPTIMIZER_STATE] == 12 * result.parameters // data


def test_a_shared_table_has_one_gradient_to_which_both_ends_add() -> None:
    tied = replace(_job(Layout(tensor=2)), decoder=decoder_of({**_SMALL, "tie_word_embeddings": True}))
    apart, shared = megatron_iteration(_job(Layout(tensor=2))), megatron_iteration(tied)
    words = -(-1000 // 256) * 256
    assert apart.parameters - shared.parameters == words * 256 // 2
    table = "embedding.word_embeddings.weight"
    added = [kernel.op for kernel in shared.trace.kernels if f"{table}.main_grad" in kernel.writes]
    assert added.count("mm") == added.count("add_") == 1


def test_collectives_are_those_of_the_layers_and_take_what_the_links_take() -> None:
    trace = megatron_iteration(_job(Layout(tensor=2))).trace
    small, group = 2 * 128 * 256, Group(2)
    forward = [kernel for kernel in trace.kernels if kernel.phase is Phase.FORWARD]
    gathers = [kernel for kernel in forward if kernel.op == "all_gather" and ".layers." in (kernel.layer or "")]
    scatters = [kernel for kernel in forward if kernel.op == "reduce_scatter"]
    assert len(gathers) == 2 * 4  # before attention's products and the feed-forward part's
    assert len(scatters) == 2 * 4 + 1  # after both, and the embedding
    assert {kernel.duration_ns for kernel in gathers} == {collective_ns(Collective.ALL_GATHER, small, group, _NODE)}
    assert {kernel.duration_ns for kernel in scatters} == {
        collective_ns(Collective.REDUCE_SCATTER, small, group, _NODE)
    }


def test_one_gpu_exchanges_nothing() -> None:
    ops = {kernel.op for kernel in megatron_iteration(_job(Layout())).trace.kernels}
    assert ops.isdisjoint({"all_gather", "reduce_scatter", "all_reduce", "recv"})


def test_weights_are_exchanged_once_for_all_micro_batches() -> None:
    trace = megatron_iteration(_job(Layout(data=4), batch=6, micro_batches=3)).trace
    exchanges = [kernel for kernel in trace.kernels if kernel.op in ("all_gather", "reduce_scatter")]
    assert [kernel.phase for kernel in exchanges] == [Phase.OPTIMIZER] * 2
    parameters = megatron_iteration(_job(Layout(data=4))).parameters
    group = Group(4)
    assert [kernel.duration_ns for kernel in exchanges] == [
        collective_ns(Collective.REDUCE_SCATTER, 4 * parameters, group, _NODE),
        collective_ns(Collective.ALL_GATHER, 2 * parameters, group, _NODE),
    ]


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 1), (2, 5), (4, 2), (4, 7), (3, 3)])
def test_a_pipeline_of_equal_stages_takes_as_many_more_passes_as_it_has_stages_before_the_last(
    stages: int, micro_batches: int
) -> None:
    times = [PassTimes(10, 20)] * stages
    waited = waits(times, micro_batches, send_ns=0)
    assert sum(waited[0]) + micro_batches * 30 == (micro_batches + stages - 1) * 30


def test_waits_of_a_stage_are_kernels_of_its_trace() -> None:
    job = _job(Layout(pipeline=2), batch=4, micro_batches=4)
    first, last = (megatron_iteration(job, stage).trace for stage in (0, 1))
    received = [[kernel for kernel in trace.kernels if kernel.op == "recv"] for trace in (first, last)]
    assert [len(each) for each in received] == [4, 4]
    assert [{kernel.phase for kernel in each} for each in received] == [{Phase.BACKWARD}, {Phase.FORWARD}]
    # The first stage ends last: it waits for the gradient of the last micro-batch.
    assert received[0][-1].duration_ns > job.message_ns
    busy = sum(kernel.duration_ns for kernel in last.kernels if kernel.phase is not Phase.OPTIMIZER)
    total = sum(kernel.duration_ns for kernel in first.kernels if kernel.phase is not Phase.OPTIMIZER)
    assert total > busy


def test_a_stage_holds_what_it_received_until_the_next_replaces_it() -> None:
    """A gradient until the next one comes; an input, whose backward has run, until the next forward has ended."""
    decoder = decoder_of({**_SMALL, "num_hidden_layers": 3})
    trace = megatron_iteration(replace(_job(Layout(pipeline=3), 4, 4), decoder=decoder), 1).trace
    places = {kernel.id: place for place, kernel in enumerate(trace.kernels)}
    received = [kernel for kernel in trace.kernels if kernel.op == "recv"]
    ends = {kernel.id: places[trace.block_by_id[kernel.writes[0]].release or ""] for kernel in received}
    inputs, gradients = (
        [each for each in received if each.phase is phase] for phase in (Phase.FORWARD, Phase.BACKWARD)
    )
    assert [ends[each.id] for each in gradients[:-1]] == [places[each.id] for each in gradients[1:]]
    # The second stage of three is one micro-batch ahead: forward of the third follows backward of the first.
    assert [ends[each.id] for each in inputs[:2]] == [places[each.id] - 1 for each in gradients[1:3]]


def test_the_first_stage_holds_more_micro_batches_than_the_last() -> None:
    job = _job(Layout(pipeline=4), batch=8, micro_batches=8)
    job = replace(job, decoder=decoder_of({**_SMALL, "vocab_size": 128}), length=2048)
    peaks = [trace_stats(megatron_iteration(job, stage).trace).peak_recorded for stage in range(4)]
    assert all(peak is not None for peak in peaks)
    sizes = [peak.bytes for peak in peaks if peak is not None]
    assert sizes[0] > sizes[1] > sizes[2]


def test_context_parallelism_saves_a_part_of_everything_and_exchanges_heads_for_tokens() -> None:
    """Around attention: queries, keys and values in forward, the result, and their gradients in backward."""
    alone, two = (megatron_iteration(_job(Layout(context=count))) for count in (1, 2))
    of_layer = [
        sum(each.block.bytes for each in one.saved if each.layer.startswith("decoder.layers.1")) for one in (alone, two)
    ]
    result = 2 * 128 * 8 * 32  # the exchanged result, which the product saves, is another tensor than attention's
    assert of_layer[1] - 24 == (of_layer[0] - 24 + result) // 2
    exchanges = [kernel for kernel in two.trace.kernels if kernel.op == "all_to_all"]
    assert [kernel.phase for kernel in exchanges] == [Phase.FORWARD] * 16 + [Phase.BACKWARD] * 16
    sizes = {2 * 64 * heads * 32 for heads in (8, 4)}
    assert {kernel.duration_ns for kernel in exchanges} == {
        collective_ns(Collective.ALL_TO_ALL, size, Group(2), _NODE) for size in sizes
    }


#: Of 70 B and 405 B Llamas cut to 12 and 4 layers, micro-batches of one sample, on eight B200: MooreThreads/SimuMax,
#: docs/b200/b200_release_v1.2_summary.json at 4dcaae51, the largest peak of any GPU.
_MEASURED = [
    (8192, "tp1,pp2,dp4", 4096, 66.55),
    (8192, "tp2,dp4", 4096, 60.68),
    (8192, "tp4,dp2", 4096, 39.07),
    (8192, "tp8", 4096, 28.29),
    (8192, "tp2,cp4", 32768, 68.43),
    (8192, "cp8", 131072, 147.99),
    (16384, "tp1,pp2,dp4", 4096, 87.08),
    (16384, "tp2,dp4", 4096, 81.59),
    (16384, "tp4,dp2", 4096, 52.89),
    (16384, "tp8", 4096, 38.57),
    (16384, "cp8", 32768, 139.22),
]


@pytest.mark.parametrize(("width", "layout", "length", "measured"), _MEASURED)
def test_peaks_are_within_a_tenth_of_a_percent_of_measured_ones(
    width: int, layout: str, length: int, measured: float
) -> None:
    """Not fitted. Published with two digits; all are too low by 2 to 43 MiB where the source has more."""
    large = width == 16384
    decoder = decoder_of(
        {
            "model_type": "llama",
            "hidden_size": width,
            "intermediate_size": 53248 if large else 28672,
            "num_attention_heads": width // 128,
            "num_key_value_heads": 16 if large else 8,
            "num_hidden_layers": 4 if large else 12,
            "vocab_size": 128256,
            "max_position_embeddings": length,
        }
    )
    job = Job(decoder, Layout.parsed(layout), _NODE, 4, length, 4)
    peaks = [trace_stats(megatron_iteration(job, stage).trace).peak_recorded for stage in range(job.layout.pipeline)]
    largest = max(peak.bytes for peak in peaks if peak is not None) / 2**30
    assert abs(largest / measured - 1) < 0.001


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ("tp3", "8 heads cannot be divided by tp3"),
        ("pp3", "4 layers cannot be divided by pp3"),
        ("tp4,tp2", "give each at most once"),
        ("tp0", "'tp0' is not a number of GPUs from 1 to 999,999"),
        ("tp2,dp99999999", "'dp99999999' is not a number of GPUs from 1 to 999,999"),
        ("two", "does not say how many GPUs"),
        ("tp16", "8 heads cannot be divided by tp16"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(layout: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        megatron_of(_small(), SampleSizes(length=128), layout, None, batch=1, node=_NODE, options=TrainingOptions())


@pytest.mark.parametrize(
    ("changes", "layout", "message"),
    [
        ({"attention_bias": True}, "tp2", "has biases outside of queries, keys and values, which"),
        ({"model_type": "mistral", "sliding_window": 64}, "tp2", "has a window of 64 tokens, which"),
        ({"tie_word_embeddings": True}, "pp2", "has one table for embedding and logits in a pipeline, which"),
        ({"model_type": "gemma"}, "tp2", "of the family gemma as Megatron-LM's GPT model is not modelled"),
    ],
)
def test_models_in_another_form_are_refused(changes: dict[str, object], layout: str, message: str) -> None:
    sizes, options = SampleSizes(length=128), TrainingOptions()
    with pytest.raises(InputError, match=message):
        megatron_of(decoder_of({**_SMALL, **changes}), sizes, layout, None, batch=1, node=_NODE, options=options)


def test_all_that_is_not_modelled_is_reported_together() -> None:
    olmo = decoder_of({**_SMALL, "model_type": "olmo2"})
    options = TrainingOptions(attention="eager", lora=8)
    with pytest.raises(InputError) as error:
        megatron_of(olmo, SampleSizes(length=128), "xp4", None, batch=1, node=_NODE, options=options)
    assert [problem.place for problem in error.value.problems] == ["attention", "lora", "megatron"]
    with pytest.raises(InputError, match="of the family olmo2 as Megatron-LM's GPT model is not modelled"):
        megatron_of(olmo, SampleSizes(length=128), "tp2", None, batch=1, node=_NODE, options=TrainingOptions())
