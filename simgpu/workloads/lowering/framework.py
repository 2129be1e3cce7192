"""Whose habits with memory a modelled iteration follows."""

from __future__ import annotations

from enum import StrEnum


class Framework(StrEnum):
    """PyTorch's of today or of 2020, those of frameworks that call cuDNN for all (Caffe, Torch7), or of one that fuses.

    PyTorch 1.5 stands for versions before 1.10 that run networks whose ReLUs are not in place, which is PyTorch's
    default: each ReLU is a layer with a result of its own, and its backward reads the input, which is therefore held
    next to the result that the next layer holds (PyTorch's issue 63027, mended by its pull request 63089). So a
    convolution, its normalization and its ReLU leave three feature maps where they otherwise leave two. Of a ReLU in
    place the version changes nothing: for a network that has them, ask for PyTorch's of today.

    cuDNN needs no indices of the maxima: its pooling saves input and result. And where a ReLU is in place, so is its
    gradient, unless another layer still needs what it would rewrite. PyTorch notes an int64 index for each maximum and
    gives each gradient of a ReLU a block of its own.

    Fused is cuDNN's with one result and one gradient for each layer, as moDNN's framework has them (Chen et al., TPDS
    2019, section 3.1: a layer is an operation and its activation, with one Y and one delta):

    - A batch normalization rewrites the result of the convolution or linear layer before it, where nobody else reads
      that, and so do a ReLU and a sum in place; in backward they rewrite the gradient likewise. Their kernels belong
      to that layer, and stay kernels of their own, each with its own duration: it is memory that is fused here.
      The count of batches that PyTorch keeps for a normalization is not kept.
    - Where a value was used twice, the backward of a convolution, linear layer or pooling adds its gradient to the one
      that is there, as cuDNN and cuBLAS can (their factor beta), in place of a block and an addition of its own.

    A normalization that is rewritten cannot keep its input. Its backward reads what the layer's result has become, as
    in-place activated batch norm does (Rota Bulo, Porzi and Kontschieder, CVPR 2018), which finds the normalized values
    again by undoing scale and activation. That is exact for an activation that can be undone, theirs being a leaky
    ReLU. Behind a plain ReLU the values below zero are lost, and behind a sum its other part would have to be taken off
    again, which the kernel here does not read. So this is the memory and the time of such a framework; how moDNN's
    computes the gradient of a normalization, its paper does not say.
    """

    PYTORCH = "pytorch"
    PYTORCH_1_5 = "pytorch-1.5"
    CUDNN = "cudnn"
    FUSED = "fused"

    @property
    def calls_cudnn(self) -> bool:
        """Whether pooling and ReLU are cuDNN's, not PyTorch's own."""
        return self in (Framework.CUDNN, Framework.FUSED)
