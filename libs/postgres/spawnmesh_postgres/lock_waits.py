"""Waiting for locks during a migration: short attempts with pauses, and a description of
the blocker.

A statement that waits for a table lock blocks all later statements on the table. Short attempts
limit how long other transactions wait behind a migration.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import LiteralString

import psycopg
from psycopg import errors

LOCK_ERRORS = (errors.LockNotAvailable, errors.DeadlockDetected)
"""The errors of a transaction that did not get a lock. It is rolled back and may be tried again."""

_SAMPLES = 4  # Samples of the blockers during one attempt.
_MAX_NAMED = 3  # Blockers named in a message.

# An owner sees only role and application of another role's session. A prepared transaction has pid
# 0.
_BLOCKERS_OF_PROCESS: LiteralString = """
select l.relation::regclass::text, b.pid, h.usename, h.application_name
  from pg_stat_activity w
 cross join lateral unnest(pg_blocking_pids(w.pid)) as b (pid)
  left join pg_stat_activity h on h.pid = b.pid
  left join pg_locks l on l.pid = w.pid and not l.granted
 where w.pid = %s and w.wait_event_type = 'Lock'
"""
_HOLDERS_OF_KEY: LiteralString = """
select null, l.pid, h.usename, h.application_name
  from pg_locks l left join pg_stat_activity h on h.pid = l.pid
 where l.locktype = 'advisory' and l.granted and l.objsubid = 1 and l.classid = 0 and l.objid = %s
   and l.database = (select oid from pg_database where datname = current_database())
"""

Blocker = tuple[str | None, int, str | None, str | None]


@dataclass(frozen=True, slots=True)
class LockRetry:
    """The retry policy for locks.

    An attempt waits `lock_seconds` for a lock; later statements on the table wait behind it. No
    statement waits during the `pause_seconds` between attempts. The migration fails after
    `seconds`.
    """

    lock_seconds: float = 2.0
    pause_seconds: float = 8.0
    # Less than the deadline of the chart's job, which deletes the log. One minute is left for the
    # pod to start.
    seconds: float = 210.0


def configure_session(connection: psycopg.Connection, *, lock_seconds: float = 0.0) -> None:
    """Set the lock timeout, where 0 means none, and timeouts for a client that has disappeared.

    It uses statements, because not every pooler passes on the options of a DSN. The connection must
    be in autocommit mode.
    """
    connection.execute("select set_config('lock_timeout', %s, false)", (f"{lock_seconds * 1000:.0f}ms",))
    # A client whose machine fails closes no connection.
    connection.execute("set idle_in_transaction_session_timeout = '60s'")
    # Before 14, and on some systems.
    with suppress(errors.UndefinedObject, errors.InvalidParameterValue):
        connection.execute("set client_connection_check_interval = '1s'")


@contextmanager
def watch_blockers(
    observer: psycopg.Connection, pid: int, *, lock_seconds: float
) -> Iterator[Callable[[], str]]:
    """Sample the sessions that block the process `pid` during the block.

    Yields a function that describes the lock that was waited for last. Blockers are visible only
    while the process waits. `observer` must not be used otherwise during the block.
    """
    seen: list[Blocker] = []
    done = Event()

    def sample() -> None:
        with suppress(psycopg.Error):  # The description is optional.
            while not done.wait(lock_seconds / _SAMPLES):
                if found := observer.execute(_BLOCKERS_OF_PROCESS, (pid,)).fetchall():
                    seen[:] = found

    sampler = Thread(target=sample, name="blockers of a migration", daemon=True)
    sampler.start()
    try:
        yield lambda: _description(seen)
    finally:
        done.set()
        sampler.join()


def advisory_lock_holder(connection: psycopg.Connection, key: int) -> str:
    """Return a description of the session that holds the advisory lock; '' if no session
    holds it.
    """
    return _names(connection.execute(_HOLDERS_OF_KEY, (key,)).fetchall())


def _description(seen: list[Blocker]) -> str:
    relation = next((one[0] for one in seen if one[0]), None)
    lock = f"a lock on {relation}" if relation else "a lock"
    return f"{lock} that {_names(seen) or 'another transaction'} holds"


def _names(blockers: list[Blocker]) -> str:
    return ", ".join([_name(one) for one in sorted(set(blockers), key=lambda one: one[1])][:_MAX_NAMED])


def _name(blocker: Blocker) -> str:
    _, pid, role, application = blocker
    if not pid:
        return "a prepared transaction"
    return f"process {pid} ({' as '.join(filter(None, (application, role))) or 'unknown'})"
