"""TransformerEngine's modules of one GPU among several that share each layer: kernels, what they save, and backward.

Source: TransformerEngine 2.11, ``transformer_engine/pytorch``. `norm_product` is ``module/layernorm_linear.py`` as a
column-parallel layer, `row_product` ``module/linear.py`` as a row-parallel one, or on one GPU any layer without a
normalization. Between them each GPU has a part of the tokens (sequence parallelism). `normalized` is
``ops/basic/rmsnorm.py`` or ``layer_norm.py``. Gradients of weights are added to float32 ones by the product itself
(``fuse_wgrad_accumulation``), so that autograd sees no gradient of such a weight. What autograd gets in its place is
one empty tensor for each shape (``get_dummy_wgrad``), which stays. The product for a weight's gradient also sums that
of a bias which the layer adds itself. `gated` is the fused SwiGLU of Megatron-LM
(``core/fusions/fused_bias_swiglu.py``), `biased_gelu` its fused GELU by a tanh with the bias before it
(``fused_bias_gelu.py``), and `biased_sum` the sum with the layer's input (``fused_bias_dropout.py``), which
torch.compile runs as one kernel in forward and, in backward, one for the dropped values and one for the bias.

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
    of_expert: those that share each expert. of_samples: those that share the layers and the tokens of a sample.
    of_experts: weights of experts, which fewer GPUs have than others. gradients: in float32, of each weight by its
    block. placeholders: what autograd gets instead of the gradient of a weight, by shape.
    """

    session: Session
    exchanges: Exchanges
    group: Group
    tokens: Group
    experts: Group
    of_expert: Group
    of_samples: Group
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
        """The weight of a normalization, or a bias."""
        return self.session.weight(name, (width,), "bfloat16")

    def norm(self, prefix: str, width: int, *, layer: bool = False) -> tuple[Tensor, ...]:
        """The weight of a normalization by the root mean square, and the bias of a layer normalization."""
        return tuple(self.vector(f"{prefix}{name}", width) for name in ("weight", "bias")[: 1 + layer])


def normalized(parts: Parts, x: Tensor, *norm: Tensor) -> Tensor:
    """The normalized rows, a layer of its own. norm: a result of `Parts.norm`."""
    session = parts.session
    normal, *statistics = _normal(session, x, norm)

    def backward(grads: _Grads) -> _Grads:
        return _normal_backward(session, only(grads), x, statistics, norm)

    session.record((normal,), (x, *norm), backward, (x, norm[0], *statistics), in_python=True)
    return normal


def _normal(session: Session, x: Tensor, norm: Sequence[Tensor]) -> list[Tensor]:
    """The normalized rows, and of each row in float32 the root mean square, or the mean and the deviation."""
    row = x.shape[:1], "float32"
    op, rows = ("_fused_rms_norm", (row,)) if len(norm) == 1 else ("native_layer_norm", (row, row))
    return session.run(op, (x, *norm), ((x.shape, x.dtype), *rows))


def _normal_backward(
    session: Session, grad: Tensor, x: Tensor, statistics: Sequence[Tensor], norm: Sequence[Tensor]
) -> list[Tensor]:
    """The gradients of the rows and of the normalization's weights."""
    op = "_fused_rms_norm_backward" if len(norm) == 1 else "native_layer_norm_backward"
    return session.run(op, (grad, x, *statistics, norm[0]), [(each.shape, each.dtype) for each in (x, *norm)])


def norm_product(parts: Parts, x: Tensor, norm: Sequence[Tensor], weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The normalized rows of this GPU, gathered from all, times a part of a weight's columns.

    bias: one that is added here; None for none, and where the next kernel adds it.
    """
    session, exchanges, group = parts.session, parts.exchanges, parts.group
    normal, *statistics = _normal(session, x, norm)
    whole, biases = exchanges.gathered(normal, group), () if bias is None else (bias,)
    result = product(session, "mm" if bias is None else "addmm", whole, turned(weight), bias)

    def backward(grads: _Grads) -> _Grads:
        grad = only(grads)
        to_input = _data_work(grad, weight)
        whole = exchanges.gathered(normal, group, overlapped=to_input)
        of_normal = product(session, "mm", grad, weight)
        of_rows = exchanges.scattered(of_normal, group, overlapped=_weight_work(whole, grad))
        of_biases = add_product(parts, weight, whole, grad, biases)
        return *_normal_backward(session, of_rows, x, statistics, norm), *of_biases

    saved = (x, weight, *biases, norm[0], normal, *statistics)
    session.record((result,), (x, *norm, *biases), backward, saved, in_python=True)
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


def add_product(parts: Parts, weight: Tensor, x: Tensor, grad: Tensor, biases: Sequence[Tensor] = ()) -> list[Tensor]:
    """Adds the product of gradient and input to the float32 gradient of a weight; returns the gradients of biases."""
    total = parts.gradients[weight.block]
    blocks = [each.block for each in (grad, x, total)]
    of_biases = [parts.session.empty(bias.shape, bias.dtype) for bias in biases]
    changed = [each.block for each in (total, *of_biases)]
    parts.session.tape.launch_blocks("mm", (_weight_work(x, grad),), blocks, changed, pure=False)
    return of_biases


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


def biased_gelu(parts: Parts, x: Tensor, bias: Tensor) -> Tensor:
    """GELU of the rows with a bias; saves both. The bias gets the sum of the whole gradient's rows from the engine."""
    session = parts.session
    (result,) = session.run("bias_gelu", (x, bias), ((x.shape, x.dtype),))

    def backward(grads: _Grads) -> _Grads:
        (both,) = session.run("bias_gelu_back", (only(grads), bias, x), ((x.shape, x.dtype),))
        return both, both

    session.record((result,), (x, bias), backward, (x, bias), in_python=True)
    return result


def biased_sum(parts: Parts, x: Tensor, bias: Tensor, residual: Tensor, rate: float) -> Tensor:
    """The rows with a bias, of which values are dropped at this rate, plus the layer's input; saves the mask."""
    session = parts.session
    results = [(x.shape, x.dtype)] + [(x.shape, "bool")] * bool(rate)
    result, *mask = session.run("bias_dropout_add", (x, bias, residual), results, pure=not rate)

    def backward(grads: _Grads) -> _Grads:
        grad = of_x = only(grads)
        if mask:
            (of_x,) = session.run("native_dropout_backward", (grad, *mask), ((x.shape, x.dtype),))
        (of_bias,) = session.run("sum", (of_x,), ((bias.shape, bias.dtype),))
        return of_x, of_bias, grad

    session.record((result,), (x, bias, residual), backward, mask, in_python=True)
    return result


def turned(weight: Tensor) -> Tensor:
    """Its transpose, a view."""
    rows, width = weight.shape
    return weight.seen((width, rows), (1, width))
