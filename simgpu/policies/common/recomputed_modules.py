"""Modules of each layer that run again by Megatron-LM's names, and those of which only the output is discarded.

Source: NVIDIA/Megatron-LM 0.20.0, commit d98e8a64 of 2026-08-22: transformer_config.py, transformer_layer.py,
moe/moe_layer.py and moe/experts.py in megatron/core/transformer, `CheckpointWithoutOutput` in
megatron/core/tensor_parallel/random.py.

``core_attn``, ``mlp``, ``moe`` and ``shared_experts`` are checkpointed as modules. ``layernorm`` and ``moe_act`` are
checkpointed without their output, which the modules behind them save: when the *hook module*, the last one that reads
it, has ended in forward, the output is discarded; when the gradient of the hook module's result is there, the part runs
again to its end. Autograd's node holds the part's inputs and its recomputed output until backward of the part has
ended. The hook module is attention, the MLP, or the last product of an expert.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.graph.passes import passes_of
from simgpu.graph.regions import Region, saved_inside
from simgpu.graph.saved import Saved, backward_ends
from simgpu.graph.taskgraph import TaskGraph
from simgpu.policies.common.layer_parts import expert_of, is_product, kernels_of_layers, parts_of_run, runs_of
from simgpu.trace.model import BlockKind, Phase

#: The modules of Megatron-LM's ``--recompute-modules`` that are looked for.
RECOMPUTED = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts")
#: Those that it has for architectures that are not modelled.
ELSEWHERE = ("mla_up_proj", "gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")
#: Modules that lie in one that is checkpointed as a whole.
_INSIDE = {"moe_act": "moe", "shared_experts": "moe"}


class Discard(NamedTuple):
    """An output that is discarded. after: the last kernel of its hook module in forward. start: the kernel of backward
    before which the part runs again. blocks: what is discarded."""

    after: int
    start: int
    blocks: frozenset[int]


class RecomputedPart(NamedTuple):
    """A region that runs again. saved: the tensors that it drops. kept: the kernels in it that do not run again, with
    the blocks of their results. discard: None where a module is checkpointed."""

    region: Region
    saved: list[Saved]
    kept: dict[int, list[int]]
    discard: Discard | None = None

    @property
    def start(self) -> int:
        """The kernel of backward before which the region runs again."""
        return min(tensor.before for tensor in self.saved) if self.discard is None else self.discard.start


class _Found(NamedTuple):
    """Kernels of one module in one pass. hook: the kernels of its hook module, none for a checkpointed module."""

    key: str
    kernels: Sequence[int]
    hook: Sequence[int] = ()


def check_recomputed(names: Sequence[str]) -> None:
    """Raises `InputError` for names that ``--recompute-modules`` does not have, or that are not modelled."""
    problems = []
    for name in names:
        if name in ELSEWHERE:
            what = f"'{name}' is of architectures that are not modelled"
            problems.append(Problem("", "parameters.modules", what, f"choose from {', '.join(RECOMPUTED)}"))
        elif name not in RECOMPUTED:
            what = f"Megatron-LM has no module '{name}' to recompute"
            problems.append(Problem("", "parameters.modules", what, did_you_mean(name, RECOMPUTED)))
        elif _INSIDE.get(name) in names:
            what = f"'{name}' lies in '{_INSIDE[name]}', which is recomputed as a whole"
            problems.append(Problem("", "parameters.modules", what, "name one of them"))
    if problems:
        raise InputError(problems)


def recomputed_parts(
    graph: TaskGraph, layer_of: Mapping[str, str], names: Sequence[str], tensors: Sequence[Saved]
) -> list[RecomputedPart]:
    """The parts of these layers with these names; those without saved tensors are left out. In order of forward, and
    those whose output is discarded after all others, which may need it as an input when they run again.

    layer_of: the layer of each tag. Raises `InputError` for names that no layer has, and for an output that is needed
    where it would be discarded.
    """
    found: defaultdict[str, list[_Found]] = defaultdict(list)
    for layer, kernels in kernels_of_layers(graph, layer_of).items():
        for run in runs_of(graph, kernels):
            for name, each in _modules(graph, layer, run):
                found[name].append(each)
    if missing := [name for name in names if name not in found]:
        what = f"no layer of {graph.trace.name or graph.trace.info.model} has a module that is its"
        remedy = "name others, or layers with parameter blocks"
        raise InputError(Problem("", "parameters.modules", f"{what} {name}", remedy) for name in missing)
    listed = [(each, region) for name in names for each in found[name] for region in _regions(each)]
    listed.sort(key=lambda pair: pair[1].first)
    section_of = {graph.layers.name_of(k): each.key for each, _ in listed for k in each.kernels}
    discarding = _Discarding(graph, tensors)
    parts = []
    inside = saved_inside(graph, [region for _, region in listed], section_of, tensors)
    for (each, region), saved in zip(listed, inside, strict=True):
        own = set(each.kernels)
        between = [k for k in range(region.first, region.stop) if k not in own]
        if between:
            saved = [tensor for tensor in saved if section_of.get(graph.layers.name_of(tensor.before)) == each.key]
        kept = {k: [b for b in graph.writes[k] if graph.blocks[b].kind is not BlockKind.WORKSPACE] for k in between}
        part = RecomputedPart(region, saved, kept)
        parts.append(discarding.of(part, each.hook) if each.hook else part)
    return sorted((part for part in parts if part.saved), key=lambda part: part.discard is not None)


def _modules(graph: TaskGraph, layer: str, run: Sequence[int]) -> Iterator[tuple[str, _Found]]:
    """The modules of a layer in one pass, by Megatron-LM's names."""
    parts = parts_of_run(graph, run)
    if not parts:
        return
    projection = parts["attn_proj"]
    mlp = _around(graph, run, [k for k in run if k > projection[0] and is_product(graph, k)])
    yield "core_attn", _Found(f"{layer}:core_attn", parts["core_attn"])
    for norm, hook in (("attn_norm", projection), ("mlp_norm", mlp)):
        if norm in parts and hook:
            yield "layernorm", _Found(f"{layer}:{norm}", parts[norm], hook)
    if any(not is_product(graph, k) for k in mlp):
        name = "moe" if any(expert_of(graph, k) for k in mlp) else "mlp"
        yield name, _Found(f"{layer}:{name}", mlp)
    if shared := [k for k in mlp if "shared_expert" in _path(graph, k) or "shared_experts" in _path(graph, k)]:
        yield "shared_experts", _Found(f"{layer}:shared_experts", shared)
    last = {expert_of(graph, k): k for k in parts.get("expert_fc2", ())}
    activations: defaultdict[str, list[int]] = defaultdict(list)
    for k in parts.get("moe_act", ()):
        activations[expert_of(graph, k)].append(k)
    for expert, kernels in activations.items():
        yield "moe_act", _Found(f"{expert}:moe_act", kernels, [last[expert]])


def _path(graph: TaskGraph, k: int) -> list[str]:
    return graph.layers.name_of(k).split(".")


def _around(graph: TaskGraph, run: Sequence[int], products: Sequence[int]) -> list[int]:
    """The kernels of the innermost module with all these products, if that has no others; else the products."""
    shared = list(
        takewhile(lambda parts: len(set(parts)) == 1, zip(*(_path(graph, k) for k in products), strict=False))
    )
    path = [parts[0] for parts in shared]
    inside = [k for k in run if products and _path(graph, k)[: len(path)] == path]
    others = {k for k in inside if is_product(graph, k)} - set(products)
    return list(products) if others else inside


def _regions(found: _Found) -> list[Region]:
    """The runs of a module's kernels; with a discarded output, all of it with what lies between."""
    if found.hook:
        return [Region(found.key, found.kernels[0], found.kernels[-1] + 1)]
    own = set(found.kernels)
    begins = [k for k in found.kernels if k - 1 not in own]
    ends = [k + 1 for k in found.kernels if k + 1 not in own]
    return [Region(found.key, first, stop) for first, stop in zip(begins, ends, strict=True)]


class _Discarding:
    """Discards the outputs of parts."""

    def __init__(self, graph: TaskGraph, tensors: Sequence[Saved]) -> None:
        self._graph = graph
        self._ends = dict(zip(tensors, backward_ends(graph, tensors), strict=True))
        self._of_block: defaultdict[int, list[Saved]] = defaultdict(list)
        for tensor in tensors:
            self._of_block[tensor.block].append(tensor)
        self._stops = [part.stop for part in passes_of(graph)]
        self._backward: defaultdict[str, list[int]] = defaultdict(list)
        for k, kernel in enumerate(graph.kernels):
            if kernel.phase is Phase.BACKWARD:
                self._backward[graph.layers.name_of(k)].append(k)

    def of(self, part: RecomputedPart, hook: Sequence[int]) -> RecomputedPart:
        """The part without its output: what others have saved of it is held as long as its own backward takes."""
        graph, region = self._graph, part.region
        kept = {b for blocks in part.kept.values() for b in blocks}
        born = {b for k in range(region.first, region.stop) for b in graph.writes[k] if graph.births[b] == k} - kept
        blocks = frozenset(b for b in born if graph.uses[b][-1] >= region.stop and self._leaves(b, region))
        again = self._backward_of(hook)
        if again is None:  # the hook module has no backward, so nothing behind it needs the output
            return part
        after, start = hook[-1], again[0]
        for b in sorted(blocks):
            self._check(region, b, after, start)
        outside = [tensor for b in sorted(blocks) for tensor in self._of_block[b] if tensor not in part.saved]
        saved = [*part.saved, *outside]
        own = self._backward_of([k for k in range(region.first, region.stop) if k not in part.kept])
        end = max((self._ends[tensor] for tensor in saved), default=start) if own is None else own[1]
        held = [t._replace(dropped=after, unused=end, freed=end) if t.block in blocks else t for t in saved]
        return part._replace(saved=held, discard=Discard(after, start, blocks))

    def _leaves(self, b: int, region: Region) -> bool:
        """Whether forward reads a block behind the region that writes it."""
        graph = self._graph
        return any(k >= region.stop and graph.kernels[k].phase is Phase.FORWARD for k in graph.uses[b])

    def _check(self, region: Region, b: int, after: int, start: int) -> None:
        """Raises `InputError` if a block is used between its discard and the rerun."""
        graph = self._graph
        if used := [k for k in graph.uses[b] if after < k < start]:
            what = f"the output of {region.section} is read by {graph.kernels[used[0]].id}, when it is discarded"
            remedy = "name the layers without it with parameter blocks, or leave this module out"
            raise InputError.single(graph.trace.name, "parameters.modules", what, remedy)

    def _backward_of(self, kernels: Sequence[int]) -> tuple[int, int] | None:
        """The first and the last kernel of backward of these kernels' layer tags, in their pass; None without any."""
        names = {self._graph.layers.name_of(k) for k in kernels}
        stop = self._stops[bisect_right(self._stops, kernels[0])]
        found = [k for name in names for k in self._backward[name] if kernels[-1] < k < stop]
        return (min(found), max(found)) if found else None
