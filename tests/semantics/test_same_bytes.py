"""The same seed gives the same bytes in any process, with any seed of Python's hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hashlib, json, sys, tempfile
from dataclasses import replace
from pathlib import Path
from simgpu.simulation.run import simulate
from simgpu.timeline.export import write_csv, write_memory_csv
from simgpu.timeline.perfetto import write_perfetto
from simgpu.trace.chain import chain
from simgpu.trace.model import AlgorithmChoice
from tests.semantics.hand_made import block, held, kernel, node, trace
from tests.semantics.networks import network, several

net = chain([5, 7, 9, 4], [10, 14, 18, 3], [100, 200, 300, 70])
choices = tuple(AlgorithmChoice(f"F{n}", name, ns, size) for n in (1, 2, 3) for name, ns, size in
                (("slow", 20, 0), ("fast", 4, 150), ("even", 9, 60)))
net = replace(net, algorithms=choices)
forked = trace(
    [kernel(f"k{n}", 3 + n, "w", f"a{n}", stream=n % 3) for n in range(9)],
    [held("w", 5), *(block(f"a{n}", 10 * n) for n in range(9))],
)
four = several(4, base=node(1000, engines=1, latency=3))
four = replace(four, gpu=replace(four.gpu, dram_bandwidth=10**9), host=replace(four.host, accumulate_bandwidth=10**9))
for traced, policy, parameters, more in (
    (net, "vdnn", {"mode": "all"}, {}), (net, "vdnn", {"mode": "dynamic"}, {}), (net, "none", {}, {}),
    (forked, "ideal", {}, {}), (network([30, 70, 50]), "vdnn", {}, {"gpus": 4}),
    (network([30, 70, 50]), "none", {}, {"gpus": 4, "exchange": "gather"}),
):
    for pool in ("counting", "addressed"):
        result = simulate(traced, four, policy, parameters=parameters, pool=pool, seed=7, **more)
        with tempfile.TemporaryDirectory() as folder:
            for name, write in (("spans.csv", write_csv), ("memory.csv", write_memory_csv), ("t.json", write_perfetto)):
                write(result.timeline, Path(folder) / name)
                print(policy, pool, name, hashlib.sha256((Path(folder) / name).read_bytes()).hexdigest())
        print(json.dumps(result.to_dict(), sort_keys=False))
        print(result)
"""


def output_with(hash_seed: str) -> bytes:
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=root, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.slow
def test_two_processes_write_the_same_bytes():
    first = output_with("1")
    assert first.count(b"spans.csv") == 12
    assert first == output_with("2")
