"""The fingerprint of the software that computes a point, as plain data: digests of code and versions of libraries.

A finished point is reused only if its fingerprint has not changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError
from simgpu.io.codestate import COMMON, LOADED_NS, interpreter, own_code, versions
from simgpu.io.schema import path_steps
from simgpu.policies.registry import outside_code, policy_class, policy_names

if TYPE_CHECKING:
    from simgpu.experiments.scenarios.sweep import Sweep
    from simgpu.experiments.sweep.point import PointRows

#: Replaces a digest: files were edited after the process loaded them, so the code that ran is not known.
EDITED = "edited while in use"
#: Replaces a digest: the policy's package is not installed, or does not load.
MISSING = "missing"
_NO_FINGERPRINT = "they were computed by an earlier simgpu, or while its files were edited"


def fingerprint(sweep: Sweep) -> dict[str, Any]:
    """Everything that determines a sweep's results except its inputs: code by digest, libraries by version.

    ``policies`` holds, by name, what affects only the rows of that policy.
    """
    own = own_code()
    names = set(policy_names()) & set(_policy_words(sweep))
    return {
        "code": EDITED if own.changed_ns > LOADED_NS else own.digest,
        "libraries": {**interpreter(), **versions(COMMON)},
        "policies": {name: _of_policy(name) for name in sorted(names)},
    }


def _of_policy(name: str) -> dict[str, Any]:
    try:
        libraries, outside = versions(policy_class(name).libraries), outside_code(name)
    except InputError:
        return {"code": MISSING, "libraries": {}}
    if outside is None:  # part of simgpu's own code
        return {"libraries": libraries}
    code, edited = outside
    return {"code": EDITED if edited else code.digest, "libraries": {**code.libraries, **libraries}}


def _policy_words(sweep: Sweep) -> Iterator[str]:
    """Every text in the policies as written, in the scenario, its overrides and all steps."""
    yield from _texts(sweep.document.values.get("policies"))
    for values in (sweep.overrides, *(step for axis in sweep.axes for step in axis.steps)):
        for path, value in values.items():
            if path_steps(path)[0] == "policies":
                yield from _texts([*path_steps(path), value])


def _texts(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for key, inner in value.items():
                yield from _texts([key, inner])
        case list() | tuple():
            for inner in value:
                yield from _texts(inner)


def fingerprint_of_point(of_sweep: Mapping[str, Any], finished: PointRows) -> dict[str, Any]:
    """The part of a sweep's fingerprint that affects a point: only the policies of its rows."""
    policies = of_sweep["policies"]
    used = {name for row in finished.rows for name in _used(row, policies)}
    return {**of_sweep, "policies": {name: each for name, each in policies.items() if name in used}}


def _used(row: Mapping[str, Any], policies: Mapping[str, object]) -> Iterable[str]:
    """The policies of a row, including those in its parameters; all policies if the row names none of them."""
    if row.get("policy_name") not in policies:
        return policies
    return {row["policy_name"], *_texts(json.loads(row["parameters"]))}


def differences(then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """The differences of two fingerprints as texts; empty if they are equal.

    >>> then = {"code": "aa", "libraries": {"numpy": "2.0"}, "policies": {}}
    >>> differences(then, {**then, "libraries": {"numpy": "2.1"}}), differences(then, then)
    (['numpy 2.0 -> 2.1'], [])
    """
    if then is None:
        return [_NO_FINGERPRINT]
    results = [*_code("simgpu", then, now), *_libraries(then["libraries"], now["libraries"])]
    for name, before in then["policies"].items():
        here = now["policies"].get(name, {"code": MISSING, "libraries": {}})
        results += _code(f"policy {name}", before, here)
        results += [f"{text} (policy {name})" for text in _libraries(before["libraries"], here["libraries"])]
    return list(dict.fromkeys(results))


def _code(of: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    before, here = then.get("code"), now.get("code")
    if EDITED in (before, here):
        return [f"code of {of} was edited while in use"]
    if before == here:
        return []
    return [f"policy {of.removeprefix('policy ')} is not installed" if here == MISSING else f"code of {of} changed"]


def _libraries(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [
        f"{name} {then.get(name) or 'not installed'} -> {now.get(name) or 'not installed'}"
        for name in {**then, **now}
        if then.get(name, "") != now.get(name, "")
    ]
