"""Answer the runs of the agent `sdk` with agents of the OpenAI Agents SDK, until SIGTERM.

make examples
RUNNER_TOKEN=$(spawnmesh token --runner --tenant demo --agent sdk)
RUNNER_TOKEN=$RUNNER_TOKEN PYTHONPATH=build/examples python examples/openai_agents_worker.py

The models are those of the mesh: no key of a provider is here. Sessions have the runtime EXTERNAL.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

from agents import (
    Agent,
    AgentOutputSchemaBase,
    Handoff,
    Model,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    Runner,
    Tool,
    Usage,
    set_tracing_disabled,
)
from agents.items import ItemHelpers, TResponseInputItem, TResponseStreamEvent
from openai.types.responses import ResponseOutputMessage, ResponseOutputText
from spawnmesh_client import connect
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.worker import Worker


class MeshModel(Model):
    """A model of the SDK that is the model router of the mesh, for one run.

    It answers with text. Tools, handoffs, typed output and streams are not offered: `generate` has
    none of them.
    """

    def __init__(self, ctx: RunContext) -> None:
        self._ctx = ctx

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: list[Handoff],
        tracing: ModelTracing,
        **_: Any,
    ) -> ModelResponse:
        if tools or output_schema or handoffs:
            raise ValueError("the models of a run have no tools, handoffs or typed output here")
        items = ItemHelpers.input_to_new_input_list(input)
        prompt = "\n\n".join(_text(item) for item in items)
        made = await self._ctx.generate(prompt, system_prompt=system_instructions)
        text = ResponseOutputText(type="output_text", text=made.text, annotations=[])
        message = ResponseOutputMessage(
            type="message", id=f"msg_{uuid4().hex}", role="assistant", status="completed", content=[text]
        )
        read, written = made.usage.input_token_count, made.usage.output_token_count
        usage = Usage(requests=1, input_tokens=read, output_tokens=written, total_tokens=read + written)
        return ModelResponse([message], usage, response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[TResponseStreamEvent]:
        raise NotImplementedError("use Runner.run: this model does not stream")


def _text(item: Any) -> str:
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


async def answer(ctx: RunContext) -> str:
    """Let one agent write and another one judge, both on the models of the run."""
    model = MeshModel(ctx)
    writer = Agent(name="writer", instructions="Answer in one sentence.", model=model)
    judge = Agent(name="judge", instructions="Say if this is an answer.", model=model)
    written = await Runner.run(writer, ctx.task)
    judged = await Runner.run(judge, str(written.final_output))
    return f"{written.final_output}\n{judged.final_output}"


async def main() -> None:
    set_tracing_disabled(True)  # The SDK would send its own traces to its vendor.
    async with connect(token=os.environ["RUNNER_TOKEN"]) as mesh:
        worker = Worker(mesh, name="openai-agents")
        worker.agent("sdk")(answer)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
