"""Restores the masked secrets in the arguments that a plugin gave a tool call."""

from spawnmesh.hook.v1.decision_pb2 import ToolCallDecision
from spawnmesh.hook.v1.event_pb2 import BeforeToolCallEvent
from spawnmesh_core.unmasking import unmask_document

from spawnmesh_hook.domain.plugins import ContentAccess

MAX_ARGUMENTS_BYTES = 1024 * 1024
"""The bound of the proto for the arguments of a rewrite, also with the secrets restored."""


def rewritten_arguments(access: ContentAccess, event: BeforeToolCallEvent, decision: ToolCallDecision) -> str:
    """Return the arguments of a rewrite, or an empty text if the decision is no rewrite.

    Raises NotRestorable if a marker does not identify its secret.
    """
    arguments = decision.rewrite.arguments_json
    if not arguments or not access.masks_secrets:
        return arguments
    return unmask_document(arguments, event.arguments_json, MAX_ARGUMENTS_BYTES)
