"""A mesh on a Citus cluster of one, two and three nodes, against one PostgreSQL server: the rates,
and what one tenant waits for a call.

The sixteen clients have a tenant each, so that their rows are on all nodes. Each cluster has a mesh
of its own. All servers and clients share the cores of one machine, so the rates show what a node
costs; what it adds shows where each has a machine of its own. Without the extension nothing is
measured.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial

from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.postgres import NewPostgres, Postgres
from spawnmesh_devstack.stack import Stack, open_stack

from tests.bench.harness import AS_DEPLOYED, Bench, Metric, Samples
from tests.bench.runs import open_claims
from tests.bench.transcript import answer, rate_of, spoken, transcripts
from tests.support.citus.cluster import why_missing
from tests.support.citus.servers import NODES, citus_postgres

TENANTS = [f"bench-nodes-{number}" for number in range(16)]
SECONDS = 5.0
TURNS = 3
CALLS = 150
KIB = 1024
TASK = "Say in one word whether the sky is blue."

Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Measured:
    """The rate of all clients, and the times of single calls, by the kind of work."""

    rates: dict[str, float]
    waits: dict[str, Samples]


async def run(bench: Bench) -> None:
    """Measure one server, and then each cluster."""
    if reason := why_missing():
        bench.report(f"nodes are not measured: {reason}")
        return
    floor = await _measured(bench, "one-server", Postgres)
    for name, rate in floor.rates.items():
        bench.record(Metric(f"nodes.one_server.{name}.rate", rate, "1/s", None, None, TURNS))
    for count in NODES:
        found = await _measured(bench, f"nodes-{count}", citus_postgres(count))
        for name, rate in found.rates.items():
            least = floor.rates[name]
            bench.record(Metric(f"nodes.{count}.{name}.rate", rate, "1/s", least, rate / least, TURNS))
        for name, samples in found.waits.items():
            bench.latency(f"nodes.{count}.{name}.p50", samples, floor.waits[name])


async def _measured(bench: Bench, name: str, new_postgres: NewPostgres) -> Measured:
    bench.report(f"measuring {name}")
    folder = bench.data_dir.with_name(name)
    async with (
        open_stack(
            folder,
            bench.report,
            environment=AS_DEPLOYED,
            model_pause_seconds=0.0,
            new_postgres=new_postgres,
        ) as stack,
        open_claims(stack) as claims,
        AsyncExitStack() as exits,
    ):
        async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
            await asyncio.gather(*(operator.create_tenant(tenant) for tenant in TENANTS))
        clients = [await exits.enter_async_context(_client(stack, tenant)) for tenant in TENANTS]
        appends = [await _append(stack, tenant, exits) for tenant in TENANTS]
        runs: list[Work] = [partial(client.spawn, TASK, wait_seconds=60.0) for client in clients]
        spawns: list[Work] = [partial(client.spawn, TASK) for client in clients]
        rates = {"answered_run": await _median(runs), "append": await _median(appends)}
        works = {"append": appends[0], "spawn": _in_turn(spawns), "claim": claims.claim}
        stack.processes["runner"].pause()  # Otherwise it would work during the next spawn.
        try:
            # Each round queues a run and claims one. Some are there before: the runner's last claim
            # waits yet, and the first of the works is the claim at times.
            await asyncio.gather(*(spawn() for spawn in spawns))
            waits = await bench.compare(
                {kind: partial(_timed, work) for kind, work in works.items()}, rounds=CALLS
            )
            return Measured({**rates, "spawn": await _median(spawns)}, waits)
        finally:
            stack.processes["runner"].resume()


def _in_turn(works: Sequence[Work]) -> Work:
    """Return a work that is each of the works, one after the other."""
    turns = itertools.cycle(works)
    return lambda: next(turns)()


async def _timed(work: Work) -> None:
    await work()


def _client(stack: Stack, tenant: str) -> AbstractAsyncContextManager[WireMesh]:
    return connect_wire(session=stack.targets["session"], token=stack.client_token(tenant))


async def _append(stack: Stack, tenant: str, exits: AsyncExitStack) -> Work:
    begin = await exits.enter_async_context(transcripts(stack, ALWAYS_OFF, tenant))
    return partial((await begin()).append, answer(spoken(KIB)))


async def _median(works: Sequence[Work]) -> float:
    await rate_of(works, 1.0)  # A warm-up.
    return sorted([await rate_of(works, SECONDS) for _ in range(TURNS)])[TURNS // 2]
