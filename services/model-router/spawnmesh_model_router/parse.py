"""Requests as values."""

import math

from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh_core.errors import not_found
from spawnmesh_runtime.caller import Caller, CallerKind

from spawnmesh_model_router.ask import Ask
from spawnmesh_model_router.providers.question import Question, parse_tools


def parse_ask(request: pb.GenerateRequest, caller: Caller, now: float, remaining_seconds: float | None) -> Ask:
    """What the caller wants; `now` is on the monotonic clock.

    Raises MeshError INVALID_REQUEST, and NOT_FOUND for a run that names another session.
    """
    session_id = request.session_id
    if caller.kind is CallerKind.RUN:
        if session_id not in ("", caller.session_id):
            raise not_found("session", session_id)
        session_id = caller.session_id
    return Ask(
        model=request.model.strip(),
        fallback_models=tuple(request.fallback_models),
        strict=request.strict,
        question=Question(
            system_prompt=request.system_prompt,
            messages=tuple(request.messages),
            tools=parse_tools(request.tools),
            max_output=request.max_output_token_count,
        ),
        session_id=session_id,
        deadline=math.inf if remaining_seconds is None else now + remaining_seconds,
    )
