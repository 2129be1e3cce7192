"""What decided the rows of a point, as plain data: code and versions of libraries, and in what two of these differ.

A finished point is reused only where everything that decided it is as it is now.
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

#: In place of a digest: files were written to after the process loaded them, so what it ran is not known.
EDITED = "edited while in use"
#: In place of a digest: the policy's package is not installed, or does not load.
MISSING = "missing"
_UNKNOWN = "they were computed by an earlier simgpu, or while its files were edited"


def deciding(sweep: Sweep) -> dict[str, Any]:
    """All that decides a sweep's results but its inputs, as it is now: code by digest, libraries by version.

    Under ``policies``, by name, what decides those rows alone that a policy takes part in.
    """
    own = own_code()
    names = set(policy_names()) & set(_words(sweep))
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


def _words(sweep: Sweep) -> Iterator[str]:
    """Every word of the policies as written, in the scenario, its overrides and all steps."""
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


def of_point(decided: Mapping[str, Any], finished: PointRows) -> dict[str, Any]:
    """The part that decided a point: of all policies, those that its rows are of."""
    policies = decided["policies"]
    used = {name for row in finished.rows for name in _used(row, policies)}
    return {**decided, "policies": {name: each for name, each in policies.items() if name in used}}


def _used(row: Mapping[str, Any], policies: Mapping[str, object]) -> Iterable[str]:
    """The policies that take part in a row, also within another's parameters; all where the row does not say."""
    if row.get("policy_name") not in policies:
        return policies
    return {row["policy_name"], *_texts(json.loads(row["parameters"]))}


def reasons(then: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """Why rows that were decided by `then` are not what would be computed now; empty where they are.

    >>> then = {"code": "aa", "libraries": {"numpy": "2.0"}, "policies": {}}
    >>> reasons(then, {**then, "libraries": {"numpy": "2.1"}}), reasons(then, then)
    (['numpy 2.0 -> 2.1'], [])
    """
    if then is None:
        return [_UNKNOWN]
    found = [*_code("simgpu", then, now), *_libraries(then["libraries"], now["libraries"])]
    for name, before in then["policies"].items():
        here = now["policies"].get(name, {"code": MISSING, "libraries": {}})
        found += _code(f"policy {name}", before, here)
        found += [f"{text} (policy {name})" for text in _libraries(before["libraries"], here["libraries"])]
    return list(dict.fromkeys(found))


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
