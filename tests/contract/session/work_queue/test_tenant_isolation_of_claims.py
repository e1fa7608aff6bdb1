"""No setting, runner name or failed claim of one tenant keeps other runs from being claimed."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_postgres.database import ALL_TENANTS, Database
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_session.rpc.claim_runs import claim_runs

from tests.support.serving import runner_tokens
from tests.support.session.harness import Mesh
from tests.support.session.remains import Remains
from tests.support.session.worker import dependencies_of

LIMITS = AttachmentLimits(enabled=True, max_file_count=5, max_file_bytes=1000, max_total_bytes=1000)


def another(mesh: Mesh) -> Mesh:
    return Mesh(mesh.peer, mesh.keys, mesh.settings)


async def test_ClaimRuns__tenant_with_the_highest_possible_limit_stops_no_other(
    mesh: Mesh, remains: Remains
) -> None:
    boundless = another(mesh)
    await boundless.create_tenant()
    async with await psycopg.AsyncConnection.connect(remains.dsn, autocommit=True) as superuser:
        highest = "update session.tenants set max_running_run_count = 2147483647 where tenant_id = %s"
        await superuser.execute(
            highest, (boundless.tenant,)
        )  # As it may have been told before there was a bound.
    spawned = {(await one.spawn()).session_id for one in (mesh, boundless)}
    claimed: set[str] = set()
    async with asyncio.timeout(60):
        while not spawned <= claimed:
            claimed |= {held.session.session_id for held in await mesh.claim_any(limit=64)}


async def test_ClaimRuns__name_that_cannot_be_stored_takes_nothing(mesh: Mesh) -> None:
    session = await mesh.spawn()
    request = run_pb.ClaimRunsRequest(runner_id="a\x00", max_run_count=64)
    with use_token(runner_tokens(mesh.keys).runner_token()), pytest.raises(MeshError) as caught:
        await mesh.peer.unary(mesh.runs.ClaimRuns, request, timeout_seconds=60)
    assert (caught.value.reason, caught.value.violations[0].field) == (Reason.INVALID_REQUEST, "runner_id")
    assert (await mesh.claim(session.session_id)).run.attempt_count == 1


class LosesClaims:
    """The database, of which no connection is left for the first run that was taken."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.database, name)

    def pipelined(self, tenant_id: str) -> Any:
        if tenant_id != ALL_TENANTS and not self.has_failed:
            self.has_failed = True
            raise psycopg.errors.TooManyConnections
        return self.database.pipelined(tenant_id)


@pytest.mark.usefixtures("empty_queue")
async def test_ClaimRuns__run_that_the_database_could_not_claim_goes_back(mesh: Mesh) -> None:
    session = await mesh.spawn()
    request = run_pb.ClaimRunsRequest(runner_id="r", max_run_count=1)
    async with dependencies_of(mesh.settings) as deps:
        losing: Any = LosesClaims(deps.database)
        answer = await claim_runs(
            request,
            Caller(CallerKind.RUNNER, "r"),
            replace(deps, claimer=replace(deps.claimer, database=losing)),
        )
        assert not answer.runs
        assert losing.has_failed
    held = await mesh.claim(session.session_id)  # Long before a lease has run out.
    assert (held.run.attempt_count, held.run.state) == (1, session_pb2.RUN_STATE_RUNNING)


def too_many_running() -> TenantSettings:
    return TenantSettings(max_running_run_count=1_000_001)


def too_many_queued() -> TenantSettings:
    return TenantSettings(max_queued_run_count=1_000_001)


def kept_too_long() -> TenantSettings:
    limits = AttachmentLimits(retention=Duration(seconds=315_360_001))
    limits.MergeFrom(LIMITS)
    return TenantSettings(attachments=limits)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (too_many_running, "settings.max_running_run_count"),
        (too_many_queued, "settings.max_queued_run_count"),
        (kept_too_long, "settings.attachments"),
    ],
)
async def test_CreateTenant__what_has_no_end_is_refused(
    mesh: Mesh, settings: Callable[[], TenantSettings], field: str
) -> None:
    with pytest.raises(MeshError) as caught:
        await another(mesh).create_tenant(settings=settings())
    assert [violation.field for violation in caught.value.violations] == [field]
