"""I12: a watched stream, over all its resumptions, has each event once and in order."""

from collections import defaultdict

from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Compare what each watcher saw with the beginning of the stored events."""
    stored: dict[str, list[int]] = defaultdict(list)
    for row in facts.rows("events"):
        stored[row["session_id"]].append(row["cursor"])
    found = []
    for call in facts.of("watch"):
        session_id, seen = call.given["session_id"], call.got.get("cursors", [])
        expected = stored[session_id][: len(seen)]
        if seen != expected:
            found.append(f"a watcher of {session_id} saw {seen}; stored is {expected}")
    return found
