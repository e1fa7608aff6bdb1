"""Check what the services report to an operator: their schemas and their workers."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from spawnmesh.deployment.v1 import deployment_service_pb2 as pb
from spawnmesh.deployment.v1.deployment_service_pb2_grpc import DeploymentServiceStub
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.doctor.finding import Finding
from spawnmesh_client.endpoints import Endpoints, token_minter
from spawnmesh_client.mesh import Mesh
from spawnmesh_client.token_peer import TokenPeer

_CALL_SECONDS = 3.0
_TOKEN_SECONDS = 60.0
_ADVICE = {
    pb.SCHEMA_STATE_BEHIND: (
        "run the migrations: `helm upgrade` does so before it starts pods,"
        " `migrate` of the service's program anywhere"
    ),
    pb.SCHEMA_STATE_UNFIT: ("upgrade to the release of the schema, or restore the migration that was edited"),
    pb.SCHEMA_STATE_UNKNOWN: "see the URL of its database, the network between them, and the server",
}
_NOBODY = (Reason.DEPENDENCY_UNAVAILABLE, Reason.DEADLINE_EXCEEDED)
_SILENT = "if their logs say schema_not_ready, run the migrations"
_NO_WORKER = (
    "start it, or see its log; without it ended sessions are not cleaned up,"
    " garbage is not collected and observers get no events"
)


async def check_replicas(mesh: Mesh, endpoints: Endpoints) -> list[Finding]:
    """Ask one replica of each named service, with an operator's token.

    Raises LocalRefusal without a key.
    """
    token = token_minter(endpoints).admin_token("doctor", _TOKEN_SECONDS)
    descriptions = await asyncio.gather(
        *(_described(name, peer, token) for name, peer in mesh.services.items())
    )
    replicas = [one for one in descriptions if isinstance(one, pb.Replica)]
    reasons = {
        name: one for name, one in zip(mesh.services, descriptions, strict=True) if isinstance(one, Reason)
    }
    return [_schemas(replicas, reasons), _workers(replicas)]


async def _described(name: str, peer: TokenPeer, token: str) -> pb.Replica | Reason:
    """Return the replica's description, or the reason of its refusal."""
    stub = DeploymentServiceStub(peer.channel)
    request = pb.DescribeReplicaRequest()
    try:
        answer = await replace(peer, token=token).unary(
            stub.DescribeReplica, request, timeout_seconds=_CALL_SECONDS
        )
    except MeshError as error:
        return error.reason
    return answer.replica if answer.replica.service == name else Reason.NOT_FOUND


def _schemas(replicas: Sequence[pb.Replica], reasons: Mapping[str, Reason]) -> Finding:
    """Report a wrong schema only if a service says so: a silent service may have other reasons."""
    wrong = [replica for replica in replicas if replica.schema.state in _ADVICE]
    if wrong:
        detail = "; ".join(f"{replica.service}: {replica.schema.objection}" for replica in wrong)
        return Finding("schemas", False, detail, _ADVICE[wrong[0].schema.state])
    known = ", ".join(map(_version, replicas))
    silent = [name for name, reason in reasons.items() if reason in _NOBODY]
    refused = [f"{name} ({reason})" for name, reason in reasons.items() if reason not in _NOBODY]
    unknown = [
        f"{said} {', '.join(names)}"
        for said, names in (("not known of", silent), ("not reported by", refused))
        if names
    ]
    if unknown:
        return Finding(
            "schemas", None, "; ".join([known, *unknown] if known else unknown), _SILENT if silent else ""
        )
    return Finding("schemas", True, known)


def _version(replica: pb.Replica) -> str:
    schema = replica.schema
    version = f"{replica.service} {schema.applied_migration_id}"
    if schema.state == pb.SCHEMA_STATE_AHEAD:
        return f"{version} (release {replica.version} is older and knows {schema.known_migration_id})"
    return version


def _workers(replicas: Sequence[pb.Replica]) -> Finding:
    """Report missing workers of the services that answer."""
    workers = [worker for replica in replicas for worker in replica.workers]
    missing = [worker for worker in workers if not worker.process_count]
    if missing:
        detail = "; ".join(f"no {worker.name} is at work, {_last_seen(worker)}" for worker in missing)
        return Finding("workers", False, detail, _NO_WORKER)
    if not workers:
        return Finding("workers", None, "not known: no service reports any")
    return Finding("workers", True, ", ".join(f"{worker.process_count} {worker.name}" for worker in workers))


def _last_seen(worker: pb.Worker) -> str:
    if not worker.HasField("last_seen_time"):
        return "and none was seen that has not stopped in good order"
    return f"one was seen last {_ago(worker.last_seen_time.ToDatetime(tzinfo=utc_now().tzinfo))}"


def _ago(time: datetime) -> str:
    minutes, seconds = divmod(max(0, int((utc_now() - time).total_seconds())), 60)
    if minutes < 1:
        return f"{seconds} s ago"
    return f"{minutes} min ago" if minutes < 120 else f"{minutes // 60} h ago"
