"""The process ends at each step between S3 and the database. Acknowledged work is not lost."""

import asyncio
import contextlib
import hashlib
import os
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
CHUNK = 2**20
FILES = {"a": b"A", "b": b"B", "c": b"C", "large": LARGE}

Deed = Callable[[Dependencies], Awaitable[object]]


class Story:
    """The calls of a tenant: sets with common bytes, uploads and a release."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant_id = tenant.tenant_id
        self.first, self.second, self.third = new_set_id(), new_set_id(), new_set_id()
        self.upload_id, self.run_upload_id = new_id(IdKind.UPLOAD), new_id(IdKind.UPLOAD)
        self.session_id, self.run_session_id = new_id(IdKind.SESSION), new_id(IdKind.SESSION)
        self.answered: set[str] = set()

    def deeds(self) -> list[tuple[str, Deed]]:
        """Return the calls in order. Each of them can be repeated."""
        return [
            (self.first, lambda deps: self._stage(deps, self.first, ("a", "b"))),
            (self.second, lambda deps: self._stage(deps, self.second, ("b", "c"))),
            (self.upload_id, lambda deps: self._upload(deps, self.upload_id, "")),
            (self.third, lambda deps: self._stage(deps, self.third, (), self.upload_id)),
            (
                f"{self.first} is given up",
                lambda deps: deps.releaser.release_set(self.tenant_id, self.first),
            ),
            (self.run_upload_id, lambda deps: self._upload(deps, self.run_upload_id, self.run_session_id)),
        ]

    async def _stage(
        self, deps: Dependencies, set_id: str, names: tuple[str, ...], upload_id: str = ""
    ) -> None:
        items = [InlineItem(name, FILES[name].decode(), Encoding.UTF8) for name in names]
        uploads = [UploadRef(upload_id, "large")] if upload_id else []
        await deps.stager.stage_set(self.tenant_id, SetRequest(set_id, self.session_id, items, uploads))

    async def _upload(self, deps: Dependencies, upload_id: str, session_id: str) -> None:
        spec = UploadSpec(upload_id, "large", len(LARGE), hashlib.sha256(LARGE).hexdigest(), "")

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

    async def live(self, deps: Dependencies, start: int = 0) -> int:
        """Make the remaining calls. `came` is the number of calls that returned."""
        self.came = start
        for name, deed in self.deeds()[start:]:
            await deed(deps)
            self.answered.add(name)
            self.came += 1
        return self.came

    def kept(self) -> dict[str, tuple[str, ...]]:
        """Return the sets that must be readable: acknowledged and not released."""
        contents: dict[str, tuple[str, ...]] = {
            self.first: ("a", "b"),
            self.second: ("b", "c"),
            self.third: ("large",),
        }
        if self.came >= 4:  # The release has begun.
            del contents[self.first]
        return {set_id: names for set_id, names in contents.items() if set_id in self.answered}


@pytest.fixture
async def tenant(blobs: BlobService) -> Tenant:
    tenant = blobs.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


async def count_steps(tenant: Tenant) -> int:
    life = Life()
    async with open_second_process(tenant.service, life=life) as deps:
        await Story(tenant).live(deps)
    return life.steps


async def crash_at(tenant: Tenant, last_step: int, *, repeat: bool) -> None:
    """Check that only tombstones are left of the tenant."""
    story, life = Story(tenant), Life(last_step)
    async with open_second_process(tenant.service, life=life) as deps:
        try:
            await story.live(deps)
        except BaseException:
            if not life.ended_at:
                raise
        else:
            assert not life.ended_at, (
                f"step {last_step}, {life.ended_at}: answered although the process had ended"
            )
    where = f"step {last_step}, {life.ended_at}, at deed {story.came}"
    async with open_second_process(tenant.service) as deps:
        if repeat:
            await story.live(deps, story.came)
        counts = await deps.collector.collect(tenant.tenant_id, dry_run=False)
        assert (counts.missing_object_count, counts.damaged_object_count) == (0, 0), where
        for set_id, names in story.kept().items():
            for name in names:
                pieces = deps.reader.read(tenant.tenant_id, set_id, name, None, ByteRange())
                assert b"".join([piece async for piece in pieces]) == FILES[name], where
        stored = [row["object_key"] for row in await tenant.rows("blobs") if row["state"] == "STORED"]
        open_keys = {row["object_key"] for row in await tenant.rows("uploads") if row["state"] != "COMPLETE"}
        assert sorted(stored) == [key for key in tenant.object_keys() if key not in open_keys], where
        await everything_goes(tenant, deps, story)
    assert await tenant.left() == (0, 0, 0), where
    assert (await tenant.rows("uploads"), tenant.unfinished_multiparts()) == ([], []), where


async def everything_goes(tenant: Tenant, deps: Dependencies, story: Story) -> None:
    for set_id in (story.first, story.second, story.third):
        await deps.releaser.release_set(tenant.tenant_id, set_id)
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("update uploads set expire_time = %(now)s", {"now": utc_now()})
    await deps.collector.collect(tenant.tenant_id, dry_run=False)


@pytest.mark.timeout(600)
async def test_a_crash_at_any_step_loses_nothing_and_leaves_nothing(
    tenant: Tenant, blobs: BlobService
) -> None:
    """After every other crash the caller repeats the failed call, after the others it gives up.

    `SPAWNMESH_EVERY_CRASH=1` does both after each crash.
    """
    steps = await count_steps(tenant)
    assert steps > 60
    both = [(step, repeat) for step in range(1, steps + 1) for repeat in (True, False)]
    chosen = (
        both
        if os.environ.get("SPAWNMESH_EVERY_CRASH")
        else [one for one in both if one[1] == (one[0] % 2 == 0)]
    )
    # Each tenant has one story at a time and is empty after it. A bucket for each story would take
    # S3 longer than the story.
    tenants: asyncio.Queue[Tenant] = asyncio.Queue()
    for place in (blobs.tenant() for _ in range(3)):
        await place.prepare(**WHOLE)
        tenants.put_nowait(place)

    async def one(last_step: int, *, repeat: bool) -> None:
        tenant = await tenants.get()
        await crash_at(tenant, last_step, repeat=repeat)
        tenants.put_nowait(tenant)

    async with asyncio.TaskGroup() as tasks:
        for last_step, repeat in chosen:
            tasks.create_task(one(last_step, repeat=repeat))


async def test_an_interrupted_collection_is_resumed(tenant: Tenant, blobs: BlobService) -> None:
    """The collector itself ends at each of its steps."""
    step = 0
    ended = True
    while ended:
        step += 1
        story = Story(tenant)
        async with open_second_process(blobs) as deps:
            await story._stage(deps, story.first, ("a", "b"))
            async with tenant.service.database.transaction(tenant.tenant_id) as connection:
                await connection.execute(
                    "update sets set state = 'RELEASED', state_time = now() - interval '1 minute'"
                )
        life = Life(step)
        async with open_second_process(blobs, life=life) as deps:
            with contextlib.suppress(Killed):
                await deps.collector.collect(tenant.tenant_id, dry_run=False)
        ended = bool(life.ended_at)
        async with open_second_process(blobs) as deps:
            await deps.collector.collect(tenant.tenant_id, dry_run=False)
        assert await tenant.left() == (0, 0, 0), life.ended_at

    assert step > 15
