"""Messages that several RPCs share: parsed from requests, and rendered into responses."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.json_format import ParseDict
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.content.v1.thinking_pb2 import THINKING_LEVEL_UNSPECIFIED, ThinkingLevel
from spawnmesh.hook.v1.event_pb2 import HookKind
from spawnmesh.hook.v1.revision_pb2 import CappedRevision, RevisionCap
from spawnmesh.session.v1 import session_pb2 as pb
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh.session.v1.approval_pb2 import ApprovalPolicy
from spawnmesh_calls.wire_reasons import reason_number
from spawnmesh_calls.wire_times import timestamp_of
from spawnmesh_core.errors import invalid
from spawnmesh_core.page_tokens import PagedRequest, page_token, position_of
from spawnmesh_runtime.caller import Caller
from spawnmesh_runtime.telemetry import trace_id_of

from spawnmesh_session.domain.agents import AgentProfile, etag_of
from spawnmesh_session.domain.enabled_hooks import EnabledHooks
from spawnmesh_session.domain.runs import Run, RunDelay, RunState
from spawnmesh_session.domain.sessions import Session
from spawnmesh_session.domain.tenants import DeletedTenant, Tenant, TenantDeletion
from spawnmesh_session.domain.text import without_nul

DEFAULT_PAGE_SIZE = 50
_THINKING = "THINKING_LEVEL_"
_CAP = "REVISION_CAP_"


# Requests


def parse_text(field: str, text: str) -> str:
    """Return the text. Raise INVALID_REQUEST if it has a NUL, which PostgreSQL cannot store."""
    if "\x00" in text:
        raise invalid(field, "must not contain NUL")
    return text


def parse_enum(enum: object, number: int, prefix: str) -> str:
    """Return the name of the value without the prefix of its enum."""
    # The stubs type enum wrappers as objects.
    name: str = enum.Name(number)  # type: ignore[attr-defined]
    return name.removeprefix(prefix)


def parse_thinking(level: int) -> str:
    """Return the thinking level; empty if none was chosen."""
    return parse_enum(ThinkingLevel, level, _THINKING) if level else ""


def parse_usage(usage: TokenUsage) -> dict[str, Any]:
    """Return the tokens and their cost as they are stored."""
    return {
        "input_token_count": usage.input_token_count,
        "output_token_count": usage.output_token_count,
        "cache_read_token_count": usage.cache_read_token_count,
        "cache_write_token_count": usage.cache_write_token_count,
        "cost_micros": usage.cost_micros,
        "price_version": without_nul(usage.price_version),
    }


def parse_seconds(duration: Duration | None, default: float) -> float:
    """Return the seconds of a duration, or the default if it is absent."""
    return default if duration is None else duration.ToTimedelta().total_seconds()


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The size of a page, and the last id of the page before, which is empty for the first page."""

    size: int
    last_id: str


def parse_page(request: PagedRequest, caller: Caller) -> PageRequest:
    """Return the page. Raise INVALID_REQUEST for a token that no page of this list returned."""
    last = position_of(request, (str,), caller.tenant_id, caller.session_id)
    return PageRequest(request.page_size or DEFAULT_PAGE_SIZE, last[0] if last else "")


def render_next_page(last_id: str, request: PagedRequest, caller: Caller) -> str:
    """Return the token of the page after this id; empty for an empty id."""
    return page_token([last_id], request, caller.tenant_id, caller.session_id) if last_id else ""


# Responses


def render_thinking(level: str) -> "ThinkingLevel.ValueType":
    """Render a thinking level; unspecified if none was chosen."""
    return ThinkingLevel.Value(f"{_THINKING}{level}") if level else THINKING_LEVEL_UNSPECIFIED


def render_run_state(state: str) -> "pb.RunState.ValueType":
    """Render the state of a run; unspecified if there is none."""
    return pb.RunState.Value(f"RUN_STATE_{state}") if state else pb.RUN_STATE_UNSPECIFIED


def render_run(run: Run) -> pb.Run:
    """Render a run."""
    return pb.Run(
        run_id=run.run_id,
        session_id=run.session_id,
        state=render_run_state(run.state),
        epoch=run.epoch,
        attempt_count=run.attempt_count,
        result_text=run.result_text,
        error_reason=reason_number(run.error_reason),
        error_message=run.error_message,
        usage=TokenUsage(**run.usage),
        queue_time=timestamp_of(run.queue_time),
        start_time=timestamp_of(run.start_time),
        end_time=timestamp_of(run.end_time),
        revision_count=run.revision_count,
        delay=_render_delay(run.delay) if run.delay.count else None,
        capped_revisions=_render_capped(run) if run.state is RunState.SUCCEEDED else (),
        interrupt_time=timestamp_of(run.interrupt_time),
        approval_id=run.approval_id,
        output_file_count=run.outputs.file_count,
        output_total_bytes=run.outputs.total_bytes,
        budget_session_id=run.budget_session_id,
        reported_event_count=run.reported_event_count,
    )


def _render_capped(run: Run) -> list[CappedRevision]:
    return [
        CappedRevision(plugin=capped.plugin, cap=RevisionCap.Value(f"{_CAP}{capped.cap}"))
        for capped in run.capped_revisions
    ]


def _render_delay(delay: RunDelay) -> pb.RunDelay:
    return pb.RunDelay(
        reason=reason_number(delay.reason),
        message=delay.message,
        not_before_time=timestamp_of(delay.not_before_time),
        count=delay.count,
    )


def render_session(session: Session) -> pb.Session:
    """Render a session with its newest run."""
    return pb.Session(
        session_id=session.session_id,
        state=pb.SessionState.Value(f"SESSION_STATE_{session.state}"),
        agent_id=session.agent_id,
        label=session.label,
        parent_session_id=session.parent_session_id,
        parent_run_id=session.parent_run_id,
        depth=len(session.ancestor_ids),
        mode=pb.SessionMode.Value(f"SESSION_MODE_{session.mode}"),
        context=pb.ContextMode.Value(f"CONTEXT_MODE_{session.context}"),
        cleanup=pb.Cleanup.Value(f"CLEANUP_{session.cleanup}"),
        runtime=pb.Runtime.Value(f"RUNTIME_{session.runtime}"),
        create_time=timestamp_of(session.create_time),
        end_time=timestamp_of(session.end_time),
        latest_run=render_run(session.latest_run) if session.latest_run else None,
        receipt=_render_receipt(session.receipt) if session.receipt else None,
        task_hash=session.task_hash,
        trace_id=trace_id_of(session.traceparent),
        failure_reason=reason_number(session.failure.reason if session.failure else ""),
        archive_time=timestamp_of(session.archive_time),
        thinking=render_thinking(session.thinking),
        metadata=session.metadata,
        agent_version=session.agent_version,
        fork=pb.ForkPoint(session_id=session.fork_session_id, seq=session.fork_seq)
        if session.fork_seq
        else None,
        budget_session_ids=session.budget_session_ids,
    )


def _render_receipt(receipt: dict[str, Any]) -> pb.AttachmentReceipt:
    return pb.AttachmentReceipt(
        set_id=receipt["set_id"],
        count=receipt.get("count", len(receipt["files"])),  # A list can leave out the files.
        total_bytes=receipt["total_bytes"],
        files=[AttachmentFile(**file) for file in receipt["files"]],
        rel_dir=receipt["rel_dir"],
        mount_path=receipt["mount_path"],
        warnings=[pb.ReceiptWarning.Value(f"RECEIPT_WARNING_{name}") for name in receipt["warnings"]],
    )


def render_agent(agent: AgentProfile) -> tenant_pb2.AgentProfile:
    """Render an agent."""
    return tenant_pb2.AgentProfile(
        agent_id=agent.agent_id,
        system_prompt=agent.system_prompt,
        models=agent.models,
        tools=agent.tools,
        spawnable_agents=agent.spawnable_agents,
        max_turn_count=agent.max_turn_count,
        context_token_budget=agent.context_token_budget,
        thinking=render_thinking(agent.thinking),
        mcp_servers=agent.mcp_servers,
        approval=ParseDict(dict(agent.approval), ApprovalPolicy()) if agent.approval else None,
        version=agent.version,
        etag=etag_of(agent),
    )


def render_tenant(tenant: Tenant | DeletedTenant) -> tenant_pb2.Tenant:
    """Render a tenant, or the report of its deletion."""
    if isinstance(tenant, DeletedTenant):
        return tenant_pb2.Tenant(
            tenant_id=tenant.tenant_id,
            state=tenant_pb2.TENANT_STATE_DELETED,
            deletion=render_deletion(tenant.deletion),
        )
    state = tenant_pb2.TENANT_STATE_ACTIVE if tenant.ready else tenant_pb2.TENANT_STATE_CREATING
    return tenant_pb2.Tenant(
        tenant_id=tenant.tenant_id,
        display_name=tenant.display_name,
        settings=ParseDict(tenant.settings, tenant_pb2.TenantSettings()),
        settings_version=tenant.settings_version,
        create_time=timestamp_of(tenant.create_time),
        state=tenant_pb2.TENANT_STATE_DELETING if tenant.deletion else state,
        deletion=render_deletion(tenant.deletion) if tenant.deletion else None,
        etag=tenant.etag,
    )


def render_deletion(deletion: TenantDeletion) -> tenant_pb2.TenantDeletion:
    """Render the progress of a tenant's deletion, or its report if it is done."""
    return tenant_pb2.TenantDeletion(
        request_time=timestamp_of(deletion.request_time),
        end_time=timestamp_of(deletion.end_time),
        killed_run_count=deletion.killed_run_count,
        deleted_session_count=deletion.deleted_session_count,
        deleted_transcript_count=deletion.deleted_transcript_count,
        deleted_object_count=deletion.deleted_object_count,
        stalled_by=deletion.stalled_by,
    )


def parse_hooks(hooks: Iterable[HookKind.ValueType]) -> list[str]:
    """Return the names of the hooks, as they are stored."""
    return [HookKind.Name(hook).removeprefix("HOOK_KIND_") for hook in hooks]


def render_hooks(enabled: EnabledHooks) -> list[HookKind.ValueType]:
    """Return the hooks, or every hook if they are not known."""
    if enabled.names is None:
        return [hook for hook in HookKind.values() if hook]
    return [HookKind.Value(f"HOOK_KIND_{name}") for name in sorted(enabled.names)]
