"""I8: a tool call that may have had its effect is not run again."""

from collections import Counter

from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Check that each tool call has one result at most, and each spawning call one child at most.

    The agents of the load spawn one child for each call of `sessions_spawn`.
    """
    found = []
    calls: Counter[str] = Counter()
    results: Counter[tuple[str, str]] = Counter()
    for row in facts.rows("entries"):
        if not row["is_synthetic"]:
            calls[row["session_id"]] += len(row["calls"])
            if row["answers"]:
                results[(row["session_id"], row["answers"])] += 1
    found += [
        f"call {call} of {session_id} has {count} results"
        for (session_id, call), count in results.items()
        if count > 1
    ]
    # A spawn that an outage undid is begun again by a repeat of the same call.
    children = Counter(
        row["parent_session_id"]
        for row in facts.rows("sessions")
        if row["parent_session_id"] and row["state"] != "SPAWN_FAILED"
    )
    found += [
        f"{session_id} has {count} children and {calls[session_id]} tool calls"
        for session_id, count in children.items()
        if count > calls[session_id]
    ]
    return found
