"""Calls with any bytes and headers, and a caller that an RPC allows."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from spawnmesh_calls.client_stream import call_client_stream
from spawnmesh_calls.contracts import mesh_services
from spawnmesh_calls.wire_errors import error_from
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import CallerKind
from spawnmesh_runtime.methods import policy_of
from spawnmesh_runtime.tokens import TokenMinter

METHODS = {method.full_name: method for service in mesh_services() for method in service.methods}
"""Every RPC of the contracts."""

TENANT = "acme"
SECONDS = 60.0


@dataclass(frozen=True)
class Refused:
    """The status of a call. The reason is None if the status came without one."""

    code: str
    reason: Reason | None
    message: str


def path_of(method: MethodDescriptor) -> str:
    """Return `/<service>/<method>`."""
    return f"/{method.containing_service.full_name}/{method.name}"


def allowed_token(keys: Path, method: MethodDescriptor, tenant: str = TENANT) -> str:
    """Return the token of a caller that may call the RPC."""
    policy = policy_of(method)
    kind = min(policy.callers)
    service = min(policy.services, default="")
    if policy.without_tenant:
        return TokenMinter(service, keys / f"{service}.pem").mesh_token()
    return token_of(keys, kind, service, tenant)


def token_of(keys: Path, kind: CallerKind, service: str = "", tenant: str = TENANT) -> str:
    """Return a token of this kind of caller."""
    issuer = {CallerKind.RUN: "session", CallerKind.RUNNER: "runner", CallerKind.SERVICE: service}.get(
        kind, "client"
    )
    minter = TokenMinter(issuer, keys / f"{issuer}.pem")
    match kind:
        case CallerKind.CLIENT:
            return minter.client_token(tenant, "mallory", SECONDS)
        case CallerKind.ADMIN:
            return minter.admin_token("mallory", SECONDS)
        case CallerKind.RUN:
            return minter.run_token(TENANT, "ses_1", "run_1", 1, SECONDS)
        case CallerKind.SERVICE:
            return minter.service_token(TENANT)
        case CallerKind.RUNNER:
            return minter.runner_token()


def bearer(token: str) -> tuple[str, str]:
    """Return the header with the token."""
    return "authorization", f"Bearer {token}"


async def refused(
    channel: grpc.aio.Channel,
    method: MethodDescriptor,
    *messages: bytes,
    headers: tuple[tuple[str, str], ...] = (),
    compression: grpc.Compression | None = None,
) -> Refused:
    """Call the RPC with these bytes; a unary RPC takes one message."""
    options: dict[str, Any] = {"metadata": headers, "timeout": 20, "compression": compression}
    path = path_of(method)
    try:
        if method.client_streaming:
            await call_client_stream(channel.stream_unary(path), _each(messages), **options)
        elif method.server_streaming:
            async for _ in channel.unary_stream(path)(messages[0], **options):
                pass
        else:
            await channel.unary_unary(path)(messages[0], **options)
    except grpc.aio.AioRpcError as error:
        return _refused(error)
    raise AssertionError(f"{method.full_name} answered")


def _refused(error: grpc.aio.AioRpcError) -> Refused:
    sent: MeshError = error_from("attacked", error)
    return Refused(error.code().name, sent.reason if sent.domain else None, error.details() or "")


async def _each(messages: tuple[bytes, ...]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message
