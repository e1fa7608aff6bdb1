"""From rows to responses."""

from datetime import datetime
from typing import Any

from google.protobuf.json_format import ParseDict
from google.protobuf.timestamp_pb2 import Timestamp
from psycopg.rows import DictRow
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.content.v1.thinking_pb2 import THINKING_LEVEL_UNSPECIFIED, ThinkingLevel
from spawnmesh.session.v1 import run_service_pb2 as run_pb
from spawnmesh.session.v1 import session_pb2 as pb
from spawnmesh.session.v1 import tenant_pb2
from spawnmesh_runtime.telemetry import trace_id_of

from spawnmesh_session.domain import AgentProfile, unique_key


def _time(value: datetime | str | None) -> Timestamp | None:
    if value is None:
        return None
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def render_thinking(level: str) -> "ThinkingLevel.ValueType":
    """A level; unspecified where none was chosen."""
    return ThinkingLevel.Value(f"THINKING_LEVEL_{level}") if level else THINKING_LEVEL_UNSPECIFIED


def render_run(row: DictRow | dict[str, Any]) -> pb.Run:
    """A run, from its row or from the JSON of one."""
    return pb.Run(
        run_id=row["run_id"],
        session_id=row["session_id"],
        state=pb.RunState.Value(f"RUN_STATE_{row['state']}"),
        epoch=row["epoch"],
        attempt_count=row["attempt_count"],
        result_text=row["result_text"],
        error_reason=row["error_reason"],
        error_message=row["error_message"],
        usage=TokenUsage(**row["usage"]),
        queue_time=_time(row["queue_time"]),
        start_time=_time(row["start_time"]),
        end_time=_time(row["end_time"]),
        revision_count=row["revision_count"],
    )


def render_session(row: DictRow) -> pb.Session:
    """A session with its newest run."""
    run = row.get("latest_run")
    return pb.Session(
        session_id=row["session_id"],
        state=pb.SessionState.Value(f"SESSION_STATE_{row['state']}"),
        agent_id=row["agent_id"],
        label=row["label"],
        parent_session_id=row["parent_session_id"],
        parent_run_id=row["parent_run_id"],
        depth=len(row["ancestor_ids"]),
        mode=pb.SessionMode.Value(f"SESSION_MODE_{row['mode']}"),
        context=pb.ContextMode.Value(f"CONTEXT_MODE_{row['context']}"),
        cleanup=pb.Cleanup.Value(f"CLEANUP_{row['cleanup']}"),
        runtime=pb.Runtime.Value(f"RUNTIME_{row['runtime']}"),
        create_time=_time(row["create_time"]),
        end_time=_time(row["end_time"]),
        latest_run=render_run(run) if run else None,
        receipt=_receipt(row["receipt"]) if row["receipt"] else None,
        task_hash=row["task_hash"],
        trace_id=trace_id_of(row["traceparent"]),
        failure_reason=row["failure"]["reason"] if row["failure"] else "",
        archive_time=_time(row["archive_time"]),
        thinking=render_thinking(row["thinking"]),
    )


def _receipt(receipt: dict[str, Any]) -> pb.AttachmentReceipt:
    return pb.AttachmentReceipt(
        set_id=receipt["set_id"],
        count=len(receipt["files"]),
        total_bytes=receipt["total_bytes"],
        files=[AttachmentFile(**file) for file in receipt["files"]],
        rel_dir=receipt["rel_dir"],
        mount_path=receipt["mount_path"],
        warnings=[pb.ReceiptWarning.Value(f"RECEIPT_WARNING_{name}") for name in receipt.get("warnings", ())],
    )


def render_event(row: DictRow) -> pb.SessionEvent:
    """An event."""
    return pb.SessionEvent(
        cursor=row["cursor"],
        event_time=_time(row["event_time"]),
        kind=pb.SessionEventKind.Value(f"SESSION_EVENT_KIND_{row['kind']}"),
        run_id=row["run_id"],
        run_state=pb.RunState.Value(f"RUN_STATE_{row['run_state']}") if row["run_state"] else pb.RUN_STATE_UNSPECIFIED,
        child_session_id=row["child_session_id"],
        detail=row["detail"],
    )


def render_message(row: DictRow) -> run_pb.InboxMessage:
    """A message that waits."""
    state = row["child_run_state"]
    return run_pb.InboxMessage(
        key=row["key"],
        idempotency_key=unique_key(row["key"], row["child_session_id"], row["create_time"]),
        text=row["text"],
        child_session_id=row["child_session_id"],
        child_run_state=pb.RunState.Value(f"RUN_STATE_{state}") if state else pb.RUN_STATE_UNSPECIFIED,
        create_time=_time(row["create_time"]),
    )


def render_agent(agent: AgentProfile) -> tenant_pb2.AgentProfile:
    """An agent."""
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
    )


def render_tenant(row: DictRow) -> tenant_pb2.Tenant:
    """A tenant, or what is left of one."""
    deletion = row["deletion"]
    if row["settings"] is None:
        return tenant_pb2.Tenant(
            tenant_id=row["tenant_id"], state=tenant_pb2.TENANT_STATE_DELETED, deletion=_deletion(deletion)
        )
    state = tenant_pb2.TENANT_STATE_ACTIVE if row["ready"] else tenant_pb2.TENANT_STATE_CREATING
    return tenant_pb2.Tenant(
        tenant_id=row["tenant_id"],
        display_name=row["display_name"],
        settings=ParseDict(row["settings"], tenant_pb2.TenantSettings()),
        settings_version=row["settings_version"],
        create_time=_time(row["create_time"]),
        state=tenant_pb2.TENANT_STATE_DELETING if deletion else state,
        deletion=_deletion(deletion) if deletion else None,
    )


def _deletion(deletion: dict[str, Any]) -> tenant_pb2.TenantDeletion:
    return tenant_pb2.TenantDeletion(
        request_time=_time(deletion["request_time"]),
        end_time=_time(deletion["end_time"]),
        killed_run_count=deletion["killed_run_count"],
        deleted_session_count=deletion["deleted_session_count"],
        deleted_transcript_count=deletion["deleted_transcript_count"],
        deleted_object_count=deletion["deleted_object_count"],
        stalled_by=deletion["stalled_by"],
    )
