"""Print the events of a session until it has ended. With a number, begin behind that event.

python examples/watch.py ses_01k… 7
"""

import asyncio
import sys

from spawnmesh_client import EventKind, connect


async def main(session_id: str, after: str = "0") -> None:
    async with connect() as mesh:
        async for event in mesh.events(session_id, after=int(after)):
            what = event.run_state if event.kind is EventKind.RUN else event.detail
            print(event.number, event.kind, what or "", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
