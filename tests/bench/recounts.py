"""The cost of recounting the newest entries of a long transcript, compared with a short one.

Rows that are compared in memory touch no pages, so only the time shows them.
"""

from functools import partial

import psycopg
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from spawnmesh_postgres.statements import load_statements

from tests.bench.harness import Bench, Work
from tests.bench.transcript import TENANT, Transcript, transcripts

LENGTHS = (100, 20_000)
BATCH = 64
ROUNDS = 100
BOUND = 2.0
_RECOUNT = load_statements("spawnmesh_transcript.store.recounts")["recount_entries"]


async def run(bench: Bench) -> None:
    """Measure the statement of RecountTranscript, and roll it back each time."""
    stack = await bench.stack()
    async with (
        transcripts(stack, ALWAYS_OFF) as begin,
        await psycopg.AsyncConnection.connect(stack.superuser_dsn) as connection,
    ):
        works: dict[str, Work] = {}
        for length in LENGTHS:
            transcript = await begin()
            await transcript.grow(length - 1)
            works[str(length)] = partial(_recount, connection, transcript, length)
        samples = await bench.compare(works, rounds=ROUNDS)
    shortest = samples[str(LENGTHS[0])]
    for length in LENGTHS:
        bound = BOUND if length != LENGTHS[0] else None
        name = f"recounts.{BATCH}_entries.after_{length}"
        bench.latency(name, samples[str(length)], shortest, bound)


async def _recount(connection: psycopg.AsyncConnection, transcript: Transcript, length: int) -> None:
    parameters = {
        "tenant_id": TENANT,
        "session_id": transcript.session_id,
        "vocabulary": "cl100k_base",
        "seqs": [*range(length - BATCH + 1, length + 1)],
        "token_counts": [9] * BATCH,
        "stub_token_counts": [None] * BATCH,
        "thinking_token_counts": [None] * BATCH,
    }
    async with connection.transaction(force_rollback=True):
        await connection.execute("set local search_path = transcript")
        await connection.execute("select set_config('role', 'transcript', true)")
        await connection.execute("select set_config('spawnmesh.tenant', %s, true)", (TENANT,))
        found = await connection.execute(
            "select incarnation from transcripts where session_id = %s", (transcript.session_id,)
        )
        row = await found.fetchone()
        if row is None:
            raise RuntimeError("the transcript has no row")
        done = await connection.execute(_RECOUNT, {**parameters, "incarnation": row[0]})
        if done.rowcount != BATCH:
            raise RuntimeError(f"{done.rowcount} entries were recounted")
