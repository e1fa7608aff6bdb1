"""All five services, which follow what the session service decides."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.hook.v1 import hook_service_pb2 as hook_pb
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.model_router.v1 import model_router_service_pb2 as router_pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh.session.v1 import session_service_pb2 as session_pb
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.transcript.v1 import storage_service_pb2 as storage_pb
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_runtime.peers import Peer

from tests.support.serving import caller_at
from tests.support.session.fixtures import OpenPeers
from tests.support.session.harness import Mesh, OpenMesh

READS: dict[str, Callable[[Peer], Any]] = {
    "session": lambda peer: peer.unary(
        SessionServiceStub(peer.channel).ListSessions, session_pb.ListSessionsRequest(), timeout_seconds=60
    ),
    "transcript": lambda peer: peer.unary(
        StorageServiceStub(peer.channel).ListTranscripts,
        storage_pb.ListTranscriptsRequest(),
        timeout_seconds=60,
    ),
    "attachment-blob": lambda peer: peer.unary(
        AttachmentBlobServiceStub(peer.channel).ListSets, blob_pb.ListSetsRequest(), timeout_seconds=60
    ),
    "model-router": lambda peer: peer.unary(
        ModelRouterServiceStub(peer.channel).ListModels, router_pb.ListModelsRequest(), timeout_seconds=60
    ),
    "hook": lambda peer: peer.unary(
        HookServiceStub(peer.channel).ListPlugins, hook_pb.ListPluginsRequest(), timeout_seconds=60
    ),
}
"""A call of the class READ of each service, with the token of a client."""


@asynccontextmanager
async def open_all_services(
    open_peers: OpenPeers, open_mesh: OpenMesh, migrated: dict[str, ServiceDsn], **settings: Any
) -> AsyncIterator[tuple[Mesh, dict[str, Peer]]]:
    """Serve all five with these settings; yield the session service with a tenant, and channels to
    all.
    """
    (port,) = free_ports(1)
    async with (
        open_peers(
            lambda snake: {"database_url": migrated[snake].app, **settings},
            session_target=f"{LOOPBACK}:{port}",
        ) as targets,
        open_mesh(elsewhere=targets, port=port, **settings) as mesh,
        caller_at(targets["transcript"], "transcript") as transcript,
        caller_at(targets["attachment-blob"], "attachment-blob") as blob,
        caller_at(targets["model-router"], "model-router") as router,
        caller_at(targets["hook"], "hook") as hook,
    ):
        await mesh.create_tenant()
        yield (
            mesh,
            {
                "session": mesh.peer,
                "transcript": transcript,
                "attachment-blob": blob,
                "model-router": router,
                "hook": hook,
            },
        )
