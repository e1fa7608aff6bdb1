"""The tenant in the pictures: the demo's story, and the everyday work of some agents."""

import asyncio
import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from spawnmesh.content.v1 import message_pb2
from spawnmesh.errors.v1.reason_pb2 import REASON_RUNNER_ERROR
from spawnmesh.model_router.v1.routing_pb2 import RoutingPolicy
from spawnmesh.session.v1.run_service_pb2 import ClaimedRun, ClaimRunsRequest, FailRunRequest
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.session_pb2 import RUNTIME_EXTERNAL
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh.transcript.v1.entry_pb2 import EntryBody
from spawnmesh_client import Budget, RunState
from spawnmesh_client.approval_views import ApprovalPolicy
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.client import Mesh, connect
from spawnmesh_client.resource_views import Agent, FailurePolicy, Grant, HookKind, Plugin
from spawnmesh_client.session import Session
from spawnmesh_console.domain.operations import OperationKind
from spawnmesh_devstack.demo_agents import TASK, profiles, with_approval, with_published_figures
from spawnmesh_devstack.demo_budget import first_budget
from spawnmesh_devstack.demo_files import PICTURE, TABLE, TEXT, make_files
from spawnmesh_devstack.demo_job import Job, do_job
from spawnmesh_devstack.models import SCRIPTED_AGENT, SCRIPTED_FLAKY
from spawnmesh_runtime.tokens import TokenMinter

from tests.screenshots import scenes
from tests.screenshots.outside import STATUS_PAGE, TICKETS
from tests.support.console.said import append, said
from tests.support.console.stored import done_operation, set_transcripts
from tests.support.console.visitors import ConsoleTenant
from tests.support.waiting import eventually

TENANT = "acme"
_NEIGHBOURS = (("globex", "Globex Shipping"), ("northwind", "Northwind Traders"))
LARGE, SMALL, STANDARD = "atlas/large", "atlas/small", "quill/standard"
_DAY_BUDGET_MICROS = 1_000_000
_JOB_SECONDS = 90.0
_PATIENCE_SECONDS = 120.0
_RESULT_LINES = 260
_CHECKED = 96
"""More messages than a context keeps whole."""
_USED_SHARE = 0.9
_ATTEMPTS = 3
_SPEAKING_SECONDS = 8.0
"""The time for which the model speaks before the first picture."""


@dataclass(frozen=True)
class PicturedTenant:
    """The ids of what the pictures show."""

    family: str
    answered: str
    survey: str
    running: str
    failed: str
    budgeted: str
    tiered: str
    published_set: str
    call: str
    operation: str


async def begin(tenant: ConsoleTenant, home: Path) -> str:
    """Create the tenants, do the job of the demo in one of them, and return its first session."""
    stack = tenant.console.stack
    files = home / "files"
    make_files(files, 7, small=False)
    agents = with_published_figures(with_approval(profiles([SCRIPTED_FLAKY, SCRIPTED_AGENT])))
    job = Job(agents, TASK, [files / name for name in (TABLE, TEXT, PICTURE)], _JOB_SECONDS, first_budget())
    done = await do_job(stack, TENANT, job, lambda _: None)
    async with connect(targets=stack.targets, token=stack.admin_token()) as operator:
        limits = TenantSettings(routing=RoutingPolicy(max_spend_micros_per_day=_DAY_BUDGET_MICROS))
        await operator.tenants.update(
            TENANT,
            ["display_name", "settings.routing.max_spend_micros_per_day"],
            display_name="Acme Support",
            settings=limits,
        )
        for tenant_id, name in _NEIGHBOURS:
            settings = TenantSettings(max_running_run_count=20)
            await operator.tenants.create(tenant_id, display_name=name, settings=settings)
    return done.parent.session_id


async def tell(tenant: ConsoleTenant, home: Path, outside: str) -> PicturedTenant:
    """Fill the tenant, and wait until each run is where the pictures show it. `outside` is the base
    URL of receivers.
    """
    family = await begin(tenant, home)
    mesh = tenant.mesh
    await _put_agents(mesh)
    await _put_plugins(mesh)
    await _put_webhooks(mesh, outside)
    failing = asyncio.create_task(_failed_session(tenant))
    tiered = await _tiered_session(tenant)
    await _fire_schedules(mesh)
    budgeted = await _waiting_for_budget(mesh)
    await _denied(mesh)
    killed = await mesh.spawn(f"{scenes.PATIENT}, in French.", agent="editor", label="handbook, French")
    await eventually(lambda: _is(killed, RunState.RUNNING))
    await killed.kill()
    survey = await mesh.spawn(
        f"{scenes.SURVEY}: price, limits and outages. Recommend one.",
        agent="editor", label="e-mail vendors", budget=Budget(calls=40, cost=5.0, tokens=500_000),
    )  # fmt: skip
    await survey.result(_PATIENCE_SECONDS)
    await _nearly_used(survey)
    refund = await mesh.spawn(f"{scenes.REFUND}.", agent="billing", label="refund 4698")
    notes = await mesh.spawn(
        f"{scenes.NOTES} from the attached list of changes.", agent="editor", label="release notes 4.2",
        attachments=[Attachment("changes.md", scenes.CHANGES.encode())],
    )  # fmt: skip
    answered = await mesh.spawn(
        f"{scenes.TICKET}: Ms. Okafor asks why her invoice for March is higher than the one for February.",
        agent="support", label="ticket 4711", mode="SESSION", metadata={"ticket": "4711", "customer": "Okafor"},
        attachments=[
            Attachment("invoice-march.csv", scenes.MARCH.encode()),
            Attachment("invoice-february.csv", scenes.FEBRUARY.encode()),
        ],
    )  # fmt: skip
    await answered.result(_PATIENCE_SECONDS)
    (published,) = [one async for one in answered.outputs()]
    call = await eventually(lambda: _approval_of(mesh, refund))
    await eventually(lambda: _approval_of(mesh, notes))
    operation = await _operations(mesh, tiered, answered)
    await _others_are_called(mesh)
    failed = await failing
    running = await mesh.spawn(f"{scenes.PATIENT}.", agent="editor", label="handbook, on-call duty")
    await asyncio.sleep(_SPEAKING_SECONDS)
    return PicturedTenant(
        family, answered.session_id, survey.session_id, running.session_id, failed.session_id,
        budgeted.session_id, tiered.session_id, published.set_id, call, operation,
    )  # fmt: skip


async def _put_agents(mesh: Mesh) -> None:
    policy = ApprovalPolicy(tools=("write_file",), timeout=timedelta(days=1))
    reading, spawning = ("list_files", "read_file"), ("sessions_spawn", "sessions_wait")
    publishing = ("write_file", "publish_files")
    for agent in (
        Agent(
            "support",
            "You answer tickets of customers. Read the attached files before you explain a figure, write the "
            "reply as a file, and publish it.",
            (STANDARD, LARGE), (*reading, *publishing, "ask_user"),
        ),
        Agent(
            "billing",
            "You prepare refunds and corrections of invoices. A person approves every file that you write.",
            (LARGE,), (*reading, "write_file", "transcript_search"), approval=policy,
        ),
        Agent(
            "editor",
            "You write texts for customers and for the team. Ask where you cannot know, and give research away.",
            (LARGE, SMALL), (*reading, *publishing, *spawning, "ask_user"), ("researcher",),
        ),
        Agent("researcher", "You find facts and say where they are from.", (SMALL,), reading),
    ):  # fmt: skip
        await mesh.agents.put(agent)
    await mesh.agents.update(Agent("billing", max_turn_count=20), ["max_turn_count"])


async def _put_plugins(mesh: Mesh) -> None:
    nowhere = "grpc://127.0.0.1:1"
    watched = (HookKind.FILES_PUBLISHED, HookKind.AGENT_END)
    for plugin in (
        Plugin("crm-sync", nowhere, watched, timeout=timedelta(seconds=2)),
        Plugin(
            "tone-check", nowhere, (HookKind.BEFORE_AGENT_FINALIZE,), failure_policy=FailurePolicy.OPEN,
            grants=(Grant.FINALIZE_CONTROL, Grant.CONVERSATION_ACCESS),
        ),
    ):  # fmt: skip
        await mesh.plugins.register(plugin, allow_unreachable=True)
    await mesh.plugins.pause("tone-check")


async def _put_webhooks(mesh: Mesh, outside: str) -> None:
    hooks = f"{outside}/hooks"
    await mesh.webhooks.put(
        "ticket-system", url=f"{hooks}/{TICKETS}", event_types=["run.ended", "files.published"]
    )
    await mesh.webhooks.put(
        "status-page", url=f"{hooks}/{STATUS_PAGE}", event_types=["run.ended"], allow_unreachable=True
    )
    await mesh.webhooks.put("archive", url=f"{hooks}/archive")
    await mesh.webhooks.pause("archive")


async def _denied(mesh: Mesh) -> None:
    """Let a person deny a call."""
    session = await mesh.spawn(f"{scenes.REFUND}, again.", agent="billing", label="refund 4655")
    denied = await eventually(lambda: _approval_of(mesh, session))
    await mesh.approvals.deny(denied, "The customer was refunded by bank transfer on November 20.")


async def _nearly_used(session: Session) -> None:
    """Lower the limits of the budget to a little more than the family has used."""
    budget = (await session.usage()).budgets[0]
    used = budget.usage
    await session.set_budget(
        calls=used.calls + 1, cost=round(used.cost / _USED_SHARE, 3), tokens=int(used.tokens / 0.7)
    )


async def _waiting_for_budget(mesh: Mesh) -> Session:
    session = await mesh.spawn(
        f"{scenes.DIGEST}.",
        agent="editor",
        label="digest, week 48",
        mode="SESSION",
        budget=Budget(calls=1, cost=0.5),
    )
    await session.result(_PATIENCE_SECONDS)
    await session.send("Add the open tickets, please.")
    await eventually(lambda: _is(session, RunState.WAITING_BUDGET), within_seconds=_PATIENCE_SECONDS)
    return session


async def _is(session: Session, state: RunState) -> bool:
    run = (await session.refresh()).latest_run
    return run is not None and run.state is state


async def _failed_session(tenant: ConsoleTenant) -> Session:
    """Let two runners be lost with the run, and a third one fail."""
    session = await tenant.mesh.spawn(
        "Import the price lists of November.", agent="researcher", label="price lists", runtime="EXTERNAL"
    )
    stack = tenant.console.stack
    minter = TokenMinter("runner", stack.keys / "runner.pem")
    for attempt in range(_ATTEMPTS):
        async with connect(targets=stack.targets, token=minter.runner_token(tenants=[TENANT])) as runner:
            claimed = await eventually(lambda runner=runner: _claim(runner))
        if attempt < _ATTEMPTS - 1:
            continue
        async with connect(targets=stack.targets, token=claimed.run_token) as held:
            peer = held.wire.service("session")
            message = "The file prices-november.xlsx ends after 2 of 14 sheets."
            failure = FailRunRequest(epoch=claimed.run.epoch, reason=REASON_RUNNER_ERROR, message=message)
            await peer.unary(RunServiceStub(peer.channel).FailRun, failure)
    return session


async def _claim(runner: Mesh) -> ClaimedRun | None:
    peer = runner.wire.service("session")
    request = ClaimRunsRequest(runner_id="importer-1", max_run_count=1, runtimes=[RUNTIME_EXTERNAL])
    return next(iter((await peer.unary(RunServiceStub(peer.channel).ClaimRuns, request)).runs), None)


async def _fire_schedules(mesh: Mesh) -> None:
    berlin = "Europe/Berlin"
    await mesh.schedules.put(
        "weekly-digest", cron="0 7 * * 1", time_zone=berlin, task=f"{scenes.DIGEST}.", agent="editor",
        label="weekly digest", budget=Budget(cost=1.0),
    )  # fmt: skip
    await mesh.schedules.put(
        "inbox-triage",
        cron="*/30 8-18 * * 1-5",
        time_zone=berlin,
        task=f"{scenes.TRIAGE}.",
        agent="editor",
        label="inbox triage",
    )
    for name in ("weekly-digest", "inbox-triage", "inbox-triage", "inbox-triage"):
        fired = await mesh.schedules.run(name)
        await (await mesh.session(fired.session_id)).result(_PATIENCE_SECONDS)
    await mesh.schedules.put("price-watch", cron="15 * * * *", task="Look at the prices.", agent="researcher")
    await mesh.schedules.pause("price-watch")


async def _tiered_session(tenant: ConsoleTenant) -> Session:
    """Spawn a session with large results of tools, and move the old ones out of the database."""
    await set_transcripts(tenant, stub_large_tool_payloads=True)
    session = await tenant.mesh.spawn(
        f"{scenes.INVOICES} against the orders.", agent="billing", label="invoices of Q3", mode="SESSION"
    )
    await session.result(_PATIENCE_SECONDS)
    results = [body for month in ("july", "august", "september") for body in _read_invoices(month)]
    checks = [
        said(f"Invoice {1040 + number} agrees with its order.", role=message_pb2.ROLE_ASSISTANT)
        for number in range(_CHECKED)
    ]
    await append(tenant, session, *results, *checks)
    return session


def _read_invoices(month: str) -> tuple[EntryBody, EntryBody]:
    name, call_id = f"invoices-{month}.csv", f"call_{month}"
    block = json.dumps({"type": "toolCall", "id": call_id, "name": "read_file", "arguments": {"path": name}})
    call = message_pb2.ToolCall(tool_call_id=call_id, name="read_file", block_json=block)
    content = [message_pb2.ContentBlock(tool_call=call)]
    lines = (
        f"{1000 + line},2026-{month},Order {7000 + 3 * line},{line * 17 % 400}.00"
        for line in range(_RESULT_LINES)
    )
    text = message_pb2.Text(text="invoice,month,order,amount\n" + "\n".join([*lines] * 3))
    result = message_pb2.Message(
        role=message_pb2.ROLE_TOOL_RESULT, tool_call_id=call_id, tool_name="read_file",
        content=[message_pb2.ContentBlock(text=text)],
    )  # fmt: skip
    asked = message_pb2.Message(role=message_pb2.ROLE_ASSISTANT, content=content)
    return EntryBody(message=asked), EntryBody(message=result)


async def _operations(mesh: Mesh, tiered: Session, other: Session) -> str:
    """Run operations of several kinds, and return the id of a dry run."""
    dry_run = await done_operation(mesh, OperationKind.TIER_DRY_RUN, tiered.session_id)
    await done_operation(mesh, OperationKind.TIER, tiered.session_id)
    await done_operation(mesh, OperationKind.RECOUNT_DRY_RUN, other.session_id)
    return dry_run.name.rpartition("/")[2]


async def _approval_of(mesh: Mesh, session: Session) -> str:
    run = (await mesh.session(session.session_id)).latest_run
    return run.approval_id if run is not None else ""


async def _others_are_called(mesh: Mesh) -> None:
    """Wait until the plugin that does not answer and both receivers have been called."""
    await mesh.webhooks.test("status-page")

    async def are_called() -> bool:
        logs = [
            [one async for one in mesh.webhooks.deliveries(name)] for name in ("ticket-system", "status-page")
        ]
        calls = [one async for one in mesh.plugins.deliveries(plugin="crm-sync")]
        return bool(calls) and all(any(one.attempts for one in log) for log in logs)

    await eventually(are_called, within_seconds=_PATIENCE_SECONDS)
