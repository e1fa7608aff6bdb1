"""Every end of a session is published to its tenant's observers, each event once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import psycopg
import pytest
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetDecision
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_SPAWN_FAILED, EndOutcome
from spawnmesh.hook.v1.event_pb2 import (
    HOOK_KIND_AGENT_END,
    HOOK_KIND_DELIVERY_TARGET,
    HOOK_KIND_SESSION_END,
    HOOK_KIND_SESSION_START,
    HOOK_KIND_SUBAGENT_ENDED,
    HOOK_KIND_SUBAGENT_SPAWNED,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_session.app import make_sweeper

from tests.support.serving import caller_at, client_tokens
from tests.support.session.drafting import draft
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.terminal_paths import (
    ENDED,
    UNDONE,
    Path,
    Stage,
    archived,
    deleted,
    deleted_with_its_parent,
    deleted_with_its_tenant,
    failed,
    killed,
    killed_with_its_parent,
    lost_by_every_runner,
    refused_by_a_hook,
    revised_until_the_cap,
    succeeded,
    timed_out,
)
from tests.support.session.worker import components_of, sweep_all, work_once

KINDS = [
    HOOK_KIND_SESSION_START,
    HOOK_KIND_SUBAGENT_SPAWNED,
    HOOK_KIND_AGENT_END,
    HOOK_KIND_SUBAGENT_ENDED,
    HOOK_KIND_SESSION_END,
]


def name_of(outcome: EndOutcome.ValueType) -> str:
    """Return the outcome in lower case, such as `succeeded`."""
    return EndOutcome.Name(outcome).removeprefix("END_OUTCOME_").lower()


async def address(request: handler_pb.HandleDeliveryTargetRequest, _context: Any) -> Any:
    """A plugin that has each end told at a place named after it."""
    told = "/".join((name_of(request.event.outcome), request.event.session_id, request.event.run_id))
    return handler_pb.HandleDeliveryTargetResponse(decision=DeliveryTargetDecision(target=f"chat:{told}"))


@asynccontextmanager
async def addressing() -> AsyncIterator[hook_pb.Plugin]:
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        address,
        request_deserializer=handler_pb.HandleDeliveryTargetRequest.FromString,
        response_serializer=handler_pb.HandleDeliveryTargetResponse.SerializeToString,
    )
    service = "spawnmesh.hook.v1.HookHandlerService"
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {"HandleDeliveryTarget": method}),)
    )
    endpoint = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield hook_pb.Plugin(name="addresses", endpoint=endpoint, hooks=[HOOK_KIND_DELIVERY_TARGET])
    finally:
        await server.stop(None)


@pytest.fixture
async def stage(_served_mesh: Mesh, open_mesh: OpenMesh, peers: dict[str, str]) -> AsyncIterator[Stage]:
    """Create a tenant with an observer."""
    mesh = Mesh(_served_mesh.peer, _served_mesh.keys, _served_mesh.settings)
    await mesh.create_tenant()
    observer = hook_pb.Plugin(name="observer", endpoint="grpc://127.0.0.1:1", hooks=KINDS)
    async with (
        caller_at(peers["hook"], "hook") as hook,
        caller_at(peers["transcript"], "transcript") as transcript,
        addressing() as addresses,
    ):
        stub: Any = HookServiceStub(hook.channel)
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            for plugin in (observer, addresses):
                request = hook_pb.UpdatePluginRequest(
                    allow_missing=True, plugin=plugin, allow_unreachable=True
                )
                await hook.unary(stub.UpdatePlugin, request, timeout_seconds=60)
        yield Stage(mesh, open_mesh, transcript, peers, session_pb2.CLEANUP_DELETE)


def superuser_dsn_of(postgres: Any) -> str:
    """To the database that the services are in."""
    dsn: str = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    return dsn


async def events_of(postgres: Any, tenant: str, session_id: str) -> list[ObservedEvent]:
    """Return the published events of the session, in order of the hooks' names."""
    async with await psycopg.AsyncConnection.connect(superuser_dsn_of(postgres)) as link:
        cursor = await link.execute(
            "select event from hook.observed_events where tenant_id = %s and session_id = %s order by hook",
            (tenant, session_id),
        )
        return [ObservedEvent.FromString(row[0]) for row in await cursor.fetchall()]


async def published_hooks(postgres: Any, tenant: str, session_id: str) -> list[str]:
    """The hooks of the session that were published, in order of their names."""
    events = await events_of(postgres, tenant, session_id)
    return [(event.WhichOneof("event") or "").upper() for event in events]


async def taken_over(stage: Stage) -> str:
    """Its first runner was lost, and a second one brought it to its end."""
    async with stage.open_mesh(max_run_attempts=3, lease_ttl_seconds=0.001) as brief:
        brief.tenant = stage.mesh.tenant
        session_id = str((await brief.spawn(**stage.fields())).session_id)
        lost = await brief.claim(session_id)
    async with components_of(stage.mesh.settings) as components:
        await sweep_all(make_sweeper(components, stage.mesh.settings))
    held = await stage.mesh.claim(session_id)
    assert held.run.epoch > lost.run.epoch
    await stage.mesh.run(held, stage.mesh.runs.FinalizeRun, await draft(stage.transcript, held, "42"))
    return session_id


async def deleted_while_it_ran(stage: Stage) -> str:
    held = await stage.mesh.claim(await stage.spawn())
    session_id = str(held.session.session_id)
    await stage.mesh.client(stage.mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=session_id))
    return session_id


async def deleted_after_its_end(stage: Stage) -> str:
    session_id = await succeeded(stage)
    await stage.mesh.client(stage.mesh.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=session_id))
    return session_id


DELETED: list[Path] = [deleted, deleted_with_its_parent, deleted_while_it_ran, deleted_after_its_end]
OUTCOMES = [
    *(
        (path, "succeeded")
        for path in (succeeded, taken_over, revised_until_the_cap, archived, deleted_after_its_end)
    ),
    *((path, "killed") for path in (killed, killed_with_its_parent, deleted, deleted_with_its_parent)),
    (deleted_while_it_ran, "killed"),
    *((path, "failed") for path in (failed, lost_by_every_runner)),
    (timed_out, "timed_out"),
]


@pytest.mark.parametrize(("path", "outcome"), OUTCOMES, ids=[path.__name__ for path, _ in OUTCOMES])
async def test_start_and_end_of_a_session_are_published_with_outcome_and_delivery_target(
    stage: Stage, postgres: Any, path: Path, outcome: str
) -> None:
    session_id = await path(stage)
    for _ in range(2):
        await work_once(stage.mesh.settings, superuser_dsn_of(postgres), stage.mesh.tenant)
    spawned = ["SUBAGENT_SPAWNED"] if path in (killed_with_its_parent, deleted_with_its_parent) else []
    expected = ["AGENT_END", "SESSION_END", "SESSION_START", "SUBAGENT_ENDED", *spawned]
    assert await published_hooks(postgres, stage.mesh.tenant, session_id) == expected
    events = await events_of(postgres, stage.mesh.tenant, session_id)
    assert all(event.HasField("event_time") for event in events)
    ends = [
        getattr(event, kind)
        for event in events
        if (kind := event.WhichOneof("event")) in ("agent_end", "subagent_ended")
    ]
    assert [name_of(end.outcome) for end in ends] == [outcome, outcome]
    run_ids = {
        event.run_id for event in events if event.WhichOneof("event") in ("agent_end", "subagent_ended")
    }
    assert len(run_ids - {""}) == 1
    target = f"chat:{outcome}/{session_id}/{run_ids.pop()}"
    targets = [event.subagent_ended.delivery_target for event in events if event.HasField("subagent_ended")]
    assert targets == [target]


def test_outcomes_name_every_end() -> None:
    assert {path for path, _ in OUTCOMES} == {*ENDED, taken_over, *DELETED}


async def test_no_event_of_a_deleted_tenant_is_published(stage: Stage, postgres: Any) -> None:
    session_id = await deleted_with_its_tenant(stage)
    for _ in range(3):
        await work_once(stage.mesh.settings, superuser_dsn_of(postgres), stage.mesh.tenant)
    assert await published_hooks(postgres, stage.mesh.tenant, session_id) == []


@pytest.mark.parametrize("path", UNDONE, ids=lambda path: path.__name__)
async def test_a_spawn_that_failed_ends_what_the_gate_had_let_pass(
    stage: Stage, postgres: Any, path: Path
) -> None:
    session_id = await path(stage)
    await work_once(stage.mesh.settings, superuser_dsn_of(postgres), stage.mesh.tenant)
    events = await events_of(postgres, stage.mesh.tenant, session_id)
    targets = [event.subagent_ended.delivery_target for event in events]
    assert targets == ([] if path is refused_by_a_hook else [f"chat:spawn_failed/{session_id}/"])
    assert all(event.subagent_ended.outcome == END_OUTCOME_SPAWN_FAILED for event in events)
    assert all(event.HasField("event_time") for event in events)
