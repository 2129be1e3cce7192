"""Peak rates and DRAM bandwidth of every shipped GPU, compared with its data sheet.

The figures are repeated here, independently of the node files, to detect typing errors. Each printed figure must also
follow from the units and clocks in the same publications, to all printed digits.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

import pytest

from simgpu.hardware.nodes import load_node, node_names

GIGA, TERA = 10**9, 10**12


class Printed(NamedTuple):
    """A printed figure, and the product before rounding: units, work per cycle, cycles per second."""

    figure: str
    units: int
    each: float
    clock_hz: float

    @property
    def derived(self) -> float:
        return self.units * self.each * self.clock_hz

    def agrees(self, scale: int) -> bool:
        """Whether the product equals the figure to its last digit, except for trailing zeros."""
        figure = Decimal(self.figure)
        last = figure.normalize().as_tuple().exponent
        assert isinstance(last, int)
        return abs(Decimal(self.derived) / scale - figure) <= Decimal(10) ** last / 2


class Board(NamedTuple):
    """Memory in GB, multiprocessors, and peaks: FP32 and matrix units in TFLOP/s, DRAM in GB/s."""

    memory: int
    multiprocessors: int
    fp32: Printed
    tensor: Printed | None
    dram: Printed


def ordinary(figure: str, multiprocessors: int, cores: int, mhz: int) -> Printed:
    """Cores of all multiprocessors, each with one multiply and one add per cycle."""
    return Printed(figure, multiprocessors * cores, 2, mhz * 1e6)


def matrix(figure: str, units: int, products: int, mhz: float) -> Printed:
    """Matrix units and their multiply-accumulates per cycle."""
    return Printed(figure, units, 2 * products, mhz * 1e6)


def memory_bus(figure: str, bits: int, gigabits: float) -> Printed:
    """Pins of the memory bus and Gbit/s per pin."""
    return Printed(figure, bits, 1 / 8, gigabits * 1e9)


#: By the GPU's name. Sources: NVIDIA's and AMD's data sheets, specifications and architecture white papers of each.
BOARDS = {
    # The base clock; GDDR5 at 3004 MHz, two bits per cycle.
    "Tesla K40": Board(12, 15, ordinary("4.29", 15, 192, 745), None, memory_bus("288", 384, 6.008)),
    "GeForce GTX Titan X (Maxwell)": Board(12, 24, ordinary("6.6", 24, 128, 1075), None, memory_bus("336", 384, 7.0)),
    # HBM2 at 715 MHz, two bits a cycle, on four stacks of 1024 bits.
    "Tesla P100 PCIe": Board(16, 56, ordinary("9.3", 56, 64, 1303), None, memory_bus("732", 4096, 1.43)),
    # A simulator's: the P100's multiprocessors, clocks of its table. HBM2 at 875 MHz, two bits a cycle, printed as 900.
    "Buddy Compression's simulated GPU": Board(
        16, 56, ordinary("9.3184", 56, 64, 1300), None, memory_bus("900", 4096, 1.75)
    ),
    # GDDR5X at 5705 MHz, two bits a cycle, as CUDA's deviceQuery reports it; the specification rounds it to 11.4.
    "Titan Xp": Board(12, 30, ordinary("12.1", 30, 128, 1582), None, memory_bus("547.7", 384, 11.41)),
    # 110 was announced without a clock: it implies about 1335 MHz, below the boost clock. HBM2 on three stacks.
    "Titan V": Board(
        12, 80, ordinary("14.9", 80, 64, 1455), matrix("110", 640, 64, 1335), memory_bus("652.8", 3072, 1.7)
    ),
    # Published tables give 1370 MHz (CUDA reports 1380); HBM2 at 877 MHz, two bits a cycle, on four stacks.
    "Tesla V100 PCIe": Board(
        32, 80, ordinary("14", 80, 64, 1370), matrix("112", 640, 64, 1370), memory_bus("900", 4096, 1.754)
    ),
    "Tesla V100 SXM2": Board(
        32, 80, ordinary("15.7", 80, 64, 1530), matrix("125", 640, 64, 1530), memory_bus("900", 4096, 1.754)
    ),
    "Tesla V100 SXM2 16GB": Board(
        16, 80, ordinary("15.7", 80, 64, 1530), matrix("125", 640, 64, 1530), memory_bus("900", 4096, 1.754)
    ),
    # Matrix units at half their rate into single precision: 32 of 64 products.
    "GeForce RTX 2080 Ti": Board(
        11, 68, ordinary("13.4", 68, 64, 1545), matrix("53.8", 544, 32, 1545), memory_bus("616", 352, 14.0)
    ),
    # HBM2 at 1215 MHz, two bits a cycle, on five stacks.
    "A100 PCIe 40GB": Board(
        40, 108, ordinary("19.5", 108, 64, 1410), matrix("312", 432, 256, 1410), memory_bus("1555", 5120, 2.43)
    ),
    # The white paper gives the matrix units a lower clock; HBM3 at 2619 MHz, two bits a cycle, on five stacks.
    "H100 SXM": Board(
        80, 132, ordinary("66.9", 132, 128, 1980), matrix("989.4", 528, 512, 1830), memory_bus("3350", 5120, 5.238)
    ),
    # The data sheet gives no pin rate: the printed bandwidth implies 6.25 Gbit/s on six stacks.
    "H200 SXM": Board(
        141, 132, ordinary("66.9", 132, 128, 1980), matrix("989.4", 528, 512, 1830), memory_bus("4800", 6144, 6.25)
    ),
    "A100 SXM 40GB": Board(
        40, 108, ordinary("19.5", 108, 64, 1410), matrix("312", 432, 256, 1410), memory_bus("1555", 5120, 2.43)
    ),
    # HBM2e at 1593 MHz, two bits a cycle.
    "A100 SXM 80GB": Board(
        80, 108, ordinary("19.5", 108, 64, 1410), matrix("312", 432, 256, 1410), memory_bus("2039", 5120, 3.186)
    ),
    # GA10x and Ada: GeForce boards have 64 of 128 products a cycle into single precision, the A10G too.
    "GeForce RTX 3060": Board(
        12, 28, ordinary("12.7", 28, 128, 1777), matrix("25.5", 112, 64, 1777), memory_bus("360", 192, 15.0)
    ),
    "GeForce RTX 3090": Board(
        24, 82, ordinary("35.6", 82, 128, 1695), matrix("71", 328, 64, 1695), memory_bus("936", 384, 19.5)
    ),
    "RTX A6000": Board(
        48, 84, ordinary("38.7", 84, 128, 1800), matrix("154.8", 336, 128, 1800), memory_bus("768", 384, 16.0)
    ),
    "A10G": Board(24, 80, ordinary("35", 80, 128, 1710), matrix("70", 320, 64, 1710), memory_bus("600", 384, 12.5)),
    "GeForce RTX 4060": Board(
        8, 24, ordinary("15.1", 24, 128, 2460), matrix("30.2", 96, 64, 2460), memory_bus("272", 128, 17.0)
    ),
    "GeForce RTX 4070 Ti SUPER": Board(
        16, 66, ordinary("44.1", 66, 128, 2610), matrix("88.2", 264, 64, 2610), memory_bus("672", 256, 21.0)
    ),
    "GeForce RTX 4090": Board(
        24, 128, ordinary("82.6", 128, 128, 2520), matrix("165.2", 512, 64, 2520), memory_bus("1008", 384, 21.0)
    ),
    "GeForce RTX 5090": Board(
        32, 170, ordinary("104.8", 170, 128, 2407), matrix("209.5", 680, 64, 2407), memory_bus("1792", 512, 28.0)
    ),
    "L4": Board(24, 58, ordinary("30.3", 58, 128, 2040), matrix("121", 232, 128, 2040), memory_bus("300", 192, 12.5)),
    # 362.05 implies about 2490 MHz, below the boost clock of 2520.
    "L40S": Board(
        48, 142, ordinary("91.6", 142, 128, 2520), matrix("362.05", 568, 128, 2489.9), memory_bus("864", 384, 18.0)
    ),
    "H100 PCIe": Board(
        80, 114, ordinary("51.2", 114, 128, 1755), matrix("756", 456, 512, 1620), memory_bus("2000", 5120, 3.186)
    ),
    # The tensor rate implies about 1545 MHz.
    "H100 NVL": Board(
        94, 132, ordinary("60", 132, 128, 1785), matrix("835.5", 528, 512, 1545.3), memory_bus("3900", 6016, 5.238)
    ),
    "GH200 96GB": Board(
        96, 132, ordinary("66.9", 132, 128, 1980), matrix("989.4", 528, 512, 1830), memory_bus("4000", 6144, 5.238)
    ),
    # CUDA reports 2062 MHz, the tensor rate implies about 2008; HBM3e at 3996 MHz, two bits a cycle.
    "GB200": Board(
        186, 152, ordinary("80", 152, 128, 2062), matrix("2500", 608, 1024, 2008), memory_bus("8000", 8192, 7.992)
    ),
    "GB300": Board(
        279, 152, ordinary("80", 152, 128, 2062), matrix("2500", 608, 1024, 2008), memory_bus("8000", 8192, 7.992)
    ),
    # 1965 MHz and the memory's clock as tools report them; the tensor rate implies about 1856 MHz.
    "B200 SXM": Board(
        179, 148, ordinary("74.4", 148, 128, 1965), matrix("2250", 592, 1024, 1856), memory_bus("7672", 8192, 7.492)
    ),
    # Compute units of 128 cores, four matrix cores each.
    "Instinct MI300X": Board(
        192, 304, ordinary("163.4", 304, 128, 2100), matrix("1307.4", 1216, 256, 2100), memory_bus("5300", 8192, 5.2)
    ),
}

REAL = [name for name in node_names() if name != "laptop-2gb"]


@pytest.mark.parametrize("name", REAL)
def test_a_node_has_the_figures_of_its_data_sheet(name: str) -> None:
    gpu = load_node(name).gpu
    board = BOARDS[gpu.name]
    assert gpu.memory == board.memory * 2**30, "nominal, as the README of the nodes says"
    assert gpu.multiprocessors == board.multiprocessors
    assert gpu.fp32_rate == Decimal(board.fp32.figure) * TERA
    assert gpu.tensor_rate == (Decimal(board.tensor.figure) * TERA if board.tensor else None)
    assert gpu.dram_bandwidth == Decimal(board.dram.figure) * GIGA


@pytest.mark.parametrize("name", BOARDS)
def test_data_sheet_rates_follow_from_units_and_clocks(name: str) -> None:
    board = BOARDS[name]
    assert board.fp32.agrees(TERA)
    assert board.tensor is None or board.tensor.agrees(TERA)
    assert board.dram.agrees(GIGA)


def test_every_shipped_gpu_is_checked() -> None:
    assert {load_node(name).gpu.name for name in REAL} == set(BOARDS)
