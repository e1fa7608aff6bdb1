"""Bytes that are no message are refused with a reason, logged and counted, and never reach a servicer."""

import asyncio
import random
from collections import Counter

import grpc.aio
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from spawnmesh_core.reasons import Reason

from tests.support.security.attacked import Attacked
from tests.support.security.raw_calls import METHODS, Refused, allowed_token, bearer, path_of, refused
from tests.support.waiting import eventually

GARBAGE = {
    "no tag": b"\xff" * 16,
    "a wire type that does not exist": b"\x0f\x01",
    "a length beyond the end": b"\x0a\xff\xff\xff\x7fx",
    "a number that does not end": b"\x08" + b"\xff" * 12,
    "a group that does not end": b"\x0b\x08\x01",
    "an end without a group": b"\x0c",
    "groups nested too deeply": b"\x0b" * 10_000,
    "compressed content": b"\x1f\x8b\x08\x00" + b"\x00" * 12,
    "random bytes": random.Random(7).randbytes(4096),
}
"""Bytes that no message type can be read from."""

OPEN_METHODS = {
    method.full_name: method
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
}
"""The RPCs that need no token."""


def decodes(method: MethodDescriptor, data: bytes) -> bool:
    try:
        message_factory.GetMessageClass(method.input_type).FromString(data)
    except DecodeError:
        return False
    return True


@pytest.mark.parametrize("form", GARBAGE)
async def test_garbage_is_refused_with_a_reason_logged_and_counted(
    attacked: Attacked, channel: grpc.aio.Channel, form: str
) -> None:
    got: dict[str, Refused] = {}
    for name, method in METHODS.items():
        assert not decodes(method, GARBAGE[form])
        token = allowed_token(attacked.keys, method)
        got[name] = await refused(channel, method, GARBAGE[form], headers=(bearer(token),))
    assert {(one.code, one.reason) for one in got.values()} == {("INVALID_ARGUMENT", Reason.INVALID_REQUEST)}
    assert {one.message for one in got.values()} == {"request: its bytes are not a message of this RPC"}
    assert attacked.reached == []
    await attacked.settled()
    paths = [f"{method.containing_service.full_name}/{method.name}" for method in METHODS.values()]
    assert Counter(event["method"] for event in attacked.events) == Counter(paths)
    assert {(event["code"], event["reason"], event["log_level"]) for event in attacked.events} == {
        ("INVALID_ARGUMENT", "INVALID_REQUEST", "info")
    }
    assert attacked.measured() == {(path, "INVALID_REQUEST"): 1 for path in paths}


@pytest.mark.parametrize("method", OPEN_METHODS.values(), ids=list(OPEN_METHODS))
async def test_garbage_for_an_rpc_without_a_token_is_refused_logged_and_counted(
    attacked: Attacked, channel: grpc.aio.Channel, method: MethodDescriptor
) -> None:
    path = f"{method.containing_service.full_name}/{method.name}"
    for garbage in GARBAGE.values():
        got = await refused(channel, method, garbage)
        assert (got.code, got.reason) == ("INVALID_ARGUMENT", Reason.INVALID_REQUEST)
    await eventually(lambda: len(attacked.events) == len(GARBAGE))
    assert {(event["method"], event["reason"]) for event in attacked.events} == {(path, "INVALID_REQUEST")}
    assert attacked.measured() == {(path, "INVALID_REQUEST"): len(GARBAGE)}


@pytest.mark.parametrize("name", ["Check", "List"])
async def test_health_that_does_not_exist_is_refused_with_a_reason_and_no_error_is_logged(
    attacked: Attacked, channel: grpc.aio.Channel, name: str
) -> None:
    method = OPEN_METHODS[f"grpc.health.v1.Health.{name}"]
    got = await refused(channel, method, health_pb2.HealthCheckRequest(service="x").SerializeToString())
    assert (got.code, got.reason) == ("NOT_FOUND", Reason.NOT_FOUND)
    await eventually(lambda: len(attacked.events) == 1)
    assert [event["log_level"] for event in attacked.events] == ["info"]


async def test_message_with_text_that_is_not_utf_8_is_refused(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    method = METHODS["spawnmesh.session.v1.SessionService.GetSession"]
    token = allowed_token(attacked.keys, method)
    got = await refused(channel, method, b"\x0a\x02\xc3\x28", headers=(bearer(token),))
    assert (got.code, got.reason) == ("INVALID_ARGUMENT", Reason.INVALID_REQUEST)
    assert attacked.reached == []


async def test_each_message_of_a_stream_is_decoded_and_refused_alike(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    streams = [method for method in METHODS.values() if method.client_streaming]
    assert streams
    for method in streams:
        token = allowed_token(attacked.keys, method)
        got = await refused(channel, method, b"", GARBAGE["no tag"], headers=(bearer(token),))
        assert (got.code, got.reason) == ("INVALID_ARGUMENT", Reason.INVALID_REQUEST)
    assert attacked.reached == []


async def test_message_that_is_too_large_is_not_logged_as_malformed(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    method = METHODS["spawnmesh.session.v1.SessionService.GetSession"]
    headers = (bearer(allowed_token(attacked.keys, method)),)
    got = await refused(channel, method, bytes(17 * 1024 * 1024), headers=headers)
    assert got.code == "RESOURCE_EXHAUSTED"
    await attacked.settled()
    assert [event["code"] for event in attacked.events] == ["CANCELLED"]


async def test_call_that_ends_without_a_message_is_refused(
    attacked: Attacked, channel: grpc.aio.Channel
) -> None:
    async def code(method: MethodDescriptor) -> str:
        token = allowed_token(attacked.keys, method)
        call = channel.stream_stream(path_of(method))(iter(()), metadata=(bearer(token),), timeout=60)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        return caught.value.code().name

    unary = [method for method in METHODS.values() if not method.client_streaming]
    assert set(await asyncio.gather(*map(code, unary))) == {"INVALID_ARGUMENT"}
    assert attacked.reached == []
