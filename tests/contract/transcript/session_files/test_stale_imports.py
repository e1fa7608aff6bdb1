"""The worker removes imports that no client continues."""

import asyncio
from pathlib import Path

from spawnmesh_runtime.process import start_process
from spawnmesh_transcript.app import open_worker
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.serving import shared_settings
from tests.support.transcript.files import HEADER, file_of, go_on, message, send
from tests.support.transcript.fixtures import Service
from tests.support.transcript.tables import Superuser

LINES = (HEADER, message(1, content="x"), message(2, content="y"))


async def test_ImportTranscript__the_worker_removes_a_stale_import(
    service: Service, superuser: Superuser, keys: Path
) -> None:
    left = service.session()
    await left.prepare_tenant(1, mask_secrets=False)
    await send(left, file_of(*LINES), finish=False)
    kept = left.sibling()
    await send(kept, file_of(*LINES), finish=False)
    await superuser.execute(
        "update imports set update_time = now() - interval '25 hours' where session_id = %s",
        (left.session_id,),
    )
    settings = TranscriptSettings(database_url=service.dsn.app, **shared_settings("transcript", keys))
    async with (
        start_process("transcript", settings) as process,
        open_worker(process, settings, asyncio.Event()) as worker,
    ):
        await worker.work_once()
    counted = await superuser.execute(
        "select (select count(*) from entries where session_id = %(left)s),"
        " (select count(*) from transcripts where session_id = %(left)s),"
        " (select count(*) from imports where session_id = %(left)s),"
        " (select count(*) from entries where session_id = %(kept)s)",
        {"left": left.session_id, "kept": kept.session_id},
    )
    assert await counted.fetchone() == (0, 0, 0, 3)
    assert (await go_on(kept, file_of(*LINES))).entry_count == 3
