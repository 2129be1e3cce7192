"""The frameworks whose memory behaviour a modelled iteration can follow."""

from __future__ import annotations

from enum import StrEnum


class Framework(StrEnum):
    """A framework: current PyTorch, PyTorch 1.5, one that calls cuDNN (Caffe, Torch7), or a variant of it.

    PyTorch 1.5 represents versions before 1.10 with ReLUs that are not in place, PyTorch's default: each ReLU has a
    separate result, and its backward reads the input, which is saved in addition to the result that the next layer
    saves (PyTorch issue 63027, fixed by pull request 63089). So a convolution, its normalization and its ReLU save
    three feature maps instead of two. In-place ReLUs do not depend on the version: for networks that have them, choose
    current PyTorch.

    cuDNN's maximum pooling needs no indices: it saves input and result. The gradient of an in-place ReLU is in place
    too, unless another layer still needs the block that it would overwrite. PyTorch saves an int64 index for each
    maximum and allocates a block for each gradient of a ReLU.

    Joined is cuDNN whose branches write directly into the result of a concatenation, as the strides of its tensors
    allow: no copy, and one feature map instead of the parts and their concatenation. Caffe's layer copies; a memory
    manager that calls cuDNN itself, such as the published vDNN, need not. A network whose concatenations share parts
    (DenseNet) copies.

    Fused is cuDNN with one result and one gradient per layer, like moDNN's framework (Chen et al., TPDS 2019, section
    3.1: a layer is an operation and its activation, with one Y and one delta):

    - A batch normalization overwrites the result of the convolution or linear layer before it if nothing else reads
      that result. An in-place ReLU and an in-place sum do so too, and in backward they overwrite the gradient likewise.
      Their kernels belong to that layer but stay separate, each with its own duration: only memory is fused. The count
      of batches that PyTorch keeps for a normalization is omitted.
    - If a value is used twice, the backward of a convolution, linear layer or pooling adds its gradient to the existing
      one, as cuDNN and cuBLAS can (their factor beta), instead of allocating a block and running a separate addition.

    A normalization that overwrites its input cannot save it. Its backward reads the layer's overwritten result, like
    in-place activated batch norm (Rota Bulo, Porzi and Kontschieder, CVPR 2018), which recovers the normalized values
    by inverting scale and activation. That is exact for invertible activations such as their leaky ReLU. After a plain
    ReLU, the values below zero are lost; after a sum, the other summand would have to be subtracted, which the kernel
    here does not read. So Fused models the memory and the time of such a framework, not its arithmetic; the moDNN paper
    does not describe how it computes the gradient of a normalization.
    """

    PYTORCH = "pytorch"
    PYTORCH_1_5 = "pytorch-1.5"
    CUDNN = "cudnn"
    JOINED = "cudnn-joined"
    FUSED = "fused"

    @property
    def calls_cudnn(self) -> bool:
        """Whether pooling and ReLU are those of cuDNN instead of PyTorch's own."""
        return self in (Framework.CUDNN, Framework.JOINED, Framework.FUSED)
