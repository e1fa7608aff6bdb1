"""Whichever way a session goes, the observers of its tenant are told of it, once published however often the work is repeated."""

from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.event_pb2 import (
    HOOK_KIND_AGENT_END,
    HOOK_KIND_SESSION_END,
    HOOK_KIND_SESSION_START,
    HOOK_KIND_SUBAGENT_ENDED,
    HOOK_KIND_SUBAGENT_SPAWNED,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1 import session_pb2
from spawnmesh_runtime.acting import acting_with_token

from tests.contract.serving import caller_at, client_tokens
from tests.contract.session.harness import Mesh, OpenMesh
from tests.contract.session.terminal_paths import (
    ENDED,
    UNDONE,
    Path,
    Stage,
    killed_while_spawning,
    killed_with_its_parent,
    refused_by_a_hook,
)
from tests.contract.session.worker import work_once

KINDS = [
    HOOK_KIND_SESSION_START,
    HOOK_KIND_SUBAGENT_SPAWNED,
    HOOK_KIND_AGENT_END,
    HOOK_KIND_SUBAGENT_ENDED,
    HOOK_KIND_SESSION_END,
]


@pytest.fixture
async def stage(_served_mesh: Mesh, open_mesh: OpenMesh, peers: dict[str, str]) -> AsyncIterator[Stage]:
    """A tenant of its own, whose events somebody listens to."""
    mesh = Mesh(_served_mesh.peer, _served_mesh.keys, _served_mesh.settings)
    await mesh.create_tenant()
    observer = hook_pb.Plugin(name="observer", endpoint="grpc://127.0.0.1:1", hooks=KINDS)
    async with caller_at(peers["hook"], "hook") as hook, caller_at(peers["transcript"], "transcript") as transcript:
        stub: Any = HookServiceStub(hook.channel)
        with acting_with_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            request = hook_pb.RegisterPluginRequest(plugin=observer, allow_unreachable=True)
            await hook.unary(stub.RegisterPlugin, request)
        yield Stage(mesh, open_mesh, transcript, peers, session_pb2.CLEANUP_DELETE)


def superuser_dsn_of(postgres: Any) -> str:
    """To the database that the services are in."""
    dsn: str = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    return dsn


async def told(postgres: Any, tenant: str, session_id: str) -> list[str]:
    """The hooks of the session that were published, in order of their names."""
    async with await psycopg.AsyncConnection.connect(superuser_dsn_of(postgres)) as link:
        cursor = await link.execute(
            "select hook from hook.observed_events where tenant_id = %s and session_id = %s order by hook",
            (tenant, session_id),
        )
        return [row[0] for row in await cursor.fetchall()]


@pytest.mark.parametrize("path", ENDED, ids=lambda path: path.__name__)
async def test_a_session_that_began_and_ended_is_told_of(stage: Stage, postgres: Any, path: Path) -> None:
    session_id = await path(stage)
    for _ in range(2):
        await work_once(stage.mesh.settings, superuser_dsn_of(postgres), stage.mesh.tenant)
    spawned = ["SUBAGENT_SPAWNED"] if path is killed_with_its_parent else []
    expected = ["AGENT_END", "SESSION_END", "SESSION_START", "SUBAGENT_ENDED", *spawned]
    assert await told(postgres, stage.mesh.tenant, session_id) == expected


@pytest.mark.parametrize("path", UNDONE, ids=lambda path: path.__name__)
async def test_a_spawn_that_failed_ends_what_the_gate_had_let_pass(stage: Stage, postgres: Any, path: Path) -> None:
    session_id = await path(stage)
    await work_once(stage.mesh.settings, superuser_dsn_of(postgres), stage.mesh.tenant)
    not_passed = (refused_by_a_hook, killed_while_spawning)
    expected = [] if path in not_passed else ["SUBAGENT_ENDED"]
    assert await told(postgres, stage.mesh.tenant, session_id) == expected
