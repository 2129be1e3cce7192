"""The closed form of a single copy."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from simgpu.memory.transfer import copy_ns, stream_ns


@given(st.integers(0, 2**45), st.integers(1, 2**45))
def test_the_transfer_time_is_bytes_over_bandwidth_rounded_up(size: int, bandwidth: int):
    assert stream_ns(size, bandwidth) == ceil(Fraction(size * 10**9, bandwidth))


@given(st.integers(0, 2**45), st.integers(1, 2**45), st.integers(0, 10**9))
def test_latency_adds_to_the_transfer_time(size: int, bandwidth: int, latency: int):
    assert copy_ns(size, bandwidth, latency) - latency == stream_ns(size, bandwidth)
