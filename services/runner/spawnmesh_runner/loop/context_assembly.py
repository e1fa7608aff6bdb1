"""The context that the model reads now, as the transcript service assembles it."""

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_client.file_descriptions import has_references

from spawnmesh_runner.clients.retry import call_with_retry
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.tools.calling.registry import declaration
from spawnmesh_runner.tools.transcript_describe import TRANSCRIPT_DESCRIBE


async def assemble(assignment: Assignment) -> pb.AssembleContextResponse:
    """Assemble what the model reads now, within the agent's token budget.

    System prompt and tools use a part of it.

    If the context has references to long outputs, the agent gets the tool that reads them.
    """
    assembled = await _assemble(assignment)
    if TRANSCRIPT_DESCRIBE.name not in assignment.tools and has_references(assembled):
        assignment.tools[TRANSCRIPT_DESCRIBE.name] = TRANSCRIPT_DESCRIBE
        assembled = await _assemble(assignment)
    return assembled


async def _assemble(assignment: Assignment) -> pb.AssembleContextResponse:
    peers = assignment.peers
    declared = map(declaration, assignment.tools.values())
    request = pb.AssembleContextRequest(
        session_id=assignment.session_id,
        token_budget=assignment.context_token_budget,
        fresh_tail=assignment.fresh_tail,
        model=next(iter(assignment.claimed.models), ""),
        accompanying_texts=[
            assignment.system_prompt,
            *(f"{tool.name} {tool.description} {tool.parameters_json}" for tool in declared),
        ],
    )
    return await call_with_retry(peers.transcript, peers.transcripts.AssembleContext, request)
