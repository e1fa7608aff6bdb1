"""Answer the runs of the agent `grapher` with a graph of LangGraph, until SIGTERM or Ctrl-C.

make examples
RUNNER_TOKEN=$(spawnmesh token --runner --tenant demo --agent grapher)
RUNNER_TOKEN=$RUNNER_TOKEN PYTHONPATH=build/examples python examples/langgraph_worker.py

The agent may spawn the agent `default`. Sessions are spawned with the runtime EXTERNAL.
"""

import asyncio
import os
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from spawnmesh_client import connect
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.worker import Worker


class Work(TypedDict, total=False):
    """The state of the graph. Each node returns what it changes."""

    message_count: int
    draft: str
    review: str


async def read(state: Work, runtime: Runtime[RunContext]) -> Work:
    """Count the messages that a model reads of the transcript."""
    return {"message_count": len((await runtime.context.assemble()).messages)}


async def draft(state: Work, runtime: Runtime[RunContext]) -> Work:
    """Have the router of the mesh answer: it chooses the model, and fails over to another one."""
    return {"draft": (await runtime.context.generate()).text}


async def review(state: Work, runtime: Runtime[RunContext]) -> Work:
    """Let another agent review the draft, in a session of its own."""
    child = await runtime.context.spawn(f"Review this: {state['draft']}", agent="default")
    return {"review": (await child.result(timeout=600)).text}


def is_worth_a_review(state: Work) -> str:
    return "review" if len(state["draft"].split()) > 3 else END


graph = StateGraph(Work, context_schema=RunContext)
graph.add_node("read", read)
graph.add_node("draft", draft)
graph.add_node("review", review)
graph.add_edge(START, "read")
graph.add_edge("read", "draft")
graph.add_conditional_edges("draft", is_worth_a_review, ["review", END])
compiled = graph.compile()


async def answer(ctx: RunContext) -> str:
    work = await compiled.ainvoke(Work(), context=ctx)
    return f"{work['message_count']} messages\n{work['draft']}\n{work.get('review', '')}"


async def main() -> None:
    async with connect(token=os.environ["RUNNER_TOKEN"]) as mesh:
        worker = Worker(mesh, name="langgraph")
        worker.agent("grapher")(answer)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
