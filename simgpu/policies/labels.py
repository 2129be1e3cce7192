"""What a policy with its parameters is called in tables, figures, files and messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simgpu.policies.base import Policy


def policy_label(policy: Policy) -> str:
    """The policy's name, and the parameters that are not its defaults, lists as files have them.

    >>> from simgpu.policies.vdnn import Vdnn
    >>> policy_label(Vdnn(mode="conv")), policy_label(Vdnn(mode="all"))
    ('vdnn(mode=conv)', 'vdnn')
    >>> from simgpu.policies.checkpoint import Checkpoint
    >>> policy_label(Checkpoint(("layer1.0", "layer1.1")))
    'checkpoint(blocks=[layer1.0, layer1.1])'
    """
    # Not `policy.parameters`, which an outside policy may override: it is named even where its code fails.
    values = ((field, getattr(policy, field.name)) for field in fields(policy))
    told = ", ".join(f"{field.name}={_text(value)}" for field, value in values if _differs(value, field.default))
    return f"{policy.name}({told})" if told else policy.name


def plain_parameters(parameters: Mapping[str, object]) -> dict[str, object]:
    """Parameters for JSON: what it cannot hold, such as an object of an outside policy or NaN, becomes a text.

    >>> from pathlib import Path
    >>> plain_parameters({"mode": "conv", "limit": float("nan"), "folder": Path("runs")})
    {'mode': 'conv', 'limit': 'nan', 'folder': 'runs'}
    """
    return {name: value if _is_plain(value) else _text(value) for name, value in parameters.items()}


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _differs(value: object, default: object) -> bool:
    try:
        return bool(value != default)
    except Exception:  # an array compares element by element
        return value is not default


def _text(value: object) -> str:
    try:
        return f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)
    except Exception:  # an outside policy's parameter may be anything
        return f"<{type(value).__name__}>"
