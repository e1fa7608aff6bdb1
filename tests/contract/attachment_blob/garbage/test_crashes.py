"""The process ends at each step between S3 and the database. Acknowledged work is not lost."""

import contextlib
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable

import google_crc32c
import pytest
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.ranges import ByteRange
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_attachment_blob.domain.uploads import Chunk, Finish, UploadMessage, UploadRef, UploadSpec
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_attachment_blob.rpc.upload_file import receive_upload
from spawnmesh_core.clock import utc_now
from spawnmesh_core.ids import IdKind, new_id

from tests.support.attachment_blob.fakes import Killed, Life, open_second_process
from tests.support.attachment_blob.fixtures import BlobService, Tenant, new_set_id
from tests.support.attachment_blob.uploads import PART, WHOLE, content

LARGE = content(PART + 1)
LARGE_SHA256 = hashlib.sha256(LARGE).hexdigest()
CHUNK = 2**20
FILES = {"a": b"A", "b": b"B", "c": b"C", "large": LARGE}

Call = Callable[[Dependencies], Awaitable[object]]


class Story(ABC):
    """Calls of one tenant, in order. Each of them can be repeated."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant_id = tenant.tenant_id
        self.session_id = new_id(IdKind.SESSION)
        self.made = 0
        """Calls that returned."""

    @abstractmethod
    def calls(self) -> list[Call]:
        """Return the calls in order."""

    @abstractmethod
    def kept(self) -> dict[str, tuple[str, ...]]:
        """Return the sets that must be readable: acknowledged and not released."""

    @abstractmethod
    def set_ids(self) -> tuple[str, ...]:
        """Return the ids of all sets."""

    async def live(self, deps: Dependencies) -> None:
        """Make the remaining calls."""
        for call in self.calls()[self.made :]:
            await call(deps)
            self.made += 1

    async def stage(
        self, deps: Dependencies, set_id: str, names: tuple[str, ...], upload_id: str = ""
    ) -> None:
        items = [InlineItem(name, FILES[name].decode(), Encoding.UTF8) for name in names]
        uploads = [UploadRef(upload_id, "large")] if upload_id else []
        await deps.stager.stage_set(self.tenant_id, SetRequest(set_id, self.session_id, items, uploads))

    async def upload(self, deps: Dependencies, upload_id: str, session_id: str) -> None:
        spec = UploadSpec(upload_id, "large", len(LARGE), LARGE_SHA256, "")

        async def messages(start: int) -> AsyncIterator[UploadMessage]:
            yield spec
            for at in range(start, len(LARGE), CHUNK):
                piece = LARGE[at : at + CHUNK]
                yield Chunk(at, piece, google_crc32c.value(piece))
            yield Finish()

        async def only_spec() -> AsyncIterator[UploadMessage]:
            yield spec

        found = await receive_upload(only_spec(), self.tenant_id, session_id, deps)
        if found.durable_bytes < len(LARGE) or found.state.value != "COMPLETE":
            await receive_upload(messages(found.durable_bytes), self.tenant_id, session_id, deps)


class SetsStory(Story):
    """Stages two sets with common bytes, and releases the first."""

    def __init__(self, tenant: Tenant) -> None:
        super().__init__(tenant)
        self.first, self.second = new_set_id(), new_set_id()

    def calls(self) -> list[Call]:
        return [
            lambda deps: self.stage(deps, self.first, ("a", "b")),
            lambda deps: self.stage(deps, self.second, ("b", "c")),
            lambda deps: deps.releaser.release_set(self.tenant_id, self.first),
        ]

    def kept(self) -> dict[str, tuple[str, ...]]:
        # The release of the first set begins after the second call.
        if self.made == 1:
            return {self.first: ("a", "b")}
        return {self.second: ("b", "c")} if self.made else {}

    def set_ids(self) -> tuple[str, ...]:
        return self.first, self.second


class UploadsStory(Story):
    """Uploads a file as a client, stages it, and uploads the same bytes as a run."""

    def __init__(self, tenant: Tenant) -> None:
        super().__init__(tenant)
        self.set_id = new_set_id()
        self.upload_id, self.run_upload_id = new_id(IdKind.UPLOAD), new_id(IdKind.UPLOAD)
        self.run_session_id = new_id(IdKind.SESSION)

    def calls(self) -> list[Call]:
        return [
            lambda deps: self.upload(deps, self.upload_id, ""),
            lambda deps: self.stage(deps, self.set_id, (), self.upload_id),
            lambda deps: self.upload(deps, self.run_upload_id, self.run_session_id),
        ]

    def kept(self) -> dict[str, tuple[str, ...]]:
        return {self.set_id: ("large",)} if self.made >= 2 else {}

    def set_ids(self) -> tuple[str, ...]:
        return (self.set_id,)


@pytest.fixture
async def tenant(blobs: BlobService) -> Tenant:
    tenant = blobs.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


@pytest.fixture(scope="module")
async def deps(blobs: BlobService) -> AsyncIterator[Dependencies]:
    """A process that does not end."""
    async with open_second_process(blobs) as opened:
        yield opened


async def count_steps(tenant: Tenant, story: Story, deps: Dependencies) -> int:
    life = Life()
    async with open_second_process(tenant.service, life=life) as mortal:
        await story.live(mortal)
    await remove_everything(tenant, deps, story)
    return life.steps


async def crash_at(tenant: Tenant, story: Story, last_step: int, deps: Dependencies, *, repeat: bool) -> None:
    """End a process at this step. Check that another one loses nothing and removes everything."""
    life = Life(last_step)
    async with open_second_process(tenant.service, life=life) as mortal:
        try:
            await story.live(mortal)
        except BaseException:
            if not life.ended_at:
                raise
        else:
            assert not life.ended_at, (
                f"step {last_step}, {life.ended_at}: answered although the process had ended"
            )
    where = f"step {last_step}, {life.ended_at}, in call {story.made + 1}"
    if repeat:
        await story.live(deps)
    counts = await deps.collector.collect(tenant.tenant_id, dry_run=False)
    assert (counts.missing_object_count, counts.damaged_object_count) == (0, 0), where
    for set_id, names in story.kept().items():
        for name in names:
            pieces = deps.reader.read(tenant.tenant_id, set_id, name, None, ByteRange())
            assert b"".join([piece async for piece in pieces]) == FILES[name], where
    stored = [row["object_key"] for row in await tenant.rows("blobs") if row["state"] == "STORED"]
    open_keys = {row["object_key"] for row in await tenant.rows("uploads") if row["state"] != "COMPLETE"}
    assert sorted(stored) == [key for key in tenant.object_keys() if key not in open_keys], where
    await remove_everything(tenant, deps, story)
    assert await tenant.left() == (0, 0, 0), where
    assert (await tenant.rows("uploads"), tenant.unfinished_multiparts()) == ([], []), where


async def remove_everything(tenant: Tenant, deps: Dependencies, story: Story) -> None:
    for set_id in story.set_ids():
        await deps.releaser.release_set(tenant.tenant_id, set_id)
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("update uploads set expire_time = %(now)s", {"now": utc_now()})
    await deps.collector.collect(tenant.tenant_id, dry_run=False)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "least_steps"), [(SetsStory, 25), (UploadsStory, 35)])
async def test_a_crash_at_any_step_loses_nothing_and_leaves_nothing(
    tenant: Tenant, deps: Dependencies, kind: type[Story], least_steps: int
) -> None:
    """After every other crash the caller repeats the failed call, after the others it gives up.

    `SPAWNMESH_EVERY_CRASH=1` does both after each crash.
    """
    steps = await count_steps(tenant, kind(tenant), deps)
    assert steps > least_steps
    # The tenant is empty after each story. A bucket for each would take S3 longer than the story.
    for last_step in range(1, steps + 1):
        both = os.environ.get("SPAWNMESH_EVERY_CRASH")
        for repeat in (True, False) if both else (last_step % 2 == 0,):
            await crash_at(tenant, kind(tenant), last_step, deps, repeat=repeat)


async def test_an_interrupted_collection_is_resumed(
    tenant: Tenant, blobs: BlobService, deps: Dependencies
) -> None:
    """The collector itself ends at each of its steps."""
    step = 0
    ended = True
    while ended:
        step += 1
        story = SetsStory(tenant)
        await story.stage(deps, story.first, ("a", "b"))
        async with tenant.service.database.transaction(tenant.tenant_id) as connection:
            await connection.execute(
                "update sets set state = 'RELEASED', state_time = now() - interval '1 minute'"
            )
        life = Life(step)
        async with open_second_process(blobs, life=life) as mortal:
            with contextlib.suppress(Killed):
                await mortal.collector.collect(tenant.tenant_id, dry_run=False)
        ended = bool(life.ended_at)
        await deps.collector.collect(tenant.tenant_id, dry_run=False)
        assert await tenant.left() == (0, 0, 0), life.ended_at

    assert step > 15
