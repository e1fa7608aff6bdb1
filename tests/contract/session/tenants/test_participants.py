"""The contract of TenantParticipantService, at each service that takes part in the life of tenants."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from spawnmesh.tenancy.v1 import tenant_participant_service_pb2 as pb
from spawnmesh.tenancy.v1 import tenant_status_pb2 as status_pb
from spawnmesh_attachment_blob.store.tenants import TENANT_TABLES as ATTACHMENT_TABLES
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.store.tenants import TENANT_TABLES as HOOK_TABLES
from spawnmesh_model_router.store.policies import TENANT_TABLES as ROUTER_TABLES
from spawnmesh_postgres import tenant_participant, tenant_purges
from spawnmesh_postgres.database import Connection
from spawnmesh_postgres.tenant_tables import MAX_COUNT, TenantTables
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import Peer
from spawnmesh_runtime.tokens import TokenMinter
from spawnmesh_session.store.tenant_deletions import TENANT_TABLES as SESSION_TABLES
from spawnmesh_transcript.store.tenants import TENANT_TABLES as TRANSCRIPT_TABLES

from tests.support import tenancy
from tests.support.serving import caller_at, client_tokens
from tests.support.session.remains import Remains

UNKNOWN, PREPARED = status_pb.PARTICIPATION_STATE_UNKNOWN, status_pb.PARTICIPATION_STATE_PREPARED
PURGING, PURGED = status_pb.PARTICIPATION_STATE_PURGING, status_pb.PARTICIPATION_STATE_PURGED

TABLES: dict[str, TenantTables] = {
    "session": SESSION_TABLES,
    "attachment-blob": ATTACHMENT_TABLES,
    "transcript": TRANSCRIPT_TABLES,
    "hook": HOOK_TABLES,
    "model-router": ROUTER_TABLES,
}
RECORDS = {"session": {"tenant_deletions", "revoked_tokens", "operations", "jobs"}}
"""The tables whose rows outlive a tenant: the record that it is purged, or was, which is
`purged_tenants` in other services, its revocations, and the operations that delete it with their
jobs; a purge removes the other jobs.
"""
AUDIT = {"audit_chains", "audit_events"}
"""The tables of the audit log, in every service. They outlive a tenant as well."""

FILLED = {
    "attachment-blob": (
        "sets",
        "insert into sets (tenant_id, set_id, session_id, state)"
        " select %(tenant)s, 'att_' || n, '', 'RELEASED' from generate_series(1, %(count)s) n",
    ),
    "transcript": (
        "search_progress",
        "insert into search_progress select %(tenant)s, 'ses_' || n, 1 from generate_series(1, %(count)s) n",
    ),
    "hook": (
        "allowed_spawns",
        "insert into allowed_spawns select %(tenant)s, 'ses_' || n from generate_series(1, %(count)s) n",
    ),
    "model-router": (
        "budget_periods",
        "insert into budget_periods select %(tenant)s, 'DAY', now() - n * interval '1 hour'"
        " from generate_series(1, %(count)s) n",
    ),
}
"""A table of each participant that is easily filled, and the statement that fills it."""


@dataclass(frozen=True)
class Participant:
    """A tenant of one test at one participant."""

    service: str
    peer: Peer
    keys: Path
    dsn: str
    tenant_id: str

    @property
    def settings_table(self) -> str:
        return TABLES[self.service].settings

    @contextmanager
    def as_session(self) -> Iterator[Peer]:
        with use_token(TokenMinter("session", self.keys / "session.pem").service_token(self.tenant_id)):
            yield self.peer

    async def prepare(self, version: int) -> int:
        with self.as_session() as peer:
            return await tenancy.prepare(peer, version)

    async def purge(self, version: int = 0) -> tenancy.Purged:
        with self.as_session() as peer:
            return await tenancy.purge(peer, version)

    async def purge_fully(self, version: int = 0) -> tenancy.Purged:
        with self.as_session() as peer:
            return await tenancy.purge_fully(peer, version)

    async def status(self) -> status_pb.TenantStatus:
        with self.as_session() as peer:
            return await tenancy.status_of(peer)

    async def refusal_of_preparing(self, version: int) -> Reason:
        with pytest.raises(MeshError) as caught:
            await self.prepare(version)
        return caught.value.reason

    async def fill(self, count: int) -> str:
        """Store rows in one table past the service, and return its name."""
        table, statement = FILLED[self.service]
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (self.tenant_id,))
            await connection.execute(statement.encode(), {"tenant": self.tenant_id, "count": count})
        return table


@pytest.fixture(params=list(FILLED))
async def participant(
    request: Any, peers: dict[str, str], keys: Path, migrated: dict[str, ServiceDsn]
) -> AsyncIterator[Participant]:
    service: str = request.param
    dsn = migrated[service.replace("-", "_")].app
    async with caller_at(peers[service], service) as peer:
        yield Participant(service, peer, keys, dsn, f"t-{secrets.token_hex(8)}")


async def test_GetTenantStatus__from_unknown_to_purged(participant: Participant) -> None:
    assert await participant.status() == status_pb.TenantStatus(state=UNKNOWN)
    await participant.prepare(3)
    prepared = await participant.status()
    assert (prepared.state, prepared.settings_version) == (PREPARED, 3)
    assert not prepared.HasField("purge_begin_time")
    stored = tenancy.stored_in(prepared)
    objects = {"objects": 0} if participant.service == "attachment-blob" else {}
    assert stored == {**objects, participant.settings_table: 1}
    assert (await participant.purge(3)).removed == {participant.settings_table: 1}
    purged = await participant.status()
    assert (purged.state, purged.settings_version, tenancy.stored_in(purged)) == (PURGED, 3, {})
    assert prepared.purge_begin_time.seconds < purged.purge_begin_time.seconds
    assert purged.purge_begin_time.ToNanoseconds() <= purged.purge_end_time.ToNanoseconds()
    await participant.prepare(4)
    assert await participant.status() == status_pb.TenantStatus(
        state=PREPARED,
        settings_version=4,
        stored_items=prepared.stored_items,
        storage=prepared.storage if prepared.HasField("storage") else None,
    )


async def test_PrepareTenant__the_highest_version_holds(participant: Participant) -> None:
    assert [await participant.prepare(version) for version in (3, 2, 3, 4)] == [3, 3, 3, 4]


async def test_PurgeTenant__of_a_tenant_without_data_is_done(participant: Participant) -> None:
    for _ in range(2):
        assert await participant.purge() == tenancy.Purged(True, {})


async def test_PurgeTenant__is_bounded_and_resumed_and_the_status_says_what_is_left(
    participant: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await participant.prepare(1)
    table = await participant.fill(MAX_COUNT + 9)
    before = {items.kind: items for items in (await participant.status()).stored_items}[table]
    assert (before.count, before.has_more) == (MAX_COUNT, True)
    monkeypatch.setattr(tenant_participant, "PAGE_ROWS", 100)
    monkeypatch.setattr(tenant_participant, "PAGES_PER_CALL", 3)
    first = await participant.purge(1)
    assert not first.done
    assert 0 < first.removed[table] <= 300
    left = MAX_COUNT + 9 - first.removed[table]
    status = await participant.status()
    assert (status.state, status.settings_version) == (PURGING, 1)
    assert (status.HasField("purge_begin_time"), status.HasField("purge_end_time")) == (True, False)
    assert tenancy.stored_in(status) == {table: left, participant.settings_table: 1}
    assert await participant.refusal_of_preparing(1) is Reason.CONFLICT
    rest = await participant.purge_fully(1)
    assert rest.removed == {table: left, participant.settings_table: 1}
    assert rest.call_count > 1
    assert (await participant.status()).state == PURGED


async def test_PurgeTenant__a_late_purge_keeps_the_tenant_that_was_created_anew(
    participant: Participant,
) -> None:
    await participant.prepare(3)
    await participant.fill(2)
    assert (await participant.purge_fully(3)).row_count == 3
    for stale in (2, 3):  # Settings of the purged tenant that arrive late.
        assert await participant.refusal_of_preparing(stale) is Reason.CONFLICT
    assert await participant.prepare(4) == 4
    await participant.fill(2)
    kept = await participant.status()
    for late in (1, 3):
        assert await participant.purge(late) == tenancy.Purged(True, {})
    assert await participant.status() == kept
    assert (await participant.purge_fully(4)).row_count == 3
    assert await participant.purge(3) == tenancy.Purged(True, {})
    assert await participant.refusal_of_preparing(4) is Reason.CONFLICT


async def test_PurgeTenant__an_unfinished_purge_does_not_block_a_new_tenant(
    participant: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await participant.prepare(3)
    monkeypatch.setattr(tenant_participant, "PAGES_PER_CALL", 0)
    assert not (await participant.purge(3)).done
    assert await participant.refusal_of_preparing(3) is Reason.CONFLICT
    assert await participant.prepare(4) == 4
    monkeypatch.undo()
    assert await participant.purge(3) == tenancy.Purged(True, {})
    assert (await participant.status()).state == PREPARED


async def test_PurgeTenant__without_a_version_must_finish_before_the_tenant_is_prepared(
    participant: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a version, settings of any version may belong to the purged tenant."""
    monkeypatch.setattr(tenant_participant, "PAGES_PER_CALL", 0)
    assert not (await participant.purge()).done
    assert await participant.refusal_of_preparing(9) is Reason.CONFLICT
    monkeypatch.undo()
    assert (await participant.purge_fully()).done
    assert await participant.prepare(1) == 1


@pytest.mark.parametrize("version", [0, 3])
async def test_PurgeTenant__stops_if_the_tenant_is_created_anew_meanwhile(
    participant: Participant, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    """Two calls run at once, and one of them stops before its first page."""
    await participant.prepare(3)
    await participant.fill(2)
    lock_purge, reached, go_on = tenant_purges.lock_purge, asyncio.Event(), asyncio.Event()

    async def held_up(connection: Connection, tenant_id: str, settings_version: int) -> bool:
        if not reached.is_set():
            reached.set()
            await go_on.wait()
        return await lock_purge(connection, tenant_id, settings_version)

    monkeypatch.setattr(tenant_purges, "lock_purge", held_up)
    late = asyncio.create_task(participant.purge(version))
    await asyncio.wait_for(reached.wait(), 60)
    await participant.purge_fully(version)
    await participant.prepare(4)
    await participant.fill(2)
    kept = await participant.status()
    go_on.set()
    assert await late == tenancy.Purged(True, {})
    assert await participant.status() == kept


@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        ("PrepareTenant", pb.PrepareTenantRequest(settings_version=1)),
        ("PurgeTenant", pb.PurgeTenantRequest()),
        ("GetTenantStatus", pb.GetTenantStatusRequest()),
    ],
    ids=["prepare", "purge", "status"],
)
async def test_only_the_session_service_may_call(
    participant: Participant, method: str, request_of: Any
) -> None:
    keys, tenant_id = participant.keys, participant.tenant_id
    clients, session = client_tokens(keys), TokenMinter("session", keys / "session.pem")
    for token in (
        clients.client_token(tenant_id, "tester", 60),
        clients.admin_token("operator", 60),
        session.run_token(tenant_id, "ses_1", "run_1", 1, 60),
        TokenMinter("hook", keys / "hook.pem").service_token(tenant_id),
    ):
        with use_token(token), pytest.raises(MeshError) as caught:
            await tenancy.call(participant.peer, method, request_of)
        assert caught.value.reason is Reason.CALLER_NOT_ALLOWED
    assert (await participant.status()).state == UNKNOWN


async def test_PrepareTenant__needs_limits_of_attachments(participant: Participant) -> None:
    request = pb.PrepareTenantRequest(settings_version=1)
    with participant.as_session() as peer, pytest.raises(MeshError) as caught:
        await tenancy.call(peer, "PrepareTenant", request)
    assert caught.value.reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize("service", list(TABLES))
async def test_a_service_lists_every_table_with_rows_of_tenants(service: str, remains: Remains) -> None:
    """A new table that is not listed would keep the rows of purged tenants."""
    query = """
        select table_name from information_schema.columns c join information_schema.tables t
            using (table_schema, table_name)
        where table_schema = %s and column_name = 'tenant_id' and table_type = 'BASE TABLE'"""
    rows = await (await remains.link.execute(query, (service.replace("-", "_"),))).fetchall()
    listed = TABLES[service]
    assert len(listed.rows) == len(set(listed.rows))
    assert {name for (name,) in rows} == {
        *listed.rows,
        listed.settings,
        *((listed.work,) if listed.work else ()),
        *RECORDS.get(service, {"purged_tenants"}),
        *AUDIT,
    }


@pytest.mark.parametrize("service", list(TABLES))
async def test_a_service_lists_rows_before_those_that_they_refer_to(service: str, remains: Remains) -> None:
    """Otherwise rows that cascade would not be counted, and a page would not be bounded."""
    query = """
        select r.relname, f.relname
        from pg_constraint c join pg_class r on r.oid = c.conrelid join pg_class f on f.oid = c.confrelid
        where c.contype = 'f' and c.connamespace = %s::regnamespace and r.relname <> all (%s)"""
    order = [*TABLES[service].rows, TABLES[service].settings]
    others = [name for (name,) in await (await remains.link.execute(_TABLES_WITHOUT_TENANT)).fetchall()]
    keys = await (await remains.link.execute(query, (service.replace("-", "_"), others))).fetchall()
    assert [(name, other) for name, other in keys if order.index(name) >= order.index(other)] == []


_TABLES_WITHOUT_TENANT = """
    select c.relname from pg_class c where c.relkind = 'r' and not exists (
        select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id')"""
