"""What tests of the papers' rules share."""

from __future__ import annotations

from collections.abc import Callable


def fails(rule: Callable[..., None], *arguments: object) -> bool:
    """Whether the test of a rule fails, as it should where the design is another."""
    try:
        rule(*arguments)
    except AssertionError:
        return True
    return False
