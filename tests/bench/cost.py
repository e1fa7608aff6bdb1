"""The cost of one operation: processor time of each process, write transactions, spans and RPCs.

Operations are done one after the other on a mesh that does nothing else. What the mesh uses while
it is idle is measured before, and is subtracted. The floor of the processor time is that of an
empty RPC of health at session, in the same process. Tenants have no plugin, and spans are recorded
for every call.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from time import monotonic

import grpc.aio
import psutil
import psycopg
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_health.v1.health_pb2_grpc import HealthStub
from spawnmesh_devstack.span_file import load_all_spans
from spawnmesh_devstack.stack import Stack

from tests.bench.harness import Bench, Metric
from tests.bench.operations import Operation, open_operations, repeat

COUNT = 100
WARM_UP = 30
HEALTH_CALLS = 2000
IDLE_SECONDS = 10.0
SETTLE_SECONDS = 2.0
"""The jobs behind an operation are done, and idle connections rest."""
SPANS_SECONDS = 8.0
"""Longer than the interval at which processes send their spans."""
STORAGE = ("postgres", "s3")


@dataclass(frozen=True, slots=True)
class Used:
    """Processor seconds of each process, and write transactions of the database."""

    cpu_seconds: Mapping[str, float]
    transactions: float

    def minus(self, other: "Used", share: float = 1.0) -> "Used":
        """Return the difference to so many times the other."""
        cpu = {name: used - share * other.cpu_seconds[name] for name, used in self.cpu_seconds.items()}
        return Used(cpu, self.transactions - share * other.transactions)


@dataclass(frozen=True, slots=True)
class Meters:
    """Reads what the processes of a mesh have used so far."""

    stack: Stack
    database: psycopg.AsyncConnection[tuple[int]]

    async def read(self) -> Used:
        """Return what was used since each process began."""
        # Every transaction that writes has a number, and numbers are given in turn.
        cursor = await self.database.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        row = await cursor.fetchone()
        assert row is not None
        return Used({name: _cpu_seconds(pid) for name, pid in self.stack.pids.items()}, row[0])

    async def of(self, work: Callable[[], Awaitable[None]], idle: Used | None = None) -> Used:
        """Return what the work used, without what an idle mesh uses in a second."""
        before, began = await self.read(), monotonic()
        await work()
        used = (await self.read()).minus(before)
        return used if idle is None else used.minus(idle, monotonic() - began)


def _cpu_seconds(pid: int) -> float:
    """Return the processor seconds of a process and of its descendants, ended ones included."""
    total = 0.0
    process = psutil.Process(pid)
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


async def run(bench: Bench) -> None:
    """Measure an idle mesh and an empty RPC, and then each operation."""
    stack = await bench.stack()
    async with (
        await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as database,
        open_operations(stack) as operations,
    ):
        meters = Meters(stack, database)
        await repeat(WARM_UP, operations.by_name["run"].call)
        idle = await idle_second(meters)
        share = sum(idle.cpu_seconds.values()) * 100
        bench.record(Metric("cost.idle.cpu", share, "% of a core", None, None, 1))
        floor = await _health_seconds(stack, meters, idle)
        for name, operation in operations.by_name.items():
            async with operations.prepared(operation):
                await _measure(bench, name, operation, meters, idle, floor)
    await asyncio.sleep(SPANS_SECONDS)
    made = {name: operation.sessions[-COUNT:] for name, operation in operations.by_name.items()}
    traces = {name: [one.trace_id for one in sessions] for name, sessions in made.items() if sessions}
    _count_spans(bench, stack, traces)


async def idle_second(meters: Meters) -> Used:
    """Return what a mesh without work uses in a second."""
    await asyncio.sleep(SETTLE_SECONDS)
    used = await meters.of(lambda: asyncio.sleep(IDLE_SECONDS))
    cpu = {name: seconds / IDLE_SECONDS for name, seconds in used.cpu_seconds.items()}
    return Used(cpu, used.transactions / IDLE_SECONDS)


async def _health_seconds(stack: Stack, meters: Meters, idle: Used) -> float:
    """Return the processor seconds of session for an empty RPC."""
    async with grpc.aio.insecure_channel(stack.targets["session"]) as channel:
        check = HealthStub(channel).Check
        await repeat(WARM_UP, lambda: check(HealthCheckRequest()))
        used = await meters.of(lambda: repeat(HEALTH_CALLS, lambda: check(HealthCheckRequest())), idle)
    return used.cpu_seconds["session"] / HEALTH_CALLS


async def _measure(
    bench: Bench, name: str, operation: Operation, meters: Meters, idle: Used, floor: float
) -> None:
    """Record what the operation costs all processes, and each that has a share of it."""

    async def operations() -> None:
        await repeat(COUNT, operation.call)
        await asyncio.sleep(SETTLE_SECONDS)

    await repeat(WARM_UP, operation.call)
    await asyncio.sleep(SETTLE_SECONDS)
    used = await meters.of(operations, idle)
    services = {process: cpu for process, cpu in used.cpu_seconds.items() if not process.startswith(STORAGE)}
    _record_cpu(bench, f"cost.{name}.cpu", sum(services.values()), floor)
    for process, cpu in sorted(used.cpu_seconds.items()):
        if cpu >= 0.01 * sum(used.cpu_seconds.values()):
            _record_cpu(bench, f"cost.{name}.cpu.{process}", cpu, floor)
    transactions = used.transactions / COUNT
    bench.record(Metric(f"cost.{name}.write_transactions", transactions, "", None, None, COUNT))


def _record_cpu(bench: Bench, name: str, seconds: float, floor: float) -> None:
    each = seconds / COUNT
    bench.record(Metric(name, each * 1e3, "ms", floor * 1e3, each / floor, COUNT))


def _count_spans(bench: Bench, stack: Stack, traces: Mapping[str, Sequence[str]]) -> None:
    """Record how many spans a trace has, and how many of them are calls that a service answered."""
    for name, trace_ids in traces.items():
        rpcs, spans = spans_of(stack, trace_ids)
        bench.record(Metric(f"cost.{name}.spans", spans, "", None, None, len(trace_ids)))
        bench.record(Metric(f"cost.{name}.rpcs", rpcs, "", None, None, len(trace_ids)))


def spans_of(stack: Stack, trace_ids: Sequence[str]) -> tuple[float, float]:
    """Return the RPCs that services answered in a trace, and its spans: medians of the traces."""
    spans: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for span in load_all_spans(stack.traces_file):
        spans[span.trace_id] += 1
        calls[span.trace_id] += span.kind == "server"
    return median(calls[one] for one in trace_ids), median(spans[one] for one in trace_ids)
