"""The spawns of one tenant while another tenant floods the services, against its spawns without.

The flood has a kind of call for each class of RPCs, and requests that are malformed, have very many
fields, or end in the middle of them, a call that the token may not make, and a call without a
token. It comes at a fixed rate from a process of its own,
which has the lowest priority: on a real mesh it would not run on the machine of the services. The
flooding tenant has no settings: it has the limits of `spawnmesh up` and of the chart. What it may do
is done, and its runs run. The settings of the other tenant let it spawn more often than they do.
"""

import asyncio
import json
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter
from typing import Any

from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.tenancy.v1.call_limits_pb2 import CallLimits, ClassLimits
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_core.status import Status
from spawnmesh_devstack.call_limits import call_limit_variables
from spawnmesh_devstack.stack import Stack, open_stack

from tests.bench.flooder import ANSWERS, command
from tests.bench.harness import AS_DEPLOYED, Bench, Metric, Samples

VICTIM, FLOODER = "bench-flood-victim", "bench-flood"
TASK = "Say in one word whether the sky is blue."
SPAWNS = 200
WARM_UP = 20
PAUSE_SECONDS = 0.05
RATIO_BOUND = 2.0
P99_BOUND_MS = 1000.0
RATES = {
    "read": 200,
    "list": 100,
    "write": 100,
    "spawn": 100,
    "scan": 100,
    "search": 100,
    "generate": 100,
    "upload": 50,
    "watch": 200,
    "fields": 50,
    "cut": 50,
    "malformed": 100,
    "denied": 200,
    "unauthenticated": 200,
}
"""Calls of the flood in a second."""
_PASSING = frozenset({Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED})
SENT_SHARE = 0.8
"""A flood must send at least so much of its rate. Calls beyond 64 without an answer are left out."""
# It spawns some ten times a second, one after the other.
VICTIMS_LIMITS = CallLimits(spawn=ClassLimits(calls_per_second=200))


async def run(bench: Bench) -> None:
    """Time the spawns of one tenant without a flood, under each kind, and under all kinds."""
    environment = {**AS_DEPLOYED, **call_limit_variables({})}
    async with open_stack(bench.data_dir / "flood", bench.report, environment=environment) as stack:
        await _measure(bench, stack)


async def _measure(bench: Bench, stack: Stack) -> None:
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(VICTIM, settings=TenantSettings(call_limits=VICTIMS_LIMITS))
        await operator.create_tenant(FLOODER)
    async with (
        connect_wire(session=stack.targets["session"], token=stack.client_token(VICTIM)) as victim,
        connect_wire(session=stack.targets["session"], token=stack.client_token(FLOODER)) as flooder,
    ):
        session_id = (await flooder.spawn(TASK, wait_seconds=30.0)).session_id
        await _spawns(victim, WARM_UP)
        before = await _spawns(victim, SPAWNS)
        floods = {kind: {kind: rate} for kind, rate in RATES.items()} | {"all": RATES}
        for name, rates in floods.items():
            async with _flooding(bench, stack, session_id, name, rates):
                await _spawns(victim, WARM_UP)
                samples = await _spawns(victim, SPAWNS)
            _record(bench, name, samples, before)


async def _spawns(mesh: WireMesh, count: int) -> Samples:
    """Spawn again and again, with pauses; return the seconds of each spawn, until it succeeded."""
    seconds = []
    for _ in range(count):
        began = perf_counter()
        session = await _until_done(partial(mesh.spawn, TASK, request_id=uuid.uuid4().hex))
        seconds.append(perf_counter() - began)
        await _until_done(partial(mesh.kill, session.session_id))
        await asyncio.sleep(PAUSE_SECONDS)
    return Samples(seconds)


async def _until_done(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make the call until nothing that passes refuses it."""
    while True:
        try:
            return await call()
        except MeshError as error:
            if error.status not in _PASSING:
                raise
            await asyncio.sleep(PAUSE_SECONDS)


@asynccontextmanager
async def _flooding(
    bench: Bench, stack: Stack, session_id: str, name: str, rates: dict[str, int]
) -> AsyncIterator[None]:
    """Flood the services during the block, and report the answers at its end."""
    process = await asyncio.create_subprocess_exec(
        *command(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=lambda: os.nice(19),
    )
    given = {
        "targets": dict(stack.targets),
        "token": stack.client_token(FLOODER),
        "session_id": session_id,
        "rates": rates,
    }
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(given).encode() + b"\n")
        await process.stdin.drain()
        yield
    finally:
        answers, _ = await process.communicate(b"")  # Closes its input, which ends it.
        bench.report(f"flood {name}: {answers.decode().strip()}")
    _check_flood(rates, json.loads(answers))


def _check_flood(rates: dict[str, int], flood: Any) -> None:
    """Raise AssertionError if the flood of one kind did not flood, or got other answers than it
    should.
    """
    if len(rates) > 1:
        return
    for kind, rate in rates.items():
        answers = {
            status.partition(" ")[2]: count
            for status, count in flood["answers"].items()
            if status.startswith(f"{kind} ")
        }
        left_out = answers.pop("LEFT_OUT", 0)
        assert answers.keys() <= ANSWERS[kind], f"{kind}: {answers}"
        sent, wanted = sum(answers.values()), SENT_SHARE * rate * flood["seconds"]
        assert sent >= wanted, f"{kind}: {sent} calls, {left_out} left out"


def _record(bench: Bench, name: str, samples: Samples, before: Samples) -> None:
    floor, p99 = before.percentile(99), samples.percentile(99)
    # The flood of all kinds is many floods at once, on the two cores that the services have.
    ratio_bound = RATIO_BOUND if name in RATES else None
    bench.report(f"flood {name}: spawn p99 {p99 * 1e3:.1f} ms, {p99 / floor:.2f} x that without")
    bench.record(
        Metric(
            f"flood.{name}.spawn_p99",
            p99 * 1e3,
            "ms",
            floor * 1e3,
            p99 / floor,
            len(samples.seconds),
            samples.p95 * 1e3,
            ratio_bound,
        )
    )
    bench.record(
        Metric(
            f"flood.{name}.spawn_p99.ms",
            p99 * 1e3,
            "ms",
            None,
            None,
            len(samples.seconds),
            bound=P99_BOUND_MS,
        )
    )
