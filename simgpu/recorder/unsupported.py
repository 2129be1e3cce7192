"""Rejects models that cannot be recorded (compiled, wrapped for several GPUs, or with flex attention).

`check_module` looks for wrappers among the submodules; `refuse_unsupported` detects the rest at run time; `raised_at`
and `running_at` find lines in user code. PyTorch's distributed classes are matched by name, without importing them.
"""

from __future__ import annotations

import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from simgpu.errors import InputError, Problem
from simgpu.recorder.compiled_parts import FlexAttentionError
from simgpu.torch.alone import alone

_EAGER = "simgpu records eager iterations: "
_ONE_GPU = "simgpu records one GPU: "
_COMPILED = (
    f"{_EAGER}pass the module before torch.compile{{inner}}, set TORCHDYNAMO_DISABLE=1, or use simgpu.record_step"
)
_FLEX = "simgpu does not support it; use torch.nn.functional.scaled_dot_product_attention, with a mask as a tensor"
_FLEX_MODULE = "torch.nn.attention.flex_attention"
_DTENSOR = f"{_ONE_GPU}give it as a plain tensor, before parallelize_module or distribute_tensor"
#: PyTorch's classes that wrap or replace a module: (what is wrong, what to do). {inner} is the path of the wrapped
#: module.
_WRAPPERS = {
    "OptimizedModule": ("is wrapped by torch.compile (OptimizedModule)", _COMPILED),
    "ScriptModule": (
        "is compiled by torch.jit (ScriptModule)",
        f"{_EAGER}pass the module before torch.jit.script or torch.jit.trace",
    ),
    "DistributedDataParallel": (
        "is wrapped by DistributedDataParallel",
        f"{_ONE_GPU}pass the module before it is wrapped{{inner}}",
    ),
    "DataParallel": ("is wrapped by DataParallel", f"{_ONE_GPU}pass the module before it is wrapped{{inner}}"),
    "FullyShardedDataParallel": (
        "is wrapped by FullyShardedDataParallel",
        f"{_ONE_GPU}pass the module before it is wrapped",
    ),
    "FSDPModule": ("is sharded by fully_shard (FSDP2)", f"{_ONE_GPU}pass the module before fully_shard"),
    "DDP": ("is replicated by replicate (DDP)", f"{_ONE_GPU}pass the module before replicate"),
    "ReplicateModule": ("is replicated by replicate (DDP)", f"{_ONE_GPU}pass the module before replicate"),
}
_IN_PLACE = "compile()"
_INNER = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module", "DataParallel": "module"}
_DISTRIBUTED = ("uses torch.distributed", f"{_ONE_GPU}remove torch.distributed")
#: PyTorch modules, and (what is wrong, what to do) if an exception was raised through them.
_MODULES = {
    "torch.nn.parallel.distributed": _WRAPPERS["DistributedDataParallel"],
    "torch.nn.parallel.data_parallel": _WRAPPERS["DataParallel"],
    "torch.distributed.fsdp._fully_shard": _WRAPPERS["FSDPModule"],
    "torch.distributed._composable.fsdp": _WRAPPERS["FSDPModule"],
    "torch.distributed.fsdp": _WRAPPERS["FullyShardedDataParallel"],
    "torch.distributed.tensor": _DISTRIBUTED,
    "torch.distributed._functional_collectives": _DISTRIBUTED,
    "torch.distributed.distributed_c10d": _DISTRIBUTED,
    _FLEX_MODULE: (f"calls flex_attention of {_FLEX_MODULE}", _FLEX),
}


def check_module(name: str, module: nn.Module, *, may_compile: bool = False) -> None:
    """Raises `InputError` naming `name` and, for each kind of wrapper in the module, the submodules of that kind.

    may_compile: whether ``torch.compile`` is no such wrapper.
    """
    result: dict[str, list[str]] = {}
    for path, part in module.named_modules():
        kind = _wrapper(type(part))
        if kind is not None:
            result.setdefault(kind, []).append(path)
        elif hasattr(part._compiled_call_impl, "_torchdynamo_orig_callable"):
            result.setdefault(_IN_PLACE, []).append(path)
    allowed = ("OptimizedModule", _IN_PLACE) if may_compile else ()
    problems = [_wrapped(name, kind, paths) for kind, paths in result.items() if kind not in allowed]
    if not problems:
        distributed = [path for path, tensor in _named_tensors(module) if "DTensor" in _names(type(tensor))]
        if distributed:
            what = f"{_listed(distributed)} is a DTensor, one tensor on several GPUs"
            problems = [Problem(name, "module", what, _DTENSOR)]
    if problems:
        raise InputError(problems)


@contextmanager
def refuse_unsupported(name: str, *, may_compile: bool = False) -> Iterator[None]:
    """Rejects calls of compiled functions and other recordings, and reports errors inside unsupported parts of PyTorch.

    Inside the context, compiled functions run uncompiled, because compiled code would access the missing memory of fake
    tensors. may_compile: they run nevertheless, where their graphs run operator by operator. Raises `InputError` naming
    `name` and the line in user code.
    """
    refused: list[InputError] = []
    what, remedy = "another iteration is being recorded", "end that recording first"
    try:
        with (
            alone("recording", InputError.single(name, "context", what, remedy)),
            nullcontext() if may_compile else _no_compiled_code(name, refused),
        ):
            yield
    except Exception as error:
        if refused:
            raise refused[0] from None
        refusal = _refusal(name, error)
        if refusal is None:
            raise
        raise refusal from error
    if refused:
        raise refused[0]


def _wrapper(kind: type) -> str | None:
    return next((name for name in _names(kind) if name in _WRAPPERS), None)


def _names(kind: type) -> Iterator[str]:
    """Returns the names of PyTorch's classes among a class and its bases."""
    return (base.__name__ for base in kind.__mro__ if base.__module__.partition(".")[0] == "torch")


def _wrapped(name: str, kind: str, paths: list[str]) -> Problem:
    if kind == _IN_PLACE:
        remedy = f"{_EAGER}remove the call of compile(), set TORCHDYNAMO_DISABLE=1, or use simgpu.record_step"
        return Problem(name, "module", f"{_listed(paths)} is compiled in place, by module.compile()", remedy)
    what, remedy = _WRAPPERS[kind]
    inner = ".".join(("model", *filter(None, (paths[0], _INNER.get(kind)))))
    return Problem(name, "module", f"{_listed(paths)} {what}", remedy.format(inner=f" ({inner})"))


def _listed(paths: list[str]) -> str:
    """Formats paths of submodules: the first one, and the number of others.

    >>> _listed(["", "0"]), _listed(["layers.0"])
    ('the model, and 1 module in it,', "'layers.0'")
    """
    more = len(paths) - 1
    if not paths[0]:
        return "the model" + (f", and {more} module{'s' if more > 1 else ''} in it," if more else "")
    return f"{paths[0]!r}" + (f", and {more} more," if more else "")


def _named_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


@contextmanager
def _no_compiled_code(name: str, refused: list[InputError]) -> Iterator[None]:
    """Keeps Dynamo switched off; a call that would switch it on is added to `refused` and raised.

    The error is raised at the end of the compiled call, when Dynamo has restored its own settings.
    """
    from torch._dynamo import eval_frame  # every optimizer imports it too

    own: Callable[[Any], Any] = eval_frame._maybe_set_eval_frame
    outermost: FrameType | None = None

    def switch(callback: Any) -> Any:
        nonlocal outermost
        caller = sys._getframe(1)
        if callback is not None:
            refused.append(_compiled_call(name, caller))
            outermost = outermost or caller
            return own(None)
        before = own(None)
        if caller is outermost:  # an exception elsewhere would abort PyTorch's own code
            outermost = None
            raise refused[0]
        return before

    eval_frame._maybe_set_eval_frame = switch
    try:
        yield
    finally:
        eval_frame._maybe_set_eval_frame = own


def _compiled_call(name: str, frame: FrameType) -> InputError:
    """Returns the error for a compiled function, from the frame of Dynamo's wrapper."""
    function = inspect.unwrap(frame.f_locals["fn"])
    called = getattr(function, "__qualname__", type(function).__name__)
    if getattr(function, "__module__", None) == _FLEX_MODULE:
        what, remedy = f"it calls {called.partition('.')[0]} of {_FLEX_MODULE}", _FLEX
    else:
        what = f"it calls {called}, which is compiled by torch.compile"
        remedy = f"{_EAGER}call it before torch.compile, set TORCHDYNAMO_DISABLE=1, or use simgpu.record_step"
    return InputError.single(name, ", ".join(filter(None, ("model", running_at(frame)))), what, remedy)


def _refusal(name: str, error: BaseException) -> InputError | None:
    """Returns the error for an exception raised through an unsupported PyTorch module; None for any other."""
    cause = error.__cause__ if isinstance(error, InputError) else error
    if cause is None:
        return None
    if isinstance(getattr(cause, "inner_exception", None), FlexAttentionError):  # of Dynamo's own error
        return InputError.single(name, "model", f"a compiled part calls {_FLEX_MODULE}", _FLEX)
    modules = [f"{frame.f_globals.get('__name__', '')}." for frame, _ in traceback.walk_tb(cause.__traceback__)]
    for module, (what, remedy) in _MODULES.items():
        if any(running.startswith(f"{module}.") for running in modules):
            place = ", ".join(filter(None, ("model", raised_at(cause))))
            return InputError.single(name, place, f"it {what}", remedy.format(inner=""))
    return None


_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = tuple({sysconfig.get_paths()[kind] + os.sep for kind in ("purelib", "platlib")})
_TORCH = torch.__path__[0] + os.sep
_SIMGPU = str(Path(__file__).parents[1]) + os.sep


def raised_at(error: BaseException) -> str:
    """Returns the innermost line of user code in an error's traceback, as ``file:line``; empty if there is none."""
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return _first(reversed(lines))


def running_at(frame: FrameType) -> str:
    """Returns the innermost line of user code that called this frame, as ``file:line``; empty if simgpu did."""
    lines = ((caller.f_code.co_filename, line) for caller, line in traceback.walk_stack(frame))
    return _first(takewhile(lambda line: not line[0].startswith(_SIMGPU), lines))


def _first(lines: Iterable[tuple[str, int]]) -> str:
    for file, line in lines:
        if _is_foreign(file):
            inside = Path(file).is_relative_to(Path.cwd())
            return f"{os.path.relpath(file) if inside else file}:{line}"
    return ""


def _is_foreign(file: str) -> bool:
    if file.startswith(("<", _TORCH, _SIMGPU)):
        return False
    return file.startswith(_INSTALLED) or not file.startswith(_LIBRARY)
