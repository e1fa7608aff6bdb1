"""Read and check the rows of one transcript."""

from hashlib import sha256
from typing import Any

from tests.support.transcript.fixtures import (
    Session,
)
from tests.support.transcript.tables import Superuser

_ENTRIES = """
    select seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label,
        target_seq, writer_run_id, writer_epoch,
        writer_service, writer_client, chain_hash, body, token_vocabulary, dropped_bytes
    from entries where tenant_id = %s and session_id = %s order by seq
"""


_KEYS = """
    select idempotency_key, content_hash, first_seq, last_seq, writer_run_id, writer_epoch
    from appends where tenant_id = %s and session_id = %s order by first_seq, idempotency_key
"""


_TRANSCRIPT = """
    select seq, chain_hash, newest_entry_id, writer_run_id, writer_epoch, turn_count, superseded_turn_count,
        token_count, logical_bytes,
        dropped_bytes, inline_dropped_seq, forked_from_session_id, parent_session_id, state
    from transcripts where tenant_id = %s and session_id = %s
"""


async def stored_rows(superuser: Superuser, session: Session) -> list[list[Any]]:
    """Return all rows of a transcript, without the columns that no two transcripts share."""
    key = (session.tenant_id, session.session_id)
    return [
        await (await superuser.execute(statement, key)).fetchall()
        for statement in (_ENTRIES, _KEYS, _TRANSCRIPT)
    ]


async def check_totals(superuser: Superuser, session: Session) -> int:
    """Check that counts and hashes agree with the entries, and return the number of entries."""
    entries, keys, ((seq, chain_hash, newest, _, _, turns, _, tokens, size, *_),) = await stored_rows(
        superuser, session
    )
    assert [entry[0] for entry in entries] == [*range(1, seq + 1)]
    assert [key[2:4] for key in keys] == [(n, n) for n in range(2, seq + 1)]
    linked = b""
    for entry in entries:
        linked = sha256(linked + entry[16]).digest()
        assert entry[15] == linked
    assert (chain_hash, newest) == (linked, entries[-1][1])
    assert [entry[2] for entry in entries[1:]] == [entry[1] for entry in entries[:-1]]
    assert turns == sum(entry[3] in ("MESSAGE", "NOTE") for entry in entries)
    assert tokens == sum(entry[5] for entry in entries)
    assert size == sum(len(entry[16]) for entry in entries)
    in_time = "select seq from entries where tenant_id = %s and session_id = %s order by create_time, seq"
    found = await superuser.execute(in_time, (session.tenant_id, session.session_id))
    assert await found.fetchall() == [(entry[0],) for entry in entries]
    return len(entries)
