"""Compiles a model so that backward recomputes what a plan chose.

TorchInductor traces forward and backward into one graph. PyTorch's partitioner (torch/_functorch/partitioners.py) then
decides what forward saves. It bans operators that are expensive to run again; with a memory budget it asks a solver
which of these may run again nevertheless; of all others a minimum cut decides whether they are saved. The solver here
answers with a plan's choice. That interface is private to PyTorch, so a graph is compared with the plan's before.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
import torch._dynamo
from torch import fx, nn
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch import config as functorch_config
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomKnapsackSolver
from torch.utils.checkpoint import CheckpointPolicy

from simgpu.errors import InputError
from simgpu.torch.patching import replaced_forward

#: A context in which a model is compiled.
Settings = Callable[[], AbstractContextManager[Any]]

_ROOT = re.compile(r"^L\['[^']*'\](\.__self__)?\.?|^L__self__[._]*")
_PART = re.compile(r"\._modules\['([^']*)'\]")
_VERSIONS = 10**6
#: Where PyTorch marks nodes that checkpointing has decided about.
_MARK = "recompute"
#: Kernels of fused attention are named after the device and the library; a plan is for any of them.
_ATTENTION = re.compile(r"_scaled_dot_product_\w*attention\w*")


class GraphOperator(NamedTuple):
    """An operator of a graph: the module that calls it, and how many of that name the module called before."""

    module: str
    op: str
    number: int

    def __str__(self) -> str:
        return f"{self.module or 'the model'}: {self.op} {self.number}"


def operators(nodes: Iterable[fx.Node]) -> dict[str, GraphOperator]:
    """The operators of a graph, in order, by the names of its nodes."""
    seen: Counter[tuple[str, str]] = Counter()
    result = {}
    for node in nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            key = module_of(node), _ATTENTION.sub("scaled_dot_product_attention", node.target._schema.name)
            result[node.name] = GraphOperator(*key, seen[key])
            seen[key] += 1
    return result


def module_of(node: fx.Node) -> str:
    """The path of the module that calls a node's operator; empty for the model itself."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return _PART.sub(r".\1", _ROOT.sub("", path)).lstrip(".")


def modules_of(known: Iterable[GraphOperator]) -> dict[str, str]:
    """For each module the number of its operators and a digest of their names."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for each in known:
        names[each.module].append(each.op)
    return {
        module: f"{len(ops)} {hashlib.sha256(' '.join(ops).encode()).hexdigest()[:12]}" for module, ops in names.items()
    }


class PlannedPartition(CustomKnapsackSolver):
    """Answers PyTorch's partitioner with a plan's choice.

    modules: as `modules_of`, of the plan's graph. again: the operators that run again in backward.
    refusal: the error of a graph that the plan is not for.
    """

    def __init__(self, model: str, modules: Mapping[str, str], again: Collection[GraphOperator]) -> None:
        self.refusal: InputError | None = None
        self._model = model
        self._modules = modules
        self._again = frozenset(again)

    def __call__(
        self, memory: list[float], joint_graph: fx.Graph, max_memory: float, node_info: Any, banned: Sequence[fx.Node]
    ) -> tuple[list[int], list[int]]:
        known = operators(joint_graph.nodes)
        self._check(known)
        return answered(joint_graph, node_info, banned, [name for name, each in known.items() if each in self._again])

    def uuid(self) -> str:
        """Identifies the choice, for PyTorch's caches of compiled code."""
        return hashlib.sha256(repr((sorted(self._modules.items()), sorted(self._again))).encode()).hexdigest()

    def settings(self) -> AbstractContextManager[Any]:
        """A context in which a model is compiled by the plan."""
        return asking(self)

    def _check(self, known: Mapping[str, GraphOperator]) -> None:
        own = modules_of(known.values())
        differing = [each for each in {**self._modules, **own} if self._modules.get(each) != own.get(each)]
        if not differing:
            return
        # The first in which no part of it differs.
        place = next(each for each in differing if not any(_is_in(other, each) for other in differing))
        counts = [(each.get(place) or "0").partition(" ")[0] for each in (own, self._modules)]
        what = f"its graph has {counts[0]} operators, and {counts[1]} in the plan"
        what = "its graph has other operators than in the plan" if counts[0] == counts[1] else what
        remedy = "make the plan anew with `simgpu plan --execute compile`"
        self.refusal = InputError.single(f"plan for {self._model}", place or "the model", what, remedy)
        raise self.refusal


def _is_in(module: str, other: str) -> bool:
    return module != other and (not other or module.startswith(f"{other}."))


def answered(
    graph: fx.Graph, info: Any, banned: Sequence[fx.Node], again: Collection[str]
) -> tuple[list[int], list[int]]:
    """What a solver answers so that the nodes named in `again` run again, and no other: those saved, those run again.

    The partitioner asks about banned operators only. What others of forward do is said by the marks with which it
    follows selective checkpointing. Of operators that only backward needs, it decides. info: what it knows of nodes.
    """
    names = frozenset(again)
    for node in graph.nodes:
        if not info.is_required_fw(node) or not isinstance(node.target, torch._ops.OpOverload):
            continue
        if node.name in names:
            node.meta[_MARK] = CheckpointPolicy.MUST_RECOMPUTE
        elif not _is_view(node.target):
            node.meta[_MARK] = CheckpointPolicy.MUST_SAVE
    chosen = [place for place, node in enumerate(banned) if node.name in names]
    return [place for place, node in enumerate(banned) if node.name not in names], chosen


def unmark(graph: fx.Graph) -> None:
    """Removes the marks of `answered`."""
    for node in graph.nodes:
        node.meta.pop(_MARK, None)


def asking(solver: CustomKnapsackSolver) -> AbstractContextManager[Any]:
    """A context in which a model is compiled, and PyTorch's partitioner asks a solver."""
    # With a number, it would not ask where it saves less than its inputs' size; no comparison with NaN is true.
    return compiling(activation_memory_budget=math.nan, activation_memory_budget_solver=solver)


def _is_view(target: torch._ops.OpOverload) -> bool:
    return any(each.alias_info is not None for each in target._schema.returns)


@contextmanager
def graph_applied(name: str, graph: Any, model: nn.Module, *, is_unfused: bool = False) -> Iterator[None]:
    """Compiles a model by a plan inside the context. graph: the `CompiledGraph` of a plan for model `name`.

    Raises `InputError` for another version of PyTorch, whose graphs may differ, and for a compiled model.
    """
    if hasattr(model, "_orig_mod") or model._compiled_call_impl is not None:
        remedy = "give the model as it is before torch.compile"
        raise InputError.single(f"plan for {name}", "model", "it is compiled already, and the plan compiles it", remedy)
    if release() != graph.torch:
        what = f"it was made with PyTorch {graph.torch}, and this is {release()}"
        raise InputError.single(f"plan for {name}", "graph.torch", what, "make the plan anew with this version")
    if not graph.is_planned:
        with graphs_applied(model, usual, is_unfused=is_unfused):
            yield
        return
    again = [GraphOperator(each.module, each.op, each.number) for each in graph.again]
    partition = PlannedPartition(name, graph.modules, again)
    with graphs_applied(model, partition.settings, is_unfused=is_unfused, refusal=lambda: partition.refusal):
        yield


def usual() -> AbstractContextManager[Any]:
    """A context in which a model is compiled as PyTorch does without a budget."""
    return compiling(activation_memory_budget=1.0)


def release() -> str:
    """The version of PyTorch whose graphs these are, as ``2.13``."""
    return ".".join(torch.__version__.split(".")[:2])


@contextmanager
def compiling(**partitioner: Any) -> Iterator[None]:
    """Settings of PyTorch's compiler inside the context. partitioner: those of its partitioner."""
    # Each context compiles anew, which counts as another version of the model's code.
    dynamo = {"allow_rnn": True, "recompile_limit": _VERSIONS, "accumulated_recompile_limit": _VERSIONS}
    with torch._dynamo.config.patch(dynamo), functorch_config.patch(**partitioner):
        yield


@contextmanager
def graphs_applied(
    model: nn.Module,
    settings: Settings,
    *,
    is_unfused: bool = False,
    refusal: Callable[[], InputError | None] = lambda: None,
) -> Iterator[None]:
    """Compiles a model as a whole inside the context; calls without gradients run as before.

    settings: entered around each call. is_unfused: the graphs run operator by operator, so that what they do can be
    watched. refusal: an error to raise in place of the compiler's.
    """
    run: Callable[..., Any] | None = None

    def choose(_: nn.Module, own: Callable[..., Any]) -> Callable[..., Any]:
        nonlocal run
        if not torch.is_grad_enabled():
            return own
        if run is None:
            backend = one_by_one if is_unfused else "inductor"
            run = torch.compile(own, fullgraph=True, dynamic=False, backend=backend)
        return call

    def call(*args: Any, **kwargs: Any) -> Any:
        assert run is not None
        with settings():
            try:
                return run(*args, **kwargs)
            except Exception as error:
                own = refusal()
                if own is None:
                    raise
                raise own from error

    with _numbers_of_seeds() if is_unfused else nullcontext(), replaced_forward(model, choose):
        yield


@contextmanager
def _numbers_of_seeds() -> Iterator[None]:
    """Random numbers follow from their seeds, as in TorchInductor's code: run again, an operator draws the same ones.

    PyTorch's own kernels of these operators, which only tracing is to use, draw new numbers.
    """

    def generator(seed: torch.Tensor) -> dict[str, Any]:
        made = torch.Generator(device=seed.device)
        return {"generator": made.manual_seed(int(seed)), "device": seed.device}

    def real(size: Sequence[int], seed: torch.Tensor, mode: str, **_: Any) -> torch.Tensor:
        numbers: torch.Tensor = getattr(torch, mode)(size, dtype=torch.float32, **generator(seed))
        return numbers

    def whole(low: int, high: int, size: Sequence[int], seed: torch.Tensor) -> torch.Tensor:
        return torch.randint(low, high, size, **generator(seed))

    with torch.library._scoped_library("prims", "IMPL") as library:
        for device in ("CPU", "CUDA"):
            library.impl("inductor_random", real, device)
            library.impl("inductor_randint", whole, device)
        yield


def one_by_one(graph: fx.GraphModule, inputs: Sequence[Any], settings: Mapping[str, Any] | None = None) -> Any:
    """A backend that treats a graph as TorchInductor does until it fuses operators, and runs the result unfused.

    settings: of TorchInductor.
    """
    # The cache does not tell these graphs from fused ones.
    with functorch_config.patch(enable_autograd_cache=False):
        return compile_fx(graph, list(inputs), inner_compile=_unfused, config_patches=dict(settings or {}))


def _unfused(graph: fx.GraphModule, example_inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    run: Callable[..., Any] = boxed_nop(graph, list(example_inputs))
    return run
