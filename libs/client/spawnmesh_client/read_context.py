"""The context that the model of a worker's run reads, with or without a prompt window."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spawnmesh.transcript.v1 import transcript_service_pb2 as transcripts

from spawnmesh_client.file_descriptions import TRANSCRIPT_DESCRIBE, has_references
from spawnmesh_client.model_calls import ModelOptions
from spawnmesh_client.run_compaction import DEFAULT_CONTEXT_TOKEN_BUDGET, fresh_tail
from spawnmesh_client.run_transcript import open_window, transcript_call
from spawnmesh_client.tools import Tool

if TYPE_CHECKING:  # The context of a run has the loop that reads.
    from spawnmesh_client.run_context import RunContext


@dataclass(frozen=True, slots=True)
class ReadContext:
    """Read what a model sees of the transcript.

    `tools` gets the tool that reads long outputs, once the context has references to some.
    """

    run_context: "RunContext"
    tools: dict[str, Tool]
    options: ModelOptions

    async def open_window(self) -> tuple[transcripts.Fence, transcripts.AssembleContextResponse]:
        """Return the fence of the transcript, and what the model reads under it."""
        opened = await open_window(self.run_context, self._request())
        if self._offers_describe(opened.context):
            opened = await open_window(self.run_context, self._request())
        return opened.fence, opened.context

    async def assemble(self) -> transcripts.AssembleContextResponse:
        """Return what the model reads now."""
        read = partial(transcript_call, self.run_context, "AssembleContext")
        context: transcripts.AssembleContextResponse = await read(self._request())
        if self._offers_describe(context):
            context = await read(self._request())
        return context

    @property
    def token_budget(self) -> int:
        """The budget of the context, in the model's tokens."""
        return self.run_context.agent.context_token_budget or DEFAULT_CONTEXT_TOKEN_BUDGET

    def _offers_describe(self, context: transcripts.AssembleContextResponse) -> bool:
        """Offer the tool that reads long outputs, if the context has references to some.

        Return whether it is new: then it takes a part of the budget.
        """
        if TRANSCRIPT_DESCRIBE.name in self.tools or not has_references(context):
            return False
        self.tools[TRANSCRIPT_DESCRIBE.name] = TRANSCRIPT_DESCRIBE
        return True

    def _request(self) -> transcripts.AssembleContextRequest:
        """Return the request for the context. System prompt and tools use a part of its budget."""
        run = self.run_context
        prompt = self.options.system_prompt
        declared = [one.declaration for one in self.tools.values()]
        return transcripts.AssembleContextRequest(
            session_id=run.session.session_id,
            token_budget=self.token_budget,
            fresh_tail=fresh_tail(self.token_budget),
            model=self.options.model or next(iter(run.claimed.models), ""),
            accompanying_texts=[
                run.agent.system_prompt if prompt is None else prompt,
                *(f"{one.name} {one.description} {one.parameters_json}" for one in declared),
            ],
        )
