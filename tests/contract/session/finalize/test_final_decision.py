"""Messages, crashes and other drafts around the moment in which a draft is made the answer."""

import asyncio
from dataclasses import replace
from typing import Any, cast
from uuid import uuid4

import pytest
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_FINAL, LABEL_KIND_SUPERSEDED
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.domain.drafts import Draft

from tests.support.serving import caller_at
from tests.support.session.calls import offer, take_all
from tests.support.session.crashing import Crash
from tests.support.session.drafting import draft
from tests.support.session.finalizing import die, finalize_beside, labels_of, saga_with, writer_of
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.remains import Remains
from tests.support.session.worker import work_once


async def send(mesh: Mesh, session_id: str) -> session_pb2.Run:
    request = pb.SendMessageRequest(session_id=session_id, request_id=uuid4().hex, text="wait")
    run: session_pb2.Run = (await mesh.client(mesh.sessions.SendMessage, request)).run
    return run


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


@pytest.mark.parametrize("mode", [session_pb2.SESSION_MODE_RUN, session_pb2.SESSION_MODE_SESSION])
async def test_SendMessage__waits_for_the_end_of_a_run_whose_draft_is_labelled_final(
    mesh: Mesh, transcript: Peer, mode: Any
) -> None:
    session = await mesh.spawn(mode=mode)
    held = await mesh.claim(session.session_id)
    offered = await draft(transcript, held, "42")
    sent: list[asyncio.Task[session_pb2.Run]] = []

    async def meanwhile() -> None:
        sent.append(asyncio.create_task(send(mesh, session.session_id)))
        await asyncio.wait(sent, timeout=0.3)
        assert not sent[0].done(), "it is not decided yet which run reads it"

    ended = await finalize_beside(mesh, held, offered, meanwhile)
    assert (ended.state, ended.result_text) == ("SUCCEEDED", "42")
    assert await labels_of(transcript, held, offered.draft_entry_id) == [LABEL_KIND_FINAL]
    if mode == session_pb2.SESSION_MODE_RUN:
        with pytest.raises(MeshError) as caught:
            await sent[0]
        assert caught.value.reason is Reason.SESSION_CLOSED
    else:
        run = await sent[0]
        assert run.run_id != held.run.run_id
        assert (await mesh.get(session.session_id)).latest_run.run_id == run.run_id


async def test_FinalizeRun__again_after_a_crash_behind_the_label_ends_the_run_with_that_draft(
    mesh: Mesh, transcript: Peer
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    other = await draft(transcript, held, "43")
    offered = await draft(transcript, held, "42")
    with pytest.raises(Crash):
        await finalize_beside(mesh, held, offered, die)
    with pytest.raises(MeshError) as caught:
        await draft(transcript, held, "written after the label")
    assert caught.value.reason is Reason.WRITER_CLAIM_LOST, "the label released the claim"
    with pytest.raises(MeshError) as caught:
        await offer(mesh, held, other)
    assert (caught.value.reason, caught.value.facts["draft_entry_id"]) == (
        Reason.RUN_STATE,
        offered.draft_entry_id,
    )
    assert (await offer(mesh, held, offered)).accepted.run.result_text == "42"
    assert (await offer(mesh, held, offered)).accepted.run.result_text == "42"
    assert await labels_of(transcript, held, offered.draft_entry_id) == [LABEL_KIND_FINAL]
    assert await labels_of(transcript, held, other.draft_entry_id) == []


async def test_FinalizeRun__nobody_writes_the_transcript_once_it_answers(
    mesh: Mesh, transcript: Peer
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    offered = await draft(transcript, held, "42")
    assert await writer_of(transcript, held) == held.run.run_id
    await offer(mesh, held, offered)
    assert await writer_of(transcript, held) == ""


async def test_FinalizeRun__draft_whose_runner_was_lost_behind_the_label_is_the_answer_of_the_next(
    open_mesh: OpenMesh, transcript: Peer, remains: Remains
) -> None:
    async with open_mesh(lease_ttl_seconds=0.5) as mesh:
        await mesh.create_tenant()
        session = await mesh.spawn()
        ousted = await mesh.claim(session.session_id)
        offered = await draft(transcript, ousted, "42")
        with pytest.raises(Crash):
            await finalize_beside(mesh, ousted, offered, die)
    async with open_mesh() as patient:
        patient.tenant = mesh.tenant
        held = await patient.claim(session.session_id)
        await draft(transcript, held, "taking the transcript over")
        assert (await offer(patient, held, offered)).accepted.run.result_text == "42"
        assert await labels_of(transcript, held, offered.draft_entry_id) == [LABEL_KIND_FINAL]
        # The label was there before, and released nothing of this runner: a job does.
        assert await writer_of(transcript, held) == held.run.run_id
        await work_once(patient.settings, remains.dsn, patient.tenant)
        assert await writer_of(transcript, held) == ""
        with pytest.raises(MeshError) as caught:
            await offer(patient, ousted, offered)
        assert caught.value.reason is Reason.RUN_LEASE_LOST, "the later epoch ended the run"
        assert (await offer(patient, held, offered)).accepted.run.result_text == "42"


async def test_FinalizeRun__message_after_a_takeover_is_read_first_and_no_other_draft_is_final(
    open_mesh: OpenMesh, transcript: Peer
) -> None:
    async with open_mesh(lease_ttl_seconds=0.5) as mesh:
        await mesh.create_tenant()
        session = await mesh.spawn()
        held = await mesh.claim(session.session_id)
        offered = await draft(transcript, held, "42")
        with pytest.raises(Crash):
            await finalize_beside(mesh, held, offered, die)
    async with open_mesh() as patient:
        patient.tenant = mesh.tenant
        held = await patient.claim(session.session_id)
        better = await draft(transcript, held, "43")
        assert (await send(patient, session.session_id)).run_id == held.run.run_id
        assert (await offer(patient, held, offered)).messages_pending.count == 1
        assert (await offer(patient, held, offered)).messages_pending.count == 1
        assert await labels_of(transcript, held, offered.draft_entry_id) == [
            LABEL_KIND_FINAL,
            LABEL_KIND_SUPERSEDED,
        ]
        await take_all(patient, held)
        assert (await offer(patient, held, better)).accepted.run.result_text == "43"
        assert await labels_of(transcript, held, better.draft_entry_id) == [LABEL_KIND_FINAL]


async def nothing() -> None:
    """Between label and commit."""


async def texts_read(transcript: Peer, held: run_pb.ClaimedRun) -> list[str]:
    """Return the entries that a model would read."""
    stub: Any = TranscriptServiceStub(transcript.channel)
    request = transcript_pb.AssembleContextRequest(session_id=held.session.session_id, token_budget=100_000)
    with use_token(held.run_token):
        read = await transcript.unary(stub.AssembleContext, request, timeout_seconds=60)
    return [block.text.text for entry in read.entries for block in entry.body.message.content]


@pytest.mark.parametrize("withdrawal", ["whole", "cut off behind its label"])
async def test_FinalizeRun__draft_that_was_taken_back_for_a_message_is_never_the_answer(
    mesh: Mesh, transcript: Peer, withdrawal: str
) -> None:
    """The transcript has it in no context any more."""
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    offered = await draft(transcript, held, "42")
    with pytest.raises(Crash):
        await finalize_beside(mesh, held, offered, die)
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    await send(mesh, session.session_id)
    held = await mesh.claim(session.session_id)
    await draft(transcript, held, "taking the transcript over")
    if withdrawal == "whole":
        assert (await offer(mesh, held, offered)).messages_pending.count == 1
    else:
        with pytest.raises(Crash):
            await finalize_beside(mesh, held, offered, die)
    await take_all(mesh, held)
    for _ in range(2):
        with pytest.raises(MeshError) as caught:
            await offer(mesh, held, offered)
        assert (caught.value.reason, caught.value.facts["draft_entry_id"]) == (
            Reason.RUN_STATE,
            offered.draft_entry_id,
        )
        assert (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING
    anew = await draft(transcript, held, "42")
    assert (await offer(mesh, held, anew)).accepted.run.result_text == "42"
    assert await labels_of(transcript, held, offered.draft_entry_id) == [
        LABEL_KIND_FINAL,
        LABEL_KIND_SUPERSEDED,
    ]
    assert await labels_of(transcript, held, anew.draft_entry_id) == [LABEL_KIND_FINAL]
    assert (await texts_read(transcript, held)).count("42") == 1


def of_no_entry() -> run_pb.FinalizeRunRequest:
    return run_pb.FinalizeRunRequest(draft_entry_id=new_id(IdKind.ENTRY), draft_text="42")


async def test_FinalizeRun__draft_that_no_transcript_has_is_refused_and_stands_in_nobodys_way(
    mesh: Mesh, transcript: Peer
) -> None:
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    offered = await draft(transcript, held, "43")
    for _ in range(2):
        with pytest.raises(MeshError) as caught:
            await offer(mesh, held, of_no_entry())
        assert (caught.value.reason, caught.value.facts["resource"]) == (Reason.NOT_FOUND, "entry")
    await send(mesh, session.session_id)
    assert (await offer(mesh, held, offered)).messages_pending.count == 1
    assert await labels_of(transcript, held, offered.draft_entry_id) == []


async def test_FinalizeRun__decision_for_an_absent_draft_is_withdrawn_by_the_next_claim(
    mesh: Mesh, transcript: Peer
) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    offered = await draft(transcript, held, "43")

    class Lost:
        """transcript, as a process hears it that dies before its answer."""

        async def append(self, *arguments: Any, releases_writer: bool) -> bool:
            raise Crash

    async with saga_with(mesh, nothing) as saga:
        dying: Any = replace(saga, transcripts=cast(Any, Lost()))
        with impersonate(mesh.tenant), pytest.raises(Crash):
            await dying.finalize(
                mesh.tenant, Draft(held.run.run_id, held.run.epoch, of_no_entry().draft_entry_id, "42", {})
            )
    with pytest.raises(MeshError) as caught:
        await offer(mesh, held, offered)
    assert caught.value.reason is Reason.RUN_STATE  # The decision was kept.
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    again = await mesh.claim(session.session_id)
    offered = await draft(transcript, again, "43")
    ended = await offer(mesh, again, offered)
    assert (ended.accepted.run.state, ended.accepted.run.result_text) == (
        session_pb2.RUN_STATE_SUCCEEDED,
        "43",
    )
    assert await labels_of(transcript, again, offered.draft_entry_id) == [LABEL_KIND_FINAL]
