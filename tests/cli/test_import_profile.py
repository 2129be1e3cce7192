"""``simgpu trace import`` on PyTorch profiles: what it reports, and how it joins two files."""

from __future__ import annotations

from simgpu.trace.folder import read_trace
from tests.cli.cli_helpers import simgpu
from tests.importers.kineto_files import small_run


def test_a_profile_and_its_execution_trace_are_joined(tmp_path) -> None:
    profile, recorded = small_run()
    profile.write(tmp_path / "net.json.gz")
    recorded.write(tmp_path / "graph.json")
    done = simgpu(
        "trace",
        "import",
        tmp_path / "net.json.gz",
        "--execution-trace",
        tmp_path / "graph.json",
        "-o",
        tmp_path / "one",
    )
    assert done.exit_code == 0
    assert "a PyTorch profile joined with an execution trace" in " ".join(done.stdout.split())
    assert simgpu("trace", "import", tmp_path, "-o", tmp_path / "two").exit_code == 0
    assert read_trace(tmp_path / "one") == read_trace(tmp_path / "two")
    assert simgpu("trace", "check", tmp_path / "one").exit_code == 0


def test_a_profile_without_an_execution_trace_prints_a_note(tmp_path) -> None:
    path = small_run(with_memory=False)[0].write(tmp_path / "net.json")
    done = simgpu("trace", "import", path, "-o", tmp_path / "trace")
    assert done.exit_code == 0
    assert "a PyTorch profile " in " ".join([*done.stdout.split(), ""])
    shown = " ".join(simgpu("trace", "show", tmp_path / "trace").stdout.split())
    assert "no blocks, and memory policies cannot be evaluated" in shown


def test_an_execution_trace_alone_is_refused(tmp_path) -> None:
    done = simgpu("trace", "import", small_run()[1].write(tmp_path / "graph.json"), "-o", tmp_path / "trace")
    assert done.exit_code == 2
    assert "is an execution trace, which has no times" in done.stderr
    assert not (tmp_path / "trace").exists()


def test_a_batch_that_contradicts_the_shapes_is_refused(tmp_path) -> None:
    path = small_run()[0].write(tmp_path / "net.json")
    done = simgpu("trace", "import", path, "-o", tmp_path / "trace", "--batch", 16)
    assert done.exit_code == 2
    message = " ".join(done.stderr.split())
    assert "was recorded with batch 8, as its shapes show, not with batch 16; leave --batch out" in message
    assert "correct the batch in the written trace.yaml" in message
    assert not (tmp_path / "trace").exists()
    assert simgpu("trace", "import", path, "-o", tmp_path / "trace", "--batch", 8).exit_code == 0
    assert read_trace(tmp_path / "trace").info.batch == 8


def test_the_batch_of_an_imported_trace_can_be_corrected_by_hand(tmp_path) -> None:
    trace = tmp_path / "trace"
    assert simgpu("trace", "import", small_run()[0].write(tmp_path / "net.json"), "-o", trace).exit_code == 0
    text = (trace / "trace.yaml").read_text()
    assert "batch: 8" in text
    (trace / "trace.yaml").write_text(text.replace("batch: 8", "batch: 16"))
    assert simgpu("trace", "check", trace).exit_code == 0
    assert read_trace(trace).info.batch == 16
