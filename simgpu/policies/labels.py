"""What a policy with its parameters is called in tables, figures, files and messages."""

from __future__ import annotations

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
    defaults = {field.name: field.default for field in fields(policy)}
    told = ", ".join(f"{name}={_text(value)}" for name, value in policy.parameters.items() if value != defaults[name])
    return f"{policy.name}({told})" if told else policy.name


def _text(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list | tuple) else str(value)
