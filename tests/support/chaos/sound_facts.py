"""Facts of a small load in which nothing is wrong."""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from spawnmesh.content.v1.message_pb2 import (
    ROLE_ASSISTANT,
    ROLE_TOOL_RESULT,
    ROLE_USER,
    ContentBlock,
    Message,
    Role,
    Text,
    ToolCall,
)
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh_session.domain.approvals import approval_id_of
from spawnmesh_transcript.domain.chain import chain_hash

from tests.chaos.random_faults.facts import Facts, Row
from tests.chaos.random_faults.history import Call, Outcome
from tests.chaos.random_faults.load.careful import CAREFUL, CAREFUL_TOOL

T, OTHER_TENANT = "t-a", "t-b"
PARENT, CHILD = "ses_parent", "ses_child"
APPROVED, DENIED = "ses_approved", "ses_denied"
"""The sessions of careful agents, of whom one makes a call and the other does not."""
ASKED = {"path": "asked.txt", "content": "as asked for"}
EDITED = {"path": "edited.txt", "content": "as edited"}
DECISIONS = {
    APPROVED: {
        "state": "APPROVED",
        "decided_by": "ada",
        "edited_arguments_json": json.dumps(EDITED),
        "text": "",
    },
    DENIED: {"state": "DENIED", "decided_by": "bob", "edited_arguments_json": "", "text": "No."},
}
FRUGAL_SESSION = "ses_frugal"
"""The session whose budget was raised, after its run had waited for it."""
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def call(operation: str, start: float, end: float, got: Row | None = None, **given: Any) -> Call:
    return Call(operation, T, start, given, end, Outcome.OK, got=got or {})


def refused(operation: str, reason: str = "WRITER_CLAIM_LOST", **given: Any) -> Call:
    return Call(operation, T, 1.0, given, 2.0, Outcome.REFUSED, reason, "ABORTED")


def append(key: str, seq: int, start: float, end: float, epoch: int = 1) -> Call:
    got = {"seq": seq, "replayed": False}
    return call("append", start, end, got, session_id=CHILD, key=key, text=key, run_id="run_w", epoch=epoch)


def received(run: Row) -> Row:
    """Return the message with the end of the run."""
    data = {"session_id": run["session_id"], "run_id": run["run_id"], "outcome": run["state"]}
    return {"tenant_id": T, "message_id": f"evt of {run['run_id']}", "type": "run.ended", "data": data}


def send(session_id: str, request_id: str) -> Call:
    text = f"Message {request_id}."
    return call("send", 1.0, 2.0, session_id=session_id, request_id=request_id, text=text)


def message(session_id: str, key: str, text: str, child: str = "") -> Row:
    names = {"tenant_id": T, "session_id": session_id, "key": key, "child_session_id": child}
    return {**names, "text": text, "acknowledge_time": NOW}


def session(session_id: str, parent: str = "", **fields: Any) -> Row:
    row = {
        "tenant_id": T,
        "session_id": session_id,
        "state": "CLOSED",
        "agent_id": "coordinator",
        "request_id": f"request of {session_id}",
    }
    ancestors = [parent] if parent else []
    row |= {"parent_session_id": parent, "ancestor_ids": ancestors, "budget_session_ids": []}
    return {**row, **fields}


def run(session_id: str) -> Row:
    row = {"tenant_id": T, "session_id": session_id, "run_id": f"run of {session_id}", "state": "SUCCEEDED"}
    ended = {"result_text": "fine", "error_reason": "", "error_message": ""}
    counts = {"attempt_count": 1, "delay_count": 0, "delay_reason": "", "delay_message": ""}
    ended |= {"end_time": NOW}
    counts |= {"budget_session_id": "", "usage": usage_of(0)}
    counts |= {"epoch": 1, "first_epoch": 1, "output_file_count": 0, "output_total_bytes": 0}
    return {**row, **ended, **counts}


def usage_of(token_count: int) -> dict[str, int]:
    """Return what a run has used; a token costs two."""
    return {"input_token_count": token_count, "output_token_count": 0, "cost_micros": 2 * token_count}


def delivery(hook: str, decision: str, session_id: str, run_id: str = "") -> Row:
    names = {"tenant_id": T, "plugin": "p", "session_id": session_id, "run_id": run_id}
    return {**names, "hook": hook, "decision": decision}


def body(text: str, role: Role.ValueType = ROLE_ASSISTANT) -> bytes:
    message = Message(role=role, content=[ContentBlock(text=Text(text=text))])
    return EntryBody(message=message).SerializeToString()


def entry(seq: int, before: Row | None, stored: bytes = b"", **fields: Any) -> Row:
    row = {"tenant_id": T, "session_id": CHILD, "seq": seq, "entry_id": f"ent_{seq}", "body": stored}
    row |= {"parent_entry_id": before["entry_id"] if before else "", "dropped_bytes": 0}
    row |= {"writer_run_id": "run_w", "writer_epoch": 1, "writer_service": "", "writer_client": ""}
    row |= {"create_time": NOW, "calls": [], "answers": "", "is_synthetic": False}
    row |= fields
    row["chain_hash"] = chain_hash(before["chain_hash"] if before else b"", SimpleNamespace(**row))
    return row


def event(session_id: str, number: int, kind: str, run_state: str = "", **fields: Any) -> Row:
    row = {"tenant_id": T, "session_id": session_id, "number": number, "kind": kind, "run_state": run_state}
    return {**row, "run_id": f"run of {session_id}", "child_session_id": "", "detail": "", **fields}


def heard(numbers: list[int], seqs: list[int], session_id: str = CHILD) -> dict[str, Any]:
    """Return the events and the entries of one session that a watcher got."""
    return {session_id: {"numbers": numbers, "seqs": seqs}}


def family_heard() -> dict[str, Any]:
    """Return what a new watch of the parent gets."""
    streams = {**heard([1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4], PARENT), **heard([1, 2, 3], [1, 2, 3])}
    return {"streams": streams, "faults": [], "has_ended": True}


def sound() -> Facts:
    """Return the facts of a parent with one child, whose result the parent reads after a revision
    was requested, of three appends to the child's transcript, of two calls on which people decided,
    and of a run that waited until its budget was raised.
    """
    entries = [entry(1, None, body("a"), calls=["call 1"])]
    entries.append(entry(2, entries[0], body("b"), answers="call 1"))
    entries.append(entry(3, entries[1], body("c")))
    waited = json.dumps({"sessions": [{"session_id": CHILD, "done": True, "run_state": "SUCCEEDED"}]})
    said = (
        (body("Do it."), {"calls": ["call 1"]}),
        (body(waited, ROLE_TOOL_RESULT), {"answers": "call 1"}),
        (body("The child said fine.", ROLE_USER), {}),
        (body("Message r1.", ROLE_USER), {}),
    )
    of_parent: list[Row] = []
    for stored, fields in said:
        before = of_parent[-1] if of_parent else None
        fields = {"session_id": PARENT, "writer_run_id": f"run of {PARENT}"} | fields
        of_parent.append(entry(len(of_parent) + 1, before, stored, **fields))
    events = [
        event(PARENT, 1, "RUN", "QUEUED"),
        event(PARENT, 2, "RUN", "RUNNING", detail="attempt 1"),
        event(PARENT, 3, "CHILD_SPAWNED", child_session_id=CHILD),
        event(PARENT, 4, "CHILD_ANNOUNCED", run_id=f"run of {CHILD}", child_session_id=CHILD),
        event(PARENT, 5, "REVISION", "RUNNING", detail="revision 1 of 3"),
        event(PARENT, 6, "RUN", "SUCCEEDED"),
        event(PARENT, 7, "CLOSED", run_id=""),
        event(CHILD, 1, "RUN", "RUNNING", detail="attempt 1"),
        event(CHILD, 2, "RUN", "SUCCEEDED"),
        event(CHILD, 3, "CLOSED", run_id=""),
        event(CHILD, 4, "CHILD_ANNOUNCED"),
    ]
    seen = {"run_id": f"run of {CHILD}", "run_state": "SUCCEEDED", "result_text": "fine"}
    tables: dict[str, list[Row]] = {
        "sessions": [
            session(PARENT),
            session(CHILD, PARENT),
            session("ses_undone", PARENT, state="SPAWN_FAILED", request_id=None),
        ],
        "runs": [run(PARENT), run(CHILD)],
        "messages": [
            message(PARENT, f"announce:v1:{CHILD}:run of {CHILD}", "The child said fine.", CHILD),
            message(PARENT, "message:v1:r1", "Message r1."),
        ],
        "events": events,
        "transcripts": [
            {"tenant_id": T, "session_id": name, "seq": rows[-1]["seq"], "chain_hash": rows[-1]["chain_hash"]}
            for name, rows in ((PARENT, of_parent), (CHILD, entries))
        ],
        "entries": [*entries, *of_parent],
        "appends": [
            {"session_id": CHILD, "request_id": key, "first_seq": seq}
            for key, seq in (("a", 1), ("b", 2), ("c", 3))
        ],
        "allowed_spawns": [{"tenant_id": T, "session_id": name} for name in (CHILD, "ses_undone")],
        "deliveries": [
            delivery("SUBAGENT_ENDED", "failed", CHILD, f"run of {CHILD}"),
            delivery("SUBAGENT_ENDED", "told", CHILD, f"run of {CHILD}"),
            delivery("SUBAGENT_ENDED", "told", "ses_undone"),
            delivery("BEFORE_SPAWN", "allow", "ses_that_another_plugin_denied"),
            delivery("BEFORE_SPAWN", "deny", "ses_that_another_plugin_denied"),
            delivery("SUBAGENT_ENDED", "told", "ses_that_another_plugin_denied"),
        ],
        "sets": [
            {"tenant_id": T, "session_id": CHILD, "set_id": "att_1", "run_id": "", "state": "RELEASED"},
            {
                "tenant_id": OTHER_TENANT,
                "session_id": "",
                "set_id": "att_2",
                "run_id": "",
                "state": "RELEASED",
            },
        ],
        "blobs": [{"tenant_id": T, "object_key": "k", "sha256": "00", "state": "STORED"}],
    }
    for table, rows in frugal_rows().items():
        tables.setdefault(table, []).extend(rows)
    for session_id in (APPROVED, DENIED):
        for table, rows in careful_rows(session_id).items():
            tables.setdefault(table, []).extend(rows)
    calls = [
        call("spawn", 0.0, 1.0, {"session_id": PARENT}, request_id=f"request of {PARENT}", task="x"),
        call("wait", 1.0, 2.0, seen, session_id=CHILD),
        append("a", 1, 0.0, 1.0),
        append("b", 2, 2.0, 3.0),
        append("c", 3, 2.5, 4.0),
        call("acquire", 0.0, 0.1, session_id=CHILD, run_id="run_w", epoch=1),
        call("claim", 0.0, 1.0, {"runs": [["run_x", 1]]}),
        call("claim", 2.0, 3.0, {"runs": [["run_x", 2]]}),
        call("watch", 0.0, 1.0, {"streams": heard([1, 2], [1])}, session_id=CHILD),
        call("watch again", 9.0, 9.5, family_heard(), session_id=PARENT),
        call("watch", 0.0, 1.0, {"streams": heard([1, 2, 3], [1, 2]), "has_ended": True}, session_id=CHILD),
        send(PARENT, "r1"),
        refused("pry", "NOT_FOUND", session_id=PARENT),
        refused("append", session_id=CHILD, key="late", text="late"),
        Call("spawn", T, 0.0, {"request_id": "without an answer", "task": "x"}, 1.0),
        call("harness", 3.0, 4.0, method="PublishFiles", run_id=f"run of {APPROVED}"),
        call(
            "spawn",
            0.0,
            1.0,
            {"session_id": FRUGAL_SESSION},
            request_id=f"request of {FRUGAL_SESSION}",
            task="x",
            budget={"max_model_call_count": 1, "max_token_count": 0},
        ),
        raise_budget(2),
        decide(APPROVED, Outcome.UNKNOWN),
        decide(APPROVED),
        decide(APPROVED, Outcome.REFUSED, state="DENIED", decided_by="bob"),
        decide(DENIED),
    ]
    cooled = [cooldown(0, 30), cooldown(1, 40)]
    tables["webhooks"] = [{"tenant_id": T, "create_time": NOW - timedelta(seconds=3)}]
    messages = [received(one) for one in (*tables["runs"], tables["runs"][0])]
    return Facts(tables, {T: {"k"}}, calls, messages, cooled, scanned_count=5, watched_count=20, span_count=9)


def careful_rows(session_id: str) -> dict[str, list[Row]]:
    """Return the rows of a careful agent's session, whose call a person approved or denied."""
    of_run = {**run(session_id), "epoch": 2, "output_file_count": 1, "output_total_bytes": 4}
    published = {"name": "report.txt", "size_bytes": 4, "sha256": "01"}
    output_set = {"tenant_id": T, "session_id": session_id, "set_id": f"att_of_{session_id}"}
    output_set["run_id"] = of_run["run_id"]
    state = DECISIONS[session_id]["state"]
    asked = ToolCall(tool_call_id="call 1", name=CAREFUL_TOOL, block_json=json.dumps({"arguments": ASKED}))
    message = Message(role=ROLE_ASSISTANT, content=[ContentBlock(tool_call=asked)])
    stored = EntryBody(message=message).SerializeToString()
    names = {"session_id": session_id, "writer_run_id": of_run["run_id"]}
    answer = entry(1, None, stored, entry_id=f"ent_of_{session_id}", calls=["call 1"], **names)
    told = written(EDITED) if state == "APPROVED" else f"DENIED: {DECISIONS[session_id]['text']}"
    result = entry(2, answer, body(told, ROLE_TOOL_RESULT), writer_epoch=2, answers="call 1", **names)
    approval_id = approval_id_of(of_run["run_id"], answer["entry_id"], 0)
    return {
        "sessions": [session(session_id, agent_id=CAREFUL)],
        "runs": [of_run],
        "events": [
            event(session_id, 1, "RUN", "RUNNING", detail="attempt 1"),
            event(session_id, 2, "RUN", "WAITING_APPROVAL", detail=approval_id),
            event(session_id, 3, "RUN", "QUEUED", detail=f"the approval is {state}"),
            event(session_id, 4, "RUN", "RUNNING", detail="attempt 1"),
            event(session_id, 5, "FILES_PUBLISHED", set_id=f"att_of_{session_id}"),
            event(session_id, 6, "RUN", "SUCCEEDED"),
        ],
        "transcripts": [
            {"tenant_id": T, "session_id": session_id, "seq": 2, "chain_hash": result["chain_hash"]}
        ],
        "entries": [answer, result],
        "output_sets": [{**output_set, "position": 5, "files": [published]}],
        "sets": [{**output_set, "state": "ATTACHED"}],
        "set_files": [{**output_set, **published}],
        "approvals": [
            {
                "approval_id": approval_id,
                "arguments_json": json.dumps(ASKED),
                "begin_epoch": 2 if state == "APPROVED" else 0,
                **DECISIONS[session_id],
            }
        ],
    }


def frugal_rows() -> dict[str, list[Row]]:
    """Return the rows of a session whose run waited until its budget of one model call was raised."""
    of_run = {**run(FRUGAL_SESSION), "epoch": 2, "usage": usage_of(20)}
    names = {"session_id": FRUGAL_SESSION, "writer_run_id": of_run["run_id"]}
    first = entry(1, None, body("One."), entry_id="ent_frugal_1", **names)
    second = entry(2, first, body("Two."), entry_id="ent_frugal_2", **names)
    return {
        "sessions": [session(FRUGAL_SESSION, budget_session_ids=[FRUGAL_SESSION])],
        "runs": [of_run],
        "events": [
            event(FRUGAL_SESSION, 1, "RUN", "RUNNING", detail="attempt 1"),
            event(FRUGAL_SESSION, 2, "RUN", "WAITING_BUDGET", detail="model calls 1 of 1 of x used"),
            event(FRUGAL_SESSION, 3, "BUDGET_CHANGED", run_id="", detail="model calls 1 -> 2 by ada"),
            event(FRUGAL_SESSION, 4, "RUN", "QUEUED", detail="the budget has room"),
            event(FRUGAL_SESSION, 5, "RUN", "RUNNING", detail="attempt 1"),
            event(FRUGAL_SESSION, 6, "RUN", "SUCCEEDED"),
        ],
        "transcripts": [
            {"tenant_id": T, "session_id": FRUGAL_SESSION, "seq": 2, "chain_hash": second["chain_hash"]}
        ],
        "entries": [first, second],
        "budgets": [
            {
                "tenant_id": T,
                "session_id": FRUGAL_SESSION,
                "max_token_count": 0,
                "max_cost_micros": 0,
                "max_model_call_count": 2,
                "max_run_time": timedelta(),
                "used_token_count": 20,
                "used_cost_micros": 40,
                "used_model_call_count": 2,
                "used_run_time": timedelta(seconds=3),
                "version": 2,
            }
        ],
    }


def raise_budget(call_count: int, outcome: Outcome = Outcome.OK) -> Call:
    """Return a call that raises the budget to so many model calls."""
    given = {"max_model_call_count": call_count, "max_token_count": 0}
    got = {**given, "session_id": FRUGAL_SESSION} if outcome is Outcome.OK else {}
    reason = "ETAG_DIFFERS" if outcome is Outcome.REFUSED else ""
    sent = {**given, "session_id": FRUGAL_SESSION}
    return Call("raise", T, 1.0, sent, 2.0, outcome, reason, got=got)


def written(arguments: dict[str, str]) -> str:
    """Return the result of a call that was made with the arguments."""
    digest = hashlib.sha256(arguments["content"].encode()).hexdigest()
    return json.dumps({"path": arguments["path"], "bytes": 1, "sha256": digest})


def decide(session_id: str, outcome: Outcome = Outcome.OK, **other: str) -> Call:
    """Return a call that decides as is stored, or otherwise, on the approval of the session."""
    approval_id = approval_id_of(f"run of {session_id}", f"ent_of_{session_id}", 0)
    given = {**DECISIONS[session_id], **other}
    got = given if outcome is Outcome.OK else {}
    reason = "APPROVAL_CLOSED" if outcome is Outcome.REFUSED else ""
    sent = {**given, "approval_id": approval_id}
    return Call("decide", T, 1.0, sent, 2.0, outcome, reason, got=dict(got))


def cooldown(at: int, until: int) -> Row:
    key = {"tenant_id": T, "scope": "MODEL", "target": "m"}
    return {**key, "sample_time": NOW + timedelta(seconds=at), "until_time": NOW + timedelta(seconds=until)}
