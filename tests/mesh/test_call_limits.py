"""A run that was accepted ends with its answer while the clients of its tenant flood every service."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import psycopg
from spawnmesh.errors.v1 import reason_pb2
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.tenancy.v1.call_limits_pb2 import CallLimits, ClassLimits
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcript_pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.stack import Stack

from tests.support.docs.code_blocks import typed
from tests.support.mesh.shell import shell
from tests.support.session.all_services import READS
from tests.support.waiting import eventually

(COMMANDS,) = typed("docs/howto/limits.md")
UNTIL_REFUSED = "cd; while spawnmesh sessions > page 2> refusal; do :; done; cat refusal"
TIGHT = ClassLimits(calls_per_second=2, concurrent_call_count=1)
LIMITS = CallLimits(read=TIGHT, write=TIGHT, spawn=TIGHT, transfer=TIGHT, scan=TIGHT, generate=TIGHT)
FLOODERS = 4


async def test_an_accepted_run_ends_with_its_answer_under_a_flood_of_its_tenant(stack: Stack) -> None:
    tenant = f"t-{uuid4().hex[:12]}"
    targets = {name.replace("-", "_"): target for name, target in stack.targets.items()}
    async with AsyncExitStack() as exits:
        operator = await exits.enter_async_context(
            connect_wire(session=stack.targets["session"], token=stack.admin_token())
        )
        await operator.create_tenant(tenant, settings=TenantSettings(call_limits=LIMITS))
        mesh = await exits.enter_async_context(connect_wire(**targets, token=stack.client_token(tenant)))
        reasons = Counter[str]()
        async with asyncio.TaskGroup() as group:
            floods = [
                group.create_task(_flood(call, reasons)) for call in _calls(mesh) for _ in range(FLOODERS)
            ]
            await eventually(lambda: reasons[Reason.RATE_LIMITED] > FLOODERS)
            session = await _spawn(mesh)
            await eventually(lambda: _has_ended(stack, session.session_id), within_seconds=120.0)
            for flood in floods:
                flood.cancel()
        session = await eventually(lambda: _read(mesh, session.session_id))
    run = session.latest_run
    assert (run.state, run.error_reason) == (session_pb2.RUN_STATE_SUCCEEDED, reason_pb2.REASON_UNSPECIFIED)
    assert run.result_text


async def test_commands_of_the_guide_set_limits_that_the_command_then_meets(
    stack: Stack, tmp_path: Path
) -> None:
    tenant = f"t-{uuid4().hex[:12]}"  # Other pages have an acme of their own.
    commands = COMMANDS.replace("acme", tenant)
    await shell(f"spawnmesh tenant create {tenant}", stack, tmp_path)
    printed = await shell(f"{commands}\nspawnmesh tenant show {tenant}", stack, tmp_path)
    for line in (
        "call_limits.read.calls_per_second=5",
        "call_limits.write.bytes_per_second=2097152",
        "call_limits.spawn.concurrent_call_count=4",
    ):
        assert line in printed
    async with connect_wire(session=stack.targets["session"], token=stack.client_token(tenant)) as mesh:
        reasons = Counter[str]()
        async with asyncio.TaskGroup() as group:
            flood = group.create_task(_flood(lambda: mesh.session("ses_" + "0" * 26), reasons))
            await eventually(lambda: reasons[Reason.RATE_LIMITED] > FLOODERS)
            refused = await shell(UNTIL_REFUSED, stack, tmp_path, SPAWNMESH_TENANT=tenant)
            flood.cancel()
    print(refused)
    assert "RATE_LIMITED: the tenant may send this replica 5 calls a second in READ calls" in refused
    assert "(limit=calls_per_second, max_per_second=5, rpc_class=READ)" in refused


def _calls(mesh: WireMesh) -> list[Callable[[], Awaitable[object]]]:
    """Return a call of the class READ of each service, and one of each other kind that is cheap."""
    transcript = mesh.service("transcript")
    scan = TranscriptServiceStub(transcript.channel).AssembleContext
    request = transcript_pb.AssembleContextRequest(session_id="ses_" + "0" * 26, token_budget=1000)
    return [
        *(lambda call=call, name=name: call(mesh.service(name)) for name, call in READS.items()),  # type: ignore[misc]
        lambda: transcript.unary(scan, request, timeout_seconds=60),
        lambda: mesh.kill("ses_" + "0" * 26),
    ]


async def _flood(call: Callable[[], Awaitable[object]], reasons: Counter[str]) -> None:
    while True:
        try:
            await call()
        except MeshError as error:
            reasons[error.reason] += 1
        await asyncio.sleep(0.01)


async def _spawn(mesh: WireMesh) -> session_pb2.Session:
    """Spawn as a client does that waits as it is asked."""
    request_id = uuid4().hex
    while True:
        try:
            return await mesh.spawn("Say in one word whether the sky is blue.", request_id=request_id)
        except MeshError as error:
            if error.reason is not Reason.RATE_LIMITED:
                raise
            await asyncio.sleep(error.retry_after_seconds or 1.0)


async def _has_ended(stack: Stack, session_id: str) -> bool:
    """Read past the services: the calls of the tenant are used up by the flood."""
    query = "select state not in ('QUEUED', 'RUNNING', 'FINALIZING') from session.runs where session_id = %s"
    async with await psycopg.AsyncConnection.connect(stack.superuser_dsn) as connection:
        row = await (await connection.execute(query, (session_id,))).fetchone()
        return bool(row and row[0])


async def _read(mesh: WireMesh, session_id: str) -> session_pb2.Session | None:
    try:
        return await mesh.session(session_id)
    except MeshError as error:
        if error.reason is not Reason.RATE_LIMITED:
            raise
        return None
