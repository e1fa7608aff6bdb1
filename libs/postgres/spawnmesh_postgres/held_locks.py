"""How a migration waits for locks: shortly and again, so that nobody waits long behind it, and told who holds them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import LiteralString

import psycopg
from psycopg import errors

HELD = (errors.LockNotAvailable, errors.DeadlockDetected)
"""What it ends by where somebody else holds a lock: nothing of the transaction is left, and it may be tried again."""

_LOOKS = 4  # At what holds a lock, while it is waited for once.
_HOLDERS = 3  # Named at most.

# Of another role's session only name and application are shown to an owner; of one that was prepared, whose id is 0, nothing is there.
_HOLDERS_OF_PROCESS: LiteralString = """
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

Holder = tuple[str | None, int, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Patience:
    """`lock_seconds` is how long one try waits for a lock, and with it whoever comes behind it in the queue of a table; then nobody waits for
    `pause_seconds`. After `seconds` it is given up.
    """

    lock_seconds: float = 2.0
    pause_seconds: float = 8.0
    seconds: float = (
        210.0  # Over before the chart's job is, which takes the log along: a minute is for the pod to start in.
    )


def settle(connection: psycopg.Connection, *, lock_seconds: float = 0.0) -> None:
    """Has the server end what waits for a lock for longer than that, 0 being no end, and whatever a client that is gone has left.

    By statements, since what is asked for in a DSN does not pass every pooler. The connection commits by itself.
    """
    connection.execute("select set_config('lock_timeout', %s, false)", (f"{lock_seconds * 1000:.0f}ms",))
    connection.execute("set idle_in_transaction_session_timeout = '60s'")  # A machine that is gone says no word.
    with suppress(errors.UndefinedObject, errors.InvalidParameterValue):  # Before 14, and on some systems.
        connection.execute("set client_connection_check_interval = '1s'")


@contextmanager
def watching(onlooker: psycopg.Connection, pid: int, *, lock_seconds: float) -> Iterator[Callable[[], str]]:
    """While the block lasts, `onlooker`, which nobody else uses meanwhile, looks what holds that process up.

    Gives what says in words for which lock it waited last; who held it can be seen only while it waits.
    """
    seen: list[Holder] = []
    over = Event()

    def look() -> None:
        with suppress(psycopg.Error):  # Who does not see it does without.
            while not over.wait(lock_seconds / _LOOKS):
                if found := onlooker.execute(_HOLDERS_OF_PROCESS, (pid,)).fetchall():
                    seen[:] = found

    looking = Thread(target=look, name="what holds a migration up", daemon=True)
    looking.start()
    try:
        yield lambda: _in_words(seen)
    finally:
        over.set()
        looking.join()


def holder_of(connection: psycopg.Connection, key: int) -> str:
    """Who holds the advisory lock, in words; '' where nobody does any more."""
    return _named(connection.execute(_HOLDERS_OF_KEY, (key,)).fetchall())


def _in_words(seen: list[Holder]) -> str:
    relation = next((one[0] for one in seen if one[0]), None)
    lock = f"a lock on {relation}" if relation else "a lock"
    return f"{lock} that {_named(seen) or 'another transaction'} holds"


def _named(holders: list[Holder]) -> str:
    return ", ".join([_name(one) for one in sorted(set(holders), key=lambda one: one[1])][:_HOLDERS])


def _name(holder: Holder) -> str:
    _, pid, role, application = holder
    if not pid:
        return "a prepared transaction"
    return f"process {pid} ({' as '.join(filter(None, (application, role))) or 'unknown'})"
