"""`diffusion_iteration` models one training iteration of a model of noise in latent images: a DiT or a U-Net."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simgpu.errors import InputError, Problem
from simgpu.hardware.spec import GpuSpec
from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.diffusion import DiffusionTransformer
from simgpu.workloads.configured.dit import DitModel
from simgpu.workloads.configured.iteration import check_targets, train
from simgpu.workloads.configured.modelled import ModelledIteration, TraceOf, finished
from simgpu.workloads.configured.options import AttentionForm, TrainingOptions, size_problems
from simgpu.workloads.configured.parts import Build, Weights
from simgpu.workloads.configured.unet import UNetModel
from simgpu.workloads.configured.unet_config import UNet
from simgpu.workloads.eager.attention import fused_kernel
from simgpu.workloads.eager.normalization import squared_loss
from simgpu.workloads.eager.pointwise import cast
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import split

#: Tokens of a text: CLIP's text encoders read 77 (``max_position_embeddings``), and so do Stable Diffusion's U-Nets.
TEXT_LENGTH = 77
_DEFAULT = TrainingOptions()


def diffusion_iteration(
    model: DiffusionTransformer | UNet,
    *,
    batch: int,
    gpu: GpuSpec,
    length: int = TEXT_LENGTH,
    options: TrainingOptions = _DEFAULT,
) -> ModelledIteration:
    """One training iteration of a DiT or a U-Net, with the kernels that PyTorch runs for diffusers' module.

    batch: latent images, of the size in the configuration, each with a timestep and a class or a text.
    length: tokens of each text, for a U-Net alone. options: of attention, sdpa, PyTorch's fused operator, or for a
    U-Net eager, diffusers' ``AttnProcessor``. As in
    diffusers' training scripts, only the model runs under autocast, and images, texts and noise are in its format.
    The loss is the mean squared error of the predicted noise in float32, as in diffusers' training scripts. A model
    that also predicts variances computes them, but nothing trains them: DiT's term for them (of the variational bound)
    is not modelled. The loop holds the loss to the end of the iteration, and with `hold_output` the prediction.
    Raises `InputError` for invalid values, and if the GPU's description lacks values that the time model needs.

    >>> from simgpu.hardware.nodes import load_node
    >>> from simgpu.workloads.configured.config import model_of
    >>> small = model_of({"_class_name": "DiTTransformer2DModel", "num_layers": 1})
    >>> diffusion_iteration(small, batch=1, gpu=load_node("h100").gpu).parameters
    29377168
    """
    widths = model.head_widths if isinstance(model, UNet) else {model.decoder.head_width}
    cudnn = options.cudnn_attention
    kernels = {width: fused_kernel(gpu.architecture, options.products, width, cudnn=cudnn) for width in widths}
    problems = options.problems(model.family, batch) + options.problems_of_plain(model.family)
    is_eager = options.attention == AttentionForm.EAGER and isinstance(model, UNet)
    if options.attention != AttentionForm.SDPA and not is_eager:
        what = f"{options.attention} attention of {model.family} is not modelled"
        problems.append(Problem("", "attention", what, "give sdpa, or eager for a U-Net"))
    problems += size_problems(batch=batch, length=length, side=model.side)
    if not problems and not is_eager:
        problems += [
            each for width, kernel in kernels.items() for each in options.problems_of_fused(kernel, gpu, width)
        ]
    if problems:
        raise InputError(problems)
    session = Session()
    samples = batch // options.micro_batches
    fused = {width: kernel for width, kernel in kernels.items() if kernel is not None}
    if isinstance(model, UNet):
        kinds = dict.fromkeys(kernels, None) if is_eager else kernels
        predict = _unet(session, model, (samples, length), kinds, options)
    else:
        predict = _dit(session, model, samples, fused, options)
    _train(session, model, samples, predict, options)
    sizes = f"{batch} latent images of {model.side} x {model.side}"
    return finished(session, TraceOf(model.name, batch, _notes(model, length, options), sizes), gpu, options)


def _train(
    session: Session,
    model: DiffusionTransformer | UNet,
    batch: int,
    predict: Callable[[], Tensor],
    options: TrainingOptions,
) -> None:
    channels = model.results if isinstance(model, UNet) else model.channels
    shape = (batch, channels, model.side, model.side)
    noise = session.constant("noise", shape, options.products, BlockKind.LABEL)

    def forward() -> tuple[Tensor, ...]:
        with session.autocasting(options.autocast):
            output = predicted = predict()
        with session.layer("loss"):
            if model.results > channels:
                predicted, _ = split(session, output, [channels] * 2, dimension=1)
            loss = squared_loss(session, cast(session, predicted, "float32"), cast(session, noise, "float32"))
        return loss, output

    train(session, options, forward)


def _dit(
    session: Session, model: DiffusionTransformer, batch: int, fused: dict[int, str], options: TrainingOptions
) -> Callable[[], Tensor]:
    (kernel,) = fused.values()
    lora = options.adapters(model.family)
    build = Build(session=session, decoder=model.decoder, dtype=options.dtype, fused=kernel, lora=lora)
    module = DitModel(build, model)
    check_targets(lora, build.linear)
    session.tape.layer = None
    image, timesteps = _image(session, model, batch, "hidden_states", options)
    classes = session.constant("class_labels", (batch,), "int64", BlockKind.INPUT)
    return lambda: module(image, timesteps, classes)


def _unet(
    session: Session, model: UNet, sizes: tuple[int, int], fused: Mapping[int, str | None], options: TrainingOptions
) -> Callable[[], Tensor]:
    """sizes: number of texts, and the tokens of each."""
    lora = options.adapters(model.family)
    build = Weights(session=session, dtype=options.dtype, lora=lora)
    module = UNetModel(build, model, fused)
    check_targets(lora, build.linear)
    session.tape.layer = None
    batch, dtype = sizes[0], options.products
    image, timesteps = _image(session, model, batch, "sample", options)
    text = session.constant("encoder_hidden_states", (*sizes, model.text), dtype, BlockKind.INPUT)
    added = None
    if model.added is not None:
        pooled = session.constant("text_embeds", (batch, model.added.pooled), dtype, BlockKind.INPUT)
        added = pooled, session.constant("time_ids", (batch, model.added.numbers), dtype, BlockKind.INPUT)
    return lambda: module(image, timesteps, text, added)


def _image(
    session: Session, model: DiffusionTransformer | UNet, batch: int, name: str, options: TrainingOptions
) -> tuple[Tensor, Tensor]:
    """The latent images with noise, and their timesteps."""
    shape = (batch, model.channels, model.side, model.side)
    image = session.constant(name, shape, options.products, BlockKind.INPUT)
    return image, session.constant("timestep", (batch,), "int64", BlockKind.INPUT)


def _notes(model: DiffusionTransformer | UNet, length: int, options: TrainingOptions) -> str:
    if isinstance(model, UNet):
        sizes = f"and texts of {length} tokens, "
        module, encoders = "UNet2DConditionModel", "The frozen encoders of image and text"
        own = ""
    else:
        sizes, module, encoders = "", "DiTTransformer2DModel", "The frozen image encoder"
        own = ", where each block has its own embedding of timestep and class"
    return (
        f"{model.family} from its configuration, latent images of {model.channels} x {model.side} x {model.side}, "
        f"{sizes}{options.described(model.family)}. Kernels and saved tensors as PyTorch runs diffusers' "
        f"{module}{own}; the loss is the mean squared error of the noise, without a term for variances. "
        f"{encoders} and the addition of noise are not included. Blocks are freed after their last use, while Python's "
        "variables hold some of them longer in forward; durations by simgpu's time model. Memory that CUDA operators "
        "allocate for themselves (cuBLAS workspaces, attention's float32 sums in backward) is not included."
    )
