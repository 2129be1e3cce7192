"""CSWAP's equations 1-4 worked out anew, and held to the policies and the machine on random chains of layers.

On a chain in which each layer swaps its one input, with exact copies and codecs before and after the layer's kernels,
an iteration takes its computation and the cost of every tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.tuner import expert_setting
from simgpu.experiments.training import departures
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.papers.checks.found import rule
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import CompressedSize, SparsitySample, Trace

#: GB/s out and in: whole bytes a nanosecond, so that copies of multiples of 40 bytes take whole nanoseconds.
_OUT, _IN = 10, 8
#: cswap as its equations have it: codec times and sizes that it need not predict.
_EXACT = {"launch": "expert", "codec": "zvc", "times": "exact", "sizes": "format"}


def uncompressed_cost(size: int, beside: tuple[int, int]) -> Fraction:
    """T' of equation 1 in nanoseconds; beside: computation beside the copy out and beside the copy in."""
    return max(Fraction(size, _OUT) - beside[0], Fraction(0)) + max(Fraction(size, _IN) - beside[1], Fraction(0))


def compressed_cost(size: int, zeros: Fraction, beside: tuple[int, int], codec_ns: int) -> Fraction:
    """T of equations 2-4."""
    out, back = (Fraction(size) * (1 - zeros) / rate for rate in (_OUT, _IN))
    return codec_ns + max(out - beside[0], Fraction(0)) + max(back - beside[1], Fraction(0))


@dataclass(frozen=True)
class Chain:
    """Layers 1 to N, one tensor each; zeros: shares in hundredths."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    sizes: tuple[int, ...]
    zeros: tuple[int, ...]

    @classmethod
    def drawn(cls, generator: np.random.Generator) -> Chain:
        """Two to eight layers, tensors of up to 400 MB, kernels up to about as long as their copies."""
        count = int(generator.integers(2, 9))
        forward, backward = (tuple(generator.integers(0, 50_000_000, count).tolist()) for _ in range(2))
        sizes = tuple((generator.integers(10, 100_000, count) * 4000).tolist())
        return cls(forward, backward, sizes, tuple(generator.integers(5, 96, count).tolist()))

    @cached_property
    def trace(self) -> Trace:
        """Layers of a ReLU and of a convolution that takes no time, for which its input is swapped; only the first
        input has no zeros. Compressed tensors are their non-zeros alone, as the equations have them.
        """
        plain = chain(self.forward, self.backward, self.sizes, op="relu")
        kernels = []
        for kernel in plain.kernels:
            if kernel.id.startswith("F"):
                name = f"{kernel.id}.conv"
                kernels.append(replace(kernel, id=name, op="conv2d", duration_ns=0, writes=(), reads=kernel.reads[:1]))
            kernels.append(kernel)
        told = [(f"x{n}", *each) for n, each in enumerate(zip(self.sizes, self.zeros, strict=True), 1) if n > 1]
        rows = tuple(CompressedSize(x, 0, "zvc", "nchw", size, size * (100 - z) // 100, 1) for x, size, z in told)
        samples = tuple(SparsitySample(x, 0, z / 100) for x, _, z in told)
        return replace(plain, kernels=tuple(kernels), sparsity=samples, compressibility=rows)

    @property
    def tensors(self) -> range:
        """Those that are swapped: the last layer's input stays."""
        return range(1, len(self.sizes))

    def costs(self, n: int) -> tuple[Fraction, Fraction]:
        """T' and T of the tensor that layer n reads; beside it run F(n) and B(n + 1)."""
        size, zeros, beside = self.sizes[n - 1], self.zeros[n - 1], (self.forward[n - 1], self.backward[n])
        gpu = load_node("v100").gpu
        surface, setting = response_of(gpu), expert_setting(gpu)
        codec_ns = sum(
            timed("zvc", size, zeros / 100, setting.grid, setting.threads)
            for timed in (surface.encode_ns, surface.decode_ns)
        )
        return uncompressed_cost(size, beside), compressed_cost(size, Fraction(zeros, 100), beside, codec_ns)

    def takes(self, policy: str, parameters: Mapping[str, object]) -> int:
        """Nanoseconds of an iteration."""
        return simulate(self.trace, _node(), policy, parameters=parameters, iterations=2).iteration_ns

    @property
    def computes(self) -> int:
        """Nanoseconds of all kernels."""
        return sum(self.forward) + sum(self.backward)


def _node() -> NodeSpec:
    return load_node(
        "v100",
        {
            "gpu.memory": "1 TB",
            "host.memory": "1 TB",
            "link.d2h_bandwidth": f"{_OUT} GB/s",
            "link.h2d_bandwidth": f"{_IN} GB/s",
        },
    )


def chains(count: int, seed: int = 0) -> list[Chain]:
    """As many, drawn at random."""
    generator = np.random.default_rng(seed)
    return [Chain.drawn(generator) for _ in range(count)]


def equations(count: int = 60) -> dict[str, Any]:
    """Whether an iteration costs what equations 1-4 say, to the nanosecond, and tensors are compressed where T' > T."""
    drawn = chains(count)
    plain = [_off_plain(each) for each in drawn]
    small = [_off_compressed(each) for each in drawn]
    wrong = [name for each in drawn for name in _decided_otherwise(each)]
    tensors = sum(len(each.tensors) for each in drawn)
    tried = f"{count} random chains, {tensors} tensors"
    return {
        "uncompressed": rule(not any(plain), f"vdnn on {tried}: at most {max(map(abs, plain))} ns off"),
        "compressed": rule(not any(small), f"static on {tried}: at most {max(map(abs, small))} ns off"),
        "decided": rule(not wrong, f"cswap on {tried}: {len(wrong)} decided otherwise"),
    }


def _off_plain(each: Chain) -> Fraction:
    expected = sum((each.costs(n)[0] for n in each.tensors), Fraction(each.computes))
    return each.takes("vdnn", {"mode": "conv"}) - expected


def _off_compressed(each: Chain) -> Fraction:
    costs = [each.costs(n) for n in each.tensors]
    expected = sum((plain if n == 1 else small for n, (plain, small) in enumerate(costs, 1)), Fraction(each.computes))
    return each.takes("static", {"launch": "expert"}) - expected


def _decided_otherwise(each: Chain) -> list[str]:
    codecs = departures(simulate(each.trace, _node(), "cswap", parameters=_EXACT, iterations=2))
    worth = {f"x{n}": n > 1 and each.costs(n)[0] > each.costs(n)[1] for n in each.tensors}
    return [name for name, pays in worth.items() if bool(codecs.get(name)) != pays]


CHECKS = {"equations": equations}
