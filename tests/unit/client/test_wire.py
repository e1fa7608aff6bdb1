"""The library, against services in this process."""

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest
from spawnmesh.attachment_blob.v1.attachment_pb2 import ENCODING_UNSPECIFIED
from spawnmesh.content.v1.message_pb2 import Message
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.session_service_pb2 import WatchSessionRequest
from spawnmesh.session.v1.tenant_pb2 import AgentProfile, Tenant
from spawnmesh.transcript.v1.entry_pb2 import Entry, EntryBody
from spawnmesh_client import Attachment, MeshError, Reason
from spawnmesh_client.wire import connect_wire
from spawnmesh_core.errors import unavailable
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.command.fake_mesh import (
    RUN_ID,
    SESSION_ID,
    FakeSessions,
    add_sessions,
    event,
    mesh,
    served,
    session_in,
    unset,
)
from tests.support.command.live import run_event, said
from tests.support.command.tenants import FakeTenants

__all__ = ["mesh", "unset"]

RUN = session_pb2.SESSION_EVENT_KIND_RUN
CLOSED = session_pb2.SESSION_EVENT_KIND_CLOSED
WATCH = WatchSessionRequest(session_id=SESSION_ID)


def draining():
    return MeshError(Reason.DRAINING, "stopping", retry_after_seconds=0.01)


@asynccontextmanager
async def connected(targets, keys, tenant="acme", **options):
    minter = TokenMinter("client", keys / "client.pem")
    by_name = {name.replace("-", "_"): target for name, target in targets.items()}
    async with connect_wire(
        **by_name, token=lambda: minter.client_token(tenant, "test", 60), **options
    ) as client:
        yield client


async def test_a_spawn_sends_the_bytes_of_files_under_their_names(mesh, keys, tmp_path):
    report = tmp_path / "folder" / "report.md"
    report.parent.mkdir()
    report.write_bytes(b"# caf\xc3\xa9\n")

    async with connected(mesh.targets, keys) as client:
        session = await client.spawn(
            "Read them.", attachments=[report, Attachment("raw.bin", b"\x00\xff", "x/y")]
        )

    assert session.session_id == SESSION_ID
    (request,) = mesh.sessions.requests
    sent = [(item.name, item.data, item.mime_type) for item in request.attachments]
    assert sent == [("report.md", report.read_bytes(), "text/markdown"), ("raw.bin", b"\x00\xff", "x/y")]
    assert {item.encoding for item in request.attachments} == {ENCODING_UNSPECIFIED}
    assert mesh.sessions.tenants == ["acme"]


async def test_a_spawn_draws_a_request_id_unless_it_is_given_one(mesh, keys):
    async with connected(mesh.targets, keys) as client:
        for request_id in (None, None, "mine"):
            await client.spawn("Work.", request_id=request_id)

    first, second, given = (request.request_id for request in mesh.sessions.requests)
    assert first != second
    assert given == "mine"


async def test_a_spawn_that_waits_gives_the_session_as_it_ended(mesh, keys):
    async with connected(mesh.targets, keys) as client:
        session = await client.spawn("Work.", run_timeout_seconds=90, mount_path="in", wait_seconds=5)

    assert session.latest_run.result_text == "done"
    spawn, wait = mesh.sessions.requests
    assert spawn.run_timeout.ToSeconds() == 90
    assert spawn.attach_as.mount_path == "in"
    assert wait.timeout.ToMilliseconds() in range(4000, 5001)


async def test_files_too_large_for_a_request_are_refused_before_they_are_sent(mesh, keys, tmp_path):
    big = tmp_path / "big"
    big.write_bytes(bytes(1000))

    async with connected(mesh.targets, keys, settings=ProcessSettings(max_message_bytes=1024)) as client:
        with pytest.raises(MeshError) as refused:
            await client.spawn("Work.", attachments=[big])

    assert refused.value.reason is Reason.MESSAGE_TOO_LARGE
    assert refused.value.facts == {"max_bytes": "921"}
    assert mesh.sessions.requests == []


async def test_a_refusal_comes_back_with_its_reason_and_facts(mesh, keys):
    mesh.sessions.refusal = MeshError(Reason.UNKNOWN_AGENT, "no such agent", facts={"agent_id": "x"})

    async with connected(mesh.targets, keys) as client:
        with pytest.raises(MeshError) as refused:
            await client.spawn("Work.", agent_id="x")

    assert (refused.value.reason, refused.value.facts) == (Reason.UNKNOWN_AGENT, {"agent_id": "x"})


async def test_a_watch_goes_on_behind_the_last_event_when_the_service_drains(mesh, keys):
    mesh.sessions.events = [event(1, RUN), event(2, RUN), event(3, CLOSED)]
    mesh.sessions.broken_after = {2: draining()}

    async with connected(mesh.targets, keys) as client:
        seen = [message async for message in client.watch(WATCH)]

    assert [message.session_event.number for message in seen] == [1, 2, 3]
    assert mesh.sessions.cursors == ["", seen[1].cursor]


async def test_a_watch_that_goes_on_asks_for_the_same_and_leaves_its_request_as_it_was(mesh, keys):
    mesh.sessions.events = [run_event(number, session_pb2.RUN_STATE_RUNNING) for number in (1, 2, 3)]
    for text in ("one", "two", "three"):
        mesh.live.append(said(text))
    mesh.sessions.broken_after, mesh.live.broken_after = {2: draining()}, {2: draining()}
    request = WatchSessionRequest(session_id=SESSION_ID, after_event=1, after_seq=1, with_transcript=True)
    asked = WatchSessionRequest.FromString(request.SerializeToString())

    async with connected(mesh.targets, keys) as client:
        seen = [message async for message in client.watch(request)]

    assert [message.session_event.number or message.entry_appended.entry.seq for message in seen] == [
        2, 3, 2, 3,
    ]  # fmt: skip
    again = [
        WatchSessionRequest(session_id=SESSION_ID, cursor=message.cursor, with_transcript=True)
        for message in (seen[0], seen[2])
    ]
    assert mesh.sessions.requests == [asked, *again], "a cursor stands for all that is behind it"
    assert request == asked


async def test_a_watch_that_broke_before_its_first_message_begins_again(mesh, keys):
    mesh.sessions.events = [event(1, RUN), event(2, CLOSED)]
    mesh.live.refusals = [draining()]
    request = WatchSessionRequest(session_id=SESSION_ID, after_event=1, with_transcript=True)

    async with connected(mesh.targets, keys) as client:
        seen = [message async for message in client.watch(request)]

    assert [message.session_event.number for message in seen] == [2]
    assert mesh.sessions.requests == [request, request]


async def test_a_watch_outlasts_the_service_itself(keys):
    """The connection breaks during the stream, the port is closed for a while, then another
    process listens.
    """
    before = FakeSessions(events=[event(1, RUN)], hold=asyncio.Event())
    after = FakeSessions(events=[event(1, RUN), event(2, CLOSED)])

    async with AsyncExitStack() as first:
        target = await first.enter_async_context(served("session", keys, add_sessions(before, FakeTenants())))
        async with (
            connected({"session": target}, keys) as client,
            aclosing(client.watch(WATCH)) as messages,
        ):
            first_seen = await anext(messages)
            assert first_seen.session_event.number == 1
            await first.aclose()
            port = int(target.rpartition(":")[2])
            async with served("session", keys, add_sessions(after, FakeTenants()), port=port):
                assert [seen.session_event.number async for seen in messages] == [2]
    assert after.cursors == [first_seen.cursor]


async def test_a_watch_ends_with_a_refusal_that_trying_again_does_not_help(mesh, keys):
    mesh.sessions.events = [event(1, RUN), event(2, RUN)]
    mesh.sessions.broken_after = {1: MeshError(Reason.TOKEN_EXPIRED, "over")}

    async with connected(mesh.targets, keys) as client:
        with pytest.raises(MeshError, match="TOKEN_EXPIRED"):
            [seen async for seen in client.watch(WATCH)]


async def test_a_watch_of_a_service_that_was_never_there_fails_at_once(keys, monkeypatch):
    monkeypatch.setattr("spawnmesh_client.wire._RETRY_SECONDS", 3600.0)
    async with served("session", keys, add_sessions(FakeSessions(), FakeTenants())) as target:
        pass
    async with connected({"session": target}, keys) as client:
        with pytest.raises(MeshError, match="DEPENDENCY_UNAVAILABLE"):
            async with asyncio.timeout(60):
                [seen async for seen in client.watch(WATCH)]


async def test_a_wait_that_runs_out_says_so(mesh, keys):
    mesh.sessions.outcome = session_in(session_pb2.RUN_STATE_RUNNING)

    async with connected(mesh.targets, keys) as client:
        answer = await client.wait(SESSION_ID, 0)

    assert not answer.done
    assert answer.session.latest_run.state == session_pb2.RUN_STATE_RUNNING


async def test_a_wait_outlasts_a_service_that_does_not_answer_for_a_while(mesh, keys):
    mesh.sessions.wait_refusals = [unavailable("postgres", retry_after_seconds=0.01) for _ in range(2)]

    async with connected(mesh.targets, keys) as client:
        answer = await client.wait(SESSION_ID, 30)

    assert answer.done
    assert len(mesh.sessions.requests) == 3


async def test_sessions_come_from_every_page(mesh, keys):
    mesh.sessions.known = [session_pb2.Session(session_id=f"ses_{number}") for number in range(5)]

    async with connected(mesh.targets, keys) as client:
        found = [session.session_id async for session in client.sessions(page_size=2)]

    assert found == [f"ses_{number}" for number in range(5)]


async def test_agents_and_tenants_come_from_every_page(mesh, keys):
    mesh.tenants.agents = [AgentProfile(agent_id=f"agent-{number}") for number in range(5)]
    mesh.tenants.created = [Tenant(tenant_id=f"tenant-{number}") for number in range(5)]

    async with connected(mesh.targets, keys) as client:
        agents = await client.agents()
    operators_token = TokenMinter("client", keys / "client.pem").admin_token("test", 60)
    async with connect_wire(session=mesh.targets["session"], token=operators_token) as operator:
        tenants = await operator.tenants()

    assert agents == mesh.tenants.agents
    assert tenants == mesh.tenants.created


async def test_a_transcript_comes_from_every_page_and_no_more(mesh, keys):
    mesh.transcript.entries = [Entry(seq=seq, body=EntryBody(message=Message())) for seq in range(1, 401)]

    async with connected(mesh.targets, keys) as client:
        found = [entry.seq async for entry in client.transcript(SESSION_ID, after_seq=10)]

    assert found == list(range(11, 401))
    assert mesh.transcript.pages == 2


async def test_messages_and_kills_answer_with_what_became_of_them(mesh, keys):
    async with connected(mesh.targets, keys) as client:
        run = await client.send(SESSION_ID, "More.", request_id="r")
        killed = await client.kill(SESSION_ID)

    assert (run.run_id, killed.killed_run_count) == (RUN_ID, 2)
    assert mesh.sessions.requests[0].request_id == "r"


async def test_an_interrupt_has_a_request_id_only_with_a_text(mesh, keys):
    mesh.sessions.interrupted = session_pb2.Run(run_id=RUN_ID)
    async with connected(mesh.targets, keys) as client:
        for text, request_id in (("", None), ("", "r"), ("More.", None), ("More.", None), ("More.", "r")):
            answer = await client.interrupt(SESSION_ID, text, run_id=RUN_ID, request_id=request_id)

    assert answer.run.run_id == RUN_ID
    assert {(one.session_id, one.run_id) for one in mesh.sessions.requests} == {(SESSION_ID, RUN_ID)}
    ended, same, first, second, given = (one.request_id for one in mesh.sessions.requests)
    assert (ended, same, given) == ("", "", "r")
    assert "" != first != second != ""


async def test_calls_have_the_token_in_tasks_older_than_the_connection(mesh, keys):
    ready: asyncio.Future = asyncio.get_running_loop().create_future()

    async def earlier():
        return await (await ready).kill(SESSION_ID)

    task = asyncio.create_task(earlier())
    async with connected(mesh.targets, keys) as client:
        ready.set_result(client)
        assert (await task).killed_run_count == 2


async def test_a_service_that_was_not_named_is_said_to_be(mesh, keys):
    async with connected({"session": mesh.targets["session"]}, keys) as client:
        with pytest.raises(ValueError, match="transcript"):
            [entry async for entry in client.transcript(SESSION_ID)]


async def test_a_token_is_in_no_representation_of_the_client(mesh):
    async with connect_wire(**mesh.targets, token="secret-token") as client:
        assert "secret-token" not in repr(client)
