"""Claims, leases and terminations: one holder at a time, one terminal state, one announcement."""

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.content.v1.message_pb2 import ROLE_ASSISTANT, ContentBlock, Message, Text, TokenUsage
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_FINAL, EntryBody
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_session.operations import run_claiming

from tests.support.serving import caller_at
from tests.support.session.calls import finalize
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.remains import Remains


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


async def draft(transcript: Peer, held: run_pb.ClaimedRun, text: str) -> run_pb.FinalizeRunRequest:
    """Append the text as the run's draft, and build the request that offers it."""
    stub: Any = TranscriptServiceStub(transcript.channel)
    claim = transcript_pb.WriterClaim(run_id=held.run.run_id, epoch=held.run.epoch)
    message = Message(role=ROLE_ASSISTANT, content=[ContentBlock(text=Text(text=text))])
    with use_token(held.run_token):
        acquire = transcript_pb.AcquireWriterRequest(session_id=held.session.session_id, claim=claim)
        await transcript.unary(stub.AcquireWriter, acquire, timeout_seconds=60)
        append = transcript_pb.AppendEntriesRequest(
            session_id=held.session.session_id,
            claim=claim,
            request_id=uuid4().hex,
            entries=[EntryBody(message=message)],
        )
        entry_id = (
            (await transcript.unary(stub.AppendEntries, append, timeout_seconds=60)).entries[0].entry_id
        )
    usage = TokenUsage(input_token_count=7, output_token_count=3)
    return run_pb.FinalizeRunRequest(
        epoch=held.run.epoch, draft_entry_id=entry_id, draft_text=text, usage=usage
    )


async def inbox(mesh: Mesh, held: run_pb.ClaimedRun) -> list[run_pb.InboxMessage]:
    return list((await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())).messages)


async def test_ClaimRuns__hands_out_a_run_with_a_lease_and_the_next_epoch(mesh: Mesh) -> None:
    session = await mesh.spawn(model="m/override")
    held = await mesh.claim(session.session_id)
    assert (held.run.state, held.run.epoch, held.run.attempt_count) == (session_pb2.RUN_STATE_RUNNING, 1, 1)
    assert list(held.models) == ["m/override"]
    assert held.agent.agent_id == "default"
    assert held.lease_ttl.seconds == 60


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__wakes_at_once_when_a_run_is_queued(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_claiming, "_POLL_SECONDS", 3600.0)
    waiting = asyncio.create_task(mesh.claim_any(wait_seconds=60.0))
    await asyncio.sleep(0.1)
    await mesh.spawn()
    assert await waiting, "it did not look again when the run was queued"


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__no_run_is_handed_out_twice(mesh: Mesh) -> None:
    spawned = {(await mesh.spawn()).session_id for _ in range(12)}
    rounds = await asyncio.gather(*(mesh.claim_any(wait_seconds=0.5, limit=3) for _ in range(8)))
    rounds += [await mesh.claim_any(wait_seconds=0.0, limit=64)]
    claimed = [
        held.session.session_id for one in rounds for held in one if held.session.session_id in spawned
    ]
    assert sorted(claimed) == sorted(spawned)


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__tenant_with_few_runs_is_served_before_one_with_many(mesh: Mesh) -> None:
    many, few = Mesh(mesh.peer, mesh.keys, mesh.settings), Mesh(mesh.peer, mesh.keys, mesh.settings)
    await many.create_tenant()
    await few.create_tenant()
    early = {(await many.spawn()).session_id for _ in range(10)}
    late = await few.spawn()
    claimed: list[str] = []
    while late.session_id not in claimed:
        claimed += [held.session.session_id for held in await mesh.claim_any(wait_seconds=0.0, limit=1)]
    assert len(early.intersection(claimed)) <= 1


async def test_ClaimRuns__tenant_gets_no_more_runs_at_once_than_its_limit(mesh: Mesh) -> None:
    own = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await own.create_tenant(settings=TenantSettings(max_running_run_count=2))
    spawned = {(await own.spawn()).session_id for _ in range(4)}
    claimed = [held for _ in range(6) for held in await mesh.claim_any(wait_seconds=0.0, limit=64)]
    assert len([held for held in claimed if held.session.session_id in spawned]) == 2


async def test_HeartbeatRun__lease_lost_after_a_takeover(mesh: Mesh, open_mesh: OpenMesh) -> None:
    async with open_mesh(lease_ttl_seconds=0.3) as short:
        await short.create_tenant()
        session = await short.spawn()
        old = await short.claim(session.session_id)
        new = await short.claim(session.session_id)
        assert new.run.epoch == old.run.epoch + 1
        assert new.run.run_id == old.run.run_id
        with pytest.raises(MeshError) as caught:
            await short.run(old, short.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=old.run.epoch))
        assert caught.value.reason is Reason.RUN_LEASE_LOST
        assert caught.value.facts["epoch"] == str(new.run.epoch)


async def test_HeartbeatRun__keeps_the_run(mesh: Mesh, remains: Remains) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as superuser:
        for _ in range(3):
            expire = "update session.run_queue set due_time = now() where run_id = %s"
            await superuser.execute(expire, (held.run.run_id,))
            await mesh.run(held, mesh.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=held.run.epoch))
            claimed = await mesh.claim_any(wait_seconds=0.1, limit=64)
            assert held.run.run_id not in {other.run.run_id for other in claimed}


async def test_HeartbeatRun__token_of_another_epoch_is_refused(mesh: Mesh) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    with pytest.raises(MeshError) as caught:
        await mesh.run(held, mesh.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=held.run.epoch + 1))
    assert caught.value.reason is Reason.CALLER_NOT_ALLOWED


async def test_ReleaseRun__uses_no_attempt(mesh: Mesh) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    for _ in range(2):
        back = await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
        assert back.run.state == session_pb2.RUN_STATE_QUEUED
    again = await mesh.claim(session.session_id)
    assert (again.run.epoch, again.run.attempt_count) == (held.run.epoch + 1, 1)


async def test_FinalizeRun__answer_reaches_waiter_and_session(mesh: Mesh, transcript: Peer) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    waiter = asyncio.create_task(
        mesh.client(mesh.sessions.WaitSession, pb.WaitSessionRequest(session_id=session.session_id))
    )
    answer = await finalize(mesh, transcript, held, "the answer")
    assert answer.accepted.run.state == session_pb2.RUN_STATE_SUCCEEDED
    waited = await waiter
    assert waited.done
    assert waited.session.state == session_pb2.SESSION_STATE_CLOSED
    assert waited.session.latest_run.result_text == "the answer"
    assert waited.session.latest_run.usage.input_token_count == 7


async def test_FinalizeRun__same_draft_again_answers_the_same(mesh: Mesh, transcript: Peer) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    request = await draft(transcript, held, "42")
    answers = await asyncio.gather(*(mesh.run(held, mesh.runs.FinalizeRun, request) for _ in range(5)))
    answers.append(await mesh.run(held, mesh.runs.FinalizeRun, request))
    assert {answer.accepted.run.end_time.ToNanoseconds() for answer in answers} == {
        answers[0].accepted.run.end_time.ToNanoseconds()
    }


async def test_FinalizeRun__marks_the_draft_final_in_the_transcript(mesh: Mesh, transcript: Peer) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    request = await draft(transcript, held, "42")
    await mesh.run(held, mesh.runs.FinalizeRun, request)
    stub: Any = TranscriptServiceStub(transcript.channel)
    with use_token(held.run_token):
        listed = await transcript.unary(
            stub.ListEntries,
            transcript_pb.ListEntriesRequest(session_id=held.session.session_id),
            timeout_seconds=60,
        )
    labels = [entry.body.label for entry in listed.entries if entry.body.HasField("label")]
    assert [(label.entry_id, label.kind) for label in labels] == [(request.draft_entry_id, LABEL_KIND_FINAL)]


async def test_FinalizeRun__parent_hears_once(mesh: Mesh, transcript: Peer) -> None:
    parent = await mesh.claim((await mesh.spawn()).session_id)
    child = await mesh.spawn_as(parent, label="sums")
    held = await mesh.claim(child.session_id)
    request = await draft(transcript, held, "sum is 42")
    for _ in range(3):
        await mesh.run(held, mesh.runs.FinalizeRun, request)
    messages = await inbox(mesh, parent)
    assert [(m.key, m.child_session_id, m.child_run_state) for m in messages] == [
        (
            f"announce:v1:{child.session_id}:{held.run.run_id}",
            child.session_id,
            session_pb2.RUN_STATE_SUCCEEDED,
        )
    ]
    assert "sum is 42" in messages[0].text
    acknowledge = run_pb.AcknowledgeInboxRequest(epoch=parent.run.epoch, keys=[messages[0].key])
    for _ in range(2):
        await mesh.run(parent, mesh.runs.AcknowledgeInbox, acknowledge)
    assert await inbox(mesh, parent) == []


async def test_FinalizeRun__messages_are_read_first(mesh: Mesh, transcript: Peer) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    await mesh.client(
        mesh.sessions.SendMessage,
        pb.SendMessageRequest(session_id=session.session_id, request_id="m1", text="wait"),
    )
    assert (await finalize(mesh, transcript, held)).messages_pending.count == 1
    [message] = await inbox(mesh, held)
    acknowledge = run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=[message.key])
    await mesh.run(held, mesh.runs.AcknowledgeInbox, acknowledge)
    assert (await finalize(mesh, transcript, held)).HasField("accepted")


async def test_FinalizeRun__old_holder_is_refused_and_nothing_changes(
    open_mesh: OpenMesh, transcript: Peer
) -> None:
    async with open_mesh(lease_ttl_seconds=0.3) as short:
        await short.create_tenant()
        session = await short.spawn()
        old = await short.claim(session.session_id)
        request = await draft(transcript, old, "stale")
        await short.claim(session.session_id)
        with pytest.raises(MeshError) as caught:
            await short.run(old, short.runs.FinalizeRun, request)
        assert caught.value.reason is Reason.RUN_LEASE_LOST
        assert (await short.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING


async def test_FailRun__old_holder_is_refused_and_nothing_changes(open_mesh: OpenMesh) -> None:
    async with open_mesh(lease_ttl_seconds=0.5) as short:
        await short.create_tenant()
        parent = await short.claim((await short.spawn()).session_id)
        child = await short.spawn_as(parent)
        old = await short.claim(child.session_id)
        await short.claim(child.session_id)
        request = run_pb.FailRunRequest(
            epoch=old.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR, message="no"
        )
        with pytest.raises(MeshError) as caught:
            await short.run(old, short.runs.FailRun, request)
        assert caught.value.reason is Reason.RUN_LEASE_LOST
        seen = await short.get(child.session_id)
        assert (seen.state, seen.latest_run.state) == (
            session_pb2.SESSION_STATE_ACTIVE,
            session_pb2.RUN_STATE_RUNNING,
        )
        assert await inbox(short, parent) == []


async def test_FailRun__run_that_was_released_is_left_to_the_next(mesh: Mesh) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    with pytest.raises(MeshError) as caught:
        await mesh.run(
            held,
            mesh.runs.FailRun,
            run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR),
        )
    assert (caught.value.reason, caught.value.facts["state"]) == (Reason.RUN_LEASE_LOST, "QUEUED")
    assert (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_QUEUED
    await mesh.claim(session.session_id)


@pytest.mark.parametrize("number", [0, 9999])
async def test_FailRun__a_reason_that_is_none_is_refused(mesh: Mesh, number: Any) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    request = run_pb.FailRunRequest(epoch=held.run.epoch, reason=number)
    with pytest.raises(MeshError) as caught:
        await mesh.run(held, mesh.runs.FailRun, request)
    assert [one.field for one in caught.value.violations] == ["reason"]
    assert (await mesh.get(held.session.session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING


async def test_FailRun__is_announced_to_the_parent_and_ends_the_session(mesh: Mesh) -> None:
    parent = await mesh.claim((await mesh.spawn()).session_id)
    child = await mesh.spawn_as(parent)
    held = await mesh.claim(child.session_id)
    request = run_pb.FailRunRequest(
        epoch=held.run.epoch, reason=reason_pb2.REASON_ALL_CANDIDATES_FAILED, message="no model answers"
    )
    for _ in range(2):
        failed = await mesh.run(held, mesh.runs.FailRun, request)
        assert failed.run.state == session_pb2.RUN_STATE_FAILED
        assert failed.run.error_reason == request.reason
    [message] = await inbox(mesh, parent)
    assert "ALL_CANDIDATES_FAILED" in message.text
    assert (await mesh.get(child.session_id)).state == session_pb2.SESSION_STATE_CLOSED


async def test_SendMessage__starts_a_new_run_where_none_is_live(mesh: Mesh, transcript: Peer) -> None:
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    assert (await finalize(mesh, transcript, held)).HasField("accepted")
    assert (await mesh.get(session.session_id)).state == session_pb2.SESSION_STATE_ACTIVE
    request = pb.SendMessageRequest(session_id=session.session_id, request_id="m1", text="and now?")
    first = (await mesh.client(mesh.sessions.SendMessage, request)).run
    assert (await mesh.client(mesh.sessions.SendMessage, request)).run.run_id == first.run_id
    again = await mesh.claim(session.session_id)
    assert again.run.run_id == first.run_id != held.run.run_id
    assert again.run.epoch > held.run.epoch
    assert [message.text for message in await inbox(mesh, again)] == ["and now?"]


async def test_SendMessage__session_closed(mesh: Mesh, transcript: Peer) -> None:
    session = await mesh.spawn()
    await finalize(mesh, transcript, await mesh.claim(session.session_id))
    request = pb.SendMessageRequest(session_id=session.session_id, request_id="m1", text="hello?")
    with pytest.raises(MeshError) as caught:
        await mesh.client(mesh.sessions.SendMessage, request)
    assert caught.value.reason is Reason.SESSION_CLOSED


async def test_SendMessage__request_id_reused(mesh: Mesh) -> None:
    session = await mesh.spawn()
    request = pb.SendMessageRequest(session_id=session.session_id, request_id="m1", text="one")
    await mesh.client(mesh.sessions.SendMessage, request)
    request.text = "two"
    with pytest.raises(MeshError) as caught:
        await mesh.client(mesh.sessions.SendMessage, request)
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_KillSession__ends_each_session_of_the_family_once(mesh: Mesh, transcript: Peer) -> None:
    root = await mesh.spawn()
    held = await mesh.claim(root.session_id)
    child = await mesh.spawn_as(held)
    child_held = await mesh.claim(child.session_id)
    grandchild = await mesh.spawn_as(child_held)
    request = pb.KillSessionRequest(session_id=root.session_id)
    assert (await mesh.client(mesh.sessions.KillSession, request)).killed_run_count == 3
    assert (await mesh.client(mesh.sessions.KillSession, request)).killed_run_count == 0
    for member in (root, child, grandchild):
        after = await mesh.get(member.session_id)
        assert after.state == session_pb2.SESSION_STATE_CLOSED
        assert after.latest_run.state == session_pb2.RUN_STATE_KILLED
    with pytest.raises(MeshError) as caught:
        await mesh.run(held, mesh.runs.HeartbeatRun, run_pb.HeartbeatRunRequest(epoch=held.run.epoch))
    assert caught.value.reason is Reason.RUN_LEASE_LOST
    offer = run_pb.FinalizeRunRequest(
        epoch=held.run.epoch, draft_entry_id="ent_01m7y2n4wsqhp7t4ptyq957v0b", draft_text="late"
    )
    with pytest.raises(MeshError) as caught:
        await mesh.run(held, mesh.runs.FinalizeRun, offer)
    assert caught.value.reason is Reason.RUN_LEASE_LOST


async def test_KillSession__run_that_has_ended_keeps_its_state(mesh: Mesh, transcript: Peer) -> None:
    session = await mesh.spawn()
    await finalize(mesh, transcript, await mesh.claim(session.session_id))
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id))
    assert (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_SUCCEEDED


async def test_WaitSession__says_when_the_time_was_over_first(mesh: Mesh) -> None:
    request = pb.WaitSessionRequest(session_id=(await mesh.spawn()).session_id)
    request.timeout.FromMilliseconds(50)
    answer = await mesh.client(mesh.sessions.WaitSession, request)
    assert not answer.done
    assert answer.session.latest_run.state == session_pb2.RUN_STATE_QUEUED
