"""The options that `fit` tries, each with the switch of a framework that turns it on.

A new option is one line: of `POLICIES` if it is a memory policy, of `BUILDS` if the training loop has to be modelled in
another way, and of `CHANGES` if it trains something else. `simgpu/policies/FRAMEWORKS.md` has the sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from simgpu.policies.common.section_choice import ordinal
from simgpu.workloads.compiled.forms import CompileForm

_NOTHING: Mapping[str, object] = MappingProxyType({})


class BuildOption(NamedTuple):
    """A way to model the training loop.

    build: options of the workload, such as ``{"optimizer": "adamw-fused"}``. instead_of: the values that it replaces;
    the option applies only where the workload has these. mark: of one that may take time or excludes others, so that
    policies that recompute, and have no value to search, are tried without it and, under this mark, with it; empty for
    one that is on in every later candidate. policies: labels of those that a marked one is tried with; none for all.
    """

    label: str
    switch: str
    build: Mapping[str, object]
    instead_of: Mapping[str, object] = _NOTHING
    mark: str = ""
    policies: tuple[str, ...] = ()

    def applies(self, base: Mapping[str, object]) -> bool:
        """Whether a workload of these options has what this one replaces, and not yet what it brings."""
        replaces = all(base.get(key) == value for key, value in self.instead_of.items())
        return replaces and self.build.keys() <= base.keys() and not self.build.items() <= base.items()

    def goes_with(self, policy: PolicyOption) -> bool:
        """Whether a marked option is tried with a policy."""
        return policy.recomputes and not policy.searched and policy.label in (self.policies or (policy.label,))


class PolicyOption(NamedTuple):
    """A memory policy with its parameters.

    searched: a parameter whose best value is searched where batch and length are given; label and switch have {n} or
    {nth} in its place. Where a size is searched instead, the value in parameters counts; without one it is left out.
    """

    label: str
    switch: str
    policy: str
    parameters: Mapping[str, object] = _NOTHING
    searched: str = ""

    @property
    def recomputes(self) -> bool:
        """Whether modules are checkpointed."""
        return "checkpoint" in (self.policy, self.parameters.get("inside"))

    @property
    def needs_modules(self) -> bool:
        """Whether it treats modules one by one, which a model that is compiled as a whole does not run."""
        return self.recomputes or self.policy == "offload_groups"


#: What computes the same in another way, and needs no policy. One that costs time comes after those that cost none.
BUILDS = (
    BuildOption(
        "fused AdamW",
        'torch.optim.AdamW(fused=True); Transformers optim="adamw_torch_fused"',
        {"optimizer": "adamw-fused"},
        {"optimizer": "adamw"},
    ),
    BuildOption(
        "fused attention",
        'Transformers attn_implementation="sdpa"',
        {"attention": "sdpa"},
        {"attention": "eager"},
    ),
    BuildOption(
        "fused loss",
        "Liger-Kernel apply_liger_kernel_to_llama, or that of your model, with rope=False, rms_norm=False, "
        "swiglu=False; Axolotl liger_fused_linear_cross_entropy: true",
        {"loss": "fused"},
        {"loss": "eager"},
        mark="loss",
    ),
    BuildOption(
        "updates in backward",
        "torchtune optimizer_in_bwd: True; "
        "torch.Tensor.register_post_accumulate_grad_hook with an optimizer for each weight",
        {"optimizer_in_backward": True},
        {"lora": None},
        mark="updates",
        policies=("checkpoint", "checkpoint + async offload"),
    ),
)

#: Memory policies, the simplest first: of about equally fast ones the first is the answer (`FitOutcome.best`).
POLICIES = (
    PolicyOption(
        "selective checkpoint",
        "torchtitan selective activation checkpointing (SelectiveAC)",
        "checkpoint",
        {"keep": ("torchtitan",), "early_stop": False},
    ),
    PolicyOption(
        "checkpoint every {nth}",
        'Transformers gradient_checkpointing_kwargs={"every_n_layers": {n}}',
        "checkpoint",
        {"every": 2},
        "every",
    ),
    PolicyOption(
        "checkpoint first {n}",
        "Megatron-LM --recompute-granularity full --recompute-method block --recompute-num-layers {n}",
        "checkpoint",
        {"early_stop": False},
        "count",
    ),
    PolicyOption("checkpoint", "Transformers gradient_checkpointing=True", "checkpoint"),
    PolicyOption(
        "checkpoint groups of {n}",
        "Megatron-LM --recompute-granularity full --recompute-method uniform --recompute-num-layers {n}",
        "checkpoint",
        {"group": 2, "early_stop": False},
        "group",
    ),
    PolicyOption(
        "checkpoint + offload",
        'Transformers gradient_checkpointing_kwargs={"offload": True}',
        "checkpoint",
        {"inputs": "waiting"},
    ),
    PolicyOption(
        "checkpoint + async offload",
        "TRL gradient_checkpointing=True with activation_offloading=True; "
        "torchtune enable_activation_checkpointing with enable_activation_offloading",
        "checkpoint",
        {"inputs": "overlapped"},
    ),
    PolicyOption(
        "offload first {n} layers",
        "Megatron-LM --cpu-offloading-num-layers {n}; "
        "TransformerEngine get_cpu_offload_context(enabled=True, num_layers={n}, model_layers=...)",
        "offload_groups",
        searched="num_layers",
    ),
    PolicyOption("offload (TRL)", "TRL activation_offloading=True", "offload_activations"),
    PolicyOption(
        "offload (torchtune)",
        "torchtune.training.OffloadActivations() around forward and loss; torchtune's recipes offload only with "
        "enable_activation_checkpointing",
        "offload_activations",
        {"saved_again": "offloaded"},
    ),
    PolicyOption("save on CPU", "torch.autograd.graph.save_on_cpu(pin_memory=True)", "save_on_cpu"),
    PolicyOption("host optimizer", "torchao CPUOffloadOptimizer(model.parameters(), AdamW)", "optimizer_on_host"),
    PolicyOption(
        "checkpoint + host optimizer",
        "Transformers gradient_checkpointing=True; torchao CPUOffloadOptimizer(model.parameters(), AdamW)",
        "optimizer_on_host",
        {"inside": "checkpoint"},
    ),
    PolicyOption(
        "checkpoint + host gradients",
        "Transformers gradient_checkpointing=True; torchao CPUOffloadOptimizer(..., offload_gradients=True), or "
        "DeepSpeed ZeRO-Offload (offload_optimizer: {device: cpu}), whose updates wait for the end of backward",
        "optimizer_on_host",
        {"inside": "checkpoint", "free_gradients": True},
    ),
)

#: What the GPUs of a node share, tried where several train and the node states what they exchange data over.
SHARED = (
    PolicyOption("FSDP2", "torch.distributed.fsdp.fully_shard(block) for each block, and of the model", "fsdp"),
    PolicyOption(
        "checkpoint + FSDP2",
        "Transformers gradient_checkpointing=True; fully_shard(block) for each block, and of the model",
        "fsdp",
        {"inside": "checkpoint"},
    ),
)

#: What trains something else, tried where nothing above fits.
CHANGES = (
    BuildOption(
        "AdamW in 8 bits",
        'bitsandbytes.optim.AdamW8bit; Transformers optim="adamw_bnb_8bit"',
        {"optimizer": "adamw-8bit"},
    ),
    BuildOption(
        "LoRA of rank 16",
        'peft LoraConfig(r=16, target_modules="all-linear")',
        {"lora": 16, "lora_targets": ("all-linear",)},
        {"lora": None},
    ),
    BuildOption(
        "QLoRA of rank 16",
        'peft LoraConfig(r=16, target_modules="all-linear") with Transformers BitsAndBytesConfig(load_in_4bit=True, '
        'bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)',
        {"lora": 16, "lora_targets": ("all-linear",), "four_bit": "nf4-double"},
        {"lora": None},
    ),
    BuildOption("plain SGD", "torch.optim.SGD, without momentum", {"optimizer": "plain-sgd"}),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Options that are tried together.

    label: names all options. short: the last of them, for tables. switches: of frameworks, one for each option.
    policy, parameters: of the scenario that decides. build: options of the workload. changes: whether it trains
    something else. searched: the parameter of the policy whose best value is searched. template: the same candidate
    with {n} and {nth} in place of this value.
    """

    label: str
    short: str
    policy: str = "none"
    parameters: Mapping[str, object] = field(default_factory=dict)
    build: Mapping[str, object] = field(default_factory=dict)
    switches: tuple[str, ...] = ()
    changes: bool = False
    searched: str = ""
    template: Candidate | None = None

    @property
    def valued_at(self) -> int | None:
        """The value of the searched parameter; None if there is none."""
        value = self.parameters.get(self.searched)
        return value if isinstance(value, int) else None

    @property
    def builds_micro_batches(self) -> bool:
        """Whether micro-batches are modelled with the model: a loss in chunks has as many as their tokens need."""
        return self.build.get("loss", "eager") != "eager"

    @property
    def stage(self) -> str:
        """The label, for progress: with n where a value is still searched.

        >>> Candidate("every {nth}", "+ every {nth}").stage
        'every n-th'
        """
        return _with_n(self.label)

    @property
    def without_value(self) -> Candidate:
        """The candidate with n in place of a value that no search chose, since the candidate was refused."""
        switches = tuple(map(_with_n, self.switches))
        return replace(self, label=self.stage, short=_with_n(self.short), switches=switches)

    def valued(self, value: int) -> Candidate:
        """The candidate with this value of the searched parameter.

        >>> Candidate("every {nth}", "+ every {nth}", "checkpoint", searched="every").valued(3).label
        'every 3rd'
        """
        of = self.template or self
        label, short, *switches = (
            text.replace("{nth}", ordinal(value)).replace("{n}", str(value))
            for text in (of.label, of.short, *of.switches)
        )
        parameters = {**of.parameters, of.searched: value}
        return replace(of, label=label, short=short, switches=tuple(switches), parameters=parameters, template=of)

    @property
    def on_host(self) -> bool:
        """Whether the host updates the weights."""
        return self.policy == "optimizer_on_host"

    @property
    def shares(self) -> int:
        """Among how many GPUs weights, gradients and optimizer state are divided."""
        gpus = self.parameters.get("gpus", 1)
        return gpus if isinstance(gpus, int) else 1

    @property
    def standing(self) -> int:
        """What decides between candidates before their speed: the time of some is not as complete as that of others.

        Calls of the host's updates take no time here, and only what shares weights exchanges anything.
        """
        return 0 if self.on_host else 1 if self.shares > 1 else 2


def _with_n(text: str) -> str:
    return text.replace("{nth}", "n-th").replace("{n}", "n")


AS_IT_IS = "as it is"


def candidates(base: Mapping[str, object], gpus: int = 1) -> tuple[Candidate, ...]:
    """The candidates for a workload of these options: as it is, then each build option added, then each policy.

    gpus: among how many weights can be divided.

    >>> [each.label for each in candidates({})][:2]
    ['as it is', 'selective checkpoint']
    >>> [each.label for each in candidates({"optimizer": "adamw"})][1:4:2]
    ['fused AdamW', 'fused AdamW + checkpoint every 2nd']
    """
    return (Candidate(AS_IT_IS, AS_IT_IS, build=base), *_of_the_same(base, gpus))


def changed(base: Mapping[str, object], like: Candidate) -> tuple[Candidate, ...]:
    """With each option that trains something else, the candidate that has the policy of another one.

    It updates weights in backward if the other one does and the option can.

    >>> smallest = candidates({"optimizer": "adamw"})[5]
    >>> [each.label for each in changed({"optimizer": "adamw"}, smallest)]
    ['AdamW in 8 bits + checkpoint', 'plain SGD + checkpoint']
    """
    result = []
    for option in CHANGES:
        if option.applies(base):
            build = {**base, **option.build}
            every = [each for each in (Candidate("", "", build=build), *_of_the_same(build)) if _is_like(each, like)]
            for each in [each for each in every if _updates(each) == _updates(like)] or every:
                result.append(_with(option, each if like.valued_at is None else each.valued(like.valued_at)))
    return tuple(result)


def _updates(candidate: Candidate) -> bool:
    return bool(candidate.build.get("optimizer_in_backward"))


def _with(option: BuildOption, candidate: Candidate) -> Candidate:
    """A candidate with an option that trains something else, and without a search for its parameter."""
    return replace(
        candidate,
        label=_joined(option.label, candidate.label),
        short=_joined(option.label, candidate.short.removeprefix("+ ")),
        switches=(_switch(option), *candidate.switches),
        changes=True,
        searched="",
        template=None,
    )


def _is_like(candidate: Candidate, like: Candidate) -> bool:
    """Whether both have the same policy and loss, apart from the value of the searched parameter."""
    loss, same_as = candidate.build.get("loss"), (like.policy, like.searched, like.build.get("loss"))
    same = (candidate.policy, candidate.searched, loss) == same_as
    names = (candidate.parameters.keys() | like.parameters.keys()) - {like.searched}
    return same and all(candidate.parameters.get(name) == like.parameters.get(name) for name in names)


def is_build(candidate: Candidate) -> bool:
    """Whether it has no memory policy, but computes the same in another way, which all later candidates include."""
    marked = {option.label for option in BUILDS if option.mark}
    others = candidate.label == AS_IT_IS or not marked.isdisjoint(candidate.label.split(" + "))
    return candidate.policy == "none" and not others and not candidate.changes


def _of_the_same(base: Mapping[str, object], gpus: int = 1) -> Iterator[Candidate]:
    """The candidates that train the same, with at least one option."""
    loops: list[tuple[Candidate, tuple[BuildOption, ...]]] = [(Candidate("", "", build=base), ())]
    for option in (option for option in BUILDS if option.applies(base)):
        added = [(_and(each, option), (*marked, option) if option.mark else marked) for each, marked in loops]
        for each, _ in added:
            others = each.short.removesuffix(f"+ {option.mark}").rstrip()
            yield replace(each, short=f"{others} + {option.label}".lstrip())
        loops = [*loops, *added] if option.mark else added
    is_one_graph = base.get("compile") == CompileForm.MODEL
    together = (each._replace(parameters={"gpus": gpus, **each.parameters}) for each in SHARED if gpus > 1)
    for policy in (*POLICIES, *together):
        if is_one_graph and policy.needs_modules:
            continue
        for each in (each for each, marked in loops if all(option.goes_with(policy) for option in marked)):
            candidate = replace(
                each,
                label=_joined(each.label, policy.label),
                short=f"{each.short} + {policy.label}".lstrip(),
                policy=policy.policy,
                parameters={**policy.parameters},
                switches=(*each.switches, _switch(policy)),
                searched=policy.searched,
            )
            yield candidate if candidate.valued_at is None else candidate.valued(candidate.valued_at)


def _and(candidate: Candidate, option: BuildOption) -> Candidate:
    """A candidate with one more way to model the loop, in tables named by its mark; all later ones have one without."""
    return replace(
        candidate,
        label=_joined(candidate.label, option.label),
        short=f"{candidate.short} + {option.mark}".lstrip() if option.mark else candidate.short,
        build={**candidate.build, **option.build},
        switches=(*candidate.switches, _switch(option)),
    )


def _switch(option: BuildOption | PolicyOption) -> str:
    return f"{option.label}: {option.switch}"


def _joined(*labels: str) -> str:
    return " + ".join(label for label in labels if label)
