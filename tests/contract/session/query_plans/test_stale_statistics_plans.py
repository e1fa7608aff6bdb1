"""Statements on live rows cost no more with statistics of an idle or tiny database."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import ALL_TENANTS

from tests.support.session.grown import TENANT, Grown, come_alive, due_time_of, grown_database
from tests.support.session.plans import COUNTED, blocks_touched
from tests.support.session.statements import page_values

SESSIONS = 6_000
FEW_BLOCKS = 60

BY_ID: dict[str, dict[str, Any]] = {
    "read_session": {},
    "close_session": {},
    "list_sessions CHILDREN NEWEST": {**page_values(), "family_root": ""},
    "list_sessions ROOT NEWEST": page_values(),
    "list_sessions LABELLED NEWEST": {
        **page_values("label = none"),
        "family_root": "",
        "parent_session_id": None,
    },
    "list_descendants ALL NEWEST": {**page_values(), "parent_session_id": None},
    "is_in_family": {},
    "count_live_children": {},
    "count_agents": {"agent_id": "default"},
    "delete_agent": {"agent_id": "no-such-agent"},
    "list_agents": {"after_id": "", "page_size": 50, "max_bytes": 1000},
    "lock_family": {},
    "list_parents": {},
    "lock_live_run": {},
    "lock_session_of_run": {},
    "lock_parent_of_run": {},
    "claim_run": {"runner_id": "r", "lease_ttl": "1 s"},
    "get_claimed": {},
    "begin_finalizing": {"epoch": 1, "entry_id": "e"},
    "get_finalizing": {},
    "resume_run": {"epoch": 1, "superseded_entry_id": "", "revision_count": 0},
    "decide_run": {
        "epoch": 1,
        "entry_id": "e",
        "text_key": "e:0",
        "capped_revisions": "[]",
        "finalized_by": [],
    },
    "withdraw_decision": {"epoch": 1, "entry_id": "e"},
    "release_run": {"epoch": 1},
    "delay_run": {"epoch": 1, "reason": "", "message": "", "pause": "0 s"},
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
    "list_inbox": {"max_bytes": 1000, "after_position": -1, "row_count": 101},
    "measure_inbox": {},
    "acknowledge_inbox": {"keys": ["k1"]},
    "extend_lease": {"epoch": 1, "lease_ttl": "1 s"},
    "undo_take": {"was_leased": True, "used_attempts": 1},
    "release_entry": {"attempt_count": 0},
    "lock_lost_entry": {"taken_due_time": None},
    "delete_entry": {},
    "delay_job": {"due_in": "1 s"},
    "delete_jobs": {},
    "complete_job": {},
    "retry_job": {"is_last": False, "kept_for": None},
    "run_job_again": {"arguments": None},
    "return_job": {},
    "prune_events": {"older_than": "1 day", "limit": 1000},
    "prune_messages": {"older_than": "1 day", "limit": 1000},
}


@pytest.fixture(scope="module", params=list(COUNTED.values()), ids=list(COUNTED))
def alive(
    postgres: Postgres, databases: dict[str, ServiceDsn], request: pytest.FixtureRequest
) -> Iterator[tuple[Grown, list[str]]]:
    """A database whose statistics know only ended sessions, and none due of one kind."""
    others, size, missing = request.param
    with (
        grown_database(postgres.superuser_dsn, others=others, size=size, count=0) as grown,
        psycopg.connect(grown.superuser_dsn, autocommit=True) as link,
    ):
        if missing:
            link.execute(f"delete from session.{missing}")
            link.execute(f"vacuum analyze session.{missing}")
        yield grown, come_alive(link, TENANT, SESSIONS)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_what_lives_is_found_by_its_id_in_a_few_blocks(alive: tuple[Grown, list[str]], mode: str) -> None:
    grown, session_ids = alive
    asked = session_ids[-1]
    named = {
        "tenant_id": TENANT,
        "session_id": asked,
        "session_ids": [asked],
        "parent_session_id": asked,
        "family_root": asked,
        "run_id": f"run{asked[3:]}",
        "taken_until": due_time_of(grown, f"run{asked[3:]}"),
        "kind": "delete_session",
        "key": asked,
        "keys": [asked],
        "claim_id": None,
        "pause": "1 s",
        "error": "",
    }
    touched: dict[str, int] = {}
    for name, more in BY_ID.items():
        values = {**named, **more}
        if name == "acknowledge_inbox":
            values["session_id"] = session_ids[0]
        touched[name] = blocks_touched(grown, TENANT, name, values, mode)
    assert {name: blocks for name, blocks in touched.items() if blocks > FEW_BLOCKS} == {}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_runs_are_taken_without_reading_all_that_wait(alive: tuple[Grown, list[str]], mode: str) -> None:
    grown, _ = alive
    everything = {"tenants": None, "agents": None}
    values = {"lease_ttl": "1 minute", "limit": 4, "reserved": 1, "runtimes": ["SUBAGENT"], **everything}
    with psycopg.connect(grown.superuser_dsn) as link:
        tenants = link.execute("select count(*) from session.tenants").fetchone() or (0,)
    assert blocks_touched(grown, ALL_TENANTS, "take_claimable_runs", values, mode) < 520 + 5 * tenants[0]


def test_live_roots_are_found_by_reading_each_session_once(alive: tuple[Grown, list[str]]) -> None:
    grown, _ = alive
    touched = blocks_touched(
        grown, TENANT, "list_live_roots", {"tenant_id": TENANT, "limit": 100}, "force_custom_plan"
    )
    assert touched < 6 * SESSIONS


_DIRECTORY = (
    """
    insert into session.agents (tenant_id, agent_id, system_prompt, models, tools, spawnable_agents,
        max_turn_count, context_token_budget)
    select tenant, 'a-' || lpad(n::text, 4, '0'), repeat('x', 200), '{}', '{}', '{}', 0, 0
    from unnest(array[%(tenant)s, 't-other', 't-third']) tenant, generate_series(1, 1000) n
    """,
    """
    insert into session.tenants (tenant_id, display_name, settings, max_running_run_count,
        max_queued_run_count, ready)
    select 'u-' || n, '', '{}', 32, 1000, n %% 100 > 0 from generate_series(1, 5000) n
    """,
    "insert into session.tenant_deletions (tenant_id) select id || n from unnest(array['u-', 'w-']) id, generate_series(4000, 5000) n",
)


@pytest.fixture(scope="module", params=["never", "one tenant"])
def directory(
    postgres: Postgres, databases: dict[str, ServiceDsn], request: pytest.FixtureRequest
) -> Iterator[Grown]:
    """A tenant with the maximum of agents, and thousands of tenants, some of them deleted."""
    others, size, _ = COUNTED[request.param]
    with grown_database(postgres.superuser_dsn, others=others, size=size, count=0) as grown:
        with psycopg.connect(grown.superuser_dsn, autocommit=True) as link:
            for statement in _DIRECTORY:
                link.execute(statement, {"tenant": TENANT})
        yield grown


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_page_of_agents_or_of_tenants_costs_a_page(directory: Grown, mode: str) -> None:
    page = {"tenant_id": TENANT, "agent_id": "a-0001", "page_size": 50, "max_bytes": 1_000_000}
    agents = {
        f"{name} {after}": blocks_touched(directory, TENANT, name, {**page, "after_id": after}, mode)
        for name in ("list_agents", "count_agents")
        for after in ("", "a-0500")
    }
    assert max(agents.values()) <= FEW_BLOCKS, agents
    tenants = {
        after: blocks_touched(directory, ALL_TENANTS, "list_tenants", {**page, "after_id": after}, mode)
        for after in ("", "u-3", "u-45")
    }
    assert max(tenants.values()) <= 5 * FEW_BLOCKS, tenants
