"""Messages of the contract -> values of the domain."""

import base64
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp
from spawnmesh.hook.v1 import decision_pb2, event_pb2, hook_service_pb2
from spawnmesh.hook.v1.compaction_pb2 import CompactionDecision
from spawnmesh_core.errors import invalid

from spawnmesh_hook.domain.compaction import CompactionAnswer
from spawnmesh_hook.domain.decisions import Denial, FinalizeAnswer, Verdict
from spawnmesh_hook.domain.endpoints import parse_endpoint
from spawnmesh_hook.domain.modifiers import PromptChange, ToolCallAnswer
from spawnmesh_hook.domain.plugins import (
    DEFAULT_CONCURRENT_CALLS,
    DEFAULT_TIMEOUT,
    FailurePolicy,
    Grant,
    HookKind,
    Plugin,
    default_failure_policy,
)
from spawnmesh_hook.store import DeliveryQuery


def parse_plugin(message: hook_service_pb2.Plugin) -> Plugin:
    """The plugin with its defaults filled in. Refuses an endpoint that is neither `grpc://host:port` nor an https URL."""
    try:
        parse_endpoint(message.endpoint)
    except ValueError as error:
        raise invalid("plugin.endpoint", str(error)) from error
    hooks = tuple(HookKind(event_pb2.HookKind.Name(hook).removeprefix("HOOK_KIND_")) for hook in message.hooks)
    if message.failure_policy == hook_service_pb2.FAILURE_POLICY_UNSPECIFIED:
        policy = default_failure_policy(hooks)
    else:
        name = hook_service_pb2.FailurePolicy.Name(message.failure_policy)
        policy = FailurePolicy(name.removeprefix("FAILURE_POLICY_"))
    return Plugin(
        name=message.name,
        endpoint=message.endpoint,
        hooks=hooks,
        priority=message.priority,
        timeout=message.timeout.ToTimedelta() if message.HasField("timeout") else DEFAULT_TIMEOUT,
        failure_policy=policy,
        grants=tuple(Grant(hook_service_pb2.Grant.Name(grant).removeprefix("GRANT_")) for grant in message.grants),
        max_concurrent_calls=message.max_concurrent_calls or DEFAULT_CONCURRENT_CALLS,
    )


def parse_denial(plugin: str, decision: decision_pb2.SpawnDecision) -> Denial | None:
    """The no in a valid answer of the plugin to a spawn; None for a yes."""
    return Denial(plugin, decision.deny.reason) if decision.HasField("deny") else None


def parse_verdict(plugin: str, decision: decision_pb2.FinalizeDecision) -> Verdict:
    """What a valid answer of the plugin says to a draft."""
    kind = decision.WhichOneof("decision")
    if kind == "revise":
        revise = decision.revise
        return Verdict(plugin, FinalizeAnswer.REVISE, revise.reason, revise.idempotency_key, revise.max_attempts or 1)
    if kind == "finalize":
        return Verdict(plugin, FinalizeAnswer.FINALIZE, decision.finalize.reason)
    return Verdict(plugin, FinalizeAnswer.CONTINUE)


def parse_prompt_change(plugin: str, decision: decision_pb2.PromptDecision) -> PromptChange:
    """What a valid answer of the plugin makes of a prompt."""
    tools = tuple(decision.tools.names) if decision.HasField("tools") else None
    return PromptChange(plugin, decision.system_prompt, decision.context, tools)


def parse_tool_call_answer(plugin: str, decision: decision_pb2.ToolCallDecision, arguments_json: str) -> ToolCallAnswer:
    """What a valid answer of the plugin says to a tool call, with the arguments of a rewrite as they are to be used."""
    return ToolCallAnswer(plugin, arguments_json, decision.block.reason)


def parse_compaction_answer(plugin: str, decision: CompactionDecision) -> CompactionAnswer:
    """What a valid answer of the plugin says to a compaction."""
    return CompactionAnswer(plugin, decision.compact.instructions, decision.keep_whole.reason)


_END = datetime(9999, 12, 31, tzinfo=UTC)
_BEHIND_EVERY_ID = "~"


def parse_delivery_query(message: hook_service_pb2.ListDeliveriesRequest) -> DeliveryQuery:
    """The conditions. Refuses a page token that no page came with, and a time that no calendar has."""
    before_time, before_id = _END, _BEHIND_EVERY_ID
    if message.page_token:
        try:
            text, before_id = base64.urlsafe_b64decode(message.page_token).decode().split(" ")
            before_time = datetime.fromisoformat(text)
        except ValueError:
            raise invalid("page_token", "is not a token that a page before gave") from None
    return DeliveryQuery(
        session_id=message.session_id,
        run_id=message.run_id,
        plugin=message.plugin,
        decision=message.decision,
        start_time=_time(message.start_time, "start_time"),
        end_time=_time(message.end_time, "end_time") if message.HasField("end_time") else _END,
        before_time=before_time,
        before_id=before_id,
    )


def _time(given: Timestamp, field: str) -> datetime:
    try:
        return given.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "is no time of the calendar") from None
