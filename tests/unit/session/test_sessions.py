"""Sessions: when one is done, and which callers may access it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain.runs import Run, RunState
from spawnmesh_session.domain.sessions import Session, SessionMode, SessionState, require_access

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SESSION = Session(
    session_id="ses_3",
    state=SessionState.ACTIVE,
    agent_id="analyst",
    label="",
    model="",
    mode=SessionMode.SESSION,
    context="ISOLATED",
    cleanup="KEEP",
    runtime="SUBAGENT",
    thinking="",
    metadata={},
    agent_version=1,
    parent_session_id="ses_2",
    parent_run_id="run_2",
    ancestor_ids=("ses_1", "ses_2"),
    spawn_count=0,
    run_timeout=timedelta(hours=1),
    task_hash="",
    traceparent="",
    receipt=None,
    gate_passed=True,
    failure=None,
    create_time=NOW,
    end_time=None,
    archive_time=None,
    delete_time=None,
)


def run_in(state: RunState) -> Run:
    return Run("run_3", "ses_3", state, 1, 1, 1, "", "", "", "", "", "", {}, 0, NOW, NOW, NOW, None, None)


@pytest.mark.parametrize(
    ("state", "run_state", "done"),
    [
        (SessionState.PROVISIONING, None, False),
        (SessionState.ACTIVE, None, False),
        (SessionState.ACTIVE, RunState.QUEUED, False),
        (SessionState.ACTIVE, RunState.RUNNING, False),
        (SessionState.ACTIVE, RunState.FINALIZING, False),
        (SessionState.ACTIVE, RunState.WAITING_APPROVAL, False),
        (SessionState.ACTIVE, RunState.SUCCEEDED, True),
        (SessionState.ACTIVE, RunState.FAILED, True),
        (SessionState.ACTIVE, RunState.TIMED_OUT, True),
        (SessionState.ACTIVE, RunState.KILLED, True),
        (SessionState.CLOSED, None, True),
        (SessionState.SPAWN_FAILED, None, True),
        (SessionState.CLOSED, RunState.RUNNING, True),
    ],
)
def test_session_is_done_when_it_or_its_newest_run_has_ended(
    state: SessionState, run_state: RunState | None, done: bool
) -> None:
    run = run_in(run_state) if run_state else None
    assert replace(SESSION, state=state, latest_run=run).is_done is done


@pytest.mark.parametrize(
    "family_root",
    [
        pytest.param("", id="a client"),
        pytest.param("ses_3", id="the session itself"),
        pytest.param("ses_2", id="its parent"),
        pytest.param("ses_1", id="its grandparent"),
    ],
)
def test_session_is_accessible_to_clients_and_to_its_family(family_root: str) -> None:
    assert require_access(SESSION, "ses_3", family_root) is SESSION


@pytest.mark.parametrize(
    ("session", "family_root"),
    [
        pytest.param(SESSION, "ses_9", id="a session of another family"),
        pytest.param(None, "", id="an absent session"),
        pytest.param(None, "ses_3", id="an absent session, asked for by itself"),
    ],
)
def test_absent_session_and_one_of_another_family_are_not_found(
    session: Session | None, family_root: str
) -> None:
    with pytest.raises(MeshError) as caught:
        require_access(session, "ses_3", family_root)
    assert caught.value.reason is Reason.NOT_FOUND
    assert caught.value.facts == {"resource": "session", "id": "ses_3"}
