"""Remove old events from the audit logs of all services: `python -m
spawnmesh_postgres.audit.retention DAYS DIRECTORY`.

The directory has the files of `spawnmesh_postgres.roles`. The command connects with each
`<service>-owner-url`: the role that serves cannot remove events. It removes the events of each
chain before the first one that is younger than so many days, after it has verified them. It keeps
the hash of the last removed event, so that the rest of the chain is still verified from there. A
chain that is broken there is kept, and the exit code is 1.
"""

import sys
from datetime import datetime, timedelta
from pathlib import Path

import psycopg
from psycopg.rows import class_row, kwargs_row
from spawnmesh_core.clock import utc_now

from spawnmesh_postgres.audit.chain import ChainedEvent, Link, verify
from spawnmesh_postgres.audit.store import ChainState, event_of
from spawnmesh_postgres.connection import with_timeouts
from spawnmesh_postgres.database import ALL_TENANTS

_OWNER = "-owner-url"
_PAGE = 10_000

_LIST_CHAINS = """
select tenant_id, last_sequence, last_hash, hidden_sequence, cut_sequence, cut_hash
from audit_chains order by tenant_id"""

# Index: audit_events_pkey. The lock of the chain keeps another command from removing the same.
_LOCK_CHAIN = "select from audit_chains where tenant_id = %s for update"

# The page ends before the first event that is new enough to be kept.
_READ_PAGE = """
select tenant_id, sequence, event_id, event_time, last_time, call_count, method, caller_kind, subject,
       token_id, resources, code, reason, trace_id, peer, hash
from audit_events
where tenant_id = %(tenant_id)s and sequence > %(after)s and sequence < coalesce(
        (select min(sequence) from audit_events
         where tenant_id = %(tenant_id)s and last_time >= %(before)s), %(last)s)
order by sequence
limit %(limit)s"""

_REMOVE = "delete from audit_events where tenant_id = %s and sequence <= %s"
_MOVE_CUT = "update audit_chains set cut_sequence = %s, cut_hash = %s where tenant_id = %s"


class BrokenChain(Exception):
    """A chain has a changed or missing event among those to remove. It is kept as it is."""

    def __init__(self, tenant_id: str, sequence: int) -> None:
        super().__init__(f"the chain of {tenant_id} is broken at {sequence}; nothing of it was removed there")


def remove_old_events(owner_dsn: str, before: datetime) -> tuple[int, list[BrokenChain]]:
    """Remove the events of each chain before the first one that is not older than this time.

    The newest event of a chain is always kept. Return the number of removed events, and the chains
    that are broken.
    """
    removed = 0
    broken: list[BrokenChain] = []
    with psycopg.connect(with_timeouts(owner_dsn), autocommit=True) as connection:
        connection.execute("select set_config('spawnmesh.tenant', %s, false)", (ALL_TENANTS,))
        with connection.cursor(row_factory=class_row(ChainState)) as cursor:
            chains = cursor.execute(_LIST_CHAINS).fetchall()
        for state in chains:
            try:
                removed += _shorten(connection, state, before)
            except BrokenChain as error:
                broken.append(error)
    return removed, broken


def _shorten(connection: psycopg.Connection, state: ChainState, before: datetime) -> int:
    removed, link = 0, state.cut
    while True:
        with connection.transaction():
            connection.execute(_LOCK_CHAIN, (state.tenant_id,))
            events = _read_page(connection, state, link, before)
            if not events:
                return removed
            link, breaks = verify(link, events)
            if breaks:
                raise BrokenChain(state.tenant_id, breaks[0].sequence)
            connection.execute(_MOVE_CUT, (link.sequence, link.hash, state.tenant_id))
            connection.execute(_REMOVE, (state.tenant_id, link.sequence))
            removed += len(events)


def _read_page(
    connection: psycopg.Connection, state: ChainState, after: Link, before: datetime
) -> list[tuple[ChainedEvent, bytes]]:
    values = {
        "tenant_id": state.tenant_id,
        "after": after.sequence,
        "last": state.last_sequence,
        "before": before,
        "limit": _PAGE,
    }
    with connection.cursor(row_factory=kwargs_row(event_of)) as cursor:
        return cursor.execute(_READ_PAGE, values).fetchall()


def main(arguments: list[str]) -> None:
    """Remove old events and print their number by service. Exit with 1 if a chain is broken."""
    if len(arguments) != 2 or not arguments[0].isdigit() or int(arguments[0]) < 1:
        raise SystemExit("usage: python -m spawnmesh_postgres.audit.retention DAYS DIRECTORY")
    before = utc_now() - timedelta(days=int(arguments[0]))
    is_broken = False
    for file in sorted(Path(arguments[1]).glob(f"*{_OWNER}")):
        service = file.name.removesuffix(_OWNER)
        try:
            removed, broken = remove_old_events(file.read_text().strip(), before)
        except psycopg.Error as error:
            raise SystemExit(f"{service}: the events cannot be removed: {type(error).__name__}") from None
        print(f"{service}: {removed} events removed")
        for chain in broken:
            print(f"{service}: {chain}")
            is_broken = True
    raise SystemExit(1 if is_broken else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
