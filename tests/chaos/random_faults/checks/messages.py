"""Each accepted message is in its session's inbox, and a run of the session reads it once.

A message is read when it is an entry of the session's transcript. SendMessage promises that a run
of the session reads the message. If that run is killed, interrupted, or fails, before it did, the
message stays unread.
"""

from collections import defaultdict

from tests.chaos.random_faults.checks.entry_texts import texts_of_users
from tests.chaos.random_faults.facts import Facts
from tests.chaos.random_faults.history import Call, Outcome


def check(facts: Facts) -> list[str]:
    """Compare the sent texts and the inboxes with the transcripts."""
    read = texts_of_users(facts)
    inbox = {(row["session_id"], row["key"]) for row in facts.rows("messages")}
    ends = ("KILLED", "FAILED", "TIMED_OUT", "INTERRUPTED")
    cut_short = {row["session_id"] for row in facts.rows("runs") if row["state"] in ends}
    found = []
    for (session_id, request_id, text), calls in _sent(facts).items():
        name = f"message {request_id} to {session_id}"
        count, is_accepted = read[(session_id, text)], any(call.is_ok for call in calls)
        if is_accepted and (session_id, f"message:v1:{request_id}") not in inbox:
            found.append(f"{name} was accepted, and is not in the inbox")
        if is_accepted and not count and session_id not in cut_short:
            found.append(f"{name} was accepted, and no run read it")
        if count > 1:
            found.append(f"{name} is {count} times in the transcript")
        if count and all(call.outcome is Outcome.REFUSED for call in calls):
            found.append(f"{name} was refused, and is in the transcript")
    # Only the run that has read a message acknowledges it; the load archives no session.
    found += [
        f"{row['key']} of {row['session_id']} is acknowledged, and no run read it"
        for row in facts.rows("messages")
        if row["acknowledge_time"] is not None and not read[(row["session_id"], row["text"])]
    ]
    return found


def _sent(facts: Facts) -> dict[tuple[str, str, str], list[Call]]:
    """Return the calls for each message: its session, its request_id and its text."""
    found: dict[tuple[str, str, str], list[Call]] = defaultdict(list)
    for call in facts.of("send"):
        found[(call.given["session_id"], call.given["request_id"], call.given["text"])].append(call)
    return found
