"""What the user may add to an imported recording that does not say it itself.

Does not live here: what a recording says, which its format knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simgpu.errors import InputError
from simgpu.trace.model import NOT_RECORDED, Origin, TraceInfo


@dataclass(frozen=True, slots=True)
class Told:
    """Description of a recording as the user knows it; None leaves it to the recording.

    batch: samples per iteration. date: day of the recording, YYYY-MM-DD.
    execution_trace: file with the tensors of a profile's run. iteration: which of a profile's iterations to take.
    """

    model: str | None = None
    batch: int | None = None
    device: str | None = None
    dtype: str | None = None
    date: str | None = None
    execution_trace: Path | None = None
    iteration: int | None = None

    def info(self, source: Path, tool: str, model: str, batch: int | None, notes: str) -> TraceInfo:
        """The description of a trace: what the user said first, then what the recording says."""
        samples = self.batch if self.batch is not None else batch
        if samples is None:
            remedy = "say how many samples an iteration has (--batch)"
            raise InputError.single(source, "", "the recording does not say its batch size", remedy)
        return TraceInfo(
            model=self.model or model,
            batch=samples,
            device=self.device or NOT_RECORDED,
            dtype=self.dtype or NOT_RECORDED,
            origin=Origin.IMPORTED,
            tool=tool,
            date=self.date or "",
            notes=notes,
        )
