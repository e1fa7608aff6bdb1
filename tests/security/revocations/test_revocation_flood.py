"""Tenants that revoke as many ids as they can switch no revocation off, in any service."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_pb
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh_core.clock import utc_now
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.ports import LOOPBACK, free_ports
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.database import Database
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer

from tests.support.serving import caller_at, client_tokens
from tests.support.session.calls import another, kill
from tests.support.session.fixtures import OpenPeers
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.revoking import HOUR, id_of, listing, revoke
from tests.support.waiting import eventually

CAPACITY = 500
"""The capacity of each process; the runs that other tests have ended have a capacity of their own."""

ATTACKERS, IDS = 4, 200
"""Together they revoke more ids than a process remembers."""


@dataclass
class Target:
    """The session service, and attachment-blob, which follows its revocations."""

    mesh: Mesh
    blob: Peer

    async def reason_at_blob(self, token: str) -> Reason | None:
        """Call attachment-blob with the token; return the reason of the refusal."""
        request = blob_pb.GetUploadRequest(upload_id="upl_" + "0" * 26)
        try:
            with use_token(token):
                await self.blob.unary(
                    AttachmentBlobServiceStub(self.blob.channel).GetUpload, request, timeout_seconds=60
                )
        except MeshError as error:
            return error.reason
        return None


@pytest.fixture
async def target(
    open_peers: OpenPeers, open_mesh: OpenMesh, migrated: dict[str, ServiceDsn]
) -> AsyncIterator[Target]:
    (port,) = free_ports(1)
    async with (
        open_peers(
            lambda snake: {"database_url": migrated[snake].app},
            session_target=f"{LOOPBACK}:{port}",
            max_revoked_tokens=CAPACITY,
        ) as targets,
        open_mesh(elsewhere=targets, port=port, max_revoked_tokens=CAPACITY) as mesh,
        caller_at(targets["attachment-blob"], "attachment-blob") as blob,
    ):
        await mesh.create_tenant()
        yield Target(mesh, blob)


def after(time: timedelta) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(utc_now() + time)
    return stamp


async def flood(mesh: Mesh, token: str, name: str) -> None:
    """Revoke ids that no token has, for longer than anybody else."""
    expire_time = after(timedelta(days=2))
    places = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        async with places:
            await revoke(mesh, token, token_id=f"{name}-{number}", expire_time=expire_time)

    await asyncio.gather(*(one(number) for number in range(IDS)))


async def test_flood_of_revocations_displaces_no_run_and_no_token_of_another_tenant(target: Target) -> None:
    mesh, tokens = target.mesh, client_tokens(target.mesh.keys)
    held = await mesh.claim((await mesh.spawn()).session_id)
    stolen, own = (tokens.client_token(mesh.tenant, name, HOUR) for name in ("thief", "operator"))
    await revoke(mesh, own, token_id=id_of(stolen), expire_time=after(timedelta(hours=1)))
    await kill(mesh, held.session.session_id)

    async def both_refused() -> bool:
        reasons = [await target.reason_at_blob(token) for token in (stolen, held.run_token)]
        return reasons == [Reason.TOKEN_REVOKED] * 2

    await eventually(both_refused)
    attackers = [another(mesh) for _ in range(ATTACKERS)]
    for attacker in attackers:
        await attacker.create_tenant()
        await flood(mesh, tokens.client_token(attacker.tenant, "mallory", HOUR), "tok")
    # A process knows revocations in their order, so it knows all of the flood when it knows this.
    last = tokens.client_token(mesh.tenant, "last", HOUR)
    await revoke(mesh, own, token_id=id_of(last))

    async def last_refused() -> bool:
        reasons = (await target.reason_at_blob(last), await listing(mesh, last))
        return reasons == (Reason.TOKEN_REVOKED, Reason.TOKEN_REVOKED)

    await eventually(last_refused)
    assert await target.reason_at_blob(stolen) is Reason.TOKEN_REVOKED
    assert await target.reason_at_blob(held.run_token) is Reason.TOKEN_REVOKED
    assert await listing(mesh, stolen) is Reason.TOKEN_REVOKED
    assert await target.reason_at_blob(own) is not Reason.TOKEN_REVOKED


async def test_run_whose_id_was_revoked_for_a_moment_is_refused_after_its_end(
    target: Target, session_database: Database
) -> None:
    mesh, tokens = target.mesh, client_tokens(target.mesh.keys)
    held = await mesh.claim((await mesh.spawn()).session_id)
    own = tokens.client_token(mesh.tenant, "mallory", HOUR)
    await revoke(mesh, own, token_id=held.run.run_id, expire_time=after(timedelta(seconds=1)))
    await kill(mesh, held.session.session_id)
    async with session_database.transaction(mesh.tenant) as connection:
        rows = await (
            await connection.execute(
                "select is_run, expire_time > now() + interval '4 minutes' as is_long from revoked_tokens"
            )
        ).fetchall()
    assert rows == [{"is_run": True, "is_long": True}]
