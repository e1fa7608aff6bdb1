"""A tenant that masks secrets has none in results, errors and messages; repeats still match."""

from typing import Any

import psycopg
import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1 import tenant_service_pb2 as tenant_pb
from spawnmesh.session.v1.tenant_pb2 import Tenant, TenantSettings
from spawnmesh.transcript.v1.transcript_settings_pb2 import TranscriptSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer

from tests.support.cpu_workers import worker_pids
from tests.support.serving import caller_at
from tests.support.session.calls import offer
from tests.support.session.crashing import Crash
from tests.support.session.drafting import draft, entries_of
from tests.support.session.finalizing import Reader, die, finalize_beside
from tests.support.session.harness import Mesh
from tests.support.session.plugins import plugged
from tests.support.session.remains import Remains

SECRET = "sk-proj-" + "Ab3dEf6hIj9lMn2pQr5tUv8x"
SAID = f"the key is {SECRET}, keep it"
KEPT = "the key is [$redacted:provider_key], keep it"
MASKED = TenantSettings(transcripts=TranscriptSettings(mask_secrets=True))
UNMASKED = TenantSettings()


@pytest.fixture
async def masking(mesh: Mesh) -> Mesh:
    """The service, and a tenant that has secrets masked."""
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=MASKED)
    return own


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


async def mask(mesh: Mesh, settings: TenantSettings = MASKED) -> None:
    request = tenant_pb.UpdateTenantRequest(
        tenant=Tenant(tenant_id=mesh.tenant, settings=settings),
        update_mask=FieldMask(paths=["settings.transcripts"]),
    )
    await mesh.operator("UpdateTenant", request)


async def inbox(mesh: Mesh, held: run_pb.ClaimedRun) -> list[str]:
    box = await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    return [message.text for message in box.messages]


async def send(mesh: Mesh, session_id: str, text: str) -> session_pb2.Run:
    request = pb.SendMessageRequest(session_id=session_id, request_id="the one", text=text)
    run: session_pb2.Run = (await mesh.client(mesh.sessions.SendMessage, request)).run
    return run


async def is_kept(mesh: Mesh, remains: Remains, text: str) -> bool:
    """Return whether any row of the tenant's runs and messages has the text."""
    async with await psycopg.AsyncConnection.connect(remains.dsn) as superuser:
        rows = await superuser.execute(
            "select r::text from session.runs r where tenant_id = %(tenant)s"
            " union all select m::text from session.inbox_messages m where tenant_id = %(tenant)s",
            {"tenant": mesh.tenant},
        )
        return any(text in row for (row,) in await rows.fetchall())


async def test_FinalizeRun__a_large_result_is_masked_in_another_process(
    masking: Mesh, transcript: Peer
) -> None:
    held = await masking.claim((await masking.spawn()).session_id)
    padding, before = "as it is. " * 8_000, worker_pids()
    offered = await draft(transcript, held, padding + SAID)
    ended = await masking.run(held, masking.runs.FinalizeRun, offered)
    assert ended.accepted.run.result_text == padding + KEPT
    assert worker_pids() > before


async def test_FinalizeRun__result_reads_as_the_transcript_does(
    masking: Mesh, peers: dict[str, str], transcript: Peer, remains: Remains
) -> None:
    plugin = Reader()
    async with plugged(masking, peers, plugin, sees_content=True):
        parent = await masking.claim((await masking.spawn()).session_id)
        held = await masking.claim((await masking.spawn_as(parent)).session_id)
        offered = await draft(transcript, held, SAID)
        for _ in range(2):
            ended = await masking.run(held, masking.runs.FinalizeRun, offered)
            assert ended.accepted.run.result_text == KEPT
    assert plugin.read == [KEPT]
    [text] = await inbox(masking, parent)
    assert text.endswith(KEPT)
    bodies = [
        entry.body.message for entry in await entries_of(transcript, held) if entry.body.HasField("message")
    ]
    assert bodies[-1].content[0].text.text == KEPT
    assert not await is_kept(masking, remains, SECRET)


async def test_FailRun__message_has_no_secret(masking: Mesh, remains: Remains) -> None:
    parent = await masking.claim((await masking.spawn()).session_id)
    held = await masking.claim((await masking.spawn_as(parent)).session_id)
    request = run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR, message=SAID)
    for _ in range(2):
        ended = await masking.run(held, masking.runs.FailRun, request)
        assert ended.run.error_message == KEPT
    assert not await is_kept(masking, remains, SECRET)


@pytest.mark.parametrize("ending", ["succeeded", "failed"])
async def test_announcement_has_the_label_without_secrets(
    masking: Mesh, transcript: Peer, ending: str
) -> None:
    parent = await masking.claim((await masking.spawn()).session_id)
    held = await masking.claim((await masking.spawn_as(parent, label=f"try {SECRET}")).session_id)
    if ending == "succeeded":
        await masking.run(held, masking.runs.FinalizeRun, await draft(transcript, held, SAID))
    else:
        await masking.run(
            held,
            masking.runs.FailRun,
            run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR),
        )
    [text] = await inbox(masking, parent)
    assert f"{held.session.session_id} (try [$redacted:provider_key])" in text
    assert SECRET not in text
    assert ending == "failed" or text.endswith(KEPT)


@pytest.mark.parametrize("padding", ["", "x" * 20_000], ids=["small", "large"])
async def test_SendMessage__is_kept_without_secrets_and_known_when_it_comes_again(
    masking: Mesh, remains: Remains, padding: str
) -> None:
    session = await masking.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await masking.claim(session.session_id)
    for _ in range(2):
        assert (await send(masking, session.session_id, SAID + padding)).run_id == held.run.run_id
    assert await inbox(masking, held) == [KEPT + padding]
    with pytest.raises(MeshError) as caught:
        await send(masking, session.session_id, "something else" + padding)
    assert caught.value.reason is Reason.REQUEST_ID_REUSED
    assert not await is_kept(masking, remains, SECRET)


async def test_what_was_kept_before_is_known_after(mesh: Mesh, transcript: Peer) -> None:
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    offered = await draft(transcript, held, SAID)
    assert (await mesh.run(held, mesh.runs.FinalizeRun, offered)).accepted.run.result_text == SAID
    await send(mesh, session.session_id, SAID)
    await mask(mesh)
    await send(mesh, session.session_id, SAID)
    again = await mesh.claim(session.session_id)
    assert await inbox(mesh, again) == [SAID]
    assert (await mesh.run(held, mesh.runs.FinalizeRun, offered)).accepted.run.result_text == SAID


@pytest.mark.parametrize("cut", ["behind the end", "before the end"])
async def test_what_was_decided_without_secrets_stays_so_where_they_are_masked_no_more(
    masking: Mesh, transcript: Peer, remains: Remains, cut: str
) -> None:
    held = await masking.claim((await masking.spawn()).session_id)
    offered = await draft(transcript, held, SAID)
    if cut == "behind the end":
        assert (await offer(masking, held, offered)).accepted.run.result_text == KEPT
    else:
        with pytest.raises(Crash):
            await finalize_beside(masking, held, offered, die)
    await mask(masking, UNMASKED)
    for _ in range(2):
        assert (await offer(masking, held, offered)).accepted.run.result_text == KEPT
    offered.draft_text = "something else"
    with pytest.raises(MeshError) as caught:
        await offer(masking, held, offered)
    assert caught.value.reason is Reason.RUN_STATE
    assert not await is_kept(masking, remains, SECRET)
