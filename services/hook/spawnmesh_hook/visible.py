"""What of an event a plugin may see: content only with its grant, or as one of the operator's own."""

from spawnmesh.hook.v1 import event_pb2, observed_pb2

from spawnmesh_hook.domain.decisions import MAX_REVISION_COUNT
from spawnmesh_hook.domain.plugins import Plugin

# Of each observed event, the fields that are content.
_CONTENT = {
    "llm_input": ("system_prompt", "messages"),
    "llm_output": ("message",),
    "after_tool_call": ("result_text",),
}


def spawn(plugin: Plugin, event: event_pb2.BeforeSpawnEvent) -> event_pb2.BeforeSpawnEvent:
    """A spawn, without the task."""
    told = event_pb2.BeforeSpawnEvent()
    told.CopyFrom(event)
    if not plugin.sees_content:
        told.ClearField("task")
    return told


def draft(
    plugin: Plugin, event: event_pb2.BeforeAgentFinalizeEvent, revision_count: int
) -> event_pb2.BeforeAgentFinalizeEvent:
    """A draft, without its text; the counts are this service's own."""
    told = event_pb2.BeforeAgentFinalizeEvent()
    told.CopyFrom(event)
    told.revision_count = revision_count
    told.max_revision_count = MAX_REVISION_COUNT
    if not plugin.sees_content:
        told.ClearField("draft_text")
    return told


def prompt(plugin: Plugin, event: event_pb2.BeforePromptBuildEvent) -> event_pb2.BeforePromptBuildEvent:
    """A prompt, without its text."""
    told = event_pb2.BeforePromptBuildEvent()
    told.CopyFrom(event)
    if not plugin.sees_content:
        told.ClearField("system_prompt")
    return told


def tool_call(plugin: Plugin, event: event_pb2.BeforeToolCallEvent) -> event_pb2.BeforeToolCallEvent:
    """A tool call, without its arguments."""
    told = event_pb2.BeforeToolCallEvent()
    told.CopyFrom(event)
    if not plugin.sees_content:
        told.ClearField("arguments_json")
    return told


def observed(plugin: Plugin, event: observed_pb2.ObservedEvent) -> observed_pb2.ObservedEvent:
    """An observed event, without its content."""
    return event if plugin.sees_content else without_content(event)


def without_content(event: observed_pb2.ObservedEvent) -> observed_pb2.ObservedEvent:
    """The event's metadata."""
    told = observed_pb2.ObservedEvent()
    told.CopyFrom(event)
    kind = told.WhichOneof("event") or ""
    for field in _CONTENT.get(kind, ()):
        getattr(told, kind).ClearField(field)
    return told
