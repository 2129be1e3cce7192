"""The mixture of experts of DeepSeek-V3, as transformers 4.51 builds it: sigmoid scores, experts chosen within groups.

As in `simgpu.workloads.configured.experts`, each expert receives an equal number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.decoder import Experts, Groups
from simgpu.workloads.configured.experts import GatedInner
from simgpu.workloads.configured.parts import Build
from simgpu.workloads.eager.pointwise import add, cast, elementwise, mul, scale, sigmoid
from simgpu.workloads.eager.products import linear
from simgpu.workloads.eager.routing import add_rows, divided_by_sum, gathered, indexed, one_hot, where_chosen
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import reshape, unsqueeze


@dataclass(frozen=True, slots=True)
class GroupedInner:
    """A router, its experts, and shared ones that all tokens pass.

    weight: of the router. correction: added to the scores by which experts are chosen; it has no gradient.
    """

    build: Build
    sizes: Experts
    groups: Groups
    experts: tuple[GatedInner, ...]
    weight: Tensor
    correction: Tensor
    shared: GatedInner

    @classmethod
    def create(cls, build: Build, sizes: Experts, groups: Groups) -> GroupedInner:
        """Creates the weights of experts, router and shared experts."""
        session = build.session
        with session.layer("mlp"):
            experts = tuple(GatedInner.create(build, f"experts.{number}", sizes.inner) for number in range(sizes.count))
            with session.layer("gate"):
                weight = build.weight("weight", sizes.count, build.decoder.width)
                name = f"{session.tape.layer}.e_score_correction_bias"
                correction = session.constant(name, (sizes.count,), build.dtype, BlockKind.OTHER)
            shared = GatedInner.create(build, "shared_experts", sizes.shared)
        return cls(build, sizes, groups, experts, weight, correction, shared)

    def __call__(self, x: Tensor) -> Tensor:
        session = self.build.session
        with session.layer("mlp"):
            shape = (x.shape[0] * x.shape[1], x.shape[2])
            with session.layer("gate"):
                weights, places = self._chosen(reshape(session, x, shape))
            result = reshape(session, self._routed(reshape(session, x, shape), weights, places), x.shape)
            return add(session, result, self.shared(x))

    def _chosen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and numbers of the experts of each row, (tokens, chosen); weights in float32, but for autocast's
        format."""
        session = self.build.session
        logits = linear(session, cast(session, x, "float32"), cast(session, self.weight, "float32"))
        scores = sigmoid(session, logits)
        places = self._places(scores)
        weights = gathered(session, scores, places)
        if self.sizes.normalized:
            weights = divided_by_sum(session, weights, nonzero=True)
        return scale(session, weights), places

    def _places(self, scores: Tensor) -> Tensor:
        """Numbers of the chosen experts: in each token's groups, by the two best scores in a group, the best ones."""
        session, (tokens, count), groups = self.build.session, scores.shape, self.groups
        scores = elementwise(session, "add", scores.seen(scores.shape), self.correction)
        parts = scores.seen((tokens, groups.count, count // groups.count))
        best, _ = _topk(self.build, parts, 2)
        (sums,) = session.run("sum", (best,), (((tokens, groups.count), scores.dtype),))
        _, chosen = _topk(self.build, sums, groups.chosen)
        (mask,) = session.run("zeros_like", (), ((sums.shape, sums.dtype),))
        session.run_in_place("scatter_", mask, (chosen,))
        spread = mask.seen(parts.shape, (groups.count, 1, 0))
        is_outside = elementwise(session, "bitwise_not", cast(session, reshape(session, spread, scores.shape), "bool"))
        inside = elementwise(session, "masked_fill", scores, is_outside, dtype=scores.dtype)
        return _topk(self.build, inside, self.sizes.chosen)[1]

    def _routed(self, x: Tensor, weights: Tensor, places: Tensor) -> Tensor:
        """The sum of the chosen experts' results, each scaled by the router's weight, (tokens, width)."""
        session, (tokens, width) = self.build.session, x.shape
        (total,) = session.run("zeros_like", (), ((x.shape, weights.dtype),))
        mask = one_hot(session, places, self.sizes.count)
        for expert, count in zip(self.experts, self.sizes.rows(tokens), strict=True):
            choices, rows = where_chosen(session, mask, count)
            factor = indexed(session, weights, (rows, choices), (count,))
            value = expert(indexed(session, x, (rows,), (count, width)))
            scaled = mul(session, value, unsqueeze(session, factor, 1))
            total = add_rows(session, total, rows, scaled)
        return cast(session, total, x.dtype)


def _topk(build: Build, x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest values along the last dimension and their places, outside autograd."""
    shape = (*x.shape[:-1], count)
    values, places = build.session.run("topk", (x,), ((shape, x.dtype), (shape, "int64")))
    return values, places
