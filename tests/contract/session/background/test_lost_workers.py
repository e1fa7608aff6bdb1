"""Jobs that a worker has while their tenant is deleted."""

import psycopg
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_session.domain.job_kinds import RELEASE_ATTACHMENTS

from tests.support.session.harness import Mesh, attachment
from tests.support.session.remains import Remains
from tests.support.session.worker import components_of

_TAKE = """
update session.jobs set claim_id = gen_random_uuid(), due_time = now() + interval '1 minute'
where tenant_id = %s and kind = %s
"""
_STEP = "select step, settle_time > now() from session.tenant_deletions where tenant_id = %s"
_SETTLED = "update session.tenant_deletions set settle_time = now() where tenant_id = %s"


async def test_DeleteTenant__waits_for_the_calls_of_a_job_that_a_worker_has(
    mesh: Mesh, remains: Remains
) -> None:
    session = await mesh.spawn(attachments=[attachment()])
    await mesh.client(mesh.sessions.KillSession, pb.KillSessionRequest(session_id=session.session_id))
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as link:

        async def step() -> object:
            return await (await link.execute(_STEP, (mesh.tenant,))).fetchone()

        await link.execute(_TAKE, (mesh.tenant, RELEASE_ATTACHMENTS))
        await mesh.delete_tenant()
        async with components_of(mesh.settings) as components:
            await components.purge.purge(mesh.tenant)
            assert await step() == ("SETTLE", True)
            assert (await remains.of(mesh.tenant))["objects"] == 1
            await link.execute(_SETTLED, (mesh.tenant,))
            await components.purge.advance(mesh.tenant)
        assert await step() == ("ROWS", False)
