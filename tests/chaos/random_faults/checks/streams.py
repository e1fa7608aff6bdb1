"""I12: a watched stream, over all its resumptions, has each event and each entry once and in order,
and the text of each answer exactly.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spawnmesh_session.domain.sessions import TERMINAL_EVENT_KINDS

from tests.chaos.random_faults.facts import Facts
from tests.chaos.random_faults.history import Call


def check(facts: Facts) -> list[str]:
    """Compare what each watcher got with the beginning of what is stored; the events with all of
    them, if the stream ended by itself.
    """
    stored, found = _stored(facts), []
    for call in facts.of("watch"):
        found += [f"a watcher of {fault}" for fault in call.got.get("faults", [])]
        has_ended = bool(call.got.get("has_ended"))
        for session_id, numbers, seqs in _streams(call, stored):
            whole = stored.numbers[session_id]
            expected = whole if has_ended else whole[: len(numbers)]
            if numbers != expected:
                found.append(f"a watcher of {session_id} saw {numbers}; stored is {expected}")
            found += _gaps(session_id, seqs, stored)
        if has_ended:
            found += _left_out(call, stored)
    return found


def check_again(facts: Facts) -> list[str]:
    """Check that each watch from the beginning, at rest, gave everything, and then ended."""
    stored, found = _stored(facts), []
    for call in facts.of("watch again"):
        session_id = call.given["session_id"]
        found += [f"a new watch of {fault}" for fault in call.got.get("faults", [])]
        if not call.got.get("has_ended"):
            found.append(f"a new watch of {session_id} did not end: {call.status} {call.reason}")
        for member, numbers, seqs in _streams(call, stored):
            if numbers != stored.numbers[member]:
                found.append(f"a new watch of {member} gave {numbers}; stored is {stored.numbers[member]}")
            if len(seqs) != stored.entry_counts[member]:
                found.append(
                    f"a new watch of {member} gave {len(seqs)} of {stored.entry_counts[member]} entries"
                )
            found += _gaps(member, seqs, stored)
        found += _left_out(call, stored)
    return found


@dataclass(frozen=True, slots=True)
class _Stored:
    """The numbers of the events of each session up to its terminal event, at which a stream ends,
    the number of its entries, and the children whose spawns these events say.
    """

    numbers: Mapping[str, list[int]]
    entry_counts: Mapping[str, int]
    children: Mapping[str, list[str]]
    session_ids: set[str]


def _stored(facts: Facts) -> _Stored:
    numbers: dict[str, list[int]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    children: dict[str, list[str]] = defaultdict(list)
    ended: set[str] = set()
    for row in facts.rows("events"):
        session_id = row["session_id"]
        if session_id not in ended:
            numbers[session_id].append(row["number"])
            if row["kind"] == "CHILD_SPAWNED":
                children[session_id].append(row["child_session_id"])
        if row["kind"] in TERMINAL_EVENT_KINDS:
            ended.add(session_id)
    for row in facts.rows("entries"):
        counts[row["session_id"]] += 1
    return _Stored(numbers, counts, children, {row["session_id"] for row in facts.rows("sessions")})


def _streams(call: Call, stored: _Stored) -> Iterator[tuple[str, list[int], list[int]]]:
    """Yield the events and the entries of each session that was not deleted since."""
    streams: dict[str, Any] = call.got.get("streams", {})
    for session_id in {call.given["session_id"], *streams} & stored.session_ids:
        stream = streams.get(session_id, {"numbers": [], "seqs": []})
        yield session_id, stream["numbers"], stream["seqs"]


def _gaps(session_id: str, seqs: list[int], stored: _Stored) -> list[str]:
    if seqs == list(range(1, len(seqs) + 1)) and len(seqs) <= stored.entry_counts[session_id]:
        return []
    return [f"a watcher of {session_id} got the entries {seqs}; {stored.entry_counts[session_id]} are stored"]


def _left_out(call: Call, stored: _Stored) -> list[str]:
    """Name the children that an ended stream did not follow."""
    streams: dict[str, Any] = call.got.get("streams", {})
    return [
        f"a watcher of {call.given['session_id']} got nothing of {child}"
        for session_id in streams
        for child in stored.children[session_id]
        if child in stored.session_ids and child not in streams
    ]
