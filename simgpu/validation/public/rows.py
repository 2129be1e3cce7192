"""The published measurements that ship with simgpu; README.md says what the fields of a row are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simgpu.io.input_files import read_json
from simgpu.units import parse_bytes, parse_time

_FILE = Path(__file__).with_name("rows.json")


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A training step as its source describes it, and what simgpu reads in that.

    source, model, gpu, options, memory, kind, time: as published; kind says what the memory is. gpus: None where the
    source does not say it. parallelism, batch, length: as published. group: rows that differ in options only.

    config: the name of published sizes; node: a node of that GPU; sequences, tokens: samples of one forward pass and
    the length of each, 0 for images; micro_batches: forward passes of `step_ns`; uses: the options in words of
    `simgpu.validation.public.selection`. All of these are None or empty where the source does not say it, and for most
    rows of several GPUs (`simgpu.validation.public.several` says for which they are read). peaks: bytes by kind; oom:
    memory ran out.
    step_ns: of a training step; tokens_per_second, samples_per_second: as published, of one GPU. context: bytes of the
    CUDA context, where the source states them.
    """

    id: str
    source: str
    model: str
    gpu: str
    gpus: int | None
    precision: str
    options: str
    memory: str
    kind: str
    time: str
    group: str | None
    parallelism: str = ""
    batch: str = ""
    length: str = ""
    config: str | None = None
    node: str | None = None
    sequences: int | None = None
    tokens: int | None = None
    micro_batches: int = 1
    uses: tuple[str, ...] = ()
    peaks: Mapping[str, int] = field(default_factory=dict)
    oom: bool = False
    step_ns: int | None = None
    tokens_per_second: float | None = None
    samples_per_second: float | None = None
    context: int | None = None

    @property
    def project(self) -> str:
        """The project whose document or thread has the row, without the owner of the repository.

        >>> published_rows()[0].project
        'torchtitan'
        """
        return self.source.split()[0].rpartition("/")[2]

    @property
    def has_time(self) -> bool:
        """Whether the time or the rate of a training step is published."""
        return any(each is not None for each in (self.step_ns, self.tokens_per_second, self.samples_per_second))

    @property
    def sample_ns(self) -> int | None:
        """The measured time of a sample, a sequence or an image, in nanoseconds; None if it is not published.

        By the published rate, or else the time of a step and its samples.

        >>> [row.sample_ns for row in published_rows() if row.id == "t-148"]
        [112866817]
        """
        if self.samples_per_second is not None:
            return round(1e9 / self.samples_per_second)
        if self.tokens_per_second is not None and self.tokens:
            return round(self.tokens * 1e9 / self.tokens_per_second)
        samples = (self.sequences or 0) * self.micro_batches
        return None if self.step_ns is None or not samples else round(self.step_ns / samples)


def published_rows() -> list[PublishedRow]:
    """All rows, in the order of the file.

    >>> len(published_rows()), published_rows()[0].peaks, published_rows()[0].memory
    (371, {}, '82.4 GiB')
    """
    return [_row(row) for row in read_json(_FILE)["rows"]]


def _row(row: Mapping[str, Any]) -> PublishedRow:
    peaks, measured = dict(row.get("peaks", {})), row.get("measured", {})
    oom = bool(peaks.pop("oom", False))
    step = measured.get("step")
    given: dict[str, Any] = {name: row[name] for name in ("id", "source", "model", "gpu", "gpus")}
    given |= {name: row.get(name, "") for name in ("precision", "options", "memory", "kind", "time")}
    given |= {name: str(row.get(name, "")) for name in ("parallelism", "batch", "length")}
    given |= {name: row.get(name) for name in ("group", "config", "node", "sequences", "tokens")}
    return PublishedRow(
        **given,
        micro_batches=row.get("micro_batches", 1),
        uses=tuple(row.get("uses", ())),
        peaks={kind: parse_bytes(size) for kind, size in peaks.items()},
        oom=oom,
        step_ns=None if step is None else parse_time(step),
        tokens_per_second=measured.get("tokens_per_second"),
        samples_per_second=measured.get("samples_per_second"),
        context=None if "context" not in row else parse_bytes(row["context"]),
    )
