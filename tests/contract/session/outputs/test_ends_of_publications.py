"""Publications that are cut short, and the end of published files."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_service_pb2 as session_service
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_session.domain.runs import CallingRun
from spawnmesh_session.operations.file_publishing import FilePublisher

from tests.support.session.calls import kill
from tests.support.session.crashing import Crash, CrashingDatabase, CrashingPeer, Effects
from tests.support.session.harness import Mesh
from tests.support.session.interrupts import refusal_of
from tests.support.session.outputs import (
    ATTACHED,
    RELEASED,
    Blobs,
    delete,
    file,
    held_child,
    held_run,
    listed,
    publish,
)
from tests.support.session.remains import NOTHING, Remains
from tests.support.session.worker import components_of, work_once


async def test_DeleteSession__releases_what_was_published(mesh: Mesh, blobs: Blobs, remains: Remains) -> None:
    parent = await held_run(mesh)
    child = await held_child(mesh, parent)
    sets = [await publish(mesh, one, file(data=data)) for one, data in ((parent, b"p"), (child, b"c"))]
    sets += [await publish(mesh, child, request_id=f"{number}") for number in range(60)]
    await delete(mesh, parent.session.session_id)
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert {(await blobs.get(one.set_id)).state for one in sets} == {RELEASED}
    assert await remains.of(mesh.tenant) == NOTHING
    assert await remains.count(mesh.tenant, "session.output_sets where true") == 0


async def test_DeleteSession__removes_the_names_at_once_also_while_attachment_blob_is_away(
    mesh: Mesh, remains: Remains
) -> None:
    held = await held_run(mesh)
    published = await publish(mesh, held, file("the-name.txt"), request_id="the-request")
    async with components_of(mesh.settings) as components:

        class Away:
            async def release(self, set_id: str) -> None:
                raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "away")

        deleter = replace(components.deleter, sets=Away())  # type: ignore[arg-type]
        await deleter.delete(mesh.tenant, held.session.session_id)
    kept = "session.output_sets where files = '[]' and request_id = ''"
    assert await remains.count(mesh.tenant, kept) == 1
    assert await remains.count(mesh.tenant, "session.output_sets where true") == 1
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert await remains.count(mesh.tenant, "session.output_sets where true") == 0
    assert await remains.of(mesh.tenant) == NOTHING
    assert published.set_id


async def test_ArchiveSession__published_files_stay(mesh: Mesh, blobs: Blobs, remains: Remains) -> None:
    held = await held_run(mesh)
    published = await publish(mesh, held)
    await kill(mesh, held.session.session_id)
    request = session_service.ArchiveSessionRequest(session_id=held.session.session_id)
    await mesh.client(mesh.sessions.ArchiveSession, request)
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert (await blobs.get(published.set_id)).state == ATTACHED
    assert await blobs.read(published.set_id, "report.txt") == b"42\n"
    assert await listed(mesh, held.session.session_id) == [published]


async def test_DeleteTenant__nothing_of_published_files_is_left(mesh: Mesh, remains: Remains) -> None:
    held = await held_run(mesh)
    await publish(mesh, held)
    await mesh.delete_tenant()
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    found = await remains.everywhere(mesh.tenant)
    assert "session.output_sets" not in found
    assert "attachment_blob.sets" not in found


async def test_PublishFiles__a_process_that_dies_at_any_step_is_repeated_without_a_trace(
    mesh: Mesh, remains: Remains, blobs: Blobs
) -> None:
    """Each crash leaves nothing or one set; the repeat of the call publishes it, once."""
    crashes = 0
    for crash_at in range(1, 20):
        held = await held_run(mesh)
        steps = Effects(crash_at)
        async with components_of(mesh.settings) as components:
            publisher = FilePublisher(
                CrashingDatabase(components.database, steps),  # type: ignore[arg-type]
                CrashingPeer(components.sets, steps),  # type: ignore[arg-type]
            )
            calling = CallingRun(held.session.session_id, held.run.run_id, held.run.epoch)
            try:
                with impersonate(mesh.tenant):
                    await publisher.publish(mesh.tenant, calling, "r", [file()], [])
            except Crash:
                crashes += 1
                is_last = False
            else:
                is_last = True
        published = await publish(mesh, held, request_id="r")
        assert await listed(mesh, held.session.session_id) == [published]
        assert (await mesh.get(held.session.session_id)).latest_run.output_file_count == 1
        await work_once(mesh.settings, remains.dsn, mesh.tenant)
        assert (await blobs.get(published.set_id)).state == ATTACHED
        if is_last:
            break
    else:
        raise AssertionError("it crashes for ever")
    assert crashes >= 3


async def test_PublishFiles__the_files_of_a_call_that_died_count_against_other_files(
    mesh: Mesh, blobs: Blobs
) -> None:
    """They are stored when the process dies, and published when the request_id comes again."""
    held = await held_run(mesh)
    calling = CallingRun(held.session.session_id, held.run.run_id, held.run.epoch)
    async with components_of(mesh.settings) as components:
        steps = Effects(2)  # The row is begun, and the files are stored.
        publisher = FilePublisher(
            CrashingDatabase(components.database, steps),  # type: ignore[arg-type]
            CrashingPeer(components.sets, steps),  # type: ignore[arg-type]
        )
        with impersonate(mesh.tenant), pytest.raises(Crash):
            await publisher.publish(mesh.tenant, calling, "r", [file(data=b"first")], [])
    assert await listed(mesh, held.session.session_id) == []
    assert (
        await refusal_of(publish(mesh, held, file(data=b"other"), request_id="r")) is Reason.REQUEST_ID_REUSED
    )
    [published] = await listed(mesh, held.session.session_id)
    assert published.request_id == "r"
    assert await blobs.read(published.set_id, "report.txt") == b"first"
    assert await publish(mesh, held, file(data=b"first"), request_id="r") == published


async def test_PublishFiles__files_that_a_killed_run_has_stored_are_released(
    mesh: Mesh, blobs: Blobs
) -> None:
    """The kill comes while the files are being stored."""
    held = await held_run(mesh)
    calling = CallingRun(held.session.session_id, held.run.run_id, held.run.epoch)
    async with components_of(mesh.settings) as components:

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(components.sets, name)

            async def attach(self, set_id: str) -> Any:
                await kill(mesh, held.session.session_id)
                return await components.sets.attach(set_id)

        publisher = FilePublisher(components.database, Slow())  # type: ignore[arg-type]
        with impersonate(mesh.tenant):
            call = publisher.publish(mesh.tenant, calling, "r", [file()], [])
            assert await refusal_of(call) is Reason.RUN_LEASE_LOST
    assert [one.state for one in await blobs.sets()] == [RELEASED]
    assert await listed(mesh, held.session.session_id) == []


async def test_PublishFiles__files_of_a_run_that_may_be_repeated_are_kept(mesh: Mesh, blobs: Blobs) -> None:
    """The lease is lost while they are being stored, and the next runner repeats the call."""
    held = await held_run(mesh)
    calling = CallingRun(held.session.session_id, held.run.run_id, held.run.epoch)
    async with components_of(mesh.settings) as components:

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(components.sets, name)

            async def attach(self, set_id: str) -> Any:
                release = run_pb.ReleaseRunRequest(epoch=held.run.epoch)
                await mesh.run(held, mesh.runs.ReleaseRun, release)
                return await components.sets.attach(set_id)

        publisher = FilePublisher(components.database, Slow())  # type: ignore[arg-type]
        with impersonate(mesh.tenant):
            call = publisher.publish(mesh.tenant, calling, "r", [file()], [])
            assert await refusal_of(call) is Reason.RUN_LEASE_LOST
    again = await mesh.claim(held.session.session_id)
    published = await publish(mesh, again, request_id="r")
    assert await blobs.read(published.set_id, "report.txt") == b"42\n"


async def test_PublishFiles__races_the_deletion_of_its_session(
    mesh: Mesh, blobs: Blobs, remains: Remains
) -> None:
    """Whichever wins, no set outlives the session."""
    for _ in range(6):
        held = await held_run(mesh)
        outcomes = await asyncio.gather(
            publish(mesh, held), delete(mesh, held.session.session_id), return_exceptions=True
        )
        assert outcomes[1] is None
        if isinstance(outcomes[0], BaseException):
            assert isinstance(outcomes[0], MeshError)
            assert outcomes[0].reason is Reason.RUN_LEASE_LOST
    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert {one.state for one in await blobs.sets()} <= {RELEASED}
    assert await remains.of(mesh.tenant) == NOTHING
