"""G10 folders: the real ones against their own files, small ones rule by rule, damaged ones."""

from __future__ import annotations

import re
import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.importers import ImportOptions, detect, import_trace
from simgpu.simulation.run import simulate
from simgpu.trace.check import check_trace
from simgpu.trace.folder import write_trace
from simgpu.trace.model import NOT_RECORDED, BlockKind, Phase, Trace
from simgpu.trace.stats import trace_stats
from simgpu.units import format_bytes

FOLDERS = Path(__file__).parents[3] / "shared" / "data" / "a100-g10"

FLAG_AND_SIZE = re.compile(r"\?: ([01]), Size in byte: (\d+),")
#: Kernels and their time in all, ns.
FACTS = {"bert-256": (1369, 7_285_466_083), "vit-256": (1489, 2_124_911_616)}
PLENTY = NodeSpec("bench", GpuSpec("a GPU", 10**12), LinkSpec("a link", 10**10, 10**10))


def recorded(name: str) -> Trace:
    if not (FOLDERS / name).exists():
        pytest.skip("the recordings are not next to the repository (../shared/data/a100-g10)")
    trace, recognised = import_trace(FOLDERS / name)
    assert recognised == "G10 folder"
    return trace


@pytest.mark.parametrize("name", FACTS)
def test_kernels_take_their_measured_times(name):
    trace = recorded(name)
    assert (len(trace.kernels), trace.compute_ns) == FACTS[name]
    lines = (FOLDERS / name / "cudnn256.txt").read_text().splitlines()
    assert [f"{kernel.id} {kernel.duration_ns / 10**6:f} ms" for kernel in trace.kernels] == lines
    assert sum(Decimal(line.split()[1]) for line in lines) * 10**6 == trace.compute_ns


@pytest.mark.parametrize("name", FACTS)
def test_notes_state_what_is_recorded(name):
    info = recorded(name).info
    assert (info.model, info.batch, info.device, info.dtype) == (name[:-4], 256, NOT_RECORDED, NOT_RECORDED)
    assert "1.2 GHz relative to the measured times; at this clock they agree to the cycle" in info.notes
    assert "Lifetimes are not recorded." in info.notes
    assert "The batch size is from the file name cudnn256.txt." in info.notes


@pytest.mark.parametrize("name", FACTS)
def test_notes_attribute_weight_flags_to_the_file(name):
    trace, text = recorded(name), (FOLDERS / name / "tensors.config").read_text()
    sizes = [int(size) for flag, size in FLAG_AND_SIZE.findall(text) if flag == "1"]
    assert sum(block.bytes for block in trace.blocks if block.kind == "weight") == sum(sizes)
    reported = f"{len(sizes)} tensors as weights (global), {format_bytes(sum(sizes))} in all, the largest "
    assert f"{reported}{format_bytes(max(sizes))}; these flags are not verified." in trace.info.notes


@pytest.mark.parametrize("name", FACTS)
def test_reads_and_writes_are_the_files_own(name):
    """The same paragraphs, cut with other means."""
    trace = recorded(name)
    paragraphs = re.split(r"_{20,}\n", (FOLDERS / name / "kernels.config").read_text())[:-1]
    for kernel, paragraph in zip(trace.kernels, paragraphs, strict=True):
        inputs, outputs = paragraph.split("Input Tensors:")[1].split("Output Tensors:")
        assert list(kernel.reads) == re.findall(r"^tensor\d+", inputs, re.MULTILINE)
        assert list(kernel.writes) == re.findall(r"^tensor\d+", outputs, re.MULTILINE)
        assert f"Name: {kernel.op}\n" in paragraph
    sizes = re.findall(r"(?m)^(tensor\d+) .* byte: (\d+),", (FOLDERS / name / "tensors.config").read_text())
    assert [(block.id, str(block.bytes)) for block in trace.blocks] == sizes


@pytest.mark.parametrize("name", FACTS)
def test_phases_and_layers(name):
    trace = recorded(name)
    phases = [kernel.phase for kernel in trace.kernels]
    loss = next(place for place, kernel in enumerate(trace.kernels) if kernel.op == "makeLoss")
    assert set(phases[:loss]) == {Phase.FORWARD}
    assert set(phases[loss:]) == {Phase.BACKWARD, Phase.OPTIMIZER}
    assert all(("Apply_Grad" in kernel.op) == (kernel.phase is Phase.OPTIMIZER) for kernel in trace.kernels)
    layers = [kernel.layer for kernel in trace.kernels[:loss]]
    assert len(set(layers)) == loss, "each forward kernel is its own operator"
    assert {kernel.layer for kernel in trace.kernels} == set(layers), "backward kernels belong to one of them"


@pytest.mark.parametrize("name", FACTS)
def test_kinds_agree_with_use(name):
    trace = recorded(name)
    blocks = trace.block_by_id
    written = {block for kernel in trace.kernels for block in kernel.writes}
    for kernel in trace.kernels:
        if kernel.phase is Phase.OPTIMIZER:
            assert sorted(blocks[block].kind for block in kernel.reads) == ["weight", "weight_gradient"]
            assert [blocks[block].kind for block in kernel.writes] == [BlockKind.WEIGHT]
    for block in trace.blocks:
        assert block.persistent == (block.kind is BlockKind.WEIGHT or block.id not in written)
        assert block.release is None
    kinds = {row.kind: row.blocks for row in trace_stats(trace).kinds}
    batch = {"bert-256": 2, "vit-256": 1}  # words and their types; images
    assert kinds[BlockKind.INPUT] == batch[name]


def test_workspaces_of_a_convolution():
    """ViT's patches are cut by a convolution: forward and backward each have a workspace, in whole pages."""
    trace = recorded("vit-256")
    result = {block.id: block.bytes for block in trace.blocks if block.kind is BlockKind.WORKSPACE}
    users = [(kernel.op, kernel.writes[0]) for kernel in trace.kernels if result.keys() & set(kernel.writes)]
    assert users == [("Conv2d_Forward", "tensor1561"), ("Conv2d_Backward_Weight", "tensor1562")]
    raw = [231_079_952, 281_415_199]
    assert list(result.values()) == [-(-size // 4096) * 4096 for size in raw]


@pytest.mark.slow
@pytest.mark.parametrize("name", FACTS)
def test_policies_run_on_it(name):
    trace = recorded(name)
    needed = trace_stats(trace).peak_needed.bytes
    plain = simulate(trace, PLENTY, "none")
    offloading = simulate(trace, PLENTY, "vdnn")
    assert plain.metrics.iteration_ns == trace.compute_ns
    assert plain.metrics.device_peak_bytes == needed
    assert offloading.metrics.device_peak_bytes < needed
    assert offloading.metrics.iteration_ns >= trace.compute_ns


RULER = "_" * 68 + "\n"
SIZES = {
    0: (0, 8192),
    1: (1, 4096),
    2: (0, 4096),
    3: (0, 8192),
    4: (0, 4096),
    5: (0, 8192),
    6: (0, 4096),
    7: (0, 12288),
}


def line(number: int) -> str:
    is_global, size = SIZES[number]
    begin = sum(size for _, size in list(SIZES.values())[:number])
    return f"tensor{number} Is weight (global)?: {is_global}, Size in byte: {size}, Range:{begin}--{begin + size}\n"


def kernel(number: int, name: str, parent: str, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> str:
    mentions = ["".join(map(line, numbers)) for numbers in (inputs, outputs)]
    return (
        f"Kernel ID: {number}, Name: {name}\n{parent}\nExecution Time: {1200 * (number + 1)}\n"
        f"Input Tensors:\n{mentions[0]}Output Tensors:\n{mentions[1]}{RULER}"
    )


KERNELS = [
    kernel(0, "Conv2d_Forward", "Parent OP ID:7; Name: Convolution", (0, 1), (3, 7)),
    kernel(1, "Divide_Forward", "Parent OP ID:8; Name: Divide", (3, 2), (5,)),
    kernel(2, "makeLoss", "Parent OP ID:8; Name: Divide", (5,), (6,)),
    kernel(3, "Conv2d_Backward_Weight", "Parent OP ID:7; Name: Convolution", (6, 0), (4,)),
    kernel(4, "Conv2d_Apply_Grad", "Parent OP ID:7; Name: Convolution", (4, 1), (1,)),
]
FILES = {
    "tensors.config": "".join(map(line, SIZES)),
    "kernels.config": "".join(KERNELS),
    "cudnn32.txt": "".join(f"{number:04} 0.00{number + 1}000 ms\n" for number in range(5)),
    "cudnn32Workspace.txt": "0000 9000 B\n0001 0 B\n0002 0 B\n0003 0 B\n0004 0 B\n",
    "cudnn32PF.txt": "anything\n",
}


def written(folder: Path, **changed: str | None) -> Path:
    """The small folder, with files changed, or left out where None; dots stand as underscores in their names."""
    folder.mkdir(exist_ok=True)
    for name, text in (FILES | {key.replace("_", "."): text for key, text in changed.items()}).items():
        if text is not None:
            (folder / name).write_text(text)
    return folder


def test_tensors_become_blocks(tmp_path):
    trace, _ = import_trace(written(tmp_path / "net-32"))
    assert [(k.id, k.phase, k.duration_ns, k.reads, k.writes, k.layer, k.pure) for k in trace.kernels] == [
        ("0000", "forward", 1000, ("tensor0", "tensor1"), ("tensor3", "tensor7"), "Convolution_7", True),
        ("0001", "forward", 2000, ("tensor3", "tensor2"), ("tensor5",), "Divide_8", True),
        ("0002", "backward", 3000, ("tensor5",), ("tensor6",), "Divide_8", None),
        ("0003", "backward", 4000, ("tensor6", "tensor0"), ("tensor4",), "Convolution_7", True),
        ("0004", "optimizer", 5000, ("tensor4", "tensor1"), ("tensor1",), "Convolution_7", False),
    ]
    assert [(block.kind, block.persistent) for block in trace.blocks] == [
        (BlockKind.INPUT, True),
        (BlockKind.WEIGHT, True),
        (BlockKind.OTHER, True),
        (BlockKind.ACTIVATION, False),
        (BlockKind.WEIGHT_GRADIENT, False),
        (BlockKind.ACTIVATION, False),
        (BlockKind.GRADIENT, False),
        (BlockKind.WORKSPACE, False),
    ]
    assert (trace.info.model, trace.info.batch) == ("net", 32)


def test_networks_of_layers_name_them_otherwise(tmp_path):
    """Convolutional networks print a layer with its sizes where transformers print an operator."""
    text = FILES["kernels.config"].replace("OP ID:7; Name: Convolution", "Layer ID:7; Name:Conv2d")
    text = re.sub(r"(Name:Conv2d\nExecution Time: \d+\n)", r"\1(32,3,224,224)\n", text)
    trace, _ = import_trace(written(tmp_path / "net", kernels_config=text))
    assert [kernel.layer for kernel in trace.kernels] == ["Conv2d_7", "Divide_8", "Divide_8", "Conv2d_7", "Conv2d_7"]


def test_missing_workspaces_are_noted(tmp_path):
    trace, _ = import_trace(written(tmp_path, cudnn32Workspace_txt=None))
    assert "Workspaces are not recorded." in trace.info.notes
    assert BlockKind.WORKSPACE not in {block.kind for block in trace.blocks}


def test_cycles_of_another_run_are_noted(tmp_path):
    text = FILES["kernels.config"].replace("Execution Time: 6000", "Execution Time: 9000")
    trace, _ = import_trace(written(tmp_path, kernels_config=text))
    assert "1.4 GHz relative to the measured times; at this clock they are up to 2000 cycles off" in trace.info.notes


def test_batch_option_selects_one_of_several_files(tmp_path):
    folder = written(tmp_path, cudnn64_txt=FILES["cudnn32.txt"].replace("0.00", "0.01"))
    with pytest.raises(InputError, match=r"kernel times of several batches: cudnn32\.txt, cudnn64\.txt"):
        import_trace(folder)
    trace, _ = import_trace(folder, ImportOptions(batch=64))
    assert (trace.info.batch, trace.kernels[0].duration_ns) == (64, 11_000)


def test_same_bytes_each_time(tmp_path):
    written(tmp_path / "net")
    for name in ("one", "two"):
        write_trace(import_trace(tmp_path / "net")[0], tmp_path / name)
    for file in sorted((tmp_path / "one").iterdir()):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


LAST = FILES["kernels.config"].rindex(RULER)
DAMAGED = {
    "no times": ({"cudnn32_txt": None}, r"has no cudnnB\.txt; add the kernel times"),
    "no kernels": ({"kernels_config": None}, r"kernels\.config: no such file"),
    "no tensors": ({"tensors_config": None}, r"tensors\.config: no such file"),
    "empty times": ({"cudnn32_txt": ""}, r"cudnn32\.txt: is empty"),
    "times short": (
        {"cudnn32_txt": FILES["cudnn32.txt"][: -len("0004 0.005000 ms\n")]},
        r"cudnn32\.txt: contains 4 kernels, net/kernels\.config 5; use files of one model",
    ),
    "times cut": ({"cudnn32_txt": FILES["cudnn32.txt"][:-2]}, r"row 5: '0004 0\.005000 m' is not a kernel's number"),
    "times cut at a line": ({"cudnn32_txt": FILES["cudnn32.txt"][:-1]}, r"row 5: the file seems cut off"),
    "gap": ({"cudnn32_txt": FILES["cudnn32.txt"].replace("0002", "0003")}, r"row 3: kernel 0003 instead of 2"),
    "not a number": (
        {"cudnn32_txt": FILES["cudnn32.txt"].replace("0.003000", "nan")},
        r"row 3: 'nan' ms is not a whole number of nanoseconds",
    ),
    "negative": ({"cudnn32_txt": FILES["cudnn32.txt"].replace("0.003000", "-1")}, r"row 3: '-1' ms is not a whole"),
    "below a nanosecond": (
        {"cudnn32_txt": FILES["cudnn32.txt"].replace("0.003000", "0.0030001")},
        r"row 3: '0\.0030001' ms is not a whole number of nanoseconds",
    ),
    "workspaces of another run": (
        {"cudnn32Workspace_txt": FILES["cudnn32Workspace.txt"].replace("9000", "90000")},
        r"Workspace\.txt: row 1: kernel 0 has a workspace of 90000 B, but no output of 90112 B that only it uses",
    ),
    "workspaces short": ({"cudnn32Workspace_txt": "0000 0 B\n"}, r"Workspace\.txt: contains 1 kernels, .* 5"),
    "workspace a fraction": (
        {"cudnn32Workspace_txt": FILES["cudnn32Workspace.txt"].replace("9000", "9.5")},
        r"row 1: '9\.5' is not a whole number of bytes",
    ),
    "graph cut": ({"kernels_config": FILES["kernels.config"][:LAST]}, r"no line of underscores below it: the file"),
    "graph cut in a line": ({"kernels_config": FILES["kernels.config"][: LAST - 20]}, r"is not a tensor line of G10"),
    "graph with a gap": (
        {"kernels_config": FILES["kernels.config"].replace("Kernel ID: 3", "Kernel ID: 4")},
        r"kernels\.config: row 28: kernel 4 instead of 3",
    ),
    "graph without a time": (
        {"kernels_config": FILES["kernels.config"].replace("Execution Time: 3600\n", "")},
        r"kernel 2 lacks its parent, its execution time or its tensors",
    ),
    "inputs twice": (
        {"kernels_config": FILES["kernels.config"].replace("Output Tensors:", "Input Tensors:", 1)},
        r"row 7: 'Input Tensors:' is out of order",
    ),
    "another size in the graph": (
        {"tensors_config": FILES["tensors.config"].replace("8192, Range:16384--24576", "4096, Range:16384--20480")},
        r"kernels\.config: row 8: tensor3 is different in tensors\.config",
    ),
    "a tensor nobody listed": (
        {"tensors_config": FILES["tensors.config"].replace(line(6), "")},
        r"tensor6 is not in tensors\.config",
    ),
    "a size that is not its range": (
        {"tensors_config": FILES["tensors.config"].replace("--24576", "--24577")},
        r"tensors\.config: row 4: tensor3 has 8192 B, its range 8193 B",
    ),
    "a tensor twice": ({"tensors_config": FILES["tensors.config"] + line(2)}, r"row 9: tensor2 is listed twice"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_folders_are_reported(tmp_path, case):
    changed, message = DAMAGED[case]
    with pytest.raises(InputError, match=message):
        import_trace(written(tmp_path / "net", **changed))


@pytest.mark.slow
def test_files_of_another_network_are_reported(tmp_path):
    """Times of one recording next to the graph of another."""
    for name in FACTS:
        recorded(name)
    shutil.copytree(FOLDERS / "bert-256", tmp_path / "mixed")
    for file in (tmp_path / "mixed").iterdir():
        file.chmod(0o644)
    shutil.copy(FOLDERS / "vit-256" / "cudnn256.txt", tmp_path / "mixed")
    with pytest.raises(InputError, match=r"cudnn256\.txt: contains 1489 kernels, mixed/kernels\.config 1369"):
        import_trace(tmp_path / "mixed")


def test_recognised_with_either_graph_file(tmp_path):
    assert detect(written(tmp_path / "a", kernels_config=None)).name == "G10 folder"
    assert detect(written(tmp_path / "b", tensors_config=None)).name == "G10 folder"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "kernels.config").write_text("kernel: 5\n")
    with pytest.raises(InputError, match="not a recording of a known format"):
        detect(tmp_path / "c")


def test_imported_traces_are_sound(tmp_path):
    assert check_trace(import_trace(written(tmp_path))[0]) == []
