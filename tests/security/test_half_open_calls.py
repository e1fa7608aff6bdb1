"""Calls that their callers leave open end with a reason, and other calls are served beside them.

The bounds are settings, which these tests make small.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime import request_memory
from spawnmesh_runtime.methods import policy_of

from tests.support.security import http2
from tests.support.security.attacked import Attacked, open_attacked
from tests.support.security.raw_calls import METHODS, allowed_token, bearer, path_of, refused
from tests.support.waiting import eventually

OPEN_METHODS = {
    method.full_name: method
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}
"""The RPCs that need no token."""

EVERY = {**METHODS, **OPEN_METHODS}
WATCHES = {
    name for name, method in METHODS.items() if policy_of(method).ends_with_token and method.server_streaming
}
OTHER = METHODS["spawnmesh.session.v1.SessionService.ListSessions"]
HEALTH_WATCH = OPEN_METHODS["grpc.health.v1.Health.Watch"]

TOO_LATE = (grpc.StatusCode.DEADLINE_EXCEEDED, Reason.DEADLINE_EXCEEDED)
YEAR = 365 * 86_400.0
SHORT = 3.0

Ended = tuple[grpc.StatusCode, Reason | None]


@asynccontextmanager
async def connected(attacked: Attacked) -> AsyncIterator[grpc.aio.Channel]:
    """Connect with a connection of its own."""
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(attacked.target, options=options) as channel:
        yield channel


def headers_for(keys: Path, method: MethodDescriptor) -> tuple[tuple[str, str], ...]:
    """Return the headers with a valid token, if the RPC needs one."""
    return () if method.full_name in OPEN_METHODS else (bearer(allowed_token(keys, method)),)


async def held(
    channel: grpc.aio.Channel, attacked: Attacked, method: MethodDescriptor, timeout: float | None = None
) -> Ended:
    """Call the RPC and send nothing; return how the call ends."""
    call: Any = channel.stream_stream(path_of(method))(
        metadata=headers_for(attacked.keys, method), timeout=timeout
    )
    return await ended(call)


async def ended(call: Any) -> Ended:
    try:
        while await call.read() is not grpc.aio.EOF:  # type: ignore[attr-defined]
            pass
        return await call.code(), None
    except grpc.aio.AioRpcError as error:
        sent = error_from("attacked", error)
        return error.code(), sent.reason if sent.domain else None


async def is_served(channel: grpc.aio.Channel, attacked: Attacked) -> bool:
    """Return whether a call is answered by its servicer."""
    got = await refused(channel, OTHER, b"", headers=headers_for(attacked.keys, OTHER))
    return got.reason is Reason.NOT_FOUND


async def test_call_without_a_message_ends_with_a_reason_at_every_rpc(keys: Path) -> None:
    async with (
        open_attacked(keys, message_timeout_seconds=SHORT) as attacked,
        connected(attacked) as attacker,
        connected(attacked) as channel,
    ):
        calls = {name: asyncio.create_task(held(attacker, attacked, one)) for name, one in EVERY.items()}
        assert await is_served(channel, attacked)
        got = dict(zip(calls, await asyncio.gather(*calls.values()), strict=True))
        assert {name: how for name, how in got.items() if how != TOO_LATE} == {}
        assert attacked.reached == [OTHER.full_name]
        await attacked.settled()
        paths = {path_of(method).removeprefix("/") for method in EVERY.values()}
        late = Counter(event["method"] for event in attacked.events if event["reason"] == "DEADLINE_EXCEEDED")
        assert late == dict.fromkeys(paths, 1)


async def test_call_whose_message_does_not_come_to_an_end_ends_at_every_rpc(keys: Path) -> None:
    """Each sender sends a byte whenever the last one has been sent, and never the last byte."""
    async with (
        open_attacked(keys, message_timeout_seconds=SHORT) as attacked,
        connected(attacked) as channel,
    ):
        host, _, port = attacked.target.rpartition(":")

        async def slow(method: MethodDescriptor) -> int | None:
            reader, writer = await asyncio.open_connection(host, int(port))
            received = b""
            try:
                writer.write(http2.PREFACE + http2.settings())
                more = headers_for(attacked.keys, method)
                writer.write(http2.headers(1, path_of(method), *more))
                writer.write(http2.data(1, http2.message_head(1024 * 1024)))
                while http2.status_of(received) is None:
                    writer.write(http2.data(1, b"x"))
                    try:
                        async with asyncio.timeout(0.05):
                            received += await reader.read(65536)
                    except TimeoutError:
                        continue
                return http2.status_of(received)
            finally:
                writer.close()

        calls = [asyncio.create_task(slow(method)) for method in EVERY.values()]
        assert await is_served(channel, attacked)
        assert set(await asyncio.gather(*calls)) == {grpc.StatusCode.DEADLINE_EXCEEDED.value[0]}
        assert attacked.reached == [OTHER.full_name]
        await attacked.settled()
        reasons = [event["reason"] for event in attacked.events if event["method"] != path_of(OTHER)[1:]]
        assert set(reasons) == {"DEADLINE_EXCEEDED"}


async def test_requests_that_arrive_slowly_are_few_and_others_are_served(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_memory, "_SLOW_SECONDS", 0.5)
    async with (
        open_attacked(keys) as attacked,
        connected(attacked) as attacker,
        connected(attacked) as channel,
    ):
        for _ in range(2):  # Calls that have ended make room.
            calls = [asyncio.create_task(held(attacker, attacked, OTHER)) for _ in range(12)]
            await eventually(lambda calls=calls: sum(call.done() for call in calls) == 4)
            refusals = {call.result() for call in calls if call.done()}
            assert refusals == {(grpc.StatusCode.RESOURCE_EXHAUSTED, Reason.POOL_EXHAUSTED)}
            assert await is_served(channel, attacked)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
            await attacked.settled()


class Held:
    """Admits no call until it is told to, and counts those that wait."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.waiting, self.most = 0, 0

    @asynccontextmanager
    async def admit(self, _tenant_id: str) -> AsyncIterator[None]:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self.go_on.wait()
        finally:
            self.waiting -= 1
        yield


@pytest.mark.parametrize("timeout", [None, YEAR], ids=["no deadline", "a deadline in a year"])
async def test_call_that_takes_too_long_ends_unless_it_is_a_stream_of_new_events(
    keys: Path, timeout: float | None
) -> None:
    admission = Held()
    # The connections are not cut within the test: the calls themselves end.
    limits = {"max_call_seconds": 1.0, "max_connection_age_seconds": 3600.0}
    async with (
        open_attacked(keys, admit=admission.admit, **limits) as attacked,
        connected(attacked) as attacker,
    ):
        calls = {
            name: asyncio.create_task(held(attacker, attacked, method, timeout))
            for name, method in METHODS.items()
        }
        await eventually(
            lambda: admission.waiting == len(METHODS) or any(map(asyncio.Task.done, calls.values()))
        )
        bounded = {name: call for name, call in calls.items() if name not in WATCHES}
        got = dict(zip(bounded, await asyncio.gather(*bounded.values()), strict=True))
        assert {name: how for name, how in got.items() if how != TOO_LATE} == {}
        assert len(WATCHES) == 7
        assert not any(calls[name].done() for name in WATCHES)
        assert admission.waiting == len(WATCHES)
        for name in WATCHES:
            calls[name].cancel()
        await asyncio.gather(*calls.values(), return_exceptions=True)


async def test_watch_of_the_health_ends_although_it_needs_no_token(keys: Path) -> None:
    limits = {"max_call_seconds": SHORT, "max_connection_age_seconds": 3600.0}
    async with open_attacked(keys, **limits) as attacked, connected(attacked) as channel:
        call = channel.unary_stream(path_of(HEALTH_WATCH))(b"")
        assert await ended(call) == TOO_LATE


async def test_stream_of_new_events_ends_with_its_connection(keys: Path) -> None:
    admission = Held()
    limits = {"max_call_seconds": SHORT, "max_connection_age_seconds": SHORT}
    async with (
        open_attacked(keys, admit=admission.admit, **limits) as attacked,
        connected(attacked) as attacker,
    ):
        calls = [held(attacker, attacked, METHODS[name]) for name in WATCHES]
        assert {code for code, _ in await asyncio.gather(*calls)} == {grpc.StatusCode.UNAVAILABLE}
        await eventually(lambda: admission.waiting == 0)
        await attacked.settled()


async def test_connection_holds_a_limited_number_of_calls_and_others_are_served(keys: Path) -> None:
    admission = Held()
    async with (
        open_attacked(keys, admit=admission.admit, max_connection_streams=4) as attacked,
        connected(attacked) as attacker,
        connected(attacked) as channel,
    ):
        method = METHODS["spawnmesh.session.v1.SessionService.GetSession"]
        calls = [asyncio.create_task(held(attacker, attacked, method)) for _ in range(20)]
        await eventually(lambda: admission.waiting == 4)
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"", timeout=60)
        assert admission.most == 4
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        admission.go_on.set()
        assert await is_served(channel, attacked)
