"""What differs between timings that are kept and those of now, and whether it counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from simgpu.experiments.regression.divergence import EventDifference, first_difference
from simgpu.experiments.regression.timings import Number, PolicyTimings, Timings, units
from simgpu.experiments.regression.tolerances import Tolerance, tolerance_for
from simgpu.timeline.model import Span


class Change(NamedTuple):
    """A fact by its key, as it is kept and as it is now; `ABSENT` where there is none."""

    key: str
    stored: Any
    now: Any


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
#: What is told of a run that ended well then, and not now, or the other way round.
_WHY_IT_FAILED = ("waiting", "requested", "free", "at_ns", "why")


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A metric or count that differs. tolerance: the one that names it, if any."""

    key: str
    unit: str
    stored: Number
    now: Number
    tolerance: Tolerance | None

    @property
    def tolerated(self) -> bool:
        """Whether it is within its tolerance, and therefore does not count."""
        return self.tolerance is not None and self.tolerance.allows(self.stored, self.now)

    @property
    def by(self) -> Number:
        """By how much, now less kept; None where one of them is not known."""
        return None if self.stored is None or self.now is None else self.now - self.stored

    @property
    def share(self) -> float | None:
        """The same over the kept value; None where that is 0 or not known."""
        return self.by / self.stored if self.by is not None and self.stored else None


@dataclass(frozen=True, slots=True)
class PolicyDifference:
    """What differs of one policy.

    facts: settings, the outcome, steadiness, and of a policy that did not run why. values: metrics and counts. unkept:
    keys of metrics that are told now and were not when the timings were kept; they do not count. events: where the
    timelines part. by_metrics: whether tolerances are in force, so that a timeline that differs is told but does not
    count: what counts of it is what it does to the metrics.
    """

    label: str
    facts: tuple[Change, ...]
    values: tuple[ValueDifference, ...]
    unkept: tuple[str, ...]
    events: EventDifference | None
    by_metrics: bool

    @property
    def counts(self) -> bool:
        """Whether any of it is more than may be."""
        beyond = any(not value.tolerated for value in self.values)
        return bool(self.facts) or beyond or (self.events is not None and not self.by_metrics)

    @property
    def empty(self) -> bool:
        """Whether nothing differs at all."""
        return not (self.facts or self.values or self.unkept or self.events)


@dataclass(frozen=True, slots=True)
class TimingDifference:
    """What differs between kept timings and those of now.

    overrides: what was changed of the scenario. only_stored, only_now: labels of policies that are not in the other.
    policies: the others of which anything differs. Told, and not counted: inputs, facts of trace and node; reordered,
    whether the policies come in another order.
    """

    name: str
    overrides: tuple[Change, ...]
    only_stored: tuple[str, ...]
    only_now: tuple[str, ...]
    policies: tuple[PolicyDifference, ...]
    inputs: tuple[Change, ...]
    reordered: bool

    @property
    def counts(self) -> bool:
        """Whether any of it is more than may be."""
        policies = any(policy.counts for policy in self.policies)
        return bool(self.overrides or self.only_stored or self.only_now) or policies

    @property
    def empty(self) -> bool:
        """Whether nothing differs at all, so that there is nothing to store."""
        return not (self.counts or self.policies or self.inputs or self.reordered)

    @property
    def changed(self) -> tuple[str, ...]:
        """What would be stored anew, a few words each."""
        words = [f"{label} is new" for label in self.only_now] + [f"{label} is gone" for label in self.only_stored]
        for policy in self.policies:
            keys = [*(fact.key for fact in policy.facts), *(value.key for value in policy.values), *policy.unkept]
            words.append(f"{policy.label}: {', '.join(keys) or 'timeline'}")
        words += [f"override {change.key}" for change in self.overrides]
        words += [change.key for change in self.inputs]
        return (*words, *(["order of policies"] if self.reordered else []))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "overrides": [_told(change) for change in self.overrides],
            "only_stored": list(self.only_stored),
            "only_now": list(self.only_now),
            "policies": [_policy_told(policy) for policy in self.policies],
            "inputs": [_told(change) for change in self.inputs],
            "reordered": self.reordered,
        }


def compare_timings(stored: Timings, now: Timings, tolerances: Sequence[Tolerance] = ()) -> TimingDifference:
    """What differs between kept timings and those of now.

    Without tolerances everything must be equal: settings, outcome, every metric and count, and the timeline. A policy
    that has other parameters, and so another label, is compared with the only other one of its name that is left.

    >>> import simgpu
    >>> from simgpu.experiments.regression.timings import timings_of
    >>> def kept(bandwidth: str) -> Timings:
    ...     changes = {"policies": "vdnn", "node.link.d2h_bandwidth": bandwidth}
    ...     return timings_of(simgpu.load_scenario("quickstart", changes))
    >>> compare_timings(kept("1 GB/s"), kept("1 GB/s")).counts
    False
    >>> (found,) = compare_timings(kept("1 GB/s"), kept("0.99 GB/s")).policies
    >>> first = found.values[0]
    >>> first.key, first.by, found.events.stored.kind.label, found.events.fields
    ('iteration_ns', 376016, 'copy_out', ('end_ns',))
    """
    pairs, only_stored, only_now = _paired(stored, now)
    found = [_of_policy(one, other, tolerances) for one, other in pairs]
    shared = [label for label in now.labels if label in stored.labels]
    return TimingDifference(
        name=now.name,
        overrides=_changes(stored.overrides, now.overrides),
        only_stored=only_stored,
        only_now=only_now,
        policies=tuple(each for each in found if not each.empty),
        inputs=_changes(_given(stored.inputs), _given(now.inputs)),
        reordered=shared != [label for label in stored.labels if label in now.labels],
    )


def _paired(
    stored: Timings, now: Timings
) -> tuple[list[tuple[PolicyTimings, PolicyTimings]], tuple[str, ...], tuple[str, ...]]:
    """Policies that belong together in the order of now, and the labels that are left over."""
    pairs = []
    gone = [label for label in stored.labels if label not in now.labels]
    new = [label for label in now.labels if label not in stored.labels]
    for policy in now.policies:
        label = policy.label
        if label in new:
            same_name = [other for other in gone if stored[other].policy == policy.policy]
            rivals = [other for other in new if now[other].policy == policy.policy]
            if len(same_name) != 1 or len(rivals) != 1:
                continue
            gone.remove(same_name[0])
            new.remove(label)
            label = same_name[0]
        pairs.append((stored[label], policy))
    return pairs, tuple(gone), tuple(new)


def _of_policy(stored: PolicyTimings, now: PolicyTimings, tolerances: Iterable[Tolerance]) -> PolicyDifference:
    tolerances = tuple(tolerances)
    both_ran = stored.outcome == now.outcome == "ran"
    return PolicyDifference(
        label=now.label,
        facts=_facts(stored, now),
        values=tuple(_values(stored.values, now.values, tolerances)) if both_ran else (),
        unkept=tuple(key for key in now.values if key not in stored.values) if both_ran else (),
        events=first_difference(stored.events, now.events) if both_ran else None,
        by_metrics=any(tolerance.amount for tolerance in tolerances),
    )


def _facts(stored: PolicyTimings, now: PolicyTimings) -> tuple[Change, ...]:
    if stored.outcome != now.outcome:
        why = (change for change in _changes(stored.failure, now.failure) if change.key in _WHY_IT_FAILED)
        return (Change("outcome", stored.outcome, now.outcome), *why)
    settings = _changes(_flat(stored.settings), _flat(now.settings))
    steady = (Change("steady", stored.steady, now.steady),) if stored.steady != now.steady else ()
    return (*settings, *_changes(stored.failure, now.failure), *steady)


def _values(
    stored: Mapping[str, Number], now: Mapping[str, Number], tolerances: Sequence[Tolerance]
) -> Iterable[ValueDifference]:
    for key, value in stored.items():
        if key not in now or now[key] != value:
            yield ValueDifference(key, units().get(key, ""), value, now.get(key), tolerance_for(key, tolerances))


def _changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Change, ...]:
    keys = {**stored, **now}
    changes = (Change(key, stored.get(key, ABSENT), now.get(key, ABSENT)) for key in keys)
    return tuple(change for change in changes if change.stored != change.now)


def _given(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without what says nothing: a fact that a newer simgpu has and nobody gave is no change."""
    return {key: value for key, value in inputs.items() if value not in (None, False, "", [], {})}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters beside the other settings."""
    rest = {key: value for key, value in settings.items() if key != "parameters"}
    return {f"parameter {key}": value for key, value in settings.get("parameters", {}).items()} | rest


def _told(change: Change) -> dict[str, Any]:
    known = {"stored": change.stored, "now": change.now}
    return {"key": change.key, **{word: value for word, value in known.items() if value is not ABSENT}}


def _policy_told(policy: PolicyDifference) -> dict[str, Any]:
    return {
        "label": policy.label,
        "counts": policy.counts,
        "facts": [_told(change) for change in policy.facts],
        "values": [_value_told(value) for value in policy.values],
        "not_stored": list(policy.unkept),
        "timeline_counts": not policy.by_metrics,
        "first_event": None if policy.events is None else _event_told(policy.events),
    }


def _value_told(value: ValueDifference) -> dict[str, Any]:
    tolerance = None if value.tolerance is None else {value.tolerance.pattern: value.tolerance.text}
    numbers = {"stored": value.stored, "now": value.now, "by": value.by, "share": value.share}
    return {"key": value.key, "unit": value.unit, **numbers, "tolerance": tolerance, "tolerated": value.tolerated}


def _event_told(events: EventDifference) -> dict[str, Any]:
    def row(event: Span | None) -> dict[str, Any] | None:
        return None if event is None else event._asdict() | {"kind": event.kind.label}

    told = asdict(events) | {"stored": row(events.stored), "now": row(events.now)}
    return told | {"differs": list(events.fields), "before": [row(event) for event in events.before]}
