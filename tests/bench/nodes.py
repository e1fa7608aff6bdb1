"""The rates of a mesh on a Citus cluster of one, two and three nodes, against one PostgreSQL
server.

The sixteen clients have a tenant each, so that their rows are on all nodes. Each cluster has a mesh
of its own. All servers and clients share the cores of one machine, so the rates show what a node
costs; what it adds shows where each has a machine of its own. Without the extension nothing is
measured.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial

from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from spawnmesh_client.mesh import Mesh, connect
from spawnmesh_devstack.postgres import NewPostgres, Postgres
from spawnmesh_devstack.stack import Stack, open_stack

from tests.bench.harness import AS_DEPLOYED, Bench, Metric
from tests.bench.transcript import answer, rate_of, spoken, transcripts
from tests.support.citus.cluster import why_missing
from tests.support.citus.servers import NODES, citus_postgres

TENANTS = [f"bench-nodes-{number}" for number in range(16)]
SECONDS = 5.0
TURNS = 3
KIB = 1024
TASK = "Say in one word whether the sky is blue."

Works = Sequence[Callable[[], Awaitable[object]]]


async def run(bench: Bench) -> None:
    """Measure one server, and then each cluster."""
    if reason := why_missing():
        bench.report(f"nodes are not measured: {reason}")
        return
    floors = await _rates(bench, "one-server", Postgres)
    for name, rate in floors.items():
        bench.record(Metric(f"nodes.one_server.{name}", rate, "1/s", None, None, TURNS))
    for count in NODES:
        rates = await _rates(bench, f"nodes-{count}", citus_postgres(count))
        for name, rate in rates.items():
            floor = floors[name]
            bench.record(Metric(f"nodes.{count}.{name}", rate, "1/s", floor, rate / floor, TURNS))


async def _rates(bench: Bench, name: str, new_postgres: NewPostgres) -> dict[str, float]:
    """Return how many spawns, appends and answered runs a mesh does in a second."""
    bench.report(f"measuring {name}")
    folder = bench.data_dir.with_name(name)
    async with (
        open_stack(folder, bench.report, environment=AS_DEPLOYED, new_postgres=new_postgres) as stack,
        AsyncExitStack() as exits,
    ):
        async with connect(session=stack.targets["session"], token=stack.admin_token()) as operator:
            await asyncio.gather(*(operator.create_tenant(tenant) for tenant in TENANTS))
        clients = [await exits.enter_async_context(_client(stack, tenant)) for tenant in TENANTS]
        appends = [await _append(stack, tenant, exits) for tenant in TENANTS]
        runs: Works = [partial(client.spawn, TASK, wait_seconds=60.0) for client in clients]
        rates = {"answered_runs": await _median(runs), "appends.1KiB": await _median(appends)}
        stack.processes["runner"].pause()  # Otherwise it would work during the next spawn.
        try:
            return {**rates, "spawns": await _median([partial(client.spawn, TASK) for client in clients])}
        finally:
            stack.processes["runner"].resume()


def _client(stack: Stack, tenant: str) -> AbstractAsyncContextManager[Mesh]:
    return connect(session=stack.targets["session"], token=stack.client_token(tenant))


async def _append(stack: Stack, tenant: str, exits: AsyncExitStack) -> Callable[[], Awaitable[None]]:
    begin = await exits.enter_async_context(transcripts(stack, ALWAYS_OFF, tenant))
    return partial((await begin()).append, answer(spoken(KIB)))


async def _median(works: Works) -> float:
    await rate_of(works, 1.0)  # A warm-up.
    return sorted([await rate_of(works, SECONDS) for _ in range(TURNS)])[TURNS // 2]
