"""A plugin hears the end of a spawn that it allowed, also if the session service lost its answer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.decision_pb2 import Allow, Deny, SpawnDecision
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_SPAWN_FAILED
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_SUBAGENT_ENDED
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_session.domain.job_kinds import PUBLISH_SPAWN_FAILURE

from tests.support.serving import caller_at, client_tokens
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.plugins import Plugin, plugged
from tests.support.session.tables import jobs_of, superuser
from tests.support.session.worker import job_worker_of, work_once

ALLOW, DENY = SpawnDecision(allow=Allow()), SpawnDecision(deny=Deny(reason="no"))
DISPATCH = "/spawnmesh.hook.v1.HookService/DispatchBeforeSpawn"


@pytest.fixture
async def observed(_served_mesh: Mesh, peers: dict[str, str]) -> Mesh:
    """A tenant with an observer of ends."""
    mesh = Mesh(_served_mesh.peer, _served_mesh.keys, _served_mesh.settings)
    await mesh.create_tenant()
    observer = hook_pb.Plugin(
        name="observer", endpoint="grpc://127.0.0.1:1", hooks=[HOOK_KIND_SUBAGENT_ENDED]
    )
    async with caller_at(peers["hook"], "hook") as hook:
        stub: Any = HookServiceStub(hook.channel)
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            request = hook_pb.UpdatePluginRequest(allow_missing=True, plugin=observer, allow_unreachable=True)
            await hook.unary(stub.UpdatePlugin, request, timeout_seconds=60)
    return mesh


@asynccontextmanager
async def serving_dispatch(behavior: Any) -> AsyncIterator[str]:
    server = grpc.aio.server()
    handler = grpc.method_handlers_generic_handler(
        "spawnmesh.hook.v1.HookService",
        {"DispatchBeforeSpawn": grpc.unary_unary_rpc_method_handler(behavior)},
    )
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def losing_answers_of(hook: str) -> AsyncIterator[str]:
    """Serve the gate of the hook service, and lose each of its answers."""

    async def lose(request: bytes, context: grpc.aio.ServicerContext) -> None:
        kept = [(key, value) for key, value in context.invocation_metadata() or () if key == "authorization"]
        async with grpc.aio.insecure_channel(hook) as channel:
            await channel.unary_unary(DISPATCH)(request, metadata=kept)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")

    async with serving_dispatch(lose) as target:
        yield target


async def published(postgres: Any, mesh: Mesh, session_id: str) -> list[str]:
    """Do the work of the worker. Return the outcomes that observers receive about the session."""
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    for _ in range(2):
        await work_once(mesh.settings, dsn, mesh.tenant)
    async with superuser(postgres) as link:
        rows = await link.execute(
            "select event from hook.observed_events where tenant_id = %s and session_id = %s",
            (mesh.tenant, session_id),
        )
        events = [ObservedEvent.FromString(row[0]) for row in await rows.fetchall()]
    return [event.subagent_ended.outcome for event in events]


async def only_session(mesh: Mesh) -> session_pb2.Session:
    listed = await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest())
    [session] = listed.sessions
    return session


@pytest.mark.parametrize(
    ("decision", "outcomes"), [(ALLOW, [END_OUTCOME_SPAWN_FAILED]), (DENY, [])], ids=["allowed", "denied"]
)
async def test_SpawnSession__a_gate_whose_answer_was_lost(
    observed: Mesh, open_mesh: OpenMesh, peers: dict[str, str], postgres: Any, decision: Any, outcomes: Any
) -> None:
    async with (
        plugged(observed, peers, Plugin(on_spawn=decision)),
        losing_answers_of(peers["hook"]) as lossy,
        open_mesh(elsewhere={"hook": lossy}) as cut_off,
    ):
        cut_off.tenant = observed.tenant
        with pytest.raises(MeshError) as caught:
            await cut_off.spawn()
    assert (caught.value.reason, caught.value.facts["step"]) == (Reason.SPAWN_FAILED, "gate")
    failed = await only_session(observed)
    assert failed.state == session_pb2.SESSION_STATE_SPAWN_FAILED
    assert await published(postgres, observed, failed.session_id) == outcomes


@pytest.mark.parametrize(
    ("other", "reason"), [(DENY, Reason.SPAWN_REFUSED), (SpawnDecision(), Reason.PLUGIN_FAILED)]
)
async def test_SpawnSession__a_plugin_allows_and_another_one_denies_or_fails(
    observed: Mesh, peers: dict[str, str], postgres: Any, other: SpawnDecision, reason: Reason
) -> None:
    async with (
        plugged(observed, peers, Plugin(on_spawn=ALLOW), name="quota"),
        plugged(observed, peers, Plugin(on_spawn=other)),
    ):
        with pytest.raises(MeshError) as caught:
            await observed.spawn()
    assert caught.value.reason is reason
    failed = await only_session(observed)
    assert await published(postgres, observed, failed.session_id) == [END_OUTCOME_SPAWN_FAILED]


async def test_SpawnSession__no_plugin_allows_and_none_hears_more(
    observed: Mesh, peers: dict[str, str], postgres: Any
) -> None:
    async with plugged(observed, peers, Plugin(on_spawn=DENY)):
        with pytest.raises(MeshError):
            await observed.spawn()
    failed = await only_session(observed)
    assert await published(postgres, observed, failed.session_id) == []


@asynccontextmanager
async def keeping_calls() -> AsyncIterator[tuple[str, list[tuple[bytes, Any]]]]:
    """Serve the gate of the hook service. End each call at once, and keep it for later."""
    calls: list[tuple[bytes, Any]] = []

    async def keep(request: bytes, context: grpc.aio.ServicerContext) -> None:
        metadata = context.invocation_metadata() or ()
        calls.append((request, [(key, value) for key, value in metadata if key == "authorization"]))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "lost")

    async with serving_dispatch(keep) as target:
        yield target, calls


async def test_SpawnSession__a_gate_that_allows_after_the_hook_service_was_asked(
    observed: Mesh, open_mesh: OpenMesh, peers: dict[str, str], postgres: Any
) -> None:
    async with plugged(observed, peers, Plugin(on_spawn=ALLOW)), keeping_calls() as (target, calls):
        async with open_mesh(elsewhere={"hook": target}) as cut_off:
            cut_off.tenant = observed.tenant
            with pytest.raises(MeshError):
                await cut_off.spawn()
        failed = await only_session(observed)
        async with job_worker_of(observed.settings) as worker:
            await worker.run_due(PUBLISH_SPAWN_FAILURE)
        async with grpc.aio.insecure_channel(peers["hook"]) as channel:
            request, metadata = calls[0]
            await channel.unary_unary(DISPATCH)(request, metadata=metadata)
    assert await published(postgres, observed, failed.session_id) == [END_OUTCOME_SPAWN_FAILED]
    assert await jobs_of(postgres, observed.tenant) == []


async def test_sweep__a_gate_whose_answer_came_to_a_process_that_died(
    observed: Mesh, peers: dict[str, str], postgres: Any
) -> None:
    async with plugged(observed, peers, Plugin(on_spawn=ALLOW)):
        session = await observed.spawn()
    key = (observed.tenant, session.session_id)
    async with superuser(postgres) as link:  # As the process left it between answer and commit.
        await link.execute("delete from session.runs where tenant_id = %s and session_id = %s", key)
        await link.execute("delete from session.run_queue where tenant_id = %s", (observed.tenant,))
        await link.execute(
            "update session.sessions set state = 'PROVISIONING', gate_passed = false"
            " where tenant_id = %s and session_id = %s",
            key,
        )
        await link.execute(
            "insert into session.jobs (tenant_id, kind, key) values (%s, 'undo_spawn', %s)",
            key,
        )
    assert await published(postgres, observed, session.session_id) == [END_OUTCOME_SPAWN_FAILED]
    assert await jobs_of(postgres, observed.tenant) == []
