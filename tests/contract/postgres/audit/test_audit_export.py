"""Stored events of the audit log, as a collector receives them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
import structlog
from opentelemetry._logs import NoOpLogger
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from spawnmesh_core.audit_event import AuditEvent
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_postgres.audit import store
from spawnmesh_postgres.audit.log import open_audit_log
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_runtime.process import start_process
from spawnmesh_runtime.settings import ProcessSettings

from tests.support.otlp import log_records, open_collector
from tests.support.postgres.audit import call_of, create_audit_tables, stored
from tests.support.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
SOON = 0.01


@pytest.fixture
async def database(dsn: ServiceDsn) -> AsyncIterator[Database]:
    await asyncio.to_thread(create_audit_tables, dsn)
    async with open_database(dsn.app, name="test audit", max_connections=4) as opened:
        yield opened


@pytest.fixture
async def collector() -> AsyncIterator[tuple[str, list[Any]]]:
    async with open_collector("logs") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


async def record(database: Database, endpoint: str | None, *events: AuditEvent) -> None:
    """Record the events in a process of a service."""
    settings = ProcessSettings(otlp_endpoint=endpoint)
    async with (
        start_process("session", settings) as process,
        open_audit_log(database, process.metrics.meter, process.logger, period_seconds=SOON) as audit,
    ):
        for event in events:
            audit.record(event)


def attributes(record: LogRecord) -> dict[str, Any]:
    return {
        item.key: item.value.string_value
        or item.value.int_value
        or [value.string_value for value in item.value.array_value.values]
        for item in record.attributes
    }


async def test_collector_gets_each_stored_event_with_its_place_in_the_chain(
    database: Database, collector: tuple[str, list[LogRecord]]
) -> None:
    endpoint, received = collector
    tenant = f"t-{uuid4().hex[:12]}"
    await record(database, endpoint, call_of(tenant, "ses_1"), call_of(tenant, "ses_2"))

    events = await stored(database, tenant)
    read = await store.read_chain(database, tenant, "", after=None, limit=10)
    assert read is not None
    assert [attributes(one) for one in log_records(received)] == [
        {
            "rpc.system.name": "grpc",
            "rpc.method": "spawnmesh.session.v1.SessionService/KillSession",
            "rpc.response.status_code": "OK",
            "user.id": "mallory",
            "spawnmesh.tenant.id": tenant,
            "spawnmesh.caller.kind": "client",
            "spawnmesh.audit.event_id": event.event_id,
            "spawnmesh.audit.sequence": event.sequence,
            "spawnmesh.audit.hash": digest.hex(),
            "spawnmesh.audit.call_count": 1,
            "spawnmesh.audit.last_time": event.event_time.isoformat(),
            "spawnmesh.audit.resources": [f"session_id=ses_{event.sequence}"],
        }
        for event, digest in read[2]
    ]
    assert [one.time_unix_nano // 1000 for one in log_records(received)] == [
        int(event.event_time.timestamp() * 1_000_000) for event in events
    ]
    assert {(one.event_name, one.severity_text) for one in log_records(received)} == {
        ("spawnmesh.audit", "INFO")
    }


async def test_denied_call_is_a_warning_in_its_trace_and_one_record_for_many(
    database: Database, collector: tuple[str, list[LogRecord]]
) -> None:
    endpoint, received = collector
    denied = call_of(f"t-{uuid4().hex[:12]}")
    denied = AuditEvent(
        "", denied.method, "UNAUTHENTICATED", denied.event_time,
        reason="TOKEN_MISSING", trace_id=TRACE, peer="10.0.0.7", merges=True,
    )  # fmt: skip
    await record(database, endpoint, *[denied] * 5)

    [sent] = log_records(received)
    assert (sent.trace_id.hex(), sent.span_id, sent.severity_text) == (TRACE, b"", "WARN")
    found = attributes(sent)
    assert "spawnmesh.tenant.id" not in found
    assert "user.id" not in found
    assert (found["error.type"], found["client.address"]) == ("TOKEN_MISSING", "10.0.0.7")
    assert found["spawnmesh.audit.call_count"] == 5


class FailingLogger(NoOpLogger):
    """A logger that sends nothing and fails."""

    def emit(self, *args: Any, **fields: Any) -> None:
        raise RuntimeError


async def test_event_that_cannot_be_sent_is_stored_once(database: Database) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    async with open_audit_log(database, logger=FailingLogger("test"), period_seconds=SOON) as audit:
        for number in range(3):
            audit.record(call_of(tenant, f"ses_{number}"))
            await eventually(lambda number=number: has_stored(database, tenant, number + 1))
    assert [event.sequence for event in await stored(database, tenant)] == [1, 2, 3]


async def has_stored(database: Database, tenant: str, count: int) -> bool:
    return len(await stored(database, tenant)) >= count


async def test_event_whose_commit_was_not_answered_is_sent_as_it_is_stored(database: Database) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    await record(database, None, call_of(tenant, "ses_1"), call_of(tenant, "ses_2"))
    events = await stored(database, tenant)
    again = await store.add_events(database, events, is_repeat=True)
    read = await store.read_chain(database, tenant, "", after=None, limit=10)
    assert read is not None
    assert sorted(again, key=lambda one: one[0].sequence) == read[2]
