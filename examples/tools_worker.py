"""Let the models of the run work with two tools of this program, until SIGTERM or Ctrl-C.

RUNNER_TOKEN=$(spawnmesh token --runner --tenant demo --agent clerk)
RUNNER_TOKEN=$RUNNER_TOKEN python examples/tools_worker.py

The agent exists, and sessions for it are spawned with the runtime EXTERNAL.
"""

import asyncio
import os
from typing import Annotated

from spawnmesh_client import connect
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.tools import CurrentCall, ToolError, tool
from spawnmesh_client.worker import Worker

STOCK = {"pen": 12, "ink": 0}


@tool(idempotent=True)  # A call that only reads may be made again after a crash.
async def stock(item: Annotated[str, "The name of one item."]) -> dict[str, int]:
    """Return how many pieces of an item are in stock."""
    if item not in STOCK:
        raise ToolError(f"there is no {item!r}; ask for one of {', '.join(STOCK)}")
    return {item: STOCK[item]}


async def order(item: str, count: int, call: CurrentCall) -> str:
    """Order pieces of an item.

    Args:
        item: The name of one item.
        count: The number of pieces.
    """
    name = f"order-{item}.txt"
    await asyncio.to_thread((call.run.workspace / name).write_text, f"{count} x {item}\n")
    await call.run.publish(name, request_id=call.request_id)
    return f"{count} x {item} are ordered"


async def answer(ctx: RunContext) -> str:
    """Let a model call the tools until it has an answer."""
    return (await ctx.run_tools([stock, order], max_turn_count=20)).text


async def main() -> None:
    async with connect(token=os.environ["RUNNER_TOKEN"]) as mesh:
        worker = Worker(mesh, name="tools")
        worker.agent("clerk")(answer)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
