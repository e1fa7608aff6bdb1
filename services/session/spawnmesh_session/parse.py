"""From requests to domain values."""

import hashlib
import re
from dataclasses import dataclass
from datetime import timedelta

from google.protobuf.json_format import MessageToDict
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.content.v1.message_pb2 import TokenUsage
from spawnmesh.content.v1.thinking_pb2 import ThinkingLevel
from spawnmesh.session.v1 import session_pb2 as pb
from spawnmesh.session.v1.run_service_pb2 import ClaimRunsRequest, FinalizeRunRequest
from spawnmesh.session.v1.session_service_pb2 import SpawnSessionRequest
from spawnmesh.session.v1.tenant_pb2 import AgentProfile as AgentProto
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_core.errors import MeshError, invalid, not_found
from spawnmesh_core.ids import TENANT_ID, IdKind, is_id, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.caller import Caller, CallerKind
from spawnmesh_runtime.telemetry import current_traceparent

from spawnmesh_session.domain import (
    BUILT_IN_TOOLS,
    DEFAULT_AGENT_ID,
    DEFAULT_RUN_TIMEOUT,
    EVERY_AGENT,
    AgentProfile,
    Holder,
    Spawn,
    mount_path_of,
)
from spawnmesh_session.operations.finalize import Draft
from spawnmesh_session.operations.spawn import Order

_AGENT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_THINKING = "THINKING_LEVEL_"
_DEFAULT_ATTACHMENTS = AttachmentLimits(
    enabled=True, max_file_count=50, max_file_bytes=1024 * 1024, max_total_bytes=5 * 1024 * 1024
)


def _or_default(value: int, default: int) -> int:
    return value or default


def no_nul(field: str, text: str) -> str:
    """The text; INVALID_REQUEST where it has a NUL, which PostgreSQL cannot store."""
    if "\x00" in text:
        raise invalid(field, "must not contain NUL")
    return text


def parse_spawn(request: SpawnSessionRequest, caller: Caller) -> Order:
    """The order, with a fresh session id. A run is its own parent; a client may name one."""
    parent_session_id, parent_run_id, parent_epoch = request.parent_session_id, "", 0
    if caller.kind is CallerKind.RUN:
        if parent_session_id not in ("", caller.session_id):
            raise not_found("session", parent_session_id)
        parent_session_id, parent_run_id, parent_epoch = caller.session_id, caller.run_id, caller.epoch
    elif parent_session_id and not is_id(IdKind.SESSION, parent_session_id):
        raise invalid("parent_session_id", "is not a session id")
    hint = request.attach_as.mount_path
    spawn = Spawn(
        session_id=new_id(IdKind.SESSION),
        request_id=no_nul("request_id", request.request_id),
        payload_hash=_payload_hash(request, parent_session_id),
        task_hash=hashlib.sha256(request.task.encode()).hexdigest(),
        agent_id=no_nul("agent_id", request.agent_id) or DEFAULT_AGENT_ID,
        label=no_nul("label", request.label),
        model=no_nul("model", request.model),
        mode=_name(pb.SessionMode, _or_default(request.mode, pb.SESSION_MODE_RUN), "SESSION_MODE_"),
        context=_name(pb.ContextMode, _or_default(request.context, pb.CONTEXT_MODE_ISOLATED), "CONTEXT_MODE_"),
        cleanup=_name(pb.Cleanup, _or_default(request.cleanup, pb.CLEANUP_DELETE), "CLEANUP_"),
        runtime=_name(pb.Runtime, _or_default(request.runtime, pb.RUNTIME_SUBAGENT), "RUNTIME_"),
        run_timeout=request.run_timeout.ToTimedelta() if request.HasField("run_timeout") else DEFAULT_RUN_TIMEOUT,
        parent_session_id=parent_session_id,
        parent_run_id=parent_run_id,
        mount_path=mount_path_of(hint),
        mount_path_ignored=bool(hint) and not mount_path_of(hint),
        attachment_count=len(request.attachments) + len(request.uploads),
        traceparent=current_traceparent(),
        parent_epoch=parent_epoch,
        thinking=_thinking(request.thinking),
    )
    return Order(spawn, no_nul("task", request.task), list(request.attachments), list(request.uploads))


def runtimes_of(request: ClaimRunsRequest) -> list[str]:
    """Of which sessions the runs are to be; those that the mesh's own runners run, where nothing is said."""
    return [_name(pb.Runtime, runtime, "RUNTIME_") for runtime in request.runtimes or [pb.RUNTIME_SUBAGENT]]


def _thinking(level: int) -> str:
    """Empty where nothing was chosen."""
    return _name(ThinkingLevel, level, _THINKING) if level else ""


def _name(enum: object, number: int, prefix: str) -> str:
    name: str = enum.Name(number)  # type: ignore[attr-defined] # The stubs type enum wrappers as bare objects.
    return name.removeprefix(prefix)


def _payload_hash(request: SpawnSessionRequest, parent_session_id: str) -> bytes:
    """SHA-256 over everything that was asked for but its name; the parent as it was resolved."""
    payload = SpawnSessionRequest()
    payload.CopyFrom(request)
    payload.request_id = ""
    payload.parent_session_id = parent_session_id
    return hashlib.sha256(payload.SerializeToString(deterministic=True)).digest()


def parse_agent(agent: AgentProto) -> AgentProfile:
    """The agent; INVALID_REQUEST for a tool that no runner has, or an agent that cannot exist."""
    for index, tool in enumerate(agent.tools):
        if tool not in BUILT_IN_TOOLS:
            raise invalid(f"agent.tools[{index}]", f"is none of {', '.join(BUILT_IN_TOOLS)}")
    for index, name in enumerate(agent.spawnable_agents):
        if name != EVERY_AGENT and _AGENT_ID.fullmatch(name) is None:
            raise invalid(f"agent.spawnable_agents[{index}]", f"is neither an agent's id nor {EVERY_AGENT!r}")
    return AgentProfile(
        agent_id=agent.agent_id,
        system_prompt=no_nul("agent.system_prompt", agent.system_prompt),
        models=tuple(no_nul("agent.models", model) for model in agent.models),
        tools=tuple(agent.tools),
        spawnable_agents=tuple(agent.spawnable_agents),
        max_turn_count=agent.max_turn_count,
        context_token_budget=agent.context_token_budget,
        thinking=_thinking(agent.thinking),
        mcp_servers=tuple(agent.mcp_servers),
    )


def parse_agent_to_delete(agent_id: str) -> str:
    """Its id; INVALID_REQUEST for the agent that every tenant has."""
    if agent_id == DEFAULT_AGENT_ID:
        raise invalid("agent_id", f"{DEFAULT_AGENT_ID!r} stays, as every tenant has it; PutAgent writes over it")
    return agent_id


def parse_settings(settings: TenantSettings) -> dict[str, object]:
    """The settings as they are stored: attachment limits always spelled out, how long files are kept only where it is said."""
    stored: dict[str, object] = MessageToDict(settings, preserving_proto_field_name=True)
    limits = settings.attachments if settings.HasField("attachments") else _DEFAULT_ATTACHMENTS
    stored["attachments"] = {
        **MessageToDict(limits, preserving_proto_field_name=True),
        "enabled": limits.enabled,
        "max_file_count": limits.max_file_count,
        "max_file_bytes": limits.max_file_bytes,
        "max_total_bytes": limits.max_total_bytes,
    }
    return stored


def usage_of(usage: TokenUsage) -> dict[str, int]:
    """Tokens used, as they are stored."""
    return {
        "input_token_count": usage.input_token_count,
        "output_token_count": usage.output_token_count,
        "cache_read_token_count": usage.cache_read_token_count,
        "cache_write_token_count": usage.cache_write_token_count,
    }


def parse_draft(request: FinalizeRunRequest, caller: Caller) -> Draft:
    """The draft, of the run that the token names."""
    require_epoch(caller, request.epoch)
    return Draft(
        caller.run_id,
        request.epoch,
        request.draft_entry_id,
        request.draft_text,
        usage_of(request.usage),
        has_final_effects=request.has_final_effects,
        is_last_turn=request.is_last_turn,
    )


def require_epoch(caller: Caller, epoch: int) -> None:
    """Refuses a call that speaks of another epoch than its token."""
    if caller.epoch != epoch:
        raise MeshError(
            Reason.CALLER_NOT_ALLOWED,
            f"the token is for epoch {caller.epoch}, and the call speaks of epoch {epoch}",
            facts={"token_epoch": caller.epoch, "epoch": epoch},
        )


def visible_to(caller: Caller) -> str:
    """The session whose family the caller may see; empty for a client, who sees all of the tenant's."""
    return caller.session_id if caller.kind is CallerKind.RUN else ""


def holder_of(caller: Caller) -> Holder | None:
    """The run that calls, at the epoch its token is for; None for a client."""
    return Holder(caller.session_id, caller.run_id, caller.epoch) if caller.kind is CallerKind.RUN else None


@dataclass(frozen=True, slots=True)
class Page:
    """A page asked for: how much, and the last id of the page before, empty for the first."""

    size: int
    last_id: str


def parse_page(page_size: int, page_token: str) -> Page:
    """The page of sessions; INVALID_REQUEST for a token that no page gave."""
    return _page(page_size, page_token, is_well_formed=is_id(IdKind.SESSION, page_token))


def parse_agents_page(page_size: int, page_token: str) -> Page:
    """The page of agents; INVALID_REQUEST for a token that no page gave."""
    return _page(page_size, page_token, is_well_formed=_AGENT_ID.fullmatch(page_token) is not None)


def parse_tenants_page(page_size: int, page_token: str) -> Page:
    """The page of tenants; INVALID_REQUEST for a token that no page gave."""
    return _page(page_size, page_token, is_well_formed=TENANT_ID.fullmatch(page_token) is not None)


def _page(page_size: int, page_token: str, *, is_well_formed: bool) -> Page:
    if page_token and not is_well_formed:
        raise invalid("page_token", "is not a token that a page before gave")
    return Page(page_size or 50, page_token)


def wait_of(seconds: timedelta | None, default_seconds: float) -> float:
    """Seconds to wait."""
    return default_seconds if seconds is None else seconds.total_seconds()
