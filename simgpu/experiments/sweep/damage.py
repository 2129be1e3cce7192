"""What is wrong with what a sweep's database holds: its rows, what decided them, and which sweep they are of.

The file may have been edited, or damaged in a way that SQLite does not see.
"""

from __future__ import annotations

from collections.abc import Mapping

from simgpu.experiments.sweep.table import OUTCOME, PARAMETERS, PROVENANCE

_KINDS = {column.name: column.kind for column in (*PARAMETERS, *OUTCOME, *PROVENANCE)}
_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "text": (str,)}
#: Of measured numbers, which are in further columns.
_NUMBERS = (int, float, bool)


def rows_fault(rows: object) -> str:
    """What is wrong with the rows of a point, empty if nothing.

    >>> rows_fault([{"outcome": "ok", "batch": 32, "iteration_ns": 63}]), rows_fault([{"outcome": "ok", "batch": "x"}])
    ('', "its batch is 'x'")
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return "its rows are no table"
    for row in rows:
        if not isinstance(row.get("outcome"), str):
            return "a row has no outcome"
        for name, value in row.items():
            types = _TYPES[_KINDS[name]] if name in _KINDS else _NUMBERS
            if value is not None and type(value) not in types:
                return f"its {name[:40]} is {repr(value)[:40]}"
    return ""


def decided_fault(decided: object) -> str:
    """What is wrong with what decided rows (`simgpu.experiments.sweep.deciding`), empty if nothing.

    >>> decided_fault({"code": "aa", "libraries": {}, "policies": {"none": {"libraries": {}}}}), decided_fault([])
    ('', 'it does not say what decided its points')
    """
    parts = (decided, *_values(decided, "policies"))
    sound = all(isinstance(_value(part, "libraries"), dict) for part in parts)
    return "" if sound and isinstance(_value(decided, "policies"), dict) else "it does not say what decided its points"


def identity_fault(swept: object) -> str:
    """What is wrong with what says which sweep the points are of (`simgpu.experiments.sweep.folder`)."""
    mappings = ("scenario", "overrides", "inputs")
    sound = all(isinstance(_value(swept, key), dict) for key in mappings) and isinstance(_value(swept, "axes"), list)
    return "" if sound and isinstance(_value(swept, "simgpu"), str) else "it does not say which sweep it is of"


def _value(mapping: object, key: str) -> object:
    return mapping.get(key) if isinstance(mapping, Mapping) else None


def _values(mapping: object, key: str) -> tuple[object, ...]:
    inner = _value(mapping, key)
    return tuple(inner.values()) if isinstance(inner, Mapping) else ()
