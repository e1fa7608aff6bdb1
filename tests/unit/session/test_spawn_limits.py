"""Refusals of a spawn before anything exists, and their order."""

from dataclasses import replace
from datetime import timedelta

import pytest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_session.domain.agents import DEFAULT_AGENT
from spawnmesh_session.domain.sessions import SessionState
from spawnmesh_session.domain.spawns import SpawnLimits, SpawnParent, SpawnSpec, check_spawn, spawn_limits_of

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
PARENT = SpawnParent("ses_parent", SessionState.ACTIVE, DEFAULT_AGENT, ancestor_ids=(), live_child_count=0)
LIMITS = SpawnLimits(max_spawn_depth=2, max_live_child_count=3, max_queued_run_count=4, max_spawn_count=9)


def refusal(spawn: SpawnSpec, parent: SpawnParent | None, waiting: int = 0) -> MeshError:
    with pytest.raises(MeshError) as caught:
        check_spawn(spawn, parent, LIMITS, waiting)
    return caught.value


@pytest.mark.parametrize(
    ("spawn", "parent", "waiting"),
    [
        pytest.param(SPAWN, None, 3, id="one place left in the queue"),
        pytest.param(SPAWN, PARENT, 0, id="a first child"),
        pytest.param(SPAWN, replace(PARENT, live_child_count=2), 0, id="one child left"),
        pytest.param(SPAWN, replace(PARENT, spawn_count=8), 0, id="one spawn left"),
        pytest.param(SPAWN, replace(PARENT, ancestor_ids=("ses_root",)), 0, id="at the deepest level"),
        pytest.param(replace(SPAWN, runtime="EXTERNAL"), None, 0, id="EXTERNAL without attachments"),
        pytest.param(replace(SPAWN, context="FORK"), PARENT, 0, id="FORK with a parent"),
    ],
)
def test_spawn_within_every_limit_is_let_through(
    spawn: SpawnSpec, parent: SpawnParent | None, waiting: int
) -> None:
    check_spawn(spawn, parent, LIMITS, waiting)


@pytest.mark.parametrize(
    ("spawn", "parent", "waiting", "reason", "facts"),
    [
        (
            replace(SPAWN, runtime="EXTERNAL", attachment_count=2),
            None,
            0,
            Reason.ATTACHMENTS_UNSUPPORTED_RUNTIME,
            {"attachment_count": "2"},
        ),
        (replace(SPAWN, context="FORK"), None, 0, Reason.FORK_WITHOUT_PARENT, {}),
        (SPAWN, None, 4, Reason.RUN_QUEUE_FULL, {"limit": "4", "waiting": "4"}),
        (
            SPAWN,
            replace(PARENT, state=SessionState.CLOSED),
            0,
            Reason.SESSION_CLOSED,
            {"session_id": "ses_parent", "state": "CLOSED"},
        ),
        (
            SPAWN,
            replace(PARENT, agent=replace(DEFAULT_AGENT, spawnable_agents=("writer",))),
            0,
            Reason.AGENT_NOT_SPAWNABLE,
            {"agent_id": "analyst", "parent_agent_id": "default"},
        ),
        (
            SPAWN,
            replace(PARENT, ancestor_ids=("a", "b")),
            0,
            Reason.SPAWN_DEPTH_EXCEEDED,
            {"limit": "2", "depth": "3"},
        ),
        (
            SPAWN,
            replace(PARENT, spawn_count=9),
            0,
            Reason.SPAWN_COUNT_EXCEEDED,
            {"limit": "9", "spawned": "9"},
        ),
        (
            SPAWN,
            replace(PARENT, live_child_count=3),
            0,
            Reason.CHILDREN_LIMIT_EXCEEDED,
            {"limit": "3", "live": "3"},
        ),
    ],
)
def test_spawn_beyond_a_limit_is_refused_with_the_limit_in_the_facts(
    spawn: SpawnSpec, parent: SpawnParent | None, waiting: int, reason: Reason, facts: dict[str, str]
) -> None:
    error = refusal(spawn, parent, waiting)
    assert error.reason is reason
    assert error.facts == facts


def test_agent_named_by_its_parent_may_be_spawned() -> None:
    parent = replace(PARENT, agent=replace(DEFAULT_AGENT, spawnable_agents=("writer", "analyst")))
    check_spawn(SPAWN, parent, LIMITS, 0)


def test_full_queue_and_too_many_children_say_when_to_call_again() -> None:
    assert refusal(SPAWN, None, 9).retry_after_seconds == 1.0
    assert refusal(SPAWN, replace(PARENT, live_child_count=9)).retry_after_seconds == 1.0


def test_spawns_in_a_life_are_unlimited_by_default() -> None:
    check_spawn(SPAWN, replace(PARENT, spawn_count=1_000_000), SpawnLimits(), 0)


def test_parent_may_be_allowed_one_spawn_in_its_life() -> None:
    limits = replace(LIMITS, max_spawn_count=1)
    check_spawn(SPAWN, PARENT, limits, 0)
    with pytest.raises(MeshError) as caught:
        check_spawn(SPAWN, replace(PARENT, spawn_count=1), limits, 0)
    assert caught.value.reason is Reason.SPAWN_COUNT_EXCEEDED


def test_settings_of_zero_or_absent_have_the_defaults() -> None:
    assert spawn_limits_of({"max_spawn_depth": 0, "max_running_run_count": 7}) == SpawnLimits(
        max_running_run_count=7
    )
    assert spawn_limits_of({}) == SpawnLimits(5, 5, 1000, 32, 0, 1)
