"""The built-in policies keep to the contract."""

from __future__ import annotations

from tests.policies.contract import PolicyContract


class TestIdeal(PolicyContract):
    policy = "ideal"


class TestNone(PolicyContract):
    policy = "none"


class TestVdnn(PolicyContract):
    policy = "vdnn"
    parameter_sets = (
        {},
        {"mode": "conv"},
        {"mode": "dynamic"},
        {"mode": "all", "algorithms": "fastest"},
        {"mode": "conv", "algorithms": "smallest"},
    )


class TestVdnnPlusPlus(PolicyContract):
    policy = "vdnn++"
    parameter_sets = ({}, {"threshold": 0.9})


class TestCdma(PolicyContract):
    policy = "cdma"
    compressing = True
