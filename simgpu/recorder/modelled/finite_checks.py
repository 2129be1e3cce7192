"""Answers checks for NaN and infinity on fake tensors, which have no values: all numbers are taken to be finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

aten = torch.ops.aten
_SAME = (aten.any, aten.all)
_OPPOSITE = (aten.logical_not, aten.bitwise_not)
_BOTH = (aten.mul, aten.logical_and, aten.bitwise_and)
_EITHER = (aten.logical_or, aten.bitwise_or)


class FiniteChecks:
    """Notes which tensors are results of such checks.

    scaled, guarded: whether a gradient scaler, or a check of the model or its loop, has read a result.
    """

    def __init__(self) -> None:
        self._answers = WeakIdKeyDictionary()
        self._of_scaler = WeakIdKeyDictionary()
        self._absolute = WeakIdKeyDictionary()
        self._infinite = WeakIdKeyDictionary()
        self.scaled = False
        self.guarded = False

    def note(self, func: Any, args: tuple[Any, ...], returned: Any) -> None:
        """Called after each operator."""
        if func is aten._amp_foreach_non_finite_check_and_unscale_.default:
            self._of_scaler[args[1]] = True
            return
        if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            self._answers.pop(args[0], None)
        if func is aten.abs.default:
            self._absolute[returned] = True
        if isinstance(returned, torch.Tensor) and any(isinstance(each, float) and math.isinf(each) for each in args):
            self._infinite[returned] = True
        answer = self._answer(func.overloadpacket, args)
        if answer is not None:
            self._answers[returned] = answer

    def result_of_scaler(self, tensor: torch.Tensor) -> float | None:
        """Returns the result of a gradient scaler's check; None if the tensor is none."""
        if tensor not in self._of_scaler:
            return None
        self.scaled = True
        return 0.0

    def result(self, tensor: torch.Tensor) -> bool | None:
        """Returns the result of another check; None if the tensor is none."""
        answer: bool | None = self._answers.get(tensor)
        self.guarded |= answer is not None
        return answer

    def _answer(self, packet: Any, args: tuple[Any, ...]) -> bool | None:
        if packet in (aten.isnan, aten.isinf):
            return None if args[0] in self._infinite else False
        if packet in (aten.eq, aten.ne):
            if args[0] is args[1]:
                return bool(packet is aten.eq)
            # ``torch.isfinite`` compares the absolute value; a mask of minus infinity is compared itself.
            is_infinity = isinstance(args[1], float) and math.isinf(args[1]) and args[0] in self._absolute
            return bool(packet is aten.ne) if is_infinity else None
        if not self._answers or packet not in (*_SAME, *_OPPOSITE, *_BOTH, *_EITHER):
            return None
        if packet in _SAME or packet in _OPPOSITE:
            answer: bool | None = self._answers.get(args[0])
            return answer if packet in _SAME or answer is None else not answer
        pair = [self._answers.get(each) if isinstance(each, torch.Tensor) else None for each in args[:2]]
        if None in pair:
            return None
        return all(pair) if packet in _BOTH else any(pair)
