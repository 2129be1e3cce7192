"""What a plan does, in the words of the model: modules by pattern, with the numbers of their layers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from simgpu.torch.plan import CompiledGraph, OffloadedTensor, Plan, RecomputedModule
from simgpu.torch.types import WHOLE
from simgpu.units import format_bytes, format_time

#: A bound that is missed by less than this part counts as reached.
_REACHED = 0.0005
_NUMBER = re.compile(r"[0-9]+")
#: Modules of a pattern with several numbers that are listed by their paths.
_LISTED = 3


def summary(plan: Plan) -> list[str]:
    """One line for each kind of module that is recomputed, and of tensor that is offloaded.

    >>> ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    lines = [*_recomputed(plan.recompute, plan.calls), *_offloaded(plan.offload)]
    if plan.graph is not None:
        lines += _of_graph(plan.graph)
    if plan.offload:
        lines.append(f"blocks prefetched ahead: {plan.prefetch}; under way to the host: at most {plan.stash}")
    return [*(lines or ["keep everything"]), *plan.notes]


def facts(plan: Plan) -> list[tuple[str, str]]:
    """What the plan is for and what it is predicted to cost, as names and texts."""
    made, cost = plan.made_for, plan.predicted
    slower = cost.step_ns / cost.plain_step_ns - 1 if cost.plain_step_ns else 0.0
    count = plan.micro_batches or 1
    batch = f"batch {made.batch} in {count} calls of the model" if count > 1 else f"batch {made.batch}"
    result = [
        ("plan", f"{made.model}, {batch}, {made.format}; {made.origin} for {made.device}"),
        ("budget", f"{format_bytes(plan.budget_bytes)} on {plan.node}"),
        ("peak memory", f"{format_bytes(cost.peak_bytes)}; without the plan {format_bytes(cost.plain_peak_bytes)}"),
    ]
    if cost.reserved_bytes is not None:
        result.append(("", f"{format_bytes(cost.reserved_bytes)} reserved by PyTorch's caching allocator"))
    with_plan, plain = format_time(cost.step_ns), format_time(cost.plain_step_ns)
    result.append(("step time", f"{with_plan}; without the plan {plain} ({slower:+.1%})"))
    if cost.bound_ns is not None:
        of = "of plans that run operator by operator" if plan.graph is None else "of plans for the compiled graph"
        result.append(("lower bound", _distance(cost.step_ns, cost.bound_ns, of)))
    if cost.any_step_ns is not None:
        result.append(("unrestricted", f"policy joint: {format_time(cost.any_step_ns)}"))
    if cost.any_bound_ns is not None:
        result.append(("", _distance(cost.step_ns, cost.any_bound_ns, "of all placements")))
    again = f"{cost.recomputed_kernels} operators again, {format_time(cost.recompute_ns)}"
    result.append(("recomputed", again))
    if plan.graph is not None:
        result.append(("saved", f"{plan.graph.saved_tensors} tensors, {format_bytes(plan.graph.saved_bytes)}"))
    if cost.d2h_bytes or cost.h2d_bytes:
        result.append(("copied", f"{format_bytes(cost.d2h_bytes)} to the host, {format_bytes(cost.h2d_bytes)} back"))
    return result


def _distance(step_ns: int, bound_ns: int, of: str) -> str:
    over = step_ns / bound_ns - 1 if bound_ns else 0.0
    reached = "this one reaches it" if over < _REACHED else f"this one is {over:.1%} above it"
    return f"{format_time(bound_ns)} {of}; {reached}"


def _recomputed(modules: Sequence[RecomputedModule], calls: Mapping[str, int]) -> Iterable[str]:
    own: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for each in modules:
        kept = Counter(kept.op.rpartition("::")[2] for kept in each.keep)
        text = ", ".join(f"{op}" if count == 1 else f"{count} {op}" for op, count in kept.items())
        own[each.module, f", keep the results of {text}" if text else ""].append(each.call)
    groups: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for (module, keeps), numbers in own.items():
        groups[_NUMBER.sub("*", module), _calls(numbers, calls[module]), keeps].append(module)
    for (pattern, which, keeps), members in groups.items():
        yield f"recompute {_named(pattern, members)}{which}{keeps}"


def _calls(numbers: Sequence[int], count: int) -> str:
    """Which of its calls in a step a module is recomputed in.

    >>> _calls([0], 1), _calls([0, 1], 2), _calls([1, 2], 4)
    ('', ' in each of 2 calls', ' in calls 2-3 of 4')
    """
    if len(numbers) == count:
        return f" in each of {count} calls" if count > 1 else ""
    return f" in call{'s' if len(numbers) > 1 else ''} {ranges([number + 1 for number in numbers])} of {count}"


def _of_graph(graph: CompiledGraph) -> Iterable[str]:
    """The operators that run again, by kind of module."""
    if not graph.is_planned:
        yield "compile as without a plan, which fits"
        return
    ops: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for each in graph.again:
        ops[each.module][each.op.rpartition("::")[2]] += 1
    groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for module, counts in ops.items():
        text = ", ".join(op if count == 1 else f"{count} {op}" for op, count in sorted(counts.items()))
        groups[_NUMBER.sub("*", module), text].append(module)
    for (pattern, text), members in groups.items():
        yield f"in {_named(pattern, members)} run again {text}"
    yield "save all else that backward needs"


def _offloaded(tensors: Sequence[OffloadedTensor]) -> Iterable[str]:
    blocks: dict[str, OffloadedTensor] = {}
    for each in tensors:
        blocks.setdefault(each.block, each)
    groups: defaultdict[str, list[OffloadedTensor]] = defaultdict(list)
    for each in blocks.values():
        groups[_NUMBER.sub("*", each.module)].append(each)
    for pattern, members in groups.items():
        size, where = format_bytes(sum(each.bytes for each in members)), _named(pattern, [e.module for e in members])
        count = f"{len(members)} blocks" if len(members) > 1 else "a block"
        yield f"offload {count} saved by {where}, {size}"


def _named(pattern: str, modules: Sequence[str]) -> str:
    """The modules of a pattern in words: one by its path, several by their numbers, or by how many they are.

    >>> _named("blocks.*", ["blocks.3"]), _named("blocks.*", ["blocks.3", "blocks.4"]), _named("", [""])
    ('blocks.3', 'blocks.* (3-4)', 'the model')
    >>> _named("*.experts.*", ["0.experts.1", "1.experts.0"])
    '0.experts.1, 1.experts.0'
    """
    own = list(dict.fromkeys(modules))
    if len(own) == 1:
        return "the model" if own[0] in ("", WHOLE) else own[0]
    if pattern.count("*") == 1:
        return f"{pattern} ({ranges(sorted({int(number) for each in own for number in _NUMBER.findall(each)}))})"
    return ", ".join(own) if len(own) <= _LISTED else f"{pattern} ({len(own)} modules)"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text."""
    parts = []
    for _, group in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run = [number for _, number in group]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(parts)
