"""Where forward may be cut for checkpointing: at modules, or, without module tags, where a single tensor passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from simgpu.graph.sections import default_sections
from simgpu.graph.taskgraph import TaskGraph
from simgpu.hardware.nodes import load_node
from simgpu.trace.folder import load_trace
from simgpu.trace.model import BlockKind, Phase, Trace
from simgpu.validation.folder import SHIPPED
from simgpu.validation.harness.cases import SMALL_CASES
from simgpu.workloads.modelled import build_trace
from tests.policies.networks import Layer, network


def sections(trace: Trace) -> dict[str, list[str]]:
    """The layers of each section."""
    result: dict[str, list[str]] = {}
    for layer, name in default_sections(TaskGraph.of(trace)).of_layer.items():
        result.setdefault(name, []).append(layer)
    return result


def with_weights(trace: Trace, *layers: str) -> Trace:
    """The trace in which forward of each of these layers reads a weight."""
    weights = tuple(replace(trace.block_by_id["x"], id=f"w:{name}", kind=BlockKind.WEIGHT) for name in layers)
    kernels = tuple(
        replace(k, reads=(*k.reads, f"w:{k.layer}")) if k.layer in layers and k.phase is Phase.FORWARD else k
        for k in trace.kernels
    )
    return replace(trace, kernels=kernels, blocks=(*trace.blocks, *weights))


def chained(names: Sequence[str], op: str = "conv2d") -> Trace:
    """One layer after the other, each reading the output of the one before."""
    built = ["x", *(f"y{n}" for n in range(len(names)))]
    return network(*(Layer(name, op, (built[n],), built[n + 1]) for n, name in enumerate(names)))


def block(name: str, enters: str, output: str) -> list[Layer]:
    """A residual block of two modules with a shortcut around them."""
    inner = [f"{output}{n}" for n in range(3)]
    return [
        Layer(f"{name}.attention.query", "linear", (enters,), inner[0]),
        Layer(f"{name}.attention.out", "linear", (inner[0],), inner[1]),
        Layer(f"{name}.mlp.up", "linear", (inner[1],), inner[2]),
        Layer(f"{name}.mlp.down", "linear", (inner[2],), f"{output}3"),
        Layer(name, "add", (enters, f"{output}3"), output),
    ]


def test_residual_blocks_of_a_list_are_sections():
    """Not the modules in them, which the shortcut bypasses, and not the list that contains them."""
    layers = [Layer("stem", "conv2d", ("x",), "a"), *block("stage.0", "a", "b"), *block("stage.1", "b", "c")]
    result = sections(network(*layers, Layer("head", "linear", ("c",), "d")))
    assert list(result) == ["stage.0", "stage.1"]
    assert result["stage.0"][-1] == "stage.0"
    assert len(result["stage.0"]) == 5


def test_blocks_of_a_numbered_list_are_sections_though_the_first_runs_a_part_again_later():
    """As in diffusers' DiT, whose last layer asks the first block for its embedding."""
    layers = [Layer("stem.first", "conv2d", ("x",), "s"), Layer("stem.second", "conv2d", ("s",), "a")]
    layers += [each for n in range(3) for each in block(f"blocks.{n}", "abc"[n], "bcd"[n])]
    again = [Layer("blocks.0.embedding", "linear", ("d",), "e"), Layer("head", "linear", ("e",), "f")]
    assert list(sections(network(*layers, *again))) == ["stem", "blocks.0", "blocks.1", "blocks.2"]


def test_blocks_that_all_read_one_tensor_are_sections():
    """As decoder blocks read the encoder's output, and residual blocks of a U-Net the time of the diffusion step."""

    def decoder(*readers: int) -> Trace:
        blocks = []
        for n in range(3):
            first, *others = block(f"blocks.{n}", "abc"[n], "bcd"[n])
            blocks += [replace(first, reads=("abc"[n], "encoded")) if n in readers else first, *others]
        stem = [Layer("encoder.up", "linear", ("x",), "h"), Layer("encoder.down", "linear", ("h",), "encoded")]
        return network(*stem, Layer("embedding", "linear", ("x",), "a"), *blocks, Layer("head", "linear", ("d",), "e"))

    assert list(sections(decoder(0, 1, 2))) == ["encoder", "blocks.0", "blocks.1", "blocks.2"]
    assert "blocks.0" not in sections(decoder(0, 2))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("attention", "mlp"), ["blocks.0", "blocks.1"]),
        (("conv", "conv"), ["blocks.0.0", "blocks.0.1", "blocks.1.0", "blocks.1.1"]),
    ],
)
def test_blocks_of_unlike_parts_are_sections_themselves(parts, expected):
    """As T5's blocks are lists of attention and feed-forward layers; of parts alike, each is a section."""
    names = [f"blocks.{n}.{part}.{name}.{layer}" for n in range(2) for part, name in enumerate(parts) for layer in "ab"]
    assert list(sections(chained(["stem", *names, "head"]))) == expected


def test_blocks_of_a_single_kernel_are_sections():
    """Each is read only by the next one, so no shortcut bypasses it."""
    names = ["stem.1", "stem.2", *(f"stage.{n}.conv" for n in range(3)), "head"]
    assert list(sections(chained(names))) == ["stem", "stage.0", "stage.1", "stage.2"]


def test_a_list_that_a_shortcut_bypasses_is_not_cut():
    """The sum of a residual block reads the block's input, so its inner list cannot be a section of its own."""
    layers = [Layer("stem", "conv2d", ("x",), "a")]
    for n, (enters, output) in enumerate(["ab", "bc", "cd"]):
        name, inner = f"stage.{n}", [f"{output}{i}" for i in range(2)]
        layers += [
            Layer(f"{name}.body.0.conv", "conv2d", (enters,), inner[0]),
            Layer(f"{name}.body.1.conv", "conv2d", (inner[0],), inner[1]),
            Layer(name, "add", (enters, inner[1]), output),
        ]
    assert list(sections(network(*layers, Layer("head", "linear", ("d",), "e")))) == ["stage.0", "stage.1", "stage.2"]


def test_sections_are_found_in_a_wrapper_module_with_parallel_embeddings():
    """Embeddings of words and positions are parallel single layers; the mask goes to all blocks, without weights."""
    layers = [
        Layer("net.mask", "ones", ("x",), "m"),
        Layer("net.words", "embedding", ("x",), "a1"),
        Layer("net.positions", "embedding", ("x",), "a2"),
        Layer("net", "add", ("a1", "a2"), "a"),
        *block("net.h.0", "a", "b"),
        *block("net.h.1", "b", "c"),
        Layer("net.norm", "layer_norm", ("c", "m"), "d"),
        Layer("head", "linear", ("d",), "e"),
    ]
    masked = [replace(each, reads=(*each.reads, "m")) if "query" in each.name else each for each in layers]
    trace = with_weights(network(*masked), "net.words", "net.positions", "net.h.0.attention.query", "head")
    assert list(sections(trace)) == ["net.h.0", "net.h.1"]


def test_a_long_sequence_of_single_layers_is_cut_as_checkpoint_sequential_would():
    """It has ten of the eleven layers: the root of 10 is 3, and the last slice contains the rest."""
    result = sections(chained([*(f"features.{n}" for n in range(10)), "classifier"]))
    assert {name: len(layers) for name, layers in result.items()} == {
        "features[0:3]": 3,
        "features[3:6]": 3,
        "features[6:10]": 4,
    }


def test_a_module_with_interrupted_kernels_is_replaced_by_its_children():
    """Two recurrent layers alternate: each run of kernels is one step of one of them."""
    steps = [f"lstm{layer}.step{step}.{part}" for step in (0, 1) for layer in (1, 2) for part in ("cell", "drop")]
    result = sections(chained([*steps, "head"]))
    assert sorted(result) == ["lstm1.step0", "lstm1.step1", "lstm2.step0", "lstm2.step1"]


def test_the_last_module_is_left_out_as_it_would_run_again_immediately():
    names = ["a.1", "a.2", "b.1", "b.2", "c.1", "c.2"]
    assert list(sections(chained(names))) == ["a", "b"]
    assert list(sections(chained([*names, "head"]))) == ["a", "b", "c"]
    with_loss = with_weights(chained([*names, "loss"]), *names)
    assert list(sections(with_loss)) == ["a", "b"], "what follows has no weights"


def test_without_modules_forward_is_cut_where_a_single_tensor_passes():
    """A shortcut leads from l2 to l6, so no section begins at l4, l5 or l6. Six parts are left: l1, l2, l3-l6, l7, l8
    and l9; the root of six is two, so there are two sections of three parts each."""
    names = [f"l{n}" for n in range(1, 10)]
    layers = [Layer(name, "conv2d", ("x" if n == 0 else f"y{n}",), f"y{n + 1}") for n, name in enumerate(names)]
    layers[5] = replace(layers[5], reads=("y5", "y2"))
    assert sections(network(*layers)) == {"section 1": ["l1", "l2", "l3", "l4", "l5", "l6"]}
    how = default_sections(TaskGraph.of(network(*layers))).how
    assert how == "parts that one tensor enters, as tags name no modules"


def test_no_section_begins_with_an_in_place_change_of_its_input():
    """PyTorch could not recompute it. l2 and l4 change the output of the layer before in place: two parts."""
    layers = [
        Layer("l1", "conv2d", ("x",), "a"),
        Layer("l2", "relu_", ("a",), "a"),
        Layer("l3", "conv2d", ("a",), "b"),
        Layer("l4", "relu_", ("b",), "b"),
        Layer("l5", "conv2d", ("b",), "c"),
        Layer("l6", "relu_", ("c",), "c"),
        Layer("l7", "conv2d", ("c",), "d"),
        Layer("l8", "relu_", ("d",), "d"),
    ]
    assert sections(network(*layers)) == {"section 1": ["l1", "l2", "l3", "l4"]}


@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.name)
def test_recorded_networks_have_the_sections_chosen_by_hand_in_validation(case):
    """Also the stem or the embedding, but not the head."""
    trace = load_trace(SHIPPED / "cpu-small" / case.name / "trace")
    assert [name for name in sections(trace) if name not in ("stem", "embed")] == list(case.blocks)


def test_zoo_networks_are_cut_between_residual_blocks():
    trace = build_trace("resnet18", batch=2, gpu=load_node("v100").gpu)
    assert list(sections(trace)) == ["conv1", *(f"layer{stage}.{n}" for stage in (1, 2, 3, 4) for n in (0, 1))]


def test_a_recorded_resnet_is_cut_between_its_blocks():
    result = sections(load_trace("resnet20-cifar-cpu"))
    assert list(result) == [f"stage{stage}_{n}" for stage in (1, 2, 3) for n in (1, 2, 3)]
