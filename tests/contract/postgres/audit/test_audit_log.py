"""The audit log: events are stored in batches, in a chain that only its owner can shorten."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from psycopg.conninfo import make_conninfo
from spawnmesh.audit.v1 import audit_service_pb2 as audit_pb
from spawnmesh_core.page_tokens import page_key
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.audit import chain, retention, store
from spawnmesh_postgres.audit.buffer import EVENTS_LOST, PendingEvent
from spawnmesh_postgres.audit.chain import MAX_BATCH, Defect, Link
from spawnmesh_postgres.audit.log import open_audit_log
from spawnmesh_postgres.audit.servicer import AuditServicer
from spawnmesh_postgres.database import ALL_TENANTS, Database, open_database

from tests.support.captured_logs import captured_warnings
from tests.support.links import open_link, to_postgres
from tests.support.loop_steps import longest_step
from tests.support.postgres.audit import as_superuser, call_of, create_audit_tables, stored
from tests.support.waiting import eventually

SOON = 0.01


@pytest.fixture
async def audit_dsn(dsn: ServiceDsn) -> ServiceDsn:
    await asyncio.to_thread(create_audit_tables, dsn)
    return dsn


@pytest.fixture
async def database(audit_dsn: ServiceDsn) -> AsyncIterator[Database]:
    async with open_database(audit_dsn.app, name="test audit", max_connections=4) as opened:
        yield opened


@pytest.fixture
def tenant() -> str:
    return f"t-{uuid4().hex[:12]}"


async def record(database: Database, *tenants: str, count: int = 1) -> None:
    async with open_audit_log(database, period_seconds=SOON) as audit:
        for tenant in tenants:
            for number in range(count):
                audit.record(call_of(tenant, f"ses_{number}"))


async def breaks_of(database: Database, tenant: str) -> list[tuple[int, Defect]]:
    read = await store.read_chain(database, tenant, "", after=None, limit=10_000)
    assert read is not None
    state, start, events = read
    link, breaks = chain.verify(start, events)
    return [(one.sequence, one.defect) for one in (*breaks, *chain.verify_end(tenant, link, state.head))]


async def test_events_are_stored_soon_in_a_chain_for_each_tenant(database: Database, tenant: str) -> None:
    other = f"{tenant}-b"
    async with open_audit_log(database, period_seconds=SOON) as audit:
        for number in range(3):
            audit.record(call_of(tenant, f"ses_{number}"))
            audit.record(call_of(other, f"ses_{number}"))
        await eventually(lambda: stored(database, other))
        for one in (tenant, other):
            events = await stored(database, one)
            assert [(event.sequence, event.resources) for event in events] == [
                (number + 1, [f"session_id=ses_{number}"]) for number in range(3)
            ]
            assert await breaks_of(database, one) == []
        audit.record(call_of(tenant, "ses_last"))
    assert [event.resources for event in await stored(database, tenant)][3:] == [["session_id=ses_last"]]


async def test_writers_of_several_replicas_share_a_chain(database: Database, tenant: str) -> None:
    await asyncio.gather(*(record(database, tenant, f"{tenant}-b", count=50) for _ in range(4)))
    for one in (tenant, f"{tenant}-b"):
        assert sorted(event.sequence for event in await stored(database, one)) == [*range(1, 201)]
        assert await breaks_of(database, one) == []


async def test_tenant_sees_its_own_events_alone(database: Database, tenant: str) -> None:
    await record(database, tenant, f"{tenant}-b")
    query = b"select distinct tenant_id from audit_events"
    for scope in (tenant, f"{tenant}-b"):
        async with database.transaction(scope) as connection:
            rows = await (await connection.execute(query)).fetchall()
        assert rows == [{"tenant_id": scope}]


@pytest.mark.parametrize(
    "statement",
    [
        "update audit_events set subject = 'nobody'",
        "delete from audit_events",
        "truncate audit_events",
        "delete from audit_chains",
        "update audit_chains set cut_sequence = 0",
        "update audit_chains set tenant_id = 'other'",
    ],
)
@pytest.mark.parametrize("scope", ["tenant", ALL_TENANTS])
async def test_role_of_the_service_changes_and_removes_nothing(
    database: Database, tenant: str, scope: str, statement: str
) -> None:
    await record(database, tenant)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        async with database.transaction(tenant if scope == "tenant" else scope) as connection:
            await connection.execute(statement.encode())
    assert await breaks_of(database, tenant) == []


async def test_policies_deny_it_too_if_the_rights_are_given_back(
    audit_dsn: ServiceDsn, database: Database, tenant: str
) -> None:
    await record(database, tenant)
    async with await psycopg.AsyncConnection.connect(audit_dsn.owner, autocommit=True) as owner:
        await owner.execute("grant update, delete on audit_events to scratch")
        try:
            async with database.transaction(ALL_TENANTS) as connection:
                for statement in (b"update audit_events set peer = ''", b"delete from audit_events"):
                    assert (await connection.execute(statement)).rowcount == 0
        finally:
            await owner.execute("revoke update, delete on audit_events from scratch")


@pytest.mark.parametrize(
    ("attack", "found"),
    [
        ("update audit_events set subject = 'x' where tenant_id = %s and sequence = 2", (2, Defect.CHANGED)),
        ("delete from audit_events where tenant_id = %s and sequence = 2", (3, Defect.MISSING)),
        ("delete from audit_events where tenant_id = %s and sequence = 1", (2, Defect.MISSING)),
        ("delete from audit_events where tenant_id = %s and sequence = 4", (4, Defect.MISSING)),
        ("update audit_events set hash = '' where tenant_id = %s and sequence = 4", (4, Defect.CHANGED)),
    ],
)
async def test_tampering_is_found(
    database: Database, postgres: Postgres, tenant: str, attack: str, found: tuple[int, Defect]
) -> None:
    await record(database, tenant, count=4)
    async with as_superuser(postgres.superuser_dsn) as superuser:
        assert (await superuser.execute(attack.encode(), (tenant,))).rowcount == 1
    assert found in await breaks_of(database, tenant)


async def test_events_wait_while_the_database_is_away(
    audit_dsn: ServiceDsn, database: Database, tenant: str
) -> None:
    with captured_warnings() as warnings:
        await _record_through_an_outage(audit_dsn, database, tenant, warnings)
    assert await breaks_of(database, tenant) == []


async def _record_through_an_outage(
    audit_dsn: ServiceDsn, database: Database, tenant: str, warnings: Sequence[Mapping[str, Any]]
) -> None:
    async with (
        open_link(to_postgres(audit_dsn.app)) as link,
        open_database(
            _through(audit_dsn, link.target), name="far", max_connections=2, wait_seconds=1.0
        ) as far,
        open_audit_log(far, period_seconds=SOON) as audit,
    ):
        audit.record(call_of(tenant, "ses_before"))
        await eventually(lambda: stored(database, tenant))
        link.hold()
        link.cut()
        for number in range(100):
            audit.record(call_of(tenant, f"ses_{number}"))
        await eventually(lambda: [one for one in warnings if one["event"] == "audit_not_stored"])
        assert len(await stored(database, tenant)) == 1
        link.heal()

        async def all_are_stored() -> bool:
            return len(await stored(database, tenant)) == 101

        await eventually(all_are_stored)


async def test_a_tenant_that_floods_during_an_outage_loses_its_own_events_alone(
    audit_dsn: ServiceDsn, database: Database, tenant: str
) -> None:
    loud = f"{tenant}-loud"
    with captured_warnings() as warnings:
        async with (
            open_link(to_postgres(audit_dsn.app)) as link,
            open_database(
                _through(audit_dsn, link.target), name="far", max_connections=2, wait_seconds=1.0
            ) as far,
            open_audit_log(far, max_events=50, period_seconds=SOON) as audit,
        ):
            link.hold()
            link.cut()
            audit.record(call_of(tenant, "ses_before"))
            await eventually(lambda: [one for one in warnings if one["event"] == "audit_not_stored"])
            for number in range(500):
                audit.record(call_of(loud, f"ses_{number}"))
            for number in range(20):
                audit.record(call_of(tenant, f"ses_{number}"))
            link.heal()
            # The event of the lost calls is stored after all others.
            await eventually(lambda: _has_losses(database, loud))
    counted = {
        one: Counter((event.reason, event.call_count) for event in await stored(database, one))
        for one in (tenant, loud)
    }
    assert counted[tenant] == {("", 1): 21}
    assert counted[loud] == {("", 1): 30, (EVENTS_LOST, 470): 1}
    assert await breaks_of(database, tenant) == await breaks_of(database, loud) == []


async def test_answer_of_a_commit_that_is_lost_stores_no_event_twice(database: Database, tenant: str) -> None:
    events = [PendingEvent(call_of(tenant, f"ses_{number}")).as_stored() for number in range(3)]
    await store.add_events(database, events[:2], is_repeat=False)
    await store.add_events(database, events, is_repeat=True)
    assert [event.event_id for event in await stored(database, tenant)] == [
        event.event_id for event in events
    ]
    assert await breaks_of(database, tenant) == []


async def test_lost_events_are_counted_by_an_event_and_a_metric(database: Database, tenant: str) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    async with open_audit_log(
        database, provider.get_meter("test"), max_events=10, period_seconds=SOON
    ) as audit:
        for number in range(25):
            audit.record(call_of(tenant, f"ses_{number}"))
    counted = [(event.reason, event.call_count) for event in await stored(database, tenant)]
    assert sorted(counted) == [*[("", 1)] * 10, (EVENTS_LOST, 15)]
    assert _calls_of(reader) == {"stored": 25, "lost": 15}
    assert await breaks_of(database, tenant) == []
    provider.shutdown()


async def test_old_events_are_removed_and_the_rest_is_verified_from_there(
    audit_dsn: ServiceDsn, database: Database, tenant: str
) -> None:
    now = datetime.now(UTC)
    async with open_audit_log(database, period_seconds=SOON) as audit:
        for age in (40, 35, 10, 33, 5):
            audit.record(call_of(tenant, f"ses_{age}", time=now - timedelta(days=age)))
    before = now - timedelta(days=30)
    removed, broken = await asyncio.to_thread(retention.remove_old_events, audit_dsn.owner, before)
    assert removed >= 2, "other tests have old events too"
    assert not any(tenant in str(one) for one in broken)
    assert sorted(event.sequence for event in await stored(database, tenant)) == [3, 4, 5]
    assert await breaks_of(database, tenant) == []
    await record(database, tenant)
    assert await breaks_of(database, tenant) == []
    read = await store.read_chain(database, tenant, "", after=None, limit=10)
    assert read is not None
    assert read[1].sequence == 2
    assert read[1] != Link()


async def test_broken_events_are_not_removed(
    audit_dsn: ServiceDsn, database: Database, postgres: Postgres, tenant: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    async with open_audit_log(database, period_seconds=SOON) as audit:
        for number in range(3):
            audit.record(call_of(tenant, f"ses_{number}", time=datetime(2020, 1, 1, tzinfo=UTC)))
    attack = b"update audit_events set subject = 'x' where tenant_id = %s and sequence = 1"
    async with as_superuser(postgres.superuser_dsn) as superuser:
        await superuser.execute(attack, (tenant,))
    (tmp_path / "scratch-owner-url").write_text(audit_dsn.owner + "\n")
    with pytest.raises(SystemExit) as ended:
        await asyncio.to_thread(retention.main, ["365", str(tmp_path)])
    assert ended.value.code == 1
    assert f"scratch: the chain of {tenant} is broken at 1" in capsys.readouterr().out
    assert len(await stored(database, tenant)) == 3


async def _has_losses(database: Database, tenant: str) -> bool:
    return any(event.reason == EVENTS_LOST for event in await stored(database, tenant))


def _through(dsn: ServiceDsn, target: str) -> str:
    host, _, port = target.rpartition(":")
    return make_conninfo(dsn.app, host=host, hostaddr="", port=port)


def _calls_of(reader: InMemoryMetricReader) -> dict[str, int]:
    data = reader.get_metrics_data()
    return {
        str((point.attributes or {})["spawnmesh.audit.result"]): int(point.value)
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == "spawnmesh.audit.calls"
        for point in metric.data.data_points
        if isinstance(point, NumberDataPoint)
    }


async def verified_page(database: Database, tenant: str) -> audit_pb.VerifyAuditEventsResponse:
    """Return the first page of a verification, as the client of a tenant gets it."""
    servicer = AuditServicer("test", database, lambda: (tenant, False))
    context: Any = None
    with page_key(b"key of page tokens"):
        return await servicer.VerifyAuditEvents(audit_pb.VerifyAuditEventsRequest(), context)


async def add_many(database: Database, tenant: str, count: int) -> None:
    events = [PendingEvent(call_of(tenant, f"ses_{number}")).as_stored() for number in range(count)]
    await store.add_events(database, events, is_repeat=False)


@pytest.mark.parametrize("count", [MAX_BATCH - 1, MAX_BATCH, 2 * MAX_BATCH, 2 * MAX_BATCH + 1])
async def test_verification_goes_on_from_batch_to_batch(
    database: Database, postgres: Postgres, tenant: str, count: int
) -> None:
    await add_many(database, tenant, count)
    page = await verified_page(database, tenant)
    assert (page.event_count, list(page.breaks), page.next_page_token) == (count, [], "")
    assert [(head.first_sequence, head.last_sequence) for head in page.heads] == [(1, count)]
    async with as_superuser(postgres.superuser_dsn) as superuser:
        places = [1, MAX_BATCH, MAX_BATCH + 1, count]
        statement = b"update audit_events set subject = 'nobody' where tenant_id = %s and sequence = any (%s)"
        await superuser.execute(statement, (tenant, places))
    found = [one.sequence for one in (await verified_page(database, tenant)).breaks]
    assert found == sorted({place for place in places if place <= count})


async def test_verification_leaves_others_their_turns(database: Database, tenant: str) -> None:
    await add_many(database, tenant, 5_000)
    async with longest_step() as steps:
        page = await verified_page(database, tenant)
    assert page.event_count == 5_000
    assert steps.longest_seconds < 0.03
