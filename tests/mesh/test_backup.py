"""A backup that is taken while sessions run is restored into a new PostgreSQL and a new S3 server."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from uuid import uuid4

import pytest
from spawnmesh.session.v1 import session_pb2
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_client.attachments import Attachment
from spawnmesh_client.wire import WireMesh, connect_wire
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.demo_agents import TASK, profiles, with_published_figures
from spawnmesh_devstack.demo_files import PICTURE, TABLE, TEXT, make_files
from spawnmesh_devstack.demo_job import Job, do_job
from spawnmesh_devstack.demo_published import read_published
from spawnmesh_devstack.forks import ForkServer
from spawnmesh_devstack.models import SCRIPTED_AGENT
from spawnmesh_devstack.stack import Stack, open_stack

from tests.support.backup import client_of, copy_objects, copy_rows, restore, without_deletions
from tests.support.mesh.reader import read_code_word
from tests.support.mesh.shell import shell
from tests.support.waiting import eventually


@asynccontextmanager
async def mesh_on(data_dir: Path, fork_server: ForkServer) -> AsyncIterator[Stack]:
    async with open_stack(data_dir, lambda _line: None, execute=fork_server.execute) as stack:
        yield stack


@asynccontextmanager
async def client_of_tenant(stack: Stack, tenant: str) -> AsyncIterator[WireMesh]:
    targets = {name.replace("-", "_"): target for name, target in stack.targets.items()}
    async with connect_wire(**targets, token=stack.client_token(tenant)) as mesh:
        yield mesh


def fresh_tenant() -> str:
    return f"t-{uuid4().hex[:12]}"


@dataclass
class Written:
    """The sessions of a tenant: their transcripts, and the hashes of their published files."""

    transcripts: dict[str, list[Entry]] = field(default_factory=dict)
    published: dict[str, list[str]] = field(default_factory=dict)


async def read_all(mesh: WireMesh) -> Written:
    found = Written()
    async for session in mesh.sessions():
        key = session.session_id
        found.transcripts[key] = [entry async for entry in mesh.transcript(key)]
        found.published[key] = [one.read_sha256 for one in await read_published(mesh, session)]
    return found


class Load:
    """Spawns sessions with a file, of which some are in flight at any moment."""

    def __init__(self, mesh: WireMesh) -> None:
        self.mesh = mesh
        self.spawned: list[str] = []
        self.stop = asyncio.Event()

    async def run(self) -> None:
        while not self.stop.is_set():
            file = Attachment("a.txt", uuid4().bytes)
            session = await self.mesh.spawn("Say something.", attachments=[file])
            self.spawned.append(session.session_id)
            with suppress(MeshError):
                await self.mesh.wait(session.session_id, 1.0)


@pytest.mark.timeout(400)
async def test_restored_mesh_has_what_was_acknowledged_and_goes_on_with_what_was_in_flight(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    reader, story, busy = fresh_tenant(), fresh_tenant(), fresh_tenant()
    before: dict[str, Written] = {}
    # Not below pytest's directory, which the account of PostgreSQL cannot pass.
    with tempfile.TemporaryDirectory(prefix="spawnmesh-backup-") as folder:
        backup = Path(folder) / "backup"
        async with mesh_on(Path(folder) / "old", fork_server) as old:
            await read_code_word(old, "x1", stubs=True, tenant=reader)
            make_files(files := Path(folder) / "files", 1, small=False)
            paths = [files / name for name in (TABLE, TEXT, PICTURE)]
            agents = with_published_figures(profiles([SCRIPTED_AGENT]))
            await do_job(old, story, Job(agents, TASK, paths, 90), lambda _session: None)
            for tenant in (reader, story):
                async with client_of_tenant(old, tenant) as mesh:
                    before[tenant] = await read_all(mesh)
            at_backup, later = await back_up_under_load(old, busy, backup)

        keys = Path(folder) / "old" / "keys"
        begin, size = monotonic(), sum(file.stat().st_size for file in backup.rglob("*") if file.is_file())
        await restore(backup, Path(folder) / "new", keys=keys)
        restored = monotonic() - begin
        async with mesh_on(Path(folder) / "new", fork_server) as new:
            serving = monotonic() - begin
            print(
                f"{size / 1e6:.0f} MB were restored in {restored:.1f} s, the mesh served after {serving:.1f} s"
            )
            for tenant in (reader, story):
                async with client_of_tenant(new, tenant) as mesh:
                    assert await read_all(mesh) == before[tenant]
            assert sum(len(hashes) for hashes in before[story].published.values()) == 1
            await check_busy_tenant(new, busy, at_backup, later)
            for tenant in (reader, story, busy):
                await assert_intact(new, tenant, tmp_path)
            await lose_an_object(new, story, tmp_path)


async def back_up_under_load(stack: Stack, tenant: str, backup: Path) -> tuple[Sequence[str], Sequence[str]]:
    """Back up. Return the sessions that were acknowledged before it, and those spawned after it."""
    async with connect_wire(session=stack.targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant)
    async with client_of_tenant(stack, tenant) as mesh, asyncio.TaskGroup() as group:
        load = Load(mesh)
        for _ in range(2):
            group.create_task(load.run())
        await eventually(lambda: len(load.spawned) > 5)
        await copy_objects(stack.s3.endpoint, backup / "objects")  # Most bytes, while all goes on.
        async with without_deletions(stack):
            at_backup = tuple(load.spawned)
            await copy_rows(stack.postgres, backup / "postgres")
            behind = len(load.spawned)
            await eventually(lambda: len(load.spawned) > behind + 3)
            assert await copy_objects(stack.s3.endpoint, backup / "objects") > 0
        behind = len(load.spawned)
        await eventually(lambda: len(load.spawned) > behind + 5)
        later = tuple(load.spawned[behind + 2 :])  # One of each writer may have been begun before.
        load.stop.set()
    return at_backup, later


async def check_busy_tenant(
    stack: Stack, tenant: str, at_backup: Sequence[str], later: Sequence[str]
) -> None:
    """Every session of the backup succeeds with its file, also if its run was cut off by the point.

    A spawn that the point cut off was not acknowledged, and is undone.
    """
    async with client_of_tenant(stack, tenant) as mesh:
        restored = {session.session_id async for session in mesh.sessions()}
        assert set(at_backup) <= restored
        assert not set(later) & restored
        for session_id in sorted(restored):
            session = (await mesh.wait(session_id, 120)).session
            if session.state == session_pb2.SESSION_STATE_SPAWN_FAILED:
                assert session_id not in at_backup
                continue
            run = session.latest_run
            assert run.state == session_pb2.RUN_STATE_SUCCEEDED, run
            assert "a.txt: 16 bytes" in run.result_text
        with pytest.raises(MeshError) as refused:
            await mesh.session(later[-1])
        assert refused.value.reason is Reason.NOT_FOUND


async def assert_intact(stack: Stack, tenant: str, home: Path) -> None:
    """Both checks of an operator find nothing: the hashes of the entries, and rows against objects."""
    printed = await shell(
        f"spawnmesh --tenant {tenant} transcript verify && spawnmesh --tenant {tenant} attachments gc",
        stack,
        home,
    )
    assert "intact" in printed
    assert "NOT INTACT" not in printed


async def lose_an_object(stack: Stack, tenant: str, home: Path) -> None:
    """Objects that are older than the rows lack some: the collection says so, and deletes no row."""
    client = client_of(stack.s3.endpoint)
    (item,) = client.list_objects(bucket := f"spawnmesh-{tenant}", recursive=True)
    client.remove_object(bucket, str(item.object_name))
    printed = await shell(
        f"spawnmesh --tenant {tenant} attachments gc && exit 2 || echo code $?", stack, home
    )
    assert "code 1" in printed
    log = (stack.data_dir / "logs" / "attachment-blob-worker.log").read_text()
    assert str(item.object_name) in log
    async with client_of_tenant(stack, tenant) as mesh:
        with pytest.raises(MeshError) as refused:
            await read_all(mesh)
        assert refused.value.reason in {Reason.STORED_HASH_DIFFERS, Reason.ATTACHMENT_SET_STATE}
