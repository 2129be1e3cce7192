"""`record`, the one entry to the recorder; imports PyTorch only when called."""

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
    inputs: Mapping[str, str] | None = None,
    date: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Trace:
    """Run a PyTorch model for real and return one training iteration of it as a trace of origin `recorded`.

    With `gpu`, model that iteration instead: a trace of origin `modelled`, for which nothing runs.

    factory: a name in `BUILT_IN_MODELS`, ``"module.path:factory"``, or the factory itself. It is called with
        ``batch=`` if it has a parameter of that name, else with nothing, and returns an ``nn.Module``, whose inputs
        are then named by `inputs`, or the tuple ``(module, inputs)`` or ``(module, inputs, labels, loss)``.
        inputs: a tensor, a tuple of arguments, or a mapping of arguments by keyword, each a tensor, a number, text,
        None, or tuples, lists and dicts of these; the first tensor's first dimension is the batch. labels: a tensor or
        a tuple of tensors; ``loss(module(*inputs), *labels)`` is a single value. Where there is no loss, or None, it
        is the one that the output carries (``output.loss``, ``output["loss"]``), as models of Hugging Face's do that
        are given ``labels`` among their inputs. Where it carries none and is a tensor of scores, (batch, classes) or
        (batch, tokens, classes), it is cross-entropy on random labels. A fifth item, `batches`, is the data to train
        on: a ``DataLoader`` or a list of pairs (inputs, labels), or of mappings of inputs where there are no labels; a
        shape may differ.
    batch: samples in the iteration.
    device: ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
    repetitions: iterations that are timed; each kernel gets its median and the spread between quartiles. One more is
        run for everything else but what autograd saves, which another pass forward and backward tells.
    warmup: iterations run first, at least one, so that optimizer state exists.
    seed: of weights, data and dropout; torch's own random state is put back afterwards.
    optimizer: a name in `BUILT_IN_OPTIMIZERS`, ``"module.path:factory"`` (``"torch.optim:Adadelta"``), or a callable;
        it takes the parameters.
    epochs: how long the model is really trained before it is recorded. An epoch is one walk through the factory's
        batches, or one step on its only batch. The share of zeros of every feature map is measured on the recorded
        batch at the end of each epoch, and before the first as epoch 0. With 0 epochs it is measured once, in the
        recorded iteration, after the warm-up.
    algorithms: whether convolutions are measured under other settings of the backend too: cuDNN's benchmark and
        deterministic modes and PyTorch's own kernels on CUDA, PyTorch's own kernels instead of oneDNN on a CPU. Each
        is a row of the trace's algorithms, with its median duration and the workspace seen by PyTorch's allocator.
    gpu: a node that ships with simgpu, a node's file, or its `GpuSpec`: nothing runs then and no memory is taken.
        Operators, blocks, sizes and lifetimes are those that PyTorch gives to tensors without memory, in the form they
        have on a GPU (`simgpu.recorder.modelled.gpu_forms`); durations, algorithms and workspaces are the time
        model's for that GPU. What asks for a run (device, repetitions, warmup, seed, epochs, algorithms, measure,
        save_maps, measure_entries, dump_memory) is refused.
    measure: called with the array of every feature map whenever its share of zeros is measured; gives the codec, the
        layout and the bytes of what it becomes, which are rows of the trace's compressibility
        (`simgpu.compression.codecs.measure.sizes_in`). An array has the map's shape, four axes being N, C, H, W;
        bfloat16 comes as uint16.
    save_maps: a folder, new or empty, for the recorded iteration's feature maps, the same arrays, one ``.npy`` file
        each, named by the block with ``_`` for what is not a letter, digit, dot, dash or underscore.
    measure_entries: called with the bytes of every block, as they lie in memory, at the same moments; gives codec,
        layout, bytes of an entry before and after, and how many entries become that, which are rows of the trace's
        compressibility too (`simgpu.compression.codecs.measure.entries_in`). What is there before the iteration
        (weights, optimizer state, running statistics, the batch) counts as the iteration finds it, anything else
        (feature maps, gradients, what the optimizer makes) as its last write leaves it. Workspaces are not seen. The
        optimizer's state at epoch 0 is what a first step leaves, since there is none before. Looking at an epoch runs a
        whole iteration and takes it back; an optimizer that keeps anything outside its ``state`` is not taken back
        there.
    dump_memory: a folder, new or empty, for snapshots of all live blocks along one iteration after those that are
        timed. Each snapshot is a folder (``03-after-k17``), each block a ``.npy`` file in it, named as in `save_maps`:
        its values in a row as they lie in memory. The trace's blocks tell their shapes.
    snapshots: how many, 10 where left out; they are taken between kernels, in the middle of equal parts of the time.
    hold_output: whether the loop holds the model's output through backward and the optimizer step, as
        ``output = model(x); loss = loss_fn(output, y)`` does. Left out, it is the usual loop
        ``loss = loss_fn(model(x), y)``: once the loss is computed, autograd alone holds the output, if it saved it.
    grad_scaler: whether the loop scales gradients, as float16 needs: ``scaler.scale(loss).backward()``,
        ``scaler.step(optimizer)``, ``scaler.update()``, with a ``torch.amp.GradScaler`` as PyTorch makes it. With `gpu`
        all gradients are taken to be finite. Autocast is the model's or the loss's own: ``with torch.autocast(...)`` in
        ``forward``. For CUDA it needs a recording on CUDA, or `gpu`, where formats follow CUDA's rules.
    inputs: what a module that the factory returns alone is given, by name: random values of
        ``"SHAPE[:TYPE[:BELOW]]"``, where B in the shape is the batch. ``{"x": "Bx3x224x224"}`` is float32 images,
        ``{"input_ids": "Bx128:int64:50257", "labels": "Bx128:int64:50257"}`` is tokens from 0 to below 50257.
    date: ISO 8601 day to write down, today when left out.
    progress: called with what is being done.

    An iteration is forward, loss, backward, optimizer step and ``zero_grad(set_to_none=True)``, in this order. One
    kernel stands for each operator that PyTorch dispatched (an operator that only makes a view is none), one block
    for each storage; a block's release is the kernel after whose end PyTorch freed the storage. Durations are
    nanoseconds: around the operator's call by the host's monotonic clock on a CPU, between events recorded around it
    on the stream of a GPU. Garbage collection is off meanwhile, so what only a collection would free lives to the
    end.

    The tensors that autograd saves in forward are rows of the trace's saved tensors
    (`simgpu.trace.model.SavedTensor`), where PyTorch lets its hooks see them.

    A block's bytes are what its storage asked for. PyTorch's CUDA allocator counts more: it rounds up to 512 bytes,
    and may hand out up to 1 MiB more where over 1 MiB is asked for.
    What an operator allocates and frees inside itself is a workspace block on a GPU and not seen on a CPU. While
    operators are intercepted PyTorch leaves some in-place shortcuts: sums of gradients are put back to what they are
    (`simgpu.recorder.gradient_sums`), the bias of a linear layer on inputs of three or more dimensions is not.

    Raises `MissingExtraError` without PyTorch, and `InputError` when an argument is wrong, the factory does not do as
    above, the model fails, the batch needs more memory than there is, or the operators are not the same in every
    iteration; when the model is compiled (``torch.compile``, ``torch.jit``), spread over GPUs (DDP, FSDP, DTensor) or
    calls flex attention; with `gpu` also when the iteration needs the values of its tensors.

    >>> record("resnet20", batch=0)
    Traceback (most recent call last):
    simgpu.errors.InputError: record: batch: 0 is not a number of samples; give a whole number >= 1
    """
    _check_arguments(batch, repetitions, warmup, epochs, date)
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
        )
    try:
        return session.run()
    except Exception as error:
        shortage = as_out_of_memory(error, batch)
        if shortage is None:
            raise
        raise shortage from error


def _check_arguments(batch: int, repetitions: int, warmup: int, epochs: int, date: str | None) -> None:
    problems = [
        Problem("record", name, f"{value!r} is not a number of {what}", "give a whole number >= 1")
        for name, value, what in (
            ("batch", batch, "samples"),
            ("repetitions", repetitions, "iterations"),
            ("warmup", warmup, "iterations"),
        )
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


def _check_snapshots(snapshots: int | None, folder: str | Path | None) -> None:
    if snapshots is not None and (type(snapshots) is not int or snapshots < 1):
        what = f"{snapshots!r} is not a number of snapshots"
        raise InputError.single("record", "snapshots", what, "give a whole number >= 1")
    if snapshots is not None and folder is None:
        what = "there is no folder to write snapshots of memory to"
        raise InputError.single("record", "snapshots", what, "name one (dump_memory, --dump-memory), or leave it out")


def _check_that_nothing_runs(switches: Mapping[str, bool]) -> None:
    """With a GPU to model for, what asks for a run is refused."""
    what, remedy = "nothing runs where a GPU is named to model for", "leave it out, or leave out gpu"
    problems = [Problem("record", name, what, remedy) for name, given in switches.items() if given]
    if problems:
        raise InputError(problems)


#: What PyTorch's allocators say on a host and on a GPU, with how much they were asked for.
_ALLOCATION = re.compile(r"tried to allocate ([0-9.]+) (bytes|[KMGT]iB)", re.IGNORECASE)
#: What PyTorch says of sizes that its numbers do not hold.
_BEYOND = re.compile(r"Overflow when unpacking|calculation overflowed", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def as_out_of_memory(error: Exception, batch: int) -> InputError | None:
    """The message for a batch that memory does not hold; None where the exception has another reason.

    error: PyTorch's exception, or the `InputError` that was made of it.

    >>> print(as_out_of_memory(RuntimeError("can't allocate memory: you tried to allocate 8589934592 bytes."), 4096))
    record: batch: 4096 samples need more memory than there is: PyTorch asked for another 8 GiB; give a smaller batch
    >>> as_out_of_memory(RuntimeError("the sizes of a and b do not match"), 4096) is None
    True
    """
    cause = error.__cause__ if isinstance(error, InputError) else error
    why = _why(cause)
    if not why:
        return None
    what = f"{batch} samples need more memory than there is: PyTorch {why}"
    return InputError.single("record", "batch", what, "give a smaller batch")


def _why(cause: BaseException | None) -> str:
    if isinstance(cause, MemoryError):
        return "got none"
    if not isinstance(cause, RuntimeError | TypeError):
        return ""
    requested = _ALLOCATION.search(str(cause))
    if requested:
        number, unit = requested.groups()
        return f"asked for another {format_bytes(int(float(number) * _UNITS[unit.lower()]))}"
    return "has no number for the sizes" if _BEYOND.search(str(cause)) else ""
