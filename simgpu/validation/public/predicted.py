"""Predictions of the covered rows, and their errors.

The stored ones were made with default settings; nothing is fitted. `predict` makes one again, which needs PyTorch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from simgpu.errors import MissingExtraError
from simgpu.io.input_files import read_json
from simgpu.validation.public.rows import PublishedRow, published_rows
from simgpu.validation.public.selection import DIVIDED, Subject, reasons

_FILE = Path(__file__).with_name("predictions.json")


@dataclass(frozen=True, slots=True)
class Prediction:
    """Peaks that simgpu predicts, in bytes; None where the row has none of that kind.

    above_start: allocated, above what is there when the step begins. cause: why it is off, where that is known.
    """

    allocated: int | None = None
    reserved: int | None = None
    above_start: int | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class ComparedPeak:
    """A published peak of one kind, None for a row that ran out of memory, and the predicted one, in bytes.

    capacity: of the device, where the verdict is compared.
    """

    row: PublishedRow
    kind: str
    published: int | None
    predicted: int
    capacity: int | None
    cause: str

    @property
    def error(self) -> float | None:
        """The relative error; None for a row that ran out of memory."""
        return None if self.published is None else self.predicted / self.published - 1

    @property
    def is_right(self) -> bool:
        """Whether the verdict, fits or OOM, is that of the row; True where no device is named."""
        return self.capacity is None or (self.predicted > self.capacity) == self.row.oom


def stored_predictions() -> Mapping[str, Prediction]:
    """The shipped predictions, by the id of the row."""
    return {name: Prediction(**given) for name, given in read_json(_FILE)["predictions"].items()}


def covered_rows() -> list[PublishedRow]:
    """The rows whose memory is predicted."""
    return [row for row in published_rows() if not reasons(row, Subject.MEMORY)]


def predict(row: PublishedRow) -> Prediction:
    """The prediction of a covered row. Raises `MissingExtraError` without PyTorch, where it is needed."""
    if row.project in DIVIDED:
        from simgpu.validation.public.simumax_rows import peaks_of_job

        return Prediction(*peaks_of_job(row))
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("predicting published rows", "torch", "record")
    from simgpu.validation.public.ao_rows import ao_loop
    from simgpu.validation.public.axolotl_rows import peak_above_start
    from simgpu.validation.public.bert_rows import bert_loop
    from simgpu.validation.public.cs336_rows import cs336_loop
    from simgpu.validation.public.litgpt_rows import litgpt_loop
    from simgpu.validation.public.loop import peaks_of
    from simgpu.validation.public.prime_rl_rows import policy_loop
    from simgpu.validation.public.prime_rows import prime_loop
    from simgpu.validation.public.titan_experts import experts_loop

    if row.project == "axolotl":
        return Prediction(above_start=peak_above_start(row, _node_of(row)))
    loops = {
        "transformers": bert_loop,
        "litgpt": litgpt_loop,
        "assignment2-systems": cs336_loop,
        "ao": ao_loop,
        "torchtitan": experts_loop,
        "prime-rl": policy_loop if "policy-gradient loss" in row.uses else prime_loop,
    }
    return Prediction(*peaks_of(loops[row.project](row), _node_of(row)))


def _node_of(row: PublishedRow) -> str:
    """The node whose GPU decides which operators run; an A100 where none is named."""
    return row.node or "a100"


def compared(rows: Iterable[PublishedRow], predictions: Mapping[str, Prediction]) -> list[ComparedPeak]:
    """Each published peak of these rows with the predicted one."""
    from simgpu.hardware.nodes import load_node

    found = []
    for row in rows:
        made = predictions[row.id]
        for kind, published in row.peaks.items() or [("reserved", None)]:
            capacity = load_node(row.node).gpu.memory if row.node and kind == "reserved" else None
            found.append(ComparedPeak(row, kind, published, _predicted(row, made, kind), capacity, made.cause))
    return found


def _predicted(row: PublishedRow, made: Prediction, kind: str) -> int:
    device = None if made.reserved is None else made.reserved + (row.context or 0)
    of_kind = {
        "allocated": made.allocated,
        "active": made.allocated,  # besides, blocks that another stream still uses; the followed loops have one stream
        "reserved": made.reserved,
        "device": device,
        "allocated delta": made.above_start,
    }
    peak = of_kind[kind]
    assert peak is not None, f"{row.id} has no predicted peak of the kind {kind!r}"
    return peak


def median_error(peaks: Iterable[ComparedPeak]) -> float | None:
    """The median of the absolute errors; None without any."""
    errors = [abs(error) for peak in peaks if (error := peak.error) is not None]
    return median(errors) if errors else None
