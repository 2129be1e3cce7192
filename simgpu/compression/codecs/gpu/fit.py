"""Fits the response surface, and writes it as `response.yaml`.

``python -m simgpu.compression.codecs.gpu.fit -o simgpu/compression/codecs/gpu/response.yaml`` regenerates the shipped
file and prints its figures; it needs SciPy (the extra ``calibrate``).

Five free coefficients of the V100 are fitted to six numbers: the four times of figure 12 and the two ratios of figure
5. So a good fit proves little; judge it by whether the coefficients are plausible.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from simgpu.compression.codecs.gpu.paper import ANCHOR, against_paper
from simgpu.compression.codecs.gpu.response import FormulaSurface, scaled
from simgpu.compression.codecs.gpu.setting import LaunchSetting
from simgpu.compression.codecs.gpu.table import SCHEMA, GpuCoefficients, load_table
from simgpu.errors import InputError, MissingExtraError
from simgpu.hardware.nodes import load_node
from simgpu.io.atomic import atomic_file
from simgpu.units import parse_bandwidth, parse_time

#: Free coefficients and their starting values; rates in bytes per nanosecond.
START = {"multiprocessor_rate": 10.0, "half_threads": 50.0, "block_ns": 6000.0, "contention_ns": 3.0, "wide_block": 1.0}
_LAUNCH = "3800 ns"
_PIECES = 5
#: LZ4's rates on a V100 at ZVC's best setting and 50% sparsity, bytes of the tensor per second.
_LZ4_DECODE, _LZ4_ENCODE = parse_bandwidth("60 GB/s"), parse_bandwidth("20 GB/s")

#: Bytes written per byte of an fp32 tensor with zeros at independent positions, as a function of sparsity.
_WRITTEN: dict[str, Callable[[float], float]] = {
    "zvc": lambda zeros: 1 / 32 + (1 - zeros),
    "rle": lambda zeros: 2 * (1 - zeros) * (1 + zeros),
    "csr": lambda zeros: 2 * (1 - zeros),
    "lz4": lambda zeros: (1 - zeros) * (1 + 3 / 4 * zeros),
}
_FITTED = "fitted to figures 5 (ratios) and 12 (times) of CSWAP, see simgpu/compression/codecs/gpu/paper.py"
_SCALED = "taken over from the fitted GPU: the paper has no codec times of this one"
_TRAFFIC = (
    "modelled: encoding reads the tensor twice (to count, then to place) and writes it compressed, decoding reads "
    "that and writes the tensor; "
)
_INDEPENDENT = "zeros at independent places; the paper has no times of this codec"
_SOURCES = {
    "codecs.zvc": _TRAFFIC + "32 elements need a mask of 32 bits. The paper does not split its times by direction",
    "codecs.rle": _TRAFFIC + "a run of equal values takes a value and a count; " + _INDEPENDENT,
    "codecs.csr": _TRAFFIC + "each value that is not zero takes an index of its own size; " + _INDEPENDENT,
    "codecs.lz4": (
        f"modelled: a run of zeros takes 3 bytes more, {_INDEPENDENT}; scaled so that half zeros at ZVC's best setting "
        "decode at 60 GB/s, the most that nvCOMP 1.0 states for a V100, and encode at a third of that, which is assumed"
    ),
}


class _Dumper(yaml.SafeDumper):
    """Writes each list on one line."""


_Dumper.add_representer(list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, True))


def fitted() -> GpuCoefficients:
    """The coefficients of the V100 that fit the figures best, to four digits.

    Raises `MissingExtraError` without SciPy.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise MissingExtraError("fitting the response surface", "scipy", "calibrate") from None
    start = np.log(list(START.values()))
    # Times are integer nanoseconds, so finite differences need steps that change them.
    result = least_squares(_residuals, start, diff_step=1e-5, xtol=1e-10, ftol=1e-10)
    return _coefficients(result.x, digits=4)


def _residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    compared = against_paper(_surface(_coefficients(logs)))
    return np.log1p([each.error for each in compared if each.figure is not ANCHOR])


def _coefficients(logs: NDArray[np.float64], digits: int = 15) -> GpuCoefficients:
    spec = load_node("v100").gpu
    values = {name: float(f"{value:.{digits}g}") for name, value in zip(START, np.exp(logs), strict=True)}
    rate = values.pop("multiprocessor_rate")
    fixed: dict[str, Any] = {
        "basis": "fitted",
        "multiprocessors": spec.multiprocessors,
        "dram_bandwidth": spec.dram_bandwidth,
        "multiprocessor_rate": round(rate * 1e9),
        "launch": parse_time(_LAUNCH),
    }
    return GpuCoefficients.model_construct(None, **fixed, **values)


def _surface(coefficients: GpuCoefficients) -> FormulaSurface:
    """ZVC's surface with these coefficients."""
    encode, decode = _curves("zvc")
    return FormulaSurface("", "fitted", "", coefficients, {"zvc": (tuple(encode), tuple(decode))})


def _curves(codec: str) -> tuple[list[float], list[float]]:
    """Bytes moved per byte of the tensor, for encoding and for decoding, at evenly spaced sparsities."""
    written = [_WRITTEN[codec](piece / _PIECES) for piece in range(_PIECES + 1)]
    return [round(2 + each, 6) for each in written], [round(1 + each, 6) for each in written]


def response_text() -> str:
    """The text of `response.yaml`; the files of samples that the current file names are kept.

    Raises `MissingExtraError` without SciPy.
    """
    retained, coefficients = load_table(), fitted()
    curves = {name: dict(zip(("encode", "decode"), _curves(name), strict=True)) for name in _WRITTEN}
    curves["lz4"] = _slowed(curves["lz4"], coefficients)
    v100, turing = load_node("v100").gpu, load_node("2080ti").gpu
    table = {
        "schema": SCHEMA,
        "gpus": {v100.name: _written(coefficients), turing.name: _written(scaled(turing, coefficients))},
        **({"measured": retained.measured} if retained.measured else {}),
        "codecs": curves,
        "sources": {
            **_gpu_sources(v100.name, "v100", _FITTED),
            **_gpu_sources(turing.name, "2080ti", _SCALED),
            **{key: description for key, description in retained.sources.items() if key.startswith("measured.")},
            **_SOURCES,
        },
    }
    return yaml.dump(table, Dumper=_Dumper, sort_keys=False, width=10_000)


def _slowed(curves: dict[str, list[float]], coefficients: GpuCoefficients) -> dict[str, list[float]]:
    """LZ4's curves, scaled so that both directions have their assumed rates.

    The rates apply at the best setting for ZVC in figure 12, without the costs of launch and blocks, which are
    negligible for a large tensor.
    """
    best = LaunchSetting(coefficients.multiprocessors, 128)
    spread = 1 + coefficients.half_threads / best.threads
    a_byte = 1 / coefficients.dram_bandwidth + spread / best.grid / coefficients.multiprocessor_rate
    rates = {"encode": _LZ4_ENCODE, "decode": _LZ4_DECODE}
    slower = {
        direction: 1 / rates[direction] / a_byte / ((curve[_PIECES // 2] + curve[_PIECES // 2 + 1]) / 2)
        for direction, curve in curves.items()
    }
    return {name: [float(f"{slower[name] * each:.4g}") for each in curve] for name, curve in curves.items()}


def _written(coefficients: GpuCoefficients) -> dict[str, Any]:
    values = coefficients.model_dump()
    for key in ("dram_bandwidth", "multiprocessor_rate"):
        values[key] = f"{values[key] / 1e9:.6g} GB/s"
    return {**values, "launch": _LAUNCH}


def _gpu_sources(gpu: str, node: str, rest: str) -> dict[str, str]:
    configured = f"configs/{node}.yaml"
    sources = {
        "multiprocessors": configured,
        "dram_bandwidth": f"{configured}: no launch moves bytes faster than the memory's peak",
    } | dict.fromkeys(("launch", *START), rest)
    if rest == _FITTED:
        sources["launch"] = "of any kernel on Volta, simgpu/workloads/timemodel/parameters.yaml"
        sources["wide_block"] += "; rests on the expert's grid, which is chosen"
    return {f"gpus.{gpu}.{key}": description for key, description in sources.items()}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code: 0, or 2 if SciPy is missing or the file is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m simgpu.compression.codecs.gpu.fit",
        description="Fit the response surface to published codec times, write it, and print how near it comes.",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="file to write (atomically)")
    given = parser.parse_args(arguments)
    try:
        text = response_text()
        with atomic_file(given.output) as part:
            part.write_bytes(text.encode())
    except (InputError, MissingExtraError) as error:
        for line in str(error).splitlines():
            print(f"Error: {line}", file=sys.stderr)
        return 2
    for each in against_paper(_surface(fitted())):
        taken = "of its shape" if each.figure.of == "shape" else "of its time"
        modelled = f"{each.modelled_ns / 1e6:.1f} ms"
        print(f"{each.figure.name}: {each.figure.paper_ms} ms, here {modelled}, {each.error:+.1%} {taken}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
