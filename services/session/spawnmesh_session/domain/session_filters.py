"""The filter of a list of sessions: what its fields mean, and what each may be compared with."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from spawnmesh_core.ids import IdKind, is_id
from spawnmesh_core.reasons import Reason

from spawnmesh_session.domain.filters import Comparison, Operator, filter_error
from spawnmesh_session.domain.runs import RunState
from spawnmesh_session.domain.sessions import LIVE_SESSION_STATES, SessionState

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)")
_METADATA_KEY = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
_TICK = timedelta(microseconds=1)
_EQUALITY = (Operator.EQUAL, Operator.NOT_EQUAL)
_State = TypeVar("_State", bound=StrEnum)
_ORDER = (Operator.EQUAL, Operator.LESS, Operator.LESS_OR_EQUAL, Operator.GREATER, Operator.GREATER_OR_EQUAL)


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Texts that equal `equal`, unless it is None, and none of `others`. No text is `""`."""

    equal: str | None = None
    others: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Return whether no text matches."""
        return self.equal in self.others

    @property
    def is_open(self) -> bool:
        """Return whether every text matches."""
        return self.equal is None and not self.others


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The times from `begin` on and before `end`; None is no bound."""

    begin: datetime | None = None
    end: datetime | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether no time is in the range."""
        return self.begin is not None and self.end is not None and self.begin >= self.end

    def intersect(self, other: "TimeRange") -> "TimeRange":
        """Return the times that both have."""
        begins = [time for time in (self.begin, other.begin) if time is not None]
        ends = [time for time in (self.end, other.end) if time is not None]
        return TimeRange(max(begins, default=None), min(ends, default=None))


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """The sessions to list. A set of states that is None has all of them.

    They have all pairs of `metadata`, a text for each of `metadata_keys`, and no pair of
    `other_metadata`. With `is_ended`, those that have an end time.
    """

    states: frozenset[SessionState] | None = None
    run_states: frozenset[RunState] | None = None
    agent_id: TextMatch = TextMatch()
    label: TextMatch = TextMatch()
    parent_session_id: TextMatch = TextMatch()
    failure_reason: TextMatch = TextMatch()
    metadata: frozenset[tuple[str, str]] = frozenset()
    metadata_keys: frozenset[str] = frozenset()
    other_metadata: frozenset[tuple[str, str]] = frozenset()
    create_time: TimeRange = TimeRange()
    end_time: TimeRange = TimeRange()
    is_ended: bool = False

    @property
    def is_empty(self) -> bool:
        """Return whether no session can match: the comparisons contradict each other."""
        texts = (self.agent_id, self.label, self.parent_session_id, self.failure_reason)
        return (
            any(states is not None and not states for states in (self.states, self.run_states))
            or any(text.is_empty for text in texts)
            or len(dict(self.metadata)) < len(self.metadata)
            or not self.metadata.isdisjoint(self.other_metadata)
            or self.create_time.is_empty
            or self.end_time.is_empty
        )

    @property
    def is_live(self) -> bool:
        """Return whether all of these sessions are live."""
        return self.states is not None and self.states <= LIVE_SESSION_STATES


def filter_of(comparisons: Iterable[Comparison]) -> SessionFilter:
    """Return the sessions that fulfil all comparisons.

    Raise INVALID_REQUEST for the field `filter` if one compares an unknown field, or a field in a
    way or with a value that it does not have.
    """
    found = SessionFilter()
    for comparison in comparisons:
        add = _FIELDS.get(comparison.field)
        if add is None:
            raise filter_error(
                comparison.position,
                f"there is no field {comparison.field}; the fields are {', '.join(_FIELDS)}",
            )
        found = add(found, comparison)
    return found


def _add_state(found: SessionFilter, comparison: Comparison) -> SessionFilter:
    states = _states(comparison, SessionState, "SESSION_STATE_")
    return replace(found, states=states if found.states is None else found.states & states)


def _add_run_state(found: SessionFilter, comparison: Comparison) -> SessionFilter:
    states = _states(comparison, RunState, "RUN_STATE_")
    return replace(found, run_states=states if found.run_states is None else found.run_states & states)


def _add_agent_id(found: SessionFilter, comparison: Comparison) -> SessionFilter:
    return replace(found, agent_id=_text(found.agent_id, comparison))


def _add_label(found: SessionFilter, comparison: Comparison) -> SessionFilter:
    return replace(found, label=_text(found.label, comparison))


def _add_parent(found: SessionFilter, comparison: Comparison) -> SessionFilter:
    value = comparison.value
    if value and not comparison.is_presence and not is_id(IdKind.SESSION, value):
        raise filter_error(comparison.position, f"{comparison.name} is compared with the id of a session")
    return replace(found, parent_session_id=_text(found.parent_session_id, comparison))


def _add_failure_reason(found: SessionFilter, comparison: Comparison) -> SessionFilter:
    value = comparison.value.removeprefix("REASON_")
    if value and not comparison.is_presence and value not in _FAILURE_REASONS:
        raise filter_error(
            comparison.position,
            f"{comparison.name} is compared with a reason of the mesh, as RUN_TIMEOUT; {value!r} is none",
        )
    comparison = replace(comparison, value=value)
    return replace(found, failure_reason=_text(found.failure_reason, comparison))


def _add_metadata(found: SessionFilter, comparison: Comparison) -> SessionFilter:
    if not _METADATA_KEY.fullmatch(comparison.key):
        raise filter_error(
            comparison.position, "metadata is compared by a key, such as metadata.ticket, of a-z 0-9 _ . -"
        )
    found = replace(found, metadata_keys=found.metadata_keys | {comparison.key})
    pair = (comparison.key, comparison.value)
    if _is_presence(comparison, _EQUALITY):
        return found
    if comparison.operator is Operator.NOT_EQUAL:
        return replace(found, other_metadata=found.other_metadata | {pair})
    return replace(found, metadata=found.metadata | {pair})


def _add_create_time(found: SessionFilter, comparison: Comparison) -> SessionFilter:
    times = found.create_time if comparison.is_presence else found.create_time.intersect(_times(comparison))
    return replace(found, create_time=times)


def _add_end_time(found: SessionFilter, comparison: Comparison) -> SessionFilter:
    times = found.end_time if comparison.is_presence else found.end_time.intersect(_times(comparison))
    return replace(found, end_time=times, is_ended=True)


_FIELDS: dict[str, Callable[[SessionFilter, Comparison], SessionFilter]] = {
    "state": _add_state,
    "run_state": _add_run_state,
    "agent_id": _add_agent_id,
    "label": _add_label,
    "parent_session_id": _add_parent,
    "failure_reason": _add_failure_reason,
    "metadata": _add_metadata,
    "create_time": _add_create_time,
    "end_time": _add_end_time,
}
_FAILURE_REASONS = frozenset(Reason) - {Reason.UNKNOWN}


def _states(comparison: Comparison, kind: type[_State], prefix: str) -> frozenset[_State]:
    """Return the states that fulfil the comparison. A value may have the prefix of the contract."""
    if _is_presence(comparison, _EQUALITY):
        return frozenset(kind)
    by_name = {state.value: state for state in kind}
    state = by_name.get(comparison.value.removeprefix(prefix))
    if state is None:
        allowed = ", ".join(by_name)
        raise filter_error(
            comparison.position,
            f"{comparison.name} is compared with one of {allowed}; not {comparison.value!r}",
        )
    return frozenset({state}) if comparison.operator is Operator.EQUAL else frozenset(kind) - {state}


def _text(text: TextMatch, comparison: Comparison) -> TextMatch:
    """Return the texts that match `text` and fulfil the comparison."""
    value = comparison.value
    if _is_presence(comparison, _EQUALITY):
        return replace(text, others=text.others | {""})
    if comparison.operator is Operator.NOT_EQUAL:
        return replace(text, others=text.others | {value})
    if text.equal not in (None, value):
        return TextMatch(value, text.others | {value})
    return replace(text, equal=value)


def _times(comparison: Comparison) -> TimeRange:
    if _is_presence(comparison, _ORDER):
        return TimeRange()
    time = _time_of(comparison)
    try:
        match comparison.operator:
            case Operator.LESS:
                return TimeRange(end=time)
            case Operator.LESS_OR_EQUAL:
                return TimeRange(end=time + _TICK)
            case Operator.GREATER:
                return TimeRange(begin=time + _TICK)
            case Operator.GREATER_OR_EQUAL:
                return TimeRange(begin=time)
        return TimeRange(time, time + _TICK)
    except OverflowError:
        raise _no_time(comparison) from None


def _time_of(comparison: Comparison) -> datetime:
    if not _TIME.fullmatch(comparison.value):
        raise _no_time(comparison)
    try:
        return datetime.fromisoformat(comparison.value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise _no_time(comparison) from None


def _no_time(comparison: Comparison) -> Exception:
    return filter_error(
        comparison.position,
        f"{comparison.name} is compared with a time as in RFC 3339, such as 2026-01-31T12:00:00Z, with at"
        " most six digits after the seconds",
    )


def _is_presence(comparison: Comparison, operators: Iterable[Operator]) -> bool:
    """Return whether the comparison asks if the field is set. Raise for an operator it has not."""
    if comparison.key and comparison.field != "metadata":
        raise filter_error(comparison.position, f"{comparison.field} has no keys; leave out the dot")
    if comparison.is_presence:
        return True
    if comparison.operator not in operators:
        allowed = f"{', '.join(operators)} and :*"
        raise filter_error(comparison.position, f"{comparison.name} is compared by {allowed}")
    return False
