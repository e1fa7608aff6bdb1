"""Which files hits are in, so that what a search finds agrees with what a context shows of it."""

import re
from collections.abc import Iterable

from spawnmesh_postgres.database import Database

from spawnmesh_transcript import payload_store, store, tenant_store
from spawnmesh_transcript.searching import Hit
from spawnmesh_transcript.store import Key

_TEXT_BLOCK = re.compile(r"message\.content\[([0-9]+)\]\.text\.text")


async def files_of_hits(database: Database, tenant_id: str, hits: Iterable[Hit]) -> dict[Hit, str]:
    """The file ids of those hits that are in a text that a context may refer to."""
    blocks = {hit: int(found[1]) for hit in hits if (found := _TEXT_BLOCK.fullmatch(hit.path))}
    if not blocks:
        return {}
    files: dict[tuple[str, int, int], str] = {}
    async with database.transaction(tenant_id) as connection:
        await store.keep_index_order(connection)
        policy = await tenant_store.read_policy(connection, tenant_id)
        if not policy.stub_large_tool_payloads:
            return {}
        for session_id in {hit.session_id for hit in blocks}:
            seqs = [hit.seq for hit in blocks if hit.session_id == session_id]
            by_seq = await payload_store.files_of_entries(connection, Key(tenant_id, session_id), seqs)
            for seq, stored in by_seq.items():
                files |= {(session_id, seq, file.block_index): file.file_id for file in stored}
    places = {hit: (hit.session_id, hit.seq, block) for hit, block in blocks.items()}
    return {hit: files[place] for hit, place in places.items() if place in files}
