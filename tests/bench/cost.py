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
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.span_file import load_all_spans
from spawnmesh_devstack.stack import Stack

from tests.bench.harness import Bench, Metric
from tests.bench.transcript import answer, spoken, transcripts

TENANT = "bench-cost"
TASK = "Say in one word whether the sky is blue."
COUNT = 100
WARM_UP = 30
HEALTH_CALLS = 2000
IDLE_SECONDS = 10.0
SETTLE_SECONDS = 2.0
"""The jobs behind an operation are done, and idle connections rest."""
SPANS_SECONDS = 8.0
"""Longer than the interval at which processes send their spans."""
STORAGE = ("postgres", "s3")

Operation = Callable[[], Awaitable[object]]


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
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(TENANT)
    async with (
        await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as database,
        connect_wire(session=stack.targets["session"], token=stack.client_token(TENANT)) as mesh,
        transcripts(stack, ALWAYS_OFF, TENANT) as begin,
    ):
        meters = Meters(stack, database)
        await _repeat(WARM_UP, lambda: mesh.spawn(TASK, wait_seconds=30.0))
        await asyncio.sleep(SETTLE_SECONDS)
        used = await meters.of(lambda: asyncio.sleep(IDLE_SECONDS))
        idle = Used(
            {name: cpu / IDLE_SECONDS for name, cpu in used.cpu_seconds.items()},
            used.transactions / IDLE_SECONDS,
        )
        share = sum(idle.cpu_seconds.values()) * 100
        bench.record(Metric("cost.idle.cpu", share, "% of a core", None, None, 1))
        floor = await _health_seconds(stack, meters, idle)
        transcript = await begin()
        session = await mesh.spawn(TASK, wait_seconds=30.0)
        answered: list[str] = []

        async def answered_run() -> None:
            answered.append((await mesh.spawn(TASK, wait_seconds=30.0)).trace_id)

        operations: dict[str, Operation] = {
            "read": lambda: mesh.session(session.session_id),
            "append": lambda: transcript.append(answer(spoken(1024))),
            "run": answered_run,
        }
        for name, operation in operations.items():
            await _measure(bench, name, operation, meters, idle, floor)
        spawned = await _measure_spawns(bench, stack, mesh, meters, idle, floor)
    await asyncio.sleep(SPANS_SECONDS)
    _count_spans(bench, stack, {"run": answered[-COUNT:], "spawn": spawned[-COUNT:]})


async def _repeat(count: int, operation: Operation) -> None:
    for _ in range(count):
        await operation()


async def _health_seconds(stack: Stack, meters: Meters, idle: Used) -> float:
    """Return the processor seconds of session for an empty RPC."""
    async with grpc.aio.insecure_channel(stack.targets["session"]) as channel:
        check = HealthStub(channel).Check
        await _repeat(WARM_UP, lambda: check(HealthCheckRequest()))
        used = await meters.of(lambda: _repeat(HEALTH_CALLS, lambda: check(HealthCheckRequest())), idle)
    return used.cpu_seconds["session"] / HEALTH_CALLS


async def _measure(
    bench: Bench, name: str, operation: Operation, meters: Meters, idle: Used, floor: float
) -> None:
    """Record what the operation costs all processes, and each that has a share of it."""

    async def operations() -> None:
        await _repeat(COUNT, operation)
        await asyncio.sleep(SETTLE_SECONDS)

    await _repeat(WARM_UP, operation)
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


async def _measure_spawns(
    bench: Bench, stack: Stack, mesh: WireMesh, meters: Meters, idle: Used, floor: float
) -> list[str]:
    """Measure spawns alone, and return the ids of their traces."""
    sessions = []

    async def spawn() -> None:
        sessions.append(await mesh.spawn(TASK))

    stack.processes["runner"].pause()  # Otherwise it would do the work that follows.
    try:
        await _measure(bench, "spawn", spawn, meters, idle, floor)
        for session in sessions:
            await mesh.kill(session.session_id)
    finally:
        stack.processes["runner"].resume()
    return [session.trace_id for session in sessions]


def _count_spans(bench: Bench, stack: Stack, traces: Mapping[str, Sequence[str]]) -> None:
    """Record how many spans a trace has, and how many of them are calls that a service answered."""
    spans: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for span in load_all_spans(stack.traces_file):
        spans[span.trace_id] += 1
        calls[span.trace_id] += span.kind == "server"
    for name, trace_ids in traces.items():
        for what, counted in (("spans", spans), ("rpcs", calls)):
            count = median(counted[trace_id] for trace_id in trace_ids)
            bench.record(Metric(f"cost.{name}.{what}", count, "", None, None, len(trace_ids)))
