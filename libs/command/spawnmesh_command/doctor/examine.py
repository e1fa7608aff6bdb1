"""Check the mesh that a command uses, and say what is wrong and what helps."""

import asyncio
import platform
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from spawnmesh.session.v1.tenant_service_pb2 import ListAgentsRequest
from spawnmesh.session.v1.tenant_service_pb2_grpc import TenantServiceStub
from spawnmesh_calls.contracts import service_descriptor
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_command.doctor.dependencies import check_dependencies
from spawnmesh_command.doctor.descriptions import Description, describe
from spawnmesh_command.doctor.finding import Finding
from spawnmesh_command.doctor.named_health import check_named_health
from spawnmesh_command.doctor.schemas import check_schemas, check_workers
from spawnmesh_command.endpoints import SERVICES, Endpoints, token_minter
from spawnmesh_command.settings import CommandSettings

_CALL_SECONDS = 3.0
_NO_ANSWER = "does not answer"
_NOT_NOW = "answers, but does not serve now"
_SOMETHING_ELSE = "something else answers there"
_SKEW_SECONDS = 10
# It exceeds any difference of the clocks, so that no token is from the future.
_PROBE_AGE = timedelta(hours=1)
_TOKEN_REFUSALS = (
    Reason.TOKEN_MISSING,
    Reason.TOKEN_INVALID,
    Reason.TOKEN_EXPIRED,
    Reason.TOKEN_REVOKED,
    Reason.TOKEN_LIFETIME_EXCEEDED,
    Reason.CALLER_NOT_ALLOWED,
    Reason.ROLE_MISSING,
)
_FIRST_OF = {
    "session": "spawnmesh.session.v1.SessionService",
    "transcript": "spawnmesh.transcript.v1.TranscriptService",
    "attachment-blob": "spawnmesh.attachment_blob.v1.AttachmentBlobService",
    "model-router": "spawnmesh.model_router.v1.ModelRouterService",
    "hook": "spawnmesh.hook.v1.HookService",
}


async def examine(mesh: WireMesh, endpoints: Endpoints, settings: CommandSettings) -> list[Finding]:
    """Run every check, in the order in which problems should be fixed.

    Without a signing key of the mesh, schemas, workers and clocks are not checked, and dependencies
    only for their state.
    """
    services = _advised(await asyncio.gather(*(_service(mesh, name) for name in SERVICES)))
    if endpoints.key_file is None:
        about = [*await check_named_health(mesh, services), _schemas(services)]
    else:
        described = await describe(mesh, endpoints, settings)
        services = [_completed(service, described) for service in services]
        broken = {service.name for service in services if service.ok is False}
        about = check_dependencies(described.values(), broken)
        about += [check_schemas(described.values()), check_workers(described.values())]
    findings = [_versions(), *services, *about]
    if services[0].ok:
        findings.append(await _token(mesh, settings.tenant))
        findings.append(await _clock(mesh, endpoints, settings.tenant))
    return findings


def _versions() -> Finding:
    return Finding(
        "versions",
        True,
        f"spawnmesh {version('spawnmesh-command')}, grpcio {version('grpcio')},"
        f" Python {platform.python_version()}",
    )


def _schemas(services: list[Finding]) -> Finding:
    """Check the schemas without an operator's key: a service serves only with a schema that it
    knows.

    The finding is never wrong by itself: a service may not serve for other reasons.
    """
    asked = [service for service in services if service.ok is not None]
    silent = [service.name for service in asked if service.detail in (_NO_ANSWER, _NOT_NOW)]
    known = [
        service.name for service in asked if service.detail not in (_NO_ANSWER, _NOT_NOW, _SOMETHING_ELSE)
    ]
    if silent or not known:
        unknown = silent or [service.name for service in asked]
        waiting = any(service.detail == _NOT_NOW for service in asked)
        advice = "see schema_not_ready in their logs: its reason is the database or a migration"
        return Finding("schemas", None, f"not known of {', '.join(unknown)}", advice if waiting else "")
    detail = (
        f"{len(known)} of {len(SERVICES)} services run on one that they know;"
        " which one takes a signing key of this mesh"
    )
    return Finding("schemas", True, detail)


def _completed(service: Finding, described: Mapping[str, Description]) -> Finding:
    """Complete the finding of one replica by what all replicas of the service say."""
    one = described.get(service.name)
    if one is None:
        return service
    count = len(one.replicas) + len(one.refusals)
    if service.ok and one.silent_count:
        detail = f"serves, but no answer comes from {one.silent_count} of {count} replicas"
        return replace(service, ok=False, detail=detail, advice="start them again, or see their logs")
    objections = [replica.schema.objection for replica in one.replicas if replica.schema.objection]
    if service.detail == _NOT_NOW and objections:
        return replace(service, detail=f"{_NOT_NOW}: {objections[0]}", advice="see below")
    return service


async def _service(mesh: WireMesh, name: str) -> Finding:
    peer = mesh.services.get(name)
    if peer is None:
        return Finding(
            name, None, f"not looked at: SPAWNMESH_{name.replace('-', '_').upper()}_TARGET is not set"
        )
    try:
        status = await _health(peer.channel)
        if status != health_pb2.HealthCheckResponse.SERVING:
            return Finding(name, False, _NOT_NOW, "it is stopping or starting: look again in some seconds")
        return await _contract(name, peer.channel)
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return Finding(name, False, _NO_ANSWER, "start it with `spawnmesh up`, or correct its target")
        return Finding(name, False, _SOMETHING_ELSE, "correct its target")


def _advised(services: list[Finding]) -> list[Finding]:
    """Adapt the advice: `spawnmesh up` starts a complete mesh, but not while a part of one runs."""
    if not any(one.ok for one in services):
        return services
    again = "start it again, or correct its target; `spawnmesh up` starts it again by itself, and says so"
    return [replace(one, advice=again) if one.detail == _NO_ANSWER else one for one in services]


async def _health(channel: grpc.aio.Channel) -> int:
    check = health_pb2_grpc.HealthStub(channel).Check
    answer = await check(health_pb2.HealthCheckRequest(), timeout=_CALL_SECONDS)
    status: int = answer.status
    return status


async def _contract(name: str, channel: grpc.aio.Channel) -> Finding:
    """Check that the peer is this service and has every RPC that this client knows."""
    known = service_descriptor(_FIRST_OF[name])
    served = await _served_methods(channel, known.full_name)
    if served is None:
        return Finding(name, False, _SOMETHING_ELSE, "correct its target")
    missing = sorted(set(known.methods_by_name) - served)
    if missing:
        return Finding(
            name,
            False,
            f"serves, but without {', '.join(missing)}",
            "it is older than this client: update it",
        )
    return Finding(name, True, "serves, with every RPC that this client knows")


async def _served_methods(channel: grpc.aio.Channel, service: str) -> set[str] | None:
    """Return the service's methods by server reflection; None if the server does not serve it."""

    async def questions() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        # Every process can describe all contracts, so the list of its services is requested
        # separately.
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        yield reflection_pb2.ServerReflectionRequest(file_containing_symbol=service)

    ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    answers = [answer async for answer in ask(questions(), timeout=_CALL_SECONDS)]
    if service not in {served.name for answer in answers for served in answer.list_services_response.service}:
        return None
    files = [file for answer in answers for file in answer.file_descriptor_response.file_descriptor_proto]
    return {
        method.name
        for file in map(descriptor_pb2.FileDescriptorProto.FromString, files)
        for described in file.service
        if f"{file.package}.{described.name}" == service
        for method in described.method
    }


async def _token(mesh: WireMesh, tenant_id: str) -> Finding:
    try:
        agents = await mesh.agents()
    except MeshError as error:
        if error.reason not in _TOKEN_REFUSALS:
            return Finding("token", None, f"not checked: {error.message}")
        return Finding(
            "token", False, f"not accepted: {error}", "set SPAWNMESH_TOKEN to what `spawnmesh token` prints"
        )
    if not agents:
        return Finding(
            "token", False, "accepted, but its tenant does not exist", f"spawnmesh tenant create {tenant_id}"
        )
    return Finding("token", True, f"accepted; its tenant has {len(agents)} agent{'s'[: len(agents) != 1]}")


async def _clock(mesh: WireMesh, endpoints: Endpoints, tenant_id: str) -> Finding:
    """Compare clocks with two tokens of an hour ago: one just expired, one about to expire.

    If the clocks agree, the mesh accepts only the second one.
    """
    if endpoints.key_file is None:
        return Finding("clock", None, "not compared: that takes a signing key of this mesh")
    minter = token_minter(endpoints, clock=lambda: utc_now() - _PROBE_AGE)
    age_seconds = _PROBE_AGE.total_seconds()
    soon = await _refusal_of(mesh, minter.client_token(tenant_id, "clock", age_seconds + _SKEW_SECONDS))
    past = await _refusal_of(mesh, minter.client_token(tenant_id, "clock", age_seconds - _SKEW_SECONDS))
    match soon, past:
        case None, Reason.TOKEN_EXPIRED:
            return Finding("clock", True, f"differs by less than {_SKEW_SECONDS} s")
        case Reason.TOKEN_EXPIRED, _:
            direction = "ahead of"
        case None, None:
            direction = "behind"
        case (Reason.TOKEN_INVALID, _) | (_, Reason.TOKEN_INVALID):
            return Finding("clock", None, "not compared: the mesh does not know this signing key")
        case _:
            return Finding("clock", None, "not compared: session does not answer")
    detail = f"the mesh is more than {_SKEW_SECONDS} s {direction} this machine"
    return Finding("clock", False, detail, "let NTP set the clocks of both")


async def _refusal_of(mesh: WireMesh, token: str) -> Reason | None:
    """Return the reason why the token is refused; None if it is accepted.

    Tokens are checked before anything else: after another refusal of the service, it is accepted.
    """
    peer = replace(mesh.service("session"), token=token)
    try:
        await peer.unary(TenantServiceStub(peer.channel).ListAgents, ListAgentsRequest(page_size=1))
    except MeshError as error:
        if error.reason in _TOKEN_REFUSALS or error.facts.get("dependency") == peer.connection.name:
            return error.reason
    return None
