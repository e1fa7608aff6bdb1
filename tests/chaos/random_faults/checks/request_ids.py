"""I6: one request_id gives one session."""

from collections import Counter, defaultdict

from tests.chaos.random_faults.facts import Facts


def check(facts: Facts) -> list[str]:
    """Compare the answers to repeats with each other and with the rows."""
    found = []
    answered: dict[str, set[str]] = defaultdict(set)
    for call in facts.of("spawn"):
        if call.is_ok:
            answered[call.given["request_id"]].add(call.got["session_id"])
    rows: dict[str, set[str]] = defaultdict(set)
    for row in facts.rows("sessions"):
        if row["request_id"]:
            rows[row["request_id"]].add(row["session_id"])
    for request_id, sessions in answered.items():
        if len(sessions) > 1:
            found.append(f"request {request_id} was answered with {sorted(sessions)}")
        if rows[request_id] != sessions:
            found.append(
                f"request {request_id} gave {sorted(sessions)}; stored is {sorted(rows[request_id])}"
            )
    runs_of_spawn = Counter(row["session_id"] for row in facts.rows("runs"))
    sent = {call.given["session_id"] for call in facts.of("send")}
    for row in facts.rows("sessions"):
        expected = 0 if row["state"] == "SPAWN_FAILED" else 1
        if row["session_id"] not in sent and runs_of_spawn[row["session_id"]] != expected:
            found.append(f"{row['session_id']} has {runs_of_spawn[row['session_id']]} runs")
    return found
