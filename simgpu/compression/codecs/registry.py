"""All codecs by name; a codec's module is imported on first use."""

from __future__ import annotations

from importlib import import_module

from simgpu.compression.codecs.base import SMALLEST_WINDOW, Codec
from simgpu.errors import InputError, did_you_mean

_CODECS = {
    "zvc": "simgpu.compression.codecs.zvc:Zvc",
    "rle": "simgpu.compression.codecs.rle:Rle",
    "csr": "simgpu.compression.codecs.csr:Csr",
    "lz4": "simgpu.compression.codecs.by_window:Lz4",
    "zlib": "simgpu.compression.codecs.by_window:Zlib",
    "bpc": "simgpu.compression.codecs.bpc:Bpc",
}


def codec_names() -> tuple[str, ...]:
    """Names of all codecs.

    >>> codec_names()
    ('zvc', 'rle', 'csr', 'lz4', 'zlib', 'bpc')
    """
    return tuple(_CODECS)


def codec_class(name: str) -> type[Codec]:
    """The class of a codec. Raises `InputError` for an unknown name."""
    if name not in _CODECS:
        raise InputError.single("", "codec", f"unknown codec '{name}'", did_you_mean(name, _CODECS))
    module, _, attribute = _CODECS[name].partition(":")
    result: type[Codec] = getattr(import_module(module), attribute)
    return result


def make_codec(name: str, window: int = SMALLEST_WINDOW) -> Codec:
    """A codec with this compression window (bytes). Raises `InputError` for an unknown name or an invalid window.

    >>> make_codec("zvc", 65536)
    Zvc(window=65536)
    """
    return codec_class(name)(window)
