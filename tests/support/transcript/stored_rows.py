"""Read and check the rows of one transcript."""

from collections.abc import Sequence
from typing import Any

from tests.support.transcript.chains import chain_hash, micros_of
from tests.support.transcript.fixtures import (
    Session,
)
from tests.support.transcript.tables import Superuser

_ENTRIES = """
    select seq, entry_id, parent_entry_id, kind, role, token_count, calls, answers, is_synthetic, label,
        target_seq, writer_run_id, writer_epoch,
        writer_service, writer_client, chain_hash, body, token_vocabulary, dropped_bytes,
        create_time
    from entries where tenant_id = %s and session_id = %s order by seq
"""


_KEYS = """
    select request_id, content_hash, first_seq, last_seq, writer_run_id, writer_epoch
    from appends where tenant_id = %s and session_id = %s order by first_seq, request_id
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


def check_chain_of(entries: Sequence[Sequence[Any]], *, previous: bytes = b"") -> bytes:
    """Check that rows of entries are linked by their hashes, and return the last hash."""
    for row in entries:
        entry_id, parent, run_id, epoch, service, client = row[1], row[2], *row[11:15]
        previous = chain_hash(
            previous,
            row[16],
            entry_id=entry_id,
            parent=parent,
            run_id=run_id,
            epoch=epoch,
            service=service,
            client=client,
            micros=micros_of(row[19]),
        )
        assert row[15] == previous
    return previous


async def check_totals(superuser: Superuser, session: Session) -> int:
    """Check that counts and hashes agree with the entries, and return the number of entries."""
    entries, keys, ((seq, head_hash, newest, _, _, turns, _, tokens, size, *_),) = await stored_rows(
        superuser, session
    )
    assert [entry[0] for entry in entries] == [*range(1, seq + 1)]
    assert [key[2:4] for key in keys] == [(n, n) for n in range(2, seq + 1)]
    assert (head_hash, newest) == (check_chain_of(entries), entries[-1][1])
    assert [entry[2] for entry in entries[1:]] == [entry[1] for entry in entries[:-1]]
    assert turns == sum(entry[3] in ("MESSAGE", "NOTE") for entry in entries)
    assert tokens == sum(entry[5] for entry in entries)
    assert size == sum(len(entry[16]) for entry in entries)
    in_time = "select seq from entries where tenant_id = %s and session_id = %s order by create_time, seq"
    found = await superuser.execute(in_time, (session.tenant_id, session.session_id))
    assert await found.fetchall() == [(entry[0],) for entry in entries]
    return len(entries)
