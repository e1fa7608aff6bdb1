"""Ask each replica to describe itself, with an operator's token."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from spawnmesh.deployment.v1 import deployment_service_pb2 as pb
from spawnmesh.deployment.v1.deployment_service_pb2_grpc import DeploymentServiceStub
from spawnmesh_client.settings import ConnectionSettings
from spawnmesh_client.token_peer import TokenPeer
from spawnmesh_client.wire import WireMesh
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_command.doctor.addresses import open_replicas
from spawnmesh_command.endpoints import Endpoints, token_minter

_CALL_SECONDS = 8.0  # A replica probes what it depends on, which takes up to five seconds.
_TOKEN_SECONDS = 60.0
SILENCE = (Reason.DEPENDENCY_UNAVAILABLE, Reason.DEADLINE_EXCEEDED)
"""Reasons that the command itself gives for a replica that does not answer."""


@dataclass(frozen=True, slots=True)
class Description:
    """The replicas of a service that described themselves, and the reasons of the others."""

    service: str
    replicas: tuple[pb.Replica, ...]
    refusals: tuple[Reason, ...] = ()

    @property
    def silent_count(self) -> int:
        """The number of replicas that do not answer."""
        return sum(reason in SILENCE for reason in self.refusals)


async def describe(
    mesh: WireMesh, endpoints: Endpoints, settings: ConnectionSettings
) -> Mapping[str, Description]:
    """Describe each named service. Raises LocalRefusal without a key."""
    token = token_minter(endpoints).admin_token("doctor", _TOKEN_SECONDS)
    described = await asyncio.gather(
        *(
            _service(name, peer, endpoints.targets[name], token, settings)
            for name, peer in mesh.services.items()
        )
    )
    return {one.service: one for one in described}


async def _service(
    name: str, peer: TokenPeer, target: str, token: str, settings: ConnectionSettings
) -> Description:
    async with open_replicas(peer, name, target, token, settings) as replicas:
        answers = await asyncio.gather(*(_replica(name, replica) for replica in replicas))
    return Description(
        name,
        tuple(answer for answer in answers if isinstance(answer, pb.Replica)),
        tuple(answer for answer in answers if isinstance(answer, Reason)),
    )


async def _replica(name: str, peer: TokenPeer) -> pb.Replica | Reason:
    """Return the replica's description, or the reason of its refusal."""
    stub = DeploymentServiceStub(peer.channel)
    try:
        answer = await peer.unary(
            stub.DescribeReplica, pb.DescribeReplicaRequest(), timeout_seconds=_CALL_SECONDS
        )
    except MeshError as error:
        return error.reason
    return answer.replica if answer.replica.service == name else Reason.NOT_FOUND
