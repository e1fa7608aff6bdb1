"""The request to the model router: conversation, model candidates, and the turn's progress."""

from collections.abc import Sequence
from functools import partial

from spawnmesh.model_router.v1 import generation_pb2
from spawnmesh.model_router.v1 import model_router_service_pb2 as pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh_client.model_messages import messages_for_model
from spawnmesh_client.turn_effects import add_turn_effects

from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.compaction import current_turn
from spawnmesh_runner.loop.named_images import find_named_images
from spawnmesh_runner.loop.transcript_pages import has_entry_after
from spawnmesh_runner.tools.calling.registry import declaration


async def build_prompt(assignment: Assignment, entries: Sequence[entry_pb2.Entry]) -> pb.GenerateRequest:
    """Build the request for the next answer.

    Raises the MeshError of an unavailable transcript service.

    If an earlier runner began the turn, the request reports its attempt as a broken one.
    """
    first, *others = assignment.claimed.models or [""]
    turn = await current_turn(assignment, entries)
    request = pb.GenerateRequest(
        model=first,
        fallback_models=others,
        system_prompt=assignment.system_prompt,
        messages=messages_for_model(entries),
        tools=[_declared(assignment, name) for name in assignment.tools],
        session_id=assignment.session_id,
        thinking=assignment.claimed.thinking,
    )
    request.named_images.extend(await find_named_images(assignment, entries))
    if assignment.claimed.agent.models:  # The agent's list is complete: no other model is asked.
        request.fallbacks.models.extend(others)
        del request.fallback_models[:]
    await add_turn_effects(request, turn, assignment.epoch, partial(has_entry_after, assignment))
    return request


def _declared(assignment: Assignment, name: str) -> generation_pb2.ToolDeclaration:
    tool = assignment.tools[name]
    declared = declaration(tool)
    declared.is_idempotent = tool.idempotent
    return declared
