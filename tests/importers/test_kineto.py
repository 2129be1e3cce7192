"""PyTorch profiles by hand: kernels, phases, layers, streams, iterations, blocks; alone and with an execution trace."""

from __future__ import annotations

import dataclasses

import pytest

from simgpu.errors import InputError
from simgpu.importers import ImportOptions, detect, import_trace
from simgpu.importers.execution_trace import read_execution_trace
from simgpu.trace.check import check_trace
from simgpu.trace.folder import write_trace
from simgpu.trace.model import RELEASED_AT_END, BlockKind, Origin
from tests.importers.kineto_files import Profile, small_run, tensor, write


def kernels(trace):
    return [(kernel.op, kernel.phase.value, kernel.layer, kernel.duration_ns) for kernel in trace.kernels]


def test_kernels_in_the_order_they_ran(tmp_path):
    profile, _ = small_run()
    trace, recognised = import_trace(profile.write(tmp_path / "net.pt.trace.json"))
    assert recognised == "PyTorch profile"
    assert kernels(trace) == [
        ("aten::linear", "forward", "Linear_0", 10500),
        ("aten::linear", "forward", "Linear_0", 20000),
        ("aten::relu_", "forward", "Linear_0", 4000),
        ("aten::linear_backward", "backward", "Linear_0", 30250),
        ("aten::add_", "optimizer", None, 2000),
    ]
    assert [kernel.start_ns for kernel in trace.kernels] == [0, 11000, 32000, 40000, 80000]
    assert [kernel.pure for kernel in trace.kernels] == [True, True, True, True, False]
    assert (trace.info.model, trace.info.batch, trace.info.device) == ("net", 8, "A GPU")
    assert trace.info.origin is Origin.IMPORTED
    assert trace.info.framework_peak_bytes == 3584


def test_alone_a_block_is_an_allocation(tmp_path):
    profile, _ = small_run()
    trace, _ = import_trace(profile.write(tmp_path / "net.json"))
    blocks = [(b.id, b.bytes, b.kind, b.persistent, b.release) for b in trace.blocks]
    assert blocks == [
        ("held", 2048, BlockKind.OTHER, True, None),
        ("m1", 512, BlockKind.ACTIVATION, False, "4"),
        ("m2", 1024, BlockKind.OTHER, False, "2"),
        ("m3", 512, BlockKind.GRADIENT, False, RELEASED_AT_END),
    ]
    assert [kernel.writes for kernel in trace.kernels] == [("m1", "m2"), ("m1", "m2"), (), ("m3",), ()]
    assert not any(kernel.reads for kernel in trace.kernels)
    assert "which kernels read them is not recorded" in trace.info.notes


def test_alone_without_memory_events_there_are_no_blocks(tmp_path):
    profile, _ = small_run(with_memory=False)
    trace, _ = import_trace(profile.write(tmp_path / "net.json"))
    assert trace.blocks == ()
    assert len(trace.kernels) == 5
    assert trace.info.framework_peak_bytes is None
    assert "memory policies cannot be evaluated" in trace.info.notes


@pytest.mark.parametrize("schema", ["1.0.1", "1.1.1-chakra.0.0.4"])
def test_joined_a_block_is_a_storage(tmp_path, schema):
    profile, recorded = small_run(schema=schema)
    reported = ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    trace, recognised = import_trace(profile.write(tmp_path / "net.json"), reported)
    assert recognised == "PyTorch profile joined with an execution trace"
    blocks = [(b.id, b.bytes, b.kind, b.persistent, b.release, b.shape, b.layer) for b in trace.blocks]
    assert blocks == [
        ("held", 1024, BlockKind.OTHER, True, None, None, None),
        ("s1", 128, BlockKind.INPUT, True, None, (8, 4), "Linear_0"),
        ("s2", 64, BlockKind.WEIGHT, True, None, (4, 4), "Linear_0"),
        ("s3", 128, BlockKind.ACTIVATION, False, "4", (8, 4), "Linear_0"),
        ("s4", 64, BlockKind.WEIGHT_GRADIENT, False, RELEASED_AT_END, (4, 4), "Linear_0"),
        ("m2", 1024, BlockKind.OTHER, False, "2", None, "Linear_0"),
    ]
    assert [(kernel.reads, kernel.writes) for kernel in trace.kernels] == [
        (("s1", "s2"), ("s3", "m2")),
        (("s1", "s2"), ("s3", "m2")),
        (("s3",), ("s3",)),
        (("s1", "s2", "s3"), ("s4",)),
        (("s2", "s4"), ("s2",)),
    ]
    assert (trace.info.dtype, trace.info.date) == ("float32", "2026-02-03")


def test_joined_without_memory_events_lifetimes_are_unknown(tmp_path):
    profile, recorded = small_run(with_memory=False)
    reported = ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), reported)
    assert [(block.id, block.persistent, block.release) for block in trace.blocks] == [
        ("s1", True, None),
        ("s2", True, None),
        ("s3", False, None),
        ("s4", False, None),
    ]
    assert "lifetimes are not recorded" in trace.info.notes


def test_reused_storage_begins_a_new_block(tmp_path):
    profile, recorded = Profile(), small_run()[1]
    recorded.nodes.clear()
    first = profile.op("aten::linear", 10, 10, Input_Dims=[[8, 4], [4, 4], []])
    profile.memory(11, 3000, 512, 512)
    profile.kernel(12, 100, 10)
    profile.memory(30, 3000, -512, 0)
    second = profile.op("aten::linear", 40, 10)
    profile.memory(41, 3000, 1024, 1024)
    profile.kernel(42, 120, 10)
    x, w = tensor(11, 1, 8, 4), tensor(12, 2, 4, 4)
    recorded.node("aten::linear", first, [x, w], [tensor(13, 3, 8, 4)])
    recorded.node("aten::linear", second, [x, w], [tensor(13, 3, 8, 32)])
    reported = ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), reported)
    built = [(b.id, b.bytes, b.release) for b in trace.blocks if b.kind is BlockKind.ACTIVATION]
    assert built == [("s3", 128, "1"), ("s3.2", 1024, RELEASED_AT_END)]


def test_an_expanded_view_does_not_make_its_block_larger(tmp_path):
    profile, recorded = small_run()
    recorded.nodes.clear()
    profile.events.clear()
    expand = profile.op("aten::expand", 10, 2)
    add = profile.op("aten::add", 20, 10, Input_Dims=[[8, 4], [8, 4]])
    profile.kernel(22, 100, 10)
    bias, wide = tensor(11, 1, 4), tensor(12, 1, 8, 4)
    recorded.node("aten::expand", expand, [bias], [wide], "aten::expand(Tensor(a) self, SymInt[] size) -> Tensor(a)")
    recorded.node("aten::add", add, [wide, tensor(13, 2, 8, 4)], [tensor(14, 3, 8, 4)])
    reported = ImportOptions(batch=8, execution_trace=recorded.write(tmp_path / "graph.json"))
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), reported)
    assert {block.id: block.bytes for block in trace.blocks} == {"s1": 16, "s2": 128, "s3": 128}


def test_kernels_joined_by_order_where_numbers_differ(tmp_path):
    profile, recorded = small_run()
    plain, _ = import_trace(
        profile.write(tmp_path / "net.json"), ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    )
    for event in profile.events:
        if "Record function id" in event.get("args", {}):
            del event["args"]["Record function id"]
            event["args"]["External id"] += 1000
    engine, step = "autograd::engine::evaluate_function: LinearBackward0", "Optimizer.step#SGD.step"
    by_name = {node["name"]: node for node in recorded.nodes}
    recorded.node(engine, 3, [], [], thread=2)
    recorded.node(step, 5, [], [])
    by_name[engine], by_name[step] = recorded.nodes[-2:]
    order = ["aten::linear", "aten::relu_", engine, "aten::linear_backward", step, "aten::add_"]
    recorded.nodes = [dict(by_name[name], id=number) for number, name in enumerate(order)]
    reported = ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), reported)
    assert trace == plain


def several_iterations():
    profile = Profile()
    for number, at in ((4, 1000), (5, 2000), (6, 3000)):
        profile.mark(f"ProfilerStep#{number}", at, 900)
        profile.op("aten::linear", at + 10, 20, Input_Dims=[[2, 4], [4, 4]])
        if number < 6:
            profile.kernel(at + 12, at + 100, number)
    return profile


def test_the_last_iteration_with_kernels_is_taken(tmp_path):
    trace, _ = import_trace(several_iterations().write(tmp_path / "net.json"))
    assert [(kernel.duration_ns, kernel.start_ns) for kernel in trace.kernels] == [(5000, 100_000)]
    assert "Iteration 5 of the 3" in trace.info.notes


def test_an_iteration_can_be_chosen(tmp_path):
    path = several_iterations().write(tmp_path / "net.json")
    trace, _ = import_trace(path, ImportOptions(iteration=4))
    assert [kernel.duration_ns for kernel in trace.kernels] == [4000]
    with pytest.raises(InputError, match=r"has no iteration 9; it has 4, 5, 6"):
        import_trace(path, ImportOptions(iteration=9))
    with pytest.raises(InputError, match="launches no kernels"):
        import_trace(path, ImportOptions(iteration=6))


def test_a_kernel_belongs_to_the_iteration_that_launched_it(tmp_path):
    profile = several_iterations()
    profile.kernel(2050, 3500, 7)  # launched in iteration 5, ran while 6 went on
    trace, _ = import_trace(profile.write(tmp_path / "net.json"))
    assert [kernel.duration_ns for kernel in trace.kernels] == [5000, 7000]


def test_streams_are_numbered_from_zero(tmp_path):
    profile, _ = small_run(with_memory=False)
    profile.kernel(14, 112, 50, stream=20, name="other")
    trace, _ = import_trace(profile.write(tmp_path / "net.json"))
    assert [kernel.stream for kernel in trace.kernels] == [0, 0, 1, 0, 0, 0]


def test_copies_within_the_device_are_kernels_others_are_counted(tmp_path):
    profile, _ = small_run(with_memory=False)
    profile.kernel(14, 200, 5, name="Memcpy DtoD (Device -> Device)", cat="gpu_memcpy")
    profile.kernel(14, 210, 6, name="Memcpy HtoD (Pinned -> Device)", cat="gpu_memcpy")
    profile.kernel(14, 220, 1, name="Memset (Device)", cat="gpu_memset")
    trace, _ = import_trace(profile.write(tmp_path / "net.json"))
    assert [kernel.duration_ns for kernel in trace.kernels][-1] == 5000
    assert len(trace.kernels) == 6
    assert "left out: 2, 7 us in all" in trace.info.notes


def test_memory_filled_by_the_host_is_initialized(tmp_path):
    """A batch copied in: memory without a kernel that writes it is there from the next kernel on."""
    profile, recorded = small_run()
    profile.mark("ProfilerStep#1", 0, 90)
    copy = profile.op("aten::empty", 2, 4)
    profile.memory(3, 1000, 512, 2560)
    recorded.node("aten::empty", copy, [], [tensor(11, 1, 8, 4)])
    recorded.nodes.sort(key=lambda node: node["name"] != "aten::empty")
    reported = ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), reported)
    batch = trace.block_by_id["s1"]
    assert (batch.persistent, batch.host_write, batch.release) == (False, "1", RELEASED_AT_END)


def test_a_kernel_without_a_recorded_launch(tmp_path):
    """Its operator is the one with its External id; without one it goes by its own name."""
    profile, _ = small_run(with_memory=False)
    profile.kernel(0, 300, 3, launch=False, name="lonely<float>")
    profile.kernel(0, 310, 3, launch=False, **{"External id": 2})
    trace, _ = import_trace(profile.write(tmp_path / "net.json"))
    assert [kernel.op for kernel in trace.kernels][-2:] == ["lonely<float>", "aten::relu_"]
    assert "Kernels whose launch was not recorded: 2." in trace.info.notes


def test_times_are_exact_however_large_the_clock(tmp_path):
    text = small_run(with_memory=False)[0].text().replace('"ts": 111,', '"ts": 1739425750467006.001,')
    text = text.replace('"dur": 20,', '"dur": 0.003,').replace('"ts": 100,', '"ts": 1739425750467005.998,')
    text = text.replace('"dur": 10.5,', '"dur": 0.001,')
    trace, _ = import_trace(write(tmp_path / "net.json", text))
    late = [(kernel.start_ns, kernel.duration_ns) for kernel in trace.kernels][-2:]
    assert late[1][0] - late[0][0] == 3
    assert [duration for _, duration in late] == [1, 3]


def test_options_override_the_recording(tmp_path):
    path = small_run()[0].write(tmp_path / "net.json")
    reported = ImportOptions(model="mine", batch=8, device="My GPU", dtype="bfloat16", date="2020-01-02")
    info = import_trace(path, reported)[0].info
    assert (info.model, info.batch, info.device, info.dtype, info.date) == dataclasses.astuple(reported)[:5]


def test_batch_is_required_if_shapes_do_not_show_it(tmp_path):
    profile, _ = small_run()
    for event in profile.events:
        event.get("args", {}).pop("Input Dims", None)
    path = profile.write(tmp_path / "net.json")
    with pytest.raises(InputError, match="does not contain its batch size; pass the samples per iteration"):
        import_trace(path)
    assert import_trace(path, ImportOptions(batch=8))[0].info.batch == 8


def test_gzip_and_folder_give_the_same_trace(tmp_path):
    profile, recorded = small_run()
    reported = ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    plain, _ = import_trace(profile.write(tmp_path / "net.json"), reported)
    (tmp_path / "pair").mkdir()
    profile.write(tmp_path / "pair" / "net.json.gz")
    recorded.write(tmp_path / "pair" / "graph.json.gz")
    assert detect(tmp_path / "pair").name == "PyTorch profile joined with an execution trace"
    joined, _ = import_trace(tmp_path / "pair")
    assert joined == plain
    assert detect(tmp_path / "pair" / "net.json.gz").name == "PyTorch profile"


def test_importing_twice_writes_the_same_bytes(tmp_path):
    profile, recorded = small_run()
    reported = ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    path = profile.write(tmp_path / "net.json")
    for name in ("one", "two"):
        write_trace(import_trace(path, reported)[0], tmp_path / name)
    files = [file.name for file in (tmp_path / "one").iterdir()]
    assert sorted(files) == ["blocks.csv", "kernels.csv", "trace.yaml"]
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)


def test_events_in_any_order_give_the_same_trace(tmp_path):
    profile, recorded = small_run()
    reported = ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    forward, _ = import_trace(profile.write(tmp_path / "net.json"), reported)
    profile.events.reverse()
    assert import_trace(profile.write(tmp_path / "net.json"), reported)[0] == forward


def test_an_in_place_kernel_on_new_memory_reads_nothing(tmp_path):
    """zeros: memory is allocated by one operator and filled by another inside it."""
    profile, recorded = Profile(), small_run()[1]
    recorded.nodes.clear()
    zeros = profile.op("aten::zeros", 10, 20)
    profile.memory(11, 3000, 512, 512)
    fill = profile.op("aten::mul_", 15, 10)
    profile.kernel(16, 100, 5)
    built = tensor(13, 3, 8, 4)
    recorded.node("aten::zeros", zeros, [], [built])
    recorded.node("aten::mul_", fill, [built], [built], "aten::mul_(Tensor(a!) self) -> Tensor(a!)")
    reported = ImportOptions(batch=8, execution_trace=recorded.write(tmp_path / "graph.json"))
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), reported)
    assert [(kernel.reads, kernel.writes) for kernel in trace.kernels] == [((), ("s3",))]
    assert not check_trace(trace)
    assert [block.persistent for block in trace.blocks] == [False]


def test_execution_trace_selects_the_iteration_it_covers(tmp_path):
    profile, recorded = several_iterations(), small_run()[1]
    recorded.nodes.clear()
    ids = [e["args"]["Record function id"] for e in profile.events if e["name"] == "aten::linear"]
    recorded.node("aten::linear", ids[0], [tensor(11, 1, 2, 4), tensor(12, 2, 4, 4)], [tensor(13, 3, 2, 4)])
    reported = ImportOptions(execution_trace=recorded.write(tmp_path / "graph.json"))
    trace, _ = import_trace(profile.write(tmp_path / "net.json"), reported)
    assert "Iteration 4 of the 3" in trace.info.notes


def test_annotations_are_no_operators(tmp_path):
    """A kernel that a user launches inside an annotation goes by its own name."""
    profile, _ = small_run(with_memory=False)
    profile.mark("my own part", 80, 10)
    profile.kernel(85, 200, 3, name="mine")
    trace, _ = import_trace(profile.write(tmp_path / "net.json"))
    assert trace.kernels[-1].op == "mine"


def test_strides_determine_the_extent_of_a_tensor(tmp_path):
    """A column of a matrix, two rows down: 3 elements, 8 apart, from the 16th on."""
    _, recorded = small_run()
    recorded.nodes = recorded.nodes[:1]
    values = {
        "values": [[11, 1, 16, 3, 4, "cuda:0"]],
        "shapes": [[3]],
        "types": ["Tensor(c10::Half)"],
        "strides": [[8]],
    }
    recorded.nodes[0]["inputs"] = values
    (node,) = read_execution_trace(recorded.write(tmp_path / "graph.json")).nodes
    assert [(t.bytes, t.shape, t.dtype, t.argument) for t in node.inputs] == [
        ((16 + 2 * 8 + 1) * 4, (3,), "float16", "input")
    ]


def test_lists_of_tensors_are_read_one_by_one(tmp_path):
    _, recorded = small_run()
    recorded.nodes.clear()
    one, two = tensor(1, 2, 4), tensor(3, 4, 2, 2)
    listed = ([one[0], two[0]], [one[1], two[1]], "GenericList[Tensor(float),Tensor(float)]")
    schema = "aten::_foreach_mul_.Scalar(Tensor(a!)[] self, Scalar scalar) -> ()"
    recorded.node("aten::_foreach_mul_", 7, [listed, (2.0, [], "Double")], [], schema)
    (node,) = read_execution_trace(recorded.write(tmp_path / "graph.json")).nodes
    assert [(t.storage, t.shape, t.changed, t.overwritten) for t in node.inputs] == [
        (2, (4,), True, False),
        (4, (2, 2), True, False),
    ]


def test_out_arguments_are_written_and_not_read(tmp_path):
    _, recorded = small_run()
    recorded.nodes.clear()
    schema = "aten::sum.IntList_out(Tensor self, int[1]? dim, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)"
    nothing = ("<None>", [], "None")
    recorded.node("aten::sum", 7, [tensor(1, 2, 4), nothing, nothing, tensor(3, 4, 1)], [tensor(3, 4, 1)], schema)
    (node,) = read_execution_trace(recorded.write(tmp_path / "graph.json")).nodes
    assert [(t.argument, t.changed, t.overwritten) for t in node.inputs] == [
        ("self", False, False),
        ("out", True, True),
    ]
