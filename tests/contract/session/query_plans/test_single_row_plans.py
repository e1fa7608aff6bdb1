"""Statements for one id cost no more in a tenant that grew after the last analyze."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.session.grown import (
    BEING_SPAWNED,
    FILL_TENANT,
    IDLE,
    TENANT,
    Grown,
    due_time_of,
    grown_database,
)
from tests.support.session.statements import SQL, page_values

SESSIONS = 8_000
FEW_BLOCKS = 60
MORE_BLOCKS = {"queue_run": 80}  # It writes four rows in four tables, each with its indexes.
SMALL = "t-small"

TEXTS: dict[str, Any] = {
    "session_id": "new",
    "request_id": "new",
    "payload_hash": b"",
    "agent_id": "default",
    "label": "",
    "model": "",
    "mode": "RUN",
    "context": "ISOLATED",
    "cleanup": "DELETE",
    "runtime": "SUBAGENT",
    "task_hash": "",
    "traceparent": "",
    "thinking": "",
    "metadata": Jsonb({"ticket": "17"}),
}

NOW = datetime.now(UTC)
OF_ALL_APPROVALS = {
    "session_id": "",
    "agent_id": "",
    "tool_name": "",
    "after_id": "",
    "limit": 51,
    "scan_limit": 1000,
}

LIMITS = {
    "max_token_count": 1,
    "max_cost_micros": 1,
    "max_model_call_count": 1,
    "max_run_time": "1 s",
    "max_wait": "1 s",
}

SCHEDULE = {
    "cron": "0 9 * * *",
    "time_zone": "",
    "spawn": b"",
    "overlap": "SKIP",
    "catch_up": "NONE",
    "cursor_time": NOW,
    "updated_by": "",
}

FIRING = {
    "due_time": NOW,
    "fire_time": NOW,
    "outcome": "SPAWNED",
    "error_reason": "",
    "error_message": "",
    "is_manual": False,
}

BY_ID: dict[str, dict[str, Any]] = {
    "find_spawn": {"spawner": ""},
    "delete_agent": {"agent_id": "no-such-agent"},
    "read_session": {},
    "begin_spawn": {**TEXTS, "run_timeout": "1 hour", "due_in": "1 hour", "margin": 100},
    "insert_session": {
        **TEXTS,
        "fork_source": "",
        "fork_seq": 0,
        "run_id": "",
        "parent_run_id": "",
        "ancestor_ids": [],
        "budget_session_ids": [],
        "agent_version": 1,
        "run_timeout": "1 hour",
        "due_in": "1 hour",
    },
    "lock_session": {},
    "reserve_epoch": {},
    "get_agent_of_spawn": {"agent_id": "default"},
    "lock_parent_of_spawn": {},
    "get_agent_of_parent": {},
    "get_run_of_parent": {"parent_run_id": "run"},
    "count_agents": {"agent_id": "default"},
    "list_agents": {"after_id": "", "page_size": 50, "max_bytes": 1000},
    "lock_session_or_deleted": {},
    "lock_members": {},
    "count_live_children": {},
    "pass_gate": {},
    "activate_session": {"session_id": BEING_SPAWNED, "receipt": None},
    "enqueue_jobs_of_run": {
        "run_id": "no-such-run",
        "jobs": Jsonb([{"kind": "t", "key": "k", "arguments": {}, "traceparent": ""}]),
    },
    "fail_spawn": {"failure": None, "is_final": True},
    "get_spawn": {},
    "close_session": {},
    "archive_sessions": {},
    "delete_sessions": {},
    "find_deleted_sessions": {},
    "list_events": {"after_number": 0},
    "get_run": {},
    "lock_run": {},
    "lock_live_run": {},
    "list_killed_runs": {},
    "lock_session_of_run": {},
    "lock_parent_of_run": {},
    "claim_run": {"runner_id": "r", "lease_ttl": "1 s"},
    "get_claimed": {},
    "queue_run": {"session_id": IDLE, "run_id": "new", "run_timeout": "1 hour", "max_attempts": 3},
    "begin_finalizing": {"epoch": 1, "entry_id": "e"},
    "get_finalizing": {},
    "supersede_decided": {"epoch": 1, "entry_id": "e"},
    "decide_run": {
        "epoch": 1,
        "entry_id": "e",
        "text_key": "e:0",
        "capped_revisions": "[]",
        "finalized_by": [],
    },
    "withdraw_decision": {"epoch": 1, "entry_id": "e"},
    "resume_run": {"epoch": 1, "superseded_entry_id": "", "revision_count": 0},
    "release_run": {"epoch": 1},
    "delay_run": {"epoch": 1, "reason": "", "message": "", "pause": "0 s"},
    "park_run": {"epoch": 1, "approval_id": "a", "now": NOW},
    "unpark_run": {"now": NOW, "deadline_time": NOW},
    "park_entry": {"attempt_count": 0, "expire_time": NOW, "for_budget": False},
    "park_run_for_budget": {"epoch": 1, "budget_session_id": "b", "now": NOW, "usage": None},
    "wait_on": {"budget_session_id": "b"},
    "list_waiting_runs": {"budget_session_id": "b", "after_id": "", "limit": 100},
    "set_counted_time": {"now": NOW},
    "set_reported_event_count": {"count": 1},
    "insert_budget": {"session_id": IDLE, **LIMITS},
    "list_budgets": {},
    "lock_budgets": {},
    "add_use": {"token_count": 1, "cost_micros": 1, "model_call_count": 1, "run_time": "1 s"},
    "change_limits": {**LIMITS, "now": NOW, "updated_by": ""},
    "delete_budgets": {},
    "find_model_call": {"call_id": "no-such-call"},
    "insert_model_call": {
        "call_id": "new",
        "largest_token_count": 1,
        "largest_cost_micros": 1,
        "budget_session_ids": ["b"],
        "root_session_id": "b",
        "now": NOW,
    },
    "lock_family_calls": {"root_session_id": "b"},
    "set_counted": {"call_ids": ["no-such-call"]},
    "report_model_call": {"call_id": "no-such-call"},
    "delete_model_call": {"call_id": "no-such-call"},
    "get_lease_end": {},
    "count_schedules": {},
    "get_schedule": {},
    "lock_schedule": {},
    "lock_schedule_by_id": {},
    "insert_schedule": {**SCHEDULE, "name": "new", "schedule_id": "new"},
    "update_schedule": SCHEDULE,
    "set_paused": {"paused": True, "cursor_time": NOW},
    "move_cursor": {"cursor_time": NOW},
    "set_sessions": {"session_ids": ["ses~1"]},
    "set_busy": {"busy_until": None},
    "begin_attempt": {"attempt_time": NOW},
    "delete_schedule": {},
    "insert_firing": {**FIRING, "firing_id": "new"},
    "get_firing": {},
    "next_due_firing": {},
    "end_firing": FIRING,
    "newest_firing": {},
    "list_firings": {
        "outcome": "",
        "start_time": "-infinity",
        "end_time": "infinity",
        "before_time": "infinity",
        "before_id": "",
        "limit": 51,
        "scan_limit": 1000,
    },
    "delete_due_firings": {},
    "delete_model_calls": {},
    "list_children_of": {"limit": 10_001},
    "sum_usage": {"largest": 9},
    "unpark_entry": {"deadline_time": NOW},
    "get_approval": {"approval_id": "no-such-approval"},
    "lock_approval": {"approval_id": "no-such-approval"},
    "insert_approval": {
        "session_id": IDLE,
        "approval_id": "new",
        "agent_id": "default",
        "ancestor_ids": [],
        "tool_name": "pay",
        "arguments_json": "{}",
        "parameters_json": "",
        "question": "",
        "choices": [],
        "reason": "",
        "on_expiry": "DENY",
        "create_time": NOW,
        "expire_time": NOW,
    },
    "decide_approval": {
        "approval_id": "no-such-approval",
        "state": "DENIED",
        "now": NOW,
        "decided_by": "",
        "edited_arguments_json": "",
        "text": "",
    },
    "escalate_approval": {"approval_id": "no-such-approval", "now": NOW, "expire_time": NOW},
    "begin_call": {"approval_id": "no-such-approval", "epoch": 1, "now": NOW},
    "list_approvals pending": {**OF_ALL_APPROVALS, "state": "PENDING"},
    "delete_approvals": {},
    "find_output_set": {"set_id": "no-such-set"},
    "begin_output_set": {"session_id": IDLE, "run_id": "run", "set_id": "new", "request_id": "r"},
    "publish_output_set": {
        "set_id": "no-such-set",
        "files": Jsonb([]),
        "file_count": 0,
        "total_bytes": 0,
        "position": 1,
        "publish_time": NOW,
    },
    "list_output_sets": {
        "run_id": "",
        "request_id": "",
        "after_position": 0,
        "limit": 51,
        "max_bytes": 10000,
    },
    "list_published_names": {"limit": 50},
    "blank_output_sets": {},
    "list_output_set_ids": {"limit": 50},
    "delete_output_sets": {"set_ids": ["no-such-set"]},
    "end_run": {
        "epoch": 1,
        "state": "FAILED",
        "draft_entry_id": "",
        "result_text": "",
        "error_reason": "",
        "error_message": "",
        "usage": None,
        "token_ttl": "6 m",
    },
    "notify_runners_of_place": {},
    "delete_runs": {},
    "delete_events": {},
    "delete_messages": {},
    "get_message_text": {"key": "k"},
    "list_inbox": {"max_bytes": 1000, "after_position": -1, "row_count": 101},
    "measure_inbox": {},
    "count_inbox": {"arrived_after": None},
    "acknowledge_inbox": {"keys": ["k"]},
    "delete_entry": {},
    "enqueue_jobs": {
        "jobs": Jsonb([{"kind": "t", "key": "k", "due_in": 1, "arguments": {}, "traceparent": ""}])
    },
    "reschedule_job": {"due_in": "1 s", "arguments": Jsonb({}), "traceparent": ""},
    "delay_job": {"due_in": "1 s"},
    "delete_jobs": {},
    "complete_job": {},
    "retry_job": {"is_last": False, "kept_for": None},
    "run_job_again": {"arguments": None},
    "return_job": {},
    "retry_dead_job": {},
    "discard_job": {},
    "get_job_state": {},
    "extend_lease": {"epoch": 1, "lease_ttl": "1 s"},
    "undo_take": {"was_leased": True, "used_attempts": 1},
    "release_entry": {"pause": "0 s", "attempt_count": 0},
    "record_heartbeat": {"longest_break": "3 s"},
    "lock_lost_entry": {"taken_due_time": None},
    "list_sessions CHILDREN NEWEST": {**page_values(), "family_root": ""},
    "list_sessions ROOT NEWEST": page_values(),
    "list_sessions LABELLED NEWEST": {
        **page_values("label = none"),
        "family_root": "",
        "parent_session_id": None,
    },
    "list_requested": {"spawner": "", "include_archived": True},
    "list_descendants ALL NEWEST": {**page_values(), "parent_session_id": None},
    "is_in_family": {},
}


@pytest.fixture(scope="module", params=[(0, 0), (60, 40)], ids=["never counted", "counted before"])
def grown(
    postgres: Postgres, databases: dict[str, ServiceDsn], request: pytest.FixtureRequest
) -> Iterator[Grown]:
    """The databases' roles exist; the planner knows of so many tenants of so many sessions each."""
    others, size = request.param
    with grown_database(postgres.superuser_dsn, others=others, size=size, count=SESSIONS) as database:
        yield database


def blocks_touched(grown: Grown, name: str, values: dict[str, Any]) -> int:
    """Return the blocks of a statement that is rolled back, after a first call."""
    explain = f"explain (analyze, buffers, format json) {SQL[name]}"
    with psycopg.connect(grown.app_dsn, row_factory=dict_row) as link:
        for _ in range(2):
            link.execute("select set_config('spawnmesh.tenant', %s, true)", (TENANT,))
            row = link.execute(explain, values).fetchone()
            link.rollback()
    assert row is not None
    plan = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def test_what_is_found_by_its_id_touches_a_few_blocks(grown: Grown) -> None:
    asked = grown.session_ids[SESSIONS // 2]
    named = {
        "tenant_id": TENANT,
        "session_id": asked,
        "session_ids": [asked],
        "parent_session_id": asked,
        "family_root": asked,
        "run_id": f"run{asked[3:]}",
        "taken_until": due_time_of(grown, f"run{asked[3:]}"),
        "request_id": f"r{SESSIONS // 2}{TENANT}",
        "kind": "delete_session",
        "key": asked,
        "keys": [asked],
        "claim_id": None,
        "name": "s-1",
        "schedule_id": "sch-1",
        "firing_id": f"fir{asked[3:]}",
        "pause": "1 s",
        "error": "",
    }
    touched = {name: blocks_touched(grown, name, {**named, **more}) for name, more in BY_ID.items()}
    assert {
        name: blocks for name, blocks in touched.items() if blocks > MORE_BLOCKS.get(name, FEW_BLOCKS)
    } == {}


def test_a_spawn_by_a_client_touches_a_few_blocks(grown: Grown) -> None:
    """Of a tenant that has nothing yet, beside one that has grown."""
    values = {"tenant_id": SMALL, **BY_ID["begin_spawn"], "session_id": "ses_new"}
    with psycopg.connect(grown.superuser_dsn, row_factory=dict_row, autocommit=True) as owner:
        for statement in FILL_TENANT:
            owner.execute(statement, {"tenants": [SMALL]})
    assert blocks_touched(grown, "begin_spawn", values) <= FEW_BLOCKS
    with psycopg.connect(grown.app_dsn, row_factory=dict_row) as link:
        link.execute("select set_config('spawnmesh.tenant', %s, true)", (SMALL,))
        assert link.execute(SQL["begin_spawn"], values).fetchone() == {"session_id": "ses_new"}
        assert link.execute(SQL["begin_spawn"], values).fetchone() is None


def test_a_page_of_what_is_to_be_deleted_costs_a_page(grown: Grown) -> None:
    page = {
        "tenant_id": TENANT,
        "delete_after": "1 day",
        "after_time": "-infinity",
        "after_id": "",
        "limit": 200,
        "session_ids": grown.session_ids[1:201],
    }
    touched = {
        name: blocks_touched(grown, name, page) for name in ("list_sessions_to_delete", "list_parents")
    }
    assert max(touched.values()) < 2_000, touched
