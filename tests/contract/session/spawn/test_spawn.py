"""SpawnSession: one answer for each request_id, and refusals before anything exists."""

import asyncio
import hashlib
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_postgres.database import Database

from tests.support.session.harness import Mesh, OpenMesh, attachment


async def refusal(mesh: Mesh, **fields: Any) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await mesh.spawn(**fields)
    return caught.value


async def count(database: Database, tenant: str, table: str) -> int:
    async with database.transaction(tenant) as connection:
        row = await (await connection.execute(f"select count(*) as n from {table}")).fetchone()
    assert row is not None
    return int(row["n"])


async def test_SpawnSession__answers_an_active_session_with_a_queued_run(mesh: Mesh) -> None:
    session = await mesh.spawn(task="count the lines", label="lines")
    assert session.state == session_pb2.SESSION_STATE_ACTIVE
    assert session.latest_run.state == session_pb2.RUN_STATE_QUEUED
    assert session.task_hash == hashlib.sha256(b"count the lines").hexdigest()
    assert (session.agent_id, session.label, session.depth) == ("default", "lines", 0)
    assert not session.HasField("receipt")


async def test_SpawnSession__receipt_names_every_file_with_size_and_hash(mesh: Mesh) -> None:
    session = await mesh.spawn(
        attachments=[attachment("a.txt", "hello"), attachment("b.txt", "wörld")],
        attach_as=pb.AttachAs(mount_path="/mnt/in"),
    )
    receipt = session.receipt
    assert [(f.name, f.size_bytes, f.sha256) for f in receipt.files] == [
        ("a.txt", 5, hashlib.sha256(b"hello").hexdigest()),
        ("b.txt", 6, hashlib.sha256("wörld".encode()).hexdigest()),
    ]
    assert (receipt.count, receipt.total_bytes, receipt.mount_path) == (2, 11, "/mnt/in")
    assert receipt.rel_dir == f".spawnmesh/attachments/{receipt.set_id}"


async def test_SpawnSession__same_request_id_and_payload_answers_the_same(mesh: Mesh) -> None:
    fields = {"request_id": uuid4().hex, "task": "count", "attachments": [attachment()]}
    first, second = await mesh.spawn(**fields), await mesh.spawn(**fields)
    assert second.session_id == first.session_id
    assert second.latest_run.run_id == first.latest_run.run_id
    assert second.receipt == first.receipt


async def test_SpawnSession__request_id_reused(mesh: Mesh) -> None:
    request_id = uuid4().hex
    await mesh.spawn(request_id=request_id, task="count")
    error = await refusal(mesh, request_id=request_id, task="count again")
    assert (error.reason, error.status) == (Reason.REQUEST_ID_REUSED, Status.ALREADY_EXISTS)


async def test_SpawnSession__twenty_calls_at_once_spawn_once(mesh: Mesh, session_database: Database) -> None:
    fields = {"request_id": uuid4().hex, "task": "count", "attachments": [attachment()]}
    answers = await asyncio.gather(*(mesh.spawn(**fields) for _ in range(20)))
    assert len({answer.session_id for answer in answers}) == 1
    assert len({answer.latest_run.run_id for answer in answers}) == 1
    assert await count(session_database, mesh.tenant, "sessions") == 1
    assert await count(session_database, mesh.tenant, "runs") == 1
    assert await count(session_database, mesh.tenant, "run_queue") == 1


@pytest.mark.parametrize(
    ("fields", "reason", "fact"),
    [
        ({"task": ""}, Reason.INVALID_REQUEST, {}),
        ({"task": " \n "}, Reason.INVALID_REQUEST, {}),
        ({"request_id": ""}, Reason.INVALID_REQUEST, {}),
        ({"label": "a\x00b"}, Reason.INVALID_REQUEST, {}),
        ({"mode": 9}, Reason.INVALID_REQUEST, {}),
        ({"agent_id": "nobody"}, Reason.UNKNOWN_AGENT, {"agent_id": "nobody"}),
        (
            {"runtime": session_pb2.RUNTIME_EXTERNAL, "attachments": [attachment()]},
            Reason.ATTACHMENTS_UNSUPPORTED_RUNTIME,
            {"attachment_count": "1"},
        ),
        ({"context": session_pb2.CONTEXT_MODE_FORK}, Reason.FORK_WITHOUT_PARENT, {}),
        ({"parent_session_id": "ses_01m7y2n4wsqhp7t4ptyq957v0b"}, Reason.NOT_FOUND, {"resource": "session"}),
        ({"parent_session_id": "nonsense"}, Reason.INVALID_REQUEST, {}),
    ],
)
async def test_SpawnSession__refused_before_anything_is_created(
    mesh: Mesh, session_database: Database, fields: dict[str, Any], reason: Reason, fact: dict[str, str]
) -> None:
    error = await refusal(mesh, **fields)
    assert error.reason is reason
    assert error.facts.items() >= fact.items()
    assert error.domain == "session.spawnmesh"
    assert await count(session_database, mesh.tenant, "sessions") == 0


async def test_SpawnSession__unknown_tenant(mesh: Mesh) -> None:
    error = await refusal(Mesh(mesh.peer, mesh.keys, mesh.settings))
    assert error.reason is Reason.UNKNOWN_TENANT
    assert "tenant create" in error.message


async def test_SpawnSession__tenant_whose_creation_was_cut_off(open_mesh: OpenMesh) -> None:
    async with open_mesh(elsewhere={"model-router": "127.0.0.1:1"}) as broken:
        own = Mesh(broken.peer, broken.keys, broken.settings)
        with pytest.raises(MeshError) as cut_off:
            await own.create_tenant()
        assert cut_off.value.reason is Reason.DEPENDENCY_UNAVAILABLE
        error = await refusal(own)
    assert error.reason is Reason.UNKNOWN_TENANT
    assert "repeat CreateTenant" in error.message


async def test_SpawnSession__shortest_run_timeout(mesh: Mesh) -> None:
    session = await mesh.spawn(run_timeout=Duration(nanos=1_000))
    assert session.state == session_pb2.SESSION_STATE_ACTIVE


async def test_SpawnSession__queue_full(mesh: Mesh) -> None:
    small = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await small.create_tenant(settings=TenantSettings(max_queued_run_count=2))
    await small.spawn()
    await small.spawn()
    error = await refusal(small)
    assert (error.reason, error.status) == (Reason.RUN_QUEUE_FULL, Status.RESOURCE_EXHAUSTED)
    assert error.facts["limit"] == "2"
    assert error.retry_after_seconds


async def test_SpawnSession__run_spawns_children_to_its_limits(mesh: Mesh) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(max_spawn_depth=1, max_live_child_count=2))
    parent = await own.spawn()
    held = await own.claim(parent.session_id)
    children = [await own.spawn_as(held) for _ in range(2)]
    assert {child.parent_session_id for child in children} == {parent.session_id}
    assert {child.parent_run_id for child in children} == {held.run.run_id}
    assert {child.depth for child in children} == {1}
    with pytest.raises(MeshError) as caught:
        await own.spawn_as(held)
    assert caught.value.reason is Reason.CHILDREN_LIMIT_EXCEEDED
    child_held = await own.claim(children[0].session_id)
    with pytest.raises(MeshError) as caught:
        await own.spawn_as(child_held)
    assert caught.value.reason is Reason.SPAWN_DEPTH_EXCEEDED


async def test_SpawnSession__children_limit_holds_for_calls_at_once(mesh: Mesh) -> None:
    parent = await mesh.spawn()
    held = await mesh.claim(parent.session_id)
    outcomes = await asyncio.gather(*(mesh.spawn_as(held) for _ in range(9)), return_exceptions=True)
    refused = [error for error in outcomes if isinstance(error, MeshError)]
    assert {error.reason for error in refused} == {Reason.CHILDREN_LIMIT_EXCEEDED}
    assert len(outcomes) - len(refused) == 5


async def test_SpawnSession__agent_not_spawnable(mesh: Mesh) -> None:
    await mesh.put_agent(AgentProfile(agent_id="narrow", spawnable_agents=["narrow"]))
    held = await mesh.claim((await mesh.spawn(agent_id="narrow")).session_id)
    assert (await mesh.spawn_as(held, agent_id="narrow")).depth == 1
    with pytest.raises(MeshError) as caught:
        await mesh.spawn_as(held, agent_id="default")
    assert caught.value.reason is Reason.AGENT_NOT_SPAWNABLE


async def test_SpawnSession__run_cannot_name_another_parent(mesh: Mesh) -> None:
    other = await mesh.spawn()
    held = await mesh.claim((await mesh.spawn()).session_id)
    with pytest.raises(MeshError) as caught:
        await mesh.spawn_as(held, parent_session_id=other.session_id)
    assert caught.value.reason is Reason.NOT_FOUND
