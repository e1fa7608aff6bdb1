"""One call of an RPC with a random message, by any caller that the RPC allows, and its judgement."""

import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from spawnmesh_core.errors import MeshError
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.client_stream import call_client_stream
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.tokens import TokenMinter
from spawnmesh_runtime.wire_errors import error_from

_SECONDS = 10.0
_MOST_ANSWERS = 5
_OF_A_DEFECT = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS}
_OF_THE_CALLER = {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}
"""Codes that a client gives itself, without a reason of the mesh."""


@dataclass(frozen=True)
class Identity:
    """A tenant, and a run of it."""

    keys: Path
    tenant_id: str
    session_id: str
    run_id: str
    epoch: int

    @property
    def fields(self) -> dict[str, Any]:
        """The values of fields with these names."""
        return {
            "tenant_id": self.tenant_id,
            "session_id": self.session_id,
            "parent_session_id": self.session_id,
            "run_id": self.run_id,
            "epoch": self.epoch,
            "page_size": 5,
            "page_token": "",
        }

    def token(self, kind: CallerKind, service: str) -> str:
        """Return a token of this kind of caller."""
        issuer = {CallerKind.RUN: "session", CallerKind.RUNNER: "runner", CallerKind.SERVICE: service}
        name = issuer.get(kind, "client")
        minter = TokenMinter(name, self.keys / f"{name}.pem")
        match kind:
            case CallerKind.CLIENT:
                return minter.client_token(self.tenant_id, "fuzzer", 3_600)
            case CallerKind.ADMIN:
                return minter.admin_token("fuzzer", 3_600)
            case CallerKind.RUN:
                return minter.run_token(self.tenant_id, self.session_id, self.run_id, self.epoch, 3_600)
            case CallerKind.SERVICE:
                return minter.service_token(self.tenant_id)
            case CallerKind.RUNNER:
                return minter.runner_token()


@dataclass(frozen=True)
class Outcome:
    """The code of a call, its reason, the answers, and what is wrong with it, or empty."""

    code: str
    reason: str
    answers: Sequence[Message]
    problem: str


def caller_of(identity: Identity, method: MethodDescriptor, rng: random.Random) -> str:
    """Return the token of a random caller that may call the RPC; empty if none is needed."""
    policy = policy_of(method)
    if not policy.callers:
        return ""
    return identity.token(rng.choice(sorted(policy.callers)), rng.choice(sorted(policy.services) or [""]))


async def call(
    channel: grpc.aio.Channel, method: MethodDescriptor, token: str, messages: Sequence[Message]
) -> Outcome:
    """Call the RPC; a unary one with the first message. Stop reading after some answers."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    headers = (("authorization", f"Bearer {token}"),) if token else ()
    options: dict[str, Any] = {"metadata": headers, "timeout": _SECONDS}
    read = message_factory.GetMessageClass(method.output_type).FromString
    sent = [message.SerializeToString() for message in messages]
    answers: list[Message] = []
    try:
        if method.client_streaming:
            stream = channel.stream_unary(path, response_deserializer=read)
            answers.append(await call_client_stream(stream, _each(sent), **options))
        elif method.server_streaming:
            answering = channel.unary_stream(path, response_deserializer=read)(sent[0], **options)
            async for answer in answering:
                answers.append(answer)
                if len(answers) == _MOST_ANSWERS:
                    answering.cancel()
                    break
        else:
            answers.append(await channel.unary_unary(path, response_deserializer=read)(sent[0], **options))
    except grpc.aio.AioRpcError as error:
        return _judged(error, answers)
    return Outcome("OK", "", answers, "")


def _judged(error: grpc.aio.AioRpcError, answers: Sequence[Message]) -> Outcome:
    told: MeshError = error_from("fuzzed", error)
    code, reason = error.code(), str(told.reason) if told.domain else ""
    problem = ""
    if code in _OF_A_DEFECT:
        problem = f"a call must not end as {code.name}"
    elif not reason and code not in _OF_THE_CALLER:
        problem = f"{code.name} without a reason"
    elif any(mark in (error.details() or "") for mark in ("Traceback", 'File "', "psycopg", "object at 0x")):
        problem = "the message shows the inside of the program"
    if problem:
        problem += f": {error.details()}"
    return Outcome(code.name, reason, answers, problem)


async def _each(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message
