"""The sentences of `simgpu.fit`: its answer, the facts about it, and the notes on its numbers."""

from __future__ import annotations

from collections.abc import Iterator

from simgpu.experiments.fit.candidates import AS_IT_IS, is_build
from simgpu.experiments.fit.outcome import FREE, FitOutcome, run_of
from simgpu.experiments.fit.question import SEGMENTS
from simgpu.experiments.fit.rows import FitRow, FitRun, parameters_text, plain_text, speed_text
from simgpu.trace.model import Origin
from simgpu.units import format_bandwidth, format_bytes, format_time
from simgpu.workloads.lowering.optimizer import UPDATES, Optimizer
from simgpu.workloads.timemodel.host import launch_note

#: Rows of a search that the answer names.
_NAMED = 3
_SEGMENTS = f"PYTORCH_CUDA_ALLOC_CONF={SEGMENTS}"


def answer(fit: FitOutcome) -> str:
    """The answer: what to do, and what it costs; or the least memory, and what would help."""
    budget, name = format_bytes(fit.question.budget), fit.question.workload.name
    best = fit.best
    if best is None or best.run is None:
        return f"In {budget}: {name} does not fit{for_size(fit)} under any option that trains the same. {_least(fit)}"
    if fit.question.searched:
        which = "Each" if len(_named(fit)) > 1 else "It"
        ways, margin = _ways(fit), format_bytes(fit.question.margin)
        left = f"{which} leaves {margin} or more."
        return f"In {budget}: train {name}{_each(fit)} {ways}. {left}{_exchange(fit, best)} {_baseline(fit)}."
    run = best.run
    time = f"step time {format_time(run.step_ns)}, {speed_text(run.speed)} {fit.speed_unit}"
    left = f"It needs {format_bytes(run.reserved)} and leaves {format_bytes(fit.margin(best))}{_safety(fit, best)}."
    return (
        f"In {budget}: train {name}{for_size(fit)}{_each(fit)} {_how(best)}, which costs {_cost(run)} ({time}). {left}"
        f"{_exchange(fit, best)} {_baseline(fit)}: {format_time(run.plain_ns)}."
    )


def facts(fit: FitOutcome) -> list[tuple[str, str]]:
    """Pairs of name and text on the question, and on the options that the answer names."""
    single = fit.best or fit.smallest
    rows = _named(fit) if fit.question.searched and fit.fitting else [single] if single is not None else []
    question = fit.question
    options = [f"{name} {plain_text(value)}" for name, value in question.workload.options.items() if value]
    options += question.workload.sizes.texts()
    pairs = [("model", question.workload.name + (f" ({', '.join(options)})" if options else ""))]
    pairs.append(("node", f"{question.node.name}: {question.node.gpu.name}, {format_bytes(question.node.budget)}"))
    pairs.append(("budget", f"{format_bytes(question.budget)} for PyTorch's allocator; {_context(fit)}"))
    run = rows[0].run if rows else None
    if run is not None and run.persistent.total:
        kept = run.persistent
        parts = f"weights {format_bytes(kept.weights)}, gradients {format_bytes(kept.gradients)}, optimizer state "
        total = f"{format_bytes(kept.total)} whatever the batch: "
        pairs.append(("persistent", f"{total}{parts}{format_bytes(kept.optimizer_state)}"))
    switches = [switch for row in rows for switch in row.candidate.switches]
    switches += (
        [f"expandable segments: {_SEGMENTS}"] if any(row.run is not None and row.run.allocator for row in rows) else []
    )
    pairs += [("switch", switch) for switch in dict.fromkeys(switches)]
    pairs += [("policy", f"{row.candidate.short.removeprefix('+ ')}: {_policy(row)}") for row in rows]
    return pairs


def notes(fit: FitOutcome) -> list[str]:
    """What the numbers include, how safe they are, and why candidates were refused."""
    return list(_notes(fit))


def _notes(fit: FitOutcome) -> Iterator[str]:
    yield (
        "GiB, MiB: memory that PyTorch's caching allocator reserves at the peak, for the blocks of the iteration. Not "
        "included: what CUDA operators allocate for themselves, such as cuBLAS workspaces of 17 to 64 MiB"
    )
    yield (
        f"tight: leaves less than {format_bytes(fit.question.margin)}, 3% of the budget for errors of prediction"
        + ("" if fit.context is not None else " and 534 MiB for a CUDA context that the node does not state")
        + (f". A {fit.question.searched} that is searched has to leave them" if fit.question.searched else "")
    )
    modelled = fit.info.origin is Origin.MODELLED
    times = "kernel times are modelled" if modelled else f"kernel times are those of {fit.info.device}"
    yield f"cost: step time over that of the same samples {AS_IT_IS}, in unlimited memory; {times}"
    yield from _on_launches(fit)
    if fit.question.gpus > 1:
        yield (
            f"sharing: the part of the cost that is due to {fit.question.gpus} GPUs which do the same at the same time "
            "and share switches and the host's memory. Memory, speed and batch are of each. What exchanges gradients "
            "is not included, neither the time of an all-reduce nor its buffers, which take as much memory as the "
            "gradients in DistributedDataParallel(gradient_as_bucket_view=False), its default"
        )
    if any(row.candidate.shares > 1 and row.run is not None for row in fit.rows):
        yield (
            f"FSDP2: each of {fit.question.gpus} GPUs has a part of weights, gradients and optimizer state. Its time "
            "includes what they exchange, that of other options does not, so it is the answer only where none of those "
            "fits as much"
        )
    builds = [row.candidate.short.removeprefix("+ ") for row in fit.rows[1:] if is_build(row.candidate)]
    if builds:
        yield f"options below {builds[-1]} include {'it' if len(builds) == 1 else ' and '.join(builds)}"
    if any(row.candidate.short.startswith("+ loss ") for row in fit.rows):
        yield "loss: with fused loss, which pays where the logits are much of the memory"
    if any("+ updates " in row.candidate.short for row in fit.rows):
        yield (
            "updates: each weight is updated in backward as soon as its gradient is complete, which is then freed; "
            "gradients cannot be clipped then, nor accumulated"
        )
    if any(row.run is not None and row.run.micro_batches > 1 for row in fit.rows):
        yield "parts: the fewest micro-batches that fit, else the most (gradient accumulation); up to 3 are simulated"
    if any(row.run is not None and row.run.allocator for row in fit.rows):
        yield f"segments: fits with {_SEGMENTS}"
    bandwidth = fit.question.node.host.memory_bandwidth
    if bandwidth and any(row.candidate.on_host and row.run is not None for row in fit.rows):
        of = "of the host's memory" if fit.question.gpus == 1 else "that each GPU has of the host's memory"
        yield (
            f"host optimizer: updates reach half of the {format_bandwidth(bandwidth)} {of}; their calls take no time "
            "here, so such an option is the answer only where no other fits as much"
        )
    if bandwidth is None and any(row.candidate.on_host and row.run is None for row in fit.rows):
        yield 'host optimizer, host gradients: to try them, add --set node.host.memory_bandwidth="80 GB/s", or yours'
    for note in dict.fromkeys(row.note for row in fit.rows if row.note):
        yield f"{', '.join(row.candidate.short for row in fit.rows if row.note == note)}: {note}"


def _on_launches(fit: FitOutcome) -> Iterator[str]:
    """What launches take, or would take if they are not counted."""
    launch_ns = fit.question.node.host.launch_ns
    if launch_ns:
        yield f"launches: the host launches an operator in {format_time(launch_ns)}, and the GPU waits for it"
        return
    row = fit.best or fit.smallest
    if row is not None and row.run is not None and fit.info.origin is Origin.MODELLED:
        note = launch_note(row.run.operators, row.run.plain_ns)
        if note:
            yield f"launches: trained by default, {note}"


def _ways(fit: FitOutcome) -> str:
    """The sizes of the rows that the answer names, each with its option and cost."""
    texts = []
    for row in _named(fit):
        assert row.run is not None, "a named row has a run"
        texts.append(f"on {_most(fit, row.run)} {_how(row)}, which costs {_cost(row.run)}")
    return "; ".join(texts)


def _how(row: FitRow) -> str:
    """The options of a row as an adverbial."""
    return _options(row) if row.candidate.label == AS_IT_IS else f"with {_options(row)}"


def _named(fit: FitOutcome) -> list[FitRow]:
    """The cheapest, the largest, and between them the largest at less than half of the cost of the largest."""
    front = fit.front
    if len(front) <= _NAMED:
        return front
    cheap = [row for row in front[1:-1] if row.run and front[-1].run and row.run.cost < front[-1].run.cost / 2]
    return [front[0], *cheap[-1:], front[-1]]


def _size(fit: FitOutcome, run: FitRun) -> str:
    if fit.question.searched == "batch":
        tokens = "" if run.length is None else f" of {run.length:,} tokens"
        return f"{run.batch:,} {'sequence' if tokens else 'sample'}{'s' * (run.batch > 1)}{tokens}"
    return f"{_samples(run)} of {run.length:,} tokens"


def _most(fit: FitOutcome, run: FitRun) -> str:
    """The same as the largest size."""
    if fit.question.searched == "batch":
        return f"up to {_size(fit, run)}"
    return f"{_samples(run)} of up to {run.length:,} tokens"


def _samples(run: FitRun) -> str:
    return "one sample" if run.batch == 1 else f"{run.batch} samples"


def for_size(fit: FitOutcome) -> str:
    """The requested size, or the smallest that was tried where a length is searched, as an adverbial."""
    question = fit.question
    if question.batch is None or (question.searched == "length"):
        smallest = fit.smallest
        return "" if smallest is None or smallest.run is None else f" even on {_size(fit, smallest.run)}"
    tokens = "" if question.length is None else f" of {question.length:,} tokens"
    return f" on {question.batch:,} {'sequence' if tokens else 'sample'}{'s' * (question.batch > 1)}{tokens}"


def _exchange(fit: FitOutcome, best: FitRow) -> str:
    """What the exchange of gradients between several GPUs adds, where an option does not include it."""
    if fit.question.gpus == 1 or best.candidate.shares > 1 or best.run is None:
        return ""
    text, buckets = " The exchange of gradients is not included", best.run.persistent.gradients
    if buckets > fit.margin(best):
        text += (
            f": with DistributedDataParallel's buckets, another {format_bytes(buckets)}, it does not fit; with "
            "gradient_as_bucket_view=True there are none"
        )
    safe = [row for row in fit.rows if row.candidate.shares > 1 and row.fits and fit.margin(row) >= fit.question.margin]
    if safe and not fit.question.searched:
        row = min(safe, key=lambda row: run_of(row).step_ns)
        costs = f"{format_bytes(run_of(row).reserved)} and costs {_cost(run_of(row))}"
        text += f". With {row.candidate.label} it is: that needs {costs}"
    return f"{text}."


def _baseline(fit: FitOutcome) -> str:
    """What costs are relative to: the training that was requested, by default with PyTorch's default of AdamW."""
    optimizer = fit.question.workload.options.get("optimizer")
    unfused = "unfused " * (optimizer == Optimizer.ADAMW)
    named = f"{unfused}{UPDATES[Optimizer(str(optimizer))]}, " if optimizer else ""
    return f"Costs are relative to the step time {AS_IT_IS} ({named}unlimited memory)"


def _options(row: FitRow) -> str:
    run = row.run
    text = row.candidate.label
    if run is not None and run.micro_batches > 1:
        text += f", in {run.micro_batches} micro-batches of {run.batch // run.micro_batches}"
    return text if run is None or not run.allocator else f"{text} with {SEGMENTS}"


def _each(fit: FitOutcome) -> str:
    return f" on each of {fit.question.gpus} GPUs" if fit.question.gpus > 1 else ""


def _cost(run: FitRun) -> str:
    if run.cost < -FREE:
        return f"nothing and saves {-run.cost:.0%} of the time"
    shared = f", {run.sharing:.0%} because GPUs share the host" if run.sharing >= FREE else ""
    return "nothing" if run.cost < FREE else f"{run.cost:.0%}{shared}"


def _safety(fit: FitOutcome, best: FitRow) -> str:
    """How safe the verdict is, and a safer option if it is not."""
    if fit.margin(best) >= fit.question.margin:
        return ", more than the error of most predictions"
    safer = [row for row in fit.fitting if fit.margin(row) >= fit.question.margin and row.run is not None]
    fastest = max(safer, key=fit.rank, default=None)
    if fastest is None or fastest.run is None:
        return ", which is tight: a prediction may be off by so much"
    costs = f"{_options(fastest)}, which costs {_cost(fastest.run)}"
    return f", which is tight; safer: {costs}, leaves {format_bytes(fit.margin(fastest))}"


def _least(fit: FitOutcome) -> str:
    """The least memory, its persistent part, and what would do."""
    row = fit.smallest
    if row is None or row.run is None:
        return "Every option was refused."
    run, parts = row.run, []
    least = min(other.run.reserved for other in fit.rows if other.run is not None and not other.candidate.changes)
    about = "about " if least < run.reserved else ""
    parts.append(f"The least is {about}{format_bytes(run.reserved)}, {_how(row)}")
    if kept := run.persistent.total:
        share = f"{run.persistent.named} are {format_bytes(kept)}"
        parts[-1] += f"; {share} of it"
        if run.reserved <= fit.question.budget:
            parts.append(f"It leaves less than {format_bytes(fit.question.margin)}, by which a prediction may be off")
        if kept > fit.question.budget:
            parts.append("No batch, length or activation policy changes these")
    others = [other for other in fit.rows if other.candidate.changes and other.fits]
    parts += [f"Another training fits: {_options(other)}, {_at(other)}" for other in others]
    parts.append(f"It fits {', '.join(fit.larger_gpus)}" if fit.larger_gpus else "No shipped GPU has enough memory")
    return ". ".join(parts) + "."


def _at(row: FitRow) -> str:
    return "" if row.run is None else f"in {format_bytes(row.run.reserved)}"


def _context(fit: FitOutcome) -> str:
    if fit.context is None:
        return "the node does not say what the CUDA context takes of it"
    if fit.question.budget > fit.question.node.budget:
        return "as given, more than the GPU has"
    return f"besides it, {format_bytes(fit.context)} for the CUDA context" if fit.context else "as given"


def _policy(row: FitRow) -> str:
    """The simgpu policy of a row, as scenarios and ``--policy`` have it."""
    candidate = row.candidate
    parameters = parameters_text(candidate)
    text = f"{candidate.policy}: {{{parameters}}}" if parameters else candidate.policy
    if row.run is not None and row.run.micro_batches > 1:
        if candidate.builds_micro_batches:
            return f"{text}, of what simgpu zoo build --micro-batches {row.run.micro_batches} models"
        inside = f"{{{text}}}" if parameters else text
        return f"accumulate: {{micro_batches: {row.run.micro_batches}, inside: {inside}}}"
    return text
