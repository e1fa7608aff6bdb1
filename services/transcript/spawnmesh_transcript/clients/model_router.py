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
_COMPLETE = (generation_pb2.STOP_REASON_END, generation_pb2.STOP_REASON_UNSPECIFIED)


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """A model's text, empty if it did not finish or refused.

    `model` is empty if none said anything.
    """

    text: str
    model: str
    usage: content_pb.TokenUsage


async def generate_text(
    router: Peer, key: Key, models: Sequence[str], *, system_prompt: str, user_prompt: str
) -> GeneratedText:
    """Have the first of the models that is available answer a prompt.

    The text is empty if every model that was called answered nothing. Raises the router's
    MeshError.
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
    )
    stub: ModelRouterServiceAsyncStub = ModelRouterServiceStub(router.channel)
    try:
        completion = await _complete(router, stub, request, key)
    except MeshError as error:
        if _answered_nothing(error):
            return GeneratedText("", "", content_pb.TokenUsage())
        raise
    message = completion.message
    text = "".join(block.text.text for block in message.content if block.HasField("text")).strip()
    is_complete = completion.stop_reason in _COMPLETE
    return GeneratedText(text if is_complete else "", message.model, message.usage)


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
