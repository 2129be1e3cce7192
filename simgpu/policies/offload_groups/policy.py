"""`offload_groups`: saved tensors of layers or modules are offloaded together, as TransformerEngine and Megatron-LM do.

Sources: NVIDIA/TransformerEngine 2.20.0.dev0, commit d0067d0d of 2026-08-22, cpu_offload.py and cpu_offload_v1.py in
transformer_engine/pytorch; NVIDIA/Megatron-LM 0.20.0, commit d98e8a64 of 2026-08-22,
megatron/core/pipeline_parallel/fine_grained_activation_offload.py, with transformer_layer.py and attention.py in
megatron/core/transformer. Hooks see every saved tensor of a group; those with enough elements that are neither
parameters nor buffers are copied, the others stay. The last group is never offloaded. `schedule` says whose rules:

* ``transformer_engine``: `get_cpu_offload_context(num_layers=n, model_layers=L)`. The first n of L layers. One copy
  stream serves both directions. A tensor is copied when it has been saved; equal ones of a layer once. Before layer
  L - n + i, compute waits for the copies of layer i and drops its tensors. Before backward of layer L - n + i - 1, the
  fetch of layer i begins; compute waits for each tensor where it is used. A layer's fetched tensors, and its copies on
  the host, are dropped when backward of the layer in front of it begins.
* ``transformer_engine_v1``: the same function with ``NVTE_CPU_OFFLOAD_V1=1``. The n layers are spread over windows
  of all L (`simgpu.policies.offload_groups.schedules.windows`). Layer i is copied, every tensor by itself,
  when layer i - 1 is gone; at the end of its window compute waits and drops it. Backward fetches it at the window's
  begin, after it has waited for layer i + 1; so compute waits for whole layers. A fetched tensor is dropped when its
  operator has ended. With `double_buffering`, two layers' memory is allocated all the time, and fetches use it in turn;
  numbers of layers for which a fetch would overwrite what backward still needs, as it would there, are refused.
* ``megatron``: ``--fine-grained-activation-offloading --offload-modules``. A group is a part of a layer, of `modules`;
  ``attn_norm`` and ``mlp_norm`` end with the residual sum behind them, ``moe_act`` with the experts' last product, and
  ``expert_fc1`` are their other products. When a group ends in forward, its tensors are
  copied, every one on its own, and compute never waits: memory is free when its copy has ended and the framework has
  dropped the tensor. The last group of each module stays, and the last 1 - `fraction` of the others. With
  `max_inflight`, compute waits for the oldest copies of a module where more groups than this are under way. Whenever
  backward of a group ends, the fetch of the last group that is still away begins; compute waits for a group's fetch
  where its backward begins. So a group is fetched about one layer ahead, or earlier with a lower `fraction`.

What differs, or the trace does not record:

* The host launches work without delay. TransformerEngine's version 1 offloads only tensors that its modules mark; here
  all activations of the layers. Its version 2 skips tensors that are not contiguous, and copies the base of a view with
  as many elements; here a tensor that covers its block counts as the block, and all count as contiguous.
* ``retain_pinned_cpu_buffers`` changes neither copies nor the peak on the host; what allocations of host memory take is
  not modelled. Neither are ``manual_synchronization``, quantized tensors, pipeline stages and captured CUDA graphs.
* With one layer, `double_buffering` allocates two buffers in the source, and one here.
* In Megatron-LM, memory whose copy has ended is free at the next allocation; here at once, but behind the copies that
  were issued before the framework dropped the tensor.
* Experts run one after the other here, so that those of a layer are a group of many small tensors, and their groups
  end with the last expert; Megatron-LM has them only with grouped products, one tensor for all experts.
* Blocks that are changed in place after they were saved stay: PyTorch refuses to use such tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from simgpu.errors import InputError, Problem
from simgpu.graph.passes import Pass, passes_of
from simgpu.graph.saved import Saved, saved_tensors
from simgpu.graph.taskgraph import TaskGraph
from simgpu.graph.transforms import WithUnpacked
from simgpu.policies.base import PlanContext, Policy, parameter
from simgpu.policies.common.framework import framework, is_activation, saved_note
from simgpu.policies.common.layer_parts import Module, check_names, check_present, parts_of_layers, whole_layers
from simgpu.policies.common.section_choice import sections_of
from simgpu.policies.offload_groups.groups import SavedGroup, groups_of
from simgpu.policies.offload_groups.schedules import GroupSchedule, megatron, transformer_engine, transformer_engine_v1
from simgpu.policies.offload_groups.writing import Copied, GroupedOffload
from simgpu.program.instructions import Program
from simgpu.trace.model import Phase
from simgpu.units import format_bytes

#: By schedule, the fewest elements of an offloaded tensor, and the parameters that only the schedule has.
_LEAST = {"transformer_engine": 256 * 1024, "transformer_engine_v1": 1, "megatron": 1024 * 1024}
_OWN = {
    "transformer_engine": ("num_layers",),
    "transformer_engine_v1": ("num_layers", "double_buffering"),
    "megatron": ("modules", "fraction", "max_inflight"),
}


@dataclass(frozen=True)
class OffloadGroups(Policy):
    """Offload the saved tensors of whole layers, or of modules of each layer, and fetch them ahead of backward."""

    name = "offload_groups"
    summary = (
        "TransformerEngine's offload of layers and Megatron-LM's of modules: saved tensors as groups, fetched ahead"
    )
    source = "TransformerEngine 2.20.0.dev0, get_cpu_offload_context; Megatron-LM 0.20.0, --offload-modules"

    schedule: Literal["transformer_engine", "transformer_engine_v1", "megatron"] = parameter(
        "transformer_engine", "whose groups are copied, dropped and fetched when, see the module"
    )
    num_layers: int = parameter(1, "TransformerEngine: how many of the first layers are offloaded")
    modules: Sequence[str] = parameter((), "Megatron-LM: --offload-modules, such as attn_norm, core_attn")
    blocks: int | Sequence[str] = parameter(0, "the layers, as for checkpoint")
    min_elements: int = parameter(0, "smaller tensors stay; 0: as in the framework, 262144, 1 or 1048576")
    double_buffering: bool = parameter(False, "version 1: whether two layers' memory for fetches is always allocated")
    fraction: float = parameter(1.0, "Megatron-LM: --activation-offload-fraction")
    max_inflight: int = parameter(
        -1, "Megatron-LM: groups of a module that may be under way before compute waits; -1: any number"
    )

    def __post_init__(self) -> None:
        # Lists, as files have them, cannot be hashed.
        object.__setattr__(self, "modules", tuple(self.modules))
        if not isinstance(self.blocks, int):
            object.__setattr__(self, "blocks", tuple(self.blocks))

    def plan(self, context: PlanContext) -> Program:
        """One iteration.

        Raises `InputError` for parameters out of range or of another schedule, for layers or modules that the trace
        does not have, for layers that do not run one after the other, for several compute streams, and for GPUs that
        train together.
        """
        self._check()
        graph, transforms = framework(context.graph, self.name)
        recorded = saved_tensors(graph)
        large = [self._is_large(graph, tensor) for tensor in recorded.tensors]
        layer_of = sections_of(graph, self.blocks).of_layer
        modules = layers = whole_layers(graph, layer_of)
        if self.schedule == "megatron":
            check_names(self.modules)
            modules = parts_of_layers(graph, layer_of)
            check_present(graph, modules.values(), self.modules)
        copies: list[Copied] = []
        starts: list[int] = []
        for part in passes_of(graph):
            groups = groups_of(graph, part, modules, recorded.tensors)
            if self.schedule == "megatron":
                whole = groups_of(graph, part, layers, recorded.tensors)
                listed = _to_the_sums(groups, whole, self.modules)
            else:
                listed = list(groups.values())
            for schedule in self._schedules(graph, part, listed, large):
                new = list(self._copies(graph, recorded.tensors, schedule, large))
                copies += new
                starts += [part.first] * len(new)
        one_stream = self.schedule == "transformer_engine"
        writing = GroupedOffload(graph, recorded.tensors, copies, dict(enumerate(starts)), one_stream=one_stream)
        writing.write()
        returned = WithUnpacked(tuple(writing.unpacked()))
        size = format_bytes(sum(each.bytes for each in returned.tensors))
        count = len({each.schedule.group for each in copies})
        note = f"groups of saved tensors that are offloaded: {count}, with {len(copies)} tensors, {size}"
        return writing.writer.program((*transforms, returned), (*saved_note(recorded), note))

    def _check(self) -> None:
        problems = []
        others = {name for names in _OWN.values() for name in names} - set(_OWN[self.schedule])
        for name in sorted(others):
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                what = f"schedule {self.schedule} has no such setting"
                problems.append(Problem("", f"parameters.{name}", what, "leave it out, or choose another schedule"))
        least = {"num_layers": 1, "min_elements": 0, "max_inflight": -1}
        for name, value in least.items():
            given = getattr(self, name)
            if given < value:
                problems.append(Problem("", f"parameters.{name}", f"{given} is too small", f"give {value} or more"))
        if not 0 <= self.fraction <= 1:
            problems.append(Problem("", "parameters.fraction", f"{self.fraction} is no share", "give 0 to 1"))
        if problems:
            raise InputError(problems)

    def _is_large(self, graph: TaskGraph, tensor: Saved) -> bool:
        """Whether a tensor is offloaded if its group is."""
        bits = re.search(r"[0-9]+", graph.blocks[tensor.block].dtype or "float32")
        elements = tensor.bytes * 8 // max(int(bits.group()), 8) if bits else tensor.bytes
        return elements >= (self.min_elements or _LEAST[self.schedule]) and is_activation(graph, tensor)

    def _schedules(
        self, graph: TaskGraph, part: Pass, listed: Sequence[SavedGroup], large: Sequence[bool]
    ) -> list[GroupSchedule]:
        """When each group of a pass is offloaded and fetched."""
        if self.schedule == "megatron":
            full = {n for n, group in enumerate(listed) if any(large[number] for number in group.numbers)}
            return megatron(listed, full, self.fraction, self.max_inflight)
        if self.num_layers >= len(listed):
            what = f"{self.num_layers} of {len(listed)} layers; the last one is never offloaded"
            remedy = f"give 1 to {len(listed) - 1}" if len(listed) > 1 else "name more layers with parameter blocks"
            raise InputError.single(graph.trace.name, "parameters.num_layers", what, remedy)
        for one, two in pairwise(listed):
            if not (one.commit < two.start and two.begin < one.begin):
                layers = " and ".join(graph.layers.name_of(each.start) for each in (one, two))
                what = f"the layers of {layers} do not run one after the other, and backward in the reverse order"
                raise InputError.single(graph.trace.name, "parameters.blocks", what, "name layers that do")
        stop = max(k for k in range(part.first, part.stop) if graph.kernels[k].phase is Phase.BACKWARD)
        if self.schedule == "transformer_engine":
            return transformer_engine(listed, self.num_layers, stop)
        schedules = transformer_engine_v1(listed, self.num_layers, stop, double_buffering=self.double_buffering)
        for early, late in zip(schedules, schedules[2:], strict=False):
            if self.double_buffering and early.fetched < late.group.end:
                layers = " and ".join(graph.layers.name_of(each.group.start) for each in (early, late))
                what = f"the layers of {layers} have one buffer, and the first is fetched before the other has used it"
                remedy = f"give num_layers 1, 2 or {len(listed) - 1}, or leave double_buffering out"
                raise InputError.single(graph.trace.name, "parameters.double_buffering", what, remedy)
        return schedules

    def _copies(
        self, graph: TaskGraph, tensors: Sequence[Saved], schedule: GroupSchedule, large: Sequence[bool]
    ) -> Iterator[Copied]:
        """The copies of a group: of each tensor, or in TransformerEngine's version 2 of each different one."""
        same: dict[object, list[int]] = {}
        for n in schedule.group.numbers:
            if large[n]:
                is_whole = self.schedule == "transformer_engine" and tensors[n].bytes == graph.sizes[tensors[n].block]
                same.setdefault(("block", tensors[n].block) if is_whole else n, []).append(n)
        for numbers in same.values():
            yield Copied(tuple(numbers), schedule)


def _to_the_sums(
    groups: dict[Module, SavedGroup], layers: dict[Module, SavedGroup], names: Sequence[str]
) -> list[SavedGroup]:
    """The groups with these names, where norms end with the residual sum behind them, and activations of experts with
    the product behind them. layers: whole ones."""
    of_layer = {module.layer: group for module, group in layers.items()}
    behind, products = (
        {module.layer: group for module, group in groups.items() if module.name == name}
        for name in ("mlp_norm", "expert_fc2")
    )
    listed = []
    for module, group in groups.items():
        norm, layer = behind.get(module.layer), of_layer[module.layer]
        if module.name == "attn_norm" and norm is not None:
            group = group._replace(commit=norm.start - 1, begin=min(group.begin, norm.end + 1))
        elif module.name == "mlp_norm":
            group = group._replace(commit=layer.commit, begin=layer.begin)
        elif module.name == "moe_act":
            product = products[module.layer]
            group = group._replace(commit=product.commit, begin=min(group.begin, product.begin))
        if module.name in names:
            listed.append(group)
    return listed
