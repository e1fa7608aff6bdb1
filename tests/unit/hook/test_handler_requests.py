"""A worker process can send back the request to a plugin that it built."""

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from spawnmesh.hook.v1 import event_pb2, observed_pb2
from spawnmesh.hook.v1.compaction_pb2 import BeforeCompactionEvent
from spawnmesh.hook.v1.delivery_target_pb2 import DeliveryTargetEvent
from spawnmesh.hook.v1.end_outcome_pb2 import END_OUTCOME_SUCCEEDED
from spawnmesh.hook.v1.hook_handler_service_pb2 import DESCRIPTOR
from spawnmesh_hook.clients.handler_request import HandlerMethod, HandlerRequest
from spawnmesh_hook.domain.plugins import ContentAccess, FailurePolicy, Grant, HookKind, Plugin
from spawnmesh_hook.operations import request_builders

PLUGIN = Plugin(
    "p", "grpc://host:1", tuple(HookKind), 0, timedelta(seconds=15), FailurePolicy.OPEN, tuple(Grant)
)
ACCESS = ContentAccess(PLUGIN, masks_secrets=True)
REQUESTS: dict[str, Callable[[], HandlerRequest[Any, Any]]] = {
    "spawn": lambda: request_builders.before_spawn(ACCESS, event_pb2.BeforeSpawnEvent(task="t")),
    "finalize": lambda: request_builders.before_agent_finalize(
        ACCESS, event_pb2.BeforeAgentFinalizeEvent(draft_text="t"), 1
    ),
    "model": lambda: request_builders.before_model_resolve(
        ACCESS, event_pb2.BeforeModelResolveEvent(models=["m"])
    ),
    "prompt": lambda: request_builders.before_prompt_build(
        ACCESS, event_pb2.BeforePromptBuildEvent(system_prompt="t")
    ),
    "tool call": lambda: request_builders.before_tool_call(
        ACCESS, event_pb2.BeforeToolCallEvent(arguments_json='{"a": 1}')
    ),
    "target": lambda: request_builders.delivery_target(
        ACCESS, DeliveryTargetEvent(outcome=END_OUTCOME_SUCCEEDED)
    ),
    "compaction": lambda: request_builders.before_compaction(
        ACCESS, BeforeCompactionEvent(previous_summary="t")
    ),
    "observed": lambda: request_builders.observed(
        ACCESS, HookKind.LLM_OUTPUT, observed_pb2.ObservedEvent(event_key="k")
    ),
}


def _valid(answer: Any) -> Any:
    """Return the answer with the first decision of its contract, if that has a choice."""
    if "decision" in answer.DESCRIPTOR.fields_by_name:
        for choice in answer.decision.DESCRIPTOR.oneofs:
            getattr(answer.decision, choice.fields[0].name).SetInParent()
    return answer


@pytest.mark.parametrize("case", list(REQUESTS))
def test_a_request_can_be_pickled(case: str) -> None:
    built = REQUESTS[case]()
    sent: HandlerRequest[Any, Any] = pickle.loads(pickle.dumps(built))
    assert (sent.request, sent.method) == (built.request, built.method)
    answer = _valid(sent.answer_type())
    assert sent.decision_of(answer) == built.decision_of(answer)
    assert sent.check_permitted(answer) == built.check_permitted(answer)
    assert isinstance(sent.method, HandlerMethod)
    assert sent.method.name in DESCRIPTOR.services_by_name["HookHandlerService"].methods_by_name
