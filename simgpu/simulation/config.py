"""The settings that `simulate`, `compare`, `max_batch` and their relatives share, and the checks of arguments."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypedDict

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.graph.replicate import Exchange
from simgpu.hardware.spec import NodeSpec
from simgpu.machine.compiled_engine import ENGINES, Engine
from simgpu.machine.run import POOLS
from simgpu.memory.caching.settings import AllocatorSettings, parse
from simgpu.policies.base import Policy
from simgpu.program.data_parallel import DataParallel
from simgpu.trace.model import Trace
from simgpu.units import OR_PERCENTAGE, is_percentage, parse_bytes, parse_percentage

if TYPE_CHECKING:
    from simgpu.simulation.plain_peak import PeakSettings

_MINIMA = {"budget": 0, "iterations": 1, "seed": 0, "alignment": 1, "epoch": 0, "gpus": 1, "cores": 1, "limit": 1}
_SIZES = ("budget", "alignment", "more_memory")
_OPTIONAL = ("budget", "alignment", "gpus", "pool", "allocator")
_CHOICES = {"pool": tuple(POOLS), "exchange": tuple(Exchange), "engine": ENGINES}
#: Settings of a scenario that change no result.
WITHOUT_EFFECT = frozenset({"engine"})
_KINDS: dict[str, type | tuple[type, ...]] = {"trace": Trace, "node": NodeSpec, "policy": (str, Policy)}
_REMEDIES = {
    "trace": "load one with simgpu.load_trace",
    "node": "load one with simgpu.load_node",
    "policy": "give a policy's name, and its parameters separately",
    "config": "give a simgpu.RunConfig, or settings by keyword",
    "iterations": "two or more also show whether the iteration is steady",
    "seed": "give a whole number",
    "epoch": "epochs count from 0",
    "budget": "give bytes, or a text such as '8 GiB' or '50%'",
    "alignment": "give bytes, or a text such as '512 B'",
    "gpus": "give how many GPUs train together",
    "cores": "give how many cores of the host add up gradients",
    "more_memory": "give bytes, or a text such as '2 GiB'",
    "allocator": "give a text such as 'expandable_segments:True'",
    "result": "give that of one run, for example comparison.results['vdnn']",
    "limit": "give the largest batch to try",
}


class RunSettings(TypedDict, total=False):
    """The fields of `RunConfig` as keyword arguments; None if not given."""

    budget: int | str | None
    iterations: int | None
    seed: int | None
    pool: str | None
    alignment: int | str | None
    epoch: int | None
    gpus: int | None
    exchange: str | None
    cores: int | None
    engine: Engine | None
    allocator: str | None


@dataclass(frozen=True)
class RunConfig:
    """How a trace is run on a node.

    budget: bytes of device memory, or a text such as ``"8 GiB"``; by default the node's. ``"50%"`` is a part of the
    peak without offloading, which the run of a trace computes (`with_bytes`). With the caching pool, a given budget is
    what the allocator can have; the node's is its memory without the CUDA context's.
    iterations: how many are run; the last one is reported.
    seed: of policies that draw random numbers.
    pool: ``counting``, ``addressed`` or ``caching``; by default the policy's pool, else counting.
    alignment: bytes, or a text; every allocation is rounded up to a multiple of it; by default the node's.
    epoch: training epoch, for traces whose sparsity changes with it.
    gpus: number of data-parallel GPUs, each with its own budget, and an equal share of the batch unless exchange is
    ``none``; by default one.
    exchange: of gradients as in moDNN, not by NCCL: ``gather``, ``host`` or ``none`` (see `DataParallel`).
    cores: the host's cores that add up gradients.
    engine: ``simpy`` or ``compiled``, which give the same numbers; by default ``auto``, the faster one for each run.
    allocator: settings of the caching pool, as in PYTORCH_CUDA_ALLOC_CONF; by default PyTorch's.

    Raises `InputError` with all problems at once.

    >>> RunConfig(budget="1 KiB").budget
    1024
    >>> RunConfig(iterations=0, pool="adressed")
    Traceback (most recent call last):
    simgpu.errors.InputError: argument iterations: 0 is not a whole number of at least 1; ...
    argument pool: 'adressed' is not one of the choices; did you mean 'addressed'? known: addressed, caching, ...
    """

    budget: int | str | None = None
    iterations: int = 3
    seed: int = 0
    pool: str | None = None
    alignment: int | str | None = None
    epoch: int = 0
    gpus: int | None = None
    exchange: str = "host"
    cores: int = 1
    engine: Engine = "auto"
    allocator: str | None = None

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        for field in fields(self):
            try:
                object.__setattr__(self, field.name, checked_setting(field.name, getattr(self, field.name)))
            except InputError as error:
                problems += error.problems
        if self.allocator is not None and self.pool != "caching":
            what = f"settings of the caching allocator apply to no other pool, and pool is {self.pool or 'not given'}"
            problems += InputError.single("", "argument allocator", what, "give pool='caching' too").problems
        if problems:
            raise InputError(problems)

    @property
    def allocator_settings(self) -> AllocatorSettings | None:
        """The settings of the caching allocator, None for its defaults."""
        return None if self.allocator is None else parse(self.allocator, "argument allocator")

    def on(self, node: NodeSpec) -> tuple[NodeSpec, int]:
        """The node with this alignment, and the bytes of device memory that a program may use on it."""
        if isinstance(self.budget, str):
            what = f"{self.budget!r} is a part of the peak of a trace, and there is no trace here"
            raise InputError.single("", "argument budget", what, "give bytes, or a text such as '8 GiB'")
        budget = node.budget - (self.context_memory(node) or 0) if self.budget is None else self.budget
        return self._aligned(node), budget

    def _aligned(self, node: NodeSpec) -> NodeSpec:
        """The node with this alignment."""
        if self.alignment is None:
            return node
        assert isinstance(self.alignment, int)
        return replace(node, gpu=replace(node.gpu, alignment=self.alignment))

    def with_bytes(self, trace: Trace, node: NodeSpec) -> RunConfig:
        """The same settings with the budget in bytes: a percentage is that part of the peak under policy `none`.

        The budget is then a `simgpu.simulation.plain_peak.PeakPart`. Raises `InputError` for a trace whose peak is not
        known.

        >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
        >>> from simgpu.trace.chain import chain
        >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
        >>> RunConfig(budget="75%").with_bytes(chain([5, 7], [10, 14], [101, 200]), node).budget
        225
        """
        if not isinstance(self.budget, str):
            return self
        from simgpu.simulation.plain_peak import part_of_peak  # loads the machine

        budget = part_of_peak(self.budget, trace, self._aligned(node), **self._peak_settings)
        return replace(self, budget=budget)

    def plain_peak(self, trace: Trace, node: NodeSpec) -> int:
        """The bytes of the peak without offloading, of which budgets in percent are a part.

        See `simgpu.simulation.plain_peak.plain_peak`, also for its errors.

        >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
        >>> from simgpu.trace.chain import chain
        >>> node = NodeSpec("example", GpuSpec("gpu", 1000), LinkSpec("pcie", 10**10, 10**10))
        >>> RunConfig(alignment=100).plain_peak(chain([5, 7], [10, 14], [101, 200]), node)
        400
        """
        from simgpu.simulation.plain_peak import plain_peak  # loads the machine

        return plain_peak(trace, self._aligned(node), **self._peak_settings)

    @property
    def _peak_settings(self) -> PeakSettings:
        """What the peak without offloading depends on, besides the trace and the node."""
        return {
            "epoch": self.epoch,
            "data_parallel": self.data_parallel,
            "iterations": self.iterations,
            "pool": self.pool or "counting",
            "allocator": self.allocator_settings,
        }

    def context_memory(self, node: NodeSpec) -> int | None:
        """Bytes of the node's device memory that the CUDA context takes from the budget.

        0 where a budget is given, and without PyTorch's allocator; None if the node does not say.
        """
        return 0 if self.budget is not None or self.pool != "caching" else node.gpu.context_memory

    @property
    def data_parallel(self) -> DataParallel | None:
        """How several GPUs train together; None for one."""
        if self.gpus is None or self.gpus == 1:
            return None
        return DataParallel(self.gpus, Exchange(self.exchange), self.cores)


def checked_setting(name: str, value: Any) -> Any:
    """A setting's value, bytes where it is a size in text; `InputError` for one that is not allowed."""
    place = f"argument {name}"
    if value is None and name in _OPTIONAL:
        return None
    if name == "allocator":
        check_kind(name, value, str)
        parse(value, place)
        return value
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            remedy = did_you_mean(str(value), _CHOICES[name])
            raise InputError.single("", place, f"{value!r} is not one of the choices", remedy)
        return value
    if name == "budget" and is_percentage(value):
        return _percentage(value, place)
    if name in _SIZES and isinstance(value, str):
        try:
            value = parse_bytes(value)
        except ValueError as error:
            remedy = OR_PERCENTAGE if name == "budget" else _REMEDIES[name]
            raise InputError.single("", place, str(error), remedy) from None
    minimum = _MINIMA.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError.single("", place, f"{value!r} is not a whole number of at least {minimum}", _REMEDIES[name])
    return value


def _percentage(text: str, place: str) -> str:
    try:
        parse_percentage(text)
    except ValueError as error:
        raise InputError.single("", place, str(error)) from None
    return text.strip()


def check_kind(name: str, value: object, kind: type | tuple[type, ...]) -> None:
    """Raise `InputError` for an argument of the wrong type."""
    if not isinstance(value, kind):
        raise InputError.single("", f"argument {name}", f"{str(value)[:60]!r} is no {name}", _REMEDIES[name])


def run_config(config: RunConfig | None, settings: RunSettings, **others: object) -> RunConfig:
    """`config`, or the defaults, with the given settings; all wrong arguments are reported at once.

    others: further arguments to check, such as trace, node, policy and limit. With a trace and a node, the budget is in
    bytes.

    >>> run_config(RunConfig(seed=7), {"epoch": 2, "budget": None}).seed
    7
    """
    problems: list[Problem] = []
    for name, value in others.items():
        try:
            if name in _KINDS:
                check_kind(name, value, _KINDS[name])
            else:
                checked_setting(name, value)
        except InputError as error:
            problems += error.problems
    known = [field.name for field in fields(RunConfig)]
    for name in sorted(settings.keys() - set(known)):
        problems.append(Problem("", f"argument {name}", "there is no such setting", did_you_mean(name, known)))
    specified: dict[str, Any] = {name: settings.get(name) for name in known if settings.get(name) is not None}
    try:
        if config is not None:
            check_kind("config", config, RunConfig)
        merged = replace(config or RunConfig(), **specified)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    if isinstance(trace := others.get("trace"), Trace) and isinstance(node := others.get("node"), NodeSpec):
        return merged.with_bytes(trace, node)
    return merged
