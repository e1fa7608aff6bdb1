"""I7: no tenant sees or gets what is another's."""

from tests.chaos.random_faults.facts import Facts

_OWNED = ("sessions", "runs", "messages", "transcripts", "sets", "entries")


def check(facts: Facts) -> list[str]:
    """Check the answers to pryers, the rows of each session, and the buckets."""
    found = []
    for call in facts.of("pry"):
        if call.is_ok or "unexpected" in call.got:
            answer = "an answer" if call.is_ok else call.reason
            found.append(f"{call.tenant} got {answer} for {call.given['session_id']} of another tenant")
    owners: dict[str, str] = {}
    for table in _OWNED:
        for row in facts.rows(table):
            if not row["session_id"]:
                continue  # The tombstone of a set that was released before it was staged.
            owner = owners.setdefault(row["session_id"], row["tenant_id"])
            if owner != row["tenant_id"]:
                found.append(f"{table} has rows of {row['session_id']} for {owner} and {row['tenant_id']}")
    for call in facts.of("spawn"):
        session_id = call.got.get("session_id", "")
        owner = owners.get(session_id, call.tenant)
        if owner != call.tenant:
            found.append(f"{call.tenant} spawned {session_id}, which is of {owner}")
    return found
