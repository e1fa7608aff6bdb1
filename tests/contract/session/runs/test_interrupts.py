"""Interrupted runs: they end at a safe point or go on with an urgent message, and there is one
winner of a race with their answer.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.process import start_process
from spawnmesh_session.app import open_service

from tests.support.serving import caller_at, client_tokens, runner_tokens
from tests.support.session.calls import fail, finalize, kill, offer, send, take_all
from tests.support.session.drafting import draft, entries_of
from tests.support.session.finalizing import finalize_beside, labels_of
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.plugins import Plugin, plugged

OPEN = session_pb2.SESSION_MODE_SESSION
RUNNING, INTERRUPTED, SUCCEEDED = (
    session_pb2.RUN_STATE_RUNNING,
    session_pb2.RUN_STATE_INTERRUPTED,
    session_pb2.RUN_STATE_SUCCEEDED,
)


@pytest.fixture
async def transcript(peers: dict[str, str]) -> Any:
    async with caller_at(peers["transcript"], "transcript") as peer:
        yield peer


async def interrupt(mesh: Mesh, session_id: str, **fields: Any) -> session_pb2.Run:
    request = pb.InterruptRunRequest(session_id=session_id, **fields)
    run: session_pb2.Run = (await mesh.client(mesh.sessions.InterruptRun, request)).run
    return run


async def steer(mesh: Mesh, session_id: str, text: str = "hurry", **fields: Any) -> session_pb2.Run:
    return await interrupt(mesh, session_id, **{"text": text, "request_id": uuid4().hex, **fields})


async def beat(mesh: Mesh, held: run_pb.ClaimedRun) -> "run_pb.Interrupt.ValueType":
    request = run_pb.HeartbeatRunRequest(epoch=held.run.epoch)
    answer: run_pb.HeartbeatRunResponse = await mesh.run(held, mesh.runs.HeartbeatRun, request)
    return answer.interrupt


async def end(mesh: Mesh, held: run_pb.ClaimedRun) -> session_pb2.Run:
    usage = TokenUsage(input_token_count=5)
    request = run_pb.EndInterruptedRunRequest(epoch=held.run.epoch, usage=usage)
    run: session_pb2.Run = (await mesh.run(held, mesh.runs.EndInterruptedRun, request)).run
    return run


async def refusal_of(call: Any) -> Reason:
    with pytest.raises(MeshError) as caught:
        await call
    return caught.value.reason


async def held_run(mesh: Mesh, mode: Any = OPEN) -> run_pb.ClaimedRun:
    return await mesh.claim((await mesh.spawn(mode=mode)).session_id)


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
    assert (await mesh.get(held.session.session_id)).latest_run.state == INTERRUPTED


@asynccontextmanager
async def changes(mesh: Mesh, token: str) -> AsyncIterator[Any]:
    """Open the stream of the runner `test`; the first response has come."""
    request = run_pb.WatchRunChangesRequest(runner_id="test")
    with use_token(token):
        stream = mesh.peer.stream(mesh.runs.WatchRunChanges, request, timeout_seconds=60)
        await anext(stream)
        yield stream
        await stream.aclose()


async def test_WatchRunChanges__tells_of_interrupts_and_kills_and_of_no_other_tenant(mesh: Mesh) -> None:
    other = Mesh(mesh.peer, mesh.keys, mesh.settings)
    await other.create_tenant()
    runner = client_tokens(mesh.keys).runner_token
    async with (
        changes(mesh, runner_tokens(mesh.keys).runner_token()) as of_all,
        changes(mesh, runner("harness", 600, tenants=[mesh.tenant])) as ours,
        changes(mesh, runner("harness", 600, tenants=[other.tenant])) as theirs,
    ):
        foreign = asyncio.create_task(anext(theirs))
        for stop in (interrupt, steer, kill):
            heard = [asyncio.create_task(anext(stream)) for stream in (of_all, ours)]
            held = await held_run(mesh)
            await stop(mesh, held.session.session_id)
            async with asyncio.timeout(60):
                await asyncio.gather(*heard)
        assert not foreign.done()
        foreign.cancel()
        await asyncio.gather(foreign, return_exceptions=True)


async def test_WatchRunChanges__many_interrupts_are_told_together(mesh: Mesh) -> None:
    """Each hint brings a heartbeat of every run of the runner, also of other tenants."""
    held, heard = await held_run(mesh), 0

    async def listen(stream: Any) -> None:
        nonlocal heard
        async for _ in stream:
            heard += 1

    async with changes(mesh, runner_tokens(mesh.keys).runner_token()) as stream:
        listening, began = asyncio.create_task(listen(stream)), time.monotonic()
        for _ in range(60):
            await interrupt(mesh, held.session.session_id)
        await asyncio.sleep(0.5)
        most = (time.monotonic() - began) / 0.2 + 2
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    assert 1 <= heard <= most


async def test_WatchRunChanges__ends_when_its_replica_drains(mesh: Mesh) -> None:
    async with (
        start_process("session", mesh.settings) as process,
        open_service(process, mesh.settings) as server,
    ):
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with caller_at(f"127.0.0.1:{port}", "session") as peer:
            there = Mesh(peer, mesh.keys, mesh.settings, mesh.tenant)
            async with changes(there, runner_tokens(mesh.keys).runner_token()) as stream:
                draining = asyncio.create_task(server.drain_and_stop(3600))
                assert [response async for response in stream] == []
            async with asyncio.timeout(60):
                await draining


async def test_WatchRunChanges__is_for_runners_alone(mesh: Mesh) -> None:
    request = run_pb.WatchRunChangesRequest(runner_id="test")
    with use_token(client_tokens(mesh.keys).client_token(mesh.tenant, "test", 60)):
        stream = mesh.peer.stream(mesh.runs.WatchRunChanges, request, timeout_seconds=60)
        assert await refusal_of(anext(stream)) is Reason.CALLER_NOT_ALLOWED


@pytest.mark.parametrize("seed", range(4))
async def test_InterruptRun__race_with_the_answer_and_a_kill_has_one_winner(
    mesh: Mesh, transcript: Peer, seed: int
) -> None:
    """Every caller hears of the same end, whatever the order in which the calls arrive."""
    dice = random.Random(seed)
    seen = Counter[int]()
    for _ in range(12):
        held = await held_run(mesh)
        session_id, offered = held.session.session_id, await draft(transcript, held, "42")

        async def after(pause: float, call: Any) -> Any:
            await asyncio.sleep(pause)
            return await call

        async def stopping(session_id: str = session_id, held: run_pb.ClaimedRun = held) -> Any:
            asked = await interrupt(mesh, session_id)
            return await end(mesh, held) if asked.state == RUNNING or asked.interrupt_time.seconds else asked

        calls = [offer(mesh, held, offered), stopping()]
        if dice.random() < 0.3:
            calls.append(kill(mesh, session_id))
        pauses = [dice.random() * 0.03 for _ in calls]
        outcomes = await asyncio.gather(*map(after, pauses, calls), return_exceptions=True)
        final = (await mesh.get(session_id)).latest_run
        seen[final.state] += 1
        answered, stopped = outcomes[:2]
        if final.state == SUCCEEDED:
            assert answered.accepted.run == final
            assert stopped == final
            assert not final.HasField("interrupt_time")
        elif final.state == INTERRUPTED:
            assert stopped == final
            assert isinstance(answered, MeshError) or answered.HasField("interrupted")
        else:
            assert final.state == session_pb2.RUN_STATE_KILLED
            assert isinstance(stopped, MeshError) or stopped == final
            assert isinstance(answered, MeshError) or answered.HasField("interrupted")
    print(f"seed {seed}: {dict(seen)}")
