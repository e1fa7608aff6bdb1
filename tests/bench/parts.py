"""The processor time of what every operation is made of: an RPC, a transaction and a span.

RPCs and transactions are made with pauses, as in a run: caches are cold then, and each costs
several times what it costs in a loop. The time is that of all that take part: the caller, the
service and PostgreSQL. Spans are made in a loop, as the SDK of OpenTelemetry makes, journals and
encodes them.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import process_time

import psycopg
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind
from spawnmesh_postgres.database import open_database
from spawnmesh_runtime.span_journal import SpanJournal

from tests.bench.cost import Meters
from tests.bench.floors import prepare_table
from tests.bench.harness import Bench, Metric
from tests.bench.operations import TENANT, open_operations

COUNT = 400
WARM_UP = 50
PAUSE_SECONDS = 0.003
SPANS = 5_000
BATCH = 512
_INSERT = "insert into public.bench_floor (data) select %(data)b where %(tenant_id)s <> '' returning id"
_ATTRIBUTES = {"rpc.system.name": "grpc", "rpc.method": "spawnmesh.session.v1.SessionService/GetSession"}
_RESULT = {"rpc.response.status_code": "OK", "spawnmesh.caller.kind": "CLIENT", "spawnmesh.tenant.id": TENANT}

Call = Callable[[], Awaitable[object]]


async def run(bench: Bench) -> None:
    """Measure each part."""
    stack = await bench.stack()
    await prepare_table(stack.superuser_dsn)
    async with (
        await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as link,
        open_database(stack.superuser_dsn, name="bench parts", max_connections=1) as database,
        open_operations(stack) as operations,
    ):
        meters = Meters(stack, link)
        works: dict[str, Call] = {
            "nothing": _nothing,
            "transaction": lambda: database.call(TENANT, _INSERT, {"data": b"one"}),
            "read": operations.by_name["read"].call,
        }
        used = {name: await _seconds(meters, work) for name, work in works.items()}
    transaction = used["transaction"] - used["nothing"]
    read = used["read"] - used["nothing"]
    bench.record(Metric("parts.transaction.cpu", transaction * 1e3, "ms", None, None, COUNT))
    # It reads one row.
    bench.record(Metric("parts.rpc.cpu", (read - transaction) * 1e3, "ms", None, None, COUNT))
    bench.record(Metric("parts.span.cpu", _span_seconds() * 1e3, "ms", None, None, SPANS))


async def _nothing() -> None:
    return


async def _seconds(meters: Meters, work: Call) -> float:
    """Return the processor time of one of many calls with pauses, in all processes."""

    async def calls(count: int) -> None:
        for _ in range(count):
            await work()
            await asyncio.sleep(PAUSE_SECONDS)

    await calls(WARM_UP)
    began = process_time()
    used = await meters.of(lambda: calls(COUNT))
    return (process_time() - began + sum(used.cpu_seconds.values())) / COUNT


class _Kept(SpanProcessor):
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


def _span_seconds() -> float:
    """Return the processor time of a span from its start until it can be sent."""
    resource, kept = Resource({"service.name": "bench"}), _Kept()
    with tempfile.TemporaryDirectory(prefix="spawnmesh-bench-") as folder:
        journal = SpanJournal(Path(folder), resource)
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(journal)
        provider.add_span_processor(kept)
        tracer = provider.get_tracer("bench")
        began = process_time()
        for _ in range(SPANS):
            span = tracer.start_span("bench", context=Context(), kind=SpanKind.SERVER, attributes=_ATTRIBUTES)
            span.set_attributes(_RESULT)
            span.end()
            if len(kept.spans) == BATCH:
                _send(kept.spans, journal)
        _send(kept.spans, journal)
        seconds = process_time() - began
        provider.shutdown()
        journal.close()
    return seconds / SPANS


def _send(spans: list[ReadableSpan], journal: SpanJournal) -> None:
    encode_spans(spans).SerializeToString()
    journal.release(spans)
    spans.clear()
