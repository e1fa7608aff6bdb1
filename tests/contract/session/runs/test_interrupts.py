"""Interrupted runs: they end at a safe point or go on with an urgent message."""

import asyncio
from typing import Any

import pytest
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.hook.v1.decision_pb2 import FinalizeDecision, Revise
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.peers import Peer

from tests.support.serving import caller_at
from tests.support.session.calls import fail, finalize, kill, send, take_all
from tests.support.session.drafting import draft, entries_of
from tests.support.session.finalizing import finalize_beside, labels_of
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.interrupts import (
    INTERRUPTED,
    OPEN,
    RUNNING,
    SUCCEEDED,
    beat,
    end,
    held_run,
    interrupt,
    refusal_of,
    steer,
)
from tests.support.session.plugins import Plugin, plugged


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


async def test_InterruptRun__runner_ends_the_run_and_the_session_takes_the_next_message(
    mesh: Mesh, transcript: Peer
) -> None:
    held = await held_run(mesh)
    session_id = held.session.session_id
    assert await beat(mesh, held) == run_pb.INTERRUPT_UNSPECIFIED
    asked = await interrupt(mesh, session_id)
    assert (asked.run_id, asked.state) == (held.run.run_id, RUNNING)
    assert asked.HasField("interrupt_time")
    assert (await interrupt(mesh, session_id)).interrupt_time == asked.interrupt_time
    assert await beat(mesh, held) == run_pb.INTERRUPT_RUN
    answer = await finalize(mesh, transcript, held)
    assert answer.WhichOneof("outcome") == "interrupted"
    ended = await end(mesh, held)
    assert (ended.state, ended.error_reason) == (INTERRUPTED, reason_pb2.REASON_INTERRUPTED)
    assert (ended.usage.input_token_count, ended.result_text) == (5, "")
    assert await end(mesh, held) == ended, "a repeat finds the same end"
    session = await mesh.get(session_id)
    assert session.state == session_pb2.SESSION_STATE_ACTIVE
    assert session.latest_run == ended, "no run begins by itself"
    # The draft is what was said: nothing marks it as sent back or as the answer.
    said = [entry for entry in await entries_of(transcript, held) if entry.body.message.content]
    assert said[-1].body.message.content[0].text.text == "42"
    assert await labels_of(transcript, held, said[-1].entry_id) == []
    following = await send(mesh, session_id)
    assert following.run_id != ended.run_id
    second = await mesh.claim(session_id)
    await take_all(mesh, second)
    assert (await finalize(mesh, transcript, second, "43")).HasField("accepted")


async def test_InterruptRun__run_that_no_runner_holds_ends_at_once(mesh: Mesh) -> None:
    session = await mesh.spawn(mode=OPEN)
    ended = await interrupt(mesh, session.session_id)
    assert (ended.state, ended.error_message) == (INTERRUPTED, "the run was interrupted")
    assert await interrupt(mesh, session.session_id) == ended
    assert (await send(mesh, session.session_id)).run_id != ended.run_id


async def test_InterruptRun__session_of_one_run_closes_and_its_parent_hears_it_once(mesh: Mesh) -> None:
    parent = await held_run(mesh)
    child = await mesh.spawn_as(parent)
    held = await mesh.claim(child.session_id)
    request = pb.InterruptRunRequest(session_id=child.session_id)
    asked = (await mesh.run(parent, mesh.sessions.InterruptRun, request)).run
    assert asked.HasField("interrupt_time")
    await end(mesh, held)
    await end(mesh, held)
    assert (await mesh.get(child.session_id)).state == session_pb2.SESSION_STATE_CLOSED
    inbox = await mesh.run(parent, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    [announced] = inbox.messages
    assert announced.child_run_state == INTERRUPTED
    assert "INTERRUPTED" in announced.text
    assert await beat(mesh, parent) == run_pb.INTERRUPT_UNSPECIFIED, "the parent goes on"


async def test_InterruptRun__run_reaches_its_own_family_alone(mesh: Mesh) -> None:
    held, other = await held_run(mesh), await mesh.spawn()
    request = pb.InterruptRunRequest(session_id=other.session_id)
    assert await refusal_of(mesh.run(held, mesh.sessions.InterruptRun, request)) is Reason.NOT_FOUND
    assert not (await mesh.get(other.session_id)).latest_run.HasField("interrupt_time")


async def test_InterruptRun__text_stops_the_turn_until_the_run_has_read_it(
    mesh: Mesh, transcript: Peer
) -> None:
    held = await held_run(mesh, session_pb2.SESSION_MODE_RUN)
    session_id = held.session.session_id
    await send(mesh, session_id, "no hurry")
    assert await beat(mesh, held) == run_pb.INTERRUPT_UNSPECIFIED, "an ordinary message stops nothing"
    steered = await steer(mesh, session_id, request_id="once")
    assert (steered.run_id, steered.state) == (held.run.run_id, RUNNING)
    assert not steered.HasField("interrupt_time")
    assert await beat(mesh, held) == run_pb.INTERRUPT_TURN
    answer = await finalize(mesh, transcript, held)
    assert answer.messages_pending.count == 2
    await take_all(mesh, held)
    assert await beat(mesh, held) == run_pb.INTERRUPT_UNSPECIFIED
    assert (await steer(mesh, session_id, request_id="once")).run_id == held.run.run_id
    assert await beat(mesh, held) == run_pb.INTERRUPT_UNSPECIFIED, "a repeat stops nothing again"
    again = steer(mesh, session_id, "something else", request_id="once")
    assert await refusal_of(again) is Reason.REQUEST_ID_REUSED
    assert (await finalize(mesh, transcript, held, "43")).HasField("accepted")


async def test_InterruptRun__text_without_a_live_run_is_an_ordinary_message(mesh: Mesh) -> None:
    session = await mesh.spawn(mode=OPEN)
    await interrupt(mesh, session.session_id)
    queued = await steer(mesh, session.session_id)
    assert queued.state == session_pb2.RUN_STATE_QUEUED
    held = await mesh.claim(session.session_id)
    assert held.run.run_id == queued.run_id
    assert await beat(mesh, held) == run_pb.INTERRUPT_UNSPECIFIED
    await kill(mesh, session.session_id)
    assert await refusal_of(steer(mesh, session.session_id)) is Reason.SESSION_CLOSED


@pytest.mark.parametrize("fields", [{"text": "hurry"}, {"text": " \n", "request_id": "r"}])
async def test_InterruptRun__bad_texts_are_refused_and_change_nothing(
    mesh: Mesh, fields: dict[str, str]
) -> None:
    held = await held_run(mesh)
    call = interrupt(mesh, held.session.session_id, **fields)
    assert await refusal_of(call) is Reason.INVALID_REQUEST
    assert await beat(mesh, held) == run_pb.INTERRUPT_UNSPECIFIED


async def test_InterruptRun__named_run_that_has_ended_leaves_the_next_one_alone(
    mesh: Mesh, transcript: Peer
) -> None:
    first = await held_run(mesh)
    session_id, run_id = first.session.session_id, first.run.run_id
    assert (await finalize(mesh, transcript, first)).HasField("accepted")
    await send(mesh, session_id)
    second = await mesh.claim(session_id)
    late = await interrupt(mesh, session_id, run_id=run_id)
    assert (late.run_id, late.state, late.result_text) == (run_id, SUCCEEDED, "42")
    assert await refusal_of(steer(mesh, session_id, run_id=run_id)) is Reason.RUN_STATE
    assert await beat(mesh, second) == run_pb.INTERRUPT_UNSPECIFIED
    assert (await interrupt(mesh, session_id, run_id=second.run.run_id)).run_id == second.run.run_id
    assert await beat(mesh, second) == run_pb.INTERRUPT_RUN
    foreign = await mesh.spawn()
    for unknown in (foreign.latest_run.run_id, "run_" + "0" * 26):
        call = interrupt(mesh, session_id, run_id=unknown)
        assert await refusal_of(call) is Reason.NOT_FOUND


async def test_InterruptRun__before_the_decision_the_answer_of_the_gate_comes_too_late(
    mesh: Mesh, transcript: Peer, peers: dict[str, str]
) -> None:
    asked, judged = asyncio.Event(), asyncio.Event()

    async def meanwhile(_session_id: str) -> None:
        if not spawned.is_set():
            return
        asked.set()
        await judged.wait()

    spawned = asyncio.Event()
    async with plugged(mesh, peers, Plugin(meanwhile=meanwhile)):
        held = await held_run(mesh)
        spawned.set()
        offering = asyncio.create_task(finalize(mesh, transcript, held))
        await asked.wait()
        await interrupt(mesh, held.session.session_id)
        assert await beat(mesh, held) == run_pb.INTERRUPT_RUN
        judged.set()
        assert (await offering).WhichOneof("outcome") == "interrupted"
    assert (await end(mesh, held)).state == INTERRUPTED


async def test_InterruptRun__plugins_do_not_judge_a_draft_behind_it(
    mesh: Mesh, transcript: Peer, peers: dict[str, str]
) -> None:
    asked: list[str] = []

    async def meanwhile(session_id: str) -> None:
        asked.append(session_id)

    async with plugged(mesh, peers, Plugin(meanwhile=meanwhile)):
        held = await held_run(mesh)
        asked.clear()
        await interrupt(mesh, held.session.session_id)
        answer = await finalize(mesh, transcript, held)
    assert (answer.WhichOneof("outcome"), asked) == ("interrupted", [])


async def test_InterruptRun__after_the_decision_the_answer_wins(mesh: Mesh, transcript: Peer) -> None:
    held = await held_run(mesh)
    offered = await draft(transcript, held, "42")
    calls: list[asyncio.Task[session_pb2.Run]] = []

    async def meanwhile() -> None:
        calls.append(asyncio.create_task(interrupt(mesh, held.session.session_id)))
        await asyncio.wait(calls, timeout=0.3)
        assert not calls[0].done(), "it is not known yet that the answer wins"

    await finalize_beside(mesh, held, offered, meanwhile)
    run = await calls[0]
    assert (run.state, run.result_text) == (SUCCEEDED, "42")
    assert not run.HasField("interrupt_time")


async def test_InterruptRun__only_messages_behind_it_begin_a_run(mesh: Mesh) -> None:
    held = await held_run(mesh)
    session_id = held.session.session_id
    await send(mesh, session_id, "before")
    await interrupt(mesh, session_id)
    await end(mesh, held)
    assert (await mesh.get(session_id)).latest_run.run_id == held.run.run_id
    await send(mesh, session_id, "next")
    second = await mesh.claim(session_id)
    inbox = await mesh.run(second, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    assert [message.text for message in inbox.messages] == ["before", "next"], "nothing is lost"
    await interrupt(mesh, session_id)
    await send(mesh, session_id, "behind")
    await end(mesh, second)
    third = (await mesh.get(session_id)).latest_run
    assert (third.run_id != second.run.run_id, third.state) == (True, session_pb2.RUN_STATE_QUEUED)


async def test_InterruptRun__its_run_reads_no_message_any_more(mesh: Mesh) -> None:
    held = await held_run(mesh)
    session_id = held.session.session_id
    await send(mesh, session_id, "before")
    await interrupt(mesh, session_id)
    reading = await send(mesh, session_id, "behind")
    assert reading.run_id == held.run.run_id, "the run that is ending"
    inbox = await mesh.run(held, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    assert list(inbox.messages) == []
    assert await beat(mesh, held) == run_pb.INTERRUPT_RUN
    await end(mesh, held)
    second = await mesh.claim(session_id)
    inbox = await mesh.run(second, mesh.runs.ListInbox, run_pb.ListInboxRequest())
    assert [message.text for message in inbox.messages] == ["before", "behind"]


async def test_InterruptRun__text_that_its_run_cannot_read_is_refused(mesh: Mesh) -> None:
    for mode, reason in (
        (session_pb2.SESSION_MODE_RUN, Reason.SESSION_CLOSED),
        (OPEN, Reason.RUN_STATE),
    ):
        held = await held_run(mesh, mode)
        session_id, run_id = held.session.session_id, held.run.run_id
        await interrupt(mesh, session_id)
        assert await refusal_of(steer(mesh, session_id, run_id=run_id)) is reason
        if mode == session_pb2.SESSION_MODE_RUN:
            assert await refusal_of(send(mesh, session_id)) is reason
        await end(mesh, held)
        assert (await mesh.get(session_id)).latest_run.run_id == run_id


async def test_InterruptRun__run_that_fails_behind_it_begins_no_other(mesh: Mesh) -> None:
    held = await held_run(mesh)
    await send(mesh, held.session.session_id, "before")
    await interrupt(mesh, held.session.session_id)
    await fail(mesh, held)
    assert (await mesh.get(held.session.session_id)).latest_run.run_id == held.run.run_id


async def test_InterruptRun__run_whose_lease_has_expired_ends_at_once(
    mesh: Mesh, open_mesh: OpenMesh
) -> None:
    async with open_mesh(lease_ttl_seconds=0.3) as short:
        await short.create_tenant()
        held = await held_run(short)
        await asyncio.sleep(0.5)
        assert (await interrupt(short, held.session.session_id)).state == INTERRUPTED
        assert await refusal_of(beat(short, held)) is Reason.RUN_LEASE_LOST


async def test_InterruptRun__revision_that_is_requested_behind_it_is_not_written(
    mesh: Mesh, transcript: Peer, peers: dict[str, str]
) -> None:
    async def meanwhile(session_id: str) -> None:
        if spawned.is_set():
            await interrupt(mesh, session_id)

    spawned, revise = asyncio.Event(), FinalizeDecision(revise=Revise(reason="shorter, please"))
    async with plugged(mesh, peers, Plugin(on_finalize=revise, meanwhile=meanwhile)):
        held = await held_run(mesh)
        spawned.set()
        answer = await finalize(mesh, transcript, held)
    assert answer.WhichOneof("outcome") == "interrupted"
    bodies = [entry.body for entry in await entries_of(transcript, held)]
    assert not [body for body in bodies if body.HasField("label") or body.system_note.topic == "revision"]
    assert (await end(mesh, held)).state == INTERRUPTED


async def test_EndInterruptedRun__only_of_an_interrupted_run_by_its_holder(mesh: Mesh) -> None:
    held = await held_run(mesh)
    assert await refusal_of(end(mesh, held)) is Reason.RUN_STATE
    await interrupt(mesh, held.session.session_id)
    await fail(mesh, held)
    assert await refusal_of(end(mesh, held)) is Reason.RUN_STATE
    assert (await mesh.get(held.session.session_id)).latest_run.state == session_pb2.RUN_STATE_FAILED


async def test_EndInterruptedRun__run_of_a_lost_runner_is_ended_by_the_next(
    mesh: Mesh, open_mesh: OpenMesh
) -> None:
    async with open_mesh(lease_ttl_seconds=0.5) as short:
        await short.create_tenant()
        old = await held_run(short)
        await interrupt(short, old.session.session_id)
        held = await short.claim(old.session.session_id)
        assert held.run.epoch == old.run.epoch + 1
        assert held.run.HasField("interrupt_time")
        assert await refusal_of(end(short, old)) is Reason.RUN_LEASE_LOST
        assert (await end(short, held)).state == INTERRUPTED


async def test_ReleaseRun__interrupted_run_ends_instead_of_waiting(mesh: Mesh) -> None:
    held = await held_run(mesh)
    await interrupt(mesh, held.session.session_id)
    request = run_pb.ReleaseRunRequest(epoch=held.run.epoch)
    request.delay.reason = reason_pb2.REASON_DEPENDENCY_UNAVAILABLE
    request.delay.min_pause.FromSeconds(60)
    released = (await mesh.run(held, mesh.runs.ReleaseRun, request)).run
    assert released.state == INTERRUPTED
    assert (await mesh.run(held, mesh.runs.ReleaseRun, request)).run == released, "a repeat"
    assert (await mesh.get(held.session.session_id)).latest_run.state == INTERRUPTED
