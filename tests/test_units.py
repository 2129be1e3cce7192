"""Quantities with units: misspelt units give a suggestion, wherever the text comes from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import simgpu
from simgpu.errors import InputError
from simgpu.experiments.regression.tolerances import parse_tolerances
from simgpu.units import parse_bandwidth, parse_bytes, parse_energy_per_byte, parse_power, parse_rate, parse_time
from tests.cli.cli_helpers import make_study
from tests.cli.cli_helpers import simgpu as command


@pytest.mark.parametrize(
    ("parse", "text", "meant"),
    [
        (parse_bytes, "10 gb", "10 GB"),
        (parse_bytes, "24 Gib", "24 GiB"),
        (parse_bytes, "1.5gIb", "1.5 GiB"),
        (parse_bytes, "3 kb", "3 kB"),
        (parse_bytes, "3 b", "3 B"),
        (parse_bandwidth, "11.7 gb/S", "11.7 GB/s"),
        (parse_bandwidth, "11.7 Gb/s", "11.7 GB/s"),
        (parse_time, "5 US", "5 us"),
        (parse_time, "5 Ms", "5 ms"),
        (parse_rate, "15.7 TFlop/s", "15.7 TFLOP/s"),
        (parse_power, "235 w", "235 W"),
        (parse_energy_per_byte, "14 pj/bit", "14 pJ/bit"),
    ],
)
def test_a_unit_in_the_wrong_case_is_refused_with_the_right_spelling(
    parse: Callable[[object], int], text: str, meant: str
) -> None:
    with pytest.raises(ValueError, match="is not a unit of") as caught:
        parse(text)
    assert f"did you mean '{meant}'" in str(caught.value)
    assert parse(meant) > 0


def test_a_bandwidth_in_bits_is_refused_with_a_suggestion_in_bytes() -> None:
    with pytest.raises(ValueError, match=r"did you mean '10 GB/s' \(bytes, not bits\)\?"):
        parse_bandwidth("10 Gb/s")


def test_an_unknown_unit_has_no_suggestion() -> None:
    with pytest.raises(ValueError, match=r"'G' is not a unit of size; known: B, kB"):
        parse_bytes("10 G")


def test_spellings_are_suggested_in_files_options_overrides_and_arguments(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    node = tmp_path / "node.yaml"
    trace = simgpu.load_trace(tmp_path / "chain")
    with pytest.raises(InputError, match=r"did you mean '10 us'\?"):
        parse_tolerances({"iteration_ns": "10 US"})
    with pytest.raises(InputError, match=r"argument budget: .*did you mean '10 GB'\?"):
        simgpu.simulate(trace, simgpu.load_node(node), "none", budget="10 gb")
    options = (
        ["run", study, "--set", "budget=10 gb"],
        ["run", "--trace", tmp_path / "chain", "--node", node, "--memory", "10gb"],
        ["max-batch", study, "--budget", "10 gb"],
        ["compare", study, "--set", "node.gpu.memory=10 gb"],
    )
    for arguments in options:
        done = command(*arguments)
        assert done.exit_code == 2
        assert "did you mean '10 GB'?" in " ".join(done.stderr.split()), arguments
    node.write_text(node.read_text(encoding="utf-8").replace("8 GiB", "8 Gib"), encoding="utf-8")
    shown = " ".join(command("compare", study).stderr.split())
    assert "line 5, gpu.memory: '8 Gib': 'Gib' is not a unit of size; did you mean '8 GiB'?" in shown
