"""A process that ends at every single step between S3 and the database: what it leaves is repaired, and nothing that was answered is lost."""

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable

import google_crc32c
import pytest
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.ranges import ByteRange
from spawnmesh_attachment_blob.domain.uploads import Chunk, Finish, UploadRef, UploadSpec
from spawnmesh_attachment_blob.staging import SetRequest
from spawnmesh_attachment_blob.uploading import Message
from spawnmesh_core.clock import utc_now
from spawnmesh_core.ids import IdKind, new_id

from tests.contract.attachment_blob_fixtures import BlobService, Tenant, blobs, new_set_id
from tests.contract.attachment_blob_parts import Killed, Life, ServiceParts, open_parts
from tests.contract.attachment_blob_uploads import PART, WHOLE, content

__all__ = ["blobs"]

LARGE = content(PART + 1)
CHUNK = 2**20
FILES = {"a": b"A", "b": b"B", "c": b"C", "large": LARGE}

Deed = Callable[[ServiceParts], Awaitable[object]]


class Story:
    """Two sets that share bytes, a large upload and a set of it, one release, the same bytes from a run: what a day of a tenant is made of."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant_id = tenant.tenant_id
        self.first, self.second, self.third = new_set_id(), new_set_id(), new_set_id()
        self.upload_id, self.run_upload_id = new_id(IdKind.UPLOAD), new_id(IdKind.UPLOAD)
        self.session_id, self.run_session_id = new_id(IdKind.SESSION), new_id(IdKind.SESSION)
        self.answered: set[str] = set()

    def deeds(self) -> list[tuple[str, Deed]]:
        """In order; each may be repeated."""
        return [
            (self.first, lambda parts: self._stage(parts, self.first, ("a", "b"))),
            (self.second, lambda parts: self._stage(parts, self.second, ("b", "c"))),
            (self.upload_id, lambda parts: self._upload(parts, self.upload_id, "")),
            (self.third, lambda parts: self._stage(parts, self.third, (), self.upload_id)),
            (f"{self.first} is given up", lambda parts: parts.removal.release(self.tenant_id, self.first)),
            (self.run_upload_id, lambda parts: self._upload(parts, self.run_upload_id, self.run_session_id)),
        ]

    async def _stage(self, parts: ServiceParts, set_id: str, names: tuple[str, ...], upload_id: str = "") -> None:
        items = [InlineItem(name, FILES[name].decode(), Encoding.UTF8) for name in names]
        uploads = [UploadRef(upload_id, "large")] if upload_id else []
        await parts.staging.stage(self.tenant_id, SetRequest(set_id, self.session_id, items, uploads))

    async def _upload(self, parts: ServiceParts, upload_id: str, session_id: str) -> None:
        spec = UploadSpec(upload_id, "large", len(LARGE), hashlib.sha256(LARGE).hexdigest(), "")

        async def messages(start: int) -> AsyncIterator[Message]:
            yield spec
            for at in range(start, len(LARGE), CHUNK):
                piece = LARGE[at : at + CHUNK]
                yield Chunk(at, piece, google_crc32c.value(piece))
            yield Finish()

        async def only_spec() -> AsyncIterator[Message]:
            yield spec

        found = await parts.uploading.receive(self.tenant_id, session_id, only_spec())
        if found.durable_bytes < len(LARGE) or found.state.value != "COMPLETE":
            await parts.uploading.receive(self.tenant_id, session_id, messages(found.durable_bytes))

    async def live(self, parts: ServiceParts, start: int = 0) -> int:
        """Does what is left of it; how far it came is told by `came`."""
        self.came = start
        for name, deed in self.deeds()[start:]:
            await deed(parts)
            self.answered.add(name)
            self.came += 1
        return self.came

    def kept(self) -> dict[str, tuple[str, ...]]:
        """What has to be readable: sets that were answered and not given up."""
        contents: dict[str, tuple[str, ...]] = {
            self.first: ("a", "b"),
            self.second: ("b", "c"),
            self.third: ("large",),
        }
        if self.came >= 4:  # The release was begun.
            del contents[self.first]
        return {set_id: names for set_id, names in contents.items() if set_id in self.answered}


@pytest.fixture
async def tenant(blobs: BlobService) -> Tenant:
    tenant = blobs.tenant()
    await tenant.prepare(**WHOLE)
    return tenant


async def steps_of_a_whole_story(tenant: Tenant) -> int:
    life = Life()
    async with open_parts(tenant.service, life=life) as parts:
        await Story(tenant).live(parts)
    return life.steps


async def crash_at(tenant: Tenant, last_step: int, *, repeat: bool) -> None:
    """Of the tenant is left what is remembered of the sets, and no more."""
    story, life = Story(tenant), Life(last_step)
    async with open_parts(tenant.service, life=life) as parts:
        try:
            await story.live(parts)
        except BaseException:
            if not life.ended_at:
                raise
        else:
            assert not life.ended_at, f"step {last_step}, {life.ended_at}: answered although the process had ended"
    where = f"step {last_step}, {life.ended_at}, at deed {story.came}"
    async with open_parts(tenant.service) as parts:
        if repeat:
            await story.live(parts, story.came)
        counts = await parts.collecting.collect(tenant.tenant_id, dry_run=False)
        assert (counts.missing_object_count, counts.damaged_object_count) == (0, 0), where
        for set_id, names in story.kept().items():
            for name in names:
                pieces = parts.reading.read(tenant.tenant_id, set_id, name, None, ByteRange())
                assert b"".join([piece async for piece in pieces]) == FILES[name], where
        stored = [row["object_key"] for row in await tenant.rows("blobs") if row["state"] == "STORED"]
        open_keys = {row["object_key"] for row in await tenant.rows("uploads") if row["state"] != "COMPLETE"}
        assert sorted(stored) == [key for key in tenant.object_keys() if key not in open_keys], where
        await everything_goes(tenant, parts, story)
    assert await tenant.left() == (0, 0, 0), where
    assert (await tenant.rows("uploads"), tenant.unfinished_multiparts()) == ([], []), where


async def everything_goes(tenant: Tenant, parts: ServiceParts, story: Story) -> None:
    for set_id in (story.first, story.second, story.third):
        await parts.removal.release(tenant.tenant_id, set_id)
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("update uploads set expire_time = %(now)s", {"now": utc_now()})
    await parts.collecting.collect(tenant.tenant_id, dry_run=False)


@pytest.mark.timeout(600)
async def test_an_end_at_any_step_leaves_nothing_lost_and_nothing_over(tenant: Tenant, blobs: BlobService) -> None:
    """After every other step the caller repeats what was not answered, after the others it gives up; SPAWNMESH_EVERY_CRASH=1 does both."""
    steps = await steps_of_a_whole_story(tenant)
    assert steps > 60
    both = [(step, repeat) for step in range(1, steps + 1) for repeat in (True, False)]
    chosen = both if os.environ.get("SPAWNMESH_EVERY_CRASH") else [one for one in both if one[1] == (one[0] % 2 == 0)]
    # Each has one story at a time, and is clean behind it. A bucket of its own for each story would cost S3 more than the story does.
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


async def test_an_end_while_collecting_is_gone_on_with(tenant: Tenant, blobs: BlobService) -> None:
    """The collector itself ends at each of its steps."""
    step = 0
    ended = True
    while ended:
        step += 1
        story = Story(tenant)
        async with open_parts(blobs) as parts:
            await story._stage(parts, story.first, ("a", "b"))
            async with tenant.service.database.transaction(tenant.tenant_id) as connection:
                await connection.execute("update sets set state = 'RELEASED', state_time = now() - interval '1 minute'")
        life = Life(step)
        async with open_parts(blobs, life=life) as parts:
            with contextlib.suppress(Killed):
                await parts.collecting.collect(tenant.tenant_id, dry_run=False)
        ended = bool(life.ended_at)
        async with open_parts(blobs) as parts:
            await parts.collecting.collect(tenant.tenant_id, dry_run=False)
        assert await tenant.left() == (0, 0, 0), life.ended_at

    assert step > 15
