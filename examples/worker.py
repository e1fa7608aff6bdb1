"""Answer the runs of two agents with functions of this program, until SIGTERM or Ctrl-C.

RUNNER_TOKEN=$(spawnmesh token --runner --tenant demo --agent editor --agent counter)
RUNNER_TOKEN=$RUNNER_TOKEN python examples/worker.py

The agents exist, and sessions for them are spawned with the runtime EXTERNAL.
"""

import asyncio
import os

from spawnmesh_client import connect
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.worker import Worker


async def edit(ctx: RunContext) -> str:
    """Draft with a model, have a child of the agent `counter` count the words, and join the two."""
    draft = await ctx.generate()
    await ctx.append(f"My draft: {draft.text}")
    child = await ctx.spawn(draft.text, agent="counter", runtime="EXTERNAL")
    counted = await child.result(timeout=600)
    change = f" (changed: {ctx.instruction})" if ctx.instruction else ""
    return f"{draft.text}\n{counted.text}{change}"


async def count(ctx: RunContext) -> str:
    """Count the words of the task, without a model."""
    return f"{len(ctx.task.split())} words"


async def main() -> None:
    async with connect(token=os.environ["RUNNER_TOKEN"]) as mesh:
        worker = Worker(mesh, name="example")
        worker.agent("editor")(edit)
        worker.agent("counter")(count)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
