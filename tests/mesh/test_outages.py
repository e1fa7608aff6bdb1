"""Outages: the answers to callers, and what accepted runs do meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from minio import Minio
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1 import event_pb2, hook_service_pb2
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_core.status import Status
from spawnmesh_devstack.stack import Stack

from tests.support.waiting import eventually


@pytest.fixture
def tenant() -> str:
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
async def mesh(stack: Stack, tenant: str) -> AsyncIterator[WireMesh]:
    """Connect as a client of a tenant for this test alone."""
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:

        async def is_created() -> bool:
            # A service that the test before restarted may not be connected again yet.
            try:
                await operator.create_tenant(tenant)
            except MeshError as error:
                if error.status is Status.UNAVAILABLE:
                    return False
                raise
            return True

        await eventually(is_created)
    async with connect_wire(session=stack.targets["session"], token=stack.client_token(tenant)) as client:
        yield client


async def leftovers(stack: Stack, tenant: str) -> dict[str, int]:
    """Count the rows and objects of the tenant, without the rows of its sessions."""
    counted = {}
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as connection:
        for table in (
            "session.runs",
            "session.run_queue",
            "session.jobs",
            "transcript.entries",
            "attachment_blob.set_files",
        ):
            found = await connection.execute(f"select count(*) from {table} where tenant_id = %s", (tenant,))
            row: Any = await found.fetchone()
            counted[table] = row[0]
    s3 = stack.s3.endpoint
    store = Minio(s3.endpoint, s3.access_key, s3.secret_key, secure=False, region=s3.region)
    listed = await asyncio.to_thread(lambda: list(store.list_objects(f"spawnmesh-{tenant}", recursive=True)))
    return {**counted, "objects": len(listed)}


async def test_spawn_while_S3_is_down_is_unavailable_and_leaves_nothing(
    stack: Stack, mesh: WireMesh, tenant: str
) -> None:
    await stack.s3.stop()
    try:
        with pytest.raises(MeshError) as caught:
            await mesh.spawn("read it", attachments=[Attachment("a.txt", b"alpha")])
    finally:
        await stack.s3.start()
    assert (caught.value.reason, caught.value.status) == (Reason.SPAWN_FAILED, Status.UNAVAILABLE)
    assert caught.value.facts["dependency"] == "S3"

    async def nothing_is_left() -> bool:
        return not any((await leftovers(stack, tenant)).values())

    await eventually(nothing_is_left)
    again = await mesh.spawn("read it", attachments=[Attachment("a.txt", b"alpha")], wait_seconds=60)
    assert again.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED


async def test_spawn_while_PostgreSQL_is_down_is_unavailable_and_works_again_later(
    stack: Stack, mesh: WireMesh
) -> None:
    await stack.postgres.stop()
    try:
        with pytest.raises(MeshError) as caught:
            await mesh.spawn("say something")
    finally:
        await stack.postgres.start()
    assert (caught.value.reason, caught.value.status) == (Reason.DEPENDENCY_UNAVAILABLE, Status.UNAVAILABLE)
    assert caught.value.facts["dependency"] == "PostgreSQL"

    async def works() -> bool:
        try:
            session = await mesh.spawn("say something", wait_seconds=60)
        except MeshError:
            return False
        return session.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED

    await eventually(works)


async def refused(mesh: WireMesh, request_id: str) -> MeshError:
    with pytest.raises(MeshError) as caught:
        await mesh.spawn("read it", attachments=[Attachment("a.txt", b"alpha")], request_id=request_id)
    assert caught.value.status is Status.UNAVAILABLE, caught.value
    return caught.value


async def spawned_again(mesh: WireMesh, request_id: str) -> str:
    """Repeat the request. Return nothing if the mesh is still about to recover."""
    try:
        session = await mesh.spawn(
            "read it", attachments=[Attachment("a.txt", b"alpha")], request_id=request_id
        )
    except MeshError as error:
        if error.status is not Status.UNAVAILABLE:
            raise
        return ""
    return session.session_id


async def test_spawns_while_PostgreSQL_hangs_are_refused_and_their_repeats_succeed(
    stack: Stack, mesh: WireMesh, tenant: str
) -> None:
    """A spawn has 60 seconds, and none of them may wait for so long."""
    accepted = [await mesh.spawn("say something") for _ in range(2)]
    request_ids = [f"hung-{number}" for number in range(6)]
    stack.postgres.process.pause()
    try:
        for refusal in await asyncio.gather(*(refused(mesh, request_id) for request_id in request_ids)):
            assert refusal.facts["dependency"] == "PostgreSQL"
    finally:
        stack.postgres.process.resume()
    for request_id in request_ids:
        session_id = await eventually(lambda request_id=request_id: spawned_again(mesh, request_id))
        await _ends_well(mesh, session_id)
    for session in accepted:
        assert (await _ends_well(mesh, session.session_id)).attempt_count == 1


@pytest.mark.parametrize("service", ["session", "hook", "transcript", "attachment-blob"])
async def test_spawns_while_a_service_hangs_are_refused_and_their_repeats_succeed(
    stack: Stack, mesh: WireMesh, tenant: str, service: str
) -> None:
    request_ids = [f"hung-{number}" for number in range(3)]
    if service == "hook":
        await _register_gate(stack, tenant)
    await mesh.spawn("say something")
    stack.processes[service].pause()
    try:
        for refusal in await asyncio.gather(*(refused(mesh, request_id) for request_id in request_ids)):
            assert refusal.facts["dependency"] == service
    finally:
        stack.processes[service].resume()
    for request_id in request_ids:
        session_id = await eventually(lambda request_id=request_id: spawned_again(mesh, request_id))
        await _ends_well(mesh, session_id)


async def _register_gate(stack: Stack, tenant: str) -> None:
    """Register a gate that is away and has no say, so that each spawn needs the hook service."""
    plugin = hook_service_pb2.Plugin(
        name="gate",
        endpoint="grpc://127.0.0.1:1",
        hooks=[event_pb2.HOOK_KIND_BEFORE_SPAWN],
        failure_policy=hook_service_pb2.FAILURE_POLICY_OPEN,
    )
    request = hook_service_pb2.UpdatePluginRequest(plugin=plugin, allow_missing=True, allow_unreachable=True)
    targets = {name: stack.targets[name] for name in ("session", "hook")}
    async with connect_wire(**targets, token=stack.client_token(tenant)) as mesh:
        peer = mesh.service("hook")
        await peer.unary(HookServiceStub(peer.channel).UpdatePlugin, request, timeout_seconds=60)


async def _is_delayed(mesh: WireMesh, session_id: str) -> session_pb2.RunDelay | None:
    run = (await mesh.session(session_id)).latest_run
    assert run.state in (session_pb2.RUN_STATE_QUEUED, session_pb2.RUN_STATE_RUNNING), run
    return run.delay if run.HasField("delay") else None


async def _ends_well(mesh: WireMesh, session_id: str) -> session_pb2.Run:
    waited = await mesh.wait(session_id, 60)
    assert waited.done
    assert waited.session.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED, waited.session.latest_run
    return waited.session.latest_run


async def test_accepted_run_waits_for_the_model_router_and_uses_no_attempt(
    stack: Stack, mesh: WireMesh
) -> None:
    router = stack.processes["model-router"]
    await router.kill()
    try:
        session = await mesh.spawn("say something")
        await eventually(lambda: _is_delayed(mesh, session.session_id))
        delay = await _is_delayed(mesh, session.session_id)
    finally:
        await stack.restart("model-router")
    assert delay is not None
    assert delay.reason == reason_pb2.REASON_DEPENDENCY_UNAVAILABLE
    assert (await _ends_well(mesh, session.session_id)).attempt_count == 1


async def test_accepted_run_waits_for_S3_and_the_transcript(stack: Stack, mesh: WireMesh) -> None:
    runner = stack.processes["runner"]
    runner.pause()
    try:
        with_file = await mesh.spawn("read it", attachments=[Attachment("a.txt", b"alpha")])
        plain = await mesh.spawn("say something")
        await stack.s3.stop()
        await stack.processes["transcript"].kill()
        runner.resume()
        for session in (with_file, plain):
            await eventually(lambda session=session: _is_delayed(mesh, session.session_id))
        await stack.restart("transcript")
        assert (await _ends_well(mesh, plain.session_id)).attempt_count == 1
        await eventually(lambda: _waits_for(mesh, with_file.session_id, "S3"))
    finally:
        runner.resume()
        await stack.s3.start()
    assert (await _ends_well(mesh, with_file.session_id)).attempt_count == 1


async def _waits_for(mesh: WireMesh, session_id: str, dependency: str) -> bool:
    delay = await _is_delayed(mesh, session_id)
    return delay is not None and dependency in delay.message
