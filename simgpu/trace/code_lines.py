"""The line of code that an allocation came from, by its stack."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simgpu.trace.allocations import Frame

#: The node of the autograd graph that runs, and an operator, in the functions of a stack without Python.
_NODE = re.compile(r"torch::autograd::(?:generated::)?(\w+)::apply\(")
_OPERATOR = re.compile(r"at::_ops::(\w+)::")
_WORKSPACE = "at::cuda::getNewWorkspace"


def where_of(stack: Sequence[Frame]) -> str:
    """The line of the user's code that a stack came from: the innermost that is in no installed package.

    Backward runs in a thread without Python code: there, the node of the autograd graph.

    >>> inner = Frame("forward", "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125)
    >>> where_of([Frame("malloc", "", 0), inner, Frame("forward", "/home/me/model.py", 12)])
    '/home/me/model.py:12 forward'
    >>> where_of([Frame("torch::autograd::generated::BmmBackward0::apply(...)", "", 0)])
    'backward: BmmBackward0'
    """
    if any(frame.function.startswith(_WORKSPACE) for frame in stack):
        return "cuBLAS workspace"
    lines = [frame for frame in stack if frame.file.endswith(".py")]
    own = [frame for frame in lines if "site-packages" not in frame.file and "/lib/python" not in frame.file]
    if not lines:
        for name, pattern in (("backward", _NODE), ("operator", _OPERATOR)):
            for frame in stack:
                if found := pattern.search(frame.function):
                    return f"{name}: {found[1]}"
        # A simulated run has tensors in place of stacks.
        named = [str(frame) for frame in stack if "::" not in frame.function and frame.file]
        return named[0] if named else "C++ code" if stack else "not recorded"
    return str((own or lines)[0])


def short_line(where: str) -> str:
    """A line of code with the last two parts of its path.

    >>> short_line("/home/me/project/src/model.py:12 forward")
    'src/model.py:12 forward'
    """
    path, space, function = where.partition(" ")
    return "/".join(path.rsplit("/", 2)[-2:]) + space + function if ".py:" in path else where
