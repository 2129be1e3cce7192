"""What-if runs: plans and simulates a run again with one property of the machine changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from simgpu.analysis.tables import table_html, table_text
from simgpu.errors import InputError, MissingExtraError, OutOfMemoryError, SimgpuError
from simgpu.explain.explanation import signed_time
from simgpu.hardware.dma_engine import CdmaSpec
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import Policy, no_progress, policy_label
from simgpu.policies.registry import make_policy
from simgpu.program.instructions import Decode, Encode
from simgpu.simulation.config import RunConfig, RunSettings, checked_setting, run_config
from simgpu.simulation.result import Result
from simgpu.simulation.run import simulate
from simgpu.trace.model import Trace
from simgpu.units import format_bytes, format_time

#: Default increase of device memory, bytes.
MORE_MEMORY = 2 * 2**30
#: Bytes per second of a practically infinite link.
_INFINITE = 2**62


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of the machine.

    node: the changed node, None if the change has no effect.
    budget: bytes of device memory; None for the node's.
    note: why the change has no effect.
    """

    text: str
    node: NodeSpec | None
    budget: int | None
    note: str = ""


def what_if(
    trace: Trace,
    node: NodeSpec,
    policy: str | Policy = "vdnn",
    config: RunConfig | None = None,
    *,
    parameters: dict[str, object] | None = None,
    more_memory: int | str = MORE_MEMORY,
    progress: Callable[[str], None] = no_progress,
    **settings: Unpack[RunSettings],
) -> Answers:
    """Runs a policy unchanged, then with twice the link bandwidth, more memory, a second copy engine, instant codecs.

    The first answer is the baseline. With instant codecs, encoding and decoding take no time, nor do a compressing DMA
    engine and the decompression of compressed memory.

    more_memory: increase of device memory, bytes or a text such as ``"2 GiB"``. Other arguments: as for `simulate`.
    Raises `InputError` for invalid arguments and if the baseline does not run for a reason other than OOM; any other
    answer contains the error of its run.

    >>> from simgpu.hardware.spec import GpuSpec, LinkSpec
    >>> from simgpu.trace.chain import chain
    >>> node = NodeSpec("example", GpuSpec("gpu", 1000, copy_engines=1), LinkSpec("pcie", 10**10, 10**10))
    >>> for answer in what_if(chain([5, 7, 9], [10, 14, 18], [100, 200, 300]), node, "vdnn"):
    ...     print(answer.change, answer.result.iteration_ns if answer.result else answer.note)
    baseline 83
    2x link bandwidth 66
    +2 GiB device memory 83
    second copy engine 83
    instant codecs no codec runs
    """
    grown = checked_setting("more_memory", more_memory)
    config = run_config(config, settings, trace=trace, node=node, policy=policy)
    chosen = make_policy(policy, parameters) if isinstance(policy, str) else policy
    progress(policy_label(chosen))
    at = config.budget
    assert not isinstance(at, str)
    baseline = _outcome(trace, node, chosen, at, config)
    if isinstance(baseline, InputError | MissingExtraError):
        raise baseline
    answers = [Answer("baseline", baseline)]
    for change in _changes(node, at, grown, baseline):
        if change.node is None:
            answers.append(Answer(change.text, None, change.note))
            continue
        progress(f"{policy_label(chosen)}: {change.text}")
        answers.append(Answer(change.text, _outcome(trace, change.node, chosen, change.budget, config)))
    return Answers(answers)


def _outcome(
    trace: Trace, node: NodeSpec, policy: Policy, budget: int | None, config: RunConfig
) -> Result | SimgpuError:
    try:
        return simulate(trace, node, policy, config, budget=budget)
    except (OutOfMemoryError, InputError, MissingExtraError) as error:
        return error


def _changes(node: NodeSpec, budget: int | None, more: int, run: Result | SimgpuError) -> Iterator[_Change]:
    gpu, link = node.gpu, node.link
    faster = replace(link, d2h_bandwidth=2 * link.d2h_bandwidth, h2d_bandwidth=2 * link.h2d_bandwidth)
    switches = tuple(
        replace(switch, d2h_bandwidth=2 * switch.d2h_bandwidth, h2d_bandwidth=2 * switch.h2d_bandwidth)
        for switch in node.switches
    )
    yield _Change("2x link bandwidth", replace(node, link=faster, switches=switches), budget)
    larger = replace(node, gpu=replace(gpu, memory=gpu.memory + more))
    yield _Change(f"+{format_bytes(more)} device memory", larger, None if budget is None else budget + more)
    if gpu.copy_engines > 1:
        yield _Change("second copy engine", None, budget, "the node has one per direction")
    else:
        yield _Change("second copy engine", replace(node, gpu=replace(gpu, copy_engines=2)), budget)
    if encodes(node, run):
        yield _Change("instant codecs", with_instant_codecs(node), budget)
    else:
        yield _Change("instant codecs", None, budget, "no codec runs")


def encodes(node: NodeSpec, run: Result | SimgpuError) -> bool:
    """Whether any codec runs: of the program, of a DMA engine, or of compressed memory."""
    if not isinstance(run, Result):
        return True
    moves = run.metrics.link_bytes > 0
    written = any(
        isinstance(instruction, Encode | Decode)
        for segment in run.program.segments
        for code in segment.streams.values()
        for instruction in code
    )
    return written or run.graph.compressed is not None or (node.gpu.cdma is not None and moves)


def with_instant_codecs(node: NodeSpec) -> NodeSpec:
    """The same node with all codecs taking no time."""
    gpu = replace(node.gpu, instant_codecs=True)
    if gpu.cdma is not None:
        gpu = replace(gpu, cdma=CdmaSpec(gpu.cdma.codec, _INFINITE, _INFINITE, 0, gpu.cdma.kernel_bandwidth))
    if gpu.buddy is not None:
        gpu = replace(gpu, buddy=replace(gpu.buddy, decompression_ns=0))
    return replace(node, gpu=gpu)


ANSWER_HEADINGS = ("what if", "step time", "change", "note")


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a change.

    change: as text.
    outcome: the new run, or its error; None if the change has no effect.
    note: why the change has no effect.
    """

    change: str
    outcome: Result | SimgpuError | None
    note: str = ""

    @property
    def result(self) -> Result | None:
        """The new run, None if there is none."""
        return self.outcome if isinstance(self.outcome, Result) else None


class Answers(tuple[Answer, ...]):
    """The answers in order, the baseline first. Prints and displays as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return table_text(ANSWER_HEADINGS, answer_rows(self))

    def _repr_html_(self) -> str:
        return table_html(ANSWER_HEADINGS, answer_rows(self), "what if", left=(0, 3))


def answer_rows(answers: Sequence[Answer]) -> list[tuple[str, ...]]:
    """Rows of the table with `ANSWER_HEADINGS`."""
    baseline = answers[0].result
    return [(answer.change, *_answered(answer, baseline)) for answer in answers]


def answer_dict(answer: Answer) -> dict[str, Any]:
    """An answer as plain data for JSON."""
    if answer.result is not None:
        outcome: dict[str, Any] = {"iteration_ns": answer.result.iteration_ns}
    else:
        outcome = {"iteration_ns": None, "reason": answer.note or str(answer.outcome)}
    return {"change": answer.change, **outcome}


def _answered(answer: Answer, baseline: Result | None) -> tuple[str, str, str]:
    if answer.result is None:
        if isinstance(answer.outcome, OutOfMemoryError):
            return "OOM", "", "host memory" if answer.outcome.space == "host" else ""
        return "-", "", answer.note or ("refused" if isinstance(answer.outcome, InputError) else str(answer.outcome))
    time = answer.result.iteration_ns
    if baseline is None or answer.result is baseline:
        return format_time(time), "", ""
    if time == baseline.iteration_ns:
        return format_time(time), "none", ""
    return format_time(time), _relative_change(time - baseline.iteration_ns, baseline.iteration_ns), ""


def _relative_change(ns: int, baseline_ns: int) -> str:
    """A change in percent; as a time if the percentage rounds to 0, or the baseline is 0."""
    share = f"{ns / baseline_ns:+.1%}" if baseline_ns else "+0.0%"
    if share[1:] != "0.0%":
        return share
    return signed_time(ns) if ns < 0 else f"+{format_time(ns)}"
