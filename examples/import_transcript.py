"""Import a session file of a coding agent, and let a new session continue its work.

python examples/import_transcript.py session.jsonl "Which file is left to do?"

No session runs on an imported transcript. The new one gets what a model would read of it as a file.
"""

import asyncio
import sys
from pathlib import Path

from spawnmesh_client import Attachment, Mesh, connect
from spawnmesh_client.contexts import assemble_context
from spawnmesh_client.entries import entry_view
from spawnmesh_client.transcript_files import import_file
from spawnmesh_core.ids import IdKind, new_id

TOKEN_BUDGET = 50_000


async def earlier_work(mesh: Mesh, file: Path) -> str:
    """Import the file, and return the newest messages of it that fit the budget."""
    transcript = mesh.wire.service("transcript")
    imported = new_id(IdKind.SESSION)
    # After an interruption, import_file with the same id and file continues.
    done = await import_file(transcript, file, imported)
    print(f"{imported}: {done.entry_count} entries")
    context = await assemble_context(transcript, imported, token_budget=TOKEN_BUDGET)
    entries = [entry_view(entry) for entry in context.entries]
    return "\n\n".join(f"{entry.role or entry.kind}: {entry.text}" for entry in entries if entry.text)


async def main(file: str, task: str) -> None:
    async with connect() as mesh:
        text = await earlier_work(mesh, Path(file))
        earlier = Attachment("earlier.md", text.encode())
        session = await mesh.spawn(f"{task} The file has the earlier work.", attachments=[earlier])
        print((await session.result(timeout=600)).text)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
