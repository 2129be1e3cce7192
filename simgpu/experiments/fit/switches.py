"""Switches of options for models of diffusers, whose training loops are not those of Transformers' Trainer, TRL,
torchtune or Megatron-LM."""

from __future__ import annotations

from dataclasses import replace

from simgpu.experiments.fit.candidates import Candidate

#: Switches that diffusers has in place of others: ``ModelMixin`` of diffusers 0.35, models/modeling_utils.py. For
#: U-Nets it checkpoints other modules than simgpu's default, see `simgpu/policies/FRAMEWORKS.md`.
_INSTEAD_OF = {
    "Transformers gradient_checkpointing=True": "diffusers model.enable_gradient_checkpointing()",
    'Transformers attn_implementation="sdpa"': "diffusers model.set_attn_processor(AttnProcessor2_0())",
}
#: Beginnings of switches that any training loop can have.
_OF_ANY_LOOP = ("torch.", "torchao ", "peft ", "bitsandbytes.")


def of_diffusers(candidate: Candidate) -> Candidate:
    """The candidate with the switches that a model of diffusers has; options without one have none.

    >>> both = ("checkpoint: Transformers gradient_checkpointing=True", "offload: TRL activation_offloading=True")
    >>> of_diffusers(Candidate("checkpoint", "+ checkpoint", switches=both)).switches
    ('checkpoint: diffusers model.enable_gradient_checkpointing()',)
    """
    switches = tuple(text for switch in candidate.switches if (text := _of_diffusers(switch)))
    template = None if candidate.template is None else of_diffusers(candidate.template)
    return replace(candidate, switches=switches, template=template)


def _of_diffusers(switch: str) -> str:
    label, _, text = switch.partition(": ")
    parts = [_INSTEAD_OF.get(part, part) for part in text.split("; ")]
    known = [part for part in parts if part.startswith((*_OF_ANY_LOOP, *_INSTEAD_OF.values()))]
    return f"{label}: {'; '.join(known)}" if known else ""
