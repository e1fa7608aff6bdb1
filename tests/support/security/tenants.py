"""Tenants with something of every kind in a running mesh without runners, and all that is stored of one."""

import hashlib
import json
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import psycopg
from google.protobuf.duration_pb2 import Duration
from psycopg import sql
from spawnmesh.attachment_blob.v1.attachment_pb2 import InlineAttachment
from spawnmesh.content.v1 import message_pb2 as content
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as hooks
from spawnmesh.hook.v1 import webhook_pb2
from spawnmesh.hook.v1 import webhook_service_pb2 as webhooks
from spawnmesh.hook.v1.hook_service_pb2_grpc import HookServiceStub
from spawnmesh.hook.v1.webhook_service_pb2_grpc import WebhookServiceStub
from spawnmesh.session.v1 import approval_pb2 as approvals
from spawnmesh.session.v1 import budget_pb2 as budgets
from spawnmesh.session.v1 import budget_service_pb2 as budget_calls
from spawnmesh.session.v1 import output_pb2 as outputs
from spawnmesh.session.v1 import run_service_pb2 as runs
from spawnmesh.session.v1 import schedule_pb2 as schedules
from spawnmesh.session.v1 import schedule_service_pb2 as schedule_calls
from spawnmesh.session.v1 import session_service_pb2 as sessions
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1 import token_service_pb2 as tokens
from spawnmesh.session.v1.budget_service_pb2_grpc import BudgetServiceStub
from spawnmesh.session.v1.run_service_pb2_grpc import RunServiceStub
from spawnmesh.session.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from spawnmesh.session.v1.session_service_pb2_grpc import SessionServiceStub
from spawnmesh.session.v1.token_service_pb2_grpc import TokenServiceStub
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import storage_service_pb2 as storage
from spawnmesh.transcript.v1 import transcript_service_pb2 as transcripts
from spawnmesh.transcript.v1.live_event_pb2 import DraftPiece
from spawnmesh.transcript.v1.live_service_pb2 import WriteDraftRequest
from spawnmesh.transcript.v1.live_service_pb2_grpc import LiveServiceStub
from spawnmesh.transcript.v1.storage_service_pb2_grpc import StorageServiceStub
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_client.attachment_uploads import upload_file
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.clock import utc_now
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.caller import CallerKind, ClientRole
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.waiting import eventually

_SECONDS = 3_600.0
_DEAD_ENDPOINT = "grpc://127.0.0.1:1"
_QUIET_READS = 20
_FIRINGS = """
    insert into session.schedule_firings (tenant_id, schedule_id, firing_id, due_time, fire_time, outcome,
        error_reason, error_message)
    select tenant_id, schedule_id, 'fir_' || md5(tenant_id || n), now() - n * interval '1 hour', now(),
        'FAILED', 'SPAWN_FAILED', %s
    from session.schedules, generate_series(1, 2) n where tenant_id = %s
    on conflict do nothing
"""
_WORK_TIMES = ["collect_time", "work_time", "next_retention_time"]


@dataclass
class Filled:
    """A tenant, ids of all kinds, and the words that are in all its content."""

    stack: Stack
    tenant_id: str
    marker: str
    ids: dict[str, str] = field(default_factory=dict)

    def token(self, kind: CallerKind, service: str = "", role: ClientRole | None = None) -> str:
        """Return a token of this kind of caller of the tenant."""
        name = {CallerKind.RUN: "session", CallerKind.RUNNER: "runner", CallerKind.SERVICE: service}.get(
            kind, "client"
        )
        minter = TokenMinter(name, self.stack.keys / f"{name}.pem")
        match kind:
            case CallerKind.CLIENT:
                return minter.client_token(self.tenant_id, "tester", _SECONDS, role=role)
            case CallerKind.ADMIN:
                return minter.admin_token("tester", _SECONDS)
            case CallerKind.RUN:
                session_id, run_id = self.ids["session"], self.ids["run"]
                return minter.run_token(self.tenant_id, session_id, run_id, int(self.ids["epoch"]), _SECONDS)
            case CallerKind.SERVICE:
                return minter.service_token(self.tenant_id)
            case CallerKind.RUNNER:
                return minter.runner_token(tenants=[self.tenant_id])

    @asynccontextmanager
    async def connected(self, token: str) -> AsyncIterator[WireMesh]:
        """Connect to all services with the token."""
        targets = {name.replace("-", "_"): target for name, target in self.stack.targets.items()}
        async with connect_wire(**targets, token=token) as mesh:
            yield mesh


async def fill_tenant(stack: Stack) -> Filled:
    """Create a tenant with a running session and its child, files, a plugin, a webhook and an agent."""
    unique = uuid4().hex[:12]
    tenant = Filled(stack, f"t-{unique}", f"marker{uuid4().hex}")
    tenant.ids |= {
        "tenant_id": tenant.tenant_id,
        "agent": f"agent-{unique}",
        "plugin": f"plugin-{unique}",
        "webhook": f"webhook-{unique}",
        "file_name": f"file-{unique}.txt",
        "request": uuid4().hex,
        "tool_call": f"call-{unique}",
        "token_id": new_id(IdKind.TOKEN),
        "event_key": f"event-{unique}",
        "job_kind": "notify_parent",
        "job_key": f"job-{unique}",
        "source": f"source-{unique}",
        "schedule": f"schedule-{unique}",
    }
    async with tenant.connected(stack.admin_token()) as operator:
        settings = tenant_pb2.TenantSettings()
        settings.transcripts.stub_large_tool_payloads = True
        settings.max_live_child_count = 500
        settings.attachments.enabled = True
        settings.attachments.max_file_count = 10
        settings.attachments.max_file_bytes = settings.attachments.max_total_bytes = 10**6
        settings.attachments.download_url_lifetime.FromSeconds(60)
        await operator.create_tenant(tenant.tenant_id, display_name=tenant.marker, settings=settings)
    async with tenant.connected(tenant.token(CallerKind.CLIENT)) as client:
        await _fill_as_client(tenant, client)
    await _work_on_the_run(tenant)
    await eventually(lambda: _read_stored_ids(tenant))
    return tenant


async def _fill_as_client(tenant: Filled, client: WireMesh) -> None:
    ids, marker = tenant.ids, tenant.marker
    await client.put_agent(
        tenant_pb2.AgentProfile(agent_id=ids["agent"], system_prompt=marker, spawnable_agents=[ids["agent"]])
    )
    plugin = hooks.Plugin(name=ids["plugin"], endpoint=_DEAD_ENDPOINT, hooks=[events.HOOK_KIND_BEFORE_SPAWN])
    plugin.failure_policy = hooks.FAILURE_POLICY_OPEN
    peer = client.service("hook")
    await peer.unary(
        HookServiceStub(peer.channel).UpdatePlugin,
        hooks.UpdatePluginRequest(allow_missing=True, plugin=plugin, allow_unreachable=True),
        timeout_seconds=60,
    )
    ids["webhook_event"] = await fill_webhook(client, ids["webhook"])
    await put_schedule(client, ids["schedule"], marker)
    kept = Attachment(ids["file_name"], f"{marker} kept for later".encode())
    ids["upload_id"] = (await upload_file(client.service("attachment-blob"), kept)).upload_id
    data = f"{marker} attached".encode()
    ids["file_bytes"] = str(len(data))
    ids["sha256"] = hashlib.sha256(data).hexdigest()
    spawned = await client.spawn(
        f"{marker} task",
        agent_id=ids["agent"],
        label=marker,
        attachments=[Attachment(ids["file_name"], data)],
        request_id=ids["request"],
        mode=1,
        budget=budgets.Budget(max_token_count=10**9, max_model_call_count=10**6),
    )
    ids |= {"session": spawned.session_id, "set_id": spawned.receipt.set_id}
    ids["run"] = spawned.latest_run.run_id
    session = client.service("session")
    revoked = tokens.RevokeTokenRequest(token_id=ids["token_id"])
    revoked.expire_time.FromSeconds(int(utc_now().timestamp()) + 3_600)
    await session.unary(TokenServiceStub(session.channel).RevokeToken, revoked, timeout_seconds=60)


async def fill_webhook(client: WireMesh, name: str) -> str:
    """Create a webhook that no event of these tests is sent to, and test it. Return the event's id."""
    peer = client.service("hook")
    stub = WebhookServiceStub(peer.channel)
    webhook = webhook_pb2.Webhook(
        name=name,
        url="https://127.0.0.1:1/hooks",
        event_types=[webhook_pb2.WEBHOOK_EVENT_TYPE_TRANSCRIPT_COMPACTED],
    )
    request = webhooks.UpdateWebhookRequest(webhook=webhook, allow_missing=True, allow_unreachable=True)
    await peer.unary(stub.UpdateWebhook, request, timeout_seconds=60)
    tested = await peer.unary(stub.TestWebhook, webhooks.TestWebhookRequest(name=name), timeout_seconds=60)
    return str(tested.delivery.event_id)


async def put_schedule(client: WireMesh, name: str, marker: str) -> None:
    """Create a schedule that is paused, so that it does nothing by itself."""
    peer = client.service("session")
    stub = ScheduleServiceStub(peer.channel)
    spawn = schedules.ScheduledSpawn(task=f"{marker} now and then", label=marker)
    schedule = schedules.Schedule(name=name, cron="0 0 1 1 *", spawn=spawn)
    created = schedule_calls.UpdateScheduleRequest(schedule=schedule, allow_missing=True)
    await peer.unary(stub.UpdateSchedule, created, timeout_seconds=60)
    await peer.unary(stub.PauseSchedule, schedule_calls.PauseScheduleRequest(name=name), timeout_seconds=60)


async def _work_on_the_run(tenant: Filled) -> None:
    """Claim the run, write a large result, publish files, spawn a child, and get a message."""
    ids, marker = tenant.ids, tenant.marker
    claimed = await _claim(tenant)
    assert claimed.run.run_id == ids["run"]
    ids["epoch"] = str(claimed.run.epoch)
    async with tenant.connected(tenant.token(CallerKind.RUN)) as run:
        transcript, session = run.service("transcript"), run.service("session")
        stub = TranscriptServiceStub(transcript.channel)
        claim = transcripts.WriterClaim(run_id=ids["run"], epoch=claimed.run.epoch)
        await transcript.unary(
            stub.AcquireWriter,
            transcripts.AcquireWriterRequest(session_id=ids["session"], claim=claim),
            timeout_seconds=60,
        )
        call = content.ToolCall(tool_call_id=ids["tool_call"], name="read_file", block_json='{"path":"a"}')
        result = content.Message(
            role=content.ROLE_TOOL_RESULT,
            tool_call_id=ids["tool_call"],
            tool_name="read_file",
            content=[content.ContentBlock(text=content.Text(text=f"{marker} line\n" * 2_000))],
        )
        answer = content.Message(role=content.ROLE_ASSISTANT, content=[content.ContentBlock(tool_call=call)])
        last = content.Message(
            role=content.ROLE_ASSISTANT,
            content=[content.ContentBlock(text=content.Text(text=f"{marker} draft"))],
        )
        append = transcripts.AppendEntriesRequest(
            session_id=ids["session"],
            claim=claim,
            request_id=ids["request"],
            entries=[entry_pb2.EntryBody(message=one) for one in (answer, result, last)],
        )
        # The first long text starts a worker, which takes seconds on a busy machine.
        appended = await transcript.unary(stub.AppendEntries, append, timeout_seconds=60)
        ids["entry"] = appended.entries[-1].entry_id
        draft = WriteDraftRequest(
            session_id=ids["session"],
            claim=claim,
            number=1,
            after_seq=appended.head.seq,
            pieces=[DraftPiece(text=f"{marker} live")],
        )
        live = LiveServiceStub(transcript.channel)
        await transcript.unary(live.WriteDraft, draft, timeout_seconds=60)
        watch = sessions.WatchSessionRequest(session_id=ids["session"], with_transcript=True)
        method = SessionServiceStub(session.channel).WatchSession
        async with aclosing(session.stream(method, watch, timeout_seconds=60)) as messages:
            async for message in messages:
                ids["cursor"] = message.cursor
                if message.HasField("draft_delta"):
                    break
        ((_, _, ids["transcript_cursor"], *_),) = json.loads(urlsafe_b64decode(ids["cursor"] + "=="))[-1]
        ids |= {"incarnation": appended.head.incarnation, "chain_hash": appended.head.chain_hash}
        ids["line_chain"] = appended.head.chain_hash
        for request_id in (ids["request"], f"{ids['request']}-2"):
            published = outputs.PublishFilesRequest(
                epoch=claimed.run.epoch,
                request_id=request_id,
                files=[InlineAttachment(name=f"{marker}.txt", data=f"{marker} made".encode())],
            )
            await session.unary(RunServiceStub(session.channel).PublishFiles, published, timeout_seconds=60)
        child = sessions.SpawnSessionRequest(
            request_id=f"{ids['request']}-child", task=f"{marker} child", agent_id=ids["agent"]
        )
        spawned = await session.unary(
            SessionServiceStub(session.channel).SpawnSession, child, timeout_seconds=30
        )
        ids["child_session"] = spawned.session.session_id
    await _let_the_child_wait(tenant)
    await _begin_model_call(tenant)
    async with tenant.connected(tenant.token(CallerKind.CLIENT)) as client:
        await client.send(ids["session"], f"{marker} message", request_id=ids["request"])
        ids["operation"] = await start_operation(client, ids["session"], ids["request"])


async def _claim(tenant: Filled) -> runs.ClaimedRun:
    """Claim the run of the tenant that is queued."""
    async with tenant.connected(tenant.token(CallerKind.RUNNER)) as runner:
        peer = runner.service("session")
        request = runs.ClaimRunsRequest(runner_id="tester", max_run_count=1, wait=Duration(seconds=20))
        [claimed] = (
            await peer.unary(RunServiceStub(peer.channel).ClaimRuns, request, timeout_seconds=60)
        ).runs
        found: runs.ClaimedRun = claimed
        return found


async def _let_the_child_wait(tenant: Filled) -> None:
    """Let the run of the child wait for a person."""
    claimed = await _claim(tenant)
    assert claimed.run.session_id == tenant.ids["child_session"]
    call = approvals.ToolCallSubject(tool_name="pay", arguments_json=f'{{"to": "{tenant.marker}"}}')
    request = approvals.RequestApprovalRequest(
        epoch=claimed.run.epoch,
        call=approvals.CallKey(answer_entry_id=new_id(IdKind.ENTRY)),
        tool_call=call,
    )
    async with tenant.connected(claimed.run_token) as child:
        peer = child.service("session")
        answer = await peer.unary(RunServiceStub(peer.channel).RequestApproval, request, timeout_seconds=60)
    tenant.ids["approval_id"] = answer.approval.approval_id


async def _begin_model_call(tenant: Filled) -> None:
    """Count a model call of the run in its budget. It is not reported before the end of the test."""
    tenant.ids["call_id"] = new_id(IdKind.MODEL_CALL)
    request = budget_calls.AdmitModelCallRequest(
        call_id=tenant.ids["call_id"],
        session_id=tenant.ids["session"],
        run_id=tenant.ids["run"],
        largest_token_count=1_000,
        expires_in=Duration(seconds=int(_SECONDS)),
    )
    async with tenant.connected(tenant.token(CallerKind.SERVICE, "model-router")) as router:
        peer = router.service("session")
        await peer.unary(BudgetServiceStub(peer.channel).AdmitModelCall, request, timeout_seconds=60)


async def start_operation(client: WireMesh, session_id: str, request_id: str) -> str:
    """Start an operation that changes nothing. Return its name."""
    peer = client.service("transcript")
    request = storage.RecountTranscriptRequest(session_id=session_id, dry_run=True, request_id=request_id)
    started = await peer.unary(
        StorageServiceStub(peer.channel).RecountTranscript, request, timeout_seconds=60
    )
    return str(started.name)


async def _read_stored_ids(tenant: Filled) -> bool:
    """Read the ids that no answer has had. Return whether all are there."""
    wanted = {
        "blob_id": "select blob_id from transcript.payloads where tenant_id = %s and is_stored",
        "firing_id": "select firing_id from session.schedule_firings where tenant_id = %s order by firing_id",
        "keys": "select key from session.inbox_messages where tenant_id = %s and text like '%% message'",
    }
    async with await psycopg.AsyncConnection.connect(tenant.stack.superuser_dsn) as connection:
        await connection.execute(_FIRINGS, (tenant.marker, tenant.tenant_id))
        for kind, query in wanted.items():
            row = await (await connection.execute(query, (tenant.tenant_id,))).fetchone()
            if row is None:
                return False
            tenant.ids[kind] = str(row[0])
    tenant.ids["file_id"] = tenant.ids["blob_id"].replace("blb_", "file_")
    return True


async def stored_rows(tenant: Filled) -> dict[str, list[str]]:
    """Return every row of the tenant in every service, by table.

    The times at which workers look at a tenant are left out: they come by themselves.
    """
    stored: dict[str, list[str]] = {}
    async with await psycopg.AsyncConnection.connect(tenant.stack.superuser_dsn) as connection:
        tables = await (
            await connection.execute(
                """
                select table_schema, table_name from information_schema.columns
                join information_schema.tables using (table_schema, table_name)
                where column_name = 'tenant_id' and table_type = 'BASE TABLE'
                """
            )
        ).fetchall()
        for schema, table in sorted(tables):
            query = sql.SQL(
                "select (to_jsonb(t) - %s::text[])::text from {} t where tenant_id = %s order by 1"
            ).format(sql.Identifier(schema, table))
            rows = await (await connection.execute(query, (_WORK_TIMES, tenant.tenant_id))).fetchall()
            stored[f"{schema}.{table}"] = [str(row[0]) for row in rows]
    return stored


async def settled_rows(tenant: Filled) -> dict[str, list[str]]:
    """Return every row of the tenant, once background work no longer changes them."""
    seen: list[dict[str, list[str]]] = []

    async def is_settled() -> bool:
        seen.append(await stored_rows(tenant))
        return len(seen) > _QUIET_READS and all(rows == seen[-1] for rows in seen[-_QUIET_READS:])

    await eventually(is_settled)
    return seen[-1]
