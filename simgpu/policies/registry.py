"""The registry of policies: one line for each built-in one; packages register others through `simgpu.policies`."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from simgpu.errors import InputError, Problem, Terminated, did_you_mean
from simgpu.former_names import name_today
from simgpu.io.codestate import Code, code_behind
from simgpu.policies.base import Policy
from simgpu.program.faults import raised

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_BUILT_IN = {
    "ideal": "simgpu.policies.ideal:Ideal",
    "none": "simgpu.policies.none:NoPolicy",
    "vdnn": "simgpu.policies.vdnn:Vdnn",
    "vdnn+": "simgpu.policies.vdnnplus:VdnnPlus",
    "vdnn++": "simgpu.policies.vdnnpp:VdnnPlusPlus",
    "static": "simgpu.policies.static:Static",
    "cswap": "simgpu.policies.cswap:Cswap",
    "oracle": "simgpu.policies.oracle:Oracle",
    "cdma": "simgpu.policies.cdma:Cdma",
    "buddy": "simgpu.policies.buddy:Buddy",
    "um": "simgpu.policies.unified:UnifiedMemory",
    "modnn": "simgpu.policies.modnn.policy:Modnn",
    "superneurons": "simgpu.policies.superneurons:SuperNeurons",
    "capuchin": "simgpu.policies.capuchin.policy:Capuchin",
    "home": "simgpu.policies.home:Home",
    "joint": "simgpu.policies.joint.policy:Joint",
    "checkpoint": "simgpu.policies.checkpoint:Checkpoint",
    "save_on_cpu": "simgpu.policies.save_on_cpu:SaveOnCpu",
    "async_offload": "simgpu.policies.async_offload:AsyncOffload",
    "offload_activations": "simgpu.policies.offload_activations:OffloadActivations",
    "offload_groups": "simgpu.policies.offload_groups.policy:OffloadGroups",
    "accumulate": "simgpu.policies.accumulate:GradientAccumulation",
    "optimizer_on_host": "simgpu.policies.optimizer_on_host:OptimizerOnHost",
    "weights_on_host": "simgpu.policies.weights_on_host:WeightsOnHost",
    "fsdp": "simgpu.policies.fsdp:FullyShardedDataParallel",
    "ddp": "simgpu.policies.ddp:DistributedDataParallel",
    "lru": "simgpu.policies.lru:Lru",
    "belady": "simgpu.policies.belady:Belady",
    "swapadvisor": "simgpu.policies.swapadvisor.policy:SwapAdvisor",
    "dtr": "simgpu.policies.dtr.policy:Dtr",
    "checkmate": "simgpu.policies.checkmate.policy:Checkmate",
    "revolve": "simgpu.policies.revolve:Revolve",
    "g10": "simgpu.policies.g10.policy:G10",
    "deepum": "simgpu.policies.deepum:DeepUm",
    "flashneuron": "simgpu.policies.flashneuron:FlashNeuron",
}

GROUP = "simgpu.policies"
#: A policy as tables show it, such as vdnn(mode=conv), without another one inside.
_LABEL = re.compile(r"(?P<name>[^\s(){}:,=]+)\((?P<parameters>[^()]*)\)")
#: Outside policies by name: the loaded class, and when it was loaded.
_LOADED: dict[str, tuple[object, int]] = {}


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """One parameter: its type as text, default, description, and its choices if it is a choice."""

    name: str
    type: str
    default: object
    description: str
    choices: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """The description of a policy."""

    name: str
    summary: str
    source: str
    parameters: tuple[ParameterInfo, ...]


@lru_cache(maxsize=1)
def _outside() -> dict[str, EntryPoint]:
    """Policies of installed packages by name; built-in names cannot be overridden."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    return {name: points[name] for name in sorted(points) if name not in _BUILT_IN}


def policy_names() -> tuple[str, ...]:
    """Names of all policies, built-in ones first.

    >>> policy_names()[:3]
    ('ideal', 'none', 'vdnn')
    """
    return (*_BUILT_IN, *_outside())


def policy_class(name: str) -> type[Policy]:
    """The class of a policy. Raises `InputError` for an unknown name or an outside package that does not load."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        loaded = getattr(import_module(module), attribute)
    elif name in _outside():
        point = _outside()[name]
        try:
            loaded = point.load()
        except Terminated:
            raise
        except (Exception, SystemExit) as error:  # a foreign package may fail in any way while it is imported
            what = f"the package of policy '{name}' does not load: {raised(error)}"
            raise InputError.single("", f"policy {name}", what, f"mend or remove {point.value}") from error
        if fault := _fault(loaded, name):
            what = f"{point.value}, registered as '{name}', {fault}"
            raise InputError.single("", f"policy {name}", what, "mend its package")
        if _LOADED.get(name, (None, 0))[0] is not loaded:
            _LOADED[name] = loaded, time.time_ns()
    else:
        known, rest = re.split(r"[:=\s]", name, maxsplit=1)[0], did_you_mean(name, policy_names())
        if known != name and known in policy_names():
            rest = f"write parameters as in '{known}(parameter=value)'; simgpu list policies {known} shows them"
        raise InputError.single("", "policy", f"unknown policy '{name}'", rest)
    policy: type[Policy] = loaded
    return policy


def _fault(loaded: object, name: str) -> str:
    """Why an outside object is not a valid policy of that name, as the end of a sentence; empty if it is valid."""
    if not (isinstance(loaded, type) and issubclass(loaded, Policy)):
        return "is not a subclass of simgpu.policies.base.Policy"
    if isabstract(loaded):
        return "has no plan"
    missing = [each for each in ("name", "summary", "source") if not isinstance(getattr(loaded, each, None), str)]
    if missing:
        return f"has no {' and no '.join(missing)}"
    if loaded.name != name:
        return f"calls itself '{loaded.name}'"
    # The class must be decorated itself, not only its base: otherwise its parameters would be ignored.
    if "__dataclass_params__" not in vars(loaded):
        return "is not a dataclass"
    if loaded.parameters is not Policy.parameters:
        return "overrides parameters, which must be its fields"
    try:
        get_type_hints(loaded)
    except Exception as error:  # an annotation may name anything, or fail in any way
        return f"has a parameter whose type cannot be read: {raised(error)}"
    return ""


def outside_code(name: str) -> tuple[Code, bool] | None:
    """The code of an outside policy, and whether it changed after this process loaded it; None for a built-in policy.

    Raises `InputError` as `policy_class` does.
    """
    if name in _BUILT_IN:
        return None
    code = code_behind(policy_class(name))
    return code, code.changed_ns > _LOADED[name][1]


def describe(name: str) -> PolicyInfo:
    """Summary, source and parameters of a policy.

    >>> describe("vdnn").parameters[0].choices
    ('all', 'conv', 'dynamic')
    """
    policy = policy_class(name)
    hints = get_type_hints(policy)
    parameters = tuple(
        ParameterInfo(
            f.name,
            _type_text(hints[f.name]),
            None if f.default is MISSING else f.default,
            f.metadata.get("description", ""),
            get_args(hints[f.name]) if get_origin(hints[f.name]) is Literal else (),
        )
        for f in fields(policy)
    )
    return PolicyInfo(name, policy.summary, policy.source, parameters)


def _type_text(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "choice"
    if isinstance(hint, type):
        return hint.__name__
    return str(hint).replace("collections.abc.Sequence", "list").replace("collections.abc.Mapping", "dict")


@lru_cache
def _hints(policy: type[Policy]) -> Mapping[str, Any]:
    """The types of a policy's fields, which take long to evaluate."""
    return get_type_hints(policy)


@lru_cache
def _adapter(policy: type[Policy], parameter: str) -> TypeAdapter[Any]:
    """What checks the values of a parameter."""
    from pydantic import TypeAdapter

    return TypeAdapter(_hints(policy)[parameter])


def make_policy(name: str, parameters: Mapping[str, object] | None = None) -> Policy:
    """A policy with these parameters and defaults for the others.

    Raises `InputError` with every unknown parameter and every value of the wrong type or outside the choices, and where
    the policy itself rejects its parameters.

    >>> make_policy("vdnn", {"mode": "conv"})
    Vdnn(mode='conv', algorithms='recorded')
    """
    from pydantic import ValidationError
    from pydantic.errors import PydanticUserError

    policy = policy_class(name)
    hints = _hints(policy)
    known = [f.name for f in fields(policy)]
    problems = []
    values = {}
    for key, value in (parameters or {}).items():
        place = f"parameters.{key}"
        if key not in known:
            problems.append(Problem("", place, f"policy '{name}' has no such parameter", did_you_mean(str(key), known)))
            continue
        try:
            values[key] = _adapter(policy, key).validate_python(value, strict=True)
        except ValidationError as error:
            what = "; ".join(detail["msg"].removeprefix("Input ") for detail in error.errors())
            choices = frozenset(map(str, get_args(hints[key])))
            today = name_today(str(value), choices)
            remedy = did_you_mean(str(value), choices) if today else f"see: simgpu list policies {name}"
            problems.append(Problem("", place, f"{value!r}: {what}", remedy))
        except PydanticUserError:
            what = f"is a {_type_text(hints[key])}, which files cannot express"
            problems.append(Problem("", place, what, "leave it out, or create the policy in Python"))
    if problems:
        raise InputError(problems)
    try:
        return policy(**values)
    except InputError:
        raise
    except Exception as error:  # an outside policy may raise anything to reject its parameters
        what = f"policy '{name}' rejects its parameters: {raised(error)}"
        raise InputError.single("", "parameters", what, f"see: simgpu list policies {name}") from error


def parse_policy(text: str) -> object:
    """Parses a policy written as YAML or as in tables.

    Returns other text unchanged, so that it is reported with the scenario's other problems.

    >>> parse_policy("vdnn: {mode: conv}"), parse_policy("vdnn(mode=conv)")
    ({'vdnn': {'mode': 'conv'}}, {'vdnn': {'mode': 'conv'}})
    >>> parse_policy("accumulate(micro_batches=4, inside=vdnn(mode=conv))")
    {'accumulate': {'micro_batches': 4, 'inside': {'vdnn': {'mode': 'conv'}}}}
    """
    from simgpu.io.yaml_files import yaml_value

    written = text
    while (label := _LABEL.search(written)) is not None:
        inner = f"{{{label['name']}: {{{label['parameters'].replace('=', ': ')}}}}}"
        written = written[: label.start()] + inner + written[label.end() :]
    try:
        return yaml_value(written) or text
    except InputError as error:
        raise InputError(replace(each, place=f"policy {text[:40]!r}") for each in error.problems) from None
    except ValueError:
        return text


def policy_written(written: object) -> Policy:
    """The policy that is written as in a scenario: a name, as in tables, or a name with its parameters.

    >>> policy_written("vdnn(mode=conv)") == policy_written({"vdnn": {"mode": "conv"}})
    True
    """
    match parse_policy(written) if isinstance(written, str) else written:
        case str(name):
            return make_policy(name)
        case dict(entry) if len(entry) == 1:
            ((name, parameters),) = entry.items()
            if isinstance(name, str) and (parameters is None or isinstance(parameters, dict)):
                return make_policy(name, parameters or {})
    what = f"{written!r} is not a policy"
    raise InputError.single("", "policy", what, "write a name, or 'name: {parameter: value}'")


def policy_inside(written: object) -> Policy:
    """The policy that another one has as its parameter `inside`. Raises `InputError` that names this parameter.

    >>> policy_inside("vdnn(mode=conv)")
    Vdnn(mode='conv', algorithms='recorded')
    """
    try:
        return policy_written(written)
    except InputError as error:
        places = (each.place.removeprefix("parameters").removeprefix("policy") for each in error.problems)
        problems = zip(error.problems, places, strict=True)
        raise InputError(replace(each, place=f"parameters.inside{place}") for each, place in problems) from None
