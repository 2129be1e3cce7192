"""Loads and checks published.yaml: iteration times published by others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec
from simgpu.io.schema import Bandwidth, FileModel, Rate, Size, validate
from simgpu.io.yaml_files import read_yaml_mapping
from simgpu.units import parse_time
from simgpu.workloads.timemodel.algorithms import AlgorithmName
from simgpu.workloads.timemodel.model import Tf32

SCHEMA = "simgpu.published/1"
PUBLISHED = Path(__file__).with_name("published.yaml")

Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(ge=1)]
Measures = Literal["forward", "backward", "both", "iteration"]


class MeasuredGpu(FileModel):
    """A measured GPU without a node in ``configs/``."""

    name: Text
    architecture: Text
    memory: Size
    multiprocessors: Positive
    fp32_rate: Rate
    dram_bandwidth: Bandwidth
    tensor_rate: Rate | None = None
    source: Text

    def spec(self) -> GpuSpec:
        """The GPU description for the time model."""
        return GpuSpec(
            self.name,
            self.memory,
            dram_bandwidth=self.dram_bandwidth,
            fp32_rate=self.fp32_rate,
            tensor_rate=self.tensor_rate,
            architecture=self.architecture,
            multiprocessors=self.multiprocessors,
        )


class Source(FileModel):
    """A publication."""

    title: Text
    address: Text


class PublishedFigure(FileModel):
    """One published figure: the duration of a part of an iteration, or its samples per second."""

    gpu: Text
    network: Text
    variant: dict[str, bool | int | float | str] = Field(default_factory=dict)
    batch: Positive
    measures: Measures
    value: Text
    source: Text
    without: tuple[AlgorithmName, ...] = Field(default=(), strict=False)
    tf32: Tf32 = Field(default=Tf32.CONVOLUTIONS, strict=False)
    input_gradient: bool = Field(default=False, description="backward also computes the input's gradient")
    note: str = ""

    @property
    def duration_ns(self) -> int:
        """The duration of the measured iteration or part of it, ns.

        >>> words = {"gpu": "p100", "network": "vgg16", "batch": 64, "measures": "iteration", "source": "page"}
        >>> PublishedFigure(value="154 samples/s", **words).duration_ns
        415584416
        """
        number, _, unit = self.value.partition(" ")
        if unit == "samples/s":
            return round(self.batch * 1e9 / float(number))
        return parse_time(self.value)


class PublishedFile(FileModel):
    """The contents of published.yaml."""

    schema_: Literal["simgpu.published/1"] = Field(alias="schema")
    description: Text
    rule: Text
    fitted_networks: list[Text]
    gpus: dict[str, MeasuredGpu]
    sources: dict[str, Source]
    figures: list[PublishedFigure]

    def gpu(self, name: str) -> GpuSpec:
        """The GPU of a figure: one of `gpus`, or the GPU of the node with this name."""
        return self.gpus[name].spec() if name in self.gpus else _gpu_of_node(name)


@cache
def _gpu_of_node(name: str) -> GpuSpec:
    """The GPU of a node; cached, because a GPU has many figures."""
    return load_node(name).gpu


def load_published(path: Path = PUBLISHED) -> PublishedFile:
    """Returns the published figures. Raises `InputError` with every problem in the file.

    >>> len(load_published().figures) > 100
    True
    """
    document = read_yaml_mapping(path, SCHEMA)
    published = validate(PublishedFile, document.values, lambda place: (document.file, document.place(place)))
    problems = []
    for index, figure in enumerate(published.figures):
        place = document.place(f"figures[{index}]")
        if figure.source not in published.sources:
            problems.append(Problem(document.file, place, *_unknown("source", figure.source, published.sources)))
        try:
            _ = figure.duration_ns
        except ValueError:
            remedy = "write for example '36.9 ms' or '219 samples/s'"
            problems.append(Problem(document.file, place, f"{figure.value!r} is not a duration or rate", remedy))
    if problems:
        raise InputError(problems)
    return published


def published_networks() -> frozenset[str]:
    """The networks with a published time.

    >>> "resnet50" in published_networks(), "mobilenet" in published_networks()
    (True, False)
    """
    return frozenset(figure.network for figure in load_published().figures)


def _unknown(what: str, word: str, known: Mapping[str, object]) -> tuple[str, str]:
    return f"{word!r} is not a {what} of this file", did_you_mean(word, known)
