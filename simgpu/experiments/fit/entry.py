"""`fit` asks whether a model fits a GPU, at which batch and length, with which options, and what each costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from simgpu.errors import InputError, Problem
from simgpu.experiments.fit.candidates import changed
from simgpu.experiments.fit.gpus import gpus_that_fit
from simgpu.experiments.fit.question import MOST_SAMPLES, Question, safe_margin
from simgpu.experiments.fit.result import Fit
from simgpu.experiments.fit.rows import FitRow
from simgpu.experiments.fit.trials import named, rows_of
from simgpu.experiments.fit.workloads import workload_of
from simgpu.experiments.processes import check_jobs
from simgpu.hardware.nodes import load_node
from simgpu.hardware.sharing import one_of
from simgpu.hardware.spec import NodeSpec
from simgpu.policies.base import no_progress
from simgpu.simulation.config import RunConfig, checked_setting
from simgpu.trace.model import Trace
from simgpu.workloads.configured.entry import MOST_TOKENS


class FitSettings(TypedDict, total=False):
    """What `fit` is asked, as keyword arguments; None, or left out, for the default.

    batch: samples of a step. A batch that does not fit is divided into the fewest micro-batches that fit. Without it,
    and with a length, the largest batch is searched. Of traces by default the recorded one, of configurations 1
    length: tokens of each sample; without it the largest is searched, up to the positions of the configuration
    target_length: tokens of the labels of T5; by default as many as the sample's
    sample_size: side of a U-Net's latent images; by default the configuration's
    budget: bytes for PyTorch's allocator, or a text; by default the GPU's memory without the CUDA context's
    optimizer, dtype, autocast, attention, cudnn_attention, hold_output, tf32, compile, float8, lora, lora_targets,
    lora_dtype, lora_dropout, four_bit: of a modelled iteration, fields of
    `simgpu.workloads.configured.options.TrainingOptions`; by default adamw (of networks of the zoo sgd), bfloat16
    (float32 with autocast) and sdpa
    gpus: of the node's GPUs, how many run the same at the same time, each on the batch; by default all. They share
    switches and the host; gradients are not exchanged
    """

    batch: int | None
    length: int | None
    target_length: int | None
    sample_size: int | None
    budget: int | str | None
    optimizer: str | None
    dtype: str | None
    autocast: str | None
    attention: str | None
    cudnn_attention: bool | None
    hold_output: bool | None
    tf32: bool | None
    compile: str | None
    float8: str | None
    lora: int | None
    lora_targets: tuple[str, ...] | None
    lora_dtype: str | None
    lora_dropout: float | None
    four_bit: str | None
    gpus: int | None


def fit(
    model: str | Path | Trace,
    gpu: str | NodeSpec,
    *,
    jobs: int = 1,
    progress: Callable[[str], None] = no_progress,
    **settings: Unpack[FitSettings],
) -> Fit:
    """Whether a model fits a GPU, with which options of its training, and what each option costs.

    model: a Hugging Face ``config.json`` of a transformer or its folder, a network of the zoo, or a trace
    gpu: a shipped node, a node file, or a node
    settings: size, memory and training, see `FitSettings`
    jobs: processes in which options are tried; the answer does not depend on it
    progress: called with each option before it is tried, or with how many have been tried in several processes

    Each candidate is run as a scenario would run it, with ``pool: caching``. A size that is searched leaves
    `simgpu.experiments.fit.question.safe_margin` of the memory. An option that needs more memory than the
    budget is run in unlimited memory too, so that the table shows its peak.

    Raises `InputError` for an unknown model, GPU or option, and for sizes that the model does not support.

    >>> result = fit("alexnet", "rtx3060", batch=64)
    >>> print(result.answer)
    In 12 GiB: train alexnet on 64 samples as it is, which costs nothing ...
    >>> result.best.candidate.label, len(result)
    ('as it is', 15)
    """
    training: dict[str, object] = {**settings}
    batch, length, budget = (settings.get("batch"), settings.get("length"), settings.get("budget"))
    for name in ("batch", "length", "budget", "gpus"):
        training.pop(name, None)
    check_jobs(jobs)
    _check_numbers(settings)
    workload = workload_of(model, training)
    whole = gpu if isinstance(gpu, NodeSpec) else load_node(gpu)
    gpus = settings.get("gpus")
    count = checked_setting("gpus", whole.gpus if gpus is None else gpus)
    node = one_of(whole, count)
    if length is not None and workload.longest is None:
        raise InputError.single("", "length", f"samples of {workload.name} have no length", "leave it out")
    if workload.longest is None or length is None:
        batch = batch or workload.own_batch or (None if workload.longest is None else 1)
    config = RunConfig(pool="caching", budget=budget)
    if isinstance(config.budget, str):
        what = f"{budget!r} is a part of a peak, and every option has another one"
        raise InputError.single("", "budget", what, "give a size such as '24 GB'")
    context, memory = config.context_memory(node), config.on(node)[1]
    alone = whole if count > 1 else None
    question = Question(workload, node, batch, length, memory, safe_margin(memory, context), alone, count)
    progress(f"building {workload.name}")
    info = question.info()
    result = Fit(question, _rows(question, jobs, progress), info, context)
    smallest = result.smallest_alone
    if result.best is not None or smallest is None or smallest.run is None:
        return result
    others = []
    for each in named(workload, changed(workload.options, smallest.candidate)):
        progress(each.stage)
        others.append(question.row(each))
    larger = gpus_that_fit(question, smallest.candidate, smallest.run, progress)
    return replace(result, rows=(*result.rows, *others), larger_gpus=tuple(larger))


def _rows(question: Question, jobs: int, progress: Callable[[str], None]) -> tuple[FitRow, ...]:
    """The row of every candidate that trains the same. Raises `InputError` if none of them can run."""
    rows = rows_of(question, jobs, progress)
    if all(row.run is None for row in rows):
        reasons = dict.fromkeys(row.note for row in rows)
        raise InputError(Problem(question.workload.name, "", reason) for reason in reasons)
    return rows


def _check_numbers(settings: FitSettings) -> None:
    """Raises `InputError` for sizes that no iteration of the model has."""
    problems = [
        Problem("", name, f"{value!r} is not a number from 1 to {most}", f"give the {what}")
        for name, value, most, what in (
            ("batch", settings.get("batch"), MOST_SAMPLES, "samples of a step"),
            ("length", settings.get("length"), MOST_TOKENS, "tokens of each sample"),
            ("target_length", settings.get("target_length"), MOST_TOKENS, "tokens of the labels of each sample"),
            ("sample_size", settings.get("sample_size"), MOST_TOKENS, "side of the latent images"),
        )
        if value is not None and (type(value) is not int or not 1 <= value <= most)
    ]
    if problems:
        raise InputError(problems)
