"""The reviewer that calls a model, with the real router and a loopback provider."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.hook.decisions import decision_of
from tests.support.hook.fixtures import CONTENT, FINALIZE, Tenant, refused
from tests.support.hook.plugin_process import serving
from tests.support.hook.scripted_plugin import CONTINUE, revise
from tests.support.model_router.fixtures import Router, World, open_world
from tests.support.model_router.provider import RATE_LIMITED, Answering, chat, sse

MODULE = "spawnmesh_command.plugins.model_reviewer"


@pytest.fixture
async def world(databases: dict[str, ServiceDsn], keys: Path, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(databases["model_router"], keys, tmp_path) as opened:
        yield opened


@asynccontextmanager
async def reviewing(
    fork_server: ForkServer, router: Router, model: str, tenant: Tenant
) -> AsyncIterator[str]:
    """Run the reviewer as a process for the tenant and give its endpoint."""
    env = {
        "SPAWNMESH_SESSION_TARGET": "127.0.0.1:1",
        "SPAWNMESH_MODEL_ROUTER_TARGET": router.target,
        "SPAWNMESH_SIGNING_KEY_FILE": str(router.keys / "client.pem"),
        "SPAWNMESH_TENANT": tenant.tenant_id,
        "MODEL_REVIEWER_MODEL": model,
        "MODEL_REVIEWER_CRITERIA": "It names its sources.",
    }
    async with serving(fork_server, MODULE, router.keys, tenant.tenant_id, env=env) as endpoint:
        yield endpoint


async def test_the_model_behind_the_router_decides_about_a_draft(
    fork_server: ForkServer, tenant: Tenant, world: World
) -> None:
    router = await world.router(tenant=tenant.tenant_id)
    world.provider.on("two", sse(*chat("REVISE: name ", "your sources.")), sse(*chat("ACCEPT")))
    async with reviewing(fork_server, router, world.ref("two"), tenant) as endpoint:
        await tenant.register("reviewer", endpoint, FINALIZE, grants=[CONTENT])
        sent_back = await tenant.draft("k1", draft_text="It is so.")
        accepted = await tenant.draft("k2", draft_text="It is so: see the file.")
    assert (sent_back.decision, list(sent_back.decided_by)) == (revise("name your sources."), ["reviewer"])
    assert accepted.decision == CONTINUE
    prompts = [str(body["messages"]) for body in world.provider.bodies]
    assert ["It is so." in prompts[0], "It is so: see the file." in prompts[1]] == [True, True]
    assert all("It names its sources." in text for text in prompts)


@pytest.mark.parametrize("answer", [RATE_LIMITED, sse(*chat("I cannot say."))], ids=["no_answer", "neither"])
async def test_a_reviewer_without_a_verdict_fails_by_its_policy(
    fork_server: ForkServer, tenant: Tenant, world: World, answer: Answering
) -> None:
    router = await world.router(tenant=tenant.tenant_id)
    world.provider.on("two", answer, answer)
    async with reviewing(fork_server, router, world.ref("two"), tenant) as endpoint:
        await tenant.register("reviewer", endpoint, FINALIZE, grants=[CONTENT])
        with refused(Reason.PLUGIN_FAILED):
            await tenant.draft("k", draft_text="secret draft")
        await tenant.register("reviewer", endpoint, FINALIZE, grants=[CONTENT], policy=pb.FAILURE_POLICY_OPEN)
        assert (await tenant.draft("k", draft_text="secret draft")).decision == CONTINUE
    rows = await tenant.deliveries()
    assert [decision_of(row) for row in rows] == ["failed", "failed"]
    assert not any("secret" in row.error for row in rows)
