"""The mesh in memory keeps files as the real one does: the same program, the same records of it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from spawnmesh_client import (
    Agent,
    Attachment,
    Mesh,
    OutputSet,
    ReferencedFile,
    Session,
    connect,
)
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.testing import FakeMesh
from spawnmesh_client.worker import Worker
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.tokens import TokenMinter

from tests.support.mesh.both_meshes import Record, real, refused, said, tenant
from tests.support.waiting import eventually

__all__ = ["real", "tenant"]

pytestmark = pytest.mark.timeout(420)

DRAFT = (Attachment("report.md", b"# Draft"), Attachment("table.csv", b"a,b", "x/y"))
REPORT = Attachment("report.md", b"# Report")


async def write(ctx: RunContext) -> str:
    await ctx.publish(*DRAFT)
    await ctx.publish(REPORT)
    return "It is ready."


@asynccontextmanager
async def writing(stack: Stack, tenant: str) -> AsyncIterator[None]:
    """Answer the runs of the agent `writer` during the block."""
    targets = {name: stack.targets[name] for name in ("session", "transcript", "attachment-blob")}
    minter = TokenMinter("client", stack.keys / "client.pem")
    token = minter.runner_token("ours", 3600, tenants=[tenant], agents=["writer"])
    async with connect(targets=targets, token=token) as runner, asyncio.TaskGroup() as group:
        worker = Worker(runner)
        worker.agent("writer")(write)
        group.create_task(worker.run())
        try:
            yield
        finally:
            worker.stop()


async def files(mesh: Mesh, folder: Path) -> Record:
    (folder / "a.md").write_text("hello")
    attached = [folder / "a.md", Attachment("b.bin", b"\x00\xff", "x/y"), Attachment("empty", b"")]
    session = await mesh.spawn("Say hello.", attachments=attached, mount_path="/in", mode="SESSION")
    await session.result(timeout=60)
    receipt = session.receipt
    assert receipt is not None
    seen: Record = [receipt.count, receipt.total_bytes, receipt.mount_path, list(receipt.files)]
    seen += [receipt.rel_dir.replace(receipt.set_id, "SET")]
    [found] = [one async for one in mesh.files.sets(session_id=session.session_id)]
    seen += [found.set_id == receipt.set_id, found.state, found.files == receipt.files]
    (folder / "out").mkdir(exist_ok=True)
    path = await mesh.files.download(found.set_id, "b.bin", folder / "out", overwrite=True)
    seen += [path.read_bytes()]
    upload = await mesh.files.upload(Attachment("c.bin", b"c" * 1000))
    again = await mesh.files.upload(Attachment("c.bin", b"c" * 1000))
    seen += [upload.state, upload.size_bytes, upload.upload_id == again.upload_id]
    twice = mesh.spawn("x", attachments=[Attachment("a", b"1"), Attachment("a", b"2")])
    return [*seen, await refused(twice)]


async def references(mesh: Mesh, folder: Path) -> Record:
    """Hand files of one session to another, as those that a run has published."""
    first = await mesh.spawn("Say hello.", attachments=[Attachment("a.md", b"a", "x/y")], mode="SESSION")
    await first.result(timeout=60)
    assert first.receipt is not None
    kept = first.receipt.set_id
    attached = [ReferencedFile(kept, "a.md", "b.md"), Attachment("c.md", b"c"), ReferencedFile(kept, "a.md")]
    second = await mesh.spawn("Say hello.", attachments=attached, mode="SESSION")
    assert second.receipt is not None
    seen: Record = [second.receipt.count, second.receipt.total_bytes, list(second.receipt.files)]
    [found] = [one async for one in mesh.files.sets(session_id=second.session_id)]
    seen += [found.run_id, found.files == second.receipt.files, [one async for one in second.outputs()]]
    run = (await second.result(timeout=60)).run
    seen += [run.output_file_count, run.output_total_bytes]
    twice = [Attachment("a.md", b"1"), ReferencedFile(kept, "a.md")]
    seen += [await refused(mesh.spawn("x", attachments=twice))]
    for reference in (
        ReferencedFile(new_id(IdKind.ATTACHMENT_SET), "a.md"),
        ReferencedFile(kept, "other.md"),
        ReferencedFile("att_1", "a.md"),
    ):
        seen += [await refused(mesh.spawn("x", attachments=[reference]))]
    await first.kill()

    async def is_released() -> bool:
        found = await mesh.files.get(kept)
        return found.state == "RELEASED" and not found.files  # The bytes go a moment later.

    await eventually(is_released)
    released = await mesh.files.get(kept)
    seen += [released.files, released.total_bytes, await refused(mesh.files.download(kept, "a.md", folder))]
    seen += [await refused(mesh.spawn("x", attachments=[ReferencedFile(kept, "a.md")]))]
    await second.delete()
    return [*seen, await refused(outputs(second))]


async def outputs(session: Session) -> list[OutputSet]:
    return [one async for one in session.outputs()]


async def published(mesh: Mesh, folder: Path) -> Record:
    """Get the files back that a run has published in two calls."""
    await mesh.agents.put(Agent("writer"))
    writer = await mesh.spawn("Write.", agent="writer", runtime="EXTERNAL", mode="SESSION")
    result = await writer.result(timeout=240)
    run = result.run
    seen: Record = [result.text, run.output_file_count, run.output_total_bytes]
    events = [event async for event in writer.events(wait=False)]
    seen += [(event.kind, event.run_state, event.run_id == run.run_id) for event in events]
    seen += [event.detail for event in events if event.set_id]
    first, second = await outputs(writer)
    seen += [[event.set_id for event in events if event.set_id] == [first.set_id, second.set_id]]
    for one in (first, second):
        seen += [one.run_id == run.run_id, one.session_id == writer.session_id, one.files, one.total_bytes]
    stored = [one async for one in mesh.files.sets(session_id=writer.session_id)]
    stored.sort(key=lambda one: one.total_bytes)
    seen += [(one.run_id == run.run_id, one.state, one.files, one.total_bytes) for one in stored]
    seen += [[one.set_id async for one in writer.outputs(run_id=new_id(IdKind.RUN))]]
    out = folder / writer.session_id
    paths = await writer.save_outputs(out)
    seen += [(str(path.relative_to(out)).replace(first.set_id, "SET"), path.read_bytes()) for path in paths]
    (out / "report.md").write_text("mine")
    with pytest.raises(FileExistsError):
        await writer.save_outputs(out)
    reader = await mesh.spawn("Say hello.", attachments=first.references("table.csv"))
    assert reader.receipt is not None
    await writer.kill()
    again = await mesh.spawn("Say hello.", attachments=second.references())
    assert again.receipt is not None
    seen += [reader.receipt.files == first.files[1:], again.receipt.files == second.files]
    return [*seen, len(await outputs(writer))]


@pytest.mark.parametrize("scenario", [files, references, published], ids=lambda one: one.__name__)
async def test_scenario_leaves_the_same_record(
    stack: Stack,
    tenant: str,
    real: Mesh,
    tmp_path: Path,
    scenario: Callable[[Mesh, Path], Awaitable[Record]],
) -> None:
    fake = FakeMesh()
    if scenario is published:
        fake.publishes(*DRAFT)
        fake.publishes(REPORT)
        fake.answers("It is ready.")
    fake.answers(*[said] * 5)
    recorded = await scenario(fake, tmp_path)
    async with writing(stack, tenant):
        assert recorded == await scenario(real, tmp_path)
