"""`ImportOptions`: facts about a recording that the user supplies because the recording does not contain them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simgpu.errors import InputError
from simgpu.trace.model import NOT_RECORDED, Origin, TraceInfo


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The user's description of a recording; None uses the value in the recording.

    batch: samples per iteration.
    date: day of the recording, YYYY-MM-DD.
    execution_trace: execution trace file of the same run as the profile.
    iteration: number of the profile's iteration to import.
    snapshot: memory snapshot of the same run as the profile, or its folder of allocations; gpu: which one in it.
    """

    model: str | None = None
    batch: int | None = None
    device: str | None = None
    dtype: str | None = None
    date: str | None = None
    execution_trace: Path | None = None
    iteration: int | None = None
    snapshot: Path | None = None
    gpu: int | None = None

    def samples(self, source: Path, from_shapes: int | None) -> int | None:
        """Samples per iteration, from the user or the recorded shapes; None if neither is known.

        Raises `InputError` if they differ.

        >>> ImportOptions(batch=8).samples(Path("net.json"), None), ImportOptions().samples(Path("net.json"), 8)
        (8, 8)
        """
        if self.batch is not None and from_shapes is not None and self.batch != from_shapes:
            what = f"was recorded with batch {from_shapes}, as its shapes show, not with batch {self.batch}"
            remedy = (
                "leave --batch out; if the first dimension of this network's data is not its samples, correct the "
                "batch in the written trace.yaml"
            )
            raise InputError.single(source, "", what, remedy)
        return self.batch if self.batch is not None else from_shapes

    def info(self, source: Path, tool: str, model: str, batch: int | None, notes: str) -> TraceInfo:
        """Builds the description of a trace; the user's values take precedence over the recording's."""
        samples = self.batch if self.batch is not None else batch
        if samples is None:
            remedy = "pass the samples per iteration (--batch)"
            raise InputError.single(source, "", "the recording does not contain its batch size", remedy)
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
