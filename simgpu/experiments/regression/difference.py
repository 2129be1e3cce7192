"""Compares stored with current timings, and decides which differences count: `compare_timings`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from simgpu.experiments.regression.divergence import EventDifference, first_difference
from simgpu.experiments.regression.timings import Number, PolicyTimings, Timings, unit_of
from simgpu.experiments.regression.tolerances import Tolerance, tolerance_for
from simgpu.timeline.model import Span


class FactChange(NamedTuple):
    """A fact that differs: its key, stored and current value; `ABSENT` if there is none."""

    key: str
    stored: Any
    now: Any


class _Absent:
    def __repr__(self) -> str:
        return "absent"


ABSENT = _Absent()
#: Facts to report if the outcomes of a run differ.
_WHY_IT_FAILED = ("waiting", "requested", "free", "at_ns", "why")


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """A metric or count that differs. tolerance: the tolerance for its key; None if there is none."""

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
        """Current minus stored value; None if one of them is not known."""
        return None if self.stored is None or self.now is None else self.now - self.stored

    @property
    def share(self) -> float | None:
        """The difference as a share of the stored value; None if that is 0 or not known."""
        return self.by / self.stored if self.by is not None and self.stored else None


@dataclass(frozen=True, slots=True)
class PolicyDifference:
    """The differences of one policy.

    facts: settings, outcome, steadiness, and why the policy failed
    values: metrics and counts
    not_stored: keys of metrics that an older simgpu did not store; they do not count
    events: the first event that differs
    by_metrics: whether there are tolerances; then a different timeline is reported, but only metrics count
    """

    label: str
    facts: tuple[FactChange, ...]
    values: tuple[ValueDifference, ...]
    not_stored: tuple[str, ...]
    events: EventDifference | None
    by_metrics: bool

    @property
    def counts(self) -> bool:
        """Whether any difference counts."""
        exceeded = any(not value.tolerated for value in self.values)
        return bool(self.facts) or exceeded or (self.events is not None and not self.by_metrics)

    @property
    def empty(self) -> bool:
        """Whether there is no difference at all."""
        return not (self.facts or self.values or self.not_stored or self.events)


@dataclass(frozen=True, slots=True)
class TimingDifference:
    """The differences between stored and current timings.

    overrides: differing overrides of the scenario
    only_stored, only_now: labels of policies that only one of them has
    policies: common policies that differ
    inputs: differing facts of trace and node; reported, but do not count
    reordered: whether the policies have another order; reported, but does not count
    """

    name: str
    overrides: tuple[FactChange, ...]
    only_stored: tuple[str, ...]
    only_now: tuple[str, ...]
    policies: tuple[PolicyDifference, ...]
    inputs: tuple[FactChange, ...]
    reordered: bool

    @property
    def counts(self) -> bool:
        """Whether any difference counts."""
        policies = any(policy.counts for policy in self.policies)
        return bool(self.overrides or self.only_stored or self.only_now) or policies

    @property
    def empty(self) -> bool:
        """Whether there is no difference at all, so that an update stores nothing."""
        return not (self.counts or self.policies or self.inputs or self.reordered)

    @property
    def changed(self) -> tuple[str, ...]:
        """The changes that an update would store, as short texts."""
        texts = [f"{label} is new" for label in self.only_now]
        texts += [f"{label} is removed" for label in self.only_stored]
        for policy in self.policies:
            keys = [*(fact.key for fact in policy.facts), *(value.key for value in policy.values), *policy.not_stored]
            texts.append(f"{policy.label}: {', '.join(keys) or 'timeline'}")
        texts += [f"override {change.key}" for change in self.overrides]
        texts += [change.key for change in self.inputs]
        return (*texts, *(["order of policies"] if self.reordered else []))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "overrides": [_change_dict(change) for change in self.overrides],
            "only_stored": list(self.only_stored),
            "only_now": list(self.only_now),
            "policies": [_policy_dict(policy) for policy in self.policies],
            "inputs": [_change_dict(change) for change in self.inputs],
            "reordered": self.reordered,
        }


def compare_timings(stored: Timings, now: Timings, tolerances: Sequence[Tolerance] = ()) -> TimingDifference:
    """Compare stored with current timings.

    Without tolerances everything must be equal: settings, outcome, every metric and count, and the timeline. A policy
    whose label changed with its parameters is compared with the stored policy of the same name, if only one is
    unmatched.

    >>> import simgpu
    >>> from simgpu.experiments.regression.timings import timings_of
    >>> def timings(bandwidth: str) -> Timings:
    ...     changes = {"policies": "vdnn", "node.link.d2h_bandwidth": bandwidth}
    ...     return timings_of(simgpu.load_scenario("quickstart", changes))
    >>> compare_timings(timings("1 GB/s"), timings("1 GB/s")).counts
    False
    >>> (policy,) = compare_timings(timings("1 GB/s"), timings("0.99 GB/s")).policies
    >>> first = policy.values[0]
    >>> first.key, first.by, policy.events.stored.label, policy.events.fields
    ('iteration_ns', 376016, 'copy_d2h', ('end_ns',))
    """
    pairs, only_stored, only_now = _paired(stored, now)
    compared = [_of_policy(one, other, tolerances) for one, other in pairs]
    shared = [label for label in now.labels if label in stored.labels]
    return TimingDifference(
        name=now.name,
        overrides=_changes(stored.overrides, now.overrides),
        only_stored=only_stored,
        only_now=only_now,
        policies=tuple(each for each in compared if not each.empty),
        inputs=_changes(_given(stored.inputs), _given(now.inputs)),
        reordered=shared != [label for label in stored.labels if label in now.labels],
    )


def _paired(
    stored: Timings, now: Timings
) -> tuple[list[tuple[PolicyTimings, PolicyTimings]], tuple[str, ...], tuple[str, ...]]:
    """Matching policies in the current order, and the labels without a match."""
    pairs = []
    removed = [label for label in stored.labels if label not in now.labels]
    new = [label for label in now.labels if label not in stored.labels]
    for policy in now.policies:
        label = policy.label
        if label in new:
            same_name = [other for other in removed if stored[other].policy == policy.policy]
            rivals = [other for other in new if now[other].policy == policy.policy]
            if len(same_name) != 1 or len(rivals) != 1:
                continue
            removed.remove(same_name[0])
            new.remove(label)
            label = same_name[0]
        pairs.append((stored[label], policy))
    return pairs, tuple(removed), tuple(new)


def _of_policy(stored: PolicyTimings, now: PolicyTimings, tolerances: Iterable[Tolerance]) -> PolicyDifference:
    tolerances = tuple(tolerances)
    both_ran = stored.outcome == now.outcome == "ran"
    return PolicyDifference(
        label=now.label,
        facts=_facts(stored, now),
        values=tuple(_values(stored.values, now.values, tolerances)) if both_ran else (),
        not_stored=tuple(key for key in now.values if key not in stored.values) if both_ran else (),
        events=first_difference(stored.events, now.events) if both_ran else None,
        by_metrics=any(tolerance.amount for tolerance in tolerances),
    )


def _facts(stored: PolicyTimings, now: PolicyTimings) -> tuple[FactChange, ...]:
    if stored.outcome != now.outcome:
        why = (change for change in _changes(stored.failure, now.failure) if change.key in _WHY_IT_FAILED)
        return (FactChange("outcome", stored.outcome, now.outcome), *why)
    settings = _changes(_flat(stored.settings), _flat(now.settings))
    steady = (FactChange("steady", stored.steady, now.steady),) if stored.steady != now.steady else ()
    return (*settings, *_changes(stored.failure, now.failure), *steady)


def _values(
    stored: Mapping[str, Number], now: Mapping[str, Number], tolerances: Sequence[Tolerance]
) -> Iterable[ValueDifference]:
    for key, value in stored.items():
        if key not in now or now[key] != value:
            yield ValueDifference(key, unit_of(key) or "", value, now.get(key), tolerance_for(key, tolerances))


def _changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[FactChange, ...]:
    keys = {**stored, **now}
    changes = (FactChange(key, stored.get(key, ABSENT), now.get(key, ABSENT)) for key in keys)
    return tuple(change for change in changes if change.stored != change.now)


def _given(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs without empty values: an unset fact added by a newer simgpu is not a difference."""
    return {key: value for key, value in inputs.items() if value not in (None, False, "", [], {})}


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters and the other settings as one mapping."""
    rest = {key: value for key, value in settings.items() if key != "parameters"}
    return {f"parameter {key}": value for key, value in settings.get("parameters", {}).items()} | rest


def _change_dict(change: FactChange) -> dict[str, Any]:
    known = {"stored": change.stored, "now": change.now}
    return {"key": change.key, **{name: value for name, value in known.items() if value is not ABSENT}}


def _policy_dict(policy: PolicyDifference) -> dict[str, Any]:
    return {
        "label": policy.label,
        "counts": policy.counts,
        "facts": [_change_dict(change) for change in policy.facts],
        "values": [_value_dict(value) for value in policy.values],
        "not_stored": list(policy.not_stored),
        "timeline_counts": not policy.by_metrics,
        "first_event": None if policy.events is None else _event_dict(policy.events),
    }


def _value_dict(value: ValueDifference) -> dict[str, Any]:
    tolerance = None if value.tolerance is None else {value.tolerance.pattern: value.tolerance.text}
    numbers = {"stored": value.stored, "now": value.now, "by": value.by, "share": value.share}
    return {"key": value.key, "unit": value.unit, **numbers, "tolerance": tolerance, "tolerated": value.tolerated}


def _event_dict(events: EventDifference) -> dict[str, Any]:
    def row(event: Span | None) -> dict[str, Any] | None:
        if event is None:
            return None
        return {name: value for name, value in event._asdict().items() if name != "resource"} | {"kind": event.label}

    row_dict = asdict(events) | {"stored": row(events.stored), "now": row(events.now)}
    return row_dict | {"differs": list(events.fields), "before": [row(event) for event in events.before]}
