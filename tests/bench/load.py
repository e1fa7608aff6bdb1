"""Runs of many clients at once: spawns that are answered, runs that end, and the time in the queue.

Each client spawns a session, waits for its answer, and begins again. The clients, the mesh with one
runner, PostgreSQL and S3 share the machine, so the rates are those of all of them together. A run
that ends without an answer fails the bench.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter

from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_client.wire import WireMesh, connect_wire

from tests.bench.harness import Bench, Metric, Samples

TENANT = "bench-load"
TASK = "Say in one word whether the sky is blue."
CLIENTS = (1, 16, 64, 128)
SECONDS = 10.0
WARM_UP_SECONDS = 2.0
_RUN_SECONDS = 60.0
_SETTINGS = TenantSettings(max_running_run_count=max(CLIENTS))


@dataclass(slots=True)
class Times:
    """Seconds of each run that one client has seen end."""

    spawns: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)
    complete: list[float] = field(default_factory=list)


async def run(bench: Bench) -> None:
    """Measure each number of clients after a warm-up."""
    stack = await bench.stack()
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(TENANT, settings=_SETTINGS)
    async with connect_wire(session=stack.targets["session"], token=stack.client_token(TENANT)) as mesh:
        for count in CLIENTS:
            await _clients(mesh, count, WARM_UP_SECONDS)
            began = perf_counter()
            times = await _clients(mesh, count, SECONDS)
            _record(bench, f"load.{count}", times, perf_counter() - began)


async def _clients(mesh: WireMesh, count: int, seconds: float) -> list[Times]:
    """Let the clients begin runs for so long, and wait until all of them have ended."""
    until = perf_counter() + seconds
    return await asyncio.gather(*(_client(mesh, until) for _ in range(count)))


async def _client(mesh: WireMesh, until: float) -> Times:
    times = Times()
    while (began := perf_counter()) < until:
        session_id = (await mesh.spawn(TASK)).session_id
        times.spawns.append(perf_counter() - began)
        ended = (await mesh.wait(session_id, _RUN_SECONDS)).session.latest_run
        times.complete.append(perf_counter() - began)
        if not ended.result_text:
            raise RuntimeError(f"the run ended without an answer: {reason_of(ended.error_reason)}")
        waited = ended.start_time.ToNanoseconds() - ended.queue_time.ToNanoseconds()
        times.queued.append(waited / 1e9)
    return times


def _record(bench: Bench, name: str, times: list[Times], seconds: float) -> None:
    complete = Samples(list(chain.from_iterable(one.complete for one in times)))
    count = len(complete.seconds)
    bench.record(Metric(f"{name}.runs", count / seconds, "1/s", None, None, count))
    waits = {
        "spawn": Samples(list(chain.from_iterable(one.spawns for one in times))),
        "queue": Samples(list(chain.from_iterable(one.queued for one in times))),
        "end": complete,
    }
    for wait, samples in waits.items():
        for percent in (50, 99):
            value = samples.percentile(percent) * 1e3
            bench.record(Metric(f"{name}.{wait}.p{percent}", value, "ms", None, None, count))
