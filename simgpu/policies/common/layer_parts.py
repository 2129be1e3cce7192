"""Modules of layers: whole ones, or the parts of each layer that Megatron-LM names, as kernels of forward."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.graph.regions import Region
from simgpu.graph.taskgraph import TaskGraph
from simgpu.trace.model import Phase

#: The modules of Megatron-LM's ``--offload-modules`` that are looked for, in the order in which they run.
MODULES = ("attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act")
#: Those that it has for other architectures or kernels.
ELSEWHERE = ("fused_group_mlp", "gdp_qkv")
_PRODUCTS = ("mm", "addmm", "linear")
_ATTENTION = re.compile(r"_scaled_dot_product|flash_attention|efficient_attention|^(bmm|baddbmm|_softmax)$")
#: The last part of a norm's path.
_NORM = re.compile(r"norm|(^|_)ln(_|$)", re.IGNORECASE)
#: The path of an expert in a mixture of experts.
_EXPERT = re.compile(r"(.*\.experts\.[0-9]+)(\.|$)")


class Module(NamedTuple):
    """A module of one layer. tags: the layer tags that are its own in backward, none for a part of a tag."""

    layer: str
    name: str
    tags: tuple[str, ...]

    @property
    def key(self) -> str:
        """The name of the module with its layer's."""
        return f"{self.layer}:{self.name}"


def whole_layers(graph: TaskGraph, layer_of: Mapping[str, str]) -> dict[int, Module]:
    """For each kernel of forward in a layer, the layer as a module. layer_of: the layer of each tag."""
    tags: defaultdict[str, list[str]] = defaultdict(list)
    for tag, layer in layer_of.items():
        tags[layer].append(tag)
    modules = {layer: Module(layer, "layer", tuple(each)) for layer, each in tags.items()}
    return {k: modules[layer] for k, layer in _forward(graph, layer_of)}


def parts_of_layers(graph: TaskGraph, layer_of: Mapping[str, str]) -> dict[int, Module]:
    """For each kernel of forward in one of the parts `MODULES` of a layer, or in the second product of its experts
    (``expert_fc2``), that part."""
    modules: dict[int, Module] = {}
    for layer, listed in kernels_of_layers(graph, layer_of).items():
        parts: defaultdict[str, list[int]] = defaultdict(list)
        for run in runs_of(graph, listed):
            for name, own in parts_of_run(graph, run).items():
                parts[name] += own
        for name, own in parts.items():
            tags = tuple(dict.fromkeys(graph.layers.name_of(k) for k in own))
            whole = {k for k in listed if graph.layers.name_of(k) in tags} == set(own)
            modules |= dict.fromkeys(own, Module(layer, name, tags if whole else ()))
    return modules


def regions_of_modules(
    graph: TaskGraph, modules: Mapping[int, Module], kernels: Iterable[int]
) -> tuple[tuple[Region, ...], dict[str, str]]:
    """The runs of these kernels that are of the same module, and for each layer tag in them a module's key."""
    regions: list[Region] = []
    section_of: dict[str, str] = {}
    for k in kernels:
        if k in modules:
            key = section_of[graph.layers.name_of(k)] = modules[k].key
            if regions and regions[-1].section == key and regions[-1].stop == k:
                regions[-1] = regions[-1]._replace(stop=k + 1)
            else:
                regions.append(Region(key, k, k + 1))
    return tuple(regions), section_of


def check_names(names: Sequence[str]) -> None:
    """Raises `InputError` for names that break Megatron-LM's rules for ``--offload-modules``."""
    problems = []
    for name in names:
        if name in ELSEWHERE:
            what = f"'{name}' is of architectures or kernels that are not modelled"
            problems.append(Problem("", "parameters.modules", what, f"choose from {', '.join(MODULES)}"))
        elif name not in MODULES:
            what = f"Megatron-LM has no module '{name}' to offload"
            problems.append(Problem("", "parameters.modules", what, did_you_mean(name, MODULES)))
    if "attn_proj" in names and "core_attn" not in names:
        what = "'attn_proj' without 'core_attn', whose output it saves"
        problems.append(Problem("", "parameters.modules", what, "add core_attn, as Megatron-LM demands"))
    if not names:
        what = "no module is named"
        problems.append(Problem("", "parameters.modules", what, f"name some of {', '.join(MODULES)}"))
    if problems:
        raise InputError(problems)


def check_present(graph: TaskGraph, modules: Iterable[Module], names: Sequence[str]) -> None:
    """Raises `InputError` for names of parts that no layer has."""
    there = {module.name for module in modules}
    if missing := [name for name in names if name not in there]:
        what = f"no layer of {graph.trace.name or graph.trace.info.model} has a part that is its"
        remedy = "name parts of attention between projections, of layers that parameter blocks names"
        raise InputError(Problem("", "parameters.modules", f"{what} {name}", remedy) for name in missing)


def _forward(graph: TaskGraph, layer_of: Mapping[str, str]) -> Iterable[tuple[int, str]]:
    """The kernels of forward in layers, with the layer."""
    for k, kernel in enumerate(graph.kernels):
        if kernel.phase is Phase.FORWARD and (layer := layer_of.get(graph.layers.name_of(k))) is not None:
            yield k, layer


def kernels_of_layers(graph: TaskGraph, layer_of: Mapping[str, str]) -> dict[str, list[int]]:
    """The kernels of forward of each layer. layer_of: the layer of each tag."""
    kernels: defaultdict[str, list[int]] = defaultdict(list)
    for k, layer in _forward(graph, layer_of):
        kernels[layer].append(k)
    return kernels


def parts_of_run(graph: TaskGraph, run: Sequence[int]) -> dict[str, list[int]]:
    """The kernels of each part of a layer in one pass, as in `parts_of_layers`; empty without attention."""
    ops = {k: op_of(graph, k) for k in run}
    attention = [k for k in run if _ATTENTION.search(ops[k])]
    products = [k for k in run if ops[k] in _PRODUCTS]
    behind = [k for k in products if attention and k > attention[0]]
    before = [k for k in products if attention and k < attention[0]]
    if not behind or not before:
        return {}
    norms = [k for k in run if _NORM.search(graph.layers.name_of(k).rpartition(".")[2])]
    after_attention = [k for k in norms if k > behind[0] and any(k < other for other in behind)]
    last = max(each for each in attention if each < behind[0])
    parts = {
        "attn_norm": _same_tag(graph, [k for k in norms if k < before[0]]),
        "qkv_linear": before,
        "core_attn": [k for k in run if attention[0] <= k <= last],
        "attn_proj": behind[:1],
        "mlp_norm": _same_tag(graph, after_attention),
        **_experts(graph, run, ops),
    }
    return {name: kernels for name, kernels in parts.items() if kernels}


def op_of(graph: TaskGraph, k: int) -> str:
    """The name of a kernel's operator without its namespace."""
    return graph.kernels[k].op.rpartition("::")[2]


def is_product(graph: TaskGraph, k: int) -> bool:
    """Whether a kernel multiplies by a weight."""
    return op_of(graph, k) in _PRODUCTS


def expert_of(graph: TaskGraph, k: int) -> str:
    """The path of the expert that a kernel belongs to; empty for none."""
    match = _EXPERT.match(graph.layers.name_of(k))
    return match[1] if match else ""


def _experts(graph: TaskGraph, run: Sequence[int], ops: Mapping[int, str]) -> dict[str, list[int]]:
    """The first products of all experts, what lies between them and the last one, and the last ones."""
    experts: defaultdict[str, list[int]] = defaultdict(list)
    for k in run:
        if expert := expert_of(graph, k):
            experts[expert].append(k)
    parts: defaultdict[str, list[int]] = defaultdict(list)
    for kernels in experts.values():
        products = [k for k in kernels if ops[k] in _PRODUCTS]
        if len(products) > 1:
            parts["expert_fc1"] += products[:-1]
            parts["moe_act"] += [k for k in kernels if products[0] < k < products[-1] and k not in products]
            parts["expert_fc2"] += products[-1:]
    return parts


def runs_of(graph: TaskGraph, kernels: Sequence[int]) -> list[list[int]]:
    """The kernels of a layer by pass: between two lies a kernel of backward."""
    runs: list[list[int]] = []
    for k in kernels:
        if not runs or any(graph.kernels[other].phase is Phase.BACKWARD for other in range(runs[-1][-1], k)):
            runs.append([])
        runs[-1].append(k)
    return runs


def _same_tag(graph: TaskGraph, kernels: Sequence[int]) -> list[int]:
    """Those of the last kernel's tag: the norm that is last."""
    return [k for k in kernels if graph.layers.name_of(k) == graph.layers.name_of(kernels[-1])]
