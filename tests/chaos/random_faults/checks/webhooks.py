"""Webhooks receive each event at least once, and always with the same id and body."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta

from tests.chaos.random_faults.checks.terminal_states import TERMINAL
from tests.chaos.random_faults.facts import Facts, Row

_LATEST = timedelta(seconds=2)
"""Events are sent to a webhook that was created so long ago."""


def check(facts: Facts) -> list[str]:
    """Compare what was received with the runs that ended, and the messages of each id."""
    return [*_missing(facts), *_with_several_ids(facts), *_with_several_bodies(facts)]


def _missing(facts: Facts) -> Iterator[str]:
    received = {_subject(row) for row in facts.received}
    since = {row["tenant_id"]: row["create_time"] + _LATEST for row in facts.rows("webhooks")}
    for run in facts.rows("runs"):
        is_sent = run["tenant_id"] in since and run["end_time"] and run["end_time"] > since[run["tenant_id"]]
        subject = (run["tenant_id"], "run.ended", run["session_id"], run["run_id"])
        if is_sent and run["state"] in TERMINAL and subject not in received:
            yield f"no webhook received the end of {run['run_id']}"


def _with_several_ids(facts: Facts) -> Iterator[str]:
    """Look for runs whose one end came as two messages."""
    ids = defaultdict[tuple[str, ...], set[str]](set)
    for row in facts.received:
        if row["type"] == "run.ended":
            ids[_subject(row)].add(row["message_id"])
    for subject, found in ids.items():
        if len(found) > 1:
            yield f"{subject} was sent as {sorted(found)}"


def _with_several_bodies(facts: Facts) -> Iterator[str]:
    first: dict[tuple[str, str], Row] = {}
    for row in facts.received:
        if first.setdefault((row["tenant_id"], row["message_id"]), row) != row:
            yield f"{row['message_id']} has another body when it is sent again"


def _subject(row: Row) -> tuple[str, ...]:
    data = row["data"]
    return row["tenant_id"], row["type"], data["session_id"], data.get("run_id", "")
