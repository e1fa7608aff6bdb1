"""The context that the model reads now, as the transcript service assembles it."""

from collections.abc import Awaitable, Callable

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_client.file_descriptions import has_references

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.tools.calling.registry import declaration
from spawnmesh_runner.tools.transcript_describe import TRANSCRIPT_DESCRIBE


async def assemble(assignment: Assignment) -> pb.AssembleContextResponse:
    """Assemble what the model reads now, within the agent's token budget."""
    peers = assignment.peers

    async def read() -> pb.AssembleContextResponse:
        request = context_request(assignment)
        return await call_with_retry(peers.transcript, peers.transcripts.AssembleContext, request)

    return await context_for(assignment, read)


async def context_for(
    assignment: Assignment, read: Callable[[], Awaitable[pb.AssembleContextResponse]]
) -> pb.AssembleContextResponse:
    """Read the context.

    If it has references to long outputs, the agent gets the tool that reads them, and the context
    is read again with it.
    """
    context = await read()
    if TRANSCRIPT_DESCRIBE.name not in assignment.tools and has_references(context):
        assignment.tools[TRANSCRIPT_DESCRIBE.name] = TRANSCRIPT_DESCRIBE
        context = await read()
    return context


def context_request(assignment: Assignment) -> pb.AssembleContextRequest:
    """Return the request for the context. System prompt and tools use a part of its budget."""
    declared = map(declaration, assignment.tools.values())
    return pb.AssembleContextRequest(
        session_id=assignment.session_id,
        token_budget=assignment.context_token_budget,
        fresh_tail=assignment.fresh_tail,
        model=next(iter(assignment.claimed.models), ""),
        accompanying_texts=[
            assignment.system_prompt,
            *(f"{tool.name} {tool.description} {tool.parameters_json}" for tool in declared),
        ],
    )
