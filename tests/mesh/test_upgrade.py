"""A rolling upgrade: two releases on one schema, first the migration, then process by process.

Nothing is released yet, so the next release is made here: the code with more migrations, whose
columns it writes. The order is that of the chart: its hook migrates, and pods are replaced then.
"""

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from spawnmesh.session.v1 import session_pb2
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_core.status import Status
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.members import SERVICES, scripted_model_member
from spawnmesh_devstack.models import scripted_config, scripted_environment
from spawnmesh_devstack.ports import free_ports
from spawnmesh_devstack.prepare import SCRIPTED_MODEL
from spawnmesh_devstack.processes import Command, execute
from spawnmesh_devstack.stack import Stack, open_stack

from tests.support.patient_callers import patient_callers
from tests.support.postgres.migration_rules import findings
from tests.support.postgres.next_release import STEPS, NextRelease
from tests.support.waiting import eventually

T = TypeVar("T")

GRACE = {f"{name.replace('-', '_').upper()}_DRAIN_GRACE_SECONDS": "3" for name in SERVICES}
PAUSE_SECONDS = 5.0  # The preStop of the chart. A client connects to a new replica within two seconds.
DEPLOYED = (
    *SERVICES,
    "session-worker",
    "attachment-blob-worker",
    "transcript-worker",
    "hook-worker",
    "runner",
)
BOTH = (False, True)


class Rollout:
    """A mesh with two replicas of everything, of which each runs the release that it is given."""

    def __init__(self, folder: Path, fork_server: ForkServer) -> None:
        self.folder = folder
        self.fork_server = fork_server
        self.variables: dict[str, str] = {}
        self.upgraded: set[str] = set()

    def execute(self, command: Command, log: int) -> subprocess.Popen[bytes]:
        if command.name not in self.upgraded:
            return self.fork_server.execute(command, log)
        return execute(replace(command, env={**(command.env or {}), **self.variables}), log)

    async def upgrade(self, stack: Stack, suffix: str) -> None:
        """Replace one replica of everything by the next release."""
        names = [f"{name}{suffix}" for name in DEPLOYED]
        self.upgraded.update(names)
        for name in names:
            await stack.restart(name)
        await asyncio.sleep(PAUSE_SECONDS)


@pytest.fixture
async def rollout(fork_server: ForkServer) -> AsyncIterator[tuple[Rollout, Stack]]:
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="spawnmesh-upgrade-") as folder:
        rollout = Rollout(Path(folder), fork_server)
        async with open_stack(
            Path(folder) / "data", lambda _line: None, replicas=2, runner_count=2,
            router_config=scripted_config(port), ports={SCRIPTED_MODEL: port},
            environment={**scripted_environment(), **GRACE}, execute=rollout.execute,
        ) as stack:  # fmt: skip
            await stack.start(scripted_model_member(port))
            with patient_callers():
                yield rollout, stack


class Load:
    """A client that spawns sessions with a file, one after the other, and reads their answers.

    It repeats a call that was refused as UNAVAILABLE: on a busy machine, the only replica of a
    service can seem to hang while the other one is replaced.
    """

    def __init__(self, mesh: WireMesh) -> None:
        self.mesh = mesh
        self.stop = asyncio.Event()
        self.answered: list[str] = []
        self.failed: list[str] = []

    async def run(self) -> None:
        while not self.stop.is_set():
            try:
                await self._once()
            except MeshError as error:
                self.failed.append(f"{error.reason}: {error}")

    async def _once(self) -> None:
        file, request_id = Attachment("a.txt", uuid4().bytes), uuid4().hex
        session = await _repeated(
            lambda: self.mesh.spawn("Say something.", attachments=[file], request_id=request_id)
        )
        run = (await _repeated(lambda: self.mesh.wait(session.session_id, 60))).session.latest_run
        if run.state != session_pb2.RUN_STATE_SUCCEEDED or "a.txt: 16 bytes" not in run.result_text:
            self.failed.append(str(run))
        self.answered.append(session.session_id)


async def _repeated(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except MeshError as error:
            if error.status is not Status.UNAVAILABLE:
                raise
            await asyncio.sleep(0.1)


def steps_of(stack: Stack) -> dict[str, tuple[bool, ...]]:
    """Return which steps of the runs that have ended were taken by the next release."""
    columns = sql.SQL(", ").join(map(sql.Identifier, STEPS))
    query = sql.SQL("select session_id, {} from session.runs where state = 'SUCCEEDED'").format(columns)
    with psycopg.connect(stack.superuser_dsn, dbname=database_of(stack)) as connection:
        return {row[0]: tuple(row[1:]) for row in connection.execute(query)}


def database_of(stack: Stack) -> str:
    return str(psycopg.conninfo.conninfo_to_dict(stack.databases["session"].owner)["dbname"])


@pytest.mark.timeout(400)
async def test_sessions_go_through_processes_of_two_releases_and_none_fails(
    rollout: tuple[Rollout, Stack],
) -> None:
    of, stack = rollout
    release = await asyncio.to_thread(NextRelease, of.folder / "next", stack)
    of.variables = release.variables
    for service in SERVICES:
        migrations = of.folder / "next" / f"spawnmesh_{service.replace('-', '_')}" / "migrations"
        several = [findings(file.read_text()) for file in sorted(migrations.glob("*_next.sql"))]
        assert len(several) > 3
        assert several == [set()] * len(several), "they expand, and nothing else"
    async with AsyncExitStack() as exits:
        admin = stack.admin_token()
        operator = await exits.enter_async_context(
            connect_wire(session=stack.targets["session"], token=admin)
        )
        tenant = f"t-{uuid4().hex[:12]}"
        await operator.create_tenant(tenant)
        targets = {name.replace("-", "_"): target for name, target in stack.targets.items()}
        mesh = await exits.enter_async_context(connect_wire(**targets, token=stack.client_token(tenant)))
        load = Load(mesh)
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(load.run())
            await eventually(lambda: len(load.answered) > 2)

            # A new process waits for its schema: it serves only after the migration.
            of.upgraded.add("session-2")
            early = group.create_task(stack.restart("session-2"))
            log = stack.data_dir / "logs" / "session-2.log"
            await eventually(lambda: "the schema is older: it lacks 0002_next" in log.read_text())
            assert not early.done()
            for service in SERVICES:
                assert "0002_next, 0003_next" in await release.migrate(stack, service)
            await early

            await of.upgrade(stack, "-2")
            await eventually(
                lambda: {*product(BOTH, repeat=len(STEPS))} <= {*steps_of(stack).values()}, within_seconds=120
            )
            await of.upgrade(stack, "")
            before = len(load.answered)
            await eventually(lambda: len(load.answered) > before + 4)

            # The release before runs on the newer schema: `helm rollback` needs no migration back.
            of.upgraded.discard("session")
            await stack.restart("session")
            before = len(load.answered)
            await eventually(lambda: len(load.answered) > before + 4)
            load.stop.set()
        assert load.failed == []
        taken = steps_of(stack)
        assert set(load.answered) <= set(taken)
        for session_id in load.answered:
            assert [entry.seq async for entry in mesh.transcript(session_id)]
