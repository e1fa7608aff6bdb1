"""I12: a watched stream, over all its resumptions, has each event once and in order."""

from collections import defaultdict

from spawnmesh_session.domain.sessions import TERMINAL_EVENT_KINDS

from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Compare the events of each watcher with the beginning of the stored ones; with all of them,
    if the stream ended by itself.
    """
    stored = _streams(facts)
    found = []
    for call in facts.of("watch"):
        session_id, seen = call.given["session_id"], call.got.get("numbers", [])
        whole = stored[session_id]
        expected = whole if call.got.get("has_ended") else whole[: len(seen)]
        if seen != expected:
            found.append(f"a watcher of {session_id} saw {seen}; stored is {expected}")
    return found


def check_again(facts: Facts) -> list[str]:
    """Check that each watch from the beginning, at rest, gave every event, and then ended."""
    stored = _streams(facts)
    found = []
    for call in facts.of("watch again"):
        session_id, seen = call.given["session_id"], call.got.get("numbers", [])
        if not call.got.get("has_ended") or seen != stored[session_id]:
            end = "ended" if call.got.get("has_ended") else f"did not end: {call.status} {call.reason}"
            found.append(
                f"a new watch of {session_id} gave {seen}, and {end}; stored is {stored[session_id]}"
            )
    return found


def _streams(facts: Facts) -> dict[str, list[int]]:
    """Return the numbers of the events of each session up to its terminal event, at which a stream ends."""
    stored: dict[str, list[int]] = defaultdict(list)
    ended: set[str] = set()
    for row in facts.rows("events"):
        if row["session_id"] not in ended:
            stored[row["session_id"]].append(row["number"])
        if row["kind"] in TERMINAL_EVENT_KINDS:
            ended.add(row["session_id"])
    return stored
