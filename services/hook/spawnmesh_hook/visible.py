"""What of an event a plugin may see: content only with its grant, or as one of the operator's own, and masked where the tenant wants that.

All of it raises INVALID_REQUEST, where secrets are masked, for what should be JSON and is not: what is not understood is not shown.
"""

from spawnmesh.content.v1.message_pb2 import Message
from spawnmesh.hook.v1 import event_pb2, observed_pb2
from spawnmesh.hook.v1.compaction_pb2 import BeforeCompactionEvent
from spawnmesh_core.secrets import mask_text
from spawnmesh_runtime.masking import mask_message, masked_json

from spawnmesh_hook.domain.decisions import MAX_REVISION_COUNT
from spawnmesh_hook.domain.plugins import Viewer

# Of each observed event, the fields that are content: a text, a message or several.
_CONTENT = {
    "llm_input": ("system_prompt", "messages"),
    "llm_output": ("message",),
    "after_tool_call": ("result_text",),
    "after_compaction": ("summary",),
}


def spawn(viewer: Viewer, event: event_pb2.BeforeSpawnEvent) -> event_pb2.BeforeSpawnEvent:
    """A spawn, without the task."""
    told = event_pb2.BeforeSpawnEvent()
    told.CopyFrom(event)
    told.task = _text(viewer, event.task)
    return told


def draft(
    viewer: Viewer, event: event_pb2.BeforeAgentFinalizeEvent, revision_count: int
) -> event_pb2.BeforeAgentFinalizeEvent:
    """A draft, without its text; the counts are this service's own."""
    told = event_pb2.BeforeAgentFinalizeEvent()
    told.CopyFrom(event)
    told.revision_count = revision_count
    told.max_revision_count = MAX_REVISION_COUNT
    told.draft_text = _text(viewer, event.draft_text)
    return told


def prompt(viewer: Viewer, event: event_pb2.BeforePromptBuildEvent) -> event_pb2.BeforePromptBuildEvent:
    """A prompt, without its text."""
    told = event_pb2.BeforePromptBuildEvent()
    told.CopyFrom(event)
    told.system_prompt = _text(viewer, event.system_prompt)
    return told


def tool_call(viewer: Viewer, event: event_pb2.BeforeToolCallEvent) -> event_pb2.BeforeToolCallEvent:
    """A tool call, without its arguments."""
    told = event_pb2.BeforeToolCallEvent()
    told.CopyFrom(event)
    if not viewer.plugin.sees_content:
        told.ClearField("arguments_json")
    elif viewer.masks_secrets:
        told.arguments_json = masked_json(event.arguments_json, "event.arguments_json")
    return told


def compaction(viewer: Viewer, event: BeforeCompactionEvent) -> BeforeCompactionEvent:
    """A compaction, without the summary before."""
    told = BeforeCompactionEvent()
    told.CopyFrom(event)
    told.previous_summary = _text(viewer, event.previous_summary)
    return told


def observed(viewer: Viewer, event: observed_pb2.ObservedEvent) -> observed_pb2.ObservedEvent:
    """An observed event, without its content."""
    if not viewer.plugin.sees_content:
        return without_content(event)
    return without_secrets(event) if viewer.masks_secrets else event


def without_content(event: observed_pb2.ObservedEvent) -> observed_pb2.ObservedEvent:
    """The event's metadata."""
    told = observed_pb2.ObservedEvent()
    told.CopyFrom(event)
    kind = told.WhichOneof("event") or ""
    for field in _CONTENT.get(kind, ()):
        getattr(told, kind).ClearField(field)
    return told


def without_secrets(event: observed_pb2.ObservedEvent) -> observed_pb2.ObservedEvent:
    """The event with its content masked."""
    told = observed_pb2.ObservedEvent()
    told.CopyFrom(event)
    kind = told.WhichOneof("event") or ""
    for field in _CONTENT.get(kind, ()):
        of_kind = getattr(told, kind)
        content = getattr(of_kind, field)
        if isinstance(content, str):
            setattr(of_kind, field, mask_text(content))
        elif not isinstance(content, Message):
            for index, message in enumerate(content):
                mask_message(message, f"event.{kind}.{field}[{index}]")
        elif of_kind.HasField(field):
            mask_message(content, f"event.{kind}.{field}")
    return told


def _text(viewer: Viewer, text: str) -> str:
    if not viewer.plugin.sees_content:
        return ""
    return mask_text(text) if viewer.masks_secrets else text
