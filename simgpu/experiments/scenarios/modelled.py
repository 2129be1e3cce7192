"""A trace that a file has modelled in place: a network of the zoo, at a batch size or at several, on a GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, no_info_plain_validator_function

from simgpu.compression.codecs.entry_patterns import with_sparse_entries
from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import GpuSpec
from simgpu.io.schema import FileModel, SizeOrZero
from simgpu.trace.model import Trace
from simgpu.workloads.catalogue import build
from simgpu.workloads.compressibility.generator import with_compressibility
from simgpu.workloads.modelled import trace_name, trace_of
from simgpu.workloads.network import Network
from simgpu.workloads.sparsity.generator import with_sparsity
from simgpu.workloads.timemodel.model import WORKSPACE_LIMIT

#: What the modelling calls a thing where the file has another key for it.
_KEYS = (
    (re.compile(r"network .*, variant (.*)"), r"variant.\1"),
    (re.compile(r"network .*, input"), "input"),
    (re.compile(r"network .*"), "variant"),
    (re.compile(r"network"), "zoo"),
)


def _switch_or_name(value: object) -> object:
    if isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    raise ValueError(f"{value!r} is neither true nor false, nor a profile's name: write true")


class _Modelling(FileModel):
    """A network of the zoo and how it is modelled, at whatever batch."""

    zoo: str = Field(min_length=1, description="a network's name, as simgpu zoo list has it")
    gpu: str | None = Field(
        default=None, min_length=1, description="the node whose GPU it is modelled for; without: the file's own node"
    )
    input: str | None = Field(default=None, min_length=1, description="what it takes; without: its usual input")
    framework: Literal["pytorch", "pytorch-1.5", "cudnn", "fused"] = Field(
        default="pytorch", description="whose habits with memory"
    )
    optimizer: Literal["sgd", "plain-sgd", "adam"] = Field(default="sgd", description="what updates the weights")
    epochs: int | None = Field(
        default=None, ge=1, le=10_000, description="models the sparsity of its feature maps over so many epochs"
    )
    compressibility: Annotated[bool | str, BeforeValidator(_switch_or_name)] = Field(
        default=False, description="models how compressible its memory is, entry by entry; true, or a profile's name"
    )
    workspace_limit: SizeOrZero = Field(
        default=WORKSPACE_LIMIT, description="convolution algorithms that need more workspace are left out"
    )
    variant: dict[str, Any] = Field(default={}, description="its variants, by name")

    def network(self) -> Network:
        """The network by its published description; `InputError` names keys of the file."""
        try:
            return build(self.zoo, self.input, **self.variant)
        except InputError as error:
            raise InputError(map(_at_key, error.problems)) from None

    def at(self, batch: int, gpu: GpuSpec, gpu_name: str) -> Trace:
        """The trace at a batch, called as ``simgpu zoo build`` would call its folder.

        gpu_name: of the node whose GPU it is. `InputError` names keys of the file.
        """
        network = self.network()
        try:
            built = trace_of(
                network,
                batch=batch,
                gpu=gpu,
                optimizer=self.optimizer,
                workspace_limit=self.workspace_limit,
                framework=self.framework,
            )
        except InputError as error:
            raise InputError(map(_at_key, error.problems)) from None
        named = replace(built, name=trace_name(self.zoo, self.input, batch, gpu_name))
        if self.epochs is not None:
            with _problems_at("epochs"):
                named = with_sparsity(named, self.epochs)
        if self.compressibility:
            profile = self.compressibility if isinstance(self.compressibility, str) else None
            with _problems_at("compressibility"):
                named = with_compressibility(named, profile)
            if profile is None and named.sparsity:
                named = with_sparse_entries(named)
        return named


@contextmanager
def _problems_at(key: str) -> Iterator[None]:
    """Tells problems of the modelling at a key of the file."""
    try:
        yield
    except InputError as error:
        raise InputError(replace(each, file="", place=key) for each in error.problems) from None


class ModelledTrace(_Modelling):
    """One training iteration of a network of the zoo; the words are those of ``simgpu zoo build``."""

    batch: int = Field(ge=1, description="samples in the iteration")

    def trace(self, gpu: GpuSpec, gpu_name: str) -> Trace:
        """The trace, as `at` gives it."""
        return self.at(self.batch, gpu, gpu_name)


def _different(batches: list[int]) -> list[int]:
    if twice := [batch for batch, times in Counter(batches).items() if times > 1]:
        raise ValueError(f"{', '.join(map(str, twice))} stands there twice: give each batch once")
    return batches


Batches = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1), AfterValidator(_different)]


class ModelledBatches(_Modelling):
    """A network of the zoo at several batches, modelled anew at each."""

    batches: Batches = Field(description="a sweep: a trace for each of these batches, called '<label> <batch>'")


class TraceBatches(FileModel):
    """A trace at several batches, as `simgpu.trace.model.Trace.at_batch` derives it."""

    trace: str = Field(min_length=1, description="a shipped trace, or a folder as seen from this file")
    batches: Batches = Field(description="a sweep: the trace at each of these batches, called '<label> <batch>'")


def _at_key(problem: Problem) -> Problem:
    """A problem of the modelling at the key of the file that it is about."""
    if problem.file:
        return problem
    for pattern, key in _KEYS:
        if (result := pattern.fullmatch(problem.place)) is not None:
            return replace(problem, place=result.expand(key))
    return problem


class TraceEntry:
    """Metadata of a trace in a file: a name or folder, or the mapping of a model, which is checked apart."""

    models: ClassVar[tuple[type[FileModel], ...]] = (ModelledTrace,)

    @staticmethod
    def read(value: object) -> str | Mapping[str, Any]:
        """The entry; `ValueError` says how to write one."""
        if isinstance(value, dict) or (isinstance(value, str) and value):
            return value
        what = "is empty" if value == "" else "is not a text, nor a mapping"
        raise ValueError(f"{value!r} {what}: write a trace's name or folder, or '{{zoo: vgg16, batch: 128}}'")

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        name = {"type": "string", "minLength": 1, "description": "a shipped trace, or a folder as seen from this file"}
        return {"anyOf": [name, *(model.model_json_schema(by_alias=True, mode="validation") for model in self.models)]}


class SweptTraceEntry(TraceEntry):
    """Metadata of a trace, or of a sweep of batches."""

    models = (ModelledTrace, ModelledBatches, TraceBatches)


#: A trace as a file names it or has it modelled.
WrittenTrace = Annotated[str | Mapping[str, Any], TraceEntry()]
#: The same, or a sweep of batches.
WrittenSweep = Annotated[str | Mapping[str, Any], SweptTraceEntry()]
