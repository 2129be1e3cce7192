"""A model of transformers with another loss: torchtune's in chunks, and Liger-Kernel's that includes the output layer.

Written after their sources. Liger's two Triton kernels are replaced by operators of the same operands that have no
values: what is compared are allocations, saved tensors, products and their order, not the kernels themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import fake_impls
from torch.nn import functional

IGNORED = -100
_CHUNKS = 8


@torch.library.custom_op("simgpu_tests::liger_cross_entropy_kernel", mutates_args=("logits", "losses"))
def liger_cross_entropy_kernel(logits: torch.Tensor, losses: torch.Tensor, target: torch.Tensor) -> None:
    """Stands for Liger's kernel: losses of rows, and the gradient in place of the logits."""
    raise NotImplementedError("runs on fake tensors only")


@torch.library.custom_op("simgpu_tests::element_mul_kernel", mutates_args=("x",))
def element_mul_kernel(x: torch.Tensor, factor: torch.Tensor) -> None:
    """Stands for Liger's kernel: all values times a number on the GPU."""
    raise NotImplementedError("runs on fake tensors only")


for each in (liger_cross_entropy_kernel, element_mul_kernel):
    each.register_fake(lambda *operands: None)


class FusedLinearLoss(torch.autograd.Function):
    """``LigerFusedLinearCrossEntropyFunction`` of Liger-Kernel 0.8.2 for a mean, without bias and options."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, target: Any, scaled: bool) -> Any:
        rows, width = x.shape
        parts = -(-weight.shape[0] // width)
        size = 2 ** ((-(-rows // parts) - 1).bit_length())
        of_x = torch.zeros_like(x)
        of_weight = torch.zeros_like(weight) if weight.requires_grad else None
        losses = torch.zeros(rows, dtype=torch.float32)
        mask = target != IGNORED
        count, turned = mask.sum(), None
        torch.ops.aten._local_scalar_dense(count)
        for begin in range(0, rows, size):
            end = min(begin + size, rows)
            part = x[begin:end]
            logits = part @ weight.t()
            liger_cross_entropy_kernel(logits, losses[begin:end], target[begin:end])
            of_logits = logits
            of_x[begin:end] = of_logits @ weight
            if of_weight is not None:
                turned = of_logits.t()  # holds the logits of this chunk until the next one gets here
                of_weight += torch.mm(of_logits.t(), part).float()
        loss = losses.sum()
        del turned, mask, count
        ctx.scaled = scaled
        ctx.save_for_backward(of_x.detach(), None if of_weight is None else of_weight.detach())
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        of_x, of_weight = ctx.saved_tensors
        if ctx.scaled:
            element_mul_kernel(of_x, grad)
            if of_weight is not None:
                element_mul_kernel(of_weight, grad)
        return of_x, of_weight, None, None


def with_loss(form: str, scaled: bool = False) -> Callable[[Any], Any]:
    """Returns a function that lets a causal language model compute its loss from what its output layer reads.

    scaled: whether backward starts from a number other than 1.
    """

    def changed(module: Any) -> Any:
        def forward(input_ids: Any, labels: Any, **others: Any) -> Any:
            inner = getattr(module, module.base_model_prefix, None) or module.model  # Gemma 3 names another prefix
            hidden = inner(input_ids=input_ids, **others)[0]
            loss = _chunked(module, hidden, labels) if form == "chunked" else _fused(module, hidden, labels, scaled)
            return SimpleNamespace(loss=loss)

        module.forward = forward
        return module

    return changed


def _chunked(module: Any, hidden: Any, labels: Any) -> Any:
    """``LinearCrossEntropyLoss`` of torchtune 0.7, whose labels come shifted."""
    count = torch.where(labels != IGNORED)[0].numel()
    labels, hidden = labels.reshape(-1), hidden.reshape(-1, hidden.shape[-1])
    hidden, labels = _without_ignored(hidden, labels)
    total = torch.zeros(())  # there a number from the host, which fake tensors would not count
    parts = hidden.tensor_split(_CHUNKS, dim=0), labels.tensor_split(_CHUNKS, dim=0)
    for part, target in zip(*parts, strict=True):
        total += _loss_of_chunk(module, part, target)
    return total / count


def _without_ignored(hidden: Any, labels: Any) -> tuple[Any, Any]:
    places = torch.where(labels != IGNORED)[0]
    return hidden.index_select(0, places), labels.index_select(0, places)


def _loss_of_chunk(module: Any, hidden: Any, target: Any) -> Any:
    logits = module.get_output_embeddings()(hidden)
    return functional.cross_entropy(logits.float(), target, reduction="sum", ignore_index=IGNORED)


def saved_by_partitioner(rows: int, vocabulary: int, width: int) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and formats of what PyTorch's compiler saves of a chunk's loss, without its inputs."""
    saved: list[tuple[tuple[int, ...], str]] = []

    def loss(hidden: Any, weight: Any, target: Any) -> Any:
        return functional.cross_entropy((hidden @ weight.t()).float(), target, reduction="sum", ignore_index=IGNORED)

    def forward(graph: Any, _: Any) -> Any:
        results = graph.graph.find_nodes(op="output")[0].args[0][1:]
        values = [
            node.meta["val"] for node in results if node.op != "placeholder" and node.target.__name__[:7] != "permute"
        ]
        saved.extend((tuple(value.shape), str(value.dtype).removeprefix("torch.")) for value in values)
        return make_boxed_func(graph.forward)

    sizes = (rows, width), (vocabulary, width)
    inputs = [torch.zeros(size, dtype=torch.bfloat16, requires_grad=True) for size in sizes]
    compiled = aot_function(
        loss,
        forward,
        lambda graph, _: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    compiled(*inputs, torch.zeros(rows, dtype=torch.int64))
    return saved


def _fused(module: Any, hidden: Any, labels: Any, scaled: bool) -> Any:
    """``LigerForCausalLMLoss`` of Liger-Kernel 0.8.2."""
    labels = functional.pad(labels, (0, 1), value=IGNORED)
    shifted = labels[..., 1:].contiguous()
    hidden, shifted = hidden.view(-1, hidden.shape[-1]), shifted.view(-1)
    return FusedLinearLoss.apply(hidden, module.get_output_embeddings().weight, shifted, scaled)


@contextmanager
def last_of_each_ignored() -> Iterator[None]:
    """Fake tensors have no values: `nonzero` of a mask gives all places but the last of each sample."""
    operators, nonzero = fake_impls.op_implementations_dict, torch.ops.aten.nonzero.default
    before, samples = operators[nonzero], [1]

    def without_last(mode: Any, func: Any, mask: Any) -> Any:
        if mask.dim() == 2:
            samples[0] = mask.shape[0]
        return mask.new_empty((mask.numel() - samples[0], mask.dim()), dtype=torch.int64)

    operators[nonzero] = without_last
    try:
        yield
    finally:
        operators[nonzero] = before
