"""The final output of ``simgpu trace import``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simgpu.cli.importing import policies_that_run
from simgpu.errors import InputError
from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import Origin, Trace
from tests.cli.cli_helpers import simgpu
from tests.importers.test_triosim import written

_CHAIN = chain([5, 7, 9], [10, 14, 15], [100, 200, 300])
COMPLETE = replace(_CHAIN, info=replace(_CHAIN.info, origin=Origin.IMPORTED))
LIFETIMES = replace(COMPLETE, kernels=tuple(replace(kernel, reads=()) for kernel in COMPLETE.kernels))
NO_TENSORS = replace(
    COMPLETE, blocks=(), kernels=tuple(replace(kernel, reads=(), writes=()) for kernel in COMPLETE.kernels)
)
STREAMS = replace(
    COMPLETE, kernels=tuple(replace(kernel, stream=number % 2) for number, kernel in enumerate(COMPLETE.kernels))
)


@pytest.mark.parametrize(
    ("trace", "message", "running"),
    [
        (COMPLETE, "all except those that use sparsity", {"ideal", "none", "vdnn"}),
        (LIFETIMES, "only ideal and none: the tensors that kernels read", {"ideal", "none"}),
        (NO_TENSORS, "only ideal: the recording has no tensors", {"ideal"}),
        (STREAMS, "only ideal and none: the kernels ran on 2 streams", {"ideal", "none"}),
    ],
)
def test_import_lists_exactly_the_policies_that_run(trace: Trace, message: str, running: set[str]) -> None:
    assert policies_that_run(trace).startswith(message)
    node = load_node("v100")
    result = set()
    for policy in ("ideal", "none", "vdnn", "cdma", "cswap", "vdnn++"):
        try:
            simulate(trace, node, policy, iterations=1)
        except InputError:
            continue
        result.add(policy)
    assert result == running


def test_an_import_prints_the_next_command_and_the_policies_that_run(tmp_path: Path) -> None:
    done = simgpu("trace", "import", written(tmp_path / "recording"), "-o", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    assert "policies  all except those that use sparsity" in done.stdout
    *_, where, how = done.stdout.splitlines()
    assert where == f"written to {tmp_path / 'out'}"
    assert how == f"to run it: simgpu run --trace {tmp_path / 'out'} --node NODE"
