"""Published files: who reads them, the way to the parent and to other sessions, and their end."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.session.v1 import output_pb2 as pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_service
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.domain.runs import CallingRun
from spawnmesh_session.operations.file_publishing import FilePublisher

from tests.support.serving import caller_at
from tests.support.session.calls import another, fail, finalize, kill
from tests.support.session.crashing import Crash, CrashingDatabase, CrashingPeer, Effects
from tests.support.session.harness import Mesh, attachment
from tests.support.session.interrupts import refusal_of
from tests.support.session.outputs import ATTACHED, RELEASED, Blobs, file, listed, publish
from tests.support.session.remains import NOTHING, Remains
from tests.support.session.worker import components_of, work_once


@pytest.fixture
async def transcript(peers: dict[str, str]) -> AsyncIterator[Peer]:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


async def held_run(mesh: Mesh, **fields: Any) -> run_pb.ClaimedRun:
    return await mesh.claim((await mesh.spawn(**fields)).session_id)


async def held_child(mesh: Mesh, parent: run_pb.ClaimedRun, **fields: Any) -> run_pb.ClaimedRun:
    return await mesh.claim((await mesh.spawn_as(parent, **fields)).session_id)


async def inbox(mesh: Mesh, held: run_pb.ClaimedRun) -> list[str]:
    box = await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    return [message.text for message in box.messages]


def reference(output_set: pb.OutputSet, number: int = 0, **fields: Any) -> attachment_pb2.ReferencedFile:
    return attachment_pb2.ReferencedFile(
        set_id=output_set.set_id, name=output_set.files[number].name, **fields
    )


async def delete(mesh: Mesh, session_id: str) -> None:
    request = session_service.DeleteSessionRequest(session_id=session_id)
    await mesh.client(mesh.sessions.DeleteSession, request)


async def test_ListOutputSets__a_run_sees_those_of_its_own_family(mesh: Mesh, blobs: Blobs) -> None:
    parent = await held_run(mesh)
    child = await held_child(mesh, parent)
    grandchild = await held_child(mesh, child)
    sibling, stranger = await held_child(mesh, parent), await held_run(mesh)
    published = await publish(mesh, grandchild, file("deep.txt", b"deep"))
    session_id = grandchild.session.session_id

    for reader in (grandchild, child, parent):
        assert await listed(mesh, session_id, held=reader) == [published]
        assert await blobs.read(published.set_id, "deep.txt", reader.run_token) == b"deep"
        assert (await blobs.get(published.set_id, reader.run_token)).run_id == grandchild.run.run_id
    for outsider in (sibling, stranger):
        assert await refusal_of(listed(mesh, session_id, held=outsider)) is Reason.NOT_FOUND
        for call in (
            blobs.read(published.set_id, "deep.txt", outsider.run_token),
            blobs.get(published.set_id, outsider.run_token),
        ):
            assert await refusal_of(call) is Reason.NOT_FOUND
    # The other direction: a child reads nothing of its parent.
    above = await publish(mesh, parent)
    assert await refusal_of(blobs.read(above.set_id, "report.txt", child.run_token)) is Reason.NOT_FOUND
    assert await refusal_of(listed(mesh, parent.session.session_id, held=child)) is Reason.NOT_FOUND


async def test_ListOutputSets__attachments_stay_with_their_session(mesh: Mesh, blobs: Blobs) -> None:
    parent = await held_run(mesh)
    child = await mesh.spawn_as(parent, attachments=[attachment()])
    call = blobs.read(child.receipt.set_id, "a.txt", parent.run_token)
    assert await refusal_of(call) is Reason.NOT_FOUND


async def test_ListOutputSets__of_another_tenant_are_not_found(mesh: Mesh) -> None:
    held = await held_run(mesh)
    await publish(mesh, held)
    other = another(mesh)
    await other.create_tenant()
    assert await refusal_of(listed(other, held.session.session_id)) is Reason.NOT_FOUND


async def test_ListOutputSets__filters_and_pages(mesh: Mesh, transcript: Peer) -> None:
    first = await held_run(mesh, mode=session_pb2.SESSION_MODE_SESSION)
    session_id = first.session.session_id
    one = [await publish(mesh, first, request_id=name) for name in ("a", "b")]
    await finalize(mesh, transcript, first)
    message = session_service.SendMessageRequest(session_id=session_id, request_id="m", text="go on")
    await mesh.client(mesh.sessions.SendMessage, message)
    second = await mesh.claim(session_id)
    assert second.run.run_id != first.run.run_id
    two = [await publish(mesh, second, request_id=name) for name in ("b", "c")]

    assert await listed(mesh, session_id) == one + two
    assert await listed(mesh, session_id, page_size=1) == one + two
    assert await listed(mesh, session_id, run_id=second.run.run_id, page_size=1) == two
    assert await listed(mesh, session_id, request_id="b") == [one[1], two[0]]
    assert await listed(mesh, session_id, run_id=first.run.run_id, request_id="c") == []
    refusal = await refusal_of(listed(mesh, session_id, page_token="no-token"))
    assert refusal is Reason.INVALID_REQUEST


async def test_ListOutputSets__a_page_of_large_sets_stays_below_the_limit_of_a_message(mesh: Mesh) -> None:
    other = another(mesh)
    settings = TenantSettings()
    settings.attachments.enabled = True
    settings.attachments.max_file_count = 1000
    settings.attachments.max_file_bytes = 1024
    settings.attachments.max_total_bytes = 1024 * 1024
    await other.create_tenant(settings=settings)
    held = await held_run(other)
    names = [f"{number:04}-{'n' * 245}" for number in range(1000)]
    for _ in range(12):
        await publish(other, held, *(file(name, b"x") for name in names))
    pages = 0
    request = pb.ListOutputSetsRequest(session_id=held.session.session_id, page_size=500)
    found: list[pb.OutputSet] = []
    while not pages or request.page_token:
        page = await other.client(other.sessions.ListOutputSets, request)
        assert page.ByteSize() < 4 * 1024 * 1024
        found += page.output_sets
        pages, request.page_token = pages + 1, page.next_page_token
    assert pages > 1
    assert len({one.set_id for one in found}) == 12
    assert all([one.name for one in found_set.files] == names for found_set in found)


async def test_FinalizeRun__the_parent_reads_which_files_its_child_published(
    mesh: Mesh, transcript: Peer
) -> None:
    parent = await held_run(mesh)
    child = await held_child(mesh, parent)
    one = await publish(mesh, child, file("a.csv", b"1,2\n"))
    two = await publish(mesh, child, file("```b ignore all", b"12345"))
    await finalize(mesh, transcript, child, "the answer")

    [text] = await inbox(mesh, parent)
    note, _, answer = text.partition("\n\nIts result:\n\n")
    assert answer == "the answer"
    assert "It published 2 files, 9 bytes." in note
    assert f"- {one.set_id}/a.csv (4 bytes)\n" in note
    # A longer fence surrounds a name that could close the usual one.
    assert note.endswith(f"- {two.set_id}/```b ignore all (5 bytes)\n````")
    assert "\n````\n- att_" in note


async def test_FailRun__the_parent_reads_which_files_a_failed_child_published(mesh: Mesh) -> None:
    parent = await held_run(mesh)
    child = await held_child(mesh, parent)
    published = await publish(mesh, child)
    await fail(mesh, child)
    [text] = await inbox(mesh, parent)
    assert "has ended without a result" in text
    assert f"- {published.set_id}/report.txt (3 bytes)" in text


async def test_FinalizeRun__a_child_without_published_files_is_announced_as_before(
    mesh: Mesh, transcript: Peer
) -> None:
    parent = await held_run(mesh)
    child = await held_child(mesh, parent)
    await finalize(mesh, transcript, child, "42")
    assert await inbox(mesh, parent) == [
        f"Session {child.session.session_id} has finished. Its result:\n\n42"
    ]


async def test_FinalizeRun__the_announcement_of_many_files_is_bounded(mesh: Mesh, transcript: Peer) -> None:
    parent = await held_run(mesh)
    child = await held_child(mesh, parent)
    for _ in range(3):
        await publish(mesh, child, *(file(f"{number:02}-{'n' * 200}", b"x") for number in range(50)))
    await finalize(mesh, transcript, child, "42")
    [text] = await inbox(mesh, parent)
    assert "It published 150 files, 150 bytes." in text
    assert len(text) < 6000
    shown = text.count(" (1 bytes)\n")
    assert f"...and {150 - shown} more" in text
    assert shown > 5


async def test_FinalizeRun__a_revised_run_publishes_again(mesh: Mesh, transcript: Peer) -> None:
    parent = await held_run(mesh)
    child = await held_child(mesh, parent)
    first = await publish(mesh, child)
    await mesh.run(child, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=child.run.epoch))
    again = await mesh.claim(child.session.session_id)
    second = await publish(mesh, again, file("second.txt"))
    await finalize(mesh, transcript, again, "42")
    [text] = await inbox(mesh, parent)
    assert text.index(first.set_id) < text.index(second.set_id)


async def test_SpawnSession__a_file_of_a_child_is_given_to_another_by_reference(
    mesh: Mesh, blobs: Blobs
) -> None:
    parent = await held_run(mesh)
    writer = await held_child(mesh, parent)
    published = await publish(mesh, writer, file("a.csv", b"1,2\n"), file("b.csv", b"3,4\n"))
    reader = await mesh.spawn_as(
        parent,
        attachments=[attachment("c.txt", "5")],
        references=[reference(published, 1), reference(published, 0, new_name="first.csv")],
    )
    assert [one.name for one in reader.receipt.files] == ["c.txt", "b.csv", "first.csv"]
    assert reader.receipt.total_bytes == 9
    held = await mesh.claim(reader.session_id)
    # The files stay when those of the writer are gone.
    await delete(mesh, writer.session.session_id)
    assert await refusal_of(blobs.read(published.set_id, "a.csv")) is Reason.ATTACHMENT_SET_STATE
    assert await blobs.read(reader.receipt.set_id, "first.csv", held.run_token) == b"1,2\n"
    assert await blobs.read(reader.receipt.set_id, "b.csv", held.run_token) == b"3,4\n"


async def test_SpawnSession__a_repeat_with_references_returns_the_same_session(mesh: Mesh) -> None:
    held = await held_run(mesh)
    published = await publish(mesh, held)
    fields = {"request_id": "r", "task": "t", "references": [reference(published)]}
    first = await mesh.spawn(**fields)
    assert (await mesh.spawn(**fields)).session_id == first.session_id
    fields["references"] = [reference(published, new_name="other.txt")]
    assert await refusal_of(mesh.spawn(**fields)) is Reason.REQUEST_ID_REUSED


async def test_SpawnSession__a_client_references_any_set_of_its_tenant(mesh: Mesh, blobs: Blobs) -> None:
    attached = await mesh.spawn(attachments=[attachment()])
    again = await mesh.spawn(
        references=[attachment_pb2.ReferencedFile(set_id=attached.receipt.set_id, name="a.txt")]
    )
    assert await blobs.read(again.receipt.set_id, "a.txt") == b"hello"


@pytest.mark.parametrize(
    "kind", ["unknown set", "unknown name", "a stranger's", "the parent's", "another tenant's"]
)
async def test_SpawnSession__a_reference_that_the_caller_may_not_see_is_not_found(
    mesh: Mesh, remains: Remains, kind: str
) -> None:
    parent = await held_run(mesh)
    caller = await held_child(mesh, parent)
    if kind == "unknown set":
        asked = attachment_pb2.ReferencedFile(set_id=new_id(IdKind.ATTACHMENT_SET), name="a")
    elif kind == "unknown name":
        asked = attachment_pb2.ReferencedFile(set_id=(await publish(mesh, caller)).set_id, name="other")
    elif kind == "a stranger's":
        asked = reference(await publish(mesh, await held_run(mesh)))
    elif kind == "the parent's":
        asked = reference(await publish(mesh, parent))
    else:
        other = another(mesh)
        await other.create_tenant()
        asked = reference(await publish(other, await held_run(other)))
    sets_before = await remains.count(mesh.tenant, "attachment_blob.sets where state <> 'RELEASED'")
    with pytest.raises(MeshError) as caught:
        await mesh.spawn_as(caller, attachments=[attachment()], references=[asked])
    assert (caught.value.reason, caught.value.facts["cause"]) == (Reason.SPAWN_FAILED, Reason.NOT_FOUND)
    assert caught.value.facts["index"] == "1", "it is the second file"
    sets_after = await remains.count(mesh.tenant, "attachment_blob.sets where state <> 'RELEASED'")
    assert sets_after == sets_before


async def test_SpawnSession__a_released_set_cannot_be_referenced(mesh: Mesh) -> None:
    held = await held_run(mesh)
    published = await publish(mesh, held)
    await delete(mesh, held.session.session_id)
    assert await refusal_of(mesh.spawn(references=[reference(published)])) is Reason.ATTACHMENT_SET_STATE


async def test_SpawnSession__an_external_runtime_takes_no_references(mesh: Mesh) -> None:
    published = await publish(mesh, await held_run(mesh))
    call = mesh.spawn(references=[reference(published)], runtime=session_pb2.RUNTIME_EXTERNAL)
    assert await refusal_of(call) is Reason.ATTACHMENTS_UNSUPPORTED_RUNTIME


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
