"""I2: the result of each child is delivered to its parent exactly once, and read once."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator

from spawnmesh.content.v1.message_pb2 import ROLE_TOOL_RESULT

from tests.chaos.random_faults.checks.entry_texts import message_of, text_of, texts_of_users
from tests.chaos.random_faults.checks.terminal_states import TERMINAL
from tests.chaos.random_faults.facts import Facts, Row


def check(facts: Facts) -> list[str]:
    """Look for one message in the parent's inbox for each run of a child, and for one entry in the
    parent's transcript: at most one, and exactly one if the parent went on afterwards.
    """
    found = []
    announced = {
        (row["session_id"], row["key"]): row for row in facts.rows("messages") if row["child_session_id"]
    }
    texts = Counter((row["session_id"], row["text"]) for row in facts.rows("messages"))
    read, owed = texts_of_users(facts), owed_announcements(facts)
    parents = {row["session_id"]: row["parent_session_id"] for row in facts.rows("sessions")}
    for run in facts.rows("runs"):
        parent = parents.get(run["session_id"], "")
        if parent not in parents or run["state"] not in TERMINAL:
            continue
        message = announced.pop((parent, f"announce:v1:{run['session_id']}:{run['run_id']}"), None)
        if message is None:
            found.append(f"the result of {run['run_id']} is not in the inbox of {parent}")
            continue
        if run["state"] == "SUCCEEDED" and run["result_text"] not in message["text"]:
            found.append(f"the result of {run['run_id']} is another one in the inbox of {parent}")
        count = read[(parent, message["text"])]
        if count > texts[(parent, message["text"])]:
            found.append(f"the result of {run['run_id']} is {count} times in the transcript of {parent}")
        if not count and (parent, run["session_id"]) in owed:
            found.append(f"{parent} went on, and did not read the result of {run['run_id']}")
    found += [f"{parent} got {key}, which is no result of a run" for parent, key in announced]
    return found


def owed_announcements(facts: Facts) -> set[tuple[str, str]]:
    """Return the parents with the children whose results they must have read.

    A parent that answers at the moment at which its child ends may miss the result. It must have
    read the result if its run succeeded after `sessions_wait` said that the child has ended, or
    after a later event made the run take another turn.
    """
    succeeded = {run["run_id"] for run in facts.rows("runs") if run["state"] == "SUCCEEDED"}
    owed = {
        (row["session_id"], child)
        for row in facts.rows("entries")
        if row["writer_run_id"] in succeeded
        for child in _ended_children(row)
    }
    events: dict[str, list[Row]] = defaultdict(list)
    for row in facts.rows("events"):
        events[row["session_id"]].append(row)
    for session_id, rows in events.items():
        going_on = False
        begins = {row["run_id"]: row["number"] for row in reversed(rows) if row["kind"] == "RUN"}
        for row in reversed(rows):
            # A new run reads the inbox, and so does a run that has to revise its draft.
            is_turn = row["kind"] == "REVISION" or row["number"] == begins.get(row["run_id"])
            if is_turn and row["run_id"] in succeeded:
                going_on = True
            elif row["kind"] == "CHILD_ANNOUNCED" and going_on:
                owed.add((session_id, row["child_session_id"]))
    return owed


def _ended_children(row: Row) -> Iterator[str]:
    """Yield the sessions that have ended according to an entry, if it is a result of
    `sessions_wait`.
    """
    if not row["answers"] or message_of(row).role != ROLE_TOOL_RESULT:
        return
    try:
        result = json.loads(text_of(row))
    except ValueError:
        return
    states = result.get("sessions", []) if isinstance(result, dict) else []
    for state in states:
        if state.get("done") and state.get("run_state") in TERMINAL:
            yield state["session_id"]
