"""I2: the result of each child is delivered to its parent exactly once."""

from collections import Counter

from tests.chaos.random_faults.checks.terminal_states import TERMINAL
from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Look for one message in the parent's inbox for each run of a child, and for one entry at
    most in the parent's transcript.
    """
    found = []
    delivered = Counter(
        (row["session_id"], row["key"]) for row in facts.rows("messages") if row["child_session_id"]
    )
    parents = {row["session_id"]: row["parent_session_id"] for row in facts.rows("sessions")}
    for run in facts.rows("runs"):
        parent = parents.get(run["session_id"], "")
        if parent in parents and run["state"] in TERMINAL:
            count = delivered.pop((parent, f"announce:v1:{run['session_id']}:{run['run_id']}"), 0)
            if count != 1:
                found.append(f"the result of {run['run_id']} is {count} times in the inbox of {parent}")
    found += [f"{parent} got {key}, which is no result of a run" for parent, key in delivered]
    answers = Counter(
        (row["session_id"], row["idempotency_key"])
        for row in facts.rows("appends")
        if "announce:v1:" in row["idempotency_key"]
    )
    found += [f"{key} is {count} times in {parent}" for (parent, key), count in answers.items() if count > 1]
    return found
