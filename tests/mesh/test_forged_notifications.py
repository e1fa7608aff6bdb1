"""A role of another service sends and overhears no notification of a service."""

from collections.abc import Iterator
from contextlib import ExitStack
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from spawnmesh_devstack.stack import Stack
from spawnmesh_hook.store.decisions import CLAIM_ENDED_CHANNEL
from spawnmesh_hook.store.plugins import PLUGINS_CHANGED_CHANNEL
from spawnmesh_model_router.store.cooldowns import COOLDOWNS_CHANNEL
from spawnmesh_model_router.store.policies import POLICIES_CHANNEL
from spawnmesh_postgres.database import open_database
from spawnmesh_postgres.jobs.store import CHANNEL as JOBS
from spawnmesh_postgres.listener import open_listener
from spawnmesh_postgres.long_running.store import CHANNEL as OPERATIONS
from spawnmesh_session.store import events, revoked_tokens, run_queue
from spawnmesh_transcript.operations.change_notifier import CHANNEL as ENTRIES

CHANNELS = {
    "session": (run_queue.CHANNEL, events.CHANNEL, JOBS, revoked_tokens.CHANNEL),
    "hook": (CLAIM_ENDED_CHANNEL, PLUGINS_CHANGED_CHANNEL, JOBS),
    "model_router": (COOLDOWNS_CHANNEL, POLICIES_CHANNEL),
    "transcript": (ENTRIES, JOBS, OPERATIONS),
}
"""The channels of each service."""

FLOOD = 200
"""Notifications for each name that an attacker tries. Those with the same payload would be merged."""

_FLOOD = "select pg_notify(%s, concat(%s::text, nullif(n, 1))) from generate_series(1, %s) n"


def _guesses(attacker: psycopg.Connection, channel: str) -> list[str]:
    """Return the names that a role of another service can try: also its own suffix."""
    row = attacker.execute("select suffix from _spawnmesh_channels").fetchone()
    assert row is not None
    own = str(row[0])
    return [channel, f"{channel}:", channel + own, f"{channel}:{'0' * 32}", f"{channel}:%", own]


@pytest.mark.parametrize(
    ("service", "channel"), [(service, channel) for service, all_ in CHANNELS.items() for channel in all_]
)
async def test_flood_of_forged_notifications_wakes_nothing(stack: Stack, service: str, channel: str) -> None:
    foreign, last = (f"{kind}-{uuid4().hex}" for kind in ("forged", "real"))
    app = stack.databases[service].app
    async with (
        open_listener(app, name="victim", channels=(channel,)) as listener,
        open_database(app, name="owner", max_connections=1) as own,
    ):
        with ExitStack() as stacked:
            forged = stacked.enter_context(listener.subscription(channel, foreign))
            real = stacked.enter_context(listener.subscription(channel, last))
            for each in (forged, real):
                assert await each.wait(60), "once it listens"
            for attacker in sorted(stack.databases.keys() - {service}):
                with psycopg.connect(stack.databases[attacker].app) as connection:
                    for name in _guesses(connection, channel):
                        connection.execute(_FLOOD, (name, foreign, FLOOD))
            # Notifications arrive in the order of their commits.
            await own.notify(channel, [last])
            assert await real.wait(60)
            assert not await forged.wait(0)
            # A listener is deaf to none of its own.
            await own.notify(channel, [foreign])
            assert await forged.wait(60)


@pytest.fixture
def attacker(stack: Stack) -> Iterator[psycopg.Connection]:
    """Connect as the role of a service without channels that others know."""
    with psycopg.connect(stack.databases["attachment_blob"].app, autocommit=True) as connection:
        yield connection


async def test_role_of_another_service_overhears_nothing(stack: Stack, attacker: psycopg.Connection) -> None:
    for service, channels in CHANNELS.items():
        for channel in channels:
            attacker.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        async with open_database(stack.databases[service].app, name="owner", max_connections=1) as own:
            for channel in channels:
                await own.notify(channel, ["a-tenant:a-session"])
    attacker.execute("listen control")
    attacker.execute("select pg_notify('control', '')")
    heard = [one.channel for one in attacker.notifies(timeout=60, stop_after=1)]
    assert heard == ["control"]


def test_role_of_another_service_cannot_learn_the_names(stack: Stack, attacker: psycopg.Connection) -> None:
    suffixes = []
    for service in CHANNELS:
        with psycopg.connect(stack.databases[service].app) as connection:
            row = connection.execute("select suffix from _spawnmesh_channels").fetchone()
            assert row is not None
            suffixes.append(str(row[0]))
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            attacker.execute(f"select suffix from {service}._spawnmesh_channels".encode())
    assert len(set(suffixes)) == len(suffixes)
    assert {len(suffix) for suffix in suffixes} == {33}
    shown = attacker.execute("select query from pg_stat_activity where datname = current_database()")
    queries = " ".join(str(query) for (query,) in shown.fetchall())
    assert [suffix for suffix in suffixes if suffix in queries] == []
