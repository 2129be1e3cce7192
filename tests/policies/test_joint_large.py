"""`joint` on a decoder of 8 billion weights with 128k tokens: a minute, 4 GB, and no slower than its rivals."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest

from simgpu.errors import OutOfMemoryError
from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from simgpu.trace.folder import load_trace
from tests.workloads.configured.published import PUBLISHED

RIVALS = ("capuchin", "superneurons", "vdnn", "checkpoint", "async_offload")


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "simgpu", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_a_decoder_with_128k_tokens_is_built_planned_and_simulated_in_a_minute_and_4_gb(tmp_path: Path) -> None:
    values = PUBLISHED["meta-llama/Llama-3.1-8B"].values | {"max_position_embeddings": 131072}
    (tmp_path / "config.json").write_text(json.dumps(values))
    trace = tmp_path / "trace"
    begun = monotonic()
    sizes = ("--batch", "1", "--length", "131072", "--loss", "chunked")
    run("zoo", "build", str(tmp_path / "config.json"), *sizes, "--gpu", "gb200", "-o", str(trace))
    document = json.loads(run("compare", "--trace", str(trace), "--node", "gb200", "--policy", "joint", "--json"))
    assert monotonic() - begun < 60
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 4_000_000
    joint = document["results"][0]["metrics"]["iteration_ns"]
    large, node = load_trace(trace), load_node("gb200")
    assert joint >= large.compute_ns
    for rival in RIVALS:
        try:
            other = simulate(large, node, rival).iteration_ns
        except OutOfMemoryError:
            continue
        assert joint <= other, rival
