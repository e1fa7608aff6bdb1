"""Spawn a session with files, and print its answer or the reason why there is none.

python examples/spawn_with_files.py "What is in the files?" report.md figures.csv
"""

import asyncio
import sys

from spawnmesh_client import MeshError, RunFailed, RunNotDone, connect


async def main(task: str, *paths: str) -> int:
    async with connect() as mesh:
        try:
            session = await mesh.spawn(task, attachments=paths)
            result = await session.result(timeout=600)
        except RunNotDone as late:
            print(f"not done yet: {late.session_id} is {late.state}")
            return 1
        except RunFailed as failed:
            print(f"no answer: {failed.reason}: {failed.message} (trace {failed.trace_id})")
            return 1
        except MeshError as refused:
            print(f"the mesh refused: {refused.reason}: {refused.message}")
            return 1
        print(result.text)
        print(f"{result.usage.output_token_count} tokens written", file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(*sys.argv[1:])))
