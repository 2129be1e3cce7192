"""Transformers' modules parallelized by PyTorch's DTensor on fake tensors, and an iteration of one of their GPUs.

The plan is torchtitan's for Llama (``apply_tp`` of torchtitan/models/llama3/infra/parallelize.py before 9810191b), with
transformers' names. No GPU communicates: PyTorch's fake process group returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: simgpu with its extra 'record'")

import torch
import torch.distributed as dist
from torch._subclasses import fake_impls
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

from simgpu.recorder import workload
from simgpu.recorder.ledger import Ledger
from simgpu.recorder.modelled.fake_tensors import FakeTensors
from simgpu.recorder.saved import SavedPass
from simgpu.recorder.structure import StructurePass
from simgpu.trace.model import Trace
from tests.workloads.configured.transformers_models import recorded

#: Returns its operand once the collective has written it; on fake tensors, it returns another tensor.
_WAIT = torch.ops._c10d_functional.wait_tensor.default


def recorded_part(
    values: dict[str, Any],
    batch: int,
    length: int,
    count: int,
    *,
    changed: Callable[[Any], Any] = lambda model: model,
    **options: Any,
) -> Trace:
    """One training iteration of the first of `count` GPUs.

    changed: returns the model to train from the parallelized one. options: of `transformers_models.recorded`.
    """

    def parallelized(model: Any) -> Any:
        return changed(_parallelized(model, count, length))

    with pytest.MonkeyPatch.context() as patch, _group(count), loss_parallel():
        _record_local_parts(patch)
        return recorded(values, batch, length, changed=parallelized, **options)


@contextmanager
def _group(count: int) -> Iterator[None]:
    dist.init_process_group(backend="fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _parallelized(model: Any, count: int, length: int) -> Any:
    mesh = init_device_mesh("cpu", (count,))
    whole = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, whole)
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    for layer in model.model.layers:
        parallelize_module(layer, mesh, _of_layer())
        for norm in (getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm")):
            if norm is not None:
                parallelize_module(norm, mesh, SequenceParallel(sequence_dim=2, use_local_output=True))
    _count_all_tokens(model, length)
    return model


def _of_layer() -> dict[str, Any]:
    gathered = {"hidden_states": Shard(1)}, {"hidden_states": Replicate()}
    return {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(input_kwarg_layouts=gathered[0], desired_input_kwarg_layouts=gathered[1]),
        **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1)),
    }


def _count_all_tokens(model: Any, length: int) -> None:
    """Transformers counts positions, and fills a mask, by the length of the embedding, which is a part's here.

    torchtitan's model has positions of whole samples. The same functions run with these, at the same place.
    """
    inner = model.model
    forward, filled = inner.forward, inner._prepare_4d_causal_attention_mask_with_cache_position

    def with_positions(input_ids: Any, **others: Any) -> Any:
        embedded = inner.embed_tokens(input_ids)
        places = torch.arange(0, length)
        return forward(**{**others, "inputs_embeds": embedded, "cache_position": places, "position_ids": None})

    def of_all(attention_mask: Any, *, sequence_length: int, target_length: int, **others: Any) -> Any:
        sizes = {"sequence_length": length, "target_length": length + target_length - sequence_length}
        return filled(attention_mask, **sizes, **others)

    inner.forward, inner._prepare_4d_causal_attention_mask_with_cache_position = with_positions, of_all


class _PackedPart(NamedTuple):
    """What autograd saves for a distributed tensor: what it saves for the local one, and how that is distributed."""

    packed: Any
    tensor: Any


def _record_local_parts(patch: pytest.MonkeyPatch) -> None:
    """The recorder, which refuses distributed tensors, sees the local tensor of each.

    DTensor computes shapes of whole results with operators on fake tensors, which no GPU runs. Autograd adds no
    gradient into that of a distributed tensor (``can_accumulate_inplace`` in PyTorch's ``input_buffer.cpp``).
    """
    storage, pack, unpack = Ledger._storage, SavedPass.pack, SavedPass.unpack
    shapes, fake = ShardingPropagator._propagate_tensor_meta_non_cached, FakeTensors.__torch_dispatch__
    observe, may_be_in_place = StructurePass.__torch_dispatch__, StructurePass._may_be_in_place

    def local(tensor: Any) -> Any:
        return storage(tensor._local_tensor if isinstance(tensor, DTensor) else tensor)

    def packed(self: Any, tensor: Any) -> Any:
        if isinstance(tensor, DTensor):
            return _PackedPart(pack(self, tensor._local_tensor), (tensor._spec, tensor.requires_grad))
        return pack(self, tensor)

    def unpacked(self: Any, given: Any) -> Any:
        if isinstance(given, _PackedPart):
            spec, needs_gradient = given.tensor
            return DTensor(unpack(self, given.packed), spec, requires_grad=needs_gradient)
        return unpack(self, given)

    def unseen(self: Any, schema: Any) -> Any:
        with _disable_current_modes():
            return shapes(self, schema)

    def dispatched(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented  # DTensor calls operators on the tensors inside
        return fake(self, func, types, args, kwargs)

    def observed(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.distributed = func if DTensor in types else getattr(self, "distributed", None)
        result = observe(self, func, types, args, kwargs)
        if func is self.distributed and DTensor not in types:
            self.distributed = None
        return result

    def in_place(self: Any, func: Any, *others: Any) -> Any:
        return self.distributed is not func and may_be_in_place(self, func, *others)

    def settled(self: Any, given: Any) -> Any:
        self.known.can_draw = self.allow_non_fake_inputs = False  # all tensors are fake
        return given._replace(module=given.module.train())

    patch.setattr(StructurePass, "__torch_dispatch__", observed)
    patch.setattr(StructurePass, "_may_be_in_place", in_place)
    patch.setattr(FakeTensors, "settle", settled)
    patch.setattr(FakeTensors, "__torch_dispatch__", dispatched)
    patch.setitem(fake_impls.op_implementations_dict, _WAIT, lambda _, __, tensor: tensor)
    patch.setattr(workload, "check_module", lambda *_, **__: None)
    patch.setattr(Ledger, "_storage", staticmethod(local))
    patch.setattr(SavedPass, "pack", packed)
    patch.setattr(SavedPass, "unpack", unpacked)
    patch.setattr(ShardingPropagator, "_propagate_tensor_meta_non_cached", unseen)
