"""Settings of the caching allocator, as PyTorch reads them from `PYTORCH_CUDA_ALLOC_CONF`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from simgpu.errors import InputError, Problem, did_you_mean

MIB = 2**20

#: The versions of PyTorch that the allocator follows: its rules by the source of 2.6, which recordings of 2.6 and 2.11
#: confirm at every address, its settings by 2.13.
PYTORCH_VERSIONS = "2.6 to 2.13"

#: Sizes are multiples of this many bytes.
MIN_BLOCK = 512
#: Requests of at most this many bytes are served from small segments.
SMALL_REQUEST = MIB
SMALL_SEGMENT = 2 * MIB
#: Requests from this size on get a segment of their own size, rounded up to a multiple of `ROUND_LARGE`.
MIN_LARGE_REQUEST = 10 * MIB
ROUND_LARGE = 2 * MIB
LARGE_SEGMENT = 20 * MIB
#: Intervals of sizes with divisions of their own: 1 MiB to 2 MiB, 2 MiB to 4 MiB, up to 32 GiB and more.
INTERVALS = 16


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings of the caching allocator. Sizes are in bytes.

    max_split_size: larger blocks are not split; None for no limit. roundup_power2_divisions: for each of 16 intervals
    of sizes, into how many parts the range between two powers of two is divided, to whose ends sizes are rounded up; 0
    or 1 for multiples of 512 bytes. garbage_collection_threshold: the fraction of the allowed memory above which unused
    segments are freed before a new one is allocated; 0 for never. expandable_segments: whether segments grow.
    max_non_split_rounding: by how much a block of more than `max_split_size` may exceed its request.
    large_segment: the size of segments for requests of 1 to 10 MiB, and of steps in which an expandable segment grows.
    memory_fraction: the fraction of the device's memory that may be used; None for no limit, which also turns garbage
    collection off.

    >>> AllocatorSettings().rounded(1000), AllocatorSettings().segment_size(3 * 2**20)
    (1024, 20971520)
    >>> AllocatorSettings(roundup_power2_divisions=(4,) * 16).rounded(5 * 2**20 + 1)
    6291456
    """

    max_split_size: int | None = None
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    max_non_split_rounding: int = LARGE_SEGMENT
    large_segment: int = LARGE_SEGMENT
    memory_fraction: float | None = None

    @classmethod
    def of_snapshot(cls, recorded: Mapping[str, object] | None) -> AllocatorSettings:
        """The settings that a memory snapshot records; the defaults where it records none.

        >>> AllocatorSettings.of_snapshot({"expandable_segments": True, "max_split_size": -1}).expandable_segments
        True
        """
        recorded = recorded or {}
        given = parse(str(recorded.get("PYTORCH_CUDA_ALLOC_CONF") or ""))
        most = recorded.get("max_split_size", -1)
        threshold = recorded.get("garbage_collection_threshold", 0.0)
        return replace(
            given,
            max_split_size=most if isinstance(most, int) and most > 0 else None,
            garbage_collection_threshold=float(threshold) if isinstance(threshold, int | float) else 0.0,
            expandable_segments=recorded.get("expandable_segments") is True,
            roundup_power2_divisions=_recorded_divisions(recorded.get("roundup_power2_divisions")),
        )

    def text(self) -> str:
        """The settings that differ from the defaults, as PyTorch reads them.

        >>> AllocatorSettings(max_split_size=128 * 2**20, expandable_segments=True).text()
        'max_split_size_mb:128,expandable_segments:True'
        """
        default = AllocatorSettings()
        options = [
            f"{name}:{getattr(self, field) // MIB}"
            for name, field in _SIZES.items()
            if getattr(self, field) != getattr(default, field)
        ]
        if self.expandable_segments:
            options.append("expandable_segments:True")
        if self.garbage_collection_threshold:
            options.append(f"garbage_collection_threshold:{self.garbage_collection_threshold}")
        if self.memory_fraction is not None:
            options.append(f"per_process_memory_fraction:{self.memory_fraction}")
        if self.roundup_power2_divisions != default.roundup_power2_divisions:
            pairs = [f"{1 << at}:{parts}" for at, parts in enumerate(self.roundup_power2_divisions)]
            options.append(f"roundup_power2_divisions:[{','.join(pairs)}]")
        return ",".join(options)

    @property
    def only_rounds(self) -> bool:
        """Whether all settings are the defaults but for how sizes are rounded."""
        return replace(self, roundup_power2_divisions=(0,) * INTERVALS) == AllocatorSettings()

    @property
    def split_limit(self) -> int:
        """The size from which on blocks are not split."""
        return 2**63 if self.max_split_size is None else self.max_split_size

    def rounded(self, size: int) -> int:
        """The size of the block for a request."""
        if size < MIN_BLOCK:
            return MIN_BLOCK
        interval = min(max(size.bit_length() - 21, 0), INTERVALS - 1)
        divisions = self.roundup_power2_divisions[interval]
        if divisions > 1 and size > MIN_BLOCK * divisions:
            return _to_division(size, divisions)
        return -(-size // MIN_BLOCK) * MIN_BLOCK

    def segment_size(self, size: int) -> int:
        """The size of a new segment for a rounded request, if segments do not grow."""
        if size <= SMALL_REQUEST:
            return SMALL_SEGMENT
        if size < MIN_LARGE_REQUEST:
            return self.large_segment
        return -(-size // ROUND_LARGE) * ROUND_LARGE


def _to_division(size: int, divisions: int) -> int:
    """Round up to the next of `divisions` equal steps between two powers of two."""
    floor = 1 << (size.bit_length() - 1)
    step = floor >> (divisions.bit_length() - 1)
    return -(-size // step) * step if step else 2 * floor


#: Settings that change nothing about where blocks are.
_WITHOUT_EFFECT = (
    *("backend", "graph_capture_record_stream_reuse", "pinned_free_catch_all", "pinned_max_cached_size_mb"),
    *("pinned_max_round_threshold_mb", "pinned_num_register_threads", "pinned_reserve_segment_size_mb"),
    *("pinned_use_background_threads", "pinned_use_cuda_host_register", "release_lock_on_cudamalloc"),
    "throw_on_cudamalloc_oom",
)
_SIZES = {
    "max_split_size_mb": "max_split_size",
    "max_non_split_rounding_mb": "max_non_split_rounding",
    "large_segment_size_mb": "large_segment",
}
_KNOWN = (
    *_SIZES,
    *("expandable_segments", "garbage_collection_threshold", "per_process_memory_fraction", "roundup_power2_divisions"),
    *_WITHOUT_EFFECT,
)


def parse(text: str, place: str = "PYTORCH_CUDA_ALLOC_CONF") -> AllocatorSettings:
    """Settings as PyTorch writes them: ``option:value,option:value``.

    place: for messages. Raises `InputError` with every wrong option or value.

    >>> parse("expandable_segments:True,max_split_size_mb:128").max_split_size
    134217728
    >>> parse("roundup_power2_divisions:[64:8,128:2,>:1]").roundup_power2_divisions[5:10]
    (8, 8, 2, 1, 1)
    >>> parse("expandable_segment:True")
    Traceback (most recent call last):
    simgpu.errors.InputError: PYTORCH_CUDA_ALLOC_CONF: expandable_segment: is no setting ...'expandable_segments'?...
    """
    changes: dict[str, Any] = {}
    problems: list[Problem] = []
    for option in _options(text):
        name, _, value = (part.strip() for part in option.partition(":"))
        try:
            changes |= _change(name, value)
        except ValueError as error:
            problems.append(Problem(place, name, str(error), ""))
        except KeyError:
            problems.append(Problem(place, name, "is no setting of the allocator", did_you_mean(name, _KNOWN)))
    if problems:
        raise InputError(problems)
    settings = AllocatorSettings(**changes)
    if settings.large_segment > settings.split_limit:
        what = "is smaller than large_segment_size_mb: new segments could not be split"
        raise InputError.single(place, "max_split_size_mb", what, "make it at least as large")
    return settings


def _options(text: str) -> list[str]:
    """The options of a text, split at commas outside brackets."""
    options, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and not depth:
            options.append("")
        else:
            options[-1] += char
    return [option for option in options if option.strip()]


def _change(name: str, value: str) -> dict[str, Any]:
    if name in _SIZES:
        size = _number(value)
        if size < LARGE_SEGMENT // MIB:
            raise ValueError(f"{value} is too small: at least {LARGE_SEGMENT // MIB} (MiB)")
        return {_SIZES[name]: size * MIB}
    if name == "expandable_segments":
        if value not in ("True", "False"):
            raise ValueError(f"{value!r} is neither True nor False")
        return {name: value == "True"}
    if name in ("garbage_collection_threshold", "per_process_memory_fraction"):
        return {{"per_process_memory_fraction": "memory_fraction"}.get(name, name): _fraction(name, value)}
    if name == "roundup_power2_divisions":
        return {name: _divisions(value)}
    if name == "backend" and value != "native":
        raise ValueError(f"{value!r} is another allocator, which is not modelled; leave it out for the native one")
    if name not in _WITHOUT_EFFECT:
        raise KeyError(name)
    return {}


def _number(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise ValueError(f"{value!r} is not a whole number of less than ten digits")
    return int(value)


def _fraction(name: str, value: str) -> float:
    try:
        fraction = float(value)
    except ValueError:
        raise ValueError(f"{value!r} is not a number") from None
    if not (0 < fraction < 1 or (name == "per_process_memory_fraction" and fraction == 1)):
        raise ValueError(f"{value} is not between 0 and 1")
    return fraction


def _divisions(value: str) -> tuple[int, ...]:
    """Divisions of all intervals from one number, or from ``[size:divisions,...,>:divisions]`` with sizes in MiB."""
    if not value.startswith("["):
        return (_power_of_two(value),) * INTERVALS
    result = [0] * INTERVALS
    last: int | None = None
    for pair in value.strip("[]").split(","):
        size, _, divisions = (part.strip() for part in pair.partition(":"))
        parts = 0 if divisions == "0" else _power_of_two(divisions)
        if size == ">":
            first = 0 if last is None else last + 1
            result[first:] = [parts] * (INTERVALS - first)
            continue
        interval = min(_power_of_two(size).bit_length() - 1, INTERVALS - 1)
        if last is None:
            result[:interval] = [parts] * interval
        result[interval] = parts
        last = interval
    return tuple(result)


def _power_of_two(value: str) -> int:
    number = _number(value)
    if number < 1 or number & (number - 1):
        raise ValueError(f"{value} is not a power of two")
    return number


def _recorded_divisions(recorded: object) -> tuple[int, ...]:
    """Divisions as a snapshot lists them: by the size in MiB where each interval begins."""
    result = [0] * INTERVALS
    for interval in range(INTERVALS if isinstance(recorded, Mapping) else 0):
        assert isinstance(recorded, Mapping)
        divisions = recorded.get(str(1 << interval), 0)
        result[interval] = divisions if isinstance(divisions, int) else 0
    return tuple(result)
