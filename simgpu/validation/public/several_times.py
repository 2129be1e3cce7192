"""Slowdowns of several GPUs, each predicted from one GPU's step; with what GPUs exchange where they share layers.

The stored predictions were made with default settings; nothing is fitted. `predict_one_gpu` makes one again, which
needs PyTorch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from simgpu.errors import MissingExtraError
from simgpu.io.input_files import read_json
from simgpu.validation.public.rows import PublishedRow, published_rows
from simgpu.validation.public.selection import DIVIDED, parts_of
from simgpu.validation.public.several import slowdowns_of_several
from simgpu.validation.public.times import PredictedTime, Slowdown

_FILE = Path(__file__).with_name("several.json")


def stored_times_of_several() -> Mapping[str, PredictedTime]:
    """The shipped predictions of one GPU's forward and backward, by the id of the row."""
    return {name: PredictedTime(**given) for name, given in read_json(_FILE)["predictions"].items()}


def rows_of_several() -> list[PublishedRow]:
    """The rows whose one GPU is predicted: covered ones and their baselines.

    >>> [row.id for row in rows_of_several()[:5]]
    ['t-001', 't-002', 't-003', 't-008', 't-009']
    """
    rows = published_rows()
    covered = [(name, base.id) for name, (base, against) in slowdowns_of_several(rows).items() if base and not against]
    needed = {name for both in covered for name in both}
    return [row for row in rows if row.id in needed]


def predict_one_gpu(row: PublishedRow) -> PredictedTime:
    """The prediction of a covered row or its baseline. Raises `MissingExtraError` without PyTorch, where needed."""
    if row.project in DIVIDED:
        from simgpu.validation.public.simumax_rows import time_of_job

        return PredictedTime(*time_of_job(row))
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("predicting published rows", "torch", "record")
    from simgpu.validation.public.mpt_rows import timed_mpt_loop
    from simgpu.validation.public.prime_rl_rows import policy_time
    from simgpu.validation.public.timed_loop import time_of
    from simgpu.validation.public.titan_rows import time_of_split, timed_titan_loop

    if parts_of(row) > 1:
        return PredictedTime(*time_of_split(row))
    if row.project == "prime-rl":
        return PredictedTime(*policy_time(row))
    assert row.node is not None
    loop, runs = timed_mpt_loop(row) if row.project == "llm-foundry" else timed_titan_loop(row)
    return PredictedTime(*time_of(loop, row.node, runs))


def compared_slowdowns(predictions: Mapping[str, PredictedTime]) -> list[Slowdown]:
    """The slowdown of each covered row, published and predicted.

    >>> found = compared_slowdowns(stored_times_of_several())
    >>> [(each.row.id, each.baseline.id) for each in found[:3]]
    [('t-002', 't-001'), ('t-003', 't-001'), ('t-009', 't-008')]
    """
    rows = {row.id: row for row in published_rows()}
    found = []
    for name, (baseline, against) in slowdowns_of_several(rows.values()).items():
        if baseline is None or against:
            continue
        row, one, other = rows[name], rows[name].sample_ns, baseline.sample_ns
        assert one is not None and other is not None
        predicted = predictions[name].sample_ns / predictions[baseline.id].sample_ns
        found.append(Slowdown(row, baseline, one / other, predicted))
    return found
