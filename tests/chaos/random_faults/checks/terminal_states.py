"""I1: each run has exactly one terminal state, which never changes."""

from collections import Counter

from tests.chaos.random_faults.facts import Facts

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "TIMED_OUT", "KILLED", "INTERRUPTED"})


def check(facts: Facts) -> list[str]:
    """Compare the rows with their events, and with what callers saw."""
    found = []
    events = Counter(
        (row["tenant_id"], row["run_id"])
        for row in facts.rows("events")
        if row["kind"] == "RUN" and row["run_state"] in TERMINAL
    )
    stored = {}
    for run in facts.rows("runs"):
        key = (run["tenant_id"], run["run_id"])
        stored[run["run_id"]] = run
        if run["state"] not in TERMINAL:
            found.append(f"{run['run_id']} is {run['state']}")
        elif events[key] != 1:
            found.append(f"{run['run_id']} has {events[key]} terminal events")
    for call in facts.calls:
        seen, run = call.got.get("run_state", ""), stored.get(call.got.get("run_id", ""))
        if run is not None and call.got.get("is_interrupted") and run["state"] == "SUCCEEDED":
            found.append(f"{run['run_id']} was interrupted at {call.end:.1f} s, and is SUCCEEDED")
        if seen in TERMINAL and run is not None:
            if seen != run["state"]:
                found.append(f"{run['run_id']} was {seen} at {call.end:.1f} s, and is {run['state']}")
            elif call.got["result_text"] != run["result_text"][:200]:
                found.append(f"the result of {run['run_id']} changed after {call.end:.1f} s")
    return found
