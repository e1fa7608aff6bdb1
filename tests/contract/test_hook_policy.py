"""The bundled policy gate, run as an operator runs it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.contract import plugin_process
from tests.contract.hook_fixtures import CONTENT, CONTINUE, FINALIZE, HookMesh, Tenant, open_mesh, refused

MODULE = "spawnmesh_client.hooks.bundled.cel_policy"
RULES = [
    {"name": "sources", "require": "agent_id != 'main' || draft.contains('Sources:')", "reason": "Name your sources."},
    {"name": "short", "require": "draft_bytes < 40", "reason": "Be shorter."},
]


@pytest.fixture
async def mesh(databases: dict[str, ServiceDsn], keys: Path) -> AsyncIterator[HookMesh]:
    async with open_mesh(databases["hook"], keys) as opened:
        yield opened


@pytest.fixture
async def tenant(mesh: HookMesh) -> Tenant:
    return mesh.tenant(await mesh.replica())


@asynccontextmanager
async def serving(rules: Any, keys: Path, folder: Path) -> AsyncIterator[str]:
    """The gate as a process of its own; gives its endpoint."""
    file = folder / "rules.json"
    file.write_text(json.dumps(rules))
    async with plugin_process.serving(MODULE, keys, env={"CEL_POLICY_FILE": str(file)}) as endpoint:
        yield endpoint


async def judged(tenant: Tenant, key: str, text: str, *, run_id: str = "run_1", agent_id: str = "main") -> str:
    """What the draft is sent back with; empty where it is not."""
    answer = await tenant.draft(key, run_id=run_id, agent_id=agent_id, draft_text=text, draft_bytes=len(text.encode()))
    return str(answer.decision.revise.reason)


async def test_drafts_that_break_rules_go_back_once_for_the_same_rules(
    tenant: Tenant, keys: Path, tmp_path: Path
) -> None:
    async with serving(RULES, keys, tmp_path) as endpoint:
        await tenant.register("policy", endpoint, FINALIZE, grants=[CONTENT])
        assert await judged(tenant, "k1", "It is so, as " + "x" * 40) == "Name your sources.\nBe shorter."
        assert await judged(tenant, "k2", "It is so.") == "Name your sources."
        assert await judged(tenant, "k3", "It is so!") == ""
        assert await judged(tenant, "k1", "It is so.", run_id="run_2") == "Name your sources."
        assert await judged(tenant, "k1", "It is so.", run_id="run_3", agent_id="other") == ""
        assert await judged(tenant, "k1", "It is so. Sources: x", run_id="run_4") == ""


async def test_a_rule_that_says_neither_fails_as_the_policy_of_failures_says(
    tenant: Tenant, keys: Path, tmp_path: Path
) -> None:
    async with serving([{"name": "odd", "require": "draft_bytes", "reason": "x"}], keys, tmp_path) as endpoint:
        await tenant.register("policy", endpoint, FINALIZE, grants=[CONTENT])
        with refused(Reason.PLUGIN_FAILED):
            await tenant.draft("k", draft_text="secret")
    [row] = await tenant.deliveries()
    assert row.decision == "failed"
    assert "secret" not in row.error


async def test_a_draft_that_breaks_no_rule_is_final(tenant: Tenant, keys: Path, tmp_path: Path) -> None:
    async with serving(RULES, keys, tmp_path) as endpoint:
        await tenant.register("policy", endpoint, FINALIZE, grants=[CONTENT])
        answer = await tenant.draft("k", agent_id="main", draft_text="Sources: x", draft_bytes=10)
    assert (answer.decision, answer.capped) == (CONTINUE, False)
