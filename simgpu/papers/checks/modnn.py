"""moDNN's claims that no study tells of (Chen et al., TPDS 2019)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simgpu.papers.checks.modnn_allocator import allocator
from simgpu.papers.checks.modnn_cores import cores
from simgpu.papers.checks.modnn_memory import alone, batches, bound, figures, fits, vgg101, weights_offloaded
from simgpu.papers.checks.modnn_schedules import algorithms, defragmentation, prefetches
from simgpu.papers.checks.modnn_sub_batch import resnet34, sub_batch

CHECKS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "algorithms": algorithms,
    "allocator": allocator,
    "alone": alone,
    "batches": batches,
    "bound": bound,
    "cores": cores,
    "defragmentation": defragmentation,
    "figures": figures,
    "fits": fits,
    "prefetches": prefetches,
    "resnet34": resnet34,
    "sub_batch": sub_batch,
    "vgg101": vgg101,
    "weights_offloaded": weights_offloaded,
}
