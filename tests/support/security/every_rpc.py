"""Every RPC that the services of a mesh list by reflection, and raw calls of it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from spawnmesh_calls.client_stream import call_client_stream
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.stack import Stack

from tests.support.security.raw_calls import METHODS, bearer, path_of

SERVED_BY_PLUGINS = "spawnmesh.hook.v1.HookHandlerService"
_SILENCE_SECONDS = 1.0
_MOST_ANSWERS = 20


@dataclass(frozen=True)
class Served:
    """An RPC, and the service that serves it."""

    service: str
    method: MethodDescriptor

    @property
    def name(self) -> str:
        """The name without the package of the mesh."""
        return f"{self.service} {self.method.full_name.removeprefix('spawnmesh.')}"


@dataclass(frozen=True)
class Answer:
    """The end of a call: its code, its reason, and all bytes that the caller gets."""

    code: str
    reason: Reason | None
    messages: tuple[bytes, ...]
    text: str
    details: bytes
    fields: tuple[str, ...]
    """The fields that are malformed."""

    @property
    def seen(self) -> bytes:
        """Everything that the caller sees."""
        return b"\n".join((*self.messages, self.text.encode(), self.details))


@dataclass(frozen=True)
class RunningMesh:
    """The mesh, its RPCs, and connections to it."""

    stack: Stack
    channels: dict[str, grpc.aio.Channel]
    rpcs: list[Served]


@asynccontextmanager
async def channels_to(targets: Mapping[str, str]) -> AsyncIterator[dict[str, grpc.aio.Channel]]:
    """Connect to each service without the client of the mesh."""
    async with AsyncExitStack() as exits:
        options = [("grpc.enable_http_proxy", 0)]
        yield {
            name: await exits.enter_async_context(grpc.aio.insecure_channel(target, options=options))
            for name, target in targets.items()
        }


async def served_rpcs(channels: Mapping[str, grpc.aio.Channel]) -> list[Served]:
    """Return each RPC of the mesh, once for each service that serves it."""
    found = []
    for name, channel in channels.items():
        services = await reflected_services(channel)
        found += [
            Served(name, one) for one in METHODS.values() if one.containing_service.full_name in services
        ]
    return found


async def reflected_services(channel: grpc.aio.Channel) -> set[str]:
    """Return the names of the services behind the channel."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    listed = stub.ServerReflectionInfo(iter([asked]))
    return {one.name async for answer in listed for one in answer.list_services_response.service}


async def ask(
    channel: grpc.aio.Channel,
    method: MethodDescriptor,
    token: str,
    *messages: bytes,
    seconds: float = 60.0,
    may_be_silent: bool = True,
) -> Answer:
    """Call the RPC with these bytes; a unary RPC takes the first.

    A stream of answers that stays silent is OK if `may_be_silent`; else it must end by itself.
    """
    options: dict[str, Any] = {"metadata": (bearer(token),) if token else (), "timeout": seconds}
    path = path_of(method)
    answers: list[bytes] = []
    try:
        if method.client_streaming and method.server_streaming:
            answered = asyncio.Semaphore(0)
            stream = channel.stream_stream(path)(_in_turn(messages, answered), **options)
            await _read(stream, answers, may_be_silent, answered)
        elif method.client_streaming:
            answers.append(await call_client_stream(channel.stream_unary(path), _each(messages), **options))
        elif method.server_streaming:
            await _read(channel.unary_stream(path)(messages[0], **options), answers, may_be_silent)
        else:
            answers.append(await channel.unary_unary(path)(messages[0], **options))
    except grpc.aio.AioRpcError as error:
        return _refusal(error, answers)
    return Answer("OK", None, tuple(answers), "", b"", ())


async def _read(
    stream: Any, answers: list[bytes], may_be_silent: bool, answered: asyncio.Semaphore | None = None
) -> None:
    """Read the answers, at most so many. Raises AioRpcError."""
    while len(answers) < _MOST_ANSWERS:
        patience = (_SILENCE_SECONDS if answers else 2 * _SILENCE_SECONDS) if may_be_silent else None
        try:
            async with asyncio.timeout(patience):
                message = await stream.read()
        except TimeoutError:
            break
        if message is grpc.aio.EOF:
            return
        answers.append(message)
        if answered is not None:
            answered.release()
    stream.cancel()


def _refusal(error: grpc.aio.AioRpcError, answers: Sequence[bytes]) -> Answer:
    sent: MeshError = error_from("attacked", error)
    metadata = error.trailing_metadata() or ()
    details = b"\n".join(value if isinstance(value, bytes) else value.encode() for _, value in metadata)
    reason = sent.reason if sent.domain else None
    fields = tuple(one.field for one in sent.violations)
    return Answer(error.code().name, reason, tuple(answers), error.details() or "", details, fields)


async def _each(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


async def _in_turn(messages: Sequence[bytes], answered: asyncio.Semaphore) -> AsyncIterator[bytes]:
    """Send each message after the answer to the one before.

    grpc.aio loses the status of a server that ends the call while a message is being sent.
    """
    for message in messages:
        yield message
        await answered.acquire()
