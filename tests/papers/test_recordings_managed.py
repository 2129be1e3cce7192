"""Kernels under page faults next to `um`: small ones worked out by hand, and G10's recordings."""

from __future__ import annotations

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
from simgpu.papers.recordings_runs import FAULTS, compare_managed, each_alone, fault_files, shapes, stalls
from simgpu.papers.recordings_tasks import RecordingTask, recording_tasks, recordings_of
from simgpu.papers.tasks import Groups, run_group
from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo

pytestmark = pytest.mark.slow

G10 = Path(__file__).parents[3] / "shared" / "data" / "a100-g10"
LINK = 10**9
LATENCY = 45_000
PAGE = 64 * 2**10
NODE = NodeSpec("bench", GpuSpec("a GPU", 64 * 2**20), LinkSpec("a link", LINK, LINK))


def trace(*kernels: tuple[list[int], list[int], list[int]]) -> Trace:
    """Kernels of 1 us with operands of so many bytes: read alone, written alone, changed in place."""
    result, blocks = [], []
    for number, (read, written, changed) in enumerate(kernels):
        parts = [[f"k{number}{kind}{place}" for place, _ in enumerate(sizes)] for kind, sizes in
                 (("r", read), ("w", written), ("c", changed))]  # fmt: skip
        reads, writes, both = parts
        for name, size in zip([*reads, *writes, *both], [*read, *written, *changed], strict=True):
            blocks.append(Block(name, size, BlockKind.OTHER, persistent=name not in writes))
        result.append(Kernel(f"k{number}", "op", Phase.FORWARD, 1000, (*reads, *both), (*writes, *both)))
    info = TraceInfo("small", 1, "a GPU", "float32", Origin.IMPORTED, "a test")
    return Trace(info, tuple(result), tuple(blocks))


def waits(iteration: Trace, faults: str, *, results_on_host: bool = False, **parameters: int) -> list[int]:
    alone = each_alone(iteration, NODE.gpu.memory, faults, results_on_host=results_on_host)
    return stalls(iteration, alone, NODE, parameters)


def moved(size: int, batches: int = 1) -> int:
    return batches * LATENCY + size  # at 1 GB/s a byte takes a nanosecond


def test_with_all_data_in_host_memory_inputs_come_and_results_need_nothing():
    iteration = trace(([PAGE, 3 * PAGE], [5 * PAGE], []), ([], [PAGE], []), ([100], [], []))
    assert waits(iteration, "PF") == [moved(4 * PAGE), 0, moved(100)]


def test_results_in_host_memory_come_too():
    iteration = trace(([PAGE], [5 * PAGE], []), ([], [PAGE], []))
    assert waits(iteration, "PF", results_on_host=True) == [moved(6 * PAGE), moved(PAGE)]


def test_with_inputs_on_the_gpu_only_outputs_are_fetched():
    iteration = trace(([PAGE], [2 * PAGE], []), ([PAGE], [], [4 * PAGE]))
    assert waits(iteration, "InputPF") == [0, moved(4 * PAGE)]
    assert waits(iteration, "InputPF", results_on_host=True) == [moved(2 * PAGE), moved(4 * PAGE)]


def test_parameters_are_those_of_the_policy():
    iteration = trace(([8 * PAGE], [], []))
    assert waits(iteration, "PF", fault_batch=2) == [moved(8 * PAGE, batches=4)]
    assert waits(iteration, "PF", fault_latency_ns=0) == [8 * PAGE]
    assert waits(iteration, "PF", bandwidth=LINK // 2) == [LATENCY + 2 * 8 * PAGE]


def test_memory_released_by_a_kernel_is_free_for_the_next_without_evictions():
    """Operands of each kernel fill most of the memory, and the next kernel finds as much of it free."""
    most = NODE.gpu.memory * 3 // 4
    iteration = trace(([most], [], []), ([most - PAGE], [], []), ([most], [], []))
    batches = -(-most // PAGE // 256)
    assert waits(iteration, "PF") == [moved(most, batches), moved(most - PAGE, batches), moved(most, batches)]


operands = st.lists(st.integers(1, 20).map(lambda pages: pages * PAGE // 2), max_size=2)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(operands, operands, operands), min_size=1, max_size=5), st.sampled_from(list(FAULTS)))
def test_kernels_of_one_shape_stall_as_each_does_alone(kernels, faults):
    iteration = trace(*kernels, *kernels)
    together = waits(iteration, faults, results_on_host=True)
    assert together == [waits(trace(each), faults, results_on_host=True)[0] for each in kernels] * 2
    assert sorted(number for numbers in shapes(iteration).values() for number in numbers) == [*range(2 * len(kernels))]


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


def test_measured_times_are_the_files_own(vit):
    sums = {}
    for word, file in fault_files(recorded("vit-256")):
        sums[word] = sum(round(float(line.split()[1]) * 10**6) for line in file.read_text().splitlines())
    assert {faults: row.measured_ns for faults, row in vit.items()} == sums
    assert {row.ideal_ns for row in vit.values()} == {2_124_911_616}
    assert {(row.policy, row.node, row.budget) for row in vit.values()} == {("um", "a100", 40 * 2**30)}


def test_the_prediction_is_far_off_and_the_faults_of_a_batch_bring_it_near(vit):
    """Of the parameters that are tried alone, the faults that are served together move it."""
    for row in vit.values():
        assert row.ratio < 0.2
        ratios = {label: ns / row.measured_ns for label, ns in row.experiments.items()}
        at = {label.split(", ")[-1]: ratio for label, ratio in ratios.items()}
        assert at["32 faults a batch"] < at["8 faults a batch"] < at["4 faults a batch"] < at["2 faults a batch"]
        assert 0.75 < at["2 faults a batch"] < 1.25
        assert at["100 us for a batch of faults"] < 0.3 and at["pages of 2 MiB"] < 0.3
        assert max(row.nearest.predicted_ns / row.measured_ns, row.measured_ns / row.nearest.predicted_ns) < 1.25


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
