"""Retention of ended sessions and of growing tables."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.policy.v1 import policy_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from tests.support.session.auditing import operator_of, recorded
from tests.support.session.calls import DAY
from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains
from tests.support.session.worker import work_once

HOUR = Duration(seconds=3600)


@pytest.fixture
async def own(mesh: Mesh) -> Mesh:
    """A tenant whose sessions are archived after an hour and deleted after a day."""
    fresh = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await fresh.create_tenant(settings=TenantSettings(archive_after=HOUR, delete_after=DAY))
    return fresh


async def aged(mesh: Mesh, remains: Remains, by: timedelta) -> None:
    """Lets everything of the tenant be older, and what is due be done."""
    columns = {
        "sessions": ("create_time", "end_time", "delete_time"),
        "session_events": ("event_time",),
        "inbox_messages": ("create_time", "acknowledge_time"),
    }
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:
        for table, names in columns.items():
            older = ", ".join(f"{name} = {name} - %(by)s" for name in names)
            values = {"by": by, "tenant": mesh.tenant}
            await link.execute(f"update session.{table} set {older} where tenant_id = %(tenant)s", values)
    await work_once(mesh.settings, remains.dsn, mesh.tenant)


async def ended(mesh: Mesh, **fields: Any) -> str:
    session = await mesh.spawn(**fields)
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id))
    return session.session_id


async def is_archived(mesh: Mesh, session_id: str) -> bool:
    return (await mesh.get(session_id)).HasField("archive_time")


async def is_gone(mesh: Mesh, session_id: str) -> bool:
    try:
        await mesh.get(session_id)
    except MeshError as error:
        return error.reason is Reason.NOT_FOUND
    return False


async def test_ended_session_is_archived_then_deleted_then_forgotten(own: Mesh, remains: Remains) -> None:
    request_id = uuid4().hex
    session_id = await ended(own, request_id=request_id)
    await aged(own, remains, timedelta(minutes=59))
    assert not await is_archived(own, session_id)
    await aged(own, remains, timedelta(minutes=2))
    assert await is_archived(own, session_id)
    await aged(own, remains, timedelta(hours=24))
    assert await is_gone(own, session_id)
    assert await remains.count(own.tenant, "session.sessions where true") == 1
    event = await recorded(own.peer, operator_of(own), "DeleteSession")
    assert (event.caller_kind, event.subject) == (policy_pb2.CALLER_SERVICE, "session-worker")
    assert list(event.resources) == [f"session_id={session_id}"]
    with pytest.raises(MeshError) as caught:
        await own.spawn(request_id=request_id)
    assert caught.value.reason is Reason.NOT_FOUND
    await aged(own, remains, timedelta(hours=25))
    assert await remains.count(own.tenant, "session.sessions where true") == 0
    assert (await own.spawn(request_id=request_id)).session_id != session_id


async def test_live_session_is_left_alone_however_old(own: Mesh, remains: Remains) -> None:
    session = await own.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    await aged(own, remains, timedelta(days=100))
    assert (await own.get(session.session_id)).state == session_pb2.SESSION_STATE_ACTIVE
    assert not await is_archived(own, session.session_id)


async def test_parent_stays_as_long_as_a_child_does(own: Mesh, remains: Remains) -> None:
    root = await own.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await own.claim(root.session_id)
    child = await own.spawn_as(held, mode=session_pb2.SESSION_MODE_SESSION)
    request = pb.KillSessionRequest(session_id=child.session_id)
    async with await psycopg.AsyncConnection.connect(
        remains.dsn, autocommit=True
    ) as link:  # As if its run had ended alone.
        await link.execute(
            "update session.sessions set state = 'CLOSED', end_time = now() where tenant_id = %s and session_id = %s",
            (own.tenant, root.session_id),
        )
    await aged(own, remains, timedelta(days=2))
    assert not await is_gone(own, root.session_id)
    await own.client(own.sessions.KillSession, request)
    await aged(own, remains, timedelta(days=2))
    assert await is_gone(own, child.session_id)
    assert await is_gone(own, root.session_id)


async def test_defaults_archive_after_a_month_and_never_delete(mesh: Mesh, remains: Remains) -> None:
    session_id = await ended(mesh)
    await aged(mesh, remains, timedelta(days=29))
    assert not await is_archived(mesh, session_id)
    await aged(mesh, remains, timedelta(days=2))
    assert await is_archived(mesh, session_id)
    await aged(mesh, remains, timedelta(days=4000))
    assert await is_archived(mesh, session_id)


async def test_events_and_read_messages_go_at_their_age_and_unread_ones_stay(
    own: Mesh, remains: Remains
) -> None:
    session = await own.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await own.claim(session.session_id)
    for name in ("read", "unread"):
        request = pb.SendMessageRequest(session_id=session.session_id, request_id=name, text=name)
        await own.client(own.sessions.SendMessage, request)
    taken = run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=["message:v1:read"])
    await own.run(held, own.runs.AcknowledgeInbox, taken)
    # Not before a day, whatever `archive_after` says.
    await aged(own, remains, timedelta(hours=23))
    assert await remains.count(own.tenant, "session.inbox_messages where true") == 2
    assert await remains.count(own.tenant, "session.session_events where true") >= 3
    await aged(own, remains, timedelta(hours=2))
    assert await remains.count(own.tenant, "session.session_events where true") == 0
    [message] = (await own.run(held, own.runs.ListInbox, run_pb.ListInboxRequest())).messages
    assert message.text == "unread"


async def test_forgotten_request_id_names_another_message(own: Mesh, remains: Remains) -> None:
    session = await own.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await own.claim(session.session_id)
    names: list[str] = []
    for text in ("monday", "tuesday", "tuesday"):
        request = pb.SendMessageRequest(session_id=session.session_id, request_id="daily", text=text)
        for _ in range(2):
            await own.client(own.sessions.SendMessage, request)
        [message] = (await own.run(held, own.runs.ListInbox, run_pb.ListInboxRequest())).messages
        assert (message.key, message.text) == ("message:v1:daily", text)
        names.append(message.append_request_id)
        taken = run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=[message.key])
        await own.run(held, own.runs.AcknowledgeInbox, taken)
        await aged(own, remains, timedelta(days=2))
    assert len(set(names)) == 3
    assert all(name.startswith("message:v1:daily:") for name in names)


async def test_what_other_services_go_by_reaches_them(mesh: Mesh, remains: Remains) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    limits = AttachmentLimits(
        enabled=True,
        max_file_count=5,
        max_file_bytes=100,
        max_total_bytes=200,
        retention=DAY,
        download_url_lifetime=Duration(seconds=60),
    )
    settings = TenantSettings(
        attachments=limits, retain_on_session_keep=True, transcripts=TranscriptSettings(mask_secrets=True)
    )
    for _ in range(2):
        await own.create_tenant(settings=settings)
    kept = "attachment_blob.attachment_tenants where retention_seconds = 86400 and download_url_seconds = 60"
    assert await remains.count(own.tenant, kept) == 1
    assert await remains.count(own.tenant, "transcript.tenants where mask_secrets") == 1
    assert (await own.tenant_state()).settings == settings
