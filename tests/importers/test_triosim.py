"""TrioSim folders: the real one against its facts, small ones rule by rule, damaged ones."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.importers import ImportOptions, detect, import_trace
from simgpu.trace.folder import write_trace
from simgpu.trace.model import BlockKind, Phase, Trace
from simgpu.trace.stats import trace_stats

VGG13 = Path(__file__).parents[3] / "shared" / "data" / "h100-triosim" / "vgg13"


@pytest.fixture(scope="module")
def vgg13() -> Trace:
    if not VGG13.exists():
        pytest.skip("the recording is not next to the repository (../shared/data/h100-triosim)")
    trace, recognised = import_trace(VGG13)
    assert recognised == "TrioSim CSV"
    return trace


def test_operators_and_times(vgg13):
    stats = trace_stats(vgg13)
    assert stats.kernels == 77
    assert {row.phase: row.duration_ns for row in stats.phases} == {
        Phase.FORWARD: 28_105_000,
        Phase.BACKWARD: 62_365_000,
        Phase.OPTIMIZER: 3_568_000,
    }
    with (VGG13 / "trace.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [kernel.id for kernel in vgg13.kernels] == [row["OperatorID"] for row in rows]
    assert vgg13.compute_ns == 1000 * sum(int(row["Operator_cudatimenooverlap"]) for row in rows)
    assert (vgg13.info.model, vgg13.info.batch) == ("vgg13", 128)


def test_weights_gradients_and_state_agree(vgg13):
    """VGG-13 has 133,047,848 parameters, which the optimizer doubles twice; each has one gradient."""
    kinds = {row.kind: (row.blocks, row.bytes) for row in trace_stats(vgg13).kinds}
    weights = kinds[BlockKind.WEIGHT]
    assert weights == (26, 4 * 133_047_848)
    assert kinds[BlockKind.WEIGHT_GRADIENT] == weights
    assert kinds[BlockKind.OPTIMIZER_STATE] == (52, 2 * weights[1])
    assert kinds[BlockKind.INPUT] == (1, 128 * 3 * 224 * 224 * 4)
    assert kinds[BlockKind.LABEL] == (1, 128 * 8)


def test_relu_works_in_place_and_the_optimizer_changes_the_weights(vgg13):
    kernels = {kernel.id: kernel for kernel in vgg13.kernels}
    assert kernels["2"].op == "aten::relu_"
    assert kernels["2"].reads == kernels["2"].writes == kernels["1"].writes
    update = kernels["161"]
    weights = {block.id for block in vgg13.blocks if block.kind is BlockKind.WEIGHT}
    assert set(update.writes) == weights <= set(update.reads)


def test_pooling_indices_are_written_by_their_pooling(vgg13):
    """Each pooling's backward reads two results of one forward pooling: its input's neighbour and its indices."""
    written_by = {name: kernel for kernel in reversed(vgg13.kernels) for name in kernel.writes}
    blocks = vgg13.block_by_id
    backward = [kernel for kernel in vgg13.kernels if "MaxPool2DWithIndicesBackward0" in kernel.op]
    assert len(backward) == 5
    for kernel in backward:
        _, pooled, indices = kernel.reads
        pooling = written_by[indices]
        assert pooling.op == "aten::max_pool2d"
        assert pooling.reads == (pooled,)
        values = next(name for name in pooling.writes if name != indices)
        assert blocks[indices].bytes == 2 * blocks[values].bytes


def test_reallocated_memory_is_a_new_block(vgg13):
    """No block is first a feature map and later a gradient: reallocated storage becomes a separate block."""
    phases: dict[str, set[Phase]] = {}
    for kernel in vgg13.kernels:
        for name in kernel.writes:
            phases.setdefault(name, set()).add(kernel.phase)
    changing = {block.id for block in vgg13.blocks if not block.persistent}
    assert all(len(phases[name]) == 1 for name in changing)
    assert all(block.release is None for block in vgg13.blocks)


TENSORS = """\
Index,TensorID,TensorShape,TensorNumElement,TensorEachByte,TensorType,TensorStorgeid,gpuid
0,1,"[4, 2]",8,4,input,101,0
1,2,"[2, 2]",4,4,weight,102,0
2,3,"[4, 2]",8,4,output,103,0
3,4,"[8]",8,4,input,103,0
4,5,[],0,0,weight,0,0
5,7,"[4, 2]",8,1,mask,107,0
6,6,"[4, 2]",8,4,output,106,0
7,8,"[4, 2]",8,4,output,103,0
8,9,"[2, 2]",4,4,output,109,0
9,20,"[2, 2]",4,4,input,120,0
10,21,"[4]",4,4,output,102,0
"""

OPERATORS = """\
OperatorID,OperatorName,Operator_input,Operator_output,Operator_cudatime,Operator_cudatimenooverlap,InputSize,\
OutputSize,gpuid,stage,tpflag
1,aten::linear,[1; 2],[3],9,7,[8; 4],[8],0,forward,1
2,aten::relu_,[3],[3],9,1.5,[8],[8],0,forward,0
3,aten::dropout,[4; 5],[6],9,2,[8; 0],[8],0,forward,0
4,NativeDropoutBackward0,[6; 7],[8],9,3,[8; 8],[8],0,backward,0
5,TBackward0,[2],[21],9,1,[4],[4],0,backward,0
6,AddmmBackward0,[8; 1],[9],9,4,[8; 8],[4],0,backward,1
7,aten::_foreach_addcmul_,[20; 9; 9],[],9,5,[4; 4; 4],[],0,optimizer,0
8,aten::_foreach_add_,[2; 20],[],9,6,[4; 4],[],0,optimizer,0
"""


def written(folder: Path, operators: str = OPERATORS, tensors: str = TENSORS) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "trace.csv").write_text(operators)
    (folder / "tensor.csv").write_text(tensors)
    return folder


def test_tensors_become_blocks(tmp_path):
    trace, _ = import_trace(written(tmp_path / "net"))
    assert [(kernel.id, kernel.duration_ns, kernel.reads, kernel.writes) for kernel in trace.kernels] == [
        ("1", 7000, ("s101", "s102"), ("s103",)),
        ("2", 1500, ("s103",), ("s103",)),
        ("3", 2000, ("s103",), ("s106", "s107")),
        ("4", 3000, ("s106", "s107"), ("s103.2",)),
        ("5", 1000, ("s102",), ()),
        ("6", 4000, ("s103.2", "s101"), ("s109",)),
        ("7", 5000, ("s120", "s109"), ("s120",)),
        ("8", 6000, ("s102", "s120"), ("s102",)),
    ]
    kinds = {block.id: (block.kind, block.bytes, block.persistent) for block in trace.blocks}
    assert kinds == {
        "s101": (BlockKind.INPUT, 32, True),
        "s102": (BlockKind.WEIGHT, 16, True),
        "s103": (BlockKind.ACTIVATION, 32, False),
        "s106": (BlockKind.ACTIVATION, 32, False),
        "s107": (BlockKind.ACTIVATION, 8, False),
        "s103.2": (BlockKind.GRADIENT, 32, False),
        "s109": (BlockKind.WEIGHT_GRADIENT, 16, False),
        "s120": (BlockKind.OPTIMIZER_STATE, 16, True),
    }
    assert [kernel.pure for kernel in trace.kernels] == [True, True, False, None, None, None, False, False]
    assert trace.info.batch == 4
    assert "no listed operator writes them: 1;" in trace.info.notes


@pytest.mark.parametrize(
    ("file", "old", "new", "reported"),
    [
        ("trace", ",7,", ",7.0005,", "trace.csv: row 2: '7.0005' microseconds are not whole nanoseconds"),
        ("trace", ",7,", ",-7,", "trace.csv: row 2: '-7' microseconds are not whole nanoseconds"),
        ("trace", ",7,", ",fast,", "trace.csv: row 2: 'fast' is not a number of microseconds"),
        ("trace", "[1; 2]", "[1; 2", "trace.csv: row 2: '[1; 2' is not a list of numbers"),
        ("trace", "[1; 2]", "[1; 77]", "trace.csv: row 2: tensor 77 has no row in tensor.csv"),
        ("trace", "optimizer,0\n8", "update,0\n8", "trace.csv: row 8: 'update' is not a stage"),
        ("trace", "0,backward,1", "1,backward,1", "trace.csv: column gpuid: contains several GPUs (0, 1)"),
        ("trace", "optimizer,0\n8", "optimizer\n8", "trace.csv: row 8: does not have one field per column"),
        ("trace", ",stage,", ",phase,", "trace.csv: row 1: columns missing: stage"),
        ("trace", OPERATORS.partition("\n")[2], "", "trace.csv: contains no operators"),
        ("tensor", "8,4,output,106", "8,4.5,output,106", "tensor.csv: row 8: '4.5' is not a whole number"),
        ("tensor", '"[4]"', '"[four]"', "tensor.csv: row 12: '[four]' is not a list of numbers"),
        ("tensor", "10,21,", "10,20,", "tensor.csv: row 12: tensor 20 is in storage 102, but in 120 in a row above"),
        ("tensor", "TensorStorgeid", "Storage", "tensor.csv: row 1: columns missing: TensorStorgeid"),
    ],
)
def test_damaged_folders_are_reported(tmp_path, file, old, new, reported):
    texts = {"trace": OPERATORS, "tensor": TENSORS}
    assert old in texts[file]
    texts[file] = texts[file].replace(old, new, 1)
    folder = written(tmp_path / "net", texts["trace"], texts["tensor"])
    with pytest.raises(InputError) as caught:
        import_trace(folder)
    assert reported in str(caught.value.problems[0]).replace(f"{folder}/", "")


@pytest.mark.parametrize("missing", ["trace.csv", "tensor.csv"])
def test_a_folder_without_one_of_its_files_is_reported(tmp_path, missing):
    folder = written(tmp_path / "net")
    (folder / missing).unlink()
    with pytest.raises(InputError) as caught:
        import_trace(folder)
    (problem,) = caught.value.problems
    assert (problem.file, problem.what) == (str(folder / missing), "no such file")


def test_empty_or_binary_parts(tmp_path):
    folder = written(tmp_path / "net", tensors="")
    with pytest.raises(InputError, match=r"tensor\.csv: is empty"):
        import_trace(folder)
    (folder / "tensor.csv").write_bytes(b"Index,TensorID,\0")
    with pytest.raises(InputError, match=r"tensor\.csv: line 1: is a binary file"):
        import_trace(folder)


def test_unknown_batch_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not contain its batch size"):
        import_trace(written(tmp_path / "net", tensors=TENSORS.replace('"[4, 2]",8,4,input', "[],8,4,input")))


def test_a_batch_that_the_shapes_contradict_is_refused(tmp_path):
    folder = written(tmp_path / "net")
    assert import_trace(folder, ImportOptions(batch=4))[0].info.batch == 4
    with pytest.raises(InputError, match="net: was recorded with batch 4, as its shapes show, not with batch 5; leave"):
        import_trace(folder, ImportOptions(batch=5))


def test_a_trace_needs_no_import(tmp_path):
    trace, _ = import_trace(written(tmp_path / "net"))
    write_trace(trace, tmp_path / "trace")
    with pytest.raises(InputError, match="is a simgpu trace already"):
        detect(tmp_path / "trace")
