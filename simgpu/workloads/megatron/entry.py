"""`megatron_iteration` models one training iteration of one GPU of a job of Megatron-LM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

from simgpu.errors import InputError, Problem
from simgpu.hardware.collectives import RECEIVE, Collective, Group, collective_ns
from simgpu.hardware.spec import NodeSpec
from simgpu.trace.model import BlockKind, Phase
from simgpu.workloads.configured.config import Model
from simgpu.workloads.configured.decoder import Decoder
from simgpu.workloads.configured.entry import SampleSizes, options_of, unsuitable
from simgpu.workloads.configured.modelled import ModelledIteration, TraceOf, finished
from simgpu.workloads.configured.options import TrainingOptions, size_problems
from simgpu.workloads.eager.engine import run_backward
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Node, Tensor
from simgpu.workloads.megatron.exchange import Exchanges
from simgpu.workloads.megatron.layers import Parts
from simgpu.workloads.megatron.layout import Layout
from simgpu.workloads.megatron.model import Stage, reduce_norms
from simgpu.workloads.megatron.optimizer import DistributedOptimizer
from simgpu.workloads.megatron.router import capacity
from simgpu.workloads.megatron.schedule import Pass, PassTimes, passes, waits
from simgpu.workloads.timemodel.attention import preferred_kernels
from simgpu.workloads.timemodel.model import time_model
from simgpu.workloads.timemodel.operation import Operation, OperationKind


@dataclass(frozen=True, slots=True)
class Job:
    """What all GPUs of a job run. batch: samples of one GPU's micro-batches together; length: tokens of each."""

    decoder: Decoder
    layout: Layout
    node: NodeSpec
    batch: int
    length: int
    micro_batches: int = 1

    @property
    def samples(self) -> int:
        """Samples of a micro-batch."""
        return self.batch // self.micro_batches

    @property
    def tokens(self) -> int:
        """Tokens of a sample on one GPU."""
        return self.length // self.layout.context

    @property
    def group(self) -> Group:
        """The GPUs that share each layer: neighbours on a node."""
        return Group(self.layout.tensor)

    @property
    def of_tokens(self) -> Group:
        """The GPUs that share the tokens of a sample."""
        return self._apart(self.layout.context, self.layout.tensor)

    @property
    def replicas(self) -> Group:
        """The GPUs with the same weights: those that share the batch or the tokens."""
        return self._apart(self.layout.data * self.layout.context, self.layout.tensor)

    @property
    def of_samples(self) -> Group:
        """The GPUs that share the layers or the tokens of a sample: neighbours."""
        return self._apart(self.layout.tensor * self.layout.context, 1)

    @property
    def of_expert(self) -> Group:
        """The GPUs that share each expert: neighbours."""
        return self._apart(self.layout.of_expert, 1)

    @property
    def experts(self) -> Group:
        """The GPUs that share the experts of a layer: one of each group that shares an expert."""
        return self._apart(self.layout.expert, self.layout.of_expert)

    @property
    def replicas_of_experts(self) -> Group:
        """The GPUs that have the same experts: one of each group that shares them."""
        each = self.layout.of_expert * self.layout.expert
        return self._apart(self.layout.gpus // self.layout.pipeline // each, each)

    def _apart(self, ranks: int, step: int) -> Group:
        """GPUs that are so far from one to the next, on as few nodes as possible."""
        nodes = min(ranks, -(-ranks * step // self.node.gpus))
        return Group(ranks, next(count for count in range(nodes, ranks + 1) if ranks % count == 0))

    @property
    def message_ns(self) -> int:
        """The time of a message between two stages."""
        if self.layout.pipeline == 1:
            return 0
        size = 2 * self.samples * self.tokens * self.decoder.width // self.layout.tensor
        apart = self.layout.gpus > self.node.gpus
        return collective_ns(Collective.SEND, size, Group(2, nodes=2 if apart else 1), self.node)


def megatron_of(
    model: Model,
    sizes: SampleSizes,
    layout: str,
    stage: int | None,
    *,
    batch: int,
    node: NodeSpec,
    options: TrainingOptions,
) -> ModelledIteration:
    """The iteration of a model from its configuration, with options as for transformers' modules.

    layout: as ``tp4,pp2,dp2``. Only the number of micro-batches may differ from the model's default options.
    Raises `InputError` as `megatron_iteration` does, and for other options; places are names of arguments.
    """
    problems = unsuitable(model, sizes)
    if not isinstance(model, Decoder):
        problems.append(Problem("", "megatron", f"{model.name} is no decoder", "leave it out"))
    default = options_of(model, {})
    for each in fields(TrainingOptions):
        if each.name != "micro_batches" and getattr(options, each.name) != getattr(default, each.name):
            usual = getattr(default, each.name) or "none"
            what = f"with megatron only the default, {usual}, is modelled"
            problems.append(Problem("", each.name, what, "leave it out"))
    try:
        read = Layout.parsed(layout)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    assert isinstance(model, Decoder) and sizes.length is not None
    return megatron_iteration(Job(model, read, node, batch, sizes.length, options.micro_batches), stage or 0)


def megatron_iteration(job: Job, stage: int = 0) -> ModelledIteration:
    """One iteration of a GPU of a stage of the pipeline.

    Raises `InputError` for a model or layout that is not modelled, and where the node does not state its links.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.workloads.configured.config import decoder_of
    >>> llama = decoder_of({"model_type": "llama", "num_hidden_layers": 2})
    >>> job = Job(llama, Layout(tensor=2, data=4), load_node("h100-x8"), batch=1, length=4096)
    >>> megatron_iteration(job).parameters  # of this GPU
    333467648
    """
    problems = list(_problems(job, stage))
    if problems:
        raise InputError(problems)
    run = _StageRun(job, stage)
    options = TrainingOptions(micro_batches=job.micro_batches, hold_output=True)  # which is the loss
    session = run.session(_waits(job)[stage])
    of = TraceOf(job.decoder.name, job.batch, _notes(job, stage), f"{job.batch} samples of {job.length} tokens")
    return finished(session, of, job.node.gpu, options, preferred_kernels(job.node.gpu))


def _problems(job: Job, stage: int) -> Iterator[Problem]:
    yield from job.layout.problems(job.decoder, job.length)
    yield from size_problems(batch=job.batch, length=job.length)
    if job.micro_batches < 1 or job.batch % job.micro_batches:
        what = f"a batch of {job.batch} cannot be split into {job.micro_batches} equal micro-batches"
        yield Problem("", "micro_batches", what, "give a divisor of the batch")
    if not 0 <= stage < job.layout.pipeline:
        what = f"there is no stage {stage} among {job.layout.pipeline}"
        yield Problem("", "stage", what, "count stages from 0")


def _waits(job: Job) -> list[list[int]]:
    """How long each stage waits before each pass."""
    count = job.layout.pipeline
    if count == 1:
        return waits([PassTimes(0, 0)], job.micro_batches, 0)
    runs = [_StageRun(job, stage) for stage in range(count)]
    times = {form: run.times() for form, run in {run.form: run for run in runs}.items()}
    return waits([times[run.form] for run in runs], job.micro_batches, job.message_ns)


class _StageRun:
    """What one GPU of a stage runs."""

    def __init__(self, job: Job, stage: int) -> None:
        self.job, self.stage = job, stage
        self.prices = time_model(job.node.gpu, flash=preferred_kernels(job.node.gpu))
        self.first, self.last = stage == 0, stage == job.layout.pipeline - 1

    @property
    def form(self) -> tuple[bool, bool, int]:
        """Stages with the same one take the same time: whether it is the first or last, and its layers with experts."""
        return self.first, self.last, sum(map(self.job.decoder.has_experts, self.layers))

    @property
    def layers(self) -> range:
        """The numbers of its layers."""
        each = self.job.decoder.layers // self.job.layout.pipeline
        return range(self.stage * each, (self.stage + 1) * each)

    def session(self, waited: list[int]) -> Session:
        """The whole iteration. waited: before each pass, for a message."""
        job = self.job
        self._begin()
        optimizer = DistributedOptimizer(self.parts, job.replicas, job.replicas_of_experts)
        optimizer.clear()
        order = passes(self.stage, job.layout.pipeline, job.micro_batches)
        for each, wait_ns in zip(order, waited, strict=True):
            self._pass(each, wait_ns)
        self.parts.session.tape.phase, self.parts.session.tape.layer = Phase.OPTIMIZER, None
        reduce_norms(self.model, job.group)
        optimizer.step()
        return self.parts.session

    def times(self) -> PassTimes:
        """The times of forward and backward of one micro-batch."""
        self._begin()
        DistributedOptimizer(self.parts, Group(1), Group(1))
        self._pass(Pass(False, 0), 0)
        tape = self.parts.session.tape
        forward = self._ns(0)
        begin = len(tape.kernels)
        self._pass(Pass(True, 0), 0)
        return PassTimes(forward, self._ns(begin))

    def _ns(self, begin: int) -> int:
        kernels = self.parts.session.tape.kernels[begin:]
        return sum(self.prices.duration_ns(work) for kernel in kernels for work in kernel.operations)

    def _begin(self) -> None:
        job, session = self.job, Session()
        exchanges = Exchanges(session, job.node, self.prices)
        groups = job.group, job.of_tokens, job.experts, job.of_expert, job.of_samples
        self.parts = Parts(session, exchanges, *groups)
        self.model = Stage(self.parts, job.decoder, self.layers, first=self.first, last=self.last)
        session.tape.layer = None
        of_pytorch = self.last or bool(self.parts.of_experts)  # the output layer, and routers
        self.parts.workspaces(job.node.gpu.architecture, of_pytorch=of_pytorch)
        shape = job.samples, job.tokens
        self.tokens = session.constant("tokens", shape, "int64", BlockKind.INPUT)
        self.labels = session.constant("labels", shape, "int64", BlockKind.LABEL)
        self.results: dict[int, Tensor] = {}
        self.inputs: dict[int, Tensor] = {}
        self.received: list[Tensor] = []
        self.sent: list[Tensor] = []
        self.ended: list[Tensor] = []

    def _pass(self, each: Pass, wait_ns: int) -> None:
        session = self.parts.session
        if each.backward:
            self._backward(each.number, wait_ns)
            return
        session.tape.phase, session.tape.layer = Phase.FORWARD, None
        rows = self.job.samples * self.job.tokens // self.job.layout.tensor, self.job.decoder.width
        x = self.model.embedded(self.tokens) if self.first else self._input(each.number, rows, wait_ns)
        x = self.model.through_layers(x, self.job.samples)
        if self.last:
            x = self.model.loss(x, self.labels.seen((self.labels.count,)), self.job.micro_batches)
        self.results[each.number] = x
        session.keep(self.ended)
        self.ended = []

    def _backward(self, number: int, wait_ns: int) -> None:
        """Local variables of Megatron-LM's schedule hold the gradients that a stage has received and sent until others
        replace them, and the result, whose graph holds the stage's input, until the next forward has ended."""
        session, result = self.parts.session, self.results.pop(number)
        session.tape.phase = Phase.BACKWARD
        before, self.sent = self.sent, []
        received = None if self.last else self._received(result.shape, wait_ns)
        session.keep(self.received)
        self.received = [] if received is None else [received]
        run_backward(session, result, self.parts.gradients, received=received)
        session.keep((result,) if self.last else (), before)
        self.ended = [] if self.first else [self.inputs.pop(number)]

    def _input(self, number: int, shape: tuple[int, ...], wait_ns: int) -> Tensor:
        """The rows that the stage before has sent; their gradient goes back to it."""
        result = self.inputs[number] = self._received(shape, wait_ns)
        result.node = Node(0, (), (), self._send, "recv")
        return result

    def _send(self, grads: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        self.sent = [grad for grad in grads if grad is not None]
        return ()

    def _received(self, shape: tuple[int, ...], wait_ns: int) -> Tensor:
        session = self.parts.session
        session.tape.layer = None
        count = shape[0] * shape[1]
        work = Operation(OperationKind.COPY, 0, 2 * count, count, dtype="bfloat16", exchange_ns=wait_ns)
        return session.run(RECEIVE, (), ((shape, "bfloat16"),), operations=(work,), pure=False)[0]


def _notes(job: Job, stage: int) -> str:
    layout, decoder, extra = job.layout, job.decoder, ""
    if layout.pipeline > 1:
        extra = f" Stage {stage} of {layout.pipeline}, whose waits for other stages are kernels named recv."
    if decoder.experts is not None:
        rows = capacity(decoder.experts, job.samples * job.tokens // layout.tensor)
        extra += f" Each expert gets {rows} rows of each GPU's tokens of a micro-batch, padded to its capacity."
    return (
        f"{decoder.family} from its configuration, {job.length} tokens a sample, as Megatron-LM 0.20 runs it with "
        f"TransformerEngine 2.11 on {layout.gpus} GPUs ({layout.text}): bfloat16 weights, gradients added up in "
        "float32, distributed optimizer, loss fused in the place of the logits; one GPU of them, with the collectives "
        f"of NCCL as kernels.{extra} Durations by simgpu's time model. Memory that CUDA operators allocate for "
        "themselves is not included, but for the workspaces of products."
        f"{f' Not modelled: {decoder.without}.' if decoder.without else ''}"
    )
