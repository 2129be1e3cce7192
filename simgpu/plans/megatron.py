"""Settings of Megatron-LM, as candidates: what it recomputes and offloads in the layers of a recorded model.

Source: NVIDIA/Megatron-LM, version 0.20.0 in development, commit d98e8a64 of 2026-08-22: transformer_config.py,
transformer_layer.py and attention.py in megatron/core/transformer, fine_grained_activation_offload.py in
megatron/core/pipeline_parallel.

* ``--recompute-granularity full``: with ``--recompute-method uniform``, groups of n layers that keep one input; with
  ``block``, the first n layers.
* ``--recompute-granularity selective --recompute-modules``: the same modules in every layer. ``core_attn`` is attention
  without its projections, unless it is one fused operator: there Megatron-LM advises against it. ``mlp``, in a mixture
  of experts ``moe``, is the module with all products behind attention. ``layernorm`` drops the outputs of the norms
  before attention and before the MLP, which the projections behind them save. That is a region of a norm and these
  projections that keeps the results of the latter, where autograd saves these anyway; elsewhere, as with rotary
  embeddings, no region is the same. Megatron-LM drops the output later, and makes it again earlier: when attention or
  the MLP ends, so its peak may be one output higher than the simulated one.
* ``--fine-grained-activation-offloading --offload-modules``: what autograd saves inside ``attn_norm``, ``qkv_linear``,
  ``core_attn``, ``attn_proj`` (only with ``core_attn``) and ``mlp_norm``, in tensors of 2**20 elements or more, but not
  the last layer. ``--activation-offload-fraction`` excludes the last of these groups. Megatron-LM fetches a group when
  backward of the one behind it ends, and compute never waits for a copy to the host. Here as many blocks as the largest
  group has are fetched ahead, or may be under way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, combinations, pairwise
from math import prod
from typing import NamedTuple

from simgpu.plans.candidate import Candidate
from simgpu.plans.iteration import Checkpointed
from simgpu.plans.regions import Region, Steps

_FUSED, _ATTENTION = "_scaled_dot_product", ("aten::bmm", "aten::baddbmm", "aten::_softmax")
_PRODUCTS, _CAST = ("aten::mm", "aten::addmm"), "aten::_to_copy"
#: The last part of a norm's path.
_NORM = re.compile(r"norm|(^|_)ln(_|$)", re.IGNORECASE)
#: ``--min-offloaded-tensor-size``, and the tried values of ``--activation-offload-fraction``.
_LEAST_ELEMENTS, _FRACTIONS = 2**20, (1.0, 0.75, 0.5, 0.25)
#: The modules of `--offload-modules` that are looked for, in the order in which they run.
_OFFLOADED = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm")
#: The modules of `--recompute-modules` and `--offload-modules` that are of other architectures or kernels.
_ELSEWHERE = "moe_act, shared_experts, mla_up_proj, expert_fc1 and those of GatedDeltaNet and hyper-connections"


class Parts(NamedTuple):
    """The parts of a layer that Megatron-LM names, as calls or parts of calls; None for one that is not there.

    norms: before attention and before the MLP, each with the last projection that reads its output. core: attention
    between its projections, and whether it is one operator. mlp: its name there and its call.
    """

    norms: tuple[tuple[Region, Region] | None, tuple[Region, Region] | None]
    qkv: tuple[Region, ...]
    core: Region
    is_fused: bool
    proj: Region
    mlp: tuple[str, Region] | None


def full(steps: Steps, layers: Sequence[Region]) -> Iterator[tuple[str, Candidate]]:
    """Settings that recompute whole layers, and what they do."""
    command = "--recompute-granularity full --recompute-method"
    follow = all(one.stop == two.first for one, two in pairwise(layers))
    for n in range(1, len(layers) + 1):
        yield f"{command} block --recompute-num-layers {n}", _recomputed(steps, layers[:n])
        if follow and len(layers) % n == 0:
            groups = [_joined(layers[start], layers[start + n - 1]) for start in range(0, len(layers), n)]
            yield f"{command} uniform --recompute-num-layers {n}", _recomputed(steps, groups)


def _recomputed(steps: Steps, regions: Sequence[Region]) -> Candidate:
    return Candidate(steps, tuple(map(Checkpointed, regions)))


def _joined(first: Region, last: Region) -> Region:
    """All from the first call to the end of the last, as one region."""
    return first._replace(stop=last.stop, saved_stop=last.saved_stop)


class Selective:
    """Settings that recompute and offload parts of layers. layers: equal ones."""

    def __init__(self, steps: Steps, layers: Sequence[Region]) -> None:
        self._steps = steps
        calls = steps.regions()
        parts = [_parts(steps, layer, calls) for layer in layers]
        self._parts = [each for each in parts if each is not None]
        self._why_not = self._reasons() if self._parts else {"selective": "no attention between modules"}

    @property
    def unmapped(self) -> str:
        """The modules that this model has no part for, with the reason where there is one."""
        named = [f"{name} ({why})" for name, why in self._why_not.items() if why]
        if self._parts:
            groups = self._groups(self._parts[0])
            named += [f"offloaded {name} (saves nothing large)" for name in _OFFLOADED if name not in groups]
        return ", ".join([*named, _ELSEWHERE])

    def _reasons(self) -> dict[str, str]:
        """For each module that may be recomputed, why it cannot; empty if it can."""
        first = self._parts[0]
        mlp = "mlp" if first.mlp is None else first.mlp[0]
        reasons = {}
        for name in ("layernorm", "core_attn", mlp):
            regions = [each.region for parts in self._parts for each in self._regions(parts, (name,))]
            problems = map(self._steps.why_not, regions)
            reasons[name] = next(filter(None, problems), "") if regions else "no module of its own"
        if any(self._does_more(*norm) for parts in self._parts for norm in parts.norms if norm is not None):
            reasons["layernorm"] = "no region drops its output alone"
        if first.is_fused:
            reasons["core_attn"] = "attention is one fused operator"
        return reasons

    def settings(self) -> Iterator[tuple[str, Candidate]]:
        """The settings, and what they do."""
        if not self._parts:
            return
        offloads = [names for names in _subsets(self._groups(self._parts[0])) if _allowed(names)]
        for modules in _subsets(name for name, why in self._why_not.items() if not why):
            regions = tuple(each for parts in self._parts for each in self._regions(parts, modules))
            text = f"--recompute-granularity selective --recompute-modules {' '.join(modules)}" if modules else ""
            if modules:
                yield text, Candidate(self._steps, regions)
            for names in offloads:
                if names and not _clash(modules, names):
                    yield from self._offloading(text, regions, names)

    def _regions(self, parts: Parts, modules: Collection[str]) -> Iterator[Checkpointed]:
        """The regions of a layer in which these modules are recomputed."""
        before, after = parts.norms if "layernorm" in modules else (None, None)
        if before is not None:
            yield self._without_output(*before)
        if "core_attn" in modules:
            yield Checkpointed(parts.core)
        if parts.mlp is not None and parts.mlp[0] in modules:
            call = parts.mlp[1]
            yield Checkpointed(call if after is None else _joined(after[0], call))
        elif after is not None:
            yield self._without_output(*after)

    def _without_output(self, norm: Region, last: Region) -> Checkpointed:
        """A norm whose output is recomputed: up to the last projection that reads it, norm and casts run again."""
        region = _joined(norm, last)
        behind = (k for k in self._steps.keepable(region) if k >= norm.stop and _op(self._steps, k) != _CAST)
        return Checkpointed(region, frozenset(behind))

    def _does_more(self, norm: Region, last: Region) -> bool:
        """Whether the region of a norm keeps what nothing else would, or recomputes more than the norm."""
        region, keeps = self._without_output(norm, last)
        again = set(self._steps.rerun_range(region)) - keeps
        kept = {b for k in keeps for b in self._steps.writes[k]} - {each.block for each in self._steps.saved}
        return bool(kept) or any(k >= norm.stop and _op(self._steps, k) != _CAST for k in again)

    def _offloading(
        self, text: str, regions: tuple[Checkpointed, ...], names: Collection[str]
    ) -> Iterator[tuple[str, Candidate]]:
        # The last layer's groups stay: they would be fetched at once.
        groups = [self._groups(parts)[name] for parts in self._parts[:-1] for name in names]
        command = f"{text} --fine-grained-activation-offloading --offload-modules {' '.join(names)}".lstrip()
        for fraction in _FRACTIONS:
            chosen = groups[: len(groups) - int(len(groups) * (1 - fraction))]
            blocks = self._blocks(regions, {n for group in chosen for n in group})
            ahead = max((len({self._steps.saved[n].block for n in group} & blocks) for group in chosen), default=0)
            if blocks:
                ids = tuple(self._steps.trace.blocks[b].id for b in sorted(blocks))
                less = "" if fraction == 1 else f" --activation-offload-fraction {fraction}"
                yield f"{command}{less}", Candidate(self._steps, regions, ids, ahead, ahead)

    def _blocks(self, regions: Collection[Checkpointed], chosen: Collection[int]) -> set[int]:
        """The blocks that leave the device: nothing but the chosen saved tensors, and regions, holds them."""
        inside = {n for each in regions for n in range(each.region.saved_first, each.region.saved_stop)}
        inputs = {b for each in regions for b in each.region.inputs}
        saved = self._steps.saved
        held = {each.block for n, each in enumerate(saved) if n not in inside and n not in chosen}
        return {saved[n].block for n in chosen if n not in inside or saved[n].block in inputs} - held

    def _groups(self, parts: Parts) -> dict[str, tuple[int, ...]]:
        """For each module of `--offload-modules` the saved tensors of a layer that are large, if there are any."""
        before, after = (None if each is None else each[0] for each in parts.norms)
        calls = zip(_OFFLOADED, ((before,), parts.qkv, (parts.core,), (parts.proj,), (after,)), strict=True)
        groups = {name: tuple(filter(self._is_large, chain(*map(_saved, each)))) for name, each in calls}
        return {name: group for name, group in groups.items() if group}

    def _is_large(self, n: int) -> bool:
        row = self._steps.trace.saved[n]
        return self._steps.births[self._steps.saved[n].block] >= 0 and prod(row.shape or ()) >= _LEAST_ELEMENTS


def _saved(call: Region | None) -> range:
    return range(0) if call is None else range(call.saved_first, call.saved_stop)


def _subsets(names: Iterator[str] | Collection[str]) -> list[tuple[str, ...]]:
    """All subsets, the empty one first.

    >>> _subsets(["mlp", "layernorm"])
    [(), ('mlp',), ('layernorm',), ('mlp', 'layernorm')]
    """
    listed = list(names)
    return list(chain.from_iterable(combinations(listed, count) for count in range(len(listed) + 1)))


def _allowed(names: Collection[str]) -> bool:
    """Megatron-LM's own rule: the input of ``attn_proj`` is the output of ``core_attn``, whose backward needs it."""
    return "attn_proj" not in names or "core_attn" in names


def _clash(modules: Collection[str], names: Collection[str]) -> bool:
    """Whether what is offloaded is not there: a recomputed ``core_attn`` ignores its offload, and ``qkv_linear`` saves
    the output that ``layernorm`` drops."""
    return ("core_attn" in modules and "core_attn" in names) or ("layernorm" in modules and "qkv_linear" in names)


def _parts(steps: Steps, layer: Region, calls: Sequence[Region]) -> Parts | None:
    """The parts of a layer; None if it has no attention between projections."""
    inner = [each for each in calls if each.module.startswith(f"{layer.module}.") and _contains(layer, each)]
    leaves = [each for each in inner if each.stop > each.first and not _has_inner(each, inner)]
    products = [each for each in leaves if any(_op(steps, k) in _PRODUCTS for k in range(each.first, each.stop))]
    attention = [k for k in range(layer.first, layer.stop) if _is_attention(_op(steps, k))]
    behind = [each for each in products if attention and each.first > attention[0]]
    qkv = tuple(each for each in products if attention and each.stop <= attention[0])
    if not behind or not qkv:
        return None
    proj = behind[0]
    attention = [k for k in attention if k < proj.first]
    norms = [each for each in leaves if _NORM.search(each.module.rpartition(".")[2])]
    before = [each for each in norms if each.stop <= qkv[0].first]
    after = [each for each in norms if each.first >= proj.stop and any(each.stop <= p.first for p in behind)]
    return Parts(
        norms=(_read_by(steps, layer, before[-1:], products), _read_by(steps, layer, after[-1:], products)),
        qkv=qkv,
        core=_core(steps, attention, qkv[-1], proj),
        is_fused=_FUSED in _op(steps, attention[0]),
        proj=proj,
        mlp=_mlp(proj, [each for each in inner if each not in leaves], behind[1:]),
    )


def _op(steps: Steps, k: int) -> str:
    return steps.trace.kernels[k].op


def _is_attention(op: str) -> bool:
    return _FUSED in op or op in _ATTENTION


def _contains(outer: Region, inner: Region) -> bool:
    return outer.first <= inner.first and inner.stop <= outer.stop


def _has_inner(call: Region, calls: Sequence[Region]) -> bool:
    return any(each.module.startswith(f"{call.module}.") and _contains(call, each) for each in calls)


def _read_by(
    steps: Steps, layer: Region, norms: Sequence[Region], products: Sequence[Region]
) -> tuple[Region, Region] | None:
    """A norm with the last projection that reads its output, if forward reads it nowhere else."""
    for norm in norms:
        made = {b for k in range(norm.first, norm.stop) for b in steps.writes[k]}
        readers = [k for k in range(norm.stop, layer.stop) if made.intersection(steps.reads[k])]
        calls = [next((each for each in products if each.first <= k < each.stop), None) for k in readers]
        if calls and calls[-1] is not None and None not in calls:
            return norm, calls[-1]
    return None


def _core(steps: Steps, attention: Sequence[int], last: Region, proj: Region) -> Region:
    """Attention between its projections, as a region: what it is given are the blocks that it reads."""
    first, stop = attention[0], attention[-1] + 1
    saved = [n for n in range(last.saved_stop, proj.saved_first) if first - 1 <= steps.saved[n].after < stop]
    inputs = dict.fromkeys(b for k in range(first, stop) for b in steps.reads[k] if 0 <= steps.births[b] < first)
    blocks = [steps.trace.blocks[b] for b in inputs]
    types = tuple((block.dtype or "", tuple(block.shape or ())) for block in blocks)
    begin, end = (saved[0], saved[-1] + 1) if saved else (last.saved_stop, last.saved_stop)
    return Region(proj.module.rpartition(".")[0], 0, first, stop, begin, end, tuple(inputs), types)


def _mlp(proj: Region, modules: Sequence[Region], products: Sequence[Region]) -> tuple[str, Region] | None:
    """The outermost module behind attention that contains all products there."""
    behind = [each for each in modules if each.first >= proj.stop and products]
    around = [each for each in behind if _contains(each, products[0]) and _contains(each, products[-1])]
    if not around:
        return None
    call = min(around, key=lambda each: each.first - each.stop)
    has_experts = any("expert" in each.module.removeprefix(call.module) for each in products)
    return "moe" if has_experts else "mlp", call
