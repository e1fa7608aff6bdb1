"""Spawns that fail at each step leave nothing, and say why the same way each time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import grpc.aio
import psycopg
import pytest
from spawnmesh.hook.v1 import hook_handler_service_pb2 as handler_pb
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.decision_pb2 import Allow, Deny, SpawnDecision
from spawnmesh.hook.v1.event_pb2 import HOOK_KIND_BEFORE_SPAWN
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import (
    HookHandlerServiceServicer,
    add_HookHandlerServiceServicer_to_server,
)
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import caller_at, client_tokens
from tests.support.session.harness import Mesh, OpenMesh, attachment
from tests.support.session.remains import NOTHING, Remains
from tests.support.session.tables import jobs_of, swept
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:1"


class Gate(HookHandlerServiceServicer):
    """A plugin that allows or denies; `meanwhile` runs before it answers."""

    def __init__(self, decision: SpawnDecision, meanwhile: Any = None) -> None:
        self.decision = decision
        self.meanwhile = meanwhile
        self.asked: list[str] = []

    async def HandleBeforeSpawn(self, request: Any, context: Any) -> handler_pb.HandleBeforeSpawnResponse:
        self.asked.append(request.event.session_id)
        if self.meanwhile is not None:
            await self.meanwhile(request.event.session_id)
        return handler_pb.HandleBeforeSpawnResponse(decision=self.decision)

    async def HandleBeforeAgentFinalize(self, request: Any, context: Any) -> Any:
        raise AssertionError("not registered for this")

    async def HandleObservedEvent(self, request: Any, context: Any) -> Any:
        raise AssertionError("not registered for this")


@asynccontextmanager
async def gate_for(mesh: Mesh, peers: dict[str, str], gate: Gate) -> AsyncIterator[None]:
    """The plugin served and registered for the tenant."""
    server = grpc.aio.server()
    add_HookHandlerServiceServicer_to_server(gate, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    plugin = hook_pb.Plugin(name="gate", endpoint=f"grpc://127.0.0.1:{port}", hooks=[HOOK_KIND_BEFORE_SPAWN])
    async with caller_at(peers["hook"], "hook") as peer:
        stub: Any = HookServiceStub(peer.channel)
        with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
            await peer.unary(
                stub.UpdatePlugin,
                hook_pb.UpdatePluginRequest(allow_missing=True, plugin=plugin),
                timeout_seconds=60,
            )
    try:
        yield
    finally:
        await server.stop(None)


async def refusal(mesh: Mesh, **fields: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await mesh.spawn(**fields)
    return caught.value


async def only_session(mesh: Mesh) -> session_pb2.Session:
    listed = await mesh.client(mesh.sessions.ListSessions, pb.ListSessionsRequest())
    [session] = listed.sessions
    assert isinstance(session, session_pb2.Session)
    return session


async def test_what_a_spawn_makes_is_what_is_counted(mesh: Mesh, remains: Remains) -> None:
    await mesh.spawn(attachments=[attachment()])
    assert await remains.of(mesh.tenant) == {
        "runs": 1, "queue": 1, "transcripts": 1, "entries": 3, "files": 1, "objects": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (attachment("../evil"), Reason.ATTACHMENTS_INVALID_NAME),
        (attachment("A.TXT"), Reason.ATTACHMENTS_DUPLICATE_NAME),
        (attachment("b.txt", "x" * (1024 * 1024 + 1)), Reason.ATTACHMENTS_FILE_BYTES_EXCEEDED),
    ],
)
async def test_SpawnSession__bad_attachment_leaves_nothing(
    mesh: Mesh, remains: Remains, bad: Any, reason: Reason
) -> None:
    fields = {"request_id": uuid4().hex, "task": "count", "attachments": [attachment("a.txt"), bad]}
    error = await refusal(mesh, **fields)
    assert (error.reason, error.status) == (reason, Status.INVALID_ARGUMENT)
    assert "evil" not in str(error)
    again = await refusal(mesh, **fields)
    assert (again.reason, again.message, again.facts) == (error.reason, error.message, error.facts)
    assert await remains.of(mesh.tenant) == NOTHING
    session = await only_session(mesh)
    assert session.state == session_pb2.SESSION_STATE_SPAWN_FAILED
    assert session.failure_reason == reason_number(reason)


async def test_SpawnSession__refused_by_a_hook_publishes_no_end(
    mesh: Mesh, remains: Remains, peers: dict[str, str], postgres: Any
) -> None:
    gate = Gate(SpawnDecision(deny=Deny(reason="not on a Saturday")))
    async with gate_for(mesh, peers, gate):
        error = await refusal(mesh, attachments=[attachment()])
    assert (error.reason, error.status) == (Reason.SPAWN_REFUSED, Status.PERMISSION_DENIED)
    assert error.facts == {"plugin": "gate", "plugin_reason": "not on a Saturday"}
    assert await remains.of(mesh.tenant) == NOTHING
    assert await jobs_of(postgres, mesh.tenant) == []


async def test_SpawnSession__dead_gate_is_closed(mesh: Mesh, remains: Remains, peers: dict[str, str]) -> None:
    async with gate_for(mesh, peers, Gate(SpawnDecision(allow=Allow()))):
        pass  # Registered, and gone.
    error = await refusal(mesh, attachments=[attachment()])
    assert (error.reason, error.status) == (Reason.PLUGIN_FAILED, Status.UNAVAILABLE)
    assert await remains.of(mesh.tenant) == NOTHING


async def test_SpawnSession__a_malformed_answer_is_remembered_and_a_missing_one_is_not(
    mesh: Mesh, peers: dict[str, str]
) -> None:
    async def break_down(_session_id: str) -> None:
        raise ConnectionError("the database of the gate is away")

    malformed = {"request_id": uuid4().hex, "task": "count"}
    gate = Gate(SpawnDecision())
    async with gate_for(mesh, peers, gate):
        first, again = [await refusal(mesh, **malformed) for _ in range(2)]
        assert (first.reason, first.facts["is_transient"]) == (Reason.PLUGIN_FAILED, "false")
        assert (again.message, again.retry_after_seconds, len(gate.asked)) == (first.message, None, 1)
        gate.decision, gate.meanwhile = SpawnDecision(allow=Allow()), break_down
        missing = {"request_id": uuid4().hex, "task": "count"}
        assert (await refusal(mesh, **missing)).facts["is_transient"] == "true"
        gate.meanwhile = None
        assert (await mesh.spawn(**missing)).state == session_pb2.SESSION_STATE_ACTIVE
        assert (await refusal(mesh, **malformed)).message == first.message


@pytest.mark.parametrize("peer", ["transcript", "hook"])
async def test_SpawnSession__peer_down_is_unavailable_and_the_sweep_leaves_nothing(
    mesh: Mesh, open_mesh: OpenMesh, remains: Remains, peer: str, postgres: Any
) -> None:
    async with open_mesh(elsewhere={peer: NOWHERE}) as broken:
        broken.tenant = mesh.tenant
        error = await refusal(broken, attachments=[attachment()])
    assert (error.reason, error.status) == (Reason.SPAWN_FAILED, Status.UNAVAILABLE)
    assert error.facts["cause"] == Reason.DEPENDENCY_UNAVAILABLE
    assert error.facts["step"] == {"transcript": "provision", "hook": "gate"}[peer]
    waiting_jobs = await jobs_of(postgres, mesh.tenant)
    job = {"transcript": "publish_run_end", "hook": "publish_spawn_failure"}[peer]
    assert waiting_jobs == [job]
    async with open_mesh(spawn_deadline_seconds=60) as healthy:
        await swept(healthy, postgres, mesh.tenant)
        assert await remains.of(mesh.tenant) == NOTHING


async def test_SpawnSession__attachment_blob_down_is_unavailable(
    mesh: Mesh, open_mesh: OpenMesh, remains: Remains, postgres: Any
) -> None:
    async with open_mesh(elsewhere={"attachment-blob": NOWHERE}) as broken:
        broken.tenant = mesh.tenant
        error = await refusal(broken, attachments=[attachment()])
        assert (error.reason, error.status) == (Reason.SPAWN_FAILED, Status.UNAVAILABLE)
    async with open_mesh() as healthy:
        await swept(healthy, postgres, mesh.tenant)
    assert await remains.of(mesh.tenant) == NOTHING


async def test_SpawnSession__killed_while_the_gate_thinks_leaves_nothing(
    mesh: Mesh, remains: Remains, peers: dict[str, str], open_mesh: OpenMesh, postgres: Any
) -> None:
    async def kill(session_id: str) -> None:
        await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session_id))

    async with gate_for(mesh, peers, Gate(SpawnDecision(allow=Allow()), meanwhile=kill)):
        error = await refusal(mesh, attachments=[attachment()])
    assert error.reason is Reason.SPAWN_FAILED
    async with open_mesh() as healthy:
        await swept(healthy, postgres, mesh.tenant)
    assert await remains.of(mesh.tenant) == NOTHING


async def test_SpawnSession__caller_who_goes_away_while_too_many_did_leaves_nothing(
    remains: Remains, peers: dict[str, str], open_mesh: OpenMesh, postgres: Any
) -> None:
    arrived = asyncio.Event()

    async def hang(_session_id: str) -> None:
        arrived.set()
        await asyncio.sleep(3600)

    async with open_mesh(max_spawns_without_caller=0) as mesh:
        await mesh.create_tenant()
        async with gate_for(mesh, peers, Gate(SpawnDecision(allow=Allow()), meanwhile=hang)):
            call = asyncio.create_task(mesh.spawn(attachments=[attachment()]))
            await arrived.wait()
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

            async def failed() -> bool:
                return (await only_session(mesh)).state == session_pb2.SESSION_STATE_SPAWN_FAILED

            await eventually(failed)
        await swept(mesh, postgres, mesh.tenant)
    assert await remains.of(mesh.tenant) == NOTHING


async def test_SpawnSession__saga_cut_off_is_undone_after_its_deadline(
    mesh: Mesh, remains: Remains, open_mesh: OpenMesh, postgres: Any, peers: dict[str, str]
) -> None:
    """After a crash, a PROVISIONING session with files and a transcript is undone."""
    session = await mesh.spawn(attachments=[attachment()])
    async with await psycopg.AsyncConnection.connect(
        postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?"), autocommit=True
    ) as link:
        key = (mesh.tenant, session.session_id)
        await link.execute("delete from session.runs where tenant_id = %s and session_id = %s", key)
        await link.execute("delete from session.run_queue where tenant_id = %s", (mesh.tenant,))
        await link.execute(
            "update session.sessions set state = 'PROVISIONING', receipt = null where tenant_id = %s and session_id = %s",
            key,
        )
        await link.execute(
            "insert into session.jobs (tenant_id, kind, key) values (%s, 'undo_spawn', %s)",
            key,
        )
    async with open_mesh() as healthy:
        await swept(healthy, postgres, mesh.tenant)
    assert await remains.of(mesh.tenant) == NOTHING
    assert (await mesh.get(session.session_id)).state == session_pb2.SESSION_STATE_SPAWN_FAILED
    assert "publish_run_end" in await jobs_of(postgres, mesh.tenant)
