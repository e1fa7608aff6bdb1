"""Watchers get the exact text of answers, over cuts of their connections and crashes of processes."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import islice
from random import Random

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import Unavailable
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.stack import Stack

from tests.support.links import listening, to_address
from tests.support.mesh.live_text import (
    CuttingLink,
    Speech,
    Watcher,
    answers_of,
    pieces,
    watching,
)
from tests.support.mesh.new_tenant import new_tenant
from tests.support.model_router.provider import LoopbackProvider
from tests.support.waiting import eventually

MODEL = "loopback/thinker"
MODEL_FAILED = session_pb2.SESSION_EVENT_KIND_MODEL_FAILED
CUTS_WITHIN_DRAFTS = 20
PIECES_OF_ANSWER = 150


@pytest.fixture
async def tenant(stack: Stack) -> str:
    return await new_tenant(stack)


def connected(stack: Stack, tenant: str, session: str) -> AbstractAsyncContextManager[WireMesh]:
    """Connect as a client of the tenant, with session at this target."""
    token = stack.client_token(tenant)
    return connect_wire(session=session, transcript=stack.targets["transcript"], token=token)


@pytest.fixture
async def mesh(stack: Stack, tenant: str) -> AsyncIterator[WireMesh]:
    async with connected(stack, tenant, stack.targets["session"]) as client:
        yield client


async def entries_after_success(mesh: WireMesh, session_id: str) -> list[Entry]:
    """Return the transcript once the run has succeeded."""

    async def answered() -> session_pb2.Run | None:
        """Return nothing while the channel waits to connect again after a restart."""
        try:
            waited = await mesh.wait(session_id, 60)
        except Unavailable:
            return None
        return waited.session.latest_run if waited.done else None

    async def listed() -> list[Entry]:
        """Return nothing for the same reason."""
        try:
            return [entry async for entry in mesh.transcript(session_id)]
        except Unavailable:
            return []

    run: session_pb2.Run = await eventually(answered)
    assert run.state == session_pb2.RUN_STATE_SUCCEEDED, run
    found: list[Entry] = await eventually(listed)
    return found


def has_all(watcher: Watcher, entries: list[Entry]) -> bool:
    return len(watcher.entries) >= len(entries)


def has_said(watcher: Watcher, text: str) -> bool:
    return watcher.drafts.open_text == text


async def speak(speech: Speech, seed: object, *watchers: Watcher) -> None:
    """Say some pieces, and return when the watchers have them."""
    speech.say(*islice(pieces(seed), 20))
    for watcher in watchers:
        await eventually(partial(has_said, watcher, speech.text))


@pytest.mark.parametrize("seed", [1, 2])
async def test_watcher_whose_connection_is_cut_again_and_again_gets_each_byte_once(
    stack: Stack, mesh: WireMesh, tenant: str, provider: LoopbackProvider, seed: int
) -> None:
    """Cut each connection 200 to 3,000 bytes behind its first event. Sometimes the watcher stays
    away until there are some events more, so that the next cut is in the middle of these.
    """
    random = Random(seed)
    speeches = [Speech("list_files"), Speech("list_files"), Speech()]
    provider.on("thinker", *speeches)
    session = await mesh.spawn("Say much.", model=MODEL)
    whole, lag = Watcher(mesh, session.session_id), 0

    def cut_soon() -> None:
        nonlocal lag
        link.cut_after(int(10 ** random.uniform(2.3, 3.5)))
        lag = random.choice([0, 2, 4, 8])

    def may_resume() -> bool:
        return speech.is_over or len(whole.events) >= len(watcher.events) + lag

    def follows(speech: Speech, ahead: int) -> bool:
        given = len(speech.thinking) + len(speech.text) + len(speech.arguments)
        return whole.drafts.open_size + ahead >= given

    def have_completed(count: int) -> bool:
        return all(len(one.drafts.completed) == count for one in (whole, watcher))

    async with (
        listening(CuttingLink(to_address(stack.targets["session"]))) as link,
        connected(stack, tenant, session=link.target) as cut_mesh,
    ):
        watcher = Watcher(cut_mesh, session.session_id, cut_soon, may_resume)
        async with watching(whole, watcher):
            for number, speech in enumerate(speeches, 1):
                texts, count = pieces(f"{seed} {number}"), 0
                for _ in range(5):
                    speech.think(*islice(texts, random.randint(1, 30)))
                    await eventually(partial(follows, speech, random.randint(0, 300)))
                while (
                    count < PIECES_OF_ANSWER
                    or watcher.cuts_within_drafts * len(speeches) < CUTS_WITHIN_DRAFTS * number
                ):
                    some = random.randint(1, 30)
                    speech.say(*islice(texts, some))
                    count += some
                    await eventually(partial(follows, speech, random.randint(0, 300)))
                if number < len(speeches):
                    arguments = json.dumps({"path": "".join(islice(texts, 60))}, ensure_ascii=False)
                    for begin in range(0, len(arguments), 20):
                        speech.call(arguments[begin : begin + 20])
                        await eventually(partial(follows, speech, random.randint(0, 60)))
                speech.end()
                await eventually(partial(have_completed, number))
            entries = await entries_after_success(mesh, session.session_id)
            for one in (whole, watcher):
                await eventually(partial(has_all, one, entries))
    print(f"{watcher.cut_count} cuts, {watcher.cuts_within_drafts} of them within drafts")
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    for one in (whole, watcher):
        assert one.entries == entries
        assert one.drafts.completed == answers_of(entries) == [speech.text for speech in speeches]
        assert (one.drafts.retracted, one.drafts.open) == ([], None)
        deltas = [one.draft_delta.WhichOneof("delta") for one in one.events if one.HasField("draft_delta")]
        assert min(deltas.count(kind) for kind in ("text", "thinking", "tool_call")) > 3
    assert watcher.cuts_within_drafts >= CUTS_WITHIN_DRAFTS


@pytest.mark.parametrize("killed", ["transcript", "session"])
async def test_killed_service_takes_no_text_from_its_watchers(
    stack: Stack, mesh: WireMesh, provider: LoopbackProvider, killed: str
) -> None:
    speech = Speech()
    provider.on("thinker", speech)
    session = await mesh.spawn("Say much.", model=MODEL)
    watchers = [Watcher(mesh, session.session_id) for _ in range(3)]
    async with watching(*watchers):
        await speak(speech, 1, *watchers)
        await stack.processes[killed].kill()
        await speak(speech, 2)
        await stack.restart(killed)
        await speak(speech, 3, *watchers)
        await stack.processes[killed].kill()
        await speak(speech, 4)
        await stack.restart(killed)
        # A busy machine may start the service too slowly for a run that has its answer already.
        speech.end()
        entries = await entries_after_success(mesh, session.session_id)
        for watcher in watchers:
            await eventually(partial(has_all, watcher, entries))
    for watcher in watchers:
        assert watcher.entries == entries
        assert watcher.drafts.completed == answers_of(entries) == [speech.text]
        assert watcher.drafts.retracted == []
        assert watcher.cuts_within_drafts == 2


async def test_answer_of_a_killed_runner_is_retracted_before_the_next_attempt_speaks(
    stack: Stack, mesh: WireMesh, provider: LoopbackProvider
) -> None:
    lost, speech = Speech(), Speech()
    provider.on("thinker", lost, speech)
    session = await mesh.spawn("Say much.", model=MODEL)
    watcher = Watcher(mesh, session.session_id)
    async with watching(watcher):
        await speak(lost, "lost", watcher)
        await stack.processes["runner"].kill()
        await stack.restart("runner")
        await eventually(lambda: watcher.drafts.retracted)
        await speak(speech, "kept", watcher)
        speech.end()
        entries = await entries_after_success(mesh, session.session_id)
        await eventually(partial(has_all, watcher, entries))
    assert watcher.entries == entries
    assert watcher.drafts.retracted == [lost.text]
    assert watcher.drafts.completed == answers_of(entries) == [speech.text]


@pytest.mark.parametrize("how", ["the connection closes", "the provider reports an error"])
async def test_answer_that_breaks_is_retracted_before_its_model_begins_again(
    mesh: WireMesh, provider: LoopbackProvider, how: str
) -> None:
    broken, speech = Speech(), Speech()
    provider.on("thinker", broken, speech)
    # Without the agent, the scripted model would be next.
    await mesh.put_agent(AgentProfile(agent_id="talker", models=[MODEL]))
    session = await mesh.spawn("Say much.", agent_id="talker")
    watcher = Watcher(mesh, session.session_id)
    async with watching(watcher):
        await speak(broken, "broken", watcher)
        if how == "the connection closes":
            broken.break_off()
        else:
            broken.fail()
        await speak(speech, "kept", watcher)
        speech.end()
        entries = await entries_after_success(mesh, session.session_id)
        await eventually(partial(has_all, watcher, entries))
    assert watcher.entries == entries
    assert watcher.drafts.retracted == [broken.text]
    assert watcher.drafts.completed == answers_of(entries) == [speech.text]


async def test_answer_of_the_next_model_follows_the_retracted_one_of_the_first(
    mesh: WireMesh, provider: LoopbackProvider
) -> None:
    broken = Speech()
    provider.on("thinker", broken)
    await mesh.put_agent(AgentProfile(agent_id="talker", models=[MODEL, SCRIPTED_AGENT]))
    session = await mesh.spawn("Say much.", agent_id="talker")
    watcher = Watcher(mesh, session.session_id)
    async with watching(watcher):
        await speak(broken, "broken", watcher)
        broken.break_off()
        entries = await entries_after_success(mesh, session.session_id)
        await eventually(partial(has_all, watcher, entries))
    assert watcher.entries == entries
    assert watcher.drafts.retracted == [broken.text]
    assert (watcher.drafts.completed or answers_of(entries)) == answers_of(entries)
    failed = [one.session_event.detail for one in watcher.events if one.session_event.kind == MODEL_FAILED]
    assert [detail.partition(":")[0] for detail in failed] == [MODEL], failed
    assert (len(answers_of(entries)), watcher.drafts.open_text) == (1, "")
