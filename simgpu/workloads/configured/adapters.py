"""`Adapter`: LoRA's two narrow layers next to a frozen one, as peft's ``lora/layer.py`` runs them."""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.eager.pointwise import add, cast, dropout, scale
from simgpu.workloads.eager.products import linear
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor

#: Stands for every linear layer but the one that computes the logits, as in peft.
ALL_LINEAR = "all-linear"
#: The layers that compute logits.
OF_LOGITS = frozenset(("lm_head", "embed_out"))


@dataclass(frozen=True, slots=True)
class Lora:
    """What is adapted. rank: of the product of both layers. targets: names of linear layers, or `ALL_LINEAR`. dtype:
    number format of the adapters. dropout: rate at which values of an adapter's input are dropped."""

    rank: int
    targets: tuple[str, ...]
    dtype: str = "float32"
    dropout: float = 0.0

    def adapts(self, name: str) -> bool:
        """Whether the linear layer of this name is adapted.

        >>> Lora(8, (ALL_LINEAR,)).adapts("lm_head"), Lora(8, ("q_proj",)).adapts("q_proj")
        (False, True)
        """
        return name in self.targets or (ALL_LINEAR in self.targets and name not in OF_LOGITS)


@dataclass(frozen=True, slots=True)
class Adapter:
    """Both layers, (rank, inputs) and (outputs, rank), in float32 or the frozen layer's format.

    peft converts them to float32 next to a half-precision layer (``autocast_adapter_dtype``), so the input of each
    adapted layer is converted and saved, and the sum is converted to the format of the frozen layer's result. Next to a
    layer of four bits (``lora/bnb.py``), the change is converted before it is added, and nothing is under autocast.
    At a `rate` above 0, each adapter drops values of the converted input, which is then no longer saved: saved are the
    mask and what the mask leaves.
    """

    first: Tensor
    second: Tensor
    rate: float

    @classmethod
    def create(cls, session: Session, lora: Lora, inputs: int, outputs: int) -> Adapter:
        """Creates the weights in the current layer."""
        with session.layer("lora_A.default"):
            first = session.weight("weight", (lora.rank, inputs), lora.dtype)
        with session.layer("lora_B.default"):
            return cls(first, session.weight("weight", (outputs, lora.rank), lora.dtype), lora.dropout)

    def __call__(self, session: Session, x: Tensor, result: Tensor, *, in_four_bits: bool = False) -> Tensor:
        """The frozen layer's result for x, with the change that the adapter learned."""
        converts = session.autocast is None or not in_four_bits
        x = cast(session, x, self.first.dtype) if converts else x
        with session.layer("lora_dropout.default"):
            x = dropout(session, x, self.rate)
        with session.layer("lora_A.default"):
            x = linear(session, x, self.first)
        with session.layer("lora_B.default"):
            x = linear(session, x, self.second)
        change = scale(session, x)
        if in_four_bits:
            return add(session, result, cast(session, change, result.dtype) if converts else change)
        return cast(session, add(session, result, change), result.dtype)
