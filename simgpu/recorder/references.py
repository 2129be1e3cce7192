"""A callable by its reference, ``module.path:attribute``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from simgpu.errors import InputError, SimgpuError, did_you_mean


def find_callable(name: str, known: Mapping[str, str], *, kind: str, place: str) -> Callable[..., Any]:
    """The callable behind a known name or ``module.path:attribute``.

    known: references by name. kind, place: what is looked for and where it was asked for, as told in errors.
    Raises `InputError` when the module cannot be imported or the attribute is missing or not callable.

    >>> find_callable("root", {"root": "math:sqrt"}, kind="a function", place="function")(9)
    3.0
    """
    module_path, colon, attribute = known.get(name, name).partition(":")
    if not colon or not module_path or not attribute:
        what = f"{name!r} is neither {kind} nor module.path:factory"
        remedy = f"{did_you_mean(name, known)}; or name your own as module.path:factory"
        raise InputError.single(name, place, what, remedy)
    found: Any = _import(name, place, module_path)
    for step in attribute.split("."):
        if not hasattr(found, step):
            near = [word for word in dir(found) if not word.startswith("_") and callable(getattr(found, word))]
            raise InputError.single(name, place, f"there is no {step!r} in it", did_you_mean(step, near))
        found = getattr(found, step)
    if not callable(found):
        what = f"{attribute!r} is not callable but a {type(found).__name__}"
        raise InputError.single(name, place, what, "name a function or a class")
    return found  # type: ignore[no-any-return]


def _import(name: str, place: str, module_path: str) -> Any:
    try:
        return importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        missing = error.name or module_path
        if module_path == missing or module_path.startswith(f"{missing}."):
            remedy = "check the spelling, and that its folder is on Python's path"
            raise InputError.single(name, place, f"there is no module {missing!r}", remedy) from error
        what = f"module {module_path!r} needs {missing!r}, which is not installed"
        raise InputError.single(name, place, what, f"install {missing}") from error
    except SimgpuError:
        raise
    except Exception as error:
        what = f"importing {module_path!r} raised {type(error).__name__}: {error}"
        raise InputError.single(name, place, what, "put the module right first") from error
