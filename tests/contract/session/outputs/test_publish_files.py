"""PublishFiles: files of a run that stay when it has ended."""

import asyncio
import hashlib

import pytest
from spawnmesh.attachment_blob.v1 import attachment_pb2, upload_pb2
from spawnmesh.session.v1 import output_pb2 as pb
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as session_service
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token

from tests.support.serving import caller_at, client_tokens
from tests.support.session.approvals import ask, call_key
from tests.support.session.calls import another, fail, finalize, kill
from tests.support.session.harness import Mesh, attachment
from tests.support.session.interrupts import refusal_of
from tests.support.session.outputs import ATTACHED, RELEASED, Blobs, file, held_run, listed, publish
from tests.support.session.remains import Remains
from tests.support.session.worker import work_once


async def test_PublishFiles__the_files_can_be_read_and_stay_when_the_session_has_closed(
    mesh: Mesh, blobs: Blobs, peers: dict[str, str], remains: Remains
) -> None:
    held = await held_run(mesh, cleanup=session_pb2.CLEANUP_DELETE, attachments=[attachment()])
    published = await publish(mesh, held, file("a.csv", b"1,2\n"), file("b.bin", b""), request_id="one")

    assert (published.session_id, published.run_id) == (held.session.session_id, held.run.run_id)
    assert (published.request_id, published.total_bytes) == ("one", 4)
    assert [(one.name, one.size_bytes, one.sha256, one.mime_type) for one in published.files] == [
        ("a.csv", 4, hashlib.sha256(b"1,2\n").hexdigest(), "text/plain"),
        ("b.bin", 0, hashlib.sha256(b"").hexdigest(), "text/plain"),
    ]
    assert published.HasField("publish_time")
    run = (await mesh.get(held.session.session_id)).latest_run
    assert (run.output_file_count, run.output_total_bytes) == (2, 4)

    async with caller_at(peers["transcript"], "transcript") as transcript:
        await finalize(mesh, transcript, held)
    ended = await mesh.get(held.session.session_id)
    assert ended.state == session_pb2.SESSION_STATE_CLOSED

    await work_once(mesh.settings, remains.dsn, mesh.tenant)
    assert (await blobs.get(ended.receipt.set_id)).state == RELEASED
    found = await blobs.get(published.set_id)
    assert (found.state, found.run_id) == (ATTACHED, held.run.run_id)
    assert await blobs.read(published.set_id, "a.csv") == b"1,2\n"
    assert await listed(mesh, held.session.session_id) == [published]


async def test_PublishFiles__files_of_a_failed_run_stay(mesh: Mesh, blobs: Blobs) -> None:
    held = await held_run(mesh)
    published = await publish(mesh, held)
    await fail(mesh, held)
    assert await blobs.read(published.set_id, "report.txt") == b"42\n"
    assert await listed(mesh, held.session.session_id) == [published]


async def test_PublishFiles__a_repeat_returns_the_same_set_also_at_another_epoch(mesh: Mesh) -> None:
    held = await held_run(mesh)
    first = await publish(mesh, held, request_id="r")
    assert await publish(mesh, held, request_id="r") == first
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    again = await mesh.claim(held.session.session_id)
    assert again.run.epoch > held.run.epoch
    assert await publish(mesh, again, request_id="r") == first
    run = (await mesh.get(held.session.session_id)).latest_run
    assert run.output_file_count == 1
    other = await publish(mesh, again, request_id="s")
    assert other.set_id != first.set_id
    assert [one.request_id for one in await listed(mesh, held.session.session_id)] == ["r", "s"]


async def test_PublishFiles__other_files_with_the_request_id_are_refused(mesh: Mesh) -> None:
    held = await held_run(mesh)
    first = await publish(mesh, held, file(data=b"one"), request_id="r")
    with pytest.raises(MeshError) as caught:
        await publish(mesh, held, file(data=b"two"), request_id="r")
    assert caught.value.reason is Reason.REQUEST_ID_REUSED
    assert caught.value.facts["request_id"] == "r"
    assert await listed(mesh, held.session.session_id) == [first]


async def test_PublishFiles__the_files_are_attached_before_the_response(mesh: Mesh, blobs: Blobs) -> None:
    """The collector releases sets that are only staged; no worker is needed to keep these."""
    published = await publish(mesh, await held_run(mesh))
    assert (await blobs.get(published.set_id)).state == ATTACHED


async def test_PublishFiles__refusals_for_lack_of_storage_do_not_use_up_the_sets(mesh: Mesh) -> None:
    other = another(mesh)
    settings = TenantSettings()
    settings.attachments.enabled = True
    settings.attachments.max_file_count = 5
    settings.attachments.max_file_bytes = settings.attachments.max_total_bytes = 1024
    settings.attachments.max_stored_bytes = 10
    await other.create_tenant(settings=settings)
    held = await held_run(other)
    for number in range(101):
        call = publish(other, held, file(data=b"eleven bytes"), request_id=f"{number}")
        assert await refusal_of(call) is Reason.ATTACHMENTS_STORED_BYTES_EXCEEDED
    published = await publish(other, held, request_id="7")
    assert await listed(other, held.session.session_id) == [published]


async def test_PublishFiles__many_at_once_with_one_request_id_are_one_set(mesh: Mesh) -> None:
    held = await held_run(mesh)
    answers = await asyncio.gather(*(publish(mesh, held, request_id="r") for _ in range(8)))
    assert len({answer.set_id for answer in answers}) == 1
    run = (await mesh.get(held.session.session_id)).latest_run
    assert run.output_file_count == 1
    assert len(await listed(mesh, held.session.session_id)) == 1


async def test_PublishFiles__two_runs_with_one_request_id_have_a_set_each(mesh: Mesh) -> None:
    first, second = await held_run(mesh), await held_run(mesh)
    assert (await publish(mesh, first, request_id="r")).set_id != (
        await publish(mesh, second, request_id="r")
    ).set_id


@pytest.mark.parametrize("end", ["killed", "released", "waiting", "deleted"])
async def test_PublishFiles__only_the_run_that_is_held_publishes(mesh: Mesh, blobs: Blobs, end: str) -> None:
    held = await held_run(mesh)
    session_id = held.session.session_id
    if end == "killed":
        await kill(mesh, session_id)
    elif end == "released":
        await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    elif end == "waiting":
        await ask(mesh, held, call_key())
    else:
        request = session_service.DeleteSessionRequest(session_id=session_id)
        await mesh.client(mesh.sessions.DeleteSession, request)
    assert await refusal_of(publish(mesh, held)) is Reason.RUN_LEASE_LOST
    assert await blobs.sets() == []


async def test_PublishFiles__the_epoch_is_that_of_the_token(mesh: Mesh) -> None:
    held = await held_run(mesh)
    request = pb.PublishFilesRequest(epoch=held.run.epoch + 1, request_id="r", files=[file()])
    assert await refusal_of(mesh.run(held, mesh.runs.PublishFiles, request)) is Reason.CALLER_NOT_ALLOWED


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ([file("../etc/passwd")], Reason.ATTACHMENTS_INVALID_NAME),
        ([file("a"), file("A")], Reason.ATTACHMENTS_DUPLICATE_NAME),
        ([file(f"{n}") for n in range(51)], Reason.ATTACHMENTS_FILE_COUNT_EXCEEDED),
        ([file(data=b"x" * (1024 * 1024 + 1))], Reason.ATTACHMENTS_FILE_BYTES_EXCEEDED),
        ([file(f"{n}", bytes([n]) * 1024 * 1024) for n in range(6)], Reason.ATTACHMENTS_TOTAL_BYTES_EXCEEDED),
    ],
    ids=["a path", "a name twice", "many", "a large one", "large together"],
)
async def test_PublishFiles__refuses_what_a_spawn_refuses(
    mesh: Mesh,
    blobs: Blobs,
    remains: Remains,
    files: list[attachment_pb2.InlineAttachment],
    reason: Reason,
) -> None:
    held = await held_run(mesh)
    assert await refusal_of(publish(mesh, held, *files, request_id="r")) is reason
    assert (await blobs.sets(), await listed(mesh, held.session.session_id)) == ([], [])
    # The same request_id is free for files that are allowed, and the refusals do not count.
    await asyncio.gather(*(refusal_of(publish(mesh, held, *files)) for _ in range(4)))
    await publish(mesh, held, request_id="r")
    run = (await mesh.get(held.session.session_id)).latest_run
    assert run.output_file_count == 1
    counted = "session.runs where output_set_count = 1"
    assert await remains.count(mesh.tenant, counted) == 1


async def test_PublishFiles__without_any_file_is_refused(mesh: Mesh) -> None:
    held = await held_run(mesh)
    request = pb.PublishFilesRequest(epoch=held.run.epoch, request_id="r")
    assert await refusal_of(mesh.run(held, mesh.runs.PublishFiles, request)) is Reason.INVALID_REQUEST


async def test_PublishFiles__a_tenant_without_attachments_has_no_output_either(mesh: Mesh) -> None:
    other = another(mesh)
    settings = TenantSettings()
    settings.attachments.enabled = False
    await other.create_tenant(settings=settings)
    held = await held_run(other)
    assert await refusal_of(publish(other, held)) is Reason.ATTACHMENTS_DISABLED


async def test_PublishFiles__an_unknown_upload_is_refused(mesh: Mesh) -> None:
    held = await held_run(mesh)
    request = pb.PublishFilesRequest(
        epoch=held.run.epoch,
        request_id="r",
        uploads=[upload_pb2.UploadedAttachment(upload_id=new_id(IdKind.UPLOAD))],
    )
    assert await refusal_of(mesh.run(held, mesh.runs.PublishFiles, request)) is Reason.NOT_FOUND


async def test_PublishFiles__a_client_cannot(mesh: Mesh) -> None:
    held = await held_run(mesh)
    request = pb.PublishFilesRequest(epoch=held.run.epoch, request_id="r", files=[file()])
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600)):
        call = mesh.peer.unary(mesh.runs.PublishFiles, request, timeout_seconds=60)
        assert await refusal_of(call) is Reason.CALLER_NOT_ALLOWED


async def test_PublishFiles__a_run_has_a_hundred_sets(mesh: Mesh, blobs: Blobs) -> None:
    held = await held_run(mesh)
    for number in range(100):
        await publish(mesh, held, request_id=f"{number}")
    with pytest.raises(MeshError) as caught:
        await publish(mesh, held, request_id="101st")
    assert caught.value.reason is Reason.INVALID_REQUEST
    assert "100 sets" in caught.value.message
    await publish(mesh, held, request_id="7")  # A repeat is none more.
    found = await listed(mesh, held.session.session_id, page_size=30)
    assert [one.request_id for one in found] == [f"{number}" for number in range(100)]
    assert len(await blobs.sets()) == 100
    run = (await mesh.get(held.session.session_id)).latest_run
    assert (run.output_file_count, run.output_total_bytes) == (100, 300)


async def test_WatchSession__tells_that_files_were_published(mesh: Mesh) -> None:
    held = await held_run(mesh)
    one = await publish(mesh, held, request_id="r")
    await publish(mesh, held, request_id="r")
    two = await publish(mesh, held, file("a"), file("b"))
    request = session_service.WatchSessionRequest(session_id=held.session.session_id, ends_at_newest=True)
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 600)):
        stream = mesh.peer.stream(mesh.sessions.WatchSession, request, timeout_seconds=60)
        events = [answer.session_event async for answer in stream]
    told = [event for event in events if event.kind == session_pb2.SESSION_EVENT_KIND_FILES_PUBLISHED]
    assert [(event.set_id, event.run_id, event.detail) for event in told] == [
        (one.set_id, held.run.run_id, "1 file, 3 bytes"),
        (two.set_id, held.run.run_id, "2 files, 6 bytes"),
    ]
    assert all(not event.set_id for event in events if event not in told)


async def test_PublishFiles__a_refused_call_does_not_disturb_another_with_the_request_id(mesh: Mesh) -> None:
    held = await held_run(mesh)
    calls = [publish(mesh, held, file("../x"), request_id="r"), publish(mesh, held, request_id="r")]
    refused, published = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(refused, MeshError)
    assert refused.reason is Reason.ATTACHMENTS_INVALID_NAME
    assert isinstance(published, pb.OutputSet)
    assert await listed(mesh, held.session.session_id) == [published]
