"""Calls of the model router: have a model write a text."""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceStub
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import impersonate
from spawnmesh_runtime.peers import Peer

from spawnmesh_transcript.domain.transcripts import Key

if TYPE_CHECKING:  # The asyncio types of the stubs exist for type checkers only.
    from spawnmesh.model_router.v1.model_router_service_pb2_grpc import ModelRouterServiceAsyncStub

_GENERATE_SECONDS = 180.0
_MAX_OUTPUT_TOKENS = 8_192  # Far more than a summary may have: thoughts of a model count, too.
_COUNTS = (
    "input_token_count",
    "output_token_count",
    "cache_read_token_count",
    "cache_write_token_count",
    "cost_micros",
)
_COMPLETE = (generation_pb2.STOP_REASON_END, generation_pb2.STOP_REASON_UNSPECIFIED)


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """A model's text, empty if it did not finish or refused.

    `model` is empty if none said anything. `usage` includes the attempts that failed.
    """

    text: str
    model: str
    usage: content_pb.TokenUsage


async def generate_text(
    router: Peer,
    key: Key,
    models: Sequence[str],
    *,
    system_prompt: str,
    user_prompt: str,
    budget_run_id: str = "",
    agent_id: str = "",
) -> GeneratedText:
    """Have the first of the models that is available answer a prompt.

    The call counts in the budgets of the run `budget_run_id`, if one is named, and is listed as the
    spending of the agent. The text is empty if every model that was called answered nothing.
    Raises the router's MeshError.
    """
    first, *others = models or [""]
    block = content_pb.ContentBlock(text=content_pb.Text(text=user_prompt))
    request = pb.GenerateRequest(
        model=first,
        fallbacks=pb.Fallbacks(models=others) if models else None,
        system_prompt=system_prompt,
        messages=[content_pb.Message(role=content_pb.ROLE_USER, content=[block])],
        max_output_token_count=_MAX_OUTPUT_TOKENS,
        session_id=key.session_id,
        run_id=budget_run_id,
        agent_id=agent_id,
    )
    stub: ModelRouterServiceAsyncStub = ModelRouterServiceStub(router.channel)
    try:
        completion = await _complete(router, stub, request, key)
    except MeshError as error:
        if _answered_nothing(error):
            return GeneratedText("", "", _used_in_vain(error))
        raise
    message = completion.message
    text = "".join(block.text.text for block in message.content if block.HasField("text")).strip()
    is_complete = completion.stop_reason in _COMPLETE
    usage = sum_of_usage(completion.failed_usage, message.usage)
    return GeneratedText(text if is_complete else "", message.model, usage)


def sum_of_usage(one: content_pb.TokenUsage, other: content_pb.TokenUsage) -> content_pb.TokenUsage:
    """Return the tokens and the cost of both, with the version of the prices of the last one."""
    return content_pb.TokenUsage(
        **{name: getattr(one, name) + getattr(other, name) for name in _COUNTS},
        price_version=other.price_version or one.price_version,
    )


def _used_in_vain(error: MeshError) -> content_pb.TokenUsage:
    """Return the usage that the facts of the router's error name."""
    usage = content_pb.TokenUsage()
    for name in _COUNTS:
        setattr(usage, name, int(error.facts.get(f"used_{name}", "0")))
    return usage


async def _complete(
    router: Peer, stub: "ModelRouterServiceAsyncStub", request: pb.GenerateRequest, key: Key
) -> generation_pb2.Completion:
    completion: generation_pb2.Completion | None = None
    with impersonate(key.tenant_id):
        async with aclosing(
            router.stream(stub.Generate, request, timeout_seconds=_GENERATE_SECONDS)
        ) as responses:
            async for response in responses:
                for event in response.events:
                    if event.HasField("completion"):
                        completion = event.completion
    if completion is None:
        raise MeshError(Reason.STREAM_BROKEN, "the summary ended before it was complete")
    return completion


def _answered_nothing(error: MeshError) -> bool:
    """Return whether each candidate of the chain gave an empty answer, as the facts say."""
    outcomes = [str(fact) for name, fact in error.facts.items() if name.startswith("candidate_")]
    return (
        error.reason is Reason.ALL_CANDIDATES_FAILED
        and bool(outcomes)
        and all(outcome.endswith(" EMPTY_RESPONSE") for outcome in outcomes)
    )
