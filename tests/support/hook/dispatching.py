"""Dispatches every hook that has an answer, as its caller in the mesh."""

import uuid
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message
from spawnmesh.hook.v1 import compaction_pb2 as compactions
from spawnmesh.hook.v1 import decision_pb2 as decisions
from spawnmesh.hook.v1 import delivery_target_pb2 as targets
from spawnmesh.hook.v1 import event_pb2 as events
from spawnmesh.hook.v1 import hook_service_pb2 as pb
from spawnmesh.hook.v1 import run_hook_service_pb2 as run_pb
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_KILLED

from tests.support.hook.fixtures import COMPACTION, FINALIZE, MODEL, PROMPT, SPAWN, TARGET, TOOL_CALL, Tenant
from tests.support.hook.scripted_plugin import ALLOW, CONTINUE

DEFAULT_ANSWERS: Mapping["events.HookKind.ValueType", Message] = {
    FINALIZE: CONTINUE,
    SPAWN: ALLOW,
    MODEL: decisions.ModelDecision(),
    PROMPT: decisions.PromptDecision(),
    TOOL_CALL: decisions.ToolCallDecision(proceed=decisions.Proceed()),
    TARGET: targets.DeliveryTargetDecision(),
    COMPACTION: compactions.CompactionDecision(compact=compactions.Compact()),
}
"""The hooks, each with the decision if no plugin objects."""

_RUN: dict[str, Any] = {"session_id": "ses_1", "run_id": "run_1"}


async def dispatch(
    tenant: Tenant, hook: "events.HookKind.ValueType", *, timeout_seconds: float = 60.0
) -> Any:
    """Return the answer of the dispatch. Each call uses a new draft, and spawns a new session."""
    finalize = pb.DispatchBeforeAgentFinalizeRequest(
        event=events.BeforeAgentFinalizeEvent(**_RUN), request_id=uuid.uuid4().hex
    )
    spawn = pb.DispatchBeforeSpawnRequest(event=events.BeforeSpawnEvent(session_id=f"ses_{uuid.uuid4().hex}"))
    model = run_pb.DispatchBeforeModelResolveRequest(event=events.BeforeModelResolveEvent(**_RUN))
    prompt = run_pb.DispatchBeforePromptBuildRequest(event=events.BeforePromptBuildEvent(**_RUN))
    call = run_pb.DispatchBeforeToolCallRequest(event=events.BeforeToolCallEvent(**_RUN))
    target = targets.DispatchDeliveryTargetRequest(
        event=targets.DeliveryTargetEvent(**_RUN, outcome=END_OUTCOME_KILLED)
    )
    compaction = compactions.DispatchBeforeCompactionRequest(event=compactions.BeforeCompactionEvent(**_RUN))
    caller, request = {
        FINALIZE: (tenant.as_session, finalize),
        SPAWN: (tenant.as_session, spawn),
        MODEL: (tenant.as_run, model),
        PROMPT: (tenant.as_run, prompt),
        TOOL_CALL: (tenant.as_run, call),
        TARGET: (tenant.as_session, target),
        COMPACTION: (tenant.as_transcript, compaction),
    }[hook]
    return await caller(request.DESCRIPTOR.name.removesuffix("Request"), request, timeout_seconds)
