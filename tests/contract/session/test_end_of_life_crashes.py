"""A crash between two steps of an archival or a deletion is completed by a sweep or a repeat."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_session.rpc.archive_session import archive_session as archive
from spawnmesh_session.rpc.delete_tenant import delete_tenant as begin_deletion

from tests.support.session.crashing import Crash, Crashing, Steps, crashing
from tests.support.session.harness import Mesh, attachment
from tests.support.session.remains import REPORT, Remains
from tests.support.session.worker import components_of, work_once

OF_SESSIONS = {
    "session.runs", "session.session_events", "session.inbox_messages", "session.dispatch", "transcript.entries",
    "attachment_blob.set_files", "attachment_blob.blobs", "jobs",
}  # fmt: skip


@asynccontextmanager
async def crashed(
    mesh: Mesh, crash_at: int, act: Callable[..., Awaitable[Any]], *arguments: str
) -> AsyncIterator[bool]:
    """Acts for the tenant in a process that dies at the step; yields whether it did."""
    steps = Steps(crash_at)
    async with components_of(mesh.settings) as components:
        with impersonate(mesh.tenant):
            try:
                await act(crashing(components, steps), mesh.tenant, *arguments)
            except BaseException as error:
                if not died(error):
                    raise
    yield steps.count >= crash_at


async def delete_session(on: Crashing, tenant: str, session_id: str) -> None:
    await on.deps.deleter.delete(tenant, session_id)


async def archive_session(on: Crashing, tenant: str, session_id: str) -> None:
    request = pb.ArchiveSessionRequest(session_id=session_id)
    await archive(request, Caller(CallerKind.CLIENT, "test", tenant), on.deps)


async def delete_tenant(on: Crashing, tenant: str) -> None:
    request = tenant_pb.DeleteTenantRequest(tenant_id=tenant)
    await begin_deletion(request, Caller(CallerKind.ADMIN, "test"), on.deps)
    while await on.purge.purge(tenant):
        pass


def died(error: BaseException) -> bool:
    """Side by side, several die at once."""
    if isinstance(error, BaseExceptionGroup):
        return all(died(one) for one in error.exceptions)
    return isinstance(error, Crash)


async def new_tenant(mesh: Mesh) -> Mesh:
    fresh = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await fresh.create_tenant(settings=TenantSettings(retain_on_session_keep=True))
    return fresh


async def family(mesh: Mesh, **fields: Any) -> list[str]:
    """An open session and its child, each with a file."""
    keep = {
        "attachments": [attachment()],
        "cleanup": session_pb2.CLEANUP_KEEP,
        "mode": session_pb2.SESSION_MODE_SESSION,
    }
    root = await mesh.spawn(**keep, **fields)
    child = await mesh.spawn(**keep, parent_session_id=root.session_id)
    return [root.session_id, child.session_id]


async def found(mesh: Mesh, session_ids: list[str]) -> list[bool]:
    answers = []
    for session_id in session_ids:
        try:
            answers.append(bool((await mesh.get(session_id)).session_id))
        except MeshError as error:
            if error.reason is not Reason.NOT_FOUND:
                raise
            answers.append(False)
    return answers


@pytest.mark.timeout(300)
async def test_DeleteSession__cut_off_between_any_two_steps(mesh: Mesh, remains: Remains) -> None:
    for crash_at in range(1, 100):
        own = await new_tenant(mesh)
        members = await family(own)
        before = await remains.everywhere(own.tenant)
        before.pop("jobs", None)  # The start may be published meanwhile.
        async with crashed(own, crash_at, delete_session, members[0]) as dead:
            here = await found(own, members)
            assert here in ([True, True], [False, False])
            await work_once(own.settings, remains.dsn, own.tenant)
            after = await remains.everywhere(own.tenant)
            assert after == before if all(here) else after.keys().isdisjoint(OF_SESSIONS)
            await own.client(own.sessions.DeleteSession, pb.DeleteSessionRequest(session_id=members[0]))
            await work_once(own.settings, remains.dsn, own.tenant)
            assert (await remains.everywhere(own.tenant)).keys().isdisjoint(OF_SESSIONS)
        if not dead:
            assert crash_at > 15, "the steps are counted no more"
            return
    pytest.fail("it never comes to its end")


@pytest.mark.timeout(300)
async def test_ArchiveSession__cut_off_between_any_two_steps(mesh: Mesh, remains: Remains) -> None:
    for crash_at in range(1, 100):
        own = await new_tenant(mesh)
        root = await own.spawn(mode=session_pb2.SESSION_MODE_SESSION)
        held = await own.claim(root.session_id)
        child = await own.spawn_as(held)
        await own.client(own.sessions.KillSession, pb.KillSessionRequest(session_id=child.session_id))
        await own.client(own.sessions.KillSession, pb.KillSessionRequest(session_id=root.session_id))
        async with crashed(own, crash_at, archive_session, root.session_id) as dead:
            archived = {(await own.get(one.session_id)).HasField("archive_time") for one in (root, child)}
            assert len(archived) == 1
            request = pb.ArchiveSessionRequest(session_id=root.session_id)
            answer = await own.client(own.sessions.ArchiveSession, request)
            assert answer.archived_session_count == (0 if archived == {True} else 2)
        if not dead:
            return
    pytest.fail("it never comes to its end")


@pytest.mark.timeout(600)
async def test_DeleteTenant__cut_off_between_any_two_steps(mesh: Mesh, remains: Remains) -> None:
    for crash_at in range(1, 200):
        own = await new_tenant(mesh)
        await family(own)
        async with crashed(own, crash_at, delete_tenant) as dead:
            tenant = await own.tenant_state()
            await work_once(own.settings, remains.dsn, own.tenant)
            if tenant.HasField("deletion"):
                assert await remains.everywhere(own.tenant) == REPORT
            else:
                assert crash_at <= 2, "what is not durable has not begun"
            await own.delete_tenant()
            await work_once(own.settings, remains.dsn, own.tenant)
            assert await remains.everywhere(own.tenant) == REPORT
            deletion = (await own.tenant_state()).deletion
            assert (deletion.deleted_session_count, deletion.killed_run_count) == (2, 2)
        if not dead:
            assert crash_at > 30, "the steps are counted no more"
            return
    pytest.fail("it never comes to its end")
