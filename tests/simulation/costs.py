"""The measured costs of a run: processor time of each process, and commits.

A mesh of real processes with the scripted model does three pieces of work: runs that answer at
once, runs that call a tool before they answer, and runs that begin with three files. A piece of
work is measured as the processor time that each process used meanwhile. So waiting does not count,
and other work on the machine counts little.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import psycopg
from opentelemetry.trace import NoOpTracer
from spawnmesh.session.v1 import run_service_pb2, session_pb2
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.tenant_pb2 import AgentProfile
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.scripted_agents import CALLER
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_runtime.tokens import TokenMinter

TENANT = "simulation"
POSTGRES = "postgres"
_CONCURRENT = 4
_RUNS = 120
_WARM_UP = 20
_CLAIMS = 60
_FILE = b"amount\n" + b"1\n" * 2_044
_IGNORED = ("scripted-model", "trace-sink", "s3")


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of processor time by process, of one piece of work.

    `turn` is what a turn with one tool call adds to a run, `files` what three files of 4 KiB add.
    `claims` has the seconds of a claim that finds nothing, by the number of tenants.
    """

    run: Mapping[str, float]
    turn: Mapping[str, float]
    files: Mapping[str, float]
    run_commits: float
    turn_commits: float
    claims: Mapping[int, float]

    def write(self, file: Path) -> None:
        """Write them as JSON."""
        file.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read_costs(file: Path) -> Costs:
    """Read what `Costs.write` wrote."""
    found = json.loads(file.read_text())
    claims = {int(tenants): seconds for tenants, seconds in found.pop("claims").items()}
    return Costs(claims=claims, **found)


async def measure_costs(stack: Stack, tenant_counts: tuple[int, ...]) -> Costs:
    """Measure all of them on a fresh mesh."""
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(TENANT)
    async with connect_wire(session=stack.targets["session"], token=stack.client_token(TENANT)) as mesh:
        await mesh.put_agent(
            AgentProfile(
                agent_id=CALLER,
                system_prompt=f"You are the {CALLER}. Make the call that the task names.",
                models=["scripted/agent"],
                tools=["list_files"],
            )
        )
        files = [Attachment(f"{number}.csv", _FILE) for number in range(3)]
        run, run_commits = await _measure(stack, lambda: _answer(mesh, "Say yes."))
        called, called_commits = await _measure(
            stack, lambda: _answer(mesh, 'list_files {"path": "."}', agent_id=CALLER)
        )
        with_files, _ = await _measure(stack, lambda: _answer(mesh, "Say yes.", attachments=files))
    claims = {count: await _claim_seconds(stack, count) for count in tenant_counts}
    return Costs(
        run=run,
        turn=_difference(called, run),
        files=_difference(with_files, run),
        run_commits=run_commits,
        turn_commits=max(0.0, called_commits - run_commits),
        claims=claims,
    )


def _difference(more: Mapping[str, float], less: Mapping[str, float]) -> dict[str, float]:
    return {name: max(0.0, seconds - less.get(name, 0.0)) for name, seconds in more.items()}


async def _answer(mesh: WireMesh, task: str, **options: Any) -> None:
    session = await mesh.spawn(task, wait_seconds=60.0, **options)
    if not session.latest_run.result_text:
        raise RuntimeError(f"the run ended without an answer: {reason_of(session.latest_run.error_reason)}")


async def _measure(stack: Stack, work: Callable[[], Awaitable[None]]) -> tuple[dict[str, float], float]:
    """Return the seconds of each process, and the commits, of one turn of the work."""
    await _repeat(work, _WARM_UP)
    seconds, commits = _seconds(stack), await _commits(stack)
    await _repeat(work, _RUNS)
    later, later_commits = _seconds(stack), await _commits(stack)
    used = {name: (later[name] - begun) / _RUNS for name, begun in seconds.items()}
    return used, (later_commits - commits) / _RUNS


async def _repeat(work: Callable[[], Awaitable[None]], count: int) -> None:
    async def several() -> None:
        for _ in range(count // _CONCURRENT):
            await work()

    await asyncio.gather(*(several() for _ in range(_CONCURRENT)))


def _seconds(stack: Stack) -> dict[str, float]:
    """Return the processor time of each process and its descendants so far."""
    found: dict[str, float] = {}
    for name, pid in stack.pids.items():
        if name.startswith(_IGNORED):
            continue
        root = psutil.Process(pid)
        times = [process.cpu_times() for process in (root, *root.children(recursive=True))]
        # The time of a descendant that has ended is counted with its parent.
        ended = root.cpu_times()
        found[POSTGRES if name.startswith(POSTGRES) else name] = (
            sum(one.user + one.system for one in times) + ended.children_user + ended.children_system
        )
    return found


async def _commits(stack: Stack) -> int:
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as link:
        await link.execute("select pg_stat_force_next_flush()")
        row = await (await link.execute("select sum(xact_commit)::bigint from pg_stat_database")).fetchone()
        return int(row[0]) if row else 0


async def _claim_seconds(stack: Stack, tenant_count: int) -> float:
    """Return the median of claims that find nothing, with so many tenants."""
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn, autocommit=True) as link:
        await link.execute(
            "insert into session.tenants (tenant_id, display_name, settings, max_running_run_count,"
            " max_queued_run_count, ready) select 'simulated-' || n, '', '{}', 100, 100, true"
            " from generate_series(1, %s) n on conflict do nothing",
            (tenant_count,),
        )
        await link.execute("analyze session.tenants")
    process = Process("simulation", ProcessSettings(), minter=None, verifier=None, tracer=NoOpTracer())
    request = run_service_pb2.ClaimRunsRequest(
        runner_id="simulation", max_run_count=1, runtimes=[session_pb2.RUNTIME_EXTERNAL]
    )
    token, seconds = TokenMinter("runner", stack.keys / "runner.pem").runner_token(), []
    async with open_peer(process, "session", stack.targets["session"]) as session:
        claim: Any = RunServiceStub(session.channel).ClaimRuns
        for _ in range(_CLAIMS):
            began = perf_counter()
            with use_token(token):
                await session.unary(claim, request)
            seconds.append(perf_counter() - began)
    return sorted(seconds)[len(seconds) // 2]
