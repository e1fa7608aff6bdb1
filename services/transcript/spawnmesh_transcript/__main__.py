"""`python -m spawnmesh_transcript serve|migrate`."""

import gc
import sys

from spawnmesh_postgres.migrations import migrate_and_tell
from spawnmesh_postgres.schema_version import until_schema_known
from spawnmesh_runtime.process import run, start_process
from spawnmesh_runtime.server import run_until_stopped
from spawnmesh_runtime.settings import load_settings

from spawnmesh_transcript.app import open_service
from spawnmesh_transcript.settings import TranscriptSettings


async def _serve(settings: TranscriptSettings) -> None:
    async with start_process("transcript", settings) as process:
        await until_schema_known(settings.database_url, package="spawnmesh_transcript")
        async with open_service(process, settings) as server:
            gc.freeze()  # Contexts are made of thousands of objects; what is there for good need not be searched for garbage with them.
            await run_until_stopped(process, server)


def main(arguments: list[str]) -> None:
    """Runs one command until it is done. Anything but `serve` and `migrate` ends with a line of usage."""
    match arguments:
        case ["serve"]:
            run(_serve(load_settings(TranscriptSettings)))
        case ["migrate"]:
            owner_url = load_settings(TranscriptSettings).database_owner_url
            migrate_and_tell(owner_url, package="spawnmesh_transcript", schema="transcript")
        case _:
            raise SystemExit("usage: python -m spawnmesh_transcript serve|migrate")


if __name__ == "__main__":
    main(sys.argv[1:])
