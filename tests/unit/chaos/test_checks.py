"""Each check finds the anomaly that it is for, and nothing in sound facts."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from spawnmesh_transcript.domain.chain import chain_hash

from tests.chaos.random_faults.checks import (
    CHECKS,
    appends,
    availability,
    claims,
    content,
    cooldowns,
    objects,
    request_ids,
    results,
    settled,
    streams,
    tenants,
    terminal_states,
    tools,
    transcripts,
)
from tests.chaos.random_faults.facts import Facts, Row
from tests.chaos.random_faults.history import Call, Outcome

T, OTHER_TENANT = "t-a", "t-b"
PARENT, CHILD = "ses_parent", "ses_child"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def call(operation: str, start: float, end: float, got: Row | None = None, **given: Any) -> Call:
    return Call(operation, T, start, given, end, Outcome.OK, got=got or {})


def refused(operation: str, **given: Any) -> Call:
    return Call(operation, T, 1.0, given, 2.0, Outcome.REFUSED, "WRITER_CLAIM_LOST", "ABORTED")


def append(key: str, seq: int, start: float, end: float, epoch: int = 1) -> Call:
    got = {"seq": seq, "replayed": False}
    return call("append", start, end, got, session_id=CHILD, key=key, run_id="run_w", epoch=epoch)


def session(session_id: str, parent: str = "", **fields: Any) -> Row:
    row = {
        "tenant_id": T,
        "session_id": session_id,
        "state": "CLOSED",
        "request_id": f"request of {session_id}",
    }
    ancestors = [parent] if parent else []
    return {**row, "parent_session_id": parent, "ancestor_ids": ancestors, **fields}


def run(session_id: str) -> Row:
    row = {"tenant_id": T, "session_id": session_id, "run_id": f"run of {session_id}", "state": "SUCCEEDED"}
    ended = {"result_text": "fine", "error_reason": "", "error_message": ""}
    counts = {"attempt_count": 1, "delay_count": 0, "delay_reason": "", "delay_message": ""}
    counts |= {"epoch": 1, "first_epoch": 1}
    return {**row, **ended, **counts}


def entry(seq: int, before: Row | None, **fields: Any) -> Row:
    body = f"entry {seq}".encode()
    row = {"tenant_id": T, "session_id": CHILD, "seq": seq, "entry_id": f"ent_{seq}", "body": body}
    row |= {"parent_entry_id": before["entry_id"] if before else "", "dropped_bytes": 0}
    row |= {"writer_run_id": "run_w", "writer_epoch": 1, "writer_service": "", "writer_client": ""}
    row |= {"create_time": NOW, "calls": [], "answers": "", "is_synthetic": False}
    row["chain_hash"] = chain_hash(before["chain_hash"] if before else b"", SimpleNamespace(**row))
    return {**row, **fields}


def sound() -> Facts:
    """Return the facts of a parent with one child, and of three appends to the child's transcript."""
    entries = [entry(1, None, calls=["call 1"])]
    entries.append(entry(2, entries[0], answers="call 1"))
    entries.append(entry(3, entries[1]))
    parent_entry = entry(1, None, session_id=PARENT, calls=["call 1"])
    announced = f"announce:v1:{CHILD}:run of {CHILD}"
    events = [
        {"tenant_id": T, "session_id": name, "cursor": cursor, "kind": "RUN"}
        | {"run_id": f"run of {name}", "run_state": state, "detail": detail}
        for name in (PARENT, CHILD)
        for cursor, state, detail in ((1, "RUNNING", "attempt 1"), (2, "SUCCEEDED", ""))
    ]
    seen = {"run_id": f"run of {CHILD}", "run_state": "SUCCEEDED", "result_text": "fine"}
    tables: dict[str, list[Row]] = {
        "sessions": [
            session(PARENT),
            session(CHILD, PARENT),
            session("ses_undone", PARENT, state="SPAWN_FAILED", request_id=None),
        ],
        "runs": [run(PARENT), run(CHILD)],
        "messages": [{"tenant_id": T, "session_id": PARENT, "key": announced, "child_session_id": CHILD}],
        "events": events,
        "transcripts": [
            {"tenant_id": T, "session_id": PARENT, "seq": 1, "chain_hash": parent_entry["chain_hash"]},
            {"tenant_id": T, "session_id": CHILD, "seq": 3, "chain_hash": entries[2]["chain_hash"]},
        ],
        "entries": [*entries, parent_entry],
        "appends": [
            {"session_id": CHILD, "idempotency_key": key, "first_seq": seq}
            for key, seq in (("a", 1), ("b", 2), ("c", 3))
        ],
        "sets": [
            {"tenant_id": T, "session_id": CHILD, "set_id": "att_1", "state": "RELEASED"},
            {"tenant_id": OTHER_TENANT, "session_id": "", "set_id": "att_2", "state": "RELEASED"},
        ],
        "blobs": [{"tenant_id": T, "object_key": "k", "sha256": "00", "state": "STORED"}],
    }
    calls = [
        call("spawn", 0.0, 1.0, {"session_id": PARENT}, request_id=f"request of {PARENT}", task="x"),
        call("wait", 1.0, 2.0, seen, session_id=CHILD),
        append("a", 1, 0.0, 1.0),
        append("b", 2, 2.0, 3.0),
        append("c", 3, 2.5, 4.0),
        call("acquire", 0.0, 0.1, session_id=CHILD, run_id="run_w", epoch=1),
        call("claim", 0.0, 1.0, {"runs": [["run_x", 1]]}),
        call("claim", 2.0, 3.0, {"runs": [["run_x", 2]]}),
        call("watch", 0.0, 1.0, {"cursors": [1, 2]}, session_id=CHILD),
        Call("spawn", T, 0.0, {"request_id": "without an answer", "task": "x"}, 1.0),
    ]
    return Facts(tables, {T: {"k"}}, calls, [cooldown(0, 30), cooldown(1, 40)])


def cooldown(at: int, until: int) -> Row:
    key = {"tenant_id": T, "scope": "MODEL", "target": "m"}
    return {**key, "sample_time": NOW + timedelta(seconds=at), "until_time": NOW + timedelta(seconds=until)}


@pytest.mark.parametrize("name", CHECKS)
def test_sound_facts_pass(name: str) -> None:
    assert CHECKS[name](sound()) == []


@dataclass(frozen=True)
class Anomaly:
    """A change to sound facts that the check must find."""

    name: str
    check: Callable[[Facts], list[str]]
    seed: Callable[[Facts], Any]


def row(facts: Facts, table: str, number: int = 0) -> Row:
    return facts.tables[table][number]


ANOMALIES = [
    Anomaly("run without end", terminal_states.check, lambda f: row(f, "runs").update(state="RUNNING")),
    Anomaly("two ends", terminal_states.check, lambda f: row(f, "events").update(run_state="FAILED")),
    Anomaly("end that changed", terminal_states.check, lambda f: f.calls[1].got.update(run_state="KILLED")),
    Anomaly("result that changed", terminal_states.check, lambda f: f.calls[1].got.update(result_text="x")),
    Anomaly("result not delivered", results.check, lambda f: f.tables["messages"].clear()),
    Anomaly("result of nobody", results.check, lambda f: row(f, "messages").update(key="announce:v1:a:b")),
    Anomaly("object without row", objects.check, lambda f: f.objects[T].add("more")),
    Anomaly("row without object", objects.check, lambda f: f.objects[T].clear()),
    Anomaly("lost blob", objects.check, lambda f: row(f, "blobs").update(state="LOST")),
    Anomaly("set that stays", objects.check, lambda f: row(f, "sets").update(state="ATTACHED")),
    Anomaly("hole", transcripts.check, lambda f: f.tables["entries"].pop(1)),
    Anomaly("changed entry", transcripts.check, lambda f: row(f, "entries", 1).update(body=b"changed")),
    Anomaly("other parent", transcripts.check, lambda f: row(f, "entries", 1).update(parent_entry_id="x")),
    Anomaly("head that is late", transcripts.check, lambda f: row(f, "transcripts", 1).update(seq=2)),
    Anomaly("lost append", appends.check_presence, lambda f: f.tables["appends"].pop(1)),
    Anomaly("append elsewhere", appends.check_presence, lambda f: row(f, "appends", 1).update(first_seq=9)),
    Anomaly("append without entry", appends.check_presence, lambda f: f.tables["entries"].pop(1)),
    Anomaly("two answers", appends.check_presence, lambda f: f.calls.append(append("a", 2, 5.0, 6.0))),
    Anomaly(
        "refused append is there",
        appends.check_presence,
        lambda f: (
            f.tables["appends"].append({"session_id": CHILD, "idempotency_key": "d", "first_seq": 3}),
            f.calls.append(refused("append", session_id=CHILD, key="d")),
        ),
    ),
    Anomaly("inverted appends", appends.check_order, lambda f: f.calls.append(append("d", 4, 0.0, 0.5))),
    Anomaly("epoch that falls", claims.check_writers, lambda f: row(f, "entries").update(writer_epoch=2)),
    Anomaly("two holders", claims.check_writers, lambda f: row(f, "entries").update(writer_run_id="run_v")),
    Anomaly(
        "append after a takeover",
        claims.check_writers,
        lambda f: f.calls.append(call("acquire", 1.0, 1.5, session_id=CHILD, run_id="run_v", epoch=2)),
    ),
    Anomaly("run handed out twice", claims.check_runs, lambda f: f.calls[7].got.update(runs=[["run_x", 1]])),
    Anomaly("run's epoch falls", claims.check_runs, lambda f: f.calls[7].got.update(runs=[["run_x", 0]])),
    Anomaly(
        "run claimed twice at an epoch",
        claims.check_runs,
        lambda f: f.tables["events"].append({**row(f, "events"), "cursor": 3, "detail": "attempt 2"}),
    ),
    Anomaly(
        "two sessions of a request",
        request_ids.check,
        lambda f: f.tables["sessions"].append(session("ses_2", request_id=f"request of {PARENT}")),
    ),
    Anomaly("session that is lost", request_ids.check, lambda f: f.tables["sessions"].pop(0)),
    Anomaly("two runs of a spawn", request_ids.check, lambda f: f.tables["runs"].append(run(PARENT))),
    Anomaly(
        "message that is lost",
        request_ids.check,
        lambda f: f.calls.append(call("send", 1.0, 2.0, session_id=PARENT, request_id="r")),
    ),
    Anomaly(
        "answer to a stranger",
        tenants.check,
        lambda f: f.calls.append(call("pry", 1.0, 2.0, session_id=PARENT)),
    ),
    Anomaly("row of a stranger", tenants.check, lambda f: row(f, "runs").update(tenant_id=OTHER_TENANT)),
    Anomaly("two results of a call", tools.check, lambda f: row(f, "entries", 2).update(answers="call 1")),
    Anomaly(
        "two children of a call",
        tools.check,
        lambda f: f.tables["sessions"].append(session("ses_2", PARENT)),
    ),
    Anomaly("cooldown that shrinks", cooldowns.check, lambda f: f.cooldowns.append(cooldown(2, 35))),
    Anomaly("content in a log", content.check, lambda f: f.leaks.append("session.log")),
    Anomaly("workspace that stays", content.check, lambda f: f.workspaces.append("run_x")),
    Anomaly("event that is repeated", streams.check, lambda f: f.calls[8].got.update(cursors=[1, 1])),
    Anomaly("event that is omitted", streams.check, lambda f: f.calls[8].got.update(cursors=[2])),
    Anomaly("failed run", availability.check_runs, lambda f: row(f, "runs").update(state="FAILED")),
    Anomaly(
        "run that nobody killed", availability.check_runs, lambda f: row(f, "runs").update(state="KILLED")
    ),
    Anomaly(
        "agent without a tool",
        availability.check_runs,
        lambda f: row(f, "runs").update(result_text="I cannot go on: there is no tool."),
    ),
    Anomaly("refused spawn", availability.check_calls, lambda f: f.calls.append(refused("spawn"))),
    Anomaly("crash", availability.check_processes, lambda f: f.ended.append("session")),
    Anomaly("dead event", settled.check, lambda f: f.tables.update(outbox=[dead()])),
    Anomaly("run that goes on", settled.check, lambda f: f.unsettled.append("run_x is RUNNING")),
]


def dead() -> Row:
    return {"key": "p k", "dead_time": NOW, "is_held": False, "last_error": ""}


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.name)
def test_anomaly_is_found(anomaly: Anomaly) -> None:
    facts = deepcopy(sound())
    anomaly.seed(facts)
    assert anomaly.check(facts) != []


def test_each_check_has_an_anomaly() -> None:
    assert {anomaly.check for anomaly in ANOMALIES} == set(CHECKS.values())


def test_kill_of_an_ancestor_explains_a_killed_run() -> None:
    facts = sound()
    row(facts, "runs", 1).update(state="KILLED")
    facts.calls.append(call("kill", 1.0, 2.0, session_id=PARENT))
    assert availability.check_runs(facts) == []


def test_agent_that_learned_that_an_outcome_is_unknown_may_give_up() -> None:
    facts = sound()
    row(facts, "runs", 1).update(result_text="I cannot go on: the child could not be spawned.")
    assert availability.check_runs(facts) != []
    row(facts, "entries", 1).update(body=b"... OUTCOME_UNKNOWN: the runner was replaced ...")
    assert availability.check_runs(facts) == []


def test_append_that_was_repeated_may_have_its_effect_at_the_first_call() -> None:
    facts = sound()
    late = Call("append", T, 0.2, {"session_id": CHILD, "key": "d"}, 0.4, Outcome.UNKNOWN)
    facts.calls += [late, append("d", 4, 9.0, 9.5), append("e", 5, 5.0, 6.0)]
    assert appends.check_order(facts) == []
