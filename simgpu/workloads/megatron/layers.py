"""TransformerEngine's modules of one GPU among several that share each layer: kernels, what they save, and backward.

Source: TransformerEngine 2.11, ``transformer_engine/pytorch``. `norm_product` is ``module/layernorm_linear.py`` as a
column-parallel layer, `row_product` ``module/linear.py`` as a row-parallel one, or on one GPU any layer without a
normalization. Between them each GPU has a part of the tokens (sequence parallelism). `normalized` is
``ops/basic/rmsnorm.py``. Gradients of weights are added to float32 ones by the product itself
(``fuse_wgrad_accumulation``), so that autograd sees no gradient of such a weight. What autograd gets in its place is
one empty tensor for each shape (``get_dummy_wgrad``), which stays. `gated` is the fused SwiGLU of Megatron-LM
(``core/fusions/fused_bias_swiglu.py``).

Collectives are not overlapped with products in forward (``--disable-tp-comm-overlap-ag`` and others). In backward, the
input of a column-parallel product is gathered while the product for the gradient of the input runs, which is scattered
while the one for the weight runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from simgpu.hardware.collectives import Group
from simgpu.trace.model import BlockKind
from simgpu.workloads.eager.pointwise import only
from simgpu.workloads.eager.products import product
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.work import gemm
from simgpu.workloads.lowering.tape import TapeBlock
from simgpu.workloads.megatron.exchange import Exchanges
from simgpu.workloads.timemodel.operation import Direction, GemmShape, Operation

_Grads = Sequence[Tensor | None]

#: Bytes that the library of products works in, from Hopper on and before it (``get_cublas_workspace_size_bytes``).
_WORKSPACE, _SMALL_WORKSPACE = 32 * 2**20 + 1024, 4 * 2**20
_SINCE_HOPPER = ("hopper", "blackwell", "blackwell-rtx")
#: Streams among which grouped products are divided, each of which has such memory, too (``get_num_compute_streams``).
_STREAMS = 4
#: The same of PyTorch's products, on Hopper and on others (``parseChosenWorkspaceSize`` of PyTorch 2.11,
#: ``ATen/cuda/CublasHandlePool.cpp``). Its threads of forward and of backward have each their own.
_OF_PYTORCH, _SMALL_OF_PYTORCH = 32 * 2**20, 2 * 4 * 2**20 + 128 * 2**10


@dataclass(frozen=True, slots=True)
class Parts:
    """What the layers of one GPU share.

    group, tokens, experts: the GPUs that share each layer, the tokens of a sample, and the experts of a layer.
    of_experts: weights of experts, which fewer GPUs have than others. gradients: in float32, of each weight by its
    block. placeholders: what autograd gets instead of the gradient of a weight, by shape.
    """

    session: Session
    exchanges: Exchanges
    group: Group
    tokens: Group
    experts: Group
    of_experts: set[TapeBlock] = field(default_factory=set)
    gradients: dict[TapeBlock, Tensor] = field(default_factory=dict)
    placeholders: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def matrix(self, name: str, rows: int, width: int) -> Tensor:
        """A weight of the current layer whose gradient its product adds up itself."""
        return self.as_matrix(self.session.weight(name, (rows, width), "bfloat16"))

    def as_matrix(self, weight: Tensor) -> Tensor:
        """The same for a weight that exists."""
        rows, width = weight.shape
        weight = Tensor(weight.block, weight.shape, weight.strides)
        if weight.shape not in self.placeholders:
            own = f"dummy_wgrad.{rows}x{width}"
            self.placeholders[weight.shape] = self.session.constant(own, weight.shape, "bfloat16", BlockKind.OTHER)
        return weight

    def workspaces(self, architecture: str | None, *, of_pytorch: bool) -> None:
        """The memory that products work in, which stays. of_pytorch: whether PyTorch computes some, too."""
        size = _WORKSPACE if architecture in _SINCE_HOPPER else _SMALL_WORKSPACE
        names = ["workspace", *(f"workspace.stream{number}" for number in range(_STREAMS if self.of_experts else 0))]
        sizes = dict.fromkeys(names, size)
        if of_pytorch:
            size = _OF_PYTORCH if architecture == "hopper" else _SMALL_OF_PYTORCH
            sizes |= dict.fromkeys(("workspace.forward", "workspace.backward"), size)
        for name, size in sizes.items():
            self.session.constant(name, (size,), "uint8", BlockKind.OTHER)

    def vector(self, name: str, width: int) -> Tensor:
        """The weight of a normalization."""
        return self.session.weight(name, (width,), "bfloat16")


def normalized(parts: Parts, x: Tensor, scale: Tensor) -> Tensor:
    """The rows divided by their root mean square, a layer of its own."""
    session = parts.session
    normal, spread = session.run("_fused_rms_norm", (x, scale), ((x.shape, x.dtype), (x.shape[:1], "float32")))

    def backward(grads: _Grads) -> _Grads:
        shapes = ((x.shape, x.dtype), (scale.shape, scale.dtype))
        return session.run("_fused_rms_norm_backward", (only(grads), x, spread, scale), shapes)

    session.record((normal,), (x, scale), backward, (x, scale, spread), in_python=True)
    return normal


def norm_product(parts: Parts, x: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
    """The normalized rows of this GPU, gathered from all, times a part of a weight's columns."""
    session, exchanges, group = parts.session, parts.exchanges, parts.group
    rows, width = x.shape
    normal, spread = session.run("_fused_rms_norm", (x, scale), (((rows, width), x.dtype), ((rows,), "float32")))
    result = product(session, "mm", exchanges.gathered(normal, group), turned(weight))

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        to_input = _data_work(grad, weight)
        whole = exchanges.gathered(normal, group, overlapped=to_input)
        of_normal = product(session, "mm", grad, weight)
        of_rows = exchanges.scattered(of_normal, group, overlapped=_weight_work(whole, grad))
        add_product(parts, weight, whole, grad)
        shapes = ((x.shape, x.dtype), (scale.shape, scale.dtype))
        return session.run("_fused_rms_norm_backward", (of_rows, x, spread, scale), shapes)

    session.record((result,), (x, scale), backward, (x, weight, scale, normal, spread), in_python=True)
    return result


def row_product(parts: Parts, x: Tensor, weight: Tensor) -> Tensor:
    """A part of the columns times a part of a weight, summed over the GPUs; each has a part of the rows then."""
    session, exchanges, group = parts.session, parts.exchanges, parts.group
    result = exchanges.scattered(product(session, "mm", x, turned(weight)), group)

    def backward(grads: _Grads) -> _Grads:
        grad = exchanges.gathered(only(grads), group)
        of_x = product(session, "mm", grad, weight)
        add_product(parts, weight, x, grad)
        return (of_x,)

    session.record((result,), (x,), backward, (x, weight), in_python=True)
    return result


def add_product(parts: Parts, weight: Tensor, x: Tensor, grad: Tensor) -> None:
    """Adds the product of gradient and input to the float32 gradient of a weight."""
    total = parts.gradients[weight.block]
    blocks = [each.block for each in (grad, x, total)]
    parts.session.tape.launch_blocks("mm", (_weight_work(x, grad),), blocks, [total.block], pure=False)


def _data_work(grad: Tensor, weight: Tensor) -> Operation:
    shape = GemmShape(grad.shape[0], weight.shape[1], grad.shape[1])
    results = shape.m * shape.n
    return gemm(shape, grad.bytes + weight.bytes + 2 * results, results, grad.dtype, Direction.BACKWARD_DATA)


def _weight_work(x: Tensor, grad: Tensor) -> Operation:
    shape = GemmShape(grad.shape[1], x.shape[1], x.shape[0])
    results = shape.m * shape.n
    moved = grad.bytes + x.bytes + 2 * 4 * results
    return gemm(shape, moved, results, grad.dtype, Direction.BACKWARD_WEIGHTS)


def gated(parts: Parts, x: Tensor) -> Tensor:
    """SiLU of the first half of the columns times the second, in one kernel; saves its input."""
    session, (rows, width) = parts.session, x.shape
    (result,) = session.run("swiglu", (x,), (((rows, width // 2), x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        return session.run("swiglu_backward", (only(grads), x), ((x.shape, x.dtype),))

    session.record((result,), (x,), backward, (x,), in_python=True)
    return result


def turned(weight: Tensor) -> Tensor:
    """Its transpose, a view."""
    rows, width = weight.shape
    return weight.seen((width, rows), (1, width))
