"""Each check finds the anomaly that it is for, and nothing in sound facts."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_TOOL_RESULT

from tests.chaos.random_faults.checks import (
    ALL,
    CHECKS,
    NO_INPUT,
    Check,
    appends,
    approvals,
    availability,
    budgets,
    claims,
    content,
    cooldowns,
    judge,
    messages,
    objects,
    observers,
    outputs,
    refusals,
    request_ids,
    results,
    settled,
    spans,
    streams,
    tenants,
    terminal_states,
    tools,
    transcripts,
    webhooks,
)
from tests.chaos.random_faults.facts import Facts, Row
from tests.chaos.random_faults.history import Call, Outcome
from tests.support.chaos.sound_facts import (
    CHILD,
    NOW,
    OTHER_TENANT,
    PARENT,
    T,
    append,
    body,
    call,
    cooldown,
    event,
    refused,
    run,
    session,
    sound,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_sound_facts_pass(check: Check) -> None:
    assert check.find(sound()) == []


def test_sound_facts_have_input_for_each_check() -> None:
    assert judge(sound()) == {name: [] for name in ALL}


def test_check_without_input_is_left_out_or_fails_if_it_is_required() -> None:
    assert judge(Facts(), required=()) == {}
    assert judge(Facts()) == {name: [NO_INPUT] for name in ALL}


def test_required_check_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no checks"):
        judge(Facts(), required=["I99"])


@dataclass(frozen=True)
class Anomaly:
    """A change to sound facts that the check must find."""

    name: str
    check: Callable[[Facts], list[str]]
    seed: Callable[[Facts], Any]


def row(facts: Facts, table: str, number: int = 0) -> Row:
    return facts.tables[table][number]


def heard(facts: Facts) -> Row:
    stream: Row = facts.of("watch")[0].got["streams"][CHILD]
    return stream


ANOMALIES = [
    Anomaly("run without end", terminal_states.check, lambda f: row(f, "runs").update(state="RUNNING")),
    Anomaly("two ends", terminal_states.check, lambda f: row(f, "events").update(run_state="FAILED")),
    Anomaly("end that changed", terminal_states.check, lambda f: f.calls[1].got.update(run_state="KILLED")),
    Anomaly(
        "answer after an interrupt",
        terminal_states.check,
        lambda f: f.calls[1].got.update(is_interrupted=True),
    ),
    Anomaly("result that changed", terminal_states.check, lambda f: f.calls[1].got.update(result_text="x")),
    Anomaly("event that no webhook received", webhooks.check, lambda f: f.received.pop(1)),
    Anomaly("event with two ids", webhooks.check, lambda f: f.received[-1].update(message_id="evt other")),
    Anomaly("message with two bodies", webhooks.check, lambda f: f.received[-1].update(timestamp="now")),
    Anomaly(
        "event about another session", webhooks.check, lambda f: f.received[1]["data"].update(session_id="x")
    ),
    Anomaly("result not delivered", results.check, lambda f: f.tables["messages"].clear()),
    Anomaly("result of nobody", results.check, lambda f: row(f, "messages").update(key="announce:v1:a:b")),
    Anomaly("result that is another", results.check, lambda f: row(f, "runs", 1).update(result_text="x")),
    Anomaly("result read twice", results.check, lambda f: f.tables["entries"].append(row(f, "entries", 5))),
    Anomaly(
        "result not read after the wait for it",
        results.check,
        lambda f: (f.tables["entries"].pop(5), f.tables["events"].pop(3)),
    ),
    Anomaly(
        "result not read after a revision was requested",
        results.check,
        lambda f: (f.tables["entries"].pop(5), f.tables["entries"].pop(4)),
    ),
    Anomaly("message not in the inbox", messages.check, lambda f: f.tables["messages"].pop(1)),
    Anomaly(
        "message that no run read",
        messages.check,
        lambda f: (row(f, "messages", 1).update(acknowledge_time=None), f.tables["entries"].pop(6)),
    ),
    Anomaly(
        "unread message that counts as delivered",
        messages.check,
        lambda f: (row(f, "runs").update(state="KILLED"), f.tables["entries"].pop(6)),
    ),
    Anomaly("message read twice", messages.check, lambda f: f.tables["entries"].append(row(f, "entries", 6))),
    Anomaly(
        "refused message that is read",
        messages.check,
        lambda f: setattr(f.calls[11], "outcome", Outcome.REFUSED),
    ),
    Anomaly("end that a plugin did not hear", observers.check, lambda f: f.tables["deliveries"].pop(1)),
    Anomaly("failed spawn unheard", observers.check, lambda f: f.tables["deliveries"].pop(2)),
    Anomaly("denied spawn unheard", observers.check, lambda f: f.tables["deliveries"].pop(5)),
    Anomaly("object without row", objects.check, lambda f: f.objects[T].add("more")),
    Anomaly("row without object", objects.check, lambda f: f.objects[T].clear()),
    Anomaly("lost blob", objects.check, lambda f: row(f, "blobs").update(state="LOST")),
    Anomaly("set that stays", objects.check, lambda f: row(f, "sets").update(state="ATTACHED")),
    Anomaly("publication that is lost", outputs.check, lambda f: row(f, "output_sets").update(position=None)),
    Anomaly("publication told twice", outputs.check, lambda f: f.tables["events"].append(told(f))),
    Anomaly("publication not told", outputs.check, lambda f: f.tables["events"].remove(told(f))),
    Anomaly(
        "publication not counted", outputs.check, lambda f: row(f, "runs", -1).update(output_file_count=0)
    ),
    Anomaly("publication that expires", outputs.check, lambda f: row(f, "sets", -1).update(state="STAGED")),
    Anomaly(
        "publication with another file", outputs.check, lambda f: row(f, "set_files").update(sha256="02")
    ),
    Anomaly("hole", transcripts.check, lambda f: f.tables["entries"].pop(1)),
    Anomaly("changed entry", transcripts.check, lambda f: row(f, "entries", 1).update(body=b"changed")),
    Anomaly("other parent", transcripts.check, lambda f: row(f, "entries", 1).update(parent_entry_id="x")),
    Anomaly("head that is late", transcripts.check, lambda f: row(f, "transcripts", 1).update(seq=2)),
    Anomaly("lost append", appends.check_presence, lambda f: f.tables["appends"].pop(1)),
    Anomaly("append elsewhere", appends.check_presence, lambda f: row(f, "appends", 1).update(first_seq=9)),
    Anomaly("append without entry", appends.check_presence, lambda f: f.tables["entries"].pop(1)),
    Anomaly(
        "append of another text", appends.check_presence, lambda f: row(f, "entries").update(body=body("b"))
    ),
    Anomaly("append twice", appends.check_presence, lambda f: f.tables["entries"].append(again(f))),
    Anomaly("one place for two appends", appends.check_presence, lambda f: f.calls.append(shared(f))),
    Anomaly(
        "text of a refused append",
        appends.check_presence,
        lambda f: f.tables["entries"].append({**row(f, "entries"), "seq": 4, "body": body("late")}),
    ),
    Anomaly("two answers", appends.check_presence, lambda f: f.calls.append(append("a", 2, 5.0, 6.0))),
    Anomaly(
        "refused append is there",
        appends.check_presence,
        lambda f: (
            f.tables["appends"].append({"session_id": CHILD, "request_id": "d", "first_seq": 3}),
            f.calls.append(refused("append", session_id=CHILD, key="d", text="d")),
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
        lambda f: f.tables["events"].append({**row(f, "events"), "number": 3, "detail": "attempt 2"}),
    ),
    Anomaly(
        "two sessions of a request",
        request_ids.check,
        lambda f: f.tables["sessions"].append(session("ses_2", request_id=f"request of {PARENT}")),
    ),
    Anomaly("session that is lost", request_ids.check, lambda f: f.tables["sessions"].pop(0)),
    Anomaly("two runs of a spawn", request_ids.check, lambda f: f.tables["runs"].append(run(CHILD))),
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
    Anomaly("tokens for free", budgets.check, lambda f: row(f, "budgets").update(used_token_count=1)),
    Anomaly("approval that waits on", approvals.check, lambda f: row(f, "approvals").update(state="PENDING")),
    Anomaly("content in a log", content.check, lambda f: f.leaks.append("session.log")),
    Anomaly("workspace that stays", content.check, lambda f: f.workspaces.append("run_x")),
    Anomaly("event that is omitted", streams.check, lambda f: heard(f).update(numbers=[2])),
    Anomaly("new watch that does not end", streams.check_again, lambda f: f.calls[9].got.pop("has_ended")),
    Anomaly("failed run", availability.check_runs, lambda f: row(f, "runs").update(state="FAILED")),
    Anomaly(
        "run that nobody interrupted",
        availability.check_runs,
        lambda f: row(f, "runs").update(state="INTERRUPTED"),
    ),
    Anomaly(
        "run that nobody killed", availability.check_runs, lambda f: row(f, "runs").update(state="KILLED")
    ),
    Anomaly(
        "agent without a tool",
        availability.check_runs,
        lambda f: row(f, "runs").update(result_text="I cannot go on: there is no tool."),
    ),
    *(
        Anomaly(
            f"{operation} refused for {reason}",
            refusals.check,
            lambda f, operation=operation, reason=reason: f.calls.append(refused(operation, reason)),
        )
        for operation, reason in (
            ("spawn", "WRITER_CLAIM_LOST"),
            ("send", "SESSION_CLOSED"),
            ("wait", "NOT_FOUND"),
            ("kill", "PERMISSION_DENIED"),
            ("harness", "UNAUTHENTICATED"),
            ("claim", "UNAUTHENTICATED"),
            ("watch", "NOT_FOUND"),
            ("watch again", "NOT_FOUND"),
            ("append", "PERMISSION_DENIED"),
            ("decide", "NOT_FOUND"),
        )
    ),
    Anomaly("internal error", refusals.check, lambda f: setattr(f.calls[1], "status", "INTERNAL")),
    Anomaly("orphan", spans.check, lambda f: f.orphans.append("session SpawnSession of trace 1")),
    Anomaly("crash", availability.check_processes, lambda f: f.ended.append("session")),
    Anomaly("dead event", settled.check, lambda f: f.tables.update(outbox=[dead()])),
    Anomaly("run that goes on", settled.check, lambda f: f.unsettled.append("run_x is RUNNING")),
]


def again(facts: Facts) -> Row:
    return {**row(facts, "entries"), "seq": 4}


def told(facts: Facts) -> Row:
    return next(event for event in facts.rows("events") if event["kind"] == "FILES_PUBLISHED")


def shared(facts: Facts) -> Call:
    facts.tables["appends"].append({"session_id": CHILD, "request_id": "d", "first_seq": 3})
    return append("d", 3, 5.0, 6.0)


def dead() -> Row:
    return {"key": "p k", "dead_time": NOW, "is_held": False, "last_error": ""}


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.name)
def test_anomaly_is_found(anomaly: Anomaly) -> None:
    facts = deepcopy(sound())
    anomaly.seed(facts)
    assert anomaly.check(facts) != []


def test_each_check_has_an_anomaly() -> None:
    assert {anomaly.check for anomaly in ANOMALIES} == {check.find for check in CHECKS}


@pytest.mark.parametrize("state", ["KILLED", "INTERRUPTED"])
def test_message_may_stay_unread_if_its_run_is_cut_short(state: str) -> None:
    facts = sound()
    row(facts, "runs").update(state=state)
    row(facts, "messages", 1).update(acknowledge_time=None)
    facts.tables["entries"].pop(6)
    assert messages.check(facts) == []


def test_result_may_stay_unread_if_the_parent_answers_at_the_same_moment() -> None:
    facts = sound()
    facts.tables["events"].pop(4)
    row(facts, "entries", 4).update(body=body("{}", ROLE_TOOL_RESULT))
    facts.tables["entries"].pop(5)
    assert results.check(facts) == []


def test_result_is_read_by_the_run_that_is_queued_for_it() -> None:
    facts = sound()
    facts.tables["events"].pop(4)
    row(facts, "entries", 4).update(body=body("{}", ROLE_TOOL_RESULT))
    facts.tables["entries"].pop(5)
    facts.tables["runs"].append({**run(PARENT), "run_id": "run_2"})
    facts.tables["events"].insert(4, event(PARENT, 5, "RUN", "QUEUED", run_id="run_2"))
    assert len(results.check(facts)) == 1


def test_kill_of_an_ancestor_explains_a_killed_run() -> None:
    facts = sound()
    row(facts, "runs", 1).update(state="KILLED")
    facts.calls.append(call("kill", 1.0, 2.0, session_id=PARENT))
    assert availability.check_runs(facts) == []


def test_interrupt_explains_an_interrupted_run() -> None:
    facts = sound()
    row(facts, "runs").update(state="INTERRUPTED")
    facts.calls.append(call("interrupt", 1.0, 2.0, session_id=row(facts, "runs")["session_id"]))
    assert availability.check_runs(facts) == []


def test_agent_that_learned_that_an_outcome_is_unknown_may_give_up() -> None:
    facts = sound()
    row(facts, "runs", 1).update(result_text="I cannot go on: the child could not be spawned.")
    assert availability.check_runs(facts) != []
    row(facts, "entries", 1).update(body=b"... OUTCOME_UNKNOWN: the runner was replaced ...")
    assert availability.check_runs(facts) != []  # No runner was lost: the run was claimed once.
    row(facts, "runs", 1).update(attempt_count=2)
    assert availability.check_runs(facts) == []


def test_agents_that_give_up_for_unknown_outcomes_are_few() -> None:
    facts = sound()
    row(facts, "runs", 1).update(result_text="I cannot go on: nobody knows.", attempt_count=2)
    row(facts, "entries", 1).update(body=b"... OUTCOME_UNKNOWN: the runner was replaced ...")
    facts.tables["runs"] += [row(facts, "runs", 1)] * 2
    assert availability.check_runs(facts) == ["3 runs gave up for a call of unknown outcome"]


def test_append_without_an_answer_takes_effect_after_its_call_only() -> None:
    facts = sound()
    unanswered = Call("append", T, 8.0, {"session_id": CHILD, "key": "d"}, 8.5, Outcome.UNKNOWN)
    facts.calls += [append("e", 5, 5.0, 6.0), unanswered]
    facts.tables["appends"].append({"session_id": CHILD, "request_id": "d", "first_seq": 6})
    assert appends.check_order(facts) == []
    facts.tables["appends"][-1]["first_seq"] = 4
    assert appends.check_order(facts) == ["e ended before d began, and has the seq 5 > 4"]


def test_append_that_was_repeated_may_have_its_effect_at_the_first_call() -> None:
    facts = sound()
    late = Call("append", T, 0.2, {"session_id": CHILD, "key": "d"}, 0.4, Outcome.UNKNOWN)
    facts.calls += [late, append("d", 4, 9.0, 9.5), append("e", 5, 5.0, 6.0)]
    assert appends.check_order(facts) == []
