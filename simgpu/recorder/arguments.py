"""The arguments of a module: positional or keyword, possibly nested, and the parameters of its forward."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten_with_path, tree_map_only

from simgpu.errors import InputError, Problem, did_you_mean
from simgpu.recorder.inputs import BATCH, INTEGERS, InputSpec

#: Positional arguments, or arguments by keyword.
Arguments = tuple[Any, ...] | dict[str, Any]
_FORMS = "give a tensor, a tuple of arguments or a mapping of keywords"
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_PLAIN = (torch.Tensor, bool, int, float, str, type(None))


def arguments(name: str, where: str, value: object) -> Arguments:
    """Converts a tensor, tuple, list or mapping to arguments; these may contain nested tuples, lists and dicts.

    Raises `InputError` naming `name` and `where` for anything else.
    """
    given: Arguments
    if isinstance(value, torch.Tensor):
        given = (value,)
    elif isinstance(value, Mapping):
        given = dict(value)
    elif isinstance(value, tuple | list):
        given = tuple(value)
    else:
        raise InputError.single(name, where, f"they are {type(value).__name__} {value!r}", _FORMS)
    unknown = [(path, leaf) for path, leaf in tree_flatten_with_path(given)[0] if not isinstance(leaf, _PLAIN)]
    if unknown:
        problems = [
            Problem(
                name,
                f"{where}, {_dotted(path)}",
                f"it is {type(leaf).__name__}, which is not supported",
                "give tensors, numbers, text and None, in tuples, lists and dicts",
            )
            for path, leaf in unknown
        ]
        raise InputError(problems)
    return given


def call(module: nn.Module, given: Arguments) -> Any:
    """Calls a module with positional or keyword arguments, and returns its output."""
    return module(**given) if isinstance(given, dict) else module(*given)


def moved(given: Any, device: torch.device) -> Any:
    """Returns the same arguments with every tensor on a device."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), given)


def named_tensors(kind: str, given: Arguments) -> dict[str, torch.Tensor]:
    """Returns every tensor in the arguments by its path; the first positional argument is named `kind`.

    >>> one = torch.ones(1)
    >>> list(named_tensors("input", (one, [one]))), list(named_tensors("input", {"x": one}))
    (['input', 'input.1.0'], ['input.x'])
    """
    result = {}
    for path, leaf in tree_flatten_with_path(given)[0]:
        if isinstance(leaf, torch.Tensor):
            dotted = _dotted(path)
            if isinstance(given, tuple) and (dotted == "0" or dotted.startswith("0.")):
                dotted = dotted[2:]
            result[f"{kind}.{dotted}" if dotted else kind] = leaf
    return result


def described(given: Arguments) -> str:
    """Describes the tensors in the arguments: path, type and shape of each.

    >>> described({"x": torch.ones(2, 3)})
    'input.x float32 (2, 3)'
    """
    tensors = named_tensors("input", given).items()
    return ", ".join(f"{path} {str(leaf.dtype).removeprefix('torch.')} {tuple(leaf.shape)}" for path, leaf in tensors)


def forward_of(module: nn.Module) -> str:
    """Returns the signature of a module's forward: parameter names and defaults.

    >>> forward_of(nn.Embedding(2, 2)), forward_of(nn.MultiheadAttention(2, 1))[:44]
    ('forward(input)', 'forward(query, key, value, key_padding_mask=')
    """
    plain = [parameter.replace(annotation=parameter.empty) for parameter in _parameters(module).values()]
    return f"forward{inspect.Signature(plain)}"


def required(module: nn.Module) -> list[str]:
    """Returns the names of forward's parameters without a default."""
    return [
        name
        for name, parameter in _parameters(module).items()
        if parameter.default is parameter.empty and parameter.kind not in _VARIABLE
    ]


def ask_for_inputs(name: str, module: nn.Module) -> InputError:
    """Returns the error for a module without inputs, which explains how to specify them."""
    options = " ".join(f"--input {parameter}={BATCH}x..." for parameter in required(module) or ["NAME"])
    what = f"the factory returned only {type(module).__name__}, without the inputs of {forward_of(module)}"
    remedy = (
        f"name its inputs, {options} (inputs={{...}} in Python), each as SHAPE[:TYPE[:BELOW]]: {BATCH}x3x224x224 is "
        f"{BATCH} images, {BATCH}x128:int64:50257 is rows of 128 tokens below 50257; or return (module, inputs), or "
        "(module, inputs, labels, loss), from the factory"
    )
    return InputError.single(name, "inputs", what, remedy)


def random_arguments(name: str, module: nn.Module, specs: Mapping[str, InputSpec], batch: int) -> dict[str, Any]:
    """Returns random tensors from torch's default generator; raises `InputError` if forward lacks these parameters."""
    parameters = _parameters(module)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = [key for key, parameter in parameters.items() if parameter.kind not in _VARIABLE]
    problems = [
        Problem(name, f"input {key}", f"{forward_of(module)} has no such parameter", did_you_mean(key, known))
        for key in specs
        if not takes_any and key not in known
    ]
    problems += [
        Problem(name, "inputs", f"{forward_of(module)} needs {key} too", f"give --input {key}={BATCH}x...")
        for key in required(module)
        if key not in specs
    ]
    problems += [
        Problem(
            name,
            f"input {key}",
            f"{forward_of(module)} takes it by position only",
            "return (module, inputs) from the factory, with a tuple of inputs",
        )
        for key, parameter in parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY and key in specs
    ]
    if problems:
        raise InputError(problems)
    return {key: _random(spec, batch) for key, spec in specs.items()}


def _parameters(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters


def _random(spec: InputSpec, batch: int) -> torch.Tensor:
    sizes, dtype = spec.sizes(batch), getattr(torch, spec.dtype)
    if spec.dtype in INTEGERS or dtype is torch.bool:
        return torch.randint(spec.below or 2, sizes, dtype=dtype)
    return torch.randn(sizes, dtype=dtype)


def _dotted(path: Any) -> str:
    return ".".join(str(getattr(step, "key", getattr(step, "idx", getattr(step, "name", step)))) for step in path)
