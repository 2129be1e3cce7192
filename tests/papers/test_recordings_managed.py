"""Kernels under page faults next to `um`: small ones worked out by hand, and G10's recordings."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.hardware.spec import GpuSpec, LinkSpec, NodeSpec
from simgpu.papers.cache import ResultCache
from simgpu.papers.recordings import Managed, Recordings, Trial
from simgpu.papers.recordings_managed import compare_managed, fault_files, shapes, stalls
from simgpu.papers.recordings_operands import FAULTS
from simgpu.papers.recordings_tasks import RecordingTask, recording_tasks, recordings_of
from simgpu.papers.tasks import Groups, run_group
from simgpu.program.paging import HOST_PAGE_NS
from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo

pytestmark = pytest.mark.slow

G10 = Path(__file__).parents[3] / "shared" / "data" / "a100-g10"
LINK = 10**9
LATENCY = 45_000
PAGE = 4096
CHUNK = 2 * 2**20
NODE = NodeSpec("bench", GpuSpec("a GPU", 64 * 2**20), LinkSpec("a link", LINK, LINK))


def trace(*kernels: tuple[list[int], list[int], list[int]], op: str = "op") -> Trace:
    """Kernels of 1 us with operands of so many bytes: read alone, written alone, changed in place."""
    result, blocks = [], []
    for number, (read, written, changed) in enumerate(kernels):
        parts = [[f"k{number}{kind}{place}" for place, _ in enumerate(sizes)] for kind, sizes in
                 (("r", read), ("w", written), ("c", changed))]  # fmt: skip
        reads, writes, both = parts
        for name, size in zip([*reads, *writes, *both], [*read, *written, *changed], strict=True):
            blocks.append(Block(name, size, BlockKind.OTHER, persistent=name not in writes))
        result.append(Kernel(f"k{number}", op, Phase.FORWARD, 1000, (*reads, *both), (*writes, *both)))
    info = TraceInfo("small", 1, "a GPU", "float32", Origin.IMPORTED, "a test")
    return Trace(info, tuple(result), tuple(blocks))


def waits(iteration: Trace, faults: str, **parameters: int) -> list[int]:
    return stalls(iteration, NODE, faults, {"first_touch": True, **parameters})


def from_host(size: int, times: int) -> int:
    """Faults, the host's time for its pages, and the copy: at 1 GB/s a byte takes a nanosecond."""
    return times * LATENCY + size // PAGE * HOST_PAGE_NS + size


def test_inputs_come_from_the_host_and_results_fault_without_a_copy():
    iteration = trace(([CHUNK], [CHUNK], []), ([], [3 * CHUNK], []), ([CHUNK // 2], [], []))
    assert waits(iteration, "PF") == [from_host(CHUNK, 6) + 6 * LATENCY, 18 * LATENCY, from_host(CHUNK // 2, 5)]


def test_with_inputs_on_the_gpu_results_and_what_is_changed_in_place_fault():
    iteration = trace(([CHUNK], [CHUNK], []), ([CHUNK], [], [CHUNK]))
    assert waits(iteration, "InputPF") == [6 * LATENCY, from_host(CHUNK, 6)]


def test_some_results_are_on_the_host_as_the_profiler_had_it():
    assert waits(trace(([CHUNK], [CHUNK], []), op="Sum_Forward"), "InputPF") == [from_host(CHUNK, 6)]


def test_operands_that_are_broadcast_are_as_large_as_the_result():
    assert waits(trace(([CHUNK, PAGE], [CHUNK], []), op="Divide_Forward"), "PF") == [
        2 * from_host(CHUNK, 6) + 6 * LATENCY
    ]


def test_a_backward_pass_that_reads_its_forward_result_faults_for_it():
    assert waits(trace(([2 * CHUNK, CHUNK], [], []), op="MaxPool2d_Backward"), "InputPF") == [from_host(CHUNK, 6)]


def test_parameters_are_those_of_the_policy():
    iteration = trace(([CHUNK], [], []))
    assert waits(iteration, "PF", fault_latency_ns=0, host_page_ns=0) == [CHUNK]
    assert waits(iteration, "PF", bandwidth=LINK // 2) == [from_host(CHUNK, 6) + CHUNK]
    assert waits(iteration, "PF", prefetch=0) == [from_host(CHUNK, 512 // 8)]


def test_memory_released_by_a_kernel_is_free_for_the_next_without_evictions():
    """Operands of each kernel fill most of the memory, and the next kernel finds as much of it free."""
    most = NODE.gpu.memory * 3 // 4
    iteration = trace(([most], [], []), ([most - CHUNK], [], []), ([most], [], []))
    times = most // CHUNK * 6
    expected = [from_host(most, times), from_host(most - CHUNK, times - 6), from_host(most, times)]
    assert waits(iteration, "PF") == expected


operands = st.lists(st.integers(1, 20).map(lambda pages: pages * PAGE * 8), max_size=2)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(operands, operands, operands), min_size=1, max_size=5), st.sampled_from(list(FAULTS)))
def test_kernels_of_one_shape_stall_as_each_does_alone(kernels, faults):
    iteration = trace(*kernels, *kernels)
    together = waits(iteration, faults)
    assert together == [waits(trace(each), faults)[0] for each in kernels] * 2
    numbers = sorted(number for group in shapes(iteration, faults).values() for number in group)
    assert numbers == [*range(2 * len(kernels))]


# --- the recordings -----------------------------------------------------------------------------------------


def recorded(name: str) -> Path:
    if not (G10 / name).exists():
        pytest.skip("the recordings are not next to the repository (../shared/data/a100-g10)")
    return G10 / name


def test_the_files_of_a_folder():
    assert [(word, file.name) for word, file in fault_files(recorded("vit-256"))] == [
        ("PF", "cudnn256PF.txt"),
        ("InputPF", "cudnn256InputPF.txt"),
    ]


@pytest.fixture(scope="module")
def vit() -> dict[str, Managed]:
    return {faults: compare_managed("vit", recorded("vit-256"), "a100", faults) for faults in FAULTS}


@pytest.fixture(scope="module")
def bert() -> dict[str, Managed]:
    return {faults: compare_managed("bert", recorded("bert-256"), "a100", faults) for faults in FAULTS}


def test_measured_times_are_the_files_own(vit):
    sums = {}
    for word, file in fault_files(recorded("vit-256")):
        sums[word] = sum(round(float(line.split()[1]) * 10**6) for line in file.read_text().splitlines())
    assert {faults: row.measured_ns for faults, row in vit.items()} == sums
    assert {row.ideal_ns for row in vit.values()} == {2_124_911_616}
    assert {(row.policy, row.node, row.budget) for row in vit.values()} == {("um", "a100", 40 * 2**30)}


def test_the_driver_s_rules_are_close_to_all_recordings(vit, bert):
    """Sums within 15%, the median kernel within 20%. The host's time is fitted to the sums with data on the host."""
    for row in (*vit.values(), *bert.values()):
        assert 1 / 1.15 < row.ratio < 1.15
        assert 1 / 1.2 < row.trials[0].half < 1.2
    assert 0.98 < math.sqrt(vit["PF"].ratio * bert["PF"].ratio) < 1.02


def test_kernels_that_ran_with_smaller_operands_are_left_out(vit, bert):
    """BERT's ReLU and softmax took less time than a read of their operands at twice the memory's peak."""
    assert all(row.note.startswith("36 kernels are left out") for row in bert.values())
    assert not any("left out" in row.note for row in vit.values())


def test_every_rule_matters(vit):
    for row in vit.values():
        ratios = {trial.label: trial.predicted_ns / row.measured_ns for trial in row.trials}
        assert ratios["without the fitted time of the host's pages"] < 0.6
        assert ratios["without prefetching"] > 3
        assert ratios["results without faults"] < row.ratio
        assert ratios["one fault for 64 KiB, 256 in a batch, as for Buddy Compression"] < 0.2


def test_results_alone_fault_in_what_is_called_input_faults(vit):
    assert vit["InputPF"].measured_ns < vit["PF"].measured_ns
    assert "in spite of the file's name" in vit["InputPF"].note
    assert not vit["InputPF"].unmeasured
    assert min(vit["PF"].unmeasured.values()) >= vit["PF"].ideal_ns


def test_a_managed_comparison_is_cached(vit):
    name = "a100-g10/vit-256"
    (task,) = (task for task in recording_tasks(G10.parent) if (task.name, task.part) == (name, "InputPF"))
    assert task == RecordingTask(name, str(G10 / "vit-256"), "a100", "InputPF")
    cache, done = ResultCache(), run_group(Groups.of([task]), 0)
    assert not done.failed
    cache.put(task.key, done.results[task.key])
    result = recordings_of(cache, {}, G10.parent)
    assert result.managed == (replace(vit["InputPF"], name=name),)


def test_a_file_of_another_run_is_refused(tmp_path):
    shutil.copytree(recorded("vit-256"), tmp_path / "vit-256")
    times = tmp_path / "vit-256" / "cudnn256PF.txt"
    times.chmod(0o644)
    times.write_text("0000 5.0 ms\n")
    with pytest.raises(InputError, match=r"cudnn256PF\.txt: contains 1 kernels, but kernels\.config has 1489"):
        compare_managed("vit", tmp_path / "vit-256", "a100", "PF")


def test_tables_of_managed_runs():
    trials = (Trial("as it is", 10**6, 0.04, 0.05, 0.06), Trial("2 faults a batch", 9 * 10**6, 0.5, 1.0, 1.5))
    row = Managed(
        "net", "imported", "A100", "all cold", "um", "a100", 40, 10**5, 10**7, trials, {"whole": 10**5}, "So."
    )
    assert (row.ratio, row.nearest.label) == (0.1, "2 faults a batch")
    result = Recordings(managed=(row,))
    assert result.managed_rows() == [
        ("net, all cold, on a100", "10 ms", "1 ms", "0.1", "0.04 to 0.06"),
        ("  2 faults a batch", "", "9 ms", "0.9", "0.5 to 1.5"),
        ("  all data on the GPU (ideal)", "", "100 us", "", ""),
        ("  whole", "not measured", "100 us", "", ""),
    ]
    assert result.notes() == ["net, all cold: So. Nearest to the measured time: 2 faults a batch (0.9)."]
    assert result.frame()["recorded"].tolist() == [10**7]
    assert result.to_dict()["managed"][0]["ratio"] == 0.1
