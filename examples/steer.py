"""Keep a session open, steer it with messages, print each answer, and read its transcript.

python examples/steer.py "Read the report." "Now in one sentence."
"""

import asyncio
import sys

from spawnmesh_client import EntryKind, SessionMode, connect


async def main(task: str, *messages: str) -> None:
    async with connect() as mesh:
        session = await mesh.spawn(task, mode=SessionMode.SESSION)
        print((await session.result(timeout=600)).text)
        for message in messages:
            await session.send(message)
            print((await session.result(timeout=600)).text)
        async for entry in session.transcript():
            if entry.kind is EntryKind.MESSAGE:
                print(f"{entry.seq:>4} {entry.role}: {entry.text[:60]!r}")
        await session.kill()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
