"""`read_decoder` reads a Hugging Face ``config.json`` into a `Decoder`.

Defaults of missing keys are those of the configuration classes of transformers 4.51. Keys that decide neither weights
nor kernels (token numbers, initialization, text generation) are ignored, as transformers itself does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simgpu.errors import InputError
from simgpu.io.input_files import parse_json, read_text
from simgpu.workloads.configured.decoder import Decoder, HeadNorms, NormKind
from simgpu.workloads.configured.dense_config import (
    cohere,
    glm,
    glm4,
    granite,
    llama,
    olmo2,
    smollm3,
    stablelm,
    starcoder2,
)
from simgpu.workloads.configured.diffusion import DiffusionTransformer, diffusion_transformer
from simgpu.workloads.configured.encoder_decoder import ENCODER_DECODERS, EncoderDecoder, encoder_decoder
from simgpu.workloads.configured.gemma_config import gemma, gemma2, gemma3_text
from simgpu.workloads.configured.keys import MOST, REMEDY, Keys, common_sizes, equal_heads, head_width, key_heads
from simgpu.workloads.configured.mixture import (
    deepseek_v2,
    deepseek_v3,
    gpt_oss,
    llama4_text,
    mixtral,
    olmoe,
    qwen2_moe,
    qwen3_moe,
)
from simgpu.workloads.configured.unet_config import UNET, UNet, unet

#: Largest file that is read, bytes. Published ones have a few kB.
_LIMIT = 2**20
_WHAT = "a configuration (JSON text file)"
#: Rotary embeddings, without those whose frequencies are computed from the length at run time.
_ROTARY = ("default", "linear", "llama3", "yarn", "longrope")
#: Phi-3's earlier names of longrope.
_EARLIER_LONGROPE = ("su", "yarn")
#: Kinds of Gemma 3's layers.
_KINDS = ("full_attention", "sliding_attention")
#: Endings of classes that have another layer behind the decoder than a language model, or none.
_OTHER_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model")


def read_decoder(path: str | Path) -> Decoder:
    """The decoder that a ``config.json`` describes.

    path: the file, or the folder that contains it. Raises `InputError` for a file that cannot be read, an unsupported
    ``model_type`` or option, and for sizes that do not fit together, all problems in one error.

    >>> import json, tempfile
    >>> file = Path(tempfile.mkdtemp()) / "config.json"
    >>> sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> _ = file.write_text(json.dumps({"model_type": "llama", **sizes}))
    >>> decoder = read_decoder(file)
    >>> decoder.layers, decoder.head_width, decoder.vocabulary
    (2, 16, 32000)
    >>> _ = file.write_text('{"model_type": "bert"}')
    >>> read_decoder(file)
    Traceback (most recent call last):
    simgpu.errors.InputError: ...config.json: model_type: 'bert' is not supported; ...
    """
    return decoder_of(*_read(path))


#: What a configuration describes.
Model = Decoder | EncoderDecoder | DiffusionTransformer | UNet


def read_model(path: str | Path) -> Model:
    """The model that a ``config.json`` describes: a decoder, T5, a DiT or a U-Net. See `read_decoder`."""
    return model_of(*_read(path))


def _read(path: str | Path) -> tuple[Mapping[str, Any], str, str]:
    """The keys and values of a file, or of that in a folder, its name for messages, and the model's by `model_name`."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    values = parse_json(read_text(file, _WHAT, REMEDY, _LIMIT), file, REMEDY)
    if not isinstance(values, dict):
        raise InputError.single(file, "", "is not a JSON object with the keys of a configuration", REMEDY)
    return values, str(file), model_name(file)


def model_name(file: Path) -> str:
    """The name of the model of a configuration: the file's or, if that is ``config.json``, the folder's.

    >>> model_name(Path("Llama-3.2-1B/config.json")), model_name(Path("models/llama1b.json"))
    ('Llama-3.2-1B', 'llama1b')
    """
    return file.absolute().parent.name if file.name == "config.json" else file.stem


def model_of(values: Mapping[str, Any], source: str = "configuration", name: str = "") -> Model:
    """The model that the keys and values of a configuration describe. See `read_model` and `decoder_of`.

    >>> model_of({"model_type": "t5", "d_model": 64}).encoder_layers
    6
    """
    is_diffusion = "model_type" not in values and "_class_name" in values
    if not is_diffusion and values.get("model_type") not in ENCODER_DECODERS:
        return decoder_of(values, source, name)
    keys = Keys(values, source)
    model: EncoderDecoder | DiffusionTransformer | UNet
    if not is_diffusion:
        family = values["model_type"]
        model = encoder_decoder(keys, family, _name(values, name) or family)
        _check(keys, model.decoder)
    elif values["_class_name"] == UNET:
        model = unet(keys, _name(values, name) or "unet")
        _check_quantization(keys)
    else:
        model = diffusion_transformer(keys, _name(values, name) or "dit")
        _check(keys, model.decoder)
    keys.refuse_misspelt()
    if keys.problems:
        raise InputError(keys.problems)
    return model


def _name(values: Mapping[str, Any], name: str) -> str:
    """The last part of the name in a configuration, else of `name`."""
    given = values.get("_name_or_path")
    named = given if isinstance(given, str) and given.strip("./") else name
    return named.strip("/").rpartition("/")[2]


def decoder_of(values: Mapping[str, Any], source: str = "configuration", name: str = "") -> Decoder:
    """The decoder that the keys and values of a configuration describe; source: for messages. See `read_decoder`.

    name: of the model where the configuration does not contain one (``_name_or_path``).
    """
    keys, named = Keys(values, source), _name(values, name)
    family = values.get("model_type")
    if isinstance(family, str) and family in _WITH_IMAGES:
        return _text_part(keys, _WITH_IMAGES[family], named or family)
    if not isinstance(family, str) or family not in (*_FAMILIES, *_OF_JOBS):
        what = "is missing" if family is None else f"{family!r} is not supported"
        remedy = f"give one of {', '.join(SUPPORTED)}"
        if family is not None:
            remedy += ", or follow the modules of transformers with simgpu record CONFIG --gpu NODE"
        raise InputError.single(source, "model_type", what, remedy)
    read = _FAMILIES.get(family) or _OF_JOBS[family]
    return _decoder(keys, Decoder(family=family, name=named or family, **read(keys)))


def _text_part(keys: Keys, family: str, name: str) -> Decoder:
    """The decoder of a model of images and text, as ``Gemma3ForCausalLM`` or ``Llama4ForCausalLM`` builds it from
    ``text_config``. family: the decoder's."""
    inside = keys.value("text_config")
    if not isinstance(inside, dict):
        what = "is missing" if inside is None else f"{inside!r:.40} is not a JSON object"
        keys.refuse("text_config", what, f"give the keys of the decoder, or model_type {family}")
    keys.refuse_misspelt()
    _check_class(keys)
    part = Keys(inside if isinstance(inside, dict) else {}, keys.source, keys.problems, prefix="text_config.")
    sizes = _FAMILIES[family](part)
    return _decoder(part, Decoder(family=family, name=name, **sizes, without="the vision tower and its projector"))


def _decoder(keys: Keys, decoder: Decoder) -> Decoder:
    """The decoder, if nothing is wrong with it."""
    _check(keys, decoder)
    keys.refuse_misspelt()
    if keys.problems:
        raise InputError(keys.problems)
    return replace(decoder, longrope="longrope" in _rotary_kinds(keys, decoder).values())


def _check(keys: Keys, decoder: Decoder) -> None:
    """Adds a problem for each option that is not modelled and for sizes that do not fit together."""
    _check_class(keys, decoder.family)
    for key, kind in _rotary_kinds(keys, decoder).items():
        if kind not in _ROTARY:
            keys.refuse(key, f"{kind!r:.40} is not a supported type", f"give null or one of {', '.join(_ROTARY)}")
    if keys.problems:
        return
    if decoder.heads % decoder.key_heads:
        what = f"{decoder.heads} query heads are no multiple of {decoder.key_heads} key heads"
        keys.refuse("num_key_value_heads", what, REMEDY)
    if decoder.rotary_width % 2 or decoder.rotary_width > decoder.head_width:
        what = f"{decoder.rotary_width} of {decoder.head_width} values of a head cannot be rotated in pairs"
        keys.refuse("head width", what, "give heads of an even width")


def _rotary_kinds(keys: Keys, decoder: Decoder) -> dict[str, object]:
    """The types of rotary embeddings, by key; transformers 5 writes those of Gemma 3's two kinds of layers apart."""
    kinds: dict[str, object] = {}
    for key in ("rope_scaling", "rope_parameters"):
        rotary = keys.value(key)
        parts = {key: rotary}
        if isinstance(rotary, dict) and not rotary.keys().isdisjoint(_KINDS):
            parts = {f"{key}.{name}": rotary[name] for name in _KINDS if name in rotary}
        for place, part in parts.items():
            kind = part.get("rope_type", part.get("type")) if isinstance(part, dict) else part
            if part is not None:
                kinds[place] = "longrope" if decoder.family == "phi3" and kind in _EARLIER_LONGROPE else kind
    return kinds


def _check_class(keys: Keys, family: str = "") -> None:
    """Adds a problem for weights that are quantized, and for a class that is no language model."""
    _check_quantization(keys, family)
    named = keys.values.get("architectures")
    for name in named if isinstance(named, list) else ():
        if isinstance(name, str) and name.endswith(_OTHER_HEADS) and not name.endswith("LMHeadModel"):
            remedy = "remove the key to model a language model, or follow it with simgpu record CONFIG --gpu NODE"
            keys.refuse("architectures", f"{name} is no language model", remedy)


def _check_quantization(keys: Keys, family: str = "") -> None:
    """Adds a problem for weights that are quantized, but for GPT-OSS's in MXFP4: transformers trains none in it
    (``Mxfp4HfQuantizer.is_trainable``), and converts them to full ones."""
    given = keys.values.get("quantization_config")
    is_converted = family == "gpt_oss" and isinstance(given, dict) and given.get("quant_method") == "mxfp4"
    if given is not None and not is_converted:
        keys.refuse("quantization_config", "quantized weights are not modelled", "remove the key to model full weights")


def _mistral(keys: Keys) -> dict[str, Any]:
    defaults = {"layers": 32, "width": 4096, "heads": 32, "inner": 14336, "vocabulary": 32000}
    sizes = common_sizes(keys, defaults, positions=131072)
    head = head_width(keys, sizes)
    absent = "num_key_value_heads" not in keys.values
    return {
        **sizes,
        "key_heads": key_heads(keys, sizes, 8 if absent else None),
        "head_width": head,
        "rotary_width": head,
        "activation": keys.activation("hidden_act", "silu"),
        "tied": keys.flag("tie_word_embeddings", False),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "window": keys.window(4096),
    }


def _qwen(keys: Keys) -> dict[str, Any]:
    """What Qwen2 and Qwen3 share. Their window adds a mask whatever ``use_sliding_window`` says."""
    defaults = {"layers": 32, "width": 4096, "heads": 32, "inner": 22016, "vocabulary": 151936}
    sizes = common_sizes(keys, defaults, positions=32768)
    absent = "num_key_value_heads" not in keys.values
    return {
        **sizes,
        "key_heads": key_heads(keys, sizes, 32 if absent else None),
        "activation": keys.activation("hidden_act", "silu"),
        "tied": keys.flag("tie_word_embeddings", False),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "window": keys.window(4096),
        "windowed_from": keys.windowed_from(sizes["layers"]),
    }


def _qwen2(keys: Keys) -> dict[str, Any]:
    sizes = _qwen(keys)
    head = head_width(keys, sizes)
    return {**sizes, "head_width": head, "rotary_width": head, "query_bias": True}


def _qwen3(keys: Keys) -> dict[str, Any]:
    sizes = _qwen(keys)
    head, bias = head_width(keys, sizes, 128), keys.flag("attention_bias", False)
    names = {"head_width": head, "rotary_width": head, "query_bias": bias, "output_bias": bias}
    return {**sizes, **names, "head_norms": HeadNorms.HEAD}


def _phi3(keys: Keys) -> dict[str, Any]:
    defaults = {"layers": 32, "width": 3072, "heads": 32, "inner": 8192, "vocabulary": 32064}
    sizes = common_sizes(keys, defaults, positions=4096)
    head = head_width(keys, sizes)
    return {
        **sizes,
        "key_heads": key_heads(keys, sizes),
        "head_width": head,
        "rotary_width": int(head * keys.rotary_part("partial_rotary_factor", 1.0)),
        "activation": keys.activation("hidden_act", "silu"),
        "tied": keys.flag("tie_word_embeddings", False),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "dropout": keys.fraction("resid_pdrop", 0.0),
        "window": keys.window(None),
    }


def _phi(keys: Keys) -> dict[str, Any]:
    defaults = {"layers": 24, "width": 2048, "heads": 32, "inner": 8192, "vocabulary": 51200}
    sizes = common_sizes(keys, defaults, positions=2048)
    head = head_width(keys, sizes)
    if keys.flag("qk_layernorm", False):
        keys.refuse("qk_layernorm", "normalized queries and keys are not modelled for phi", "give false")
    return {
        **sizes,
        "key_heads": key_heads(keys, sizes),
        "head_width": head,
        "rotary_width": int(head * keys.rotary_part("partial_rotary_factor", 0.5)),
        "activation": keys.activation("hidden_act", "gelu_new"),
        "norm_kind": NormKind.LAYER,
        "tied": keys.flag("tie_word_embeddings", False),
        "query_bias": True,
        "output_bias": True,
        "inner_bias": True,
        "parallel": True,
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "embedding_dropout": keys.fraction("embd_pdrop", 0.0),
        "dropout": keys.fraction("resid_pdrop", 0.0),
    }


def _gpt_neox(keys: Keys) -> dict[str, Any]:
    defaults = {"layers": 44, "width": 6144, "heads": 64, "inner": 24576, "vocabulary": 50432}
    sizes = common_sizes(keys, defaults, positions=2048)
    head = equal_heads(keys, sizes)
    bias, dropout = keys.flag("attention_bias", True), keys.fraction("hidden_dropout", 0.0)
    return {
        **sizes,
        "key_heads": sizes["heads"],
        "head_width": head,
        "rotary_width": int(head * keys.rotary_part("rotary_pct", 0.25)),
        "activation": keys.activation("hidden_act", "gelu"),
        "norm_kind": NormKind.LAYER,
        "tied": keys.flag("tie_word_embeddings", False),
        "query_bias": bias,
        "output_bias": bias,
        "inner_bias": True,
        "parallel": keys.flag("use_parallel_residual", True),
        "attention_dropout": keys.fraction("attention_dropout", 0.0),
        "embedding_dropout": dropout,
        "dropout": dropout,
    }


def _gpt2(keys: Keys) -> dict[str, Any]:
    width, heads = keys.number("n_embd", 768), keys.number("n_head", 12, MOST["heads"])
    if width % heads:
        keys.refuse("n_embd", f"{width} values do not divide into {heads} heads", REMEDY)
    if keys.flag("add_cross_attention", False):
        keys.refuse("add_cross_attention", "attention to an encoder is not modelled", "give false")
    if keys.values.get("pruned_heads"):
        keys.refuse("pruned_heads", "pruned heads are not modelled", "remove the key")
    return {
        "layers": keys.number("n_layer", 12, MOST["layers"]),
        "width": width,
        "heads": heads,
        "key_heads": heads,
        "head_width": max(1, width // heads),
        "inner": keys.number("n_inner", 4 * width, nullable=True),
        "vocabulary": keys.number("vocab_size", 50257, MOST["vocabulary"]),
        "positions": keys.number("n_positions", 1024, MOST["positions"]),
        "activation": keys.activation("activation_function", "gelu_new"),
        "norm_kind": NormKind.LAYER,
        "tied": keys.flag("tie_word_embeddings", True),
        "query_bias": True,
        "output_bias": True,
        "inner_bias": True,
        "embedding_dropout": keys.fraction("embd_pdrop", 0.1),
        "attention_dropout": keys.fraction("attn_pdrop", 0.1),
        "dropout": keys.fraction("resid_pdrop", 0.1),
    }


_FAMILIES: Mapping[str, Callable[[Keys], dict[str, Any]]] = {
    "llama": llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3_text,
    "olmo2": olmo2,
    "granite": granite,
    "smollm3": smollm3,
    "starcoder2": starcoder2,
    "stablelm": stablelm,
    "cohere": cohere,
    "glm": glm,
    "glm4": glm4,
    "phi3": _phi3,
    "phi": _phi,
    "gpt_neox": _gpt_neox,
    "gpt2": _gpt2,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "olmoe": olmoe,
    "deepseek_v3": deepseek_v3,
    "llama4_text": llama4_text,
    "gpt_oss": gpt_oss,
}
#: Decoders that are modelled as part of a job of Megatron-LM only.
_OF_JOBS = {"deepseek_v2": deepseek_v2}
#: Models of images and text, whose text part is a decoder of this family.
_WITH_IMAGES = {"gemma3": "gemma3_text", "llama4": "llama4_text"}
#: The values of ``model_type`` of decoders, those of jobs alone, and all supported ones.
FAMILIES = tuple(_FAMILIES)
OF_JOBS = tuple(_OF_JOBS)
SUPPORTED = (*FAMILIES, *_WITH_IMAGES, *ENCODER_DECODERS, *OF_JOBS)
