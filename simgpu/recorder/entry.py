"""`record`, the entry point of the recorder; imports PyTorch only when called."""

from __future__ import annotations

import datetime
import importlib.util
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simgpu.errors import InputError, MissingExtraError, Problem
from simgpu.hardware.spec import GpuSpec
from simgpu.recorder.inputs import parse_inputs
from simgpu.trace.model import Trace
from simgpu.units import format_bytes

if TYPE_CHECKING:
    from simgpu.recorder.contents import Measure, MeasureEntries
    from simgpu.recorder.modelled.session import ModelledSession
    from simgpu.recorder.session import Session


DEFAULT_DEVICE = "cpu"
DEFAULT_REPETITIONS = 5
DEFAULT_WARMUP = 2
DEFAULT_SNAPSHOTS = 10


def record(
    factory: str | Callable[..., Any],
    *,
    batch: int,
    device: str = DEFAULT_DEVICE,
    repetitions: int = DEFAULT_REPETITIONS,
    warmup: int = DEFAULT_WARMUP,
    seed: int = 0,
    optimizer: str | Callable[..., Any] = "sgd",
    epochs: int = 0,
    algorithms: bool = False,
    gpu: str | Path | GpuSpec | None = None,
    measure: Measure | None = None,
    save_maps: str | Path | None = None,
    measure_entries: MeasureEntries | None = None,
    dump_memory: str | Path | None = None,
    snapshots: int | None = None,
    hold_output: bool = False,
    grad_scaler: bool = False,
    micro_batches: int = 1,
    inputs: Mapping[str, str] | None = None,
    date: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Trace:
    """Runs a PyTorch model and returns one of its training iterations as a trace of origin `recorded`.

    With `gpu`, nothing runs: the iteration is modelled for that GPU, as a trace of origin `modelled`.

    factory: a name in `BUILT_IN_MODELS`, ``"module.path:factory"``, or a callable. It is called with ``batch=`` (the
        samples of a micro-batch) if it has that parameter, else without arguments. It returns an ``nn.Module`` (whose
        inputs are then specified by `inputs`), or ``(module, inputs)``, ``(module, inputs, labels, loss)`` or
        ``(module, inputs, labels, loss, batches)``.
        inputs: a tensor, a tuple of arguments, or a mapping of keyword arguments; each is a tensor, a number, a string,
        None, or a tuple, list or dict of these. The first tensor's first dimension is the batch.
        labels: a tensor or a tuple of tensors.
        loss: a callable; ``loss(module(*inputs), *labels)`` is a scalar. If it is missing or None, the output's own
        loss is used (``output.loss``, ``output["loss"]``), as in Hugging Face models with ``labels`` among their
        inputs. If there is none and the output is a tensor of scores, (batch, classes) or (batch, tokens, classes), the
        loss is cross-entropy on random labels.
        batches: the training data, a ``DataLoader`` or a list of pairs (inputs, labels), or of mappings of inputs if
        there are no labels; shapes may differ between batches.
    batch: samples in the iteration.
    device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    repetitions: number of timed iterations; each kernel gets its median duration and interquartile range. One more
        iteration records everything else, and one more forward and backward pass the tensors that autograd saves.
    warmup: number of warm-up iterations, at least one, so that optimizer state exists.
    seed: seed of weights, data and dropout; torch's random state is restored afterwards.
    optimizer: a name in `BUILT_IN_OPTIMIZERS`, ``"module.path:factory"`` (``"torch.optim:Adadelta"``), or a callable
        that takes the parameters.
    epochs: number of epochs to train before recording. An epoch is one pass over the factory's batches, or one step on
        its single batch. The fraction of zeros of every feature map is measured on the recorded batch after each epoch,
        and before training as epoch 0. With 0 epochs, it is measured once, in the recorded iteration.
    algorithms: whether to measure convolutions under other backend settings too: on CUDA, cuDNN's benchmark and
        deterministic modes and PyTorch's own kernels; on a CPU, PyTorch's own kernels instead of oneDNN. Each is a row
        of the trace's algorithms, with its median duration and the workspace reported by PyTorch's allocator.
    gpu: a shipped node, a node file, or a `GpuSpec`: nothing runs then, and no memory is allocated. Operators, blocks,
        sizes and lifetimes come from PyTorch's fake tensors, in the form they have on a GPU
        (`simgpu.recorder.modelled.gpu_forms`); durations, algorithms and workspaces come from the time model for that
        GPU. Arguments that need a run (device, repetitions, warmup, seed, epochs, algorithms, measure, save_maps,
        measure_entries, dump_memory) are not allowed.
    measure: called with the array of every feature map whenever its fraction of zeros is measured; returns (codec,
        layout, compressed bytes) rows for the trace's compressibility (`simgpu.compression.codecs.measure.sizes_in`).
        The array has the shape of the feature map; four axes are N, C, H, W. bfloat16 is passed as uint16.
    save_maps: a new or empty folder for these arrays of the recorded iteration, one ``.npy`` file per feature map. The
        file name is the block's id, with ``_`` for all but letters, digits, dots, dashes and underscores.
    measure_entries: called with the bytes of every block in memory order, when `measure` is called; returns (codec,
        layout, bytes of a memory-entry before, bytes after, number of entries) rows for the trace's compressibility
        (`simgpu.compression.codecs.measure.entries_in`). Blocks from before the iteration (weights, optimizer state,
        running statistics, the batch) are measured with their initial values, all others after their last write;
        workspaces are not measured. Optimizer state at epoch 0 is that after a first step. Measuring an epoch runs a
        full iteration and then restores the state, except what an optimizer stores outside its ``state``.
    dump_memory: a new or empty folder for snapshots of all live blocks, taken in another iteration after the timed
        ones. Each snapshot is a folder (``03-after-k17``) with one ``.npy`` file per block, named as in `save_maps`,
        with its values in memory order as a flat array; the shapes are in the trace's blocks.
    snapshots: number of snapshots, by default 10, taken between kernels in the middle of equal parts of the time.
    hold_output: whether the loop references the model's output through backward and the optimizer step, as in
        ``output = model(x); loss = loss_fn(output, y)``. By default, the loop is ``loss = loss_fn(model(x), y)``: once
        the loss is computed, only autograd may reference the output.
    grad_scaler: whether the loop scales gradients, as float16 needs: ``scaler.scale(loss).backward()``,
        ``scaler.step(optimizer)``, ``scaler.update()``, with a default ``torch.amp.GradScaler``. With `gpu`, all
        gradients are assumed to be finite. For autocast, use ``with torch.autocast(...)`` in the model's ``forward`` or
        in the loss. Autocast for CUDA needs a recording on CUDA, or `gpu`, which follows CUDA's rules for formats.
    micro_batches: number of equal micro-batches that the batch is split into: ``(loss / micro_batches).backward()`` for
        each, then one optimizer step. All have the same inputs.
    inputs: inputs by name, for a factory that returns only a module: random values of ``"SHAPE[:TYPE[:BELOW]]"``, where
        B in the shape is the batch. ``{"x": "Bx3x224x224"}`` is float32 images, ``{"input_ids": "Bx128:int64:50257",
        "labels": "Bx128:int64:50257"}`` is tokens from 0 to 50256.
    date: ISO 8601 date of the recording, by default today.
    progress: called with a message at each step.

    An iteration is forward, loss, backward, optimizer step and ``zero_grad(set_to_none=True)``, in this order. Each
    operator that PyTorch dispatched becomes a kernel, unless it only creates views; each storage becomes a block. A
    block's release is the kernel after which PyTorch freed the storage. Durations are in nanoseconds: on a CPU, they
    are measured around the operator's call by the host's monotonic clock; on a GPU, between events recorded around it
    on the stream. Garbage collection is disabled, so blocks that only a collection would free live to the end.

    The tensors that autograd saves in forward are rows of the trace's saved tensors
    (`simgpu.trace.model.SavedTensor`), as far as PyTorch's hooks report them.

    A block's bytes are those its storage requested. PyTorch's CUDA allocator counts more: it rounds up to 512 bytes,
    and may allocate up to 1 MiB more for requests over 1 MiB. Memory that an operator allocates and frees internally
    is a workspace block on a GPU, and not recorded on a CPU. While operators are intercepted, PyTorch skips some
    in-place optimizations: those of backward are restored (`simgpu.recorder.in_place_backward`), but on real tensors
    the bias of a linear layer on inputs of three or more dimensions is not.

    Raises `MissingExtraError` without PyTorch. Raises `InputError` if an argument or the factory's result is invalid,
    the model fails, memory runs out, or the operators differ between iterations; if the model is compiled
    (``torch.compile``, ``torch.jit``), distributed over GPUs (DDP, FSDP, DTensor) or calls flex attention; with `gpu`
    also if the iteration needs the values of its tensors.

    >>> record("resnet20", batch=0)
    Traceback (most recent call last):
    simgpu.errors.InputError: record: batch: 0 is not a number of samples; give a whole number >= 1
    """
    check_arguments(epochs, date, batch=batch, repetitions=repetitions, warmup=warmup, micro_batches=micro_batches)
    check_micro_batches(batch, micro_batches, epochs)
    _check_snapshots(snapshots, dump_memory)
    specs = None if inputs is None else parse_inputs(inputs)
    if gpu is not None:
        _check_that_nothing_runs(
            {
                "device": device != DEFAULT_DEVICE,
                "repetitions": repetitions != DEFAULT_REPETITIONS,
                "warmup": warmup != DEFAULT_WARMUP,
                "seed": seed != 0,
                "epochs": epochs != 0,
                "algorithms": algorithms,
                "measure (--codec)": measure is not None,
                "save_maps": save_maps is not None,
                "measure_entries (--codec)": measure_entries is not None,
                "dump_memory": dump_memory is not None,
            }
        )
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("recording a model", "torch", "record")
    day = date if date is not None else datetime.date.today().isoformat()
    session: Session | ModelledSession
    if gpu is not None:
        from simgpu.hardware.nodes import load_node
        from simgpu.recorder.modelled.session import ModelledSession

        spec = gpu if isinstance(gpu, GpuSpec) else load_node(gpu).gpu
        session = ModelledSession(
            factory,
            batch,
            optimizer,
            spec,
            day,
            progress,
            hold_output=hold_output,
            grad_scaler=grad_scaler,
            inputs=specs,
            micro_batches=micro_batches,
        )
    else:
        from simgpu.recorder.session import Session

        session = Session(
            factory,
            batch,
            device,
            repetitions,
            warmup,
            seed,
            optimizer,
            epochs,
            algorithms,
            day,
            progress,
            measure,
            None if save_maps is None else Path(save_maps),
            measure_entries,
            None if dump_memory is None else Path(dump_memory),
            DEFAULT_SNAPSHOTS if snapshots is None else snapshots,
            hold_output,
            grad_scaler,
            inputs=specs,
            micro_batches=micro_batches,
        )
    try:
        return session.run()
    except Exception as error:
        shortage = as_out_of_memory(error, batch)
        if shortage is None:
            raise
        raise shortage from error


#: What the arguments that are counts from one on count.
_COUNTED = {
    "batch": "samples",
    "repetitions": "iterations",
    "warmup": "iterations",
    "iterations": "iterations",
    "micro_batches": "micro-batches",
}


def check_arguments(epochs: int = 0, date: str | None = None, **counts: int) -> None:
    """Raises `InputError` for arguments that are no counts, or no date.

    >>> check_arguments(batch=0)
    Traceback (most recent call last):
    simgpu.errors.InputError: record: batch: 0 is not a number of samples; give a whole number >= 1
    """
    problems = [
        Problem("record", name, f"{value!r} is not a number of {_COUNTED[name]}", "give a whole number >= 1")
        for name, value in counts.items()
        if type(value) is not int or value < 1
    ]
    if type(epochs) is not int or epochs < 0:
        problems.append(
            Problem("record", "epochs", f"{epochs!r} is not a number of epochs", "give a whole number >= 0")
        )
    if date is not None:
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            problems.append(Problem("record", "date", f"{date!r} is not a day", "write YYYY-MM-DD"))
    if problems:
        raise InputError(problems)


def check_micro_batches(batch: int, micro_batches: int, epochs: int = 0) -> None:
    """Raises `InputError` for a number of micro-batches into which the batch cannot be split.

    >>> check_micro_batches(32, 3)
    Traceback (most recent call last):
    simgpu.errors.InputError: record: micro_batches: 32 samples are not 3 equal micro-batches; give a divisor of 32
    """
    if batch % micro_batches:
        what = f"{batch} samples are not {micro_batches} equal micro-batches"
        raise InputError.single("record", "micro_batches", what, f"give a divisor of {batch}")
    if epochs and micro_batches > 1:
        what = "training before the recording takes whole batches"
        raise InputError.single("record", "micro_batches", what, "leave out micro_batches, or epochs")


def _check_snapshots(snapshots: int | None, folder: str | Path | None) -> None:
    if snapshots is not None and (type(snapshots) is not int or snapshots < 1):
        what = f"{snapshots!r} is not a number of snapshots"
        raise InputError.single("record", "snapshots", what, "give a whole number >= 1")
    if snapshots is not None and folder is None:
        what = "no folder is given for the snapshots of memory"
        raise InputError.single("record", "snapshots", what, "add dump_memory (--dump-memory), or leave it out")


def _check_that_nothing_runs(switches: Mapping[str, bool]) -> None:
    """Raises `InputError` for options that need a run, because nothing runs for a modelled GPU."""
    what, remedy = "it has no effect when the iteration is modelled for a GPU", "leave it out, or leave out gpu"
    problems = [Problem("record", name, what, remedy) for name, is_set in switches.items() if is_set]
    if problems:
        raise InputError(problems)


#: Out-of-memory messages of PyTorch's host and GPU allocators, with the requested size.
_ALLOCATION = re.compile(r"tried to allocate ([0-9.]+) (bytes|[KMGT]iB)", re.IGNORECASE)
#: PyTorch's messages for sizes that exceed its integers.
_BEYOND = re.compile(r"Overflow when unpacking|calculation overflowed", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def as_out_of_memory(error: Exception, batch: int) -> InputError | None:
    """Returns the error for a batch that runs out of memory; None if the exception has another reason.

    error: PyTorch's exception, or the `InputError` raised from it.

    >>> print(as_out_of_memory(RuntimeError("can't allocate memory: you tried to allocate 8589934592 bytes."), 4096))
    record: batch: 4096 samples run out of memory: PyTorch requested another 8 GiB; give a smaller batch
    >>> as_out_of_memory(RuntimeError("the sizes of a and b do not match"), 4096) is None
    True
    """
    cause = error.__cause__ if isinstance(error, InputError) else error
    why = _why(cause)
    if not why:
        return None
    what = f"{batch} samples run out of memory: PyTorch {why}"
    return InputError.single("record", "batch", what, "give a smaller batch")


def _why(cause: BaseException | None) -> str:
    if isinstance(cause, MemoryError):
        return "could not allocate"
    if not isinstance(cause, RuntimeError | TypeError):
        return ""
    requested = _ALLOCATION.search(str(cause))
    if requested:
        number, unit = requested.groups()
        return f"requested another {format_bytes(int(float(number) * _UNITS[unit.lower()]))}"
    return "cannot represent the sizes" if _BEYOND.search(str(cause)) else ""
