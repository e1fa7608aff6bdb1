"""Parse the request of Generate, which ExplainRoute has too."""

import re
from collections.abc import Awaitable, Callable, Sequence

from spawnmesh.content.v1 import message_pb2, thinking_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import invalid, not_found
from spawnmesh_core.json_text import TooManyNodes
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_model_router.clients.providers.provider_request import (
    NamedImage,
    ProviderRequest,
    ToolDefinition,
)
from spawnmesh_model_router.domain.candidates import parse_ref
from spawnmesh_model_router.domain.partial import FailedAttempt, merge, summarize_failures
from spawnmesh_model_router.domain.policy import TenantPolicy
from spawnmesh_model_router.domain.reasons import FailoverReason
from spawnmesh_model_router.domain.request_json import MAX_JSON_VALUES, ToolSchema
from spawnmesh_model_router.domain.request_size import RequestSize
from spawnmesh_model_router.domain.router_config import RouterConfig
from spawnmesh_model_router.domain.routing_request import EarlierAttempts, RoutingRequest
from spawnmesh_model_router.domain.thinking import ThinkingLevel
from spawnmesh_model_router.rpc.messages import parse_partial_execution, parse_reason

_MIME_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,62}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,62}")
_NO_PARAMETERS = '{"type":"object","properties":{}}'

ReadSchemas = Callable[[str, Sequence[str], Sequence[str]], Awaitable[list[ToolSchema | None]]]
"""Reads the schemas of tools for a tenant, within bounds that count its tool calls, too."""


async def parse_generate_request(
    request: pb.GenerateRequest,
    caller: Caller,
    policy: TenantPolicy,
    config: RouterConfig,
    deadline: float,
    read_schemas: ReadSchemas,
) -> tuple[RoutingRequest, ProviderRequest]:
    """Return how to route the call, and the content for the provider.

    Raises MeshError INVALID_REQUEST, and NOT_FOUND if a run names a session, a run or an agent that
    is not its own, or a client names a run or an agent.
    """
    session_id, budget_run_id = _parse_session(request, caller)
    _check_images(request)
    only_named = request.HasField("fallbacks")
    if only_named and request.fallback_models:
        raise invalid("fallbacks", "and fallback_models cannot be given both")
    content = ProviderRequest(
        system_prompt=request.system_prompt,
        messages=tuple(request.messages),
        tools=await _parse_tools(request, caller.tenant_id, read_schemas),
        max_output=request.max_output_token_count,
        thinking=_parse_thinking(request.thinking),
        named_images=tuple(NamedImage(named.name, named.image) for named in request.named_images),
    )
    routing = RoutingRequest(
        tenant_id=caller.tenant_id,
        model=request.model.strip(),
        fallback_models=tuple(request.fallbacks.models if only_named else request.fallback_models),
        only_named=only_named,
        strict=request.strict,
        session_id=session_id,
        deadline=deadline,
        earlier=_parse_earlier(request, config),
        blind_model_policy=policy.blind_model_policy or config.blind_model_policy,
        policy=policy,
        image_count=content.image_count,
        image_boundary=content.image_boundary,
        size=RequestSize(content.text_bytes, content.image_count, content.max_output),
        has_tools=bool(content.tools),
        idempotent_tools=frozenset(tool.name for tool in content.tools if tool.idempotent),
        last_answer_provider=content.last_answer_provider,
        budget_run_id=budget_run_id,
        run_epoch=caller.epoch,
        agent_id=_parse_agent(request, caller),
    )
    return routing, content


def _parse_session(request: pb.GenerateRequest, caller: Caller) -> tuple[str, str]:
    """Return the session of the call, and the run in whose budgets it counts; empty if in none.

    A service names the run for which it calls. The token of a run says whether it has budgets.
    """
    session_id, run_id = request.session_id, request.run_id
    if caller.kind is CallerKind.RUN:
        if session_id not in ("", caller.session_id):
            raise not_found("session", session_id)
        if run_id not in ("", caller.run_id):
            raise not_found("run", run_id)
        return caller.session_id, caller.run_id if caller.has_budget else ""
    if run_id and caller.kind is not CallerKind.SERVICE:
        raise not_found("run", run_id)
    if run_id and not session_id:
        raise invalid("session_id", "must be given with run_id")
    return session_id, run_id


def _parse_agent(request: pb.GenerateRequest, caller: Caller) -> str:
    """Return the agent whose spending the call is; empty if none is known.

    The token of a run names its agent. A service names the agent for whose run it calls.
    """
    if caller.kind is not CallerKind.SERVICE and request.agent_id not in ("", caller.agent_id):
        raise not_found("agent", request.agent_id)
    return caller.agent_id or request.agent_id


def _check_images(request: pb.GenerateRequest) -> None:
    """Check the type of each image.

    A type is sent to the provider as it is, and the provider's error may repeat it. It must not be
    free text.
    """
    for index, message in enumerate(request.messages):
        for number, block in enumerate(message.content):
            if block.HasField("image"):
                _check_mime_type(f"messages[{index}].content[{number}].image.mime_type", block.image)
    for index, named in enumerate(request.named_images):
        _check_mime_type(f"named_images[{index}].image.mime_type", named.image)


def _check_mime_type(field: str, image: message_pb2.Image) -> None:
    if _MIME_TYPE.fullmatch(image.mime_type) is None:
        raise invalid(field, "must be a type and a subtype, as image/png is")


async def _parse_tools(
    request: pb.GenerateRequest, tenant_id: str, read_schemas: ReadSchemas
) -> tuple[ToolDefinition, ...]:
    """Return the tools of the request, whose tool calls are checked as well."""
    names: set[str] = set()
    for index, declared in enumerate(request.tools):
        if declared.name in names:
            raise invalid(f"tools[{index}].name", "must differ from the others")
        names.add(declared.name)
    texts = [declared.parameters_json or _NO_PARAMETERS for declared in request.tools]
    blocks = [
        block.tool_call.block_json
        for message in request.messages
        for block in message.content
        if block.HasField("tool_call")
    ]
    try:
        schemas = await read_schemas(tenant_id, texts, blocks)
    except TooManyNodes:
        problem = f"and the tool calls of the messages have more than {MAX_JSON_VALUES} JSON values"
        raise invalid("tools", problem) from None
    tools = []
    for index, (declared, schema) in enumerate(zip(request.tools, schemas, strict=True)):
        if schema is None:
            raise invalid(f"tools[{index}].parameters_json", "must be a JSON object")
        tools.append(
            ToolDefinition(
                declared.name,
                declared.description,
                schema.parameters,
                schema.size_bytes,
                declared.is_idempotent,
            )
        )
    return tuple(tools)


def _parse_thinking(level: thinking_pb2.ThinkingLevel.ValueType) -> ThinkingLevel | None:
    if not level:
        return None
    return ThinkingLevel[thinking_pb2.ThinkingLevel.Name(level).removeprefix("THINKING_LEVEL_")]


def _parse_earlier(request: pb.GenerateRequest, config: RouterConfig) -> EarlierAttempts:
    attempts = [
        FailedAttempt(
            parse_reason(attempt.reason) or FailoverReason.UNKNOWN,
            parse_partial_execution(attempt.partial_execution),
        )
        for attempt in request.earlier_attempts
    ]
    earlier = summarize_failures(attempts)
    first = parse_ref(request.earlier_attempts[0].model, config.lowered_aliases) if attempts else None
    return EarlierAttempts(
        is_retry=bool(attempts),
        first_provider=first.provider if first is not None else "",
        previous_reason=earlier.previous_reason,
        done=merge([earlier.partial, parse_partial_execution(request.partial_execution)]),
        broken=frozenset(
            model
            for attempt in request.earlier_attempts
            if attempt.stream_broke and (model := config.resolve_model(attempt.model)) is not None
        ),
    )
