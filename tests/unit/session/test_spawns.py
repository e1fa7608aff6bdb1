"""Spawns: the spawner, the error that a failed step gives its caller, and its repeat."""

from dataclasses import replace
from datetime import timedelta

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_session.domain.spawns import SpawnFailure, SpawnSpec, is_uncertain, overtaken, spawn_error

SPAWN = SpawnSpec(
    session_id="ses_child",
    request_id="r1",
    payload_hash=b"",
    task_hash="",
    agent_id="analyst",
    label="",
    model="",
    mode="RUN",
    context="ISOLATED",
    cleanup="DELETE",
    runtime="SUBAGENT",
    run_timeout=timedelta(hours=1),
    parent_session_id="",
    parent_run_id="",
    mount_path="",
    attachment_count=0,
    traceparent="",
)


@pytest.mark.parametrize(
    ("parent_session_id", "parent_run_id", "spawner"),
    [("", "", ""), ("ses_1", "", ""), ("ses_1", "run_1", "ses_1")],
)
def test_spawner_is_the_session_whose_run_spawns(
    parent_session_id: str, parent_run_id: str, spawner: str
) -> None:
    spawn = replace(SPAWN, parent_session_id=parent_session_id, parent_run_id=parent_run_id)
    assert spawn.spawner == spawner


@pytest.mark.parametrize(
    ("spawn", "plain"),
    [
        (SPAWN, True),
        (replace(SPAWN, attachment_count=1), True),
        (replace(SPAWN, runtime="EXTERNAL"), True),
        (replace(SPAWN, runtime="EXTERNAL", attachment_count=1), False),
        (replace(SPAWN, context="FORK"), False),
        (replace(SPAWN, parent_session_id="ses_1"), False),
    ],
)
def test_plain_spawn_has_no_parent_no_fork_and_no_files_of_another_runtime(
    spawn: SpawnSpec, plain: bool
) -> None:
    assert spawn.is_plain is plain


@pytest.mark.parametrize(
    ("error", "uncertain"),
    [
        (MeshError(Reason.SPAWN_FAILED, "x", status=Status.UNAVAILABLE), True),
        (MeshError(Reason.SPAWN_FAILED, "x", status=Status.DEADLINE_EXCEEDED), True),
        (MeshError(Reason.SPAWN_FAILED, "x", status=Status.RESOURCE_EXHAUSTED), True),
        (MeshError(Reason.SPAWN_FAILED, "x", status=Status.INTERNAL), True),
        (MeshError(Reason.SPAWN_FAILED, "x", status=Status.FAILED_PRECONDITION), False),
        (MeshError(Reason.NOT_FOUND, "x"), False),
        (ConnectionResetError(), True),
    ],
)
def test_step_is_uncertain_unless_it_was_refused(error: BaseException, uncertain: bool) -> None:
    assert is_uncertain(error) is uncertain


@pytest.mark.parametrize(
    "reason",
    [
        Reason.SPAWN_REFUSED,
        Reason.SPAWN_FAILED,
        Reason.PLUGIN_FAILED,
        Reason.ATTACHMENT_SET_STATE,
        Reason.UPLOAD_INCOMPLETE,
    ],
)
def test_error_that_the_caller_caused_stays_as_it_is(reason: Reason) -> None:
    error = MeshError(reason, "x")
    assert spawn_error("stage", error) is error


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Reason.DEPENDENCY_UNAVAILABLE, Status.UNAVAILABLE),
        (Reason.NOT_FOUND, Status.FAILED_PRECONDITION),
    ],
)
def test_other_error_becomes_spawn_failed_with_its_step_and_cause(reason: Reason, status: Status) -> None:
    error = spawn_error("stage", MeshError(reason, "the cause", facts={"id": "x"}))
    assert (error.reason, error.status) == (Reason.SPAWN_FAILED, status)
    assert error.facts == {"id": "x", "step": "stage", "cause": reason.value}
    assert "'stage': the cause" in error.message


def test_stored_failure_gives_each_repeat_the_same_error() -> None:
    first = MeshError(
        Reason.SPAWN_FAILED, "a\x00b", status=Status.UNAVAILABLE, facts={"na\x00me": "va\x00lue"}
    )
    again = SpawnFailure.of("stage", first).as_error()
    assert (again.reason, again.status) == (Reason.SPAWN_FAILED, Status.UNAVAILABLE)
    assert again.message == "a\ufffdb"
    assert again.facts == {"na\ufffdme": "va\ufffdlue"}


def test_failures_that_the_caller_did_not_cause_name_their_step() -> None:
    for failure, step in ((SpawnFailure.cut_off("activate"), "activate"), (SpawnFailure.killed(), "kill")):
        assert (failure.step, failure.reason, failure.facts) == (step, Reason.SPAWN_FAILED, {"step": step})
    assert overtaken().reason is Reason.SPAWN_FAILED
    assert overtaken().facts == {"step": "deadline"}


def plugin_failed(is_transient: str) -> MeshError:
    return MeshError(Reason.PLUGIN_FAILED, "no valid answer", facts={"is_transient": is_transient})


@pytest.mark.parametrize(
    ("failure", "is_final"),
    [
        (SpawnFailure.cut_off("begin"), False),
        (SpawnFailure.killed(), True),
        (SpawnFailure.of("gate", MeshError(Reason.SPAWN_REFUSED, "no")), True),
        (SpawnFailure.of("gate", MeshError(Reason.PLUGIN_FAILED, "?")), False),
        (SpawnFailure.of("gate", plugin_failed("true")), False),
        (SpawnFailure.of("gate", plugin_failed("false")), True),
        (SpawnFailure.of("provision", MeshError(Reason.ATTACHMENTS_INVALID_NAME, "bad")), True),
        (SpawnFailure.of("provision", MeshError(Reason.UPLOAD_TAKEN_OVER, "busy")), False),
        (SpawnFailure.of("provision", spawn_error("provision", MeshError(Reason.CONFLICT, "busy"))), False),
        (SpawnFailure.of("provision", spawn_error("provision", MeshError(Reason.INTERNAL, "bug"))), False),
        (
            SpawnFailure.of("provision", spawn_error("provision", MeshError(Reason.POOL_EXHAUSTED, "."))),
            False,
        ),
        (SpawnFailure.of("activate", spawn_error("activate", MeshError(Reason.NOT_FOUND, "no"))), True),
        (SpawnFailure.of("activate", spawn_error("activate", MeshError(Reason.MESSAGE_TOO_LARGE, ""))), True),
        (
            SpawnFailure.of(
                "activate", spawn_error("activate", MeshError(Reason.PROCESSING_TIME_EXCEEDED, ""))
            ),
            True,
        ),
        (SpawnFailure.of("activate", overtaken()), False),
    ],
)
def test_what_would_fail_again_is_final_and_says_what_to_do(failure: SpawnFailure, is_final: bool) -> None:
    assert failure.is_final is is_final
    if failure.reason == Reason.SPAWN_FAILED:
        assert ("a new request_id" if is_final else "the same request_id") in failure.message
