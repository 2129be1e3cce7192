"""`record_compiled`: a training step of a compiled model, to be planned for; imports PyTorch only when called."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, MissingExtraError, SimgpuError
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import GpuSpec
from simgpu.recorder.entry import DEFAULT_REPETITIONS, DEFAULT_WARMUP, check_arguments, check_micro_batches
from simgpu.recorder.inputs import parse_inputs
from simgpu.trace.model import Trace

if TYPE_CHECKING:
    from simgpu.plans.compiled.partitions import Joint
    from simgpu.plans.compiled.step import CompiledStep
    from simgpu.recorder.modelled.session import ModelledSession
    from simgpu.recorder.session import Session


def record_compiled(
    factory: str | Callable[..., Any],
    *,
    batch: int,
    gpu: str | Path | GpuSpec | None = None,
    device: str = "cpu",
    optimizer: str | Callable[..., Any] = "sgd",
    inputs: Mapping[str, str] | None = None,
    micro_batches: int = 1,
    seed: int = 0,
    date: str = "",
    progress: Callable[[str], None] = lambda text: None,
) -> CompiledStep:
    """Traces a model as `torch.compile` does and records one of its training iterations, operator by operator.

    The arguments are those of `simgpu.record`. The model must compile to one graph (``fullgraph=True``). Its graphs are
    those that TorchInductor gets; it fuses operators afterwards, so a compiled step takes less time and memory.

    Raises `InputError` where the model has no single graph, and `MissingExtraError` without PyTorch.
    """
    check_arguments(batch=batch, micro_batches=micro_batches)
    check_micro_batches(batch, micro_batches)
    specs = None if inputs is None else parse_inputs(inputs)
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("recording a model", "torch", "record")
    from simgpu.plans.compiled.partitions import Joint
    from simgpu.plans.compiled.step import CompiledStep
    from simgpu.recorder.modelled.session import ModelledSession
    from simgpu.recorder.session import Session

    joint = Joint()
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
            micro_batches=micro_batches,
            around=_compiled_by(joint),
        )
    else:
        spec = gpu if isinstance(gpu, GpuSpec) else load_node(gpu).gpu
        session = ModelledSession(
            factory,
            batch,
            optimizer,
            spec,
            date,
            progress,
            inputs=specs,
            micro_batches=micro_batches,
            around=_compiled_by(joint),
        )
    return CompiledStep(_recorded(session, joint), joint, micro_batches)


def _recorded(session: Session | ModelledSession, joint: Joint) -> Trace:
    try:
        trace = session.run()
    except SimgpuError as error:
        raise _no_graph(session.name, error) from error
    if joint.count != 1:
        what = f"PyTorch made {joint.count or 'no'} graphs of it, and a plan is for one"
        raise InputError.single(session.name, "model", what, "plan it with --execute eager")
    return trace


def _compiled_by(joint: Joint) -> Callable[[Any], AbstractContextManager[None]]:
    """A context for a model, which is compiled inside; its graphs run operator by operator."""
    from simgpu.torch.graphs import graphs_applied

    return lambda model: graphs_applied(model, joint.settings, is_unfused=True)


def _no_graph(name: str, error: SimgpuError) -> SimgpuError:
    """The error of a model that PyTorch cannot compile as a whole; any other error is returned as it is."""
    cause = error.__cause__
    if type(cause).__module__ != "torch._dynamo.exc":
        return error
    what = f"torch.compile(fullgraph=True) fails: {str(cause).strip().splitlines()[0]}"
    return InputError.single(name, "model", what, "mend what breaks its graph, or plan it with --execute eager")
