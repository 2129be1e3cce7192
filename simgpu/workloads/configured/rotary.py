"""The rotary embedding: its angles, computed in every iteration, and the rotation of queries and keys."""

from __future__ import annotations

from simgpu.trace.model import BlockKind
from simgpu.workloads.configured.decoder import Rotation
from simgpu.workloads.configured.parts import Build
from simgpu.workloads.configured.places import Places
from simgpu.workloads.eager.pointwise import add, cast, cat, clone, elementwise, interleaved, mul, neg, scale, sub
from simgpu.workloads.eager.products import product
from simgpu.workloads.eager.session import Session
from simgpu.workloads.eager.tensor import Tensor
from simgpu.workloads.eager.views import alternating, sliced, split, transpose, unsqueeze


def places_of(build: Build, mask: Tensor | None, positions: Tensor) -> Places:
    """What attention of all layers reads. positions: of the tokens, (1, length)."""
    angles = rotary_angles(build, positions, "rotary_emb")
    local = rotary_angles(build, positions, "rotary_emb_local") if build.decoder.family == "gemma3_text" else angles
    return Places(angles, mask, positions if build.of_package else None, local=local)


def rotary_angles(build: Build, positions: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding, (1, length, rotary width), computed in every iteration; half as wide
    where halves are rotated apart.

    name: of its module.
    """
    session, half = build.session, build.decoder.rotary_width // 2
    with session.layer(name):
        if build.decoder.longrope and name == "rotary_emb":
            _look_up_length(session, positions)
        name = f"{session.tape.layer}.inv_freq"
        frequencies = session.constant(name, (1, half, 1), "float32", BlockKind.OTHER)
        return _angles(build, frequencies, positions.seen((1, 1, positions.shape[1])))


def _look_up_length(session: Session, positions: Tensor) -> None:
    """Compares the length with that of pretraining; the host waits for the answer (``longrope_frequency_update``).

    The first iteration with longer samples also computes their frequencies, which is not modelled.
    """
    (last,) = session.run("max", (positions,), (((), positions.dtype),))
    longer = elementwise(session, "gt", elementwise(session, "add", last), dtype="bool")
    session.run("_local_scalar_dense", (longer,), ())


def _angles(build: Build, frequencies: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    session = build.session
    angles = product(session, "bmm", frequencies, cast(session, positions, "float32"))
    turned = transpose(session, angles, 1, 2)
    match build.decoder.rotation:
        case Rotation.APART:
            both = turned
        case Rotation.WIDE:
            both = _twice(session, turned, turned.shape[-1])
        case _:
            both = cat(session, (turned, turned))
    results = [scale(session, elementwise(session, op, both)) for op in ("cos", "sin")]
    session.keep((positions, angles, both, *results))
    cosines, sines = (cast(session, each, build.dtype) for each in results)
    return cosines, sines


def turned(build: Build, query: Tensor, key: Tensor, places: Places) -> tuple[Tensor, Tensor]:
    """Queries and keys, (batch, heads, tokens, width), rotated as `Rotation` says."""
    session, decoder = build.session, build.decoder
    cosines, sines = (unsqueeze(session, each, 1) for each in places.angles)
    if decoder.rotation == Rotation.NEIGHBOURS:
        half = decoder.rotary_width // 2
        cosines, sines = (_twice(session, each, half) for each in (cosines, sines))
        return partly_rotated(build, (query, key), cosines, sines, together=True)
    if decoder.rotation == Rotation.HALVES:
        return rotated(session, query, cosines, sines), rotated(session, key, cosines, sines)
    if decoder.rotation == Rotation.APART:
        return _halves_rotated(session, query, cosines, sines), _halves_rotated(session, key, cosines, sines)
    wide = [cast(session, each, "float32") for each in (query, key)]
    first, second = (_neighbours_rotated(session, each, cosines, sines) for each in wide)
    return cast(session, first, query.dtype), cast(session, second, key.dtype)


def _twice(session: Session, x: Tensor, count: int) -> Tensor:
    """The first values of the last dimension, each two times in a row (``repeat_interleave``), outside autograd."""
    repeated = x.seen((*x.shape[:-1], count, 2), (*x.strides, 0))
    return clone(session, repeated).seen((*x.shape[:-1], 2 * count))


def rotated(session: Session, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Heads (batch, heads, tokens, width) with pairs of values rotated that are half a width apart."""
    half = x.shape[-1] // 2
    plain = mul(session, x, cosines)
    first, second = sliced(session, x, 0, half), sliced(session, x, half, 2 * half)
    exchanged = cat(session, (neg(session, second), first))
    return add(session, plain, mul(session, exchanged, sines))


def _halves_rotated(session: Session, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """The same values as `rotated`, from each half of a head with angles of half a width (GPT-OSS)."""
    half = x.shape[-1] // 2
    first, second = split(session, x, (half, half))
    upper = sub(session, mul(session, first, cosines), mul(session, second, sines))
    lower = add(session, mul(session, second, cosines), mul(session, first, sines))
    return cat(session, (upper, lower))


def _neighbours_rotated(session: Session, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Heads (batch, heads, tokens, width) with pairs of neighbouring values rotated."""
    plain = mul(session, x, cosines)
    first, second = alternating(session, x)
    exchanged = interleaved(session, neg(session, second), first)
    return add(session, plain, mul(session, exchanged, sines))


def partly_rotated(
    build: Build, pair: tuple[Tensor, Tensor], cosines: Tensor, sines: Tensor, *, together: bool
) -> tuple[Tensor, Tensor]:
    """Queries and keys with the first part of each head rotated, joined with the rest, which may be empty.

    together: whether both are rotated before either is joined.
    """
    session, rotary = build.session, build.decoder.rotary_width
    rotate = _neighbours_rotated if build.decoder.rotation == Rotation.NEIGHBOURS else rotated
    parts = [(sliced(session, x, 0, rotary), sliced(session, x, rotary, x.shape[-1])) for x in pair]
    if together:
        results = [rotate(session, first, cosines, sines) for first, _ in parts]
        query, key = (cat(session, (first, rest)) for first, (_, rest) in zip(results, parts, strict=True))
    else:
        query, key = (cat(session, (rotate(session, first, cosines, sines), rest)) for first, rest in parts)
    return query, key
