"""Work that moves every metric that a dashboard shows."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from spawnmesh.errors.v1.reason_pb2 import REASON_DEPENDENCY_UNAVAILABLE
from spawnmesh.session.v1 import approval_pb2, run_service_pb2, tenant_pb2
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.session_pb2 import RUNTIME_EXTERNAL
from spawnmesh.tenancy.v1.call_limits_pb2 import CallLimits, ClassLimits
from spawnmesh_client.client import Mesh, connect
from spawnmesh_client.session import Session
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.demo_agents import TASK, profiles, with_approval, with_published_figures
from spawnmesh_devstack.demo_budget import first_budget
from spawnmesh_devstack.demo_files import PICTURE, TABLE, TEXT, make_files
from spawnmesh_devstack.demo_job import Job, do_job, pause_plugin
from spawnmesh_devstack.models import SCRIPTED_AGENT, SCRIPTED_FLAKY
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.mesh.compaction import continue_from_summary
from tests.support.mesh.reader import read_code_word
from tests.support.waiting import eventually

Seen = Callable[[str], Awaitable[object]]
TENANT_CLASS = "premium"
_JOB_SECONDS = 90.0


async def do_everything(stack: Stack, folder: Path, seen: Seen) -> None:
    """Do the job of the demo, more in a tenant with a class, and everything that goes wrong beside
    it. `seen` returns once a query of Prometheus has a result.
    """
    tenant = f"t-{uuid4().hex[:12]}"
    await _demo(stack, tenant, folder)
    async with (
        connect(targets=stack.targets, token=stack.admin_token()) as operator,
        connect(targets=stack.targets, token=stack.client_token(tenant)) as mesh,
    ):
        settings = tenant_pb2.TenantSettings(tenant_class=TENANT_CLASS)
        await operator.tenants.update(tenant, ["settings.tenant_class"], settings=settings)
        await mesh.webhooks.put("nowhere", url="http://127.0.0.1:1/hook", allow_unreachable=True)
        answered = await mesh.spawn("Say a word.", agent="default")
        await answered.result(_JOB_SECONDS)
        await _waits(stack, mesh, tenant, seen)
        await _refused(mesh)
        await _delayed(stack, mesh, tenant)
        await seen('spawnmesh_hook_webhook_duration_seconds_count{spawnmesh_hook_result="no_answer"} > 0')
        await read_code_word(stack, "a word", stubs=True)  # It looks into a reference.
        await continue_from_summary(stack)
        await _limited(operator, mesh, tenant, answered)


async def _demo(stack: Stack, tenant: str, folder: Path) -> None:
    """A failover, approvals, a budget, plugins, watchers, files, and three runs."""
    make_files(folder, 1, small=False)
    agents = with_published_figures(with_approval(profiles([SCRIPTED_FLAKY, SCRIPTED_AGENT])))
    files = [folder / name for name in (TABLE, TEXT, PICTURE)]
    await do_job(stack, tenant, Job(agents, TASK, files, _JOB_SECONDS, first_budget()), lambda _: None)
    await pause_plugin(stack, tenant)


async def _waits(stack: Stack, mesh: Mesh, tenant: str, seen: Seen) -> None:
    """A run that waits for a person, one that waits for a runner, and a watcher of it."""
    asking = await mesh.spawn("Pay the invoice.", agent="default", runtime="EXTERNAL")
    claimed = await _claim(stack, tenant)
    async with connect(targets=stack.targets, token=claimed.run_token) as held:
        request = approval_pb2.RequestApprovalRequest(
            epoch=claimed.run.epoch,
            call=approval_pb2.CallKey(answer_entry_id=new_id(IdKind.ENTRY)),
            question=approval_pb2.Question(text="Which invoice?"),
        )
        peer = held.wire.service("session")
        await peer.unary(RunServiceStub(peer.channel).RequestApproval, request)
    waiting = await mesh.spawn("Wait.", agent="default", runtime="EXTERNAL")
    watcher = asyncio.create_task(_watch(waiting))
    for query in (
        'spawnmesh_session_runs{spawnmesh_session_run_state="waiting_approval"} > 0',
        "spawnmesh_session_queue_oldest_age_seconds > 1",
        "spawnmesh_session_approvals_oldest_age_seconds > 1",
        'spawnmesh_watches{rpc_method=~".*/WatchSession"} > 0',
    ):
        await seen(query)
    await waiting.kill()
    await watcher
    await asking.kill()


async def _claim(stack: Stack, tenant: str) -> run_service_pb2.ClaimedRun:
    """Claim the run of the tenant that waits for a program of its own."""
    request = run_service_pb2.ClaimRunsRequest(runner_id="test", max_run_count=1, runtimes=[RUNTIME_EXTERNAL])
    minter = TokenMinter("runner", stack.keys / "runner.pem")
    async with connect(targets=stack.targets, token=minter.runner_token(tenants=[tenant])) as runner:
        peer = runner.wire.service("session")

        async def claimed() -> run_service_pb2.ClaimedRun | None:
            return next(iter((await peer.unary(RunServiceStub(peer.channel).ClaimRuns, request)).runs), None)

        return await eventually(claimed)


async def _watch(session: Session) -> None:
    async for _ in session.live():
        pass


async def _refused(mesh: Mesh) -> None:
    with suppress(MeshError):
        await mesh.spawn("Do it.", agent="nobody")


async def _delayed(stack: Stack, mesh: Mesh, tenant: str) -> None:
    """A runner gives a run back that cannot go on; it is killed in the queue."""
    session = await mesh.spawn("Try.", agent="default", runtime="EXTERNAL")
    claimed = await _claim(stack, tenant)
    delay = run_service_pb2.ReleaseDelay(reason=REASON_DEPENDENCY_UNAVAILABLE, min_pause=timedelta(hours=1))
    request = run_service_pb2.ReleaseRunRequest(epoch=claimed.run.epoch, delay=delay)
    async with connect(targets=stack.targets, token=claimed.run_token) as held:
        peer = held.wire.service("session")
        await peer.unary(RunServiceStub(peer.channel).ReleaseRun, request)
    await session.kill()


async def _limited(operator: Mesh, mesh: Mesh, tenant: str, session: Session) -> None:
    """Calls until one is refused because there are too many."""
    limits = CallLimits(read=ClassLimits(calls_per_second=1))
    settings = tenant_pb2.TenantSettings(call_limits=limits)
    await operator.tenants.update(tenant, ["settings.call_limits"], settings=settings)

    async def is_refused() -> bool:
        try:
            await asyncio.gather(*(mesh.wire.session(session.session_id) for _ in range(20)))
        except MeshError as error:
            return error.reason is Reason.RATE_LIMITED
        return False

    await eventually(is_refused)
