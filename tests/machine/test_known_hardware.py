"""What the descriptions of hardware contain is known to both machines and to the planners, or refused by them."""

from __future__ import annotations

from dataclasses import fields

import pytest

from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.spec import HostSpec, LinkSpec, MemoryLink, MemorySpec, SwitchSpec

KNOWN: dict[type, set[str]] = {
    LinkSpec: {"kind", "d2h_bandwidth", "h2d_bandwidth", "latency_ns", "duplex"},
    MemoryLink: {"ends", "kind", "bandwidths", "latency_ns", "duplex", "copy_engines", "over_gpu_link"},
    MemorySpec: {"name", "kind", "capacity", "alignment", "allocator", "endurance"},
    SwitchSpec: {"gpus", "d2h_bandwidth", "h2d_bandwidth", "duplex", "links"},
    HostSpec: {
        *("pinned_memory", "memory", "cores", "codec_bandwidth", "accumulate_bandwidth", "accumulate_limit"),
        *("memory_bandwidth", "pageable_bandwidth", "launch_ns", "waits_for_copies", "processors"),
    },
    CdmaSpec: {"codec", "read_bandwidth", "buffer", "latency_ns", "kernel_bandwidth", "throttle", "nominal_link"},
}


@pytest.mark.parametrize("spec", KNOWN, ids=lambda spec: spec.__name__)
def test_every_field_is_known_to_both_machines_and_to_the_planners(spec: type) -> None:
    """A new field fails here. Let `why_not_compiled` in `machine/run.py` and `why_not` in `planning/tables.py` refuse
    it, or teach it to the compiled machine and the planners and draw it in `tests/semantics/random_traces.py`; then
    list it."""
    assert {field.name for field in fields(spec)} == KNOWN[spec]  # type: ignore[arg-type]
