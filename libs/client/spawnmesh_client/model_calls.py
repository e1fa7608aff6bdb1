"""Calls of the model router in the name of a run."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from spawnmesh.content.v1.message_pb2 import Message, TokenUsage
from spawnmesh.model_router.v1.generation_pb2 import Completion
from spawnmesh.model_router.v1.model_router_service_pb2 import GenerateRequest, GenerationEvent
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh.session.v1.run_service_pb2 import ClaimedRun
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason

from spawnmesh_client.run_events import RunEvents
from spawnmesh_client.token_peer import TokenPeer

_GENERATE_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """The choices of a worker's function for its model calls.

    Without a system prompt, it is the agent's; without a model, the models are those of the run.
    """

    system_prompt: str | None = None
    model: str = ""
    on_text: Callable[[str], None] | None = None


def model_request(claimed: ClaimedRun, options: ModelOptions, messages: Sequence[Message]) -> GenerateRequest:
    """Return the request for an answer to the messages."""
    agent = claimed.agent
    first, *others = [options.model] if options.model else list(claimed.models) or [""]
    request = GenerateRequest(
        model=first,
        system_prompt=agent.system_prompt if options.system_prompt is None else options.system_prompt,
        messages=messages,
        session_id=claimed.session.session_id,
        thinking=claimed.thinking,
    )
    if agent.models and not options.model:  # The agent's list is complete: no other model is called.
        request.fallbacks.models.extend(others)
        request.fallbacks.SetInParent()
    else:
        request.fallback_models.extend(others)
    return request


async def call_model(
    peer: TokenPeer,
    request: GenerateRequest,
    usage: TokenUsage,
    events: RunEvents,
    on_event: Callable[[GenerationEvent], None],
) -> Completion:
    """Return the answer of a model, and add the tokens of all attempts to the usage.

    Models that fail become events of the run. `on_event` gets what the model says while it says it.
    Raises MeshError.
    """
    stub, model = ModelRouterServiceStub(peer.channel), ""
    try:
        async for answer in peer.stream(stub.Generate, request, timeout_seconds=_GENERATE_SECONDS):
            for event in answer.events:
                if event.HasField("completion"):
                    add_usage(usage, event.completion.failed_usage)
                    add_usage(usage, event.completion.message.usage)
                    return event.completion
                if event.HasField("attempt_started"):
                    model = event.attempt_started.model
                events.add_failed_attempt(event)
                on_event(event)
    except MeshError as error:
        add_usage(usage, _used_usage(error.facts))
        events.add_broken_stream(error, model)
        raise
    raise MeshError(Reason.STREAM_BROKEN, "the model router ended the answer without a completion")


def add_usage(total: TokenUsage, used: TokenUsage) -> None:
    """Add the usage of a model call. The version of the prices is that of the last call."""
    for name, field in TokenUsage.DESCRIPTOR.fields_by_name.items():
        value = getattr(used, name)
        if field.cpp_type != field.CPPTYPE_STRING:
            setattr(total, name, getattr(total, name) + value)
        elif value:
            setattr(total, name, value)


def _used_usage(facts: Mapping[str, str]) -> TokenUsage:
    """Return the usage of a model call that failed, which the facts of its error name."""
    used = TokenUsage()
    for name in TokenUsage.DESCRIPTOR.fields_by_name:
        with suppress(KeyError, ValueError, TypeError):
            setattr(used, name, int(facts[f"used_{name}"]))
    return used
