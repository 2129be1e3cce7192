"""A study without its traces: which rows and columns it has, found in a moment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from simgpu.experiments.scenarios.catalogue import read_file
from simgpu.experiments.scenarios.load_study import StudyReading
from simgpu.experiments.scenarios.model import DataParallelSection
from simgpu.experiments.scenarios.study import STUDY_SCHEMA, Study
from simgpu.graph.replicate import Exchange
from simgpu.hardware.spec import NodeSpec
from simgpu.program.data_parallel import DataParallel
from simgpu.trace.model import NOT_RECORDED, Origin, Trace, TraceInfo


def outline_study(name_or_path: str | Path, overrides: Mapping[str, object] | None = None) -> Study:
    """The study that `load_study` gives, but with empty traces: labels, batches, runs and what is told of them.

    Its traces tell no origin, those named in place of modelled ones have batch 1, and budgets that follow from what a
    trace holds are 0. Raises what `load_study` raises of
    the file itself.

    >>> outline = outline_study("cswap-6a")
    >>> list(outline.traces)[:2], outline.traces["VGG16"].info.batch, outline.runs[0].label
    (['AlexNet', 'Plain20'], 2560, 'vDNN')
    """
    return _Outlining(read_file(name_or_path, STUDY_SCHEMA), dict(overrides or {})).study()


class _Outlining(StudyReading):
    """A study on its way in, of which no trace is read or modelled."""

    def trace(self, written: object, place: str, node: NodeSpec | None, node_name: object) -> Trace | None:
        batch = written.get("batch", 1) if isinstance(written, dict) else 1
        return _empty(batch) if isinstance(written, str | dict) else None

    def batches(self, written: Mapping[str, Any], place: str, node: NodeSpec | None, node_name: object) -> list[Trace]:
        return [_empty(batch) for batch in written.get("batches") or ()]

    def data_parallel(
        self, asked: DataParallelSection | None, place: str, node: NodeSpec | None, batches: Iterable[int]
    ) -> DataParallel | None:
        if asked is None or asked.gpus == 1:
            return None
        return DataParallel(asked.gpus, Exchange(asked.exchange), asked.cores)


def _empty(batch: int) -> Trace:
    info = TraceInfo(NOT_RECORDED, batch, NOT_RECORDED, NOT_RECORDED, Origin.MODELLED, NOT_RECORDED)
    return Trace(info, (), ())
