"""Runs outlive the runners that hold them."""

from collections.abc import AsyncIterator
from hashlib import sha256
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.stack import Stack

from tests.support.waiting import eventually


@pytest.fixture
async def mesh(stack: Stack) -> AsyncIterator[WireMesh]:
    """Connect as a client of a tenant for this test alone."""
    tenant = f"t-{uuid4().hex[:12]}"
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    async with connect_wire(
        session=stack.targets["session"],
        transcript=stack.targets["transcript"],
        token=stack.client_token(tenant),
    ) as client:
        yield client


async def running(mesh: WireMesh, session_id: str) -> bool:
    return (await mesh.session(session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING


async def held_by_runner(mesh: WireMesh, session_id: str) -> session_pb2.Session:
    """Return the session once a runner holds its run."""
    await eventually(lambda: running(mesh, session_id))
    return await mesh.session(session_id)


async def succeeded(mesh: WireMesh, session_id: str) -> session_pb2.Session:
    waited = await mesh.wait(session_id, 60)
    assert waited.done
    assert waited.session.latest_run.state == session_pb2.RUN_STATE_SUCCEEDED, waited.session.latest_run
    return waited.session


async def serves_for_long(stack: Stack) -> bool:
    """Return whether the session service has been serving for as long as a lease lasts."""
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as connection:
        query = "select served_for >= interval '10 seconds' from session.served_time"
        row = await (await connection.execute(query)).fetchone()
    return row is not None and bool(row[0])


async def test_run_of_a_killed_runner_is_taken_over_and_goes_on(stack: Stack, mesh: WireMesh) -> None:
    await eventually(lambda: serves_for_long(stack))
    model = stack.processes["scripted-model"]
    model.pause()
    try:
        session = await mesh.spawn("What is in the file?", attachments=[Attachment("a.txt", b"alpha\n")])
        held = await held_by_runner(mesh, session.session_id)
        await stack.processes["runner"].kill()
    finally:
        model.resume()
    await stack.restart("runner")
    after = await succeeded(mesh, session.session_id)
    assert after.latest_run.run_id == held.latest_run.run_id
    assert after.latest_run.epoch > held.latest_run.epoch
    assert after.latest_run.attempt_count == 2
    assert sha256(b"alpha\n").hexdigest() in after.latest_run.result_text
    entries = [entry async for entry in mesh.transcript(session.session_id)]
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    await eventually(lambda: no_workspaces(stack))


async def no_workspaces(stack: Stack) -> bool:
    return not stack.workspace_root.exists() or not any(stack.workspace_root.iterdir())


async def test_runner_that_is_told_to_stop_hands_its_run_to_another(stack: Stack, mesh: WireMesh) -> None:
    model = stack.processes["scripted-model"]
    model.pause()
    try:
        session = await mesh.spawn("What is in the file?", attachments=[Attachment("a.txt", b"beta\n")])
        await held_by_runner(mesh, session.session_id)
        await stack.restart("runner")
    finally:
        model.resume()
    after = await succeeded(mesh, session.session_id)
    assert after.latest_run.attempt_count == 1, "a run that was handed back has used no attempt"
    assert sha256(b"beta\n").hexdigest() in after.latest_run.result_text


async def test_killed_session_stops_its_runner_and_leaves_no_workspace(stack: Stack, mesh: WireMesh) -> None:
    model = stack.processes["scripted-model"]
    model.pause()
    try:
        session = await mesh.spawn("What is in the file?", attachments=[Attachment("a.txt", b"gamma\n")])
        await held_by_runner(mesh, session.session_id)
        assert (await mesh.kill(session.session_id)).killed_run_count == 1
        await eventually(lambda: no_workspaces(stack))
    finally:
        model.resume()
    after = await mesh.session(session.session_id)
    assert after.state == session_pb2.SESSION_STATE_CLOSED
    assert after.latest_run.state == session_pb2.RUN_STATE_KILLED


async def test_services_that_restart_lose_no_run(stack: Stack, mesh: WireMesh) -> None:
    model = stack.processes["scripted-model"]
    model.pause()
    try:
        session = await mesh.spawn("What is in the file?", attachments=[Attachment("a.txt", b"delta\n")])
        await held_by_runner(mesh, session.session_id)
        for service in ("session", "transcript", "attachment-blob", "hook"):
            await stack.processes[service].kill()
            await stack.restart(service)
    finally:
        model.resume()
    after = await succeeded(mesh, session.session_id)
    assert sha256(b"delta\n").hexdigest() in after.latest_run.result_text
