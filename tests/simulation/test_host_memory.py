"""What a policy puts on the host is compared with the host's memory, which no run waits for."""

from __future__ import annotations

import pytest

from simgpu.hardware.nodes import load_node
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain


@pytest.mark.parametrize(("memory", "notes"), [("99 B", 1), ("100 B", 0)])
def test_more_than_the_host_has_is_noted(memory: str, notes: int) -> None:
    result = simulate(chain([5, 7], [10, 14], [100, 200]), load_node("laptop-2gb", {"host.memory": memory}), "vdnn")
    assert result.metrics.shared_peak_bytes == {"host": 100}
    found = [note for note in result.notes if note == "the host would need 100 B, more than its 99 B of memory"]
    assert len(found) == notes
