"""`Keys` reads the keys of a Hugging Face ``config.json`` and collects problems."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simgpu.errors import Problem

#: A key that is not read is a misspelt one if it is so similar to one that is read and absent. Of the keys of
#: Transformers' and diffusers' own classes, those that mean something else reach 0.875.
_SIMILAR = 0.9
REMEDY = "copy the model's config.json again"
#: Largest values, far above anything published: larger ones are typing errors and would take minutes to build.
MOST = {"layers": 1_000, "heads": 4_096, "vocabulary": 10_000_000, "positions": 2**40}
MOST_WIDTH = 2**20
#: Activation functions, with the one of the same kernels that stands for each.
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_fast",
    "relu": "relu",
}


@dataclass(slots=True)
class Keys:
    """Reads the keys of a configuration and collects problems.

    prefix: of the keys in messages, where they are inside another value.
    """

    values: Mapping[str, Any]
    source: str
    problems: list[Problem] = field(default_factory=list)
    read: dict[str, None] = field(default_factory=dict)
    prefix: str = ""

    def value(self, key: str, default: object = None) -> Any:
        """The value of a key, or the default where it is absent."""
        self.read[key] = None
        return self.values.get(key, default)

    def refuse_misspelt(self) -> None:
        """Adds a problem for each key that is similar to one that was read and is absent, so that its default counted.

        Configurations have many other keys, which change neither kernels nor memory and are not read.

        >>> keys = Keys({"hiden_size": 64, "use_cache": True}, "config.json")
        >>> keys.number("hidden_size", 4096)
        4096
        >>> keys.refuse_misspelt()
        >>> print(*keys.problems)
        config.json: hiden_size: is not read; did you mean 'hidden_size'?
        """
        absent = [key for key in self.read if key not in self.values]
        for key in sorted(self.values.keys() - self.read.keys()):
            if close := difflib.get_close_matches(key, absent, n=1, cutoff=_SIMILAR):
                self.refuse(key, "is not read", f"did you mean {close[0]!r}?")

    def refuse(self, key: str, what: str, remedy: str) -> None:
        self.problems.append(Problem(self.source, self.prefix + key, what, remedy))

    def number(
        self, key: str, default: int | None, most: int = MOST_WIDTH, least: int = 1, *, nullable: bool = False
    ) -> int:
        """A whole number from `least` to `most`. nullable: whether the model's class takes null as the default.

        Other classes keep a null, of which they build no layers.

        >>> keys = Keys({"vocab_size": None, "n_inner": None}, "config.json")
        >>> keys.number("n_inner", 3072, nullable=True), keys.number("vocab_size", 50257)
        (3072, 1)
        >>> print(*keys.problems)
        config.json: vocab_size: is null; give a number, or remove the key for the default, 50257
        """
        value = self.value(key, default)
        if value is None and nullable:
            value = default
        if value is None:
            is_null = key in self.values and default is not None
            remedy = f"give a number, or remove the key for the default, {default}" if is_null else REMEDY
            self.refuse(key, "is null" if key in self.values else "is missing", remedy)
        elif not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self.refuse(key, f"{value!r:.40} is not a whole number from {least} to {most}", REMEDY)
        else:
            return int(value)
        return 1

    def fraction(self, key: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self.value(key, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
            return float(value)
        self.refuse(key, f"{value!r:.40} is not a number from 0 to 1", REMEDY)
        return 0.0

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.value(key, default)
        if isinstance(value, bool):
            return value
        self.refuse(key, f"{value!r:.40} is not true or false", REMEDY)
        return default

    def activation(self, key: str, default: str) -> str:
        value = self.value(key, default)
        if isinstance(value, str) and value in ACTIVATIONS:
            return ACTIVATIONS[value]
        self.refuse(key, f"{value!r:.40} is not a supported activation", f"give one of {', '.join(ACTIVATIONS)}")
        return "silu"

    def window(self, default: int | None) -> int | None:
        """``sliding_window``: null, or a number of tokens."""
        value = self.value("sliding_window", default)
        return None if value is None else self.number("sliding_window", default, 2**40)

    def refuse_layer_types(self, layers: int, step: int, remedy: str) -> None:
        """Adds a problem for ``layer_types`` other than windows in all layers but every `step`-th one."""
        types = self.value("layer_types")
        kinds = [("full" if (layer + 1) % step == 0 else "sliding") + "_attention" for layer in range(layers)]
        if types is not None and types != kinds:
            place = {2: "second"}.get(step, f"{step}th")
            what = f"is not full_attention in every {place} layer and sliding_attention in all others"
            self.refuse("layer_types", what, remedy)

    def rotary_part(self, key: str, default: float) -> float:
        """The part of a head that is rotated; transformers 5 writes it inside ``rope_parameters``."""
        inside = self.value("rope_parameters")
        if isinstance(inside, dict) and "partial_rotary_factor" in inside:
            within = Keys(inside, self.source, self.problems, prefix="rope_parameters.")
            return within.fraction("partial_rotary_factor", default)
        return self.fraction(key, default)

    def windowed_from(self, layers: int) -> int:
        """Qwen's first layer with a window, ``max_window_layers``; beyond the last without ``use_sliding_window``."""
        has_window = self.flag("use_sliding_window", False)
        first = self.number("max_window_layers", 28, MOST["layers"], least=0, nullable=not has_window)
        return first if has_window else layers


def common_sizes(keys: Keys, defaults: Mapping[str, int | None], *, positions: int) -> dict[str, Any]:
    """The sizes that most families name alike."""
    return {
        "layers": keys.number("num_hidden_layers", defaults["layers"], MOST["layers"]),
        "width": keys.number("hidden_size", defaults["width"]),
        "heads": keys.number("num_attention_heads", defaults["heads"], MOST["heads"]),
        "inner": keys.number("intermediate_size", defaults["inner"]),
        "vocabulary": keys.number("vocab_size", defaults["vocabulary"], MOST["vocabulary"]),
        "positions": keys.number("max_position_embeddings", positions, MOST["positions"]),
    }


def key_heads(keys: Keys, sizes: Mapping[str, Any], default: int | None = None) -> int:
    if keys.value("num_key_value_heads") is None and default is None:
        return int(sizes["heads"])
    return keys.number("num_key_value_heads", default, MOST["heads"])


def head_width(keys: Keys, sizes: Mapping[str, Any], default: int | None = None) -> int:
    if keys.value("head_dim") is None and default is None:
        return max(1, int(sizes["width"]) // int(sizes["heads"]))
    return keys.number("head_dim", default, MOST_WIDTH)


def equal_heads(keys: Keys, sizes: Mapping[str, Any]) -> int:
    """The width of a head where all together are as wide as the model."""
    width, heads = int(sizes["width"]), int(sizes["heads"])
    if width % heads:
        keys.refuse("hidden_size", f"{width} values do not divide into {heads} heads", REMEDY)
    return max(1, width // heads)
