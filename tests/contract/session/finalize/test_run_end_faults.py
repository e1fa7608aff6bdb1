"""Finalizing and killing while other things happen, and again."""

import asyncio
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1.decision_pb2 import FinalizeDecision, Revise
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh.transcript.v1.entry_pb2 import LABEL_KIND_FINAL
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.serving import caller_at, client_tokens
from tests.support.session.calls import fail, kill, send
from tests.support.session.drafting import draft, entries_of
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.plugins import Plugin, plugged
from tests.support.waiting import eventually

REVISE = FinalizeDecision(revise=Revise(reason="shorter, please"))


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


async def waiting(mesh: Mesh, held: run_pb.ClaimedRun) -> list[run_pb.InboxMessage]:
    return list((await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())).messages)


async def events(mesh: Mesh, session_id: str) -> list[session_pb2.SessionEvent]:
    """Of a session that has ended."""
    request = pb.WatchSessionRequest(session_id=session_id)
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
        stream = mesh.peer.stream(mesh.sessions.WatchSession, request, timeout_seconds=60)
        return [answer.session_event async for answer in stream]


async def test_FinalizeRun__message_that_came_while_the_hooks_were_asked_is_read_first(
    mesh: Mesh, transcript: Peer, peers: dict[str, str]
) -> None:
    """The sender got the answer that this run reads the message."""

    sent = False

    async def meanwhile(session_id: str) -> None:
        nonlocal sent
        if not sent:
            sent = True
            await send(mesh, session_id)

    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    async with plugged(mesh, peers, Plugin(meanwhile=meanwhile)):
        answer = await mesh.run(held, mesh.runs.FinalizeRun, await draft(transcript, held, "42"))
        assert answer.messages_pending.count == 1
        assert (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING
        keys = [message.key for message in await waiting(mesh, held)]
        taken = run_pb.AcknowledgeInboxRequest(epoch=held.run.epoch, keys=keys)
        await mesh.run(held, mesh.runs.AcknowledgeInbox, taken)
        answer = await mesh.run(held, mesh.runs.FinalizeRun, await draft(transcript, held, "43"))
        assert answer.HasField("accepted")
    labels = [
        entry.body.label.kind for entry in await entries_of(transcript, held) if entry.body.HasField("label")
    ]
    assert labels == [
        LABEL_KIND_FINAL
    ]  # The first draft was never about to be the answer: nothing of it is taken back.


async def test_FinalizeRun__failed_hook_leaves_the_run_running_and_the_draft_may_be_offered_again(
    mesh: Mesh, transcript: Peer, peers: dict[str, str]
) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    async with plugged(mesh, peers, Plugin()):
        pass  # Registered, and gone.
    request = await draft(transcript, held, "42")
    with pytest.raises(MeshError) as caught:
        await mesh.run(held, mesh.runs.FinalizeRun, request)
    assert caught.value.reason is Reason.PLUGIN_FAILED
    assert (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_RUNNING
    async with plugged(mesh, peers, Plugin()):
        assert (await mesh.run(held, mesh.runs.FinalizeRun, request)).HasField("accepted")


async def test_FinalizeRun__revised_draft_again_answers_the_same_and_appends_nothing(
    mesh: Mesh, transcript: Peer, peers: dict[str, str]
) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    async with plugged(mesh, peers, Plugin(on_finalize=REVISE)):
        request = await draft(transcript, held, "42")
        answers = await asyncio.gather(*(mesh.run(held, mesh.runs.FinalizeRun, request) for _ in range(6)))
        seq = (await entries_of(transcript, held))[-1].seq
        answers.append(await mesh.run(held, mesh.runs.FinalizeRun, request))
        assert (await entries_of(transcript, held))[-1].seq == seq
        second = await mesh.run(held, mesh.runs.FinalizeRun, await draft(transcript, held, "43"))
    assert {answer.revise.number for answer in answers} == {1}
    assert second.revise.number == 2
    after = (await mesh.get(session.session_id)).latest_run
    assert (after.revision_count, after.state) == (2, session_pb2.RUN_STATE_RUNNING)
    await kill(mesh, session.session_id)
    announced = [
        event
        for event in await events(mesh, session.session_id)
        if event.kind == session_pb2.SESSION_EVENT_KIND_REVISION
    ]
    assert len(announced) == 2


async def test_FinalizeRun__of_two_concurrent_drafts_the_answer_is_accepted_again(
    mesh: Mesh, transcript: Peer, peers: dict[str, str]
) -> None:
    held = await mesh.claim((await mesh.spawn()).session_id)
    first, second = await draft(transcript, held, "first"), await draft(transcript, held, "second")
    answers = await asyncio.gather(
        *(mesh.run(held, mesh.runs.FinalizeRun, request) for request in (first, second)),
        return_exceptions=True,
    )
    accepted = {
        answer.accepted.run.result_text for answer in answers if not isinstance(answer, BaseException)
    }
    [result] = accepted
    right, wrong = (first, second) if result == "first" else (second, first)
    assert (await mesh.run(held, mesh.runs.FinalizeRun, right)).accepted.run.result_text == result
    with pytest.raises(MeshError) as caught:
        await mesh.run(held, mesh.runs.FinalizeRun, wrong)
    assert caught.value.reason is Reason.RUN_LEASE_LOST


async def test_FinalizeRun__killed_while_the_hooks_were_asked(
    mesh: Mesh, transcript: Peer, peers: dict[str, str]
) -> None:
    async def meanwhile(session_id: str) -> None:
        assert await kill(mesh, session_id) == 1

    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    request = await draft(transcript, held, "42")
    async with plugged(mesh, peers, Plugin(meanwhile=meanwhile)):
        with pytest.raises(MeshError) as caught:
            await mesh.run(held, mesh.runs.FinalizeRun, request)
    assert caught.value.reason is Reason.RUN_LEASE_LOST
    labels = [entry.body.label.kind for entry in await entries_of(transcript, held)]
    assert LABEL_KIND_FINAL not in labels
    assert (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_KILLED


async def test_KillSession__runner_writes_nothing_after_the_answer(mesh: Mesh, transcript: Peer) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    await draft(transcript, held, "before")
    await kill(mesh, session.session_id)
    seq = (await entries_of(transcript, held))[-1].seq
    with pytest.raises(MeshError) as caught:
        await draft(transcript, held, "after")
    assert caught.value.reason is Reason.WRITER_CLAIM_LOST
    assert await kill(mesh, session.session_id) == 0
    assert (await entries_of(transcript, held))[-1].seq == seq


async def test_KillSession__transcript_down_is_said_and_the_repeat_does_what_is_left(
    mesh: Mesh, transcript: Peer, open_mesh: OpenMesh
) -> None:
    session = await mesh.spawn()
    held = await mesh.claim(session.session_id)
    async with open_mesh(elsewhere={"transcript": "127.0.0.1:1"}) as broken:
        broken.tenant = mesh.tenant
        with pytest.raises(MeshError) as caught:
            await kill(broken, session.session_id)
    assert caught.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert (await mesh.get(session.session_id)).latest_run.state == session_pb2.RUN_STATE_KILLED
    assert await kill(mesh, session.session_id) == 0
    with pytest.raises(MeshError) as caught:
        await draft(transcript, held, "after")
    assert caught.value.reason is Reason.WRITER_CLAIM_LOST


async def test_KillSession__open_session_with_messages_gets_no_new_run(mesh: Mesh) -> None:
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    await mesh.claim(session.session_id)
    await send(mesh, session.session_id)
    assert await kill(mesh, session.session_id) == 1
    after = await mesh.get(session.session_id)
    assert after.state == session_pb2.SESSION_STATE_CLOSED
    assert after.latest_run.state == session_pb2.RUN_STATE_KILLED
    assert (await events(mesh, session.session_id))[-1].kind == session_pb2.SESSION_EVENT_KIND_CLOSED


async def test_KillSession__child_that_came_while_it_waited_for_the_parent_is_killed(
    mesh: Mesh, postgres: Any
) -> None:
    root = await mesh.spawn()
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(
        dsn
    ) as link:  # As a spawn does: the parent locked, a child inserted.
        key = (mesh.tenant, root.session_id)
        await link.execute(
            "select from session.sessions where tenant_id = %s and session_id = %s for update", key
        )
        killing = asyncio.create_task(kill(mesh, root.session_id))

        async def waits() -> bool:
            async with await psycopg.AsyncConnection.connect(dsn) as other:
                query = "select count(*) from pg_locks where not granted and locktype in ('tuple', 'transactionid')"
                row = await (await other.execute(query)).fetchone()
                return row is not None and row[0] > 0

        await eventually(waits)
        child_id = f"ses_7{root.session_id[5:]}"
        await link.execute(
            """
            insert into session.sessions
            select (jsonb_populate_record(s, jsonb_build_object(
                'session_id', %s::text, 'request_id', %s::text, 'parent_session_id', s.session_id,
                'ancestor_ids', jsonb_build_array(s.session_id)))).*
            from session.sessions s where tenant_id = %s and session_id = %s""",
            (child_id, uuid4().hex, *key),
        )
        await link.commit()
    assert await killing == 1
    assert (await mesh.get(child_id)).state == session_pb2.SESSION_STATE_CLOSED


async def test_FailRun__message_that_the_failed_run_could_read_queues_no_other(
    mesh: Mesh, transcript: Peer
) -> None:
    """Otherwise a message that makes every run fail would queue runs for ever."""
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    await fail(mesh, await mesh.claim(session.session_id))
    second = await send(mesh, session.session_id)
    held = await mesh.claim(session.session_id)
    assert held.run.run_id == second.run_id
    await send(mesh, session.session_id, "and this")
    await fail(mesh, held)
    third = (await mesh.get(session.session_id)).latest_run
    assert third.run_id != second.run_id
    assert third.state == session_pb2.RUN_STATE_QUEUED
    await fail(mesh, await mesh.claim(session.session_id))
    after = (await mesh.get(session.session_id)).latest_run
    assert (after.run_id, after.state) == (third.run_id, session_pb2.RUN_STATE_FAILED)


async def test_FailRun__message_that_came_before_the_run_was_released_has_a_run(mesh: Mesh) -> None:
    session = await mesh.spawn(mode=session_pb2.SESSION_MODE_SESSION)
    held = await mesh.claim(session.session_id)
    await send(mesh, session.session_id, "hurry")
    await mesh.run(held, mesh.runs.ReleaseRun, run_pb.ReleaseRunRequest(epoch=held.run.epoch))
    held = await mesh.claim(session.session_id)
    await mesh.run(
        held,
        mesh.runs.FailRun,
        run_pb.FailRunRequest(epoch=held.run.epoch, reason=reason_pb2.REASON_RUNNER_ERROR, message="m"),
    )
    after = (await mesh.get(session.session_id)).latest_run
    assert (after.state, after.run_id == held.run.run_id) == (session_pb2.RUN_STATE_QUEUED, False)


async def test_SendMessage__repeats_need_one_connection_each(mesh: Mesh, open_mesh: OpenMesh) -> None:
    async with open_mesh(database_max_connections=2) as small:
        await small.create_tenant()
        session = await small.spawn(mode=session_pb2.SESSION_MODE_SESSION)
        request = pb.SendMessageRequest(session_id=session.session_id, request_id="m", text="hello")
        first = (await small.client(small.sessions.SendMessage, request)).run
        await kill(small, session.session_id)
        again = await asyncio.gather(*(small.client(small.sessions.SendMessage, request) for _ in range(8)))
        assert {answer.run.run_id for answer in again} == {first.run_id}
