"""Multi-head latent attention, as transformers 4.51 builds it for DeepSeek-V3.

Each head's queries and keys have a part that is not rotated, computed from a narrow vector of the token, and a rotated
one, which is the same for the keys of all heads. Values may be narrower than queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from simgpu.workloads.configured.decoder import Latent, Rotation
from simgpu.workloads.configured.parts import Build, Linear, RmsNorm, attended, heads_of
from simgpu.workloads.configured.places import Places
from simgpu.workloads.configured.rotary import rotated
from simgpu.workloads.eager.pointwise import cat
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import expand, reshape, split, transpose, unsqueeze


@dataclass(frozen=True, slots=True)
class _Queries:
    """What computes the queries: one product, or two with a narrow normalized vector between them."""

    first: Linear
    norm: RmsNorm | None = None
    second: Linear | None = None

    @classmethod
    def create(cls, build: Build, latent: Latent) -> _Queries:
        decoder = build.decoder
        width = decoder.heads * decoder.head_width
        if latent.queries is None:
            return cls(Linear.create(build, "q_proj", decoder.width, width, bias=False))
        first = Linear.create(build, "q_a_proj", decoder.width, latent.queries, decoder.query_bias)
        norm = RmsNorm.create(build, "q_a_layernorm", latent.queries)
        return cls(first, norm, Linear.create(build, "q_b_proj", latent.queries, width, bias=False))

    def __call__(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return first if self.norm is None or self.second is None else self.second(self.norm(first))


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """down: computes the narrow vector of keys and values, and the rotated part of all keys. up: those of each head."""

    build: Build
    queries: _Queries
    down: Linear
    norm: RmsNorm
    up: Linear
    output: Linear

    @classmethod
    def create(cls, build: Build, latent: Latent) -> LatentAttention:
        """Creates the weights."""
        decoder = build.decoder
        rotary, plain = decoder.rotary_width, decoder.head_width - decoder.rotary_width
        with build.session.layer("self_attn"):
            queries = _Queries.create(build, latent)
            width = latent.keys + rotary
            down = Linear.create(build, "kv_a_proj_with_mqa", decoder.width, width, decoder.query_bias)
            norm = RmsNorm.create(build, "kv_a_layernorm", latent.keys)
            both = decoder.heads * (plain + latent.values)
            up = Linear.create(build, "kv_b_proj", latent.keys, both, bias=False)
            width = decoder.heads * latent.values
            output = Linear.create(build, "o_proj", width, decoder.width, decoder.output_bias)
        return cls(build, queries, down, norm, up, output)

    def __call__(self, x: Tensor, places: Places) -> Tensor:
        session, decoder = self.build.session, self.build.decoder
        batch, tokens, _ = x.shape
        rotary, plain = decoder.rotary_width, decoder.head_width - decoder.rotary_width
        with session.layer("self_attn"):
            queries = heads_of(session, self.queries(x), decoder.head_width)
            query, of_query = split(session, queries, (plain, rotary))
            joint = self.down(x)
            narrow, of_key = split(session, joint, (joint.shape[-1] - rotary, rotary))
            pairs = heads_of(session, self.up(self.norm(narrow)), plain + decoder.value_width)
            key, value = split(session, pairs, (plain, decoder.value_width))
            of_key = reshape(session, of_key, (batch, 1, tokens, rotary))
            of_query, of_key = self._rotated(of_query, of_key, places)
            of_key = expand(session, of_key, (*key.shape[:-1], rotary))
            query, key = (cat(session, (query, of_query)), cat(session, (key, of_key)))
            return self.output(attended(self.build, query, key, value, places))

    def _rotated(self, query: Tensor, key: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        session = self.build.session
        cosines, sines = (unsqueeze(session, each, 1) for each in places.angles)
        if self.build.decoder.rotation == Rotation.GATHERED:
            query, key = (_gathered(session, each) for each in (query, key))
        return rotated(session, query, cosines, sines), rotated(session, key, cosines, sines)


def _gathered(session: Session, x: Tensor) -> Tensor:
    """Heads with their values at even places before those at odd ones, a copy."""
    pairs = reshape(session, x, (*x.shape[:-1], x.shape[-1] // 2, 2))
    return reshape(session, transpose(session, pairs, 4, 3), x.shape)
