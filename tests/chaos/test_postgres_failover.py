"""PostgreSQL fails over under load: no acknowledged write is lost, and no accepted run fails."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic
from urllib.parse import quote

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_client.wire import connect_wire
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.members import SERVICES, prefix_of, snake
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.stack import Stack, open_stack
from spawnmesh_devstack.watchdog import Watchdog

from tests.support.chaos.acknowledged import Clients, Harness
from tests.support.postgres.standby import promote, rejoin, rows, start_standby
from tests.support.serving import caller_at
from tests.support.waiting import eventually

TENANT = "acme"
HARNESSES = 2
SPAWNS, APPENDS = 6, 60  # Before the failover, and again after it.


def _quiet(_line: str) -> None:
    """Drop a line of progress."""


def multi_host_urls(*data_dirs: Path) -> dict[str, str]:
    """Return the variables with the URL of each service: both servers, and the attribute by which
    a connection finds the one that takes writes.
    """
    hosts = quote(",".join(map(str, data_dirs)), safe="")
    return {
        f"{prefix_of(service)}DATABASE_URL": f"postgresql://{snake(service)}@/spawnmesh?host={hosts}"
        "&target_session_attrs=read-write"
        for service in SERVICES
    }


@pytest.fixture
async def stack(fork_server: ForkServer) -> AsyncIterator[Stack]:
    """Start a mesh whose services know two servers. The second one does not exist yet."""
    with tempfile.TemporaryDirectory(prefix="spawnmesh-failover-") as folder:
        data = Path(folder) / "data"
        urls = multi_host_urls(data / "postgres", data / "standby")
        async with open_stack(data, _quiet, environment=urls, execute=fork_server.execute) as stack:
            yield stack


@pytest.fixture
async def standby(stack: Stack, watchdog: Watchdog) -> AsyncIterator[Postgres]:
    """Start a synchronous standby of the mesh's PostgreSQL."""
    standby = await start_standby(stack.postgres, stack.data_dir / "standby", watchdog)
    try:
        yield standby
    finally:
        await standby.stop()


@pytest.fixture
async def clients(stack: Stack) -> AsyncIterator[Clients]:
    """Connect to the mesh as a new tenant."""
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(TENANT, settings=TenantSettings(max_live_child_count=1000))
    async with (
        caller_at(stack.targets["session"], "session") as session,
        caller_at(stack.targets["transcript"], "transcript") as transcript,
    ):
        yield Clients(session, transcript, stack.keys, TENANT)


@pytest.mark.timeout(300)
async def test_failover_loses_no_acknowledged_write_and_fails_no_run(
    stack: Stack, standby: Postgres, clients: Clients
) -> None:
    history = clients.history
    harnesses = [await Harness.start(clients) for _ in range(HARNESSES)]
    stop = asyncio.Event()

    async def more_is_written() -> None:
        spawns, appends = len(history.spawned) + SPAWNS, len(history.appended) + APPENDS
        await eventually(lambda: len(history.spawned) >= spawns and len(history.appended) >= appends)

    async with asyncio.TaskGroup() as load:
        load.create_task(clients.spawn_until(stop))
        for harness in harnesses:
            for work in (harness.append_until, harness.delegate_until, harness.hold_until):
                load.create_task(work(stop))
        await more_is_written()
        await stack.postgres.process.kill()
        await eventually(lambda: history.refused["SpawnSession"] and history.refused["AppendEntries"])
        promote(standby)
        promoted = monotonic()
        await more_is_written()
        stop.set()
    first = min(time for _, time in history.spawned.values() if time > promoted)
    print(
        f"the first spawn succeeded {first - promoted:.1f} s after the promotion; refused: {history.refused}"
    )

    assert history.repeated_spawns > 0
    await check_spawns(clients, {harness.session_id for harness in harnesses})
    for harness in harnesses:
        await eventually(harness.read_results)
        assert (await harness.finalize()).HasField("accepted")
        assert harness.results == dict.fromkeys(harness.children, 1), "each result is delivered once"
        assert (await clients.wait(harness.session_id)).state == session_pb2.RUN_STATE_SUCCEEDED
    await check_appends(clients, harnesses)
    await check_former_primary_is_not_used(stack, standby, clients)


async def check_spawns(clients: Clients, held: set[str]) -> None:
    """Each spawn that was answered has its own session, and its run succeeds, unless it is held."""
    sessions = [session_id for session_id, _ in clients.history.spawned.values()]
    assert len(set(sessions)) == len(sessions)
    for session_id in set(sessions) - held:
        run = await clients.wait(session_id)
        assert run.state == session_pb2.RUN_STATE_SUCCEEDED, run


async def check_appends(clients: Clients, harnesses: list[Harness]) -> None:
    """Each entry that was answered is where the answer said, once, and no seq is missing."""
    found: dict[str, int] = {}
    for harness in harnesses:
        entries = await clients.entries(harness.session_id)
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
        texts = [(block.text.text, entry.seq) for entry in entries for block in entry.body.message.content]
        appended = [(text, seq) for text, seq in texts if text.startswith(f"{harness.session_id}/")]
        assert len(dict(appended)) == len(appended)
        found |= dict(appended)
    assert found == clients.history.appended


async def check_former_primary_is_not_used(stack: Stack, standby: Postgres, clients: Clients) -> None:
    """The killed server comes back as a standby, first in each URL. A service that starts anew
    tries it, and goes on to the server that takes writes.
    """
    await rejoin(stack.postgres, stack.data_dir / "postgres", standby)
    await stack.restart("session")
    session = await clients.spawn()
    assert (await clients.wait(session.session_id)).state == session_pb2.RUN_STATE_SUCCEEDED
    users = (
        "select usename from pg_stat_activity where datname = 'spawnmesh' and backend_type = 'client backend'"
    )
    assert rows(stack.postgres, users) == []
    assert ("session",) in rows(standby, users)
