"""The policy gate that comes with the client, run as an operator runs it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.forks import ForkServer

from tests.support.hook import plugin_process
from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import CONTENT, FINALIZE, Tenant, refused
from tests.support.hook.scripted_plugin import CONTINUE

MODULE = "spawnmesh_command.plugins.cel_policy"
RULES = [
    {
        "name": "sources",
        "require": "agent_id != 'main' || draft.contains('Sources:')",
        "reason": "Name your sources.",
    },
    {"name": "short", "require": "draft_bytes < 40", "reason": "Be shorter."},
]


@asynccontextmanager
async def serving(fork_server: ForkServer, rules: Any, keys: Path, folder: Path) -> AsyncIterator[str]:
    """Run the gate as a process and give its endpoint."""
    file = folder / "rules.json"
    file.write_text(json.dumps(rules))
    env = {"CEL_POLICY_FILE": str(file)}
    async with plugin_process.serving(fork_server, MODULE, keys, env=env) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
async def endpoint(
    fork_server: ForkServer, keys: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """The endpoint of a gate with the rules."""
    async with serving(fork_server, RULES, keys, tmp_path_factory.mktemp("rules")) as served_at:
        yield served_at


async def judged(
    tenant: Tenant, key: str, text: str, *, run_id: str = "run_1", agent_id: str = "main"
) -> str:
    """Return the reason of the revise, or an empty text if there is none."""
    answer = await tenant.draft(
        key, run_id=run_id, agent_id=agent_id, draft_text=text, draft_bytes=len(text.encode())
    )
    return str(answer.decision.revise.reason)


async def test_a_draft_is_revised_once_for_the_same_rules(tenant: Tenant, endpoint: str) -> None:
    await tenant.register("policy", endpoint, FINALIZE, grants=[CONTENT])
    assert await judged(tenant, "k1", "It is so, as " + "x" * 40) == "Name your sources.\nBe shorter."
    assert await judged(tenant, "k2", "It is so.") == "Name your sources."
    assert await judged(tenant, "k3", "It is so!") == ""
    assert await judged(tenant, "k1", "It is so.", run_id="run_2") == "Name your sources."
    assert await judged(tenant, "k1", "It is so.", run_id="run_3", agent_id="other") == ""
    assert await judged(tenant, "k1", "It is so. Sources: x", run_id="run_4") == ""


async def test_a_rule_without_a_boolean_result_fails_by_the_failure_policy(
    fork_server: ForkServer, tenant: Tenant, keys: Path, tmp_path: Path
) -> None:
    async with serving(
        fork_server, [{"name": "odd", "require": "draft_bytes", "reason": "x"}], keys, tmp_path
    ) as endpoint:
        await tenant.register("policy", endpoint, FINALIZE, grants=[CONTENT])
        with refused(Reason.PLUGIN_FAILED):
            await tenant.draft("k", draft_text="secret")
    [row] = await tenant.deliveries()
    assert decision_of(row) == "failed"
    assert "secret" not in row.error


async def test_a_draft_that_breaks_no_rule_is_final(tenant: Tenant, endpoint: str) -> None:
    await tenant.register("policy", endpoint, FINALIZE, grants=[CONTENT])
    answer = await tenant.draft("k", agent_id="main", draft_text="Sources: x", draft_bytes=10)
    assert (answer.decision, list(answer.capped_revisions)) == (CONTINUE, [])
