"""``simgpu compression tune`` and ``simgpu compression times``: CSWAP's figures 12 and 10 as tables."""

from __future__ import annotations

import pytest

from tests.cli.cli_helpers import simgpu


@pytest.mark.exhaustive
def test_tune_compares_four_searches_and_exhaustive_search_is_best() -> None:
    done = simgpu("compression", "tune", "-q")
    assert done.exit_code == 0, done.stderr
    ways = [line for line in done.stdout.splitlines() if line.endswith(("-", "35", "8192"))]
    assert [line.split("  ")[0] for line in ways] == ["random", "expert rule", "Bayesian search", "exhaustive search"]
    over = [float(line.rsplit("x", 1)[0].split()[-1]) for line in ways]
    assert over[-1] == 1.0 == min(over)
    assert "fitted to figures 5 and 12" in " ".join(done.stdout.split())
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


@pytest.mark.slow
def test_tune_uses_the_sparse_activations_of_a_trace() -> None:
    done = simgpu("compression", "tune", "--trace", "vgg16-b128-v100", "--epoch", 20, "--node", "2080ti", "-q")
    assert done.exit_code == 0, done.stderr
    assert "scaled from the fitted GPU" in " ".join(done.stdout.split())


@pytest.mark.slow
def test_regressions_are_shown_side_by_side() -> None:
    done = simgpu("compression", "times", "-q")
    assert done.exit_code == 0, done.stderr
    errors = {
        line[:30].strip(): float(line.split("%")[-2].split()[-1])
        for line in done.stdout.splitlines()
        if line.endswith("%")
    }
    assert min(errors, key=lambda name: errors[name]) == "linear, per sparsity range"
    assert len(errors) == 5


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--codec", "zvx"], "did you mean 'zvc'"),
        (["--codec", "zlib"], "no times on a GPU are known"),
        (["--node", "v1oo"], "did you mean 'v100'"),
        (["--trace", "nowhere"], "nowhere"),
        (["--seed", "-1"], "--seed"),
    ],
)
def test_mistakes_exit_with_a_message(arguments: list[str], word: str) -> None:
    done = simgpu("compression", "tune", *arguments)
    assert done.exit_code == 2
    assert word in done.stderr
