"""The networks of HOME's table 2 at chosen batches, as its studies model them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simgpu.experiments.scenarios.load_study import load_study

if TYPE_CHECKING:
    from simgpu.hardware.spec import NodeSpec
    from simgpu.trace.model import Trace

#: In the order of the table.
NETWORKS = ("MobileNet", "Plain20", "SqueezeNet", "VGG16", "ResNet", "InceptionV3")


@dataclass(frozen=True)
class Modelled:
    """A network at some batches, ascending, and the node that it is modelled for: with the 11 GB of the paper."""

    name: str
    traces: tuple[Trace, ...]
    node: NodeSpec


def swept(changes: Mapping[str, object] | None = None) -> Iterator[Modelled]:
    """Every network at the batches of the study home-6, of which the last is the one that HOME reaches in table 2."""
    study = load_study("home-6", dict(changes or {}))
    for name in NETWORKS:
        yield Modelled(name, tuple(study.traces[each] for each in study.networks[name]), study.runs[0].node)


def plain(changes: Mapping[str, object] | None = None) -> Iterator[Modelled]:
    """Every network at the batch that PyTorch reaches in table 2."""
    study = load_study("home-table-2", dict(changes or {}))
    for name in NETWORKS:
        yield Modelled(name, (study.traces[name],), study.runs[0].node)
