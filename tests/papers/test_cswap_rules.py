"""The rules of CSWAP: equations 1-4 on random chains of layers, the launch tuner's budget, links and codec overhead.

On a chain in which each layer swaps its one input, with exact copies and codecs before and after the layer's kernels,
an iteration takes its computation and the cost of every tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
import pytest

from simgpu.compression.codecs.csr import COUNT_BYTES, Csr, row_elements
from simgpu.compression.codecs.gpu.paper import FIGURE_12
from simgpu.compression.codecs.gpu.response import response_of
from simgpu.compression.codecs.gpu.setting import all_settings
from simgpu.compression.codecs.gpu.tensors import SparseTensor, array_of
from simgpu.compression.codecs.gpu.tuner import LaunchTuner, expert_setting
from simgpu.compression.codecs.zvc import Zvc
from simgpu.experiments.training import departures
from simgpu.hardware.nodes import load_node
from simgpu.hardware.spec import NodeSpec
from simgpu.papers.checks.cswap_layers import vgg16
from simgpu.policies.cswap import ExecutionAdvisor
from simgpu.simulation.run import simulate
from simgpu.trace.chain import chain
from simgpu.trace.model import CompressedSize, SparsitySample, Trace
from simgpu.units import parse_time
from tests.papers.rules import fails

#: GB/s out and in: whole bytes a nanosecond, so that copies of multiples of 40 bytes take whole nanoseconds.
_OUT, _IN = 10, 8
MS = parse_time("1 ms")
#: cswap as its equations have it: codec times and sizes that it need not predict.
_EXACT = {"launch": "expert", "codec": "zvc", "times": "exact", "sizes": "format"}


def uncompressed_cost(size: int, overlapped: tuple[int, int]) -> Fraction:
    """T' of equation 1 in nanoseconds; overlapped: computation that overlaps the copy out and the copy in."""
    return max(Fraction(size, _OUT) - overlapped[0], Fraction(0)) + max(
        Fraction(size, _IN) - overlapped[1], Fraction(0)
    )


def compressed_cost(size: int, zeros: Fraction, overlapped: tuple[int, int], codec_ns: int) -> Fraction:
    """T of equations 2-4."""
    out, back = (Fraction(size) * (1 - zeros) / rate for rate in (_OUT, _IN))
    return codec_ns + max(out - overlapped[0], Fraction(0)) + max(back - overlapped[1], Fraction(0))


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
        tensors = [(f"x{n}", *each) for n, each in enumerate(zip(self.sizes, self.zeros, strict=True), 1) if n > 1]
        rows = tuple(CompressedSize(x, 0, "zvc", "nchw", size, size * (100 - z) // 100, 1) for x, size, z in tensors)
        samples = tuple(SparsitySample(x, 0, z / 100) for x, _, z in tensors)
        return replace(plain, kernels=tuple(kernels), sparsity=samples, compressibility=rows)

    @property
    def tensors(self) -> range:
        """Those that are swapped: the last layer's input stays."""
        return range(1, len(self.sizes))

    def costs(self, n: int) -> tuple[Fraction, Fraction]:
        """T' and T of the tensor that layer n reads; next to it run F(n) and B(n + 1)."""
        size, zeros, overlapped = self.sizes[n - 1], self.zeros[n - 1], (self.forward[n - 1], self.backward[n])
        gpu = load_node("v100").gpu
        surface, setting = response_of(gpu), expert_setting(gpu)
        codec_ns = sum(
            timed("zvc", size, zeros / 100, setting.grid, setting.threads)
            for timed in (surface.encode_ns, surface.decode_ns)
        )
        return uncompressed_cost(size, overlapped), compressed_cost(size, Fraction(zeros, 100), overlapped, codec_ns)

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


@pytest.fixture(scope="module")
def random_chains() -> list[Chain]:
    return chains(60)


@pytest.mark.slow
@pytest.mark.rule
def test_uncompressed_swaps_cost_as_in_equation_1(random_chains: list[Chain]) -> None:
    for each in random_chains:
        assert _off_plain(each) == 0


@pytest.mark.slow
@pytest.mark.rule
def test_compressed_swaps_cost_as_in_equations_2_to_4(random_chains: list[Chain]) -> None:
    for each in random_chains:
        assert _off_compressed(each) == 0


@pytest.mark.slow
@pytest.mark.rule
def test_tensors_are_compressed_where_that_costs_less(random_chains: list[Chain]) -> None:
    for each in random_chains:
        assert _decided_otherwise(each) == []


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


@pytest.mark.slow
@pytest.mark.rule
def test_the_launch_tuner_draws_10_settings_and_proposes_25() -> None:
    tuner = LaunchTuner(response_of(load_node("v100").gpu), "zvc", FIGURE_12)
    assert tuner.bayesian(steps=0).evaluations == 10
    assert tuner.bayesian(seed=0).evaluations == 10 + 25


@pytest.mark.rule
def test_launch_settings_are_grids_up_to_4096_of_64_to_128_threads() -> None:
    grids, threads = all_settings()
    assert (grids.max(), threads.min(), threads.max()) == (4096, 64, 128)


@pytest.mark.rule
@pytest.mark.parametrize(("node", "h2d", "d2h"), [("v100", 10.6, 11.7), ("2080ti", 11.8, 12.9)])
def test_copies_reach_the_rates_of_the_papers_links(node: str, h2d: float, d2h: float) -> None:
    """GB/s of all copies of an iteration together, as CSWAP's profiler measures them."""
    # Only its link is looked at, so it may have the memory that a batch of 128 takes.
    roomy = load_node(node, {"gpu.memory": "64 GiB", "host.memory": "64 GiB"})
    timeline = simulate(vgg16(), roomy, "vdnn", parameters={"mode": "conv"}).timeline
    for engine, rate in (("h2d", h2d), ("d2h", d2h)):
        copies = timeline.copies(engine)
        ns = int((timeline.end_ns - timeline.start_ns)[copies].sum())
        # Copies take whole nanoseconds.
        assert round(int(timeline.bytes[copies].sum()) / ns, 3) == rate


@pytest.mark.rule
def test_indexes_of_zvc_take_a_32nd_of_a_tensor_and_those_of_csr_half() -> None:
    """Of a tensor with half zeros; without CSR's counts of rows, 0.1% more here, which the paper does not mention."""
    array = array_of(SparseTensor(2**22, 0.5), np.random.default_rng(0))
    nonzero = int(np.count_nonzero(array)) * array.itemsize
    csr = Csr()
    counts = array.size // row_elements(csr.window, array.itemsize) * COUNT_BYTES
    assert Zvc().compressed_size(array) - nonzero == array.nbytes / 32
    assert csr.compressed_size(array) - nonzero - counts == array.nbytes / 2


# --- the tests above, by hand and where they have to fail -----------------------------------------------------


def test_costs_by_hand() -> None:
    """100 MB out at 10 and in at 8 bytes a nanosecond take 10 and 12.5 ms."""
    size = 100_000_000
    assert uncompressed_cost(size, (4 * MS, 20 * MS)) == 6 * MS
    assert uncompressed_cost(size, (0, 0)) == Fraction(45, 2) * MS
    # Three quarters are zeros: 2.5 and 3.125 ms are left of the copies.
    assert compressed_cost(size, Fraction(3, 4), (2 * MS, 20 * MS), 7 * MS) == Fraction(15, 2) * MS


def test_equations_hold_on_chains_of_another_seed() -> None:
    for each in chains(3, seed=7):
        assert _off_plain(each) == 0


@pytest.mark.slow
def test_a_policy_that_always_compresses_breaks_the_rule_of_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    few = chains(4)
    assert not fails(test_tensors_are_compressed_where_that_costs_less, few)
    advise = ExecutionAdvisor.advise

    def keen(self: ExecutionAdvisor, swap: object) -> object:
        return replace(advise(self, swap), plain_ns=10**12)  # type: ignore[arg-type]

    monkeypatch.setattr(ExecutionAdvisor, "advise", keen)
    assert fails(test_tensors_are_compressed_where_that_costs_less, few)
    assert not fails(test_uncompressed_swaps_cost_as_in_equation_1, few)


def test_costs_that_the_machine_does_not_charge_break_the_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    few = chains(2)
    monkeypatch.setattr(f"{__name__}.compressed_cost", lambda size, zeros, overlapped, codec_ns: Fraction(codec_ns))
    assert fails(test_compressed_swaps_cost_as_in_equations_2_to_4, few)
    assert not fails(test_uncompressed_swaps_cost_as_in_equation_1, few)
    monkeypatch.setattr(f"{__name__}.uncompressed_cost", lambda size, overlapped: Fraction(size))
    assert fails(test_uncompressed_swaps_cost_as_in_equation_1, few)


def test_costs_follow_the_rate_of_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}._OUT", 11)
    slow = Chain((0, 0), (0, 0), (400_000_000, 40), (50, 50))
    assert slow.takes("vdnn", {"mode": "conv"}) == slow.computes + slow.costs(1)[0].__ceil__()
