"""Arguments that a plugin gave a tool call, with the secrets that it was not shown."""

from spawnmesh.hook.v1.decision_pb2 import ToolCallDecision
from spawnmesh.hook.v1.event_pb2 import BeforeToolCallEvent
from spawnmesh_core.unmasking import unmask_document

from spawnmesh_hook.domain.plugins import Viewer

MAX_ARGUMENTS_BYTES = 1024 * 1024
"""What the contract allows for the arguments of a rewrite, with the secrets back in them as well."""


def rewritten_arguments(viewer: Viewer, event: BeforeToolCallEvent, decision: ToolCallDecision) -> str:
    """The arguments of a rewrite; empty where the decision is another. Raises NotRestorable for a marker that does not tell its secret."""
    written = decision.rewrite.arguments_json
    if not written or not viewer.masks_secrets:
        return written
    return unmask_document(written, event.arguments_json, MAX_ARGUMENTS_BYTES)
