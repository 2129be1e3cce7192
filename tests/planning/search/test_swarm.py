"""The particle swarm compared with a plain implementation of HOME's algorithms 1 and 3."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simgpu.errors import InputError
from simgpu.planning.search.space import Costs, Score, Vectors
from simgpu.planning.search.swarm import Swarm, SwarmResult, Update
from tests.planning.search.costs import Recording, choices, one, rugged, seeds, separable

UPDATES: tuple[Update, ...] = ("recombine", "full")
updates = st.sampled_from(UPDATES)
particles = st.integers(1, 8)


def search(
    options: list[int], particles: int, seed: int, update: Update, score: Score, iterations: int = 12
) -> SwarmResult:
    return Swarm(options, len(options), particles, iterations, seed, update).minimise(score)


def particles_by_iteration(swarm_result: SwarmResult, recording: Recording) -> list[Vectors]:
    """Particles by iteration of a search by recombination, where each batch is one iteration."""
    assert len(recording.batches) == swarm_result.iterations
    return recording.batches


class Plain:
    """Algorithms 1 and 3 as printed, one particle after the other, without skipped evaluations."""

    def __init__(self, first: Vectors, score: Score) -> None:
        self.policy = [list(map(int, vector)) for vector in first]
        self.score = score
        self.calls = 0
        self.costs: list[list[int]] = []
        self.historical = [(list(vector), 2**63) for vector in self.policy]

    def overhead(self, vector: list[int]) -> int:
        self.calls += 1
        return one(self.score, vector)

    def iterate(self) -> None:
        self.costs.append([self.overhead(vector) for vector in self.policy])
        for i, cost in enumerate(self.costs[-1]):
            if cost <= self.historical[i][1]:
                self.historical[i] = (list(self.policy[i]), cost)

    def update(self) -> None:
        p1 = list(self.policy[min(range(len(self.policy)), key=lambda i: (self.costs[-1][i], i))])
        for i, vector in enumerate(self.policy):
            p2 = self.historical[i][0]
            for j in range(len(vector)):
                vector[j] = p1[j]
                o1 = self.overhead(vector)
                vector[j] = p2[j]
                o2 = self.overhead(vector)
                vector[j] = p1[j] if o1 < o2 else p2[j]


@given(choices(), particles, seeds, st.sampled_from([2, 5, 2**40]))
def test_a_full_update_is_algorithm_3_as_printed(options: list[int], count: int, seed: int, values: int) -> None:
    score = Recording(rugged(seed, values))
    result = search(options, count, seed, "full", score)
    plain = Plain(score.batches[0], rugged(seed, values))
    plain.iterate()
    for _ in range(result.iterations - 1):
        plain.update()
        plain.iterate()
    assert result.costs.tolist() == plain.costs
    calls = plain.calls
    if result.stopped == "converged":
        best = min(map(min, plain.costs))
        for _ in range(5):
            plain.update()
            plain.iterate()
        assert min(map(min, plain.costs)) == best, "what has converged finds nothing more"
        # Either all particles were equal, or one more update changed none of them.
        last = (2 * len(options) + 1) * count
        unchanged = plain.costs[-1] == result.costs[-1].tolist()
        assert result.as_printed == calls or (unchanged and result.as_printed == calls + last)
    else:
        assert result.as_printed == calls
    assert result.evaluations == score.requested <= result.as_printed


@given(choices(), particles, seeds, st.sampled_from([2, 5, 2**40]))
def test_recombined_entries_come_from_the_last_best_or_the_particle_itself(
    options: list[int], count: int, seed: int, values: int
) -> None:
    score = Recording(rugged(seed, values))
    result = search(options, count, seed, "recombine", score)
    own, own_costs = score.batches[0].copy(), np.full(count, 2**62)
    batches = particles_by_iteration(result, score)
    for vectors, costs, following in zip(batches, result.costs, batches[1:], strict=False):
        better = costs <= own_costs
        own[better], own_costs[better] = vectors[better], costs[better]
        p1 = vectors[costs.argmin()]
        assert ((following == p1) | (following == own)).all()
    assert result.evaluations == result.as_printed == count * result.iterations == score.requested


def test_the_coin_of_recombination_is_fair_and_fresh_at_every_place() -> None:
    """With two iterations only the random particles precede, so P2 is a particle's first vector."""
    score = Recording(rugged(0))
    result = Swarm(100, 100, particles=400, iterations=2).minimise(score)
    first, second = score.batches
    p1 = first[result.costs[0].argmin()]
    apart = first != p1
    taken = apart & (second == p1)
    # As a fair coin within five standard deviations, in all and for each particle and position; the seed is fixed.
    for axis in (None, 0, 1):
        tosses, heads = apart.sum(axis=axis), taken.sum(axis=axis)
        assert (abs(heads - tosses / 2) <= 5 * np.sqrt(tosses / 4)).all()


def test_random_particles_draw_every_option_with_equal_probability() -> None:
    score = Recording(rugged(0))
    Swarm([2, 3, 5], 3, particles=6000, iterations=1).minimise(score)
    for position, count in enumerate([2, 3, 5]):
        drawn = np.bincount(score.batches[0][:, position], minlength=count)
        expected = 6000 / count
        assert len(drawn) == count
        assert (abs(drawn - expected) < 4 * np.sqrt(expected)).all()


@given(choices(), particles, seeds, updates)
def test_searches_only_use_options_of_the_initial_particles(
    options: list[int], count: int, seed: int, update: Update
) -> None:
    score = Recording(rugged(seed))
    result = search(options, count, seed, update, score)
    drawn = [set(score.batches[0][:, position].tolist()) for position in range(len(options))]
    for vectors in score.batches:
        assert all(set(vectors[:, position].tolist()) <= drawn[position] for position in range(len(options)))
    assert all(option in drawn[position] for position, option in enumerate(result.best))


@given(choices(), particles, seeds, updates)
def test_the_best_cost_is_the_minimum_so_far_and_never_rises(
    options: list[int], count: int, seed: int, update: Update
) -> None:
    score = rugged(seed, 1000)
    result = search(options, count, seed, update, score)
    worst, mean, best = result.history
    assert result.cost == one(score, result.best) == result.costs.min() == best[-1]
    assert (np.diff(best) <= 0).all()
    assert (best == np.minimum.accumulate(result.costs.min(axis=1))).all()
    assert (worst == result.costs.max(axis=1)).all()
    assert mean.tolist() == pytest.approx([sum(row) / count for row in result.costs.tolist()])
    assert best[result.converged_at - 1] == result.cost
    assert (best[: result.converged_at - 1] > result.cost).all()
    assert result.costs.shape == (result.iterations, count)


@given(choices(), particles, seeds, updates)
def test_the_same_seed_gives_the_same_bytes(options: list[int], count: int, seed: int, update: Update) -> None:
    first, second = (search(options, count, seed, update, rugged(1)) for _ in range(2))
    assert first == second
    assert first.costs.tobytes() == second.costs.tobytes()


def test_another_seed_draws_other_particles() -> None:
    assert len({Swarm(3, 20, 50, 1, seed=seed).minimise(rugged(0)).costs.tobytes() for seed in range(20)}) == 20


def test_another_seed_recombines_differently() -> None:
    start = [(0,) * 20, (1,) * 20]
    assert len({Swarm(2, 20, 2, 2, seed=seed).minimise(rugged(0), start).costs.tobytes() for seed in range(20)}) == 20


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), particles, seeds)
def test_a_full_update_finds_the_cheapest_drawn_entries_of_a_separable_cost(
    options: list[int], count: int, seed: int
) -> None:
    """A full update uses the cheaper entry of P1 and P2, so each next P1 includes the entries of one more particle."""
    table = np.random.default_rng(seed).integers(0, 1000, size=(len(options), 4))
    score = Recording(separable(table))
    result = search(options, count, seed, "full", score, iterations=count + 2)
    drawn = score.batches[0]
    assert result.cost == sum(table[position][drawn[:, position]].min() for position in range(len(options)))


def test_a_particle_keeps_its_entries_on_ties() -> None:
    """With equal costs every choice is a tie, so no particle changes and the search has converged."""

    def flat(vectors: Vectors) -> Costs:
        return np.zeros(len(vectors), dtype=np.int64)

    result = Swarm(3, 10, particles=20, iterations=50, update="full").minimise(flat)
    assert (result.iterations, result.stopped, result.converged_at) == (1, "converged", 1)


@pytest.mark.parametrize("update", UPDATES)
def test_a_swarm_converges_despite_many_equal_costs(update: Update) -> None:
    result = Swarm(3, 30, particles=100, iterations=500, update=update).minimise(
        lambda vectors: (vectors > 0).sum(axis=1) // 4
    )
    assert result.stopped == "converged"
    assert result.iterations < 200


@given(choices(), seeds, updates, st.data())
def test_the_swarm_is_never_worse_than_its_start_vectors(
    options: list[int], seed: int, update: Update, data: st.DataObject
) -> None:
    vector = st.tuples(*(st.integers(0, count - 1) for count in options))
    start = data.draw(st.lists(vector, max_size=4))
    score = Recording(rugged(seed, 1000))
    swarm = Swarm(options, len(options), particles=4, iterations=3, seed=seed, update=update)
    result = swarm.minimise(score, start)
    assert [tuple(row) for row in score.batches[0][: len(start)].tolist()] == start
    assert result.cost <= min((one(rugged(seed, 1000), vector) for vector in start), default=1000)


def test_patience_ends_a_search_that_finds_no_better_vector() -> None:
    options = {"choices": 3, "length": 30, "particles": 50, "seed": 3}
    endless = Swarm(**options, iterations=40).minimise(rugged(0))
    patient = Swarm(**options, iterations=40, patience=5).minimise(rugged(0))
    assert (patient.stopped, patient.iterations) == ("patience", patient.converged_at + 5)
    assert (patient.costs == endless.costs[: patient.iterations]).all(), "until then it is the same search"


def test_the_swarm_runs_all_iterations_if_it_does_not_converge() -> None:
    message: list[int] = []
    result = Swarm(3, 40, particles=20, iterations=7).minimise(rugged(0), progress=message.append)
    assert (result.stopped, result.iterations, message) == ("iterations", 7, [1, 2, 3, 4, 5, 6, 7])


@pytest.mark.parametrize("update", UPDATES)
def test_without_choices_the_swarm_ends_immediately(update: Update) -> None:
    for swarm in (Swarm(3, 0, update=update), Swarm(1, 5, update=update)):
        result = swarm.minimise(lambda vectors: np.full(len(vectors), 9))
        assert (result.best, result.cost, result.stopped) == ((0,) * swarm.length, 9, "converged")
        assert result.evaluations == swarm.particles


def test_costs_of_any_size_stay_exact() -> None:
    result = Swarm(2, 3, particles=50, iterations=3).minimise(lambda vectors: 2**62 + vectors.sum(axis=1))
    assert result.cost == 2**62
    assert result.history.mean[0] == pytest.approx(2**62)


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(InputError) as error:
        Swarm([3, 0, 500], 2, particles=0, iterations=0, seed=-1, update="both", patience=0)  # type: ignore[arg-type]
    assert {problem.place for problem in error.value.problems} == {
        "particles",
        "iterations",
        "seed",
        "update",
        "patience",
        "choices",
    }
    with pytest.raises(InputError) as error:
        Swarm([2, 3], 2, particles=2).minimise(rugged(0), [(0, 3), (0,), (1, 2)])
    assert str(error.value).splitlines() == [
        "start: vector 0, position 1 has option 3 of 3; options count from 0",
        "start: vector 1 has 1 of 2 positions",
        "start: 3 vectors for 2 particles; give fewer, or more particles",
    ]
