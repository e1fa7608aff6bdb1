"""A crash between two steps of an archival or a deletion is completed by a sweep or a repeat."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
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

from tests.support.session.crashing import Crash, Crashing, Effects, crashing
from tests.support.session.harness import Mesh, attachment
from tests.support.session.remains import REPORT, Remains
from tests.support.session.worker import components_of, work_once

OF_SESSIONS = {
    "session.runs", "session.session_events", "session.inbox_messages", "session.run_queue", "transcript.entries",
    "attachment_blob.set_files", "attachment_blob.blobs", "session.jobs",
}  # fmt: skip


@dataclass
class CutOff:
    """A tenant whose process died after an effect, and its sessions."""

    mesh: Mesh
    session_ids: list[str]
    before: dict[str, int]
    found: list[bool] = field(default_factory=list)


async def cut_off_after_each_effect(
    mesh: Mesh, remains: Remains, prepare: Callable[[Mesh], Awaitable[list[str]]], act: Callable[..., Any]
) -> list[CutOff]:
    """Act for a fresh tenant for each effect, and die after it. In the last tenant nothing dies."""
    tenants: list[CutOff] = []
    async with components_of(mesh.settings) as components:
        for crash_at in range(1, 100):
            own = await new_tenant(mesh)
            cut = CutOff(own, await prepare(own), {})
            cut.before = await remains.everywhere(own.tenant)
            tenants.append(cut)
            steps = Effects(crash_at)
            with impersonate(own.tenant):
                try:
                    await act(crashing(components, steps), own.tenant, cut.session_ids[0])
                except BaseException as error:
                    if not died(error):
                        raise
            cut.found = await found(own, cut.session_ids)
            if steps.count < crash_at:
                return tenants
    pytest.fail("it never comes to its end")


async def work(tenants: list[CutOff], remains: Remains) -> dict[str, dict[str, int]]:
    """Let a worker do everything that waits in the tenants; return what is left of each."""
    ids = [cut.mesh.tenant for cut in tenants]
    await work_once(tenants[0].mesh.settings, remains.dsn, *ids)
    return await remains.everywhere_of(ids)


async def delete_session(on: Crashing, tenant: str, session_id: str) -> None:
    await on.deps.deleter.delete(tenant, session_id)


async def archive_session(on: Crashing, tenant: str, session_id: str) -> None:
    request = pb.ArchiveSessionRequest(session_id=session_id)
    await archive(request, Caller(CallerKind.CLIENT, "test", tenant), on.deps)


async def delete_tenant(on: Crashing, tenant: str, _session_id: str) -> None:
    request = tenant_pb.DeleteTenantRequest(tenant_id=tenant, request_id="delete")
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


async def ended_family(mesh: Mesh) -> list[str]:
    """A session and its child, which have ended."""
    root = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    child = await mesh.spawn_as(await mesh.claim(root.session_id))
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=root.session_id))
    return [root.session_id, child.session_id]


async def test_DeleteSession__cut_off_between_any_two_steps(mesh: Mesh, remains: Remains) -> None:
    tenants = await cut_off_after_each_effect(mesh, remains, family, delete_session)
    assert len(tenants) > 7, "the steps are counted no more"
    left = await work(tenants, remains)
    for number, cut in enumerate(tenants, 1):
        after = left[cut.mesh.tenant]
        assert cut.found in ([True, True], [False, False]), number
        if all(cut.found):
            cut.before.pop("session.jobs", None)  # The worker has published the start.
            assert after == cut.before, number
        else:
            assert after.keys().isdisjoint(OF_SESSIONS), number
        request = pb.DeleteSessionRequest(session_id=cut.session_ids[0])
        await cut.mesh.client(cut.mesh.sessions.DeleteSession, request)
    left = await work(tenants, remains)
    for number, cut in enumerate(tenants, 1):
        assert left[cut.mesh.tenant].keys().isdisjoint(OF_SESSIONS), number


async def test_ArchiveSession__cut_off_between_any_two_steps(mesh: Mesh, remains: Remains) -> None:
    for cut in await cut_off_after_each_effect(mesh, remains, ended_family, archive_session):
        own = cut.mesh
        archived = {(await own.get(one)).HasField("archive_time") for one in cut.session_ids}
        assert len(archived) == 1
        request = pb.ArchiveSessionRequest(session_id=cut.session_ids[0])
        answer = await own.client(own.sessions.ArchiveSession, request)
        assert answer.archived_session_count == (0 if archived == {True} else 2)


@pytest.mark.timeout(300)
async def test_DeleteTenant__cut_off_between_any_two_steps(mesh: Mesh, remains: Remains) -> None:
    tenants = await cut_off_after_each_effect(mesh, remains, family, delete_tenant)
    assert len(tenants) > 20, "the steps are counted no more"
    left = await work(tenants, remains)
    for number, cut in enumerate(tenants, 1):
        assert left[cut.mesh.tenant] == REPORT, number
        await cut.mesh.delete_tenant()
    left = await work(tenants, remains)
    for number, cut in enumerate(tenants, 1):
        assert left[cut.mesh.tenant] == REPORT, number
        deletion = (await cut.mesh.tenant_state()).deletion
        assert (deletion.deleted_session_count, deletion.killed_run_count) == (2, 2), number
