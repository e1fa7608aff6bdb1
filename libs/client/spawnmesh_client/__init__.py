"""The Python client of a mesh.

    async with connect() as mesh:
        session = await mesh.spawn("Summarise the report.", attachments=["report.md"])
        result = await session.result(timeout=300)
        print(result.text)

`connect` finds the mesh by `SPAWNMESH_URL`, or the one that `spawnmesh up` started here. Methods
return typed views. A refusal is a subclass of `MeshError`; a run without an answer is a
`RunFailed`.
`spawnmesh_client.sync` has the same methods for programs without asyncio, and
`spawnmesh_client.testing` a mesh in memory for your tests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spawnmesh_core.errors import (
        AlreadyExists,
        Cancelled,
        Conflict,
        DataLoss,
        DeadlineExceeded,
        FailedPrecondition,
        InternalError,
        InvalidRequest,
        MeshError,
        NotFound,
        PermissionDenied,
        ResourceExhausted,
        Unauthenticated,
        Unavailable,
        Unimplemented,
    )
    from spawnmesh_core.reasons import Reason
    from spawnmesh_core.webhook_signature import SignatureRefused

    from spawnmesh_client.approval_views import Approval, ApprovalPolicy, ApprovalState
    from spawnmesh_client.attachments import Attachment, ReferencedFile
    from spawnmesh_client.budget_views import (
        Budget,
        BudgetLimit,
        BudgetUsage,
        SessionBudget,
        SessionUsage,
    )
    from spawnmesh_client.client import Mesh, connect
    from spawnmesh_client.live import (
        DraftRetracted,
        EntryAppended,
        LiveEvent,
        SessionChanged,
        TextDelta,
        ThinkingDelta,
        ToolCallDelta,
    )
    from spawnmesh_client.operations import Operation
    from spawnmesh_client.outcomes import Result, RunFailed, RunNotDone
    from spawnmesh_client.outputs import OutputSet
    from spawnmesh_client.resource_views import Agent, Model, Plugin, Tenant
    from spawnmesh_client.schedule_views import (
        CatchUpPolicy,
        FiringOutcome,
        OverlapPolicy,
        Schedule,
        ScheduledSpawn,
        ScheduleFiring,
    )
    from spawnmesh_client.session import Session
    from spawnmesh_client.session_diff import SessionDiff
    from spawnmesh_client.views import (
        Entry,
        EntryKind,
        EventKind,
        Role,
        Run,
        RunState,
        SessionEvent,
        SessionMode,
        SessionState,
        Usage,
    )
    from spawnmesh_client.webhook_messages import WebhookMessage
    from spawnmesh_client.webhook_views import Webhook, WebhookDelivery, WebhookDeliveryState

_NAMES = {
    "spawnmesh_client.approval_views": ("Approval", "ApprovalPolicy", "ApprovalState"),
    "spawnmesh_client.attachments": ("Attachment", "ReferencedFile"),
    "spawnmesh_client.budget_views": (
        "Budget", "BudgetLimit", "BudgetUsage", "SessionBudget", "SessionUsage",
    ),
    "spawnmesh_client.client": ("Mesh", "connect"),
    "spawnmesh_client.live": (
        "DraftRetracted", "EntryAppended", "LiveEvent", "SessionChanged", "TextDelta",
        "ThinkingDelta", "ToolCallDelta",
    ),
    "spawnmesh_client.operations": ("Operation",),
    "spawnmesh_client.outcomes": ("Result", "RunFailed", "RunNotDone"),
    "spawnmesh_client.outputs": ("OutputSet",),
    "spawnmesh_client.resource_views": ("Agent", "Model", "Plugin", "Tenant"),
    "spawnmesh_client.schedule_views": (
        "CatchUpPolicy", "FiringOutcome", "OverlapPolicy", "Schedule", "ScheduleFiring", "ScheduledSpawn",
    ),
    "spawnmesh_client.session": ("Session",),
    "spawnmesh_client.session_diff": ("SessionDiff",),
    "spawnmesh_client.views": (
        "Entry", "EntryKind", "EventKind", "Role", "Run", "RunState", "SessionEvent", "SessionMode",
        "SessionState", "Usage",
    ),
    "spawnmesh_client.webhook_messages": ("WebhookMessage",),
    "spawnmesh_client.webhook_views": ("Webhook", "WebhookDelivery", "WebhookDeliveryState"),
    "spawnmesh_core.errors": (
        "AlreadyExists", "Cancelled", "Conflict", "DataLoss", "DeadlineExceeded", "FailedPrecondition",
        "InternalError", "InvalidRequest", "MeshError", "NotFound", "PermissionDenied",
        "ResourceExhausted", "Unauthenticated", "Unavailable", "Unimplemented",
    ),
    "spawnmesh_core.reasons": ("Reason",),
    "spawnmesh_core.webhook_signature": ("SignatureRefused",),
}  # fmt: skip
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Agent",
    "AlreadyExists",
    "Approval",
    "ApprovalPolicy",
    "ApprovalState",
    "Attachment",
    "Budget",
    "BudgetLimit",
    "BudgetUsage",
    "Cancelled",
    "CatchUpPolicy",
    "Conflict",
    "DataLoss",
    "DeadlineExceeded",
    "DraftRetracted",
    "Entry",
    "EntryAppended",
    "EntryKind",
    "EventKind",
    "FailedPrecondition",
    "FiringOutcome",
    "InternalError",
    "InvalidRequest",
    "LiveEvent",
    "Mesh",
    "MeshError",
    "Model",
    "NotFound",
    "Operation",
    "OutputSet",
    "OverlapPolicy",
    "PermissionDenied",
    "Plugin",
    "Reason",
    "ReferencedFile",
    "ResourceExhausted",
    "Result",
    "Role",
    "Run",
    "RunFailed",
    "RunNotDone",
    "RunState",
    "Schedule",
    "ScheduleFiring",
    "ScheduledSpawn",
    "Session",
    "SessionBudget",
    "SessionChanged",
    "SessionDiff",
    "SessionEvent",
    "SessionMode",
    "SessionState",
    "SessionUsage",
    "SignatureRefused",
    "Tenant",
    "TextDelta",
    "ThinkingDelta",
    "ToolCallDelta",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Usage",
    "Webhook",
    "WebhookDelivery",
    "WebhookDeliveryState",
    "WebhookMessage",
    "connect",
]


def __getattr__(name: str) -> Any:
    """Import the name when it is first used.

    That takes a part of a second, during which a program can be interrupted.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
