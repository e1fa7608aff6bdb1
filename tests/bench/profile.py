"""`python -m tests.bench.profile --operation NAME [--count N]` shows where the work of one operation
is done: processor time of each process, RPCs, spans and write transactions, the statements that
PostgreSQL runs, and the functions that take the time.

The figures are measured first. Then the calls are made again while py-spy samples the processes that
have a share, which slows them down. It needs the right to trace other processes of this account.
"""

import argparse
import asyncio
import re
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
from psycopg.rows import class_row
from rich.console import Console
from rich.table import Table
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.stack import Stack, open_stack
from spawnmesh_runtime.process import run_process

from tests.bench.cost import SETTLE_SECONDS, SPANS_SECONDS, STORAGE, Meters, Used, idle_second, spans_of
from tests.bench.harness import AS_DEPLOYED
from tests.bench.operations import NAMES, Operation, open_operations, repeat

WARM_UP = 50
SAMPLES_PER_SECOND = 200
SHOWN_FUNCTIONS = 25
SHOWN_STATEMENTS = 25
SHOWN_CHARACTERS = 80
_LEAST_SHARE = 0.05
"""Processes with less of the time are not sampled."""
_MODEL = "scripted-model"
_SETTINGS = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track_planning": "on"}
_STATEMENTS = """
select rolname as role, query as text, calls, total_plan_time as planning, total_exec_time as execution
from pg_stat_statements join pg_roles on pg_roles.oid = userid where query not like '%pg_stat_statements%'
order by total_plan_time + total_exec_time desc
"""
_COMMENT = re.compile(r"--[^\n]*\n")


@dataclass(frozen=True, slots=True)
class Functions:
    """Samples of one process: in the function itself, and in it or what it calls."""

    total: int
    own: Counter[str]
    cumulative: Counter[str]


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement of a role with its calls, and the milliseconds of all of them."""

    role: str
    text: str
    calls: int
    planning: float
    execution: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The cost of so many calls of an operation."""

    count: int
    used: Used
    rpcs: float
    spans: float
    statements: Sequence["Statement"]
    functions: Mapping[str, Functions]


async def profile(stack: Stack, name: str, count: int) -> Profile:
    """Measure the calls of an operation, and sample them."""
    async with (
        await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as database,
        open_operations(stack) as operations,
    ):
        operation, meters = operations.by_name[name], Meters(stack, database)

        async def calls() -> None:
            await repeat(count, operation.call)
            await asyncio.sleep(SETTLE_SECONDS)

        async with operations.prepared(operation):
            await repeat(WARM_UP, operation.call)
            idle = await idle_second(meters)
            await database.execute("select pg_stat_statements_reset()")
            used = await meters.of(calls, idle)
            statements = await read_statements(database)
            measured = len(operation.sessions)
            with tempfile.TemporaryDirectory(prefix="spawnmesh-profile-") as folder:
                async with sampled(_busy_services(stack, used), Path(folder)) as files:
                    await repeat(count, operation.call)
                functions = {process: read_samples(file.read_text()) for process, file in files.items()}
    await asyncio.sleep(SPANS_SECONDS)
    rpcs, spans = _traced(stack, operation, slice(measured - count, measured))
    return Profile(count, used, rpcs, spans, statements, functions)


async def read_statements(database: psycopg.AsyncConnection[tuple[int]]) -> list[Statement]:
    """Return the statements of all roles since the last reset, those with the most time first."""
    async with database.cursor(row_factory=class_row(Statement)) as cursor:
        await cursor.execute(_STATEMENTS)
        return await cursor.fetchall()


def _busy_services(stack: Stack, used: Used) -> dict[str, int]:
    """Return the Python processes of the mesh that have a share of the time."""
    least = _LEAST_SHARE * sum(used.cpu_seconds.values())
    return {
        name: pid
        for name, pid in stack.pids.items()
        if used.cpu_seconds[name] >= least and not name.startswith(STORAGE) and name != _MODEL
    }


def _traced(stack: Stack, operation: Operation, measured: slice) -> tuple[float, float]:
    """Return the RPCs and the spans of one call, or zeros if it made no session."""
    trace_ids = [session.trace_id for session in operation.sessions[measured]]
    return spans_of(stack, trace_ids) if trace_ids else (0.0, 0.0)


@asynccontextmanager
async def sampled(pids: Mapping[str, int], folder: Path) -> AsyncIterator[Mapping[str, Path]]:
    """Sample the processes for the block. The files are complete behind it.

    Raises RuntimeError if a process may not be sampled.
    """
    files = {name: folder / f"{name}.txt" for name in pids}
    async with AsyncExitStack() as samplers:
        for name, pid in pids.items():
            await samplers.enter_async_context(_sampler(pid, files[name]))
        yield files


@asynccontextmanager
async def _sampler(pid: int, file: Path) -> AsyncIterator[None]:
    # Only the thread that runs Python: some kernels report threads that wait as running.
    options = (
        "--gil",
        "--function",
        "--format",
        "raw",
        "--rate",
        str(SAMPLES_PER_SECOND),
        "--output",
        str(file),
    )
    sampler = await asyncio.create_subprocess_exec(
        "py-spy", "record", "--pid", str(pid), *options, stdout=DEVNULL, stderr=PIPE
    )
    try:
        yield
    finally:
        await _end(sampler, pid)


async def _end(sampler: Process, pid: int) -> None:
    if sampler.returncode is None:
        sampler.send_signal(signal.SIGINT)
    _, said = await sampler.communicate()
    if sampler.returncode:
        raise RuntimeError(f"py-spy could not sample process {pid}: {said.decode(errors='replace').strip()}")


def read_samples(text: str) -> Functions:
    """Count the samples of py-spy's raw format: frames from the outermost one, and a number."""
    total, own, cumulative = 0, Counter[str](), Counter[str]()
    for line in text.splitlines():
        stack, _, number = line.rpartition(" ")
        frames, count = stack.split(";"), int(number)
        total += count
        own[frames[-1]] += count
        for frame in set(frames):
            cumulative[frame] += count
    return Functions(total, own, cumulative)


def show(name: str, found: Profile, console: Console) -> None:
    """Print the figures of one call, and the functions of each process that has a share."""
    total = sum(found.used.cpu_seconds.values())
    console.print(
        f"{name}: {found.rpcs:g} RPCs, {found.spans:g} spans,"
        f" {found.used.transactions / found.count:.1f} write transactions;"
        f" {total / found.count * 1e3:.1f} ms of processor time:"
    )
    console.print(_table(("process", "ms"), _milliseconds(found)))
    console.print("\nPostgreSQL, a call of the operation:")
    console.print(_table(("statement", "calls", "ms of planning", "of execution"), _statements(found)))
    for process, functions in sorted(found.functions.items(), key=lambda one: -one[1].total):
        console.print(f"\n{process}: {functions.total} samples")
        console.print(_table(("function", "itself"), _shares(functions.own, functions.total)))
        console.print(_table(("function", "with its calls"), _shares(functions.cumulative, functions.total)))


def _milliseconds(found: Profile) -> Iterable[tuple[str, str]]:
    for process, seconds in sorted(found.used.cpu_seconds.items(), key=lambda one: -one[1]):
        yield process, f"{seconds / found.count * 1e3:.2f}"


def _statements(found: Profile) -> Iterable[tuple[str, ...]]:
    for one in found.statements[:SHOWN_STATEMENTS]:
        text = " ".join(_COMMENT.sub("", one.text).split())
        parts = (one.calls, one.planning, one.execution)
        yield f"{one.role}: {text}"[:SHOWN_CHARACTERS], *(f"{part / found.count:.2f}" for part in parts)


def _shares(samples: Counter[str], total: int) -> Iterable[tuple[str, str]]:
    for function, count in samples.most_common(SHOWN_FUNCTIONS):
        yield function, f"{count / total:.1%}"


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(columns[0], no_wrap=True, max_width=90)
    for column in columns[1:]:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


async def _profile_on_a_mesh(name: str, count: int) -> Profile:
    with tempfile.TemporaryDirectory(prefix="spawnmesh-bench-", ignore_cleanup_errors=True) as folder:
        opening = open_stack(
            Path(folder) / "data",
            _tell,
            environment=AS_DEPLOYED,
            model_pause_seconds=0.0,
            new_postgres=partial(Postgres, settings=_SETTINGS),
        )
        async with opening as stack:
            async with await psycopg.AsyncConnection.connect(
                stack.superuser_dsn, autocommit=True
            ) as database:
                await database.execute("create extension if not exists pg_stat_statements")
            return await profile(stack, name, count)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Profile one operation on a mesh of its own."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.profile")
    parser.add_argument("--operation", choices=NAMES, default="run")
    parser.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    found = run_process(_profile_on_a_mesh(given.operation, given.count))
    show(given.operation, found, Console(width=None if sys.stdout.isatty() else 120))


if __name__ == "__main__":
    main()
