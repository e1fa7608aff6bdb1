"""A replica that keeps its connections open and does not answer is left."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2_grpc as blob_grpc
from spawnmesh.hook.v1 import hook_handler_service_pb2 as pb
from spawnmesh.hook.v1.hook_handler_service_pb2_grpc import HookHandlerServiceStub
from spawnmesh.hook.v1.observed_pb2 import ObservedEvent, SessionEndEvent
from spawnmesh_calls.silence_probe import SilenceProbe
from spawnmesh_core.answer_times import AnswerTimes
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate, use_token
from spawnmesh_runtime.peers import Peer

from tests.support.captured_logs import captured_warnings
from tests.support.links import Link, open_link, to_address
from tests.support.runtime.plugin import Behavior, allow, spawn_request
from tests.support.waiting import eventually

# A call that nobody leaves ends after it, with another reason.
TIMEOUT_SECONDS = 100

EVENT = pb.HandleObservedEventRequest(
    event=ObservedEvent(event_key="e", session_id="ses_1", session_end=SessionEndEvent())
)
READ = blob_pb.ReadFileRequest(set_id="att_" + "0" * 26, name="a.txt")

Open = Callable[..., Awaitable[Any]]


async def behind_links(
    stack: AsyncExitStack, serve: Open, count: int, behavior: Behavior | None = None
) -> list[tuple[Any, Link]]:
    """Start replicas, each behind a link that can be held."""
    replicas = [await serve(behavior or answer) for _ in range(count)]
    return [
        (served, await stack.enter_async_context(open_link(to_address(served.target)))) for served in replicas
    ]


async def answer(request: Any, context: Any) -> Any:
    if isinstance(request, pb.HandleBeforeSpawnRequest):
        return await allow(request, context)
    return pb.HandleObservedEventResponse()


def at_both(replicas: list[tuple[Any, Link]]) -> str:
    return "ipv4:" + ",".join(link.target for _, link in replicas)


async def observe(peer: Peer) -> None:
    """Make a call that may be repeated."""
    with impersonate("acme"):
        await peer.unary(
            HookHandlerServiceStub(peer.channel).HandleObservedEvent,
            EVENT,
            timeout_seconds=TIMEOUT_SECONDS,
        )


async def judge(peer: Peer) -> None:
    """Make a call that may not be repeated."""
    with impersonate("acme"):
        await peer.unary(
            HookHandlerServiceStub(peer.channel).HandleBeforeSpawn,
            spawn_request(),
            timeout_seconds=TIMEOUT_SECONDS,
        )


async def read(peer: Peer) -> None:
    method = blob_grpc.AttachmentBlobServiceStub(peer.channel).ReadFile
    async for _ in peer.stream(method, READ, timeout_seconds=TIMEOUT_SECONDS):
        pass


async def upload(peer: Peer) -> None:
    method: Any = blob_grpc.AttachmentBlobServiceStub(peer.channel).UploadFile
    await peer.unary(method, no_messages(), timeout_seconds=TIMEOUT_SECONDS)


async def no_messages() -> AsyncIterator[blob_pb.UploadFileRequest]:
    for message in ():
        yield message


async def test_calls_leave_a_silent_replica_and_are_repeated_if_they_may_be(
    serve: Open, peer_of: Any
) -> None:
    async with AsyncExitStack() as stack:
        replicas = await behind_links(stack, serve, 2)
        peer = await stack.enter_async_context(peer_of(at_both(replicas)))

        async def both_were_asked() -> bool:
            await observe(peer)
            return all(served.plugin.observed for served, _ in replicas)

        await eventually(both_were_asked)
        (hung, held), (other, _) = replicas
        seen = hung.plugin.observed
        held.hold()
        logged = stack.enter_context(captured_warnings())
        judgements = [asyncio.create_task(judge(peer)) for _ in range(4)]
        await asyncio.gather(*(observe(peer) for _ in range(6)))
        assert hung.plugin.observed == seen
        assert other.plugin.observed >= 6
        results = await asyncio.gather(*judgements, return_exceptions=True)
        assert {getattr(result, "reason", None) for result in results} == {
            None,
            Reason.DEPENDENCY_UNAVAILABLE,
        }
        for _ in range(4):  # None of them meets the silent replica again.
            await observe(peer)
        # Once, and once more if the machine is slow to connect. Each call would meet it otherwise.
        assert 1 <= [line["event"] for line in logged].count("peer_silent") <= 2


async def test_calls_stay_with_a_replica_that_was_only_busy(serve: Open, peer_of: Any) -> None:
    """It answers the health checks late, and then the calls, which take longer than the
    timeout of a silent replica.
    """
    asked, is_time_up = list[Any](), asyncio.Event()

    async def think(request: Any, context: Any) -> Any:
        if isinstance(request, pb.HandleBeforeSpawnRequest):
            asked.append(request)
            await is_time_up.wait()
        return await answer(request, context)

    async with AsyncExitStack() as stack:
        replicas = await behind_links(stack, serve, 2, think)
        peer = await stack.enter_async_context(peer_of(at_both(replicas)))

        async def both_were_asked() -> bool:
            await observe(peer)
            return all(served.plugin.observed for served, _ in replicas)

        await eventually(both_were_asked)
        logged = stack.enter_context(captured_warnings())
        _, busy = replicas[0]
        judgements = [asyncio.create_task(judge(peer)) for _ in range(4)]
        await eventually(lambda: len(asked) == len(judgements))
        busy.hold()
        await eventually(lambda: "peer_silent" in [line["event"] for line in logged])
        busy.heal()
        await asyncio.sleep(SilenceProbe.call_timeout_seconds + 1)
        is_time_up.set()
        assert await asyncio.gather(*judgements, return_exceptions=True) == [None] * 4


async def test_every_call_is_refused_when_no_replica_answers(serve: Open, peer_of: Any, keys: Any) -> None:
    async with AsyncExitStack() as stack:
        [(served, link)] = await behind_links(stack, serve, 1)
        peer = await stack.enter_async_context(peer_of(link.target))
        stack.enter_context(use_token(keys.minter("client").client_token("acme", "ann", 60)))
        await observe(peer)
        link.hold()
        calls = (observe(peer), judge(peer), read(peer), upload(peer))
        for refusal in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(refusal, MeshError)
            assert refusal.reason is Reason.DEPENDENCY_UNAVAILABLE
            assert refusal.facts == {"dependency": "plugin"}
        link.heal()
        assert await eventually(lambda: answered(peer))
        assert served.plugin.observed >= 2


async def test_a_silence_is_no_slow_answer(
    serve: Open, peer_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would be found later. The replica answers what it was asked in the silence."""
    silence_seconds, recorded = 3.0, list[float]()
    monkeypatch.setattr(AnswerTimes, "record", lambda _times, seconds: recorded.append(seconds))
    async with AsyncExitStack() as stack:
        [(_, link)] = await behind_links(stack, serve, 1)
        peer = await stack.enter_async_context(peer_of(link.target))
        await observe(peer)
        link.hold()
        refused = await asyncio.gather(observe(peer), return_exceptions=True)
        assert isinstance(refused[0], MeshError)
        await asyncio.sleep(silence_seconds)
        link.heal()
        assert await eventually(lambda: answered(peer))
        assert [seconds for seconds in recorded if seconds > silence_seconds] == []


async def answered(peer: Peer) -> bool:
    try:
        await observe(peer)
    except MeshError:
        return False
    return True


async def test_a_call_that_takes_long_is_waited_for(serve: Open, peer_of: Any) -> None:
    """The service answers the probe's health checks, so nothing is repeated or refused."""
    asked: list[Any] = []

    async def think(request: Any, context: Any) -> pb.HandleObservedEventResponse:
        asked.append(request)
        await asyncio.sleep(5)
        return pb.HandleObservedEventResponse()

    served = await serve(think)
    async with peer_of(served.target) as peer:
        await observe(peer)
    assert len(asked) == 1


@pytest.mark.parametrize(("quiet_seconds", "is_asked"), [(0.2, True), (30.0, False)])
async def test_stream_is_looked_after_when_it_is_silent_for_longer_than_it_may_be(
    serve: Open, peer_of: Any, monkeypatch: pytest.MonkeyPatch, quiet_seconds: float, is_asked: bool
) -> None:
    looks: list[float] = []

    async def probe(self: SilenceProbe) -> None:
        looks.append(self.timeout_factor)

    monkeypatch.setattr(SilenceProbe, "_probe", probe)
    async with AsyncExitStack() as stack:
        [(_, link)] = await behind_links(stack, serve, 1)
        peer = await stack.enter_async_context(peer_of(link.target))
        stack.enter_context(use_token("none"))
        link.hold()
        method = blob_grpc.AttachmentBlobServiceStub(peer.channel).ReadFile
        with pytest.raises(MeshError):
            async for _ in peer.stream(method, READ, timeout_seconds=0.7, quiet_seconds=quiet_seconds):
                pass
    assert bool(looks) is is_asked
