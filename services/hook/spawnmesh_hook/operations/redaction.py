"""Redacts events to the content that a plugin may see.

A plugin sees content only with its grant or as a bundled plugin, and with masked secrets if the
tenant wants that. Every function raises INVALID_REQUEST if secrets are masked and a text that
should be JSON is not: content that cannot be parsed is not shown.
"""

from spawnmesh.content.v1.message_pb2 import Message
from spawnmesh.hook.v1 import event_pb2, observed_pb2
from spawnmesh.hook.v1.compaction_pb2 import BeforeCompactionEvent
from spawnmesh_core.secrets import mask_text
from spawnmesh_runtime.masking import mask_message, masked_json

from spawnmesh_hook.domain.decisions import MAX_REVISION_COUNT
from spawnmesh_hook.domain.plugins import ContentAccess

# The fields of each observed event that hold content: a text, a message or several messages.
_CONTENT_FIELDS = {
    "llm_input": ("system_prompt", "messages"),
    "llm_output": ("message",),
    "after_tool_call": ("result_text",),
    "after_compaction": ("summary",),
}


def redact_spawn(access: ContentAccess, event: event_pb2.BeforeSpawnEvent) -> event_pb2.BeforeSpawnEvent:
    """Return the event with its task redacted."""
    redacted = event_pb2.BeforeSpawnEvent()
    redacted.CopyFrom(event)
    redacted.task = _redact_text(access, event.task)
    return redacted


def redact_draft(
    access: ContentAccess, event: event_pb2.BeforeAgentFinalizeEvent, revision_count: int
) -> event_pb2.BeforeAgentFinalizeEvent:
    """Return the event with its draft redacted, and with the counts of this service."""
    redacted = event_pb2.BeforeAgentFinalizeEvent()
    redacted.CopyFrom(event)
    redacted.revision_count = revision_count
    redacted.max_revision_count = MAX_REVISION_COUNT
    redacted.draft_text = _redact_text(access, event.draft_text)
    return redacted


def redact_prompt(
    access: ContentAccess, event: event_pb2.BeforePromptBuildEvent
) -> event_pb2.BeforePromptBuildEvent:
    """Return the event with its system prompt redacted."""
    redacted = event_pb2.BeforePromptBuildEvent()
    redacted.CopyFrom(event)
    redacted.system_prompt = _redact_text(access, event.system_prompt)
    return redacted


def redact_tool_call(
    access: ContentAccess, event: event_pb2.BeforeToolCallEvent
) -> event_pb2.BeforeToolCallEvent:
    """Return the event with its arguments redacted."""
    redacted = event_pb2.BeforeToolCallEvent()
    redacted.CopyFrom(event)
    if not access.plugin.sees_content:
        redacted.ClearField("arguments_json")
    elif access.masks_secrets:
        redacted.arguments_json = masked_json(event.arguments_json, "event.arguments_json")
    return redacted


def redact_compaction(access: ContentAccess, event: BeforeCompactionEvent) -> BeforeCompactionEvent:
    """Return the event with the previous summary redacted."""
    redacted = BeforeCompactionEvent()
    redacted.CopyFrom(event)
    redacted.previous_summary = _redact_text(access, event.previous_summary)
    return redacted


def redact_observed(access: ContentAccess, event: observed_pb2.ObservedEvent) -> observed_pb2.ObservedEvent:
    """Return the event with its content redacted."""
    if not access.plugin.sees_content:
        return without_content(event)
    return without_secrets(event) if access.masks_secrets else event


def without_content(event: observed_pb2.ObservedEvent) -> observed_pb2.ObservedEvent:
    """Return the event with its metadata only."""
    redacted = observed_pb2.ObservedEvent()
    redacted.CopyFrom(event)
    kind = redacted.WhichOneof("event") or ""
    for field in _CONTENT_FIELDS.get(kind, ()):
        getattr(redacted, kind).ClearField(field)
    return redacted


def without_secrets(event: observed_pb2.ObservedEvent) -> observed_pb2.ObservedEvent:
    """Return the event with the secrets in its content masked."""
    redacted = observed_pb2.ObservedEvent()
    redacted.CopyFrom(event)
    kind = redacted.WhichOneof("event") or ""
    for field in _CONTENT_FIELDS.get(kind, ()):
        of_kind = getattr(redacted, kind)
        content = getattr(of_kind, field)
        if isinstance(content, str):
            setattr(of_kind, field, mask_text(content))
        elif not isinstance(content, Message):
            for index, message in enumerate(content):
                mask_message(message, f"event.{kind}.{field}[{index}]")
        elif of_kind.HasField(field):
            mask_message(content, f"event.{kind}.{field}")
    return redacted


def _redact_text(access: ContentAccess, text: str) -> str:
    if not access.plugin.sees_content:
        return ""
    return mask_text(text) if access.masks_secrets else text
