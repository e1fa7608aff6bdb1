"""The cost of spawning a session, and the time until its answer is seen, against the least that the
hops of a spawn can cost.

A spawn of a tenant without plugins makes one call to session and one to transcript, each of which
commits a row. With files there are two calls to attachment-blob, of which the first one puts the
files, and one more to transcript at the same time. The floor of each call is made by the same
client at a bare server, which commits one row; puts are made concurrently. Floors and spawns take
turns, and the calls of a floor follow each other as the hops of the spawn do.

The commits of session in between and its limits are the cost of the spawn above its floor.

A run whose runner is killed is timed from the kill until another runner claims it, in leases.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any

from opentelemetry.trace import NoOpTracer
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1 import session_service_pb2 as pb
from spawnmesh_calls.wire_reasons import reason_of
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_devstack.processes import ChildProcess
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.peers import open_peer
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_session.settings import SessionSettings

from tests.bench.attachments import RawPuts, raw_puts
from tests.bench.floors import COMMIT, commit_server
from tests.bench.harness import Bench, Metric, Work

TENANT = "bench-session"
KIB = 1024
ROUNDS = 150
WARM_UP = 20
IDLE_ROUNDS = 100
IDLE_PAUSE_SECONDS = 0.1
SPAWN_BOUND = 2.5
SEEN_BOUND_MS = 100.0
LEASE_SECONDS: float = SessionSettings.model_fields["lease_ttl_seconds"].default
TAKEN_OVER_BOUND_LEASES = 2.0
KILLS = 3
TASK = "Say in one word whether the sky is blue."

Floor = Callable[[int], Awaitable[float]]


async def run(bench: Bench) -> None:
    """Compare spawns with their floors while no runner claims them, then time complete runs on an
    idle mesh.
    """
    stack = await bench.stack()
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(TENANT)
    async with (
        connect_wire(session=stack.targets["session"], token=stack.client_token(TENANT)) as mesh,
        floors(stack) as floor,
    ):
        with raw_puts(stack, TENANT) as puts:
            runner = stack.processes["runner"]
            await _spawns(bench, mesh, floor, puts, runner)
        await _seen(bench, mesh)
        await _taken_over(bench, stack, mesh)


@asynccontextmanager
async def floors(stack: Stack) -> AsyncIterator[Floor]:
    """Open a function that makes so many calls to a bare server, one after the other, as clients
    call the mesh, and returns their seconds.
    """
    process = Process("bench", ProcessSettings(), minter=None, verifier=None, tracer=NoOpTracer())
    token, message = (
        stack.client_token(TENANT),
        pb.SpawnSessionRequest(request_id=uuid.uuid4().hex, task=TASK),
    )
    async with commit_server(stack.superuser_dsn) as target, open_peer(process, "floor", target) as peer:
        commit: Any = peer.channel.unary_unary(COMMIT, pb.SpawnSessionRequest.SerializeToString, bytes)

        async def calls(count: int) -> float:
            began = perf_counter()
            with use_token(token):
                for _ in range(count):
                    await peer.unary(commit, message, timeout_seconds=60)
            return perf_counter() - began

        yield calls


async def _spawns(bench: Bench, mesh: WireMesh, floor: Floor, puts: RawPuts, runner: ChildProcess) -> None:
    runner.pause()  # Otherwise the runner would work during the next spawn.
    try:
        works: dict[str, Work] = {
            "floor": lambda: floor(2),
            "spawn": lambda: _spawn(mesh, []),
        }
        samples = await bench.compare(works, rounds=ROUNDS, warm_up=WARM_UP)
        bench.latency("session.spawn", samples["spawn"], samples["floor"], SPAWN_BOUND)

        def files() -> list[bytes]:
            return [bench.fresh_bytes(4 * KIB) for _ in range(3)]

        async def floor_with_files() -> float:
            return await floor(4) + await puts.slowest(files())

        with_files: dict[str, Work] = {"floor": floor_with_files, "spawn": lambda: _spawn(mesh, files())}
        samples = await bench.compare(with_files, rounds=ROUNDS, warm_up=WARM_UP)
        bench.latency("session.spawn.3x4KiB", samples["spawn"], samples["floor"], SPAWN_BOUND)
    finally:
        runner.resume()


async def _spawn(mesh: WireMesh, files: list[bytes]) -> float:
    """Return the seconds of the spawn alone. The session is killed, so that no run waits for a
    runner.
    """
    attachments = [Attachment(f"{number}.bin", data) for number, data in enumerate(files)]
    began = perf_counter()
    session = await mesh.spawn(TASK, attachments=attachments)
    took = perf_counter() - began
    await mesh.kill(session.session_id)
    return took


async def _seen(bench: Bench, mesh: WireMesh) -> None:
    """Measure from the call that spawns to the answer of the call that waits, one session at a
    time.
    """
    seconds = []
    for number in range(-5, IDLE_ROUNDS):
        await asyncio.sleep(IDLE_PAUSE_SECONDS)
        began = perf_counter()
        session = await mesh.spawn(TASK, wait_seconds=30.0)
        took = perf_counter() - began
        if not session.latest_run.result_text:
            raise RuntimeError(
                f"the run ended without an answer: {reason_of(session.latest_run.error_reason)}"
            )
        if number >= 0:
            seconds.append(took)
    seconds.sort()
    bench.record(Metric("session.seen.p50", seconds[len(seconds) // 2] * 1e3, "ms", None, None, len(seconds)))
    bench.record(
        Metric("session.seen.p99", seconds[-2] * 1e3, "ms", None, None, len(seconds), bound=SEEN_BOUND_MS)
    )


async def _taken_over(bench: Bench, stack: Stack, mesh: WireMesh) -> None:
    """Kill the runner of a run, and measure the time until another runner claims the run.

    The model is silent until then, so that the run is not finished when its runner is killed.
    """
    model, seconds = stack.processes["scripted-model"], []
    holder, other = "runner", (await stack.start_runner()).name
    await stack.processes[other].stop(5.0)
    for _ in range(KILLS):
        model.pause()
        try:
            session_id = (await mesh.spawn(TASK)).session_id
            held = await _run_when(mesh, session_id, lambda run: run.state == session_pb2.RUN_STATE_RUNNING)
            await stack.restart(other)
            began = perf_counter()
            await stack.processes[holder].kill()
            await _run_when(mesh, session_id, partial(_is_past, held.epoch))
            seconds.append(perf_counter() - began)
        finally:
            model.resume()
        await mesh.wait(session_id, 60.0)
        holder, other = other, holder
    slowest = max(seconds)
    name, ratio = "session.taken_over.slowest", slowest / LEASE_SECONDS
    bench.record(Metric(name, slowest, "s", LEASE_SECONDS, ratio, KILLS, bound=TAKEN_OVER_BOUND_LEASES))


def _is_past(epoch: int, run: session_pb2.Run) -> bool:
    return run.epoch > epoch


async def _run_when(
    mesh: WireMesh, session_id: str, holds: Callable[[session_pb2.Run], bool]
) -> session_pb2.Run:
    async with asyncio.timeout(10 * LEASE_SECONDS):
        while not holds(run := (await mesh.session(session_id)).latest_run):
            await asyncio.sleep(0.02)
    return run
