"""Input that codecs refuse, with helpful messages."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from simgpu.compression.codecs.registry import codec_class, codec_names, make_codec
from simgpu.errors import InputError

by_codec = pytest.mark.parametrize("name", codec_names())


def test_an_unknown_codec_is_reported_with_the_known_names() -> None:
    with pytest.raises(InputError, match="'zcv'; did you mean 'zvc'\\? known: bpc, csr, lz4, rle, zlib, zvc"):
        make_codec("zcv")


@by_codec
@pytest.mark.parametrize("dtype", ["float64", "int32", "int64", "uint32", "bool", "complex64", "U3", "object", "V4"])
def test_an_unsupported_dtype_is_refused(name: str, dtype: str) -> None:
    array = np.zeros(3, dtype)
    for refuse in (make_codec(name).encode, make_codec(name).compressed_size):
        with pytest.raises(InputError, match=r"dtype: codecs are not applicable to dtype .*codecs support float32"):
            refuse(array)


@by_codec
@pytest.mark.parametrize("dtype", [">f4", ">f2", ">u2"])
def test_another_byte_order_is_refused(name: str, dtype: str) -> None:
    with pytest.raises(InputError, match="is not this machine's; convert it first"):
        make_codec(name).compressed_size(np.zeros(3, dtype))


@by_codec
@pytest.mark.parametrize("window", [0, -4096, 2048, 4095, 6000, 36864, 131072, 4096.0, True, None])
def test_an_impossible_window_is_refused(name: str, window: Any) -> None:
    with pytest.raises(InputError, match="are not a compression window; give a power of two from 4 KiB to 64 KiB"):
        make_codec(name, window)


def test_codec_names_and_numbers_are_unique() -> None:
    result = [codec_class(name) for name in codec_names()]
    assert [codec.name for codec in result] == list(codec_names())
    assert len({codec.number for codec in result}) == len(result)


def test_creating_codecs_and_zvc_sizes_import_neither_libraries_nor_numba() -> None:
    program = (
        "import sys, numpy as np; from simgpu.compression.codecs.registry import make_codec;"
        "make_codec('bpc');"
        "make_codec('zvc').compressed_size(np.zeros(100, np.float32));"
        "print(sorted({'numba', 'lz4', 'rich', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
