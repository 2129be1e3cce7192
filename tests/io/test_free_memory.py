"""Recordings and traces that are read at once are refused beforehand if they do not fit in memory."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from simgpu.errors import InputError
from simgpu.importers import IMPORTERS, detect, import_trace
from simgpu.io import free_memory
from simgpu.io.free_memory import available_memory
from simgpu.trace.chain import chain
from simgpu.trace.folder import MEMORY_FACTOR, read_trace, write_trace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
RECORDINGS = ["titanv-dtr/densenet121-b84.log", "titanv-dtr/unet-b6.log", "h100-triosim/vgg13", "a100-g10/bert-256"]
TRACES = sorted(folder.parent for folder in (ROOT / "traces").glob("*/trace.yaml"))
MIB = 1 << 20


def recording(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"no {DATA / name}")
    return DATA / name


def peak_of(read: Callable[[], object]) -> int:
    """Peak memory of a second reading, counted by Python; the first one loads modules."""
    read()
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", RECORDINGS)
def test_memory_factor_of_a_recording_matches_its_peak(name: str) -> None:
    path = recording(name)
    importer = detect(path)
    size = sum(file.stat().st_size for file in importer.files(path))
    assert importer.memory_factor == pytest.approx(peak_of(lambda: import_trace(path)) / size, rel=0.3)


def table_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.suffix in (".csv", ".yaml"))


#: What the reader itself takes, some 20 KB, outweighs the rows of smaller ones.
LARGE = [folder for folder in TRACES if table_bytes(folder) > 10_000]
#: What the very first reading leaves behind is not the trace's.
TWICE = [LARGE[0], *LARGE]


@pytest.fixture(scope="module")
def peaks() -> dict[str, int]:
    """Peaks by folder, measured in a new process: strings that are already interned would take no memory."""
    call = f"import {__name__} as here; print(*(here.peak_of(lambda: here.read_trace(each)) for each in here.TWICE))"
    reported = subprocess.run([sys.executable, "-c", call], cwd=ROOT, capture_output=True, text=True, check=True)
    return dict(zip([folder.name for folder in TWICE], map(int, reported.stdout.split()), strict=True))


@pytest.mark.parametrize("folder", LARGE, ids=lambda folder: folder.name)
def test_memory_factor_of_a_trace_matches_its_peak(folder: Path, peaks: dict[str, int]) -> None:
    assert peaks[folder.name] / table_bytes(folder) == pytest.approx(MEMORY_FACTOR, rel=0.3)


@pytest.mark.parametrize("name", RECORDINGS)
def test_recording_larger_than_free_memory_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recording(name)
    importer = detect(path)
    needed = importer.memory_factor * sum(file.stat().st_size for file in importer.files(path))
    monkeypatch.setattr(free_memory, "available_memory", lambda: needed - 1)
    with pytest.raises(InputError, match=r"is larger than this machine's memory: reading its .* takes about .* free; "):
        import_trace(path)
    for enough in (needed, None):
        monkeypatch.setattr(free_memory, "available_memory", lambda enough=enough: enough)
        assert import_trace(path)[0].kernels


def test_formats_read_at_once_state_their_memory_factor() -> None:
    full = {importer.name: importer.memory_factor > 0 for importer in IMPORTERS if importer.read_at_once}
    assert full == {"TrioSim CSV": True, "DTR log": True, "G10 folder": True}


def test_files_that_are_not_read_do_not_count_against_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bert-256"
    shutil.copytree(recording("a100-g10/bert-256"), folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    for name in ("cudnn256PF.txt", "video.mp4"):
        (folder / name).unlink(missing_ok=True)
        sparse(folder / name, b"", 1 << 40)
    monkeypatch.setattr(free_memory, "available_memory", lambda: 10 * MIB)
    assert import_trace(folder)[0].kernels


def test_trace_larger_than_free_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "chain"
    write_trace(chain([5] * 40, [10] * 40, [100] * 40), folder)
    (folder / "README.md").write_text("not read, so not counted")
    size = sum(file.stat().st_size for file in folder.iterdir() if file.name != "README.md")
    monkeypatch.setattr(free_memory, "available_memory", lambda: size * MEMORY_FACTOR - 1)
    with pytest.raises(InputError) as caught:
        read_trace(folder)
    (problem,) = caught.value.problems
    assert problem.file == str(folder)
    kib = f"{size / 1024:.3f} KiB"
    assert problem.what.startswith(f"is larger than this machine's memory: reading its {kib} takes about ")
    assert problem.remedy == "give a shorter one, such as a single iteration, or a machine or a limit with more memory"
    monkeypatch.setattr(free_memory, "available_memory", lambda: size * MEMORY_FACTOR)
    assert len(read_trace(folder).kernels) == 80


def system(folder: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Replaces the system's tables."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(free_memory, "_PROC", folder / "proc")
    monkeypatch.setattr(free_memory, "_GROUP", folder / "group")
    monkeypatch.setattr(resource, "getrlimit", lambda limited: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


MACHINE = {"proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:  4000 kB\nHugePages_Total:  0\n"}
CONTAINER = {
    "group/memory.max": "2000000\n",
    "group/memory.current": "1900000\n",
    "group/memory.stat": "anon 700000\nfile 1200000\ninactive_file 900000\nactive_file 200000\n",
}


def test_available_memory_is_the_smaller_of_machine_and_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(tmp_path, monkeypatch, MACHINE)
    assert available_memory() == 4000 * 1024
    system(tmp_path, monkeypatch, CONTAINER)
    assert available_memory() == 2_000_000 - (1_900_000 - 900_000 - 200_000)
    system(tmp_path, monkeypatch, {"group/memory.max": "max\n"})
    assert available_memory() == 4000 * 1024


def test_process_limit_is_reduced_by_its_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = "Name:\tpython\nVmSize:\t  1000 kB\nVmData:\t  300 kB\nThreads:\t1\n"
    system(tmp_path, monkeypatch, MACHINE | {"proc/self/status": status})
    limits = {resource.RLIMIT_AS: 3000 * 1024, resource.RLIMIT_DATA: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda limited: (limits[limited], resource.RLIM_INFINITY))
    assert available_memory() == 2000 * 1024
    limits[resource.RLIMIT_DATA] = 1000 * 1024
    assert available_memory() == 700 * 1024
    limits[resource.RLIMIT_AS] = 900 * 1024
    assert available_memory() == 0


def test_available_memory_is_none_if_the_system_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system(tmp_path, monkeypatch, {})
    assert available_memory() is None


def sparse(path: Path, begins: bytes, size: int) -> Path:
    """A sparse file that takes no space on the disk."""
    path.write_bytes(begins)
    with path.open("r+b") as file:
        file.truncate(size)
    return path


@pytest.mark.parametrize("limited", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_memory_limit_set_in_the_shell_is_respected(limited: str, tmp_path: Path) -> None:
    log = sparse(tmp_path / "net-b4.log", b'{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}\n', 200 * MIB)
    code = f"""
import resource, sys
resource.setrlimit(resource.{limited}, (2 << 30, 2 << 30))
from simgpu.cli import main
main(["trace", "import", sys.argv[1], "-o", sys.argv[2]], prog_name="simgpu")
"""
    command = [sys.executable, "-c", code, str(log), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    begins = f"Error: {log}: is larger than this machine's memory: reading its 200 MiB takes about 2.734 GiB, with "
    assert done.stderr.startswith(begins), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
