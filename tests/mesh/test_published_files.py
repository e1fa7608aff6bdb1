"""Files that functions of a worker publish: clients, parents and other sessions get them."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import AttachmentLimits
from spawnmesh.session.v1.tenant_pb2 import TenantSettings
from spawnmesh_client import (
    Agent,
    AlreadyExists,
    Attachment,
    EventKind,
    FailedPrecondition,
    InvalidRequest,
    Mesh,
    MeshError,
    NotFound,
    OutputSet,
    Reason,
    ReferencedFile,
    Session,
    connect,
)
from spawnmesh_client.run_context import RunContext
from spawnmesh_client.wire import connect_wire
from spawnmesh_client.worker import Worker
from spawnmesh_devstack.stack import Stack
from spawnmesh_runtime.tokens import TokenMinter

pytestmark = pytest.mark.timeout(420)

MIB = 1024 * 1024
REPORT = b"# Report\n\nAll pumps work.\n"
LARGE = bytes(range(256)) * (3 * MIB // 256)


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A tenant as its client and its worker see it."""

    client: Mesh
    runner: Mesh
    worker: Worker

    def new_worker(self) -> Worker:
        """Return another worker, for one that was stopped does not begin again."""
        return Worker(self.runner, name="another")

    async def spawn(self, agent: str = "writer", **options: str) -> Session:
        return await self.client.spawn("Work.", agent=agent, runtime="EXTERNAL", **options)

    @asynccontextmanager
    async def working(self, worker: Worker | None = None) -> AsyncIterator[None]:
        """Run the worker during the block, and stop it as a signal does."""
        one = worker or self.worker
        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            group.create_task(one.run())
            try:
                yield
            finally:
                one.stop()


@pytest.fixture
async def tenancy(stack: Stack) -> AsyncIterator[Tenancy]:
    """Create a tenant with two agents, and connect to it with two tokens."""
    tenant = f"t-{uuid4().hex[:12]}"
    names = ("session", "transcript", "attachment-blob")
    targets = {name: stack.targets[name] for name in names}
    agents = ("writer", "editor")
    minter = TokenMinter("client", stack.keys / "client.pem")
    claims = minter.runner_token("worker", 3600, tenants=[tenant], agents=agents)
    limits = AttachmentLimits(enabled=True, max_file_count=9, max_file_bytes=4 * MIB, max_total_bytes=8 * MIB)
    async with connect_wire(session=targets["session"], token=stack.admin_token()) as operator:
        await operator.create_tenant(tenant, settings=TenantSettings(attachments=limits))
    async with (
        connect(targets=targets, token=stack.client_token(tenant)) as client,
        connect(targets=targets, token=claims) as runner,
    ):
        for agent in agents:
            await client.agents.put(Agent(agent, spawnable_agents=("*",)))
        yield Tenancy(client, runner, Worker(runner, name="ours"))


async def published(session: Session) -> list[OutputSet]:
    return [one async for one in session.outputs()]


async def test_files_of_a_run_reach_people_and_the_next_session(tenancy: Tenancy, tmp_path: Path) -> None:
    @tenancy.worker.agent("writer")
    async def write(ctx: RunContext) -> str:
        (ctx.workspace / "report.md").write_bytes(b"# Draft")
        (ctx.workspace / "large.bin").write_bytes(LARGE)
        await ctx.publish("report.md", "large.bin")
        (ctx.workspace / "report.md").write_bytes(REPORT)
        await ctx.publish("report.md", request_id="final")
        return "It is ready."

    async with tenancy.working():
        session = await tenancy.spawn()
        result = await session.result(timeout=240)

    assert (result.run.output_file_count, result.run.output_total_bytes) == (3, 7 + len(LARGE) + len(REPORT))
    first, second = await published(session)
    assert (first.run_id, first.session_id, second.request_id) == (
        result.run.run_id,
        session.session_id,
        "final",
    )
    assert [(one.kind, one.set_id) async for one in session.events() if one.set_id] == [
        (EventKind.FILES_PUBLISHED, first.set_id),
        (EventKind.FILES_PUBLISHED, second.set_id),
    ]
    assert [file.name for file in first.files] == ["report.md", "large.bin"]
    assert (await tenancy.client.files.get(second.set_id)).run_id == result.run.run_id
    paths = await session.save_outputs(tmp_path / "out")
    assert {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in paths} == {
        f"{first.set_id}/report.md": b"# Draft",
        "large.bin": LARGE,
        "report.md": REPORT,
    }
    reader = await tenancy.client.spawn(
        "What is in the files?",
        attachments=[
            *second.references(),
            ReferencedFile(first.set_id, "report.md", new_name="draft.md"),
            Attachment("own.txt", b"own"),
        ],
    )
    answer = (await reader.result(timeout=240)).text
    for name, data in (("report.md", REPORT), ("draft.md", b"# Draft"), ("own.txt", b"own")):
        assert f"{name}: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}" in answer


async def test_parent_fetches_the_files_of_its_child_and_hands_them_on(tenancy: Tenancy) -> None:
    @tenancy.worker.agent("writer")
    async def write(ctx: RunContext) -> str:
        return (await ctx.publish(Attachment("report.md", REPORT))).set_id

    @tenancy.worker.agent("editor")
    async def edit(ctx: RunContext) -> str:
        child = await ctx.spawn("Write.", agent="writer", runtime="EXTERNAL")
        await child.result(timeout=240)
        [one] = await published(child)
        [path] = await ctx.fetch(one.set_id)
        assert path == ctx.workspace / ".spawnmesh" / "attachments" / one.set_id / "report.md"
        (ctx.workspace / "final.md").write_bytes(path.read_bytes() + b"Read by me.\n")
        await ctx.publish("final.md")
        reader = await ctx.spawn("Read.", agent="default", attachments=one.references("report.md"))
        return (await reader.result(timeout=240)).text

    async with tenancy.working():
        parent = await tenancy.spawn("editor")
        result = await parent.result(timeout=240)
        stranger = await tenancy.spawn()
        await stranger.result(timeout=240)
        refusals: list[MeshError] = []

        @tenancy.worker.agent("editor")
        async def pry(ctx: RunContext) -> str:
            [one] = await published(stranger)
            for call in (
                ctx.fetch(one.set_id),
                ctx.spawn("Read.", agent="default", attachments=one.references()),
            ):
                with pytest.raises(MeshError) as refused:
                    await call
                refusals.append(refused.value)
            return "No."

        await (await tenancy.spawn("editor")).result(timeout=240)
    assert hashlib.sha256(REPORT).hexdigest() in result.text
    [final] = await published(parent)
    assert [(file.name, file.size_bytes) for file in final.files] == [("final.md", len(REPORT) + 12)]
    fetched, spawned = refusals
    assert isinstance(fetched, NotFound)
    assert (spawned.reason, spawned.facts["cause"]) == (Reason.SPAWN_FAILED, Reason.NOT_FOUND)


async def test_function_that_is_called_again_publishes_each_file_once(tenancy: Tenancy) -> None:
    began, calls = asyncio.Event(), 0

    async def write(ctx: RunContext) -> str:
        nonlocal calls
        calls += 1
        await ctx.publish(Attachment("report.md", REPORT))
        await ctx.publish(Attachment("log.txt", f"attempt {calls}".encode()))
        began.set()
        if calls == 1:
            await asyncio.Event().wait()
        return "It is ready."

    for _ in range(2):
        worker = tenancy.new_worker()
        worker.agent("writer")(write)
        async with tenancy.working(worker):
            if calls == 0:
                session = await tenancy.spawn()
                await began.wait()
            else:
                await session.result(timeout=240)
    assert calls == 2
    files = [(file.name, file.size_bytes) for one in await published(session) for file in one.files]
    assert files == [("report.md", len(REPORT)), ("log.txt", 9), ("log.txt", 9)]


async def test_refusals_name_the_file_and_publish_nothing(tenancy: Tenancy) -> None:
    refused: list[MeshError] = []

    @tenancy.worker.agent("writer")
    async def write(ctx: RunContext) -> str:
        await ctx.publish(Attachment("a.md", b"a"), request_id="r")
        for files, options in (
            ([Attachment("a.md", b"other")], {"request_id": "r"}),
            ([Attachment("a.md", b"a"), Attachment("a.md", b"b")], {}),
            ([Attachment("b.md", b"b"), Attachment("nul", b"c")], {}),
            ([Attachment("huge.bin", bytes(5 * MIB))], {}),
            ([], {}),
            (["../secret.txt"], {}),
        ):
            with pytest.raises(MeshError) as error:
                await ctx.publish(*files, **options)
            refused.append(error.value)
        return "Done."

    async with tenancy.working():
        session = await tenancy.spawn()
        await session.result(timeout=240)
    assert [type(one) for one in refused] == [AlreadyExists] + 5 * [InvalidRequest]
    assert [one.reason for one in refused] == [
        Reason.REQUEST_ID_REUSED,
        Reason.ATTACHMENTS_DUPLICATE_NAME,
        Reason.ATTACHMENTS_INVALID_NAME,
        Reason.ATTACHMENTS_FILE_BYTES_EXCEEDED,
        Reason.INVALID_REQUEST,
        Reason.INVALID_REQUEST,
    ]
    assert [one.facts.get("file") for one in refused[1:4]] == ["a.md", "nul", "huge.bin"]
    assert "copy the file into the workspace" in str(refused[5])
    assert [file.name for one in await published(session) for file in one.files] == ["a.md"]


async def test_deleted_session_takes_its_files_with_it(tenancy: Tenancy, tmp_path: Path) -> None:
    @tenancy.worker.agent("writer")
    async def write(ctx: RunContext) -> str:
        await ctx.publish(Attachment("report.md", REPORT))
        return "It is ready."

    async with tenancy.working():
        session = await tenancy.spawn()
        await session.result(timeout=240)
    [one] = await published(session)
    reader = await tenancy.client.spawn("Read.", attachments=one.references(), mode="SESSION")
    assert (await tenancy.client.files.get(one.set_id)).state == "ATTACHED"
    await session.delete()
    with pytest.raises(NotFound):
        await published(session)
    with pytest.raises(FailedPrecondition) as gone:
        await tenancy.client.files.download(one.set_id, "report.md", tmp_path)
    with pytest.raises(FailedPrecondition) as refused:
        await tenancy.client.spawn("Read.", attachments=one.references())
    assert gone.value.reason is refused.value.reason is Reason.ATTACHMENT_SET_STATE
    assert reader.receipt is not None
    path = await tenancy.client.files.download(reader.receipt.set_id, "report.md", tmp_path)
    assert path.read_bytes() == REPORT
