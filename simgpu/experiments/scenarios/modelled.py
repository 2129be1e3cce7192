"""Trace entries of scenario and study files: a name, a zoo network to model, or a sweep of batches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, no_info_plain_validator_function

from simgpu.errors import InputError, Problem
from simgpu.experiments.scenarios.modelled_configuration import ModelledConfiguration
from simgpu.hardware.spec import GpuSpec
from simgpu.io.schema import FileModel, SizeOrZero
from simgpu.trace.model import Trace
from simgpu.workloads.timemodel.prices import WORKSPACE_LIMIT

if TYPE_CHECKING:
    from simgpu.workloads.network import Network

#: Places in problems of the modelling, and the file's key for each.
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
    """A network of the zoo and its modelling options, for any batch."""

    zoo: str = Field(min_length=1, description="a network's name, as in simgpu zoo list")
    gpu: str | None = Field(
        default=None, min_length=1, description="the node whose GPU it is modelled for; by default the file's node"
    )
    input: str | None = Field(default=None, min_length=1, description="its input; by default the usual one")
    framework: Literal["pytorch", "pytorch-1.5", "cudnn", "cudnn-joined", "fused"] = Field(
        default="pytorch", description="framework whose memory management is modelled"
    )
    optimizer: Literal["sgd", "plain-sgd", "adam", "adamw", "adamw-fused", "adamw-8bit"] = Field(
        default="sgd", description="optimizer of the weights"
    )
    epochs: int | None = Field(
        default=None, ge=1, le=10_000, description="number of epochs over which to model the sparsity of feature maps"
    )
    sparsity_profile: str | None = Field(
        default=None, min_length=1, description="profile of that sparsity; by default the network's own"
    )
    compressibility: Annotated[bool | str, BeforeValidator(_switch_or_name)] = Field(
        default=False, description="model the compressibility of each memory-entry: true, or a profile's name"
    )
    workspace_limit: SizeOrZero = Field(
        default=WORKSPACE_LIMIT, description="exclude convolution algorithms that need more workspace"
    )
    task_limit: SizeOrZero | None = Field(
        default=None, description="exclude those with which a convolution's inputs, result and workspace need more"
    )
    variant: dict[str, Any] = Field(default={}, description="its variants, by name")

    def network(self) -> Network:
        """The network of the zoo. An `InputError` names keys of the file."""
        from simgpu.workloads.catalogue import build

        try:
            return build(self.zoo, self.input, **self.variant)
        except InputError as error:
            raise InputError(map(_at_key, error.problems)) from None

    def at(self, batch: int, gpu: GpuSpec, gpu_name: str) -> Trace:
        """The trace at a batch, named like the folder that ``simgpu zoo build`` would write.

        gpu_name: name of the node of the GPU. An `InputError` names keys of the file.
        """
        from simgpu.workloads.modelled import trace_name, trace_of

        network = self.network()
        try:
            built = trace_of(
                network,
                batch=batch,
                gpu=gpu,
                optimizer=self.optimizer,
                workspace_limit=self.workspace_limit,
                task_limit=self.task_limit,
                framework=self.framework,
            )
        except InputError as error:
            raise InputError(map(_at_key, error.problems)) from None
        named = replace(built, name=trace_name(self.zoo, self.input, batch, gpu_name))
        if self.epochs is not None:
            from simgpu.workloads.sparsity.generator import with_sparsity

            with _problems_at("epochs"):
                named = with_sparsity(named, self.epochs, self.sparsity_profile)
        return self._with_entries(named) if self.compressibility else named

    def _with_entries(self, trace: Trace) -> Trace:
        """The trace with the compressibility of its memory-entries."""
        from simgpu.compression.codecs.entry_patterns import with_sparse_entries
        from simgpu.workloads.compressibility.generator import with_compressibility

        profile = self.compressibility if isinstance(self.compressibility, str) else None
        with _problems_at("compressibility"):
            trace = with_compressibility(trace, profile)
        return with_sparse_entries(trace) if profile is None and trace.sparsity else trace


@contextmanager
def _problems_at(key: str) -> Iterator[None]:
    """Report problems of the modelling at a key of the file."""
    try:
        yield
    except InputError as error:
        raise InputError(replace(each, file="", place=key) for each in error.problems) from None


class ModelledTrace(_Modelling):
    """One training iteration of a network of the zoo; the keys are those of ``simgpu zoo build``."""

    batch: int = Field(ge=1, description="samples in the iteration")

    def trace(self, gpu: GpuSpec, gpu_name: str) -> Trace:
        """The trace at this batch; see `at`."""
        return self.at(self.batch, gpu, gpu_name)


def _different(batches: list[int]) -> list[int]:
    if twice := [batch for batch, times in Counter(batches).items() if times > 1]:
        raise ValueError(f"{', '.join(map(str, twice))} is listed twice: give each batch once")
    return batches


Batches = Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1), AfterValidator(_different)]


class ModelledBatches(_Modelling):
    """A network of the zoo modelled at several batches."""

    batches: Batches = Field(description="a sweep: a trace for each of these batches, named '<label> <batch>'")


class TraceBatches(FileModel):
    """A trace at several batches, derived by `simgpu.trace.model.Trace.at_batch`."""

    trace: str = Field(min_length=1, description="a shipped trace, or a folder, relative to this file")
    batches: Batches = Field(description="a sweep: the trace at each of these batches, named '<label> <batch>'")


def _at_key(problem: Problem) -> Problem:
    """A problem of the modelling, placed at the key of the file that causes it."""
    if problem.file:
        return problem
    for pattern, key in _KEYS:
        if (result := pattern.fullmatch(problem.place)) is not None:
            return replace(problem, place=result.expand(key))
    return problem


class TraceEntry:
    """Pydantic metadata of a trace in a file: a name or folder, or a mapping, which is validated separately."""

    models: ClassVar[tuple[type[FileModel], ...]] = (ModelledTrace, ModelledConfiguration)

    @staticmethod
    def read(value: object) -> str | Mapping[str, Any]:
        """The entry. The `ValueError` for an invalid value shows how to write one."""
        if isinstance(value, dict) or (isinstance(value, str) and value):
            return value
        what = "is empty" if value == "" else "is neither a name nor a mapping"
        raise ValueError(f"{value!r} {what}: write a trace's name or folder, or '{{zoo: vgg16, batch: 128}}'")

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        name = {"type": "string", "minLength": 1, "description": "a shipped trace, or a folder, relative to this file"}
        return {"anyOf": [name, *(model.model_json_schema(by_alias=True, mode="validation") for model in self.models)]}


class SweptTraceEntry(TraceEntry):
    """Pydantic metadata of a trace or a sweep of batches."""

    models = (ModelledTrace, ModelledConfiguration, ModelledBatches, TraceBatches)


#: A trace in a file: a name, or a network to model.
WrittenTrace = Annotated[str | Mapping[str, Any], TraceEntry()]
#: A trace in a file, or a sweep of batches.
WrittenSweep = Annotated[str | Mapping[str, Any], SweptTraceEntry()]
