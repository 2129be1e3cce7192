"""The recorded trace: one training iteration of one model at one batch size on one device."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from statistics import median
from types import MappingProxyType
from typing import TYPE_CHECKING

from simgpu.units import format_time

if TYPE_CHECKING:
    import pandas as pd


class Phase(StrEnum):
    """Part of the iteration a kernel belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class BlockKind(StrEnum):
    """What a block of memory holds."""

    INPUT = "input"
    LABEL = "label"
    WEIGHT = "weight"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    WEIGHT_GRADIENT = "weight_gradient"
    OPTIMIZER_STATE = "optimizer_state"
    WORKSPACE = "workspace"
    OTHER = "other"


class Origin(StrEnum):
    """Where a trace comes from; shown with every result."""

    RECORDED = "recorded"
    IMPORTED = "imported"
    MODELLED = "modelled"


class OutputLife(StrEnum):
    """How long the training loop holds the model's output, in addition to autograd.

    RELEASED: until the loss is computed, as in ``loss = loss_fn(model(x), y); loss.backward()``. HELD: through backward
    and the optimizer step, as a loop's own variable is, which logging code reads.
    """

    RELEASED = "released"
    HELD = "held"


#: Value of `Block.release` for a block that the framework still held when the iteration ended.
RELEASED_AT_END = "end"

#: A larger relative spread of the median kernel is reported with every result.
_WIDE_SPREAD = 0.2

#: A value that the header of a trace does not state.
NOT_STATED = "not stated"

#: The device or number format that neither the recording nor the user gave.
NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operator as it ran once.

    reads, writes: ids of the blocks it touches; a block in both is changed in place.
    duration_ns, start_ns: nanoseconds; `start_ns` counts from the iteration's begin and is None when not recorded.
    stream: the compute stream it ran on, 0 for the first.
    layer: the layer it belongs to, None where the recording has no layers.
    pure: whether running it again gives the same values and changes nothing else; None when unknown.
    flops: floating-point operations; dram_bytes: bytes it moved to and from device memory; None when not recorded.
    iqr_ns: interquartile range of the recorded repetitions; None when not recorded.
    source: the line of code that ran it, such as ``model.py:12 forward``; None when not recorded.
    """

    id: str
    op: str
    phase: Phase
    duration_ns: int
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    layer: str | None = None
    stream: int = 0
    start_ns: int | None = None
    pure: bool | None = None
    flops: int | None = None
    dram_bytes: int | None = None
    iqr_ns: int | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """One piece of memory; views, aliases and in-place results of it are the same block.

    bytes: its size.
    persistent: it holds its value when the iteration begins (weights, optimizer state, the batch itself).
    host_write: for a block that is neither persistent nor first touched by a write: the kernel at whose start the
        host had copied it to the device (a scalar computed on the host in mid-iteration); None otherwise.
    release: the kernel after whose end the framework freed it; `RELEASED_AT_END` when it was still held at the
        iteration's end; None when not recorded. A persistent block with a kernel here is freed in mid-iteration and
        provided again when the next iteration begins.
    shape, dtype, layer: as recorded, None when unknown.
    """

    id: str
    bytes: int
    kind: BlockKind
    persistent: bool = False
    host_write: str | None = None
    release: str | None = None
    layer: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """One way to run a convolution kernel: its name, duration (ns) and workspace (bytes)."""

    kernel: str
    algorithm: str
    duration_ns: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class SparsitySample:
    """Share of zeros (0..1) in a block at an epoch."""

    block: str
    epoch: int
    sparsity: float


@dataclass(frozen=True, slots=True)
class CompressedSize:
    """Measured compressed sizes: `entries` pieces of `entry_bytes` bytes each shrink to `bytes` bytes each.

    A block measured at once is one row with one entry; a histogram of small memory-entries is several rows.
    """

    block: str
    epoch: int
    codec: str
    layout: str
    entry_bytes: int
    bytes: int
    entries: int


class AccessOrder(StrEnum):
    """The order in which a kernel accesses the 128-byte entries of a block."""

    SEQUENTIAL = "sequential"
    STRIDED = "strided"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Access:
    """How a kernel accesses a block in device memory, if not all of it once from start to end.

    write: whether it writes or reads it; a kernel that does both has a row for each. order: of its accesses; `STRIDED`
    accesses entries 0, stride, 2 stride, ... and then those next to them. sectors: of 32 bytes that it requests of each
    entry of 128 bytes, 1 to 4, as they reach device memory. entries: number of accesses; stride: in entries. first:
    entry at which the accesses begin; they wrap around at the block's end; 0 for `RANDOM`.
    """

    kernel: str
    block: str
    write: bool
    order: AccessOrder
    sectors: int
    entries: int
    stride: int = 1
    first: int = 0


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that autograd saved in forward for backward; rows are in the order of saving.

    Saved-tensor hooks see each of them, also if several are views of one block, or two operators saved the same one.
    block: the memory behind it. bytes: of the tensor itself, which may be a view of a part of the block, or repeat it.
    packed_after: the kernel that ran last before it was saved, None for none. unpacked_before: the kernel that ran
    first after backward unpacked it, None if backward never did. released_after: the kernel after whose end only
    autograd held the block, `RELEASED_AT_END` if others held it to the end; None where that was not recorded.
    unused_after: the kernel after whose end the operator of backward had dropped what it unpacked. freed_after: the
    kernel after whose end autograd freed what it had saved, which may be later; `RELEASED_AT_END` if it held it to the
    end. layer: the layer that saved it. shape, dtype: of the tensor itself. All None where not recorded. is_reread:
    whether more than one run of backward unpacked it, as after ``backward(retain_graph=True)``.
    """

    block: str
    bytes: int
    packed_after: str | None = None
    unpacked_before: str | None = None
    released_after: str | None = None
    unused_after: str | None = None
    freed_after: str | None = None
    layer: str | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    is_reread: bool = False


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module in forward, with gradients; rows are in the order of the calls, a module before those
    inside it.

    module: its path, ``.`` for the whole model. after: the kernel that ran last before the call, None for none. until:
    the kernel that had run last when it returned. saved_before: how many of the trace's saved tensors had been saved
    before the call. saved: how many were saved inside it. inputs: for each tensor that it was given, its block;
    input_types: and its number format and shape, such as ``float32:2x64`` (`simgpu.torch.types`), empty where not
    known. is_compiled: whether code of ``torch.compile`` ran in it, whose operators PyTorch does not see one by one.
    kind: its class, with the settings of one of PyTorch's own, such as ``Dropout(p=0.1, inplace=False)``; empty where
    not known.
    """

    module: str
    after: str | None
    until: str | None
    saved_before: int
    saved: int
    inputs: tuple[str, ...] = ()
    input_types: tuple[str, ...] = ()
    is_compiled: bool = False
    kind: str = ""


@dataclass(frozen=True, slots=True)
class TraceInfo:
    """Where a trace comes from: the fields of `trace.yaml`.

    date: ISO 8601 day of the recording, empty when unknown. notes: free text.
    framework_peak_bytes: peak of device memory as the framework itself reported it; None when not recorded.
    modelled: the parts of a recorded or imported trace that are modelled, such as its sparsity; empty for none.
    workspace_limit: limit on the workspace of a modelled trace's algorithms, bytes; None for the usual limit.
    task_limit: limit on inputs, result and workspace of each of its convolutions, bytes; None for no limit.
    output: how long the loop held the model's output; None where the trace does not state it.
    compute: number formats that products were computed in, the most used first, and whether autocast chose them
    (``bfloat16 (autocast)``); empty where the trace does not state it. `dtype` is that of the weights.
    """

    model: str
    batch: int
    device: str
    dtype: str
    origin: Origin
    tool: str
    date: str = ""
    notes: str = ""
    framework_peak_bytes: int | None = None
    modelled: str = ""
    workspace_limit: int | None = None
    task_limit: int | None = None
    output: OutputLife | None = None
    compute: str = ""

    @property
    def format(self) -> str:
        """The number format to name the trace by: what it was computed in, where that is stated.

        >>> info = TraceInfo("gpt", 8, "a GPU", "float32", Origin.MODELLED, "torch", compute="bfloat16 (autocast)")
        >>> info.format, TraceInfo("gpt", 8, "a GPU", "float32", Origin.MODELLED, "torch").format
        ('bfloat16 (autocast)', 'float32')
        """
        return self.compute or self.dtype

    @property
    def product_formats(self) -> tuple[str, ...]:
        """The number formats in `format`, one by one.

        >>> info = TraceInfo("gpt", 8, "", "float32", Origin.MODELLED, "", compute="bfloat16 and float32 (autocast)")
        >>> info.product_formats
        ('bfloat16', 'float32')
        """
        return tuple(self.format.removesuffix(" (autocast)").split(" and "))

    @property
    def provenance(self) -> str:
        """Whether it was recorded, imported or modelled, on which device and when; shown with every number.

        >>> TraceInfo("vgg11", 32, "a CPU", "float32", Origin.RECORDED, "torch 2", "2026-01-31").provenance
        'recorded on a CPU, 2026-01-31'
        >>> TraceInfo("vgg11", 32, "not recorded", "float32", Origin.IMPORTED, "a profiler").provenance
        'imported, device not recorded'
        """
        words = {
            Origin.RECORDED: "recorded on",
            Origin.IMPORTED: "imported from a recording on",
            Origin.MODELLED: "modelled, not recorded, for",
        }
        unknown = self.device == NOT_RECORDED
        origin = f"{self.origin}, device {NOT_RECORDED}" if unknown else f"{words[self.origin]} {self.device}"
        parts = (origin, self.date, f"its {self.modelled} modelled" if self.modelled else "")
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, repr=False, weakref_slot=True)
class Trace:
    """One recorded training iteration: kernels in execution order and the blocks they touch.

    Build it through `simgpu.load_trace` or an importer; one built by hand must pass
    `simgpu.trace.check.check_trace` before it is used.

    >>> from simgpu.trace.model import Block, BlockKind, Kernel, Origin, Phase, Trace, TraceInfo
    >>> info = TraceInfo("tiny", 1, "hand", "float32", Origin.MODELLED, "doctest")
    >>> blocks = (Block("x", 4, BlockKind.INPUT, persistent=True), Block("y", 4, BlockKind.ACTIVATION))
    >>> kernels = (Kernel("k0", "relu", Phase.FORWARD, 10, reads=("x",), writes=("y",)),)
    >>> Trace(info, kernels, blocks).compute_ns
    10
    """

    info: TraceInfo
    kernels: tuple[Kernel, ...]
    blocks: tuple[Block, ...]
    algorithms: tuple[AlgorithmChoice, ...] = ()
    sparsity: tuple[SparsitySample, ...] = ()
    compressibility: tuple[CompressedSize, ...] = ()
    accesses: tuple[Access, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    modules: tuple[ModuleCall, ...] = ()
    name: str = field(default="", compare=False)

    @property
    def compute_ns(self) -> int:
        """Sum of the recorded durations, nanoseconds."""
        return sum(kernel.duration_ns for kernel in self.kernels)

    @property
    def relative_spread(self) -> float | None:
        """The spread of repetitions as a share of a kernel's duration: the median over all kernels with a recorded
        spread, None if there are none.

        >>> from dataclasses import replace
        >>> from simgpu.trace.chain import chain
        >>> trace = chain([100], [100], [4])
        >>> one, two = trace.kernels
        >>> replace(trace, kernels=(replace(one, iqr_ns=30), replace(two, iqr_ns=50))).relative_spread
        0.4
        """
        shares = [
            kernel.iqr_ns / kernel.duration_ns
            for kernel in self.kernels
            if kernel.iqr_ns is not None and kernel.duration_ns
        ]
        return median(shares) if shares else None

    @property
    def is_rough(self) -> bool:
        """Whether the spread of repetitions is so large that times are only rough."""
        return (self.relative_spread or 0.0) > _WIDE_SPREAD

    @property
    def records_reads(self) -> bool:
        """Whether it is recorded what kernels read; an imported recording may have only lifetimes of blocks."""
        return self.info.origin is not Origin.IMPORTED or any(kernel.reads for kernel in self.kernels)

    @property
    def block_by_id(self) -> Mapping[str, Block]:
        """Blocks by their id."""
        return MappingProxyType({block.id: block for block in self.blocks})

    def kernel_frame(self) -> pd.DataFrame:
        """One row per kernel, indexed by id, in execution order, with the fields of `Kernel`; NA where not recorded."""
        return _frame(Kernel, self.kernels)

    def block_frame(self) -> pd.DataFrame:
        """One row per block, indexed by id, with the fields of `Block`; NA where not recorded."""
        return _frame(Block, self.blocks)

    def sparsity_frame(self) -> pd.DataFrame:
        """Share of zeros, 0 to 1: one row per epoch, one column per block, in the trace's order."""
        import pandas as pd

        table = pd.DataFrame([asdict(sample) for sample in self.sparsity], columns=["block", "epoch", "sparsity"])
        order = dict.fromkeys(table["block"])
        return table.pivot(index="epoch", columns="block", values="sparsity").reindex(columns=list(order))

    @property
    def summary(self) -> str:
        """What was recorded, in one sentence.

        >>> info = TraceInfo("vgg11", 32, "a CPU", "float32", Origin.RECORDED, "torch 2", "2026-01-31")
        >>> Trace(info, (), (), name="tiny").summary
        'tiny: vgg11, batch 32, float32; 0 kernels, 0 ns of compute'
        """
        info = self.info
        dtype = "" if info.format == NOT_RECORDED else f", {info.format}"
        kernels = f"{len(self.kernels)} kernels, {format_time(self.compute_ns)} of compute"
        what = f"{info.model}, batch {info.batch}{dtype}; {kernels}"
        return f"{self.name}: {what}" if self.name not in ("", info.model) else what

    def facts(self) -> list[tuple[str, str]]:
        """What was recorded, where it comes from, and whether its times are rough, as names and texts."""
        spread = f"{self.relative_spread or 0:.0%} between repetitions of the median kernel: times are rough"
        return [
            ("trace", self.summary),
            ("origin", f"{self.info.provenance}, by {self.info.tool}"),
            *([("spread", spread)] if self.is_rough else []),
        ]

    def __repr__(self) -> str:
        return "\n".join(f"{name:<8}{text}" for name, text in self.facts())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def _frame(kind: type[Kernel] | type[Block], rows: Sequence[Kernel] | Sequence[Block]) -> pd.DataFrame:
    """One column per field, enums as plain strings; integers stay integers where some are missing."""
    import pandas as pd

    names = [each.name for each in fields(kind)]
    cells = ([getattr(row, name) for name in names] for row in rows)
    plain = [[str(cell) if isinstance(cell, StrEnum) else cell for cell in row] for row in cells]
    return pd.DataFrame(plain, columns=names, dtype=object).convert_dtypes().set_index("id")
