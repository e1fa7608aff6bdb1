"""Redirect a run while its model speaks, and print what was said before and after.

python examples/steer_run.py "Count as far as you can." "Stop counting, and greet me."
"""

import asyncio
import sys
from textwrap import shorten

from spawnmesh_client import EntryKind, RunState, SessionMode, connect

MODEL = "scripted/slow"  # `make up` has it. It speaks for 40 s, so that there is time to interrupt.
SECONDS = 5.0  # The time for which it may speak.


async def main(task: str, message: str) -> None:
    async with connect() as mesh:
        session = await mesh.spawn(task, model=MODEL, mode=SessionMode.SESSION)
        async for event in session.events():
            if event.run_state is RunState.RUNNING:
                break
        print(f"{event.run_id} is {event.run_state}; the message follows in {SECONDS:g} s", flush=True)
        await asyncio.sleep(SECONDS)
        run = await session.interrupt(message)  # `send` would wait until the model has ended.
        same = run is not None and run.run_id == event.run_id
        print("the same run reads the message" if same else "the run had ended: a new one reads it")
        await session.result(timeout=600)
        async for entry in session.transcript():
            if entry.kind in (EntryKind.MESSAGE, EntryKind.NOTE):
                print(f"{entry.seq:>4} {entry.role or entry.kind}: {shorten(entry.text, 60)!r}")
        await session.kill()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
