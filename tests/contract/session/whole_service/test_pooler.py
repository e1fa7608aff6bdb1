"""The main job with every service's request path behind a PgBouncer in transaction mode."""

import asyncio

from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.pooling import needs_pgbouncer, open_pooler
from tests.support.serving import caller_at
from tests.support.session.calls import finalize
from tests.support.session.fixtures import OpenPeers
from tests.support.session.harness import Mesh, OpenMesh, attachment

pytestmark = needs_pgbouncer

SNAKES = ("session", "attachment_blob", "transcript", "hook", "model_router")


async def test_tenants_spawn_and_finish_side_by_side_through_two_connections_each(
    postgres: Postgres, migrated: dict[str, ServiceDsn], open_peers: OpenPeers, open_mesh: OpenMesh
) -> None:
    async with open_pooler(postgres, SNAKES, server_connections=2) as pooled:

        def database_of(snake: str) -> dict[str, str]:
            return {"database_url": pooled(migrated[snake].app), "database_direct_url": migrated[snake].app}

        async with (
            open_peers(database_of) as targets,
            open_mesh(elsewhere=targets, **database_of("session")) as mesh,
            caller_at(targets["transcript"], "transcript") as transcript,
        ):
            tenants = [Mesh(mesh.peer, mesh.keys, mesh.settings) for _ in range(6)]
            spawned = dict(zip(await asyncio.gather(*map(_spawned, tenants)), tenants, strict=True))
            waiting = [
                asyncio.create_task(_waited(tenant, session_id)) for session_id, tenant in spawned.items()
            ]
            async with asyncio.timeout(60):
                while spawned:
                    for held in await mesh.claim_any(limit=4):
                        tenant = spawned.pop(held.session.session_id, None)
                        if tenant is not None:
                            assert (await finalize(tenant, transcript, held)).HasField("accepted")
                ended = await asyncio.gather(*waiting)
            assert [session.latest_run.state for session in ended] == [session_pb2.RUN_STATE_SUCCEEDED] * 6
            for tenant, session in zip(tenants, ended, strict=True):
                listed = await tenant.client(tenant.sessions.ListSessions, pb.ListSessionsRequest())
                assert [one.session_id for one in listed.sessions] == [session.session_id]


async def _spawned(tenant: Mesh) -> str:
    await tenant.create_tenant()
    session_id: str = (await tenant.spawn(attachments=[attachment()])).session_id
    return session_id


async def _waited(tenant: Mesh, session_id: str) -> session_pb2.Session:
    """Told through LISTEN, on a connection that goes past the pooler."""
    request = pb.WaitSessionRequest(session_id=session_id)
    answer: pb.WaitSessionResponse = await tenant.client(tenant.sessions.WaitSession, request, timeout=60.0)
    return answer.session
