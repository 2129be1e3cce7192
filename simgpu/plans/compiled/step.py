"""A compiled model's training step: its recorded iteration, and PyTorch's partitioner, which can be asked for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from simgpu.errors import InputError, SimgpuError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec
from simgpu.plans.compiled.graph import Graph, graph_of
from simgpu.plans.compiled.iteration import CompiledIteration
from simgpu.plans.compiled.partitions import Asked, Joint
from simgpu.plans.compiled.program import Choice
from simgpu.recorder.entry import DEFAULT_REPETITIONS, DEFAULT_WARMUP, check_arguments
from simgpu.recorder.inputs import parse_inputs
from simgpu.recorder.modelled.session import ModelledSession
from simgpu.recorder.session import Session
from simgpu.torch.graphs import graphs_applied
from simgpu.trace.model import Trace


@dataclass(frozen=True)
class CompiledStep:
    """trace: the iteration without a plan, its graphs run operator by operator. joint: the graph of the step."""

    trace: Trace
    joint: Joint

    @cached_property
    def iteration(self) -> CompiledIteration:
        """The recorded iteration, with the split that it ran."""
        return CompiledIteration(self.trace, self.joint.usual())

    @cached_property
    def asked(self) -> Asked:
        """What PyTorch's partitioner asks."""
        return self.joint.split(())[1]

    @cached_property
    def choice(self) -> Choice:
        """What the partitioner leaves to choose."""
        graph = self.joint.graph
        joint = graph_of(graph)
        nodes = {node.name: node for node in graph.graph.nodes}
        impure = {
            name
            for name, node in nodes.items()
            if isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
        }
        seeds = {name for name, node in nodes.items() if "inductor_seed" in str(node.target)}
        times = {call.node: self.iteration.time_ns(call.node) for call in joint.calls if self.iteration.runs(call.node)}
        return Choice(joint, _sizes(joint, nodes), times, impure | seeds, self.asked.forward)


def _sizes(joint: Graph, nodes: Mapping[str, Any]) -> dict[str, int]:
    sizes = {}
    for call in joint.calls:
        for memory in call.writes:
            name, _, place = memory.partition(".")
            value = nodes[name].meta["val"]
            sizes[memory] = int((value[int(place)] if place else value).untyped_storage().nbytes())
    return sizes


def record_compiled(
    factory: str | Callable[..., Any],
    *,
    batch: int,
    gpu: str | Path | GpuSpec | None = None,
    device: str = "cpu",
    optimizer: str | Callable[..., Any] = "sgd",
    inputs: Mapping[str, str] | None = None,
    seed: int = 0,
    date: str = "",
    progress: Callable[[str], None] = lambda text: None,
) -> CompiledStep:
    """Traces a model as `torch.compile` does and records one of its training iterations, operator by operator.

    The arguments are those of `simgpu.record`. The model must compile to one graph (``fullgraph=True``). Its graphs are
    those that TorchInductor gets; it fuses operators afterwards, so a compiled step takes less time and memory.

    Raises `InputError` where the model has no single graph.
    """
    check_arguments(batch=batch)
    specs = None if inputs is None else parse_inputs(inputs)
    joint = Joint()

    def around(model: nn.Module) -> AbstractContextManager[None]:
        return graphs_applied(model, joint.settings, one_by_one=True)

    session: Session | ModelledSession
    if gpu is None:
        session = Session(
            factory,
            batch,
            device,
            DEFAULT_REPETITIONS,
            DEFAULT_WARMUP,
            seed,
            optimizer,
            0,
            False,
            date,
            progress,
            inputs=specs,
            around=around,
        )
    else:
        spec = gpu if isinstance(gpu, GpuSpec) else load_node(gpu).gpu
        session = ModelledSession(factory, batch, optimizer, spec, date, progress, inputs=specs, around=around)
    try:
        trace = session.run()
    except SimgpuError as error:
        raise _no_graph(session.name, error) from error
    if joint.count != 1:
        what = f"PyTorch made {joint.count or 'no'} graphs of it, and a plan is for one"
        raise InputError.single(session.name, "model", what, "plan it with --execute eager")
    return CompiledStep(trace, joint)


def _no_graph(name: str, error: SimgpuError) -> SimgpuError:
    """The error of a model that PyTorch cannot compile as a whole; any other error is returned as it is."""
    cause = error.__cause__
    if not isinstance(cause, torch._dynamo.exc.Unsupported):
        return error
    what = f"torch.compile(fullgraph=True) fails: {str(cause).strip().splitlines()[0]}"
    return InputError.single(name, "model", what, "mend what breaks its graph, or plan it with --execute eager")
