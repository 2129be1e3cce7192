"""`Growth`: what a search expects of other sizes, against runs at these."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import simgpu
from simgpu.experiments.fit.candidates import Candidate, candidates
from simgpu.experiments.fit.question import Question, sizes
from simgpu.experiments.fit.rows import FitRun
from simgpu.experiments.fit.trials import rows_of
from simgpu.experiments.fit.workloads import workload_of
from simgpu.planning.search.bisection import largest_by_guess
from simgpu.policies.base import no_progress

NODE = simgpu.load_node("rtx4090")
SIZES = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 1000}


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / request.param
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": request.param, **SIZES}))
    return folder


def test_a_plan_shows_the_peak_of_larger_batches_and_what_every_run_needs(model: Path) -> None:
    question = Question(workload_of(model, {}), NODE, None, 512, 120 * 2**20, 2**20)
    shares = []
    for candidate in candidates(question.workload.options)[::3]:
        peak = question.run(candidate, 8, 512).peak
        assert question.growth(candidate, 3).peak(8) == pytest.approx(peak, rel=0.03), candidate.label
        least = question.growth(candidate, 8).least
        assert least <= peak, candidate.label
        shares.append(least / peak)
    assert sum(share > 0.95 for share in shares) > len(shares) / 2


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"length": 512}, {"batch": 3}])
def test_every_row_of_a_search_is_that_of_a_bisection(model: Path, given: Mapping[str, int]) -> None:
    question = Question(workload_of(model, {}), NODE, given.get("batch"), given.get("length"), 150 * 2**20, 2**20)
    places = sizes(1, 2**16) if question.searched == "batch" else sizes(128, question.workload.longest or 0)
    for row in rows_of(question, 1, no_progress):
        assert row.run == question.compared(_bisected(question, row.candidate, places[:120])), row.candidate.label


def _bisected(question: Question, candidate: Candidate, places: list[int]) -> FitRun:
    """The run at the largest of these sizes that fits, else at the smallest."""
    runs: dict[int, FitRun] = {}

    def fits(place: int) -> bool:
        batch, length = question.batch or places[place], question.length or places[place]
        runs[place] = question.run(candidate, batch, length)
        return runs[place].fits

    return runs[largest_by_guess(fits, len(places) - 1, lambda fit, over: (fit + over) // 2) or 0]
