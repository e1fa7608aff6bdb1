"""Messages, crashes and other drafts around the moment in which a draft is made the answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
from spawnmesh_runtime.acting import acting_for, acting_with_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.operations.finalize import Draft, FinalizeSaga

from tests.contract.serving import caller_at
from tests.contract.session.crashing import Crash
from tests.contract.session.drafting import draft, entries_of
from tests.contract.session.harness import Mesh, OpenMesh
from tests.contract.session.worker import parts_of

Between = Callable[[], Awaitable[None]]


class Labelling:
    """transcript, and what happens right after it has a label: the last step before the run is committed."""

    def __init__(self, transcripts: Any, after: Between) -> None:
        self.transcripts = transcripts
        self.after = after

    async def append(self, *arguments: Any) -> None:
        await self.transcripts.append(*arguments)
        await self.after()


@asynccontextmanager
async def saga_with(mesh: Mesh, after: Between) -> AsyncIterator[FinalizeSaga]:
    """Another process's saga, and what happens in it between label and commit."""
    async with parts_of(mesh.settings) as parts:
        transcripts: Any = Labelling(parts.transcripts, after)
        yield FinalizeSaga(parts.database, transcripts, parts.hooks, parts.endings, parts.run_metrics)


async def finalize_beside(
    mesh: Mesh, held: run_pb.ClaimedRun, offered: run_pb.FinalizeRunRequest, after: Between
) -> Any:
    """Offers the draft there, in the run's name."""
    async with saga_with(mesh, after) as saga:
        with acting_for(mesh.tenant):
            return await saga.run(
                mesh.tenant, Draft(held.run.run_id, held.run.epoch, offered.draft_entry_id, offered.draft_text, {})
            )


async def send(mesh: Mesh, session_id: str) -> session_pb2.Run:
    request = pb.SendMessageRequest(session_id=session_id, request_id=uuid4().hex, text="wait")
    run: session_pb2.Run = (await mesh.client(mesh.sessions.SendMessage, request)).run
    return run


async def labels_of(transcript: Peer, held: run_pb.ClaimedRun, entry_id: str) -> list[int]:
    bodies = [entry.body for entry in await entries_of(transcript, held) if entry.body.HasField("label")]
    return [body.label.kind for body in bodies if body.label.entry_id == entry_id]


async def finalize(
    mesh: Mesh, held: run_pb.ClaimedRun, offered: run_pb.FinalizeRunRequest
) -> run_pb.FinalizeRunResponse:
    offered.epoch = held.run.epoch
    answer: run_pb.FinalizeRunResponse = await mesh.run(held, mesh.runs.FinalizeRun, offered)
    return answer


async def die() -> None:
    raise Crash


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


@pytest.mark.parametrize("mode", [session_pb2.SESSION_MODE_RUN, session_pb2.SESSION_MODE_SESSION])
async def test_SendMessage__beside_a_draft_that_the_transcript_calls_final_is_told_of_its_end(
    mesh: Mesh, transcript: Peer, mode: Any
) -> None:
    session = await mesh.spawn(mode=mode)
    held = await mesh.claim(session.session_id)
    offered = await draft(transcript, held, "42")
    sent: list[asyncio.Task[session_pb2.Run]] = []

    async def meanwhile() -> None:
        sent.append(asyncio.create_task(send(mesh, session.session_id)))
        await asyncio.wait(sent, timeout=0.3)
        assert not sent[0].done(), "nobody can say yet which run reads it"

    ended = await finalize_beside(mesh, held, offered, meanwhile)
    assert (ended["state"], ended["result_text"]) == ("SUCCEEDED", "42")
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
    offered = await draft(transcript, held, "42")
    with pytest.raises(Crash):
        await finalize_beside(mesh, held, offered, die)
    other = await draft(transcript, held, "43")
    with pytest.raises(MeshError) as caught:
        await finalize(mesh, held, other)
    assert (caught.value.reason, caught.value.facts["draft_entry_id"]) == (Reason.RUN_STATE, offered.draft_entry_id)
    assert (await finalize(mesh, held, offered)).accepted.run.result_text == "42"
    assert (await finalize(mesh, held, offered)).accepted.run.result_text == "42"
    assert await labels_of(transcript, held, offered.draft_entry_id) == [LABEL_KIND_FINAL]
    assert await labels_of(transcript, held, other.draft_entry_id) == []


async def test_FinalizeRun__draft_whose_runner_was_lost_behind_the_label_is_the_answer_of_the_next(
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
        await draft(transcript, held, "taking the transcript over")
        assert (await finalize(patient, held, offered)).accepted.run.result_text == "42"
        assert await labels_of(transcript, held, offered.draft_entry_id) == [LABEL_KIND_FINAL]


async def test_FinalizeRun__message_after_such_a_takeover_is_read_first_and_nothing_else_is_called_final(
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
        assert (await finalize(patient, held, offered)).messages_pending.count == 1
        assert (await finalize(patient, held, offered)).messages_pending.count == 1
        assert await labels_of(transcript, held, offered.draft_entry_id) == [LABEL_KIND_FINAL, LABEL_KIND_SUPERSEDED]
        await take_all(patient, held)
        assert (await finalize(patient, held, better)).accepted.run.result_text == "43"
        assert await labels_of(transcript, held, better.draft_entry_id) == [LABEL_KIND_FINAL]


async def take_all(mesh: Mesh, held: run_pb.ClaimedRun) -> None:
    box = await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    keys = [message.key for message in box.messages]
    await mesh.run(held, mesh.runs.AcknowledgeInbox, run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=keys))


async def nothing() -> None:
    """Between label and commit."""


async def texts_read(transcript: Peer, held: run_pb.ClaimedRun) -> list[str]:
    """What a model would read."""
    stub: Any = TranscriptServiceStub(transcript.channel)
    request = transcript_pb.AssembleContextRequest(session_id=held.session.session_id, token_budget=100_000)
    with acting_with_token(held.run_token):
        read = await transcript.unary(stub.AssembleContext, request)
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
        assert (await finalize(mesh, held, offered)).messages_pending.count == 1
    else:
        with pytest.raises(Crash):
            await finalize_beside(mesh, held, offered, die)
    await take_all(mesh, held)
    for _ in range(2):
        with pytest.raises(MeshError) as caught:
            await finalize(mesh, held, offered)
        assert (caught.value.reason, caught.value.facts["draft_entry_id"]) == (Reason.RUN_STATE, offered.draft_entry_id)
        assert (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING
    anew = await draft(transcript, held, "42")
    assert (await finalize(mesh, held, anew)).accepted.run.result_text == "42"
    assert await labels_of(transcript, held, offered.draft_entry_id) == [LABEL_KIND_FINAL, LABEL_KIND_SUPERSEDED]
    assert await labels_of(transcript, held, anew.draft_entry_id) == [LABEL_KIND_FINAL]
    assert (await texts_read(transcript, held)).count("42") == 1


def of_no_entry() -> run_pb.FinalizeRunRequest:
    return run_pb.FinalizeRunRequest(draft_entry_id=new_id(IdKind.ENTRY), draft_text="42")


async def test_draft_that_no_transcript_has_is_refused_and_stands_in_nobodys_way(mesh: Mesh, transcript: Peer) -> None:
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    offered = await draft(transcript, held, "43")
    for _ in range(2):
        with pytest.raises(MeshError) as caught:
            await finalize(mesh, held, of_no_entry())
        assert (caught.value.reason, caught.value.facts["resource"]) == (Reason.NOT_FOUND, "entry")
    await send(mesh, session.session_id)
    assert (await finalize(mesh, held, offered)).messages_pending.count == 1
    assert await labels_of(transcript, held, offered.draft_entry_id) == []


async def test_decision_for_a_draft_that_no_transcript_has_is_withdrawn_by_whoever_claims_the_run_next(
    mesh: Mesh, transcript: Peer
) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    offered = await draft(transcript, held, "43")

    class Lost:
        """transcript, as a process hears it that dies before its answer."""

        async def append(self, *arguments: Any) -> None:
            raise Crash

    async with saga_with(mesh, nothing) as saga:
        dying: Any = FinalizeSaga(saga.database, cast(Any, Lost()), saga.hooks, saga.endings, saga.metrics)
        with acting_for(mesh.tenant), pytest.raises(Crash):
            await dying.run(mesh.tenant, Draft(held.run.run_id, held.run.epoch, of_no_entry().draft_entry_id, "42", {}))
    with pytest.raises(MeshError) as caught:
        await finalize(mesh, held, offered)
    assert caught.value.reason is Reason.RUN_STATE  # The decision was kept.
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    again = await mesh.claim(session.session_id)
    offered = await draft(transcript, again, "43")
    ended = await finalize(mesh, again, offered)
    assert (ended.accepted.run.state, ended.accepted.run.result_text) == (session_pb2.RUN_STATE_SUCCEEDED, "43")
    assert await labels_of(transcript, again, offered.draft_entry_id) == [LABEL_KIND_FINAL]
