"""The model of a scenario file (`ScenarioFile`) and the loaded scenario (`Scenario`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, no_info_plain_validator_function

from simgpu.analysis.tables import facts_html, facts_text
from simgpu.errors import InputError
from simgpu.experiments.scenarios.modelled import WrittenTrace
from simgpu.experiments.scenarios.sweep_axes import SweepSection
from simgpu.hardware.spec import BuddyMode, LinkSpec
from simgpu.io.schema import Alignment, Budget, FileModel
from simgpu.machine.compiled_engine import Engine
from simgpu.memory.caching.settings import parse
from simgpu.policies.base import policy_label
from simgpu.policies.registry import make_policy, parse_policy
from simgpu.program.data_parallel import DataParallel
from simgpu.simulation.config import RunConfig
from simgpu.simulation.notes import allocator_text, kernel_times, other_memories_text
from simgpu.simulation.plain_peak import PeakPart, budget_text
from simgpu.units import format_bandwidth, format_bytes

if TYPE_CHECKING:
    from simgpu.hardware.spec import NodeSpec
    from simgpu.trace.model import Trace

SCHEMA = "simgpu.scenario/2"
Pool = Literal["counting", "addressed", "caching"]
TimelineFormat = Literal["csv", "parquet", "perfetto", "snapshot"]
PlotKind = Literal["timeline", "memory", "run", "power"]
ImageFormat = Literal["png", "svg", "pdf"]


def allocator_setting(value: object) -> object:
    """Settings of PyTorch's allocator as text, from a text or a block of options.

    >>> allocator_setting({"expandable_segments": True, "max_split_size_mb": 128})
    'expandable_segments:True,max_split_size_mb:128'
    """
    if isinstance(value, dict):
        value = ",".join(f"{name}:{setting}" for name, setting in value.items())
    if isinstance(value, str):
        try:
            parse(value)
        except InputError as error:
            raise ValueError("; ".join(f"{each.place}: {each.what}" for each in error.problems)) from None
    return value


class PolicyChoice(NamedTuple):
    """A policy's name and its non-default parameters."""

    name: str
    parameters: Mapping[str, object]


class PolicyEntry:
    """Pydantic metadata of a policy in a file: ``vdnn``, or with parameters ``vdnn: {mode: conv}`` or as in tables,
    ``vdnn(mode=conv)``."""

    @staticmethod
    def read(value: object) -> PolicyChoice:
        """The choice. The `ValueError` for an invalid value shows how to write one."""
        if isinstance(value, str) and "(" in value:
            try:
                value = parse_policy(value)
            except InputError as error:
                raise ValueError("; ".join(f"{each.place}: {each.what}" for each in error.problems)) from None
        match value:
            case str():
                return PolicyChoice(value, {})
            case dict() if len(value) == 1:
                ((name, parameters),) = value.items()
                if isinstance(name, str) and (parameters is None or isinstance(parameters, dict)):
                    return PolicyChoice(name, parameters or {})
        raise ValueError(f"{value!r} is not a policy: write a name, or 'name: {{parameter: value}}'")

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        from simgpu.policies.registry import describe, policy_names

        names = policy_names()
        with_parameters = {
            name: {
                "type": ["object", "null"],
                "properties": {
                    parameter.name: {"description": parameter.description} for parameter in describe(name).parameters
                },
                "additionalProperties": False,
            }
            for name in names
        }
        single = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": False}
        return {"anyOf": [{"enum": list(names)}, {**single, "properties": with_parameters}]}


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | dict) else value


class OutputsSection(FileModel):
    """The output files. Nothing is written without a folder, given here or on the command line."""

    folder: str | None = Field(default=None, min_length=1, description="relative to the current folder")
    timeline: list[TimelineFormat] = Field(default=["csv"], description="formats of each policy's timeline")
    plots: list[PlotKind] = Field(default=[], description="figures of each policy's run")
    image: ImageFormat = Field(default="png", description="format of the figures")


class DataParallelSection(FileModel):
    """Data-parallel training on several GPUs of the node, each with an equal share of the batch.

    They exchange gradients through host memory, as in moDNN; policies ddp and fsdp have NCCL's collectives.
    """

    gpus: int = Field(ge=1, description="number of GPUs; the batch must be divisible by it")
    exchange: Literal["gather", "host", "none"] = Field(
        default="host",
        description="as in moDNN, not NCCL; gather: GPU 0 adds up the gradients at the end; host: the host's cores add "
        "them up during the last sub-batch; none: each GPU trains the whole batch, and only shares switches and host",
    )
    cores: int = Field(default=1, ge=1, description="number of host cores that add up gradients")


class ScenarioFile(FileModel):
    """The content of a scenario file."""

    schema_: Literal["simgpu.scenario/2"] = Field(alias="schema")
    name: str | None = Field(default=None, min_length=1, description="by default the file's name")
    description: str = ""
    trace: WrittenTrace = Field(description="a recorded trace, or a network of the zoo to model")
    node: str = Field(min_length=1, description="a shipped node, or a YAML file, relative to this file")
    overrides: dict[str, Any] = Field(
        default={}, description="changed values of the node by dotted key, for example node.gpu.memory: 8 GiB"
    )
    budget: Budget | None = Field(
        default=None,
        description="device memory the program may use, as a size or as a percentage of the peak without offloading; "
        "by default all of it, less the CUDA context with pool: caching",
    )
    policies: Annotated[list[Annotated[PolicyChoice, PolicyEntry()]], BeforeValidator(_as_list)] = Field(
        min_length=1, description="one or several policies, run one after the other"
    )
    data_parallel: DataParallelSection | None = Field(
        default=None, description="several GPUs; by default one, which does not share its link"
    )
    iterations: int = Field(default=3, ge=1, le=10_000, description="number of iterations to simulate")
    epoch: int = Field(default=0, ge=0, description="training epoch, for traces whose sparsity changes by epoch")
    seed: int = Field(default=0, ge=0, description="random seed of the policies")
    pool: Pool | None = Field(default=None, description="allocator of device memory; by default the policy's")
    allocator: Annotated[str, BeforeValidator(allocator_setting)] | None = Field(
        default=None,
        description="settings of PyTorch's allocator, with pool: caching; as in PYTORCH_CUDA_ALLOC_CONF, or a block",
    )
    alignment: Alignment | None = Field(default=None, description="of every allocation; by default the node's")
    engine: Engine = Field(
        default="auto", description="simpy, compiled, or auto: the faster one for each run; the numbers are the same"
    )
    outputs: OutputsSection = OutputsSection()
    sweep: SweepSection | None = Field(default=None, description="the points that `simgpu sweep` runs")


@dataclass(frozen=True, slots=True)
class Outputs:
    """The output files of a run; none if `folder` is None."""

    folder: Path | None
    timeline: tuple[TimelineFormat, ...]
    plots: tuple[PlotKind, ...]
    image: ImageFormat


@dataclass(frozen=True, slots=True, repr=False)
class Scenario:
    """A loaded and checked scenario: everything a run needs.

    budget: device memory, bytes; None for all of the node's. One given as a percentage is a `PeakPart`
    pool: allocator; None for the policy's
    allocator: settings of PyTorch's allocator; None for its defaults
    alignment: bytes; None for the node's
    epoch: training epoch, from 0
    engine: what runs the programs, see `simgpu.simulation.config.RunConfig`
    data_parallel: several GPUs; None for one
    swept: description of the file's sweep, which is not part of the scenario; empty if there is none
    """

    name: str
    description: str
    trace: Trace
    node: NodeSpec
    policies: tuple[PolicyChoice, ...]
    budget: int | None
    iterations: int
    epoch: int
    seed: int
    pool: Pool | None
    alignment: int | None
    outputs: Outputs
    data_parallel: DataParallel | None = None
    swept: str = ""
    engine: Engine = "auto"
    allocator: str | None = None

    @property
    def config(self) -> RunConfig:
        """The settings of the runs."""
        how = self.data_parallel
        return RunConfig(
            budget=self.budget,
            iterations=self.iterations,
            seed=self.seed,
            pool=self.pool,
            alignment=self.alignment,
            epoch=self.epoch,
            engine=self.engine,
            allocator=self.allocator,
            **(how.arguments if how else {}),
        )

    @property
    def available(self) -> int:
        """Bytes of device memory that a program may use: the budget, by default the node's."""
        return self.config.on(self.node)[1]

    def with_trace(self, trace: Trace) -> Scenario:
        """The scenario of another trace; a budget that is a part of the peak is then that of this trace.

        Raises `InputError` for a trace whose peak is needed and not known.
        """
        if not isinstance(self.budget, PeakPart):
            return replace(self, trace=trace)
        config = replace(self.config, budget=self.budget.percentage).with_bytes(trace, self.node)
        assert isinstance(config.budget, PeakPart)
        return replace(self, trace=trace, budget=config.budget)

    def facts(self) -> list[tuple[str, str]]:
        """A summary as pairs of name and text: trace, node and provenance."""
        node = self.node
        times = kernel_times(self.trace.info, node.gpu)
        return [
            *([("about", self.description)] if self.description else []),
            *self.trace.facts(),
            ("node", _described(node, self.available if self.budget is None else node.budget)),
            *([("memory", _compressed(node))] if node.gpu.buddy else []),
            *([("gpus", self._on_gpus(self.data_parallel))] if self.data_parallel else []),
            *([("sweep", self.swept)] if self.swept else []),
            *([("times", times)] if times else []),
        ]

    def _on_gpus(self, how: DataParallel) -> str:
        batch = self.trace.info.batch
        return f"{how.gpus} train {how.share(batch)} of {how.total(batch)} samples each; {how.description}"

    def _all_facts(self) -> list[tuple[str, str]]:
        policies = ", ".join(policy_label(make_policy(*choice)) for choice in self.policies)
        budget = [("budget", budget_text(self.budget))] if self.budget is not None else []
        run = f"{self.iterations} iterations, seed {self.seed}" + (
            f", {allocator_text(self.pool, self.allocator)}" if self.pool else ""
        )
        run += f", epoch {self.epoch}" if self.epoch else ""
        return [("scenario", self.name), *self.facts(), ("policies", policies), *budget, ("run", run)]

    def __repr__(self) -> str:
        return facts_text(self._all_facts())

    def _repr_html_(self) -> str:
        return facts_html(self._all_facts())


def _described(node: NodeSpec, usable: int) -> str:
    """The node's memories and links. usable: bytes of device memory."""
    text = f"{node.name}: {node.gpu.name}, {format_bytes(usable)} usable; {node.link.kind}, {_speeds(node.link)}"
    others = other_memories_text(node.more_memories, node.more_links)
    return f"{text}; {others}" if others else text


def _compressed(node: NodeSpec) -> str:
    """A description of the node's compressed memory."""
    buddy = node.gpu.buddy
    assert buddy is not None
    if buddy.mode is BuddyMode.BANDWIDTH_ONLY:
        return "compressed between memory and L2, which saves bandwidth but no capacity"
    targets = f"targets per {buddy.granularity} at threshold {buddy.threshold:.4g}"
    return f"compressed, {targets}; buddy memory: {_speeds(buddy.link or node.link)}"


def _speeds(link: LinkSpec) -> str:
    """The bandwidth of both directions of a link."""
    return f"D2H {format_bandwidth(link.d2h_bandwidth)}, H2D {format_bandwidth(link.h2d_bandwidth)}"
