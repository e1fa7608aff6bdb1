"""Concurrent calls stage, release and collect the same bytes. No promised byte is lost or left."""

import asyncio
import random
from dataclasses import dataclass, field

import pytest
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.items import FileRef
from spawnmesh_attachment_blob.domain.ranges import ByteRange
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_attachment_blob.rpc.dependencies import Dependencies
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fakes import Slow, SlowObjects, attach, open_second_process
from tests.support.attachment_blob.fixtures import Tenant, new_set_id

CONTENTS = ("red", "green", "blue")
ACTORS = 8
STEPS = 12


@dataclass
class Promised:
    """Sets that were staged and not released, with their contents, and all sets that were begun."""

    contents_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    begun: list[str] = field(default_factory=list)
    given_up: set[str] = field(default_factory=set)

    def any_set(self, rng: random.Random) -> str | None:
        return rng.choice(sorted(self.contents_of)) if self.contents_of else None


class Actor:
    """Makes one random call after the other."""

    def __init__(self, tenant: Tenant, deps: Dependencies, promised: Promised, rng: random.Random) -> None:
        self._tenant_id = tenant.tenant_id
        self._deps = deps
        self._promised = promised
        self._rng = rng

    async def act(self) -> None:
        for _ in range(STEPS):
            deed = self._rng.choices(
                (self.stage, self.refer, self.release, self.read, self.attach, self.collect),
                (5, 3, 4, 2, 1, 1),
            )[0]
            await deed()

    async def stage(self) -> None:
        own = f"{self._rng.random()}"
        contents = tuple(self._rng.choices((*CONTENTS, own), k=self._rng.randint(1, 3)))
        await self._stage(contents, contents, [])

    async def refer(self) -> None:
        """Stage some items and files of two sets, which this and other actors may release."""
        named = [set_id for _ in range(2) if (set_id := self._promised.any_set(self._rng)) is not None]
        files = [
            (set_id, *self._rng.choice(list(enumerate(self._promised.contents_of[set_id]))))
            for set_id in named
        ]
        items = tuple(self._rng.choices(CONTENTS, k=self._rng.randint(0 if files else 1, 1)))
        references = [
            FileRef(set_id, f"{position}", f"{number}")
            for number, (set_id, position, _) in enumerate(files, len(items))
        ]
        contents = (*items, *(content for *_, content in files))
        releases = [self._release(named[0])] if named and self._rng.random() < 0.5 else []
        await asyncio.gather(self._stage(contents, items, references), *releases)

    async def _stage(
        self, contents: tuple[str, ...], inline: tuple[str, ...], references: list[FileRef]
    ) -> None:
        set_id = new_set_id()
        items = [InlineItem(f"{n}", content, Encoding.UTF8) for n, content in enumerate(inline)]
        self._promised.begun.append(set_id)
        request = SetRequest(set_id, new_id(IdKind.SESSION), items, references=references)
        try:
            await self._deps.stager.stage_set(self._tenant_id, request)
        except MeshError as error:
            # Another actor released it, or a set that it refers to.
            if error.reason is not Reason.ATTACHMENT_SET_STATE:
                raise
        else:
            if set_id not in self._promised.given_up:
                self._promised.contents_of[set_id] = contents

    async def release(self) -> None:
        set_id = self._promised.any_set(self._rng)
        # This set may be in the middle of its staging.
        if self._rng.random() < 0.2 and self._promised.begun:
            set_id = self._rng.choice(self._promised.begun)
        if set_id is not None:
            await self._release(set_id)

    async def _release(self, set_id: str) -> None:
        self._promised.given_up.add(set_id)
        self._promised.contents_of.pop(set_id, None)
        await self._deps.releaser.release_set(self._tenant_id, set_id)

    async def read(self) -> None:
        set_id = self._promised.any_set(self._rng)
        if set_id is not None:
            contents = self._promised.contents_of[set_id]
            try:
                await self.expect(set_id, contents)
            except MeshError:
                assert set_id not in self._promised.contents_of, "refused although no call released it"

    async def expect(self, set_id: str, contents: tuple[str, ...]) -> None:
        for number, content in enumerate(contents):
            pieces = self._deps.reader.read(self._tenant_id, set_id, f"{number}", None, ByteRange())
            assert b"".join([piece async for piece in pieces]).decode() == content

    async def attach(self) -> None:
        set_id = self._promised.any_set(self._rng)
        if set_id is not None:
            try:
                await attach(self._deps, self._tenant_id, set_id)
            except MeshError:
                assert set_id not in self._promised.contents_of

    async def collect(self) -> None:
        counts = await self._deps.collector.collect(self._tenant_id, dry_run=False)
        assert (counts.missing_object_count, counts.damaged_object_count) == (0, 0)


@pytest.mark.parametrize("seed", range(1, 5))
async def test_no_interleaving_loses_promised_bytes_or_keeps_others(tenant: Tenant, seed: int) -> None:
    promised = Promised()
    SlowObjects.rng, slow = random.Random(seed), Slow(random.Random(seed))
    async with (
        open_second_process(tenant.service, life=slow, objects_kind=SlowObjects) as one,
        open_second_process(tenant.service, life=slow, objects_kind=SlowObjects) as other,
    ):
        rngs = [random.Random(f"{seed}/{number}") for number in range(ACTORS)]
        actors = [Actor(tenant, (one, other)[n % 2], promised, rng) for n, rng in enumerate(rngs)]
        async with asyncio.TaskGroup() as tasks:
            for actor in actors:
                tasks.create_task(actor.act())
        print(
            f"seed {seed}: {len(promised.begun)} sets begun, {len(promised.contents_of)} promised at the end"
        )

        for set_id, contents in promised.contents_of.items():
            await actors[0].expect(set_id, contents)
        await actors[0].collect()
        stored = {content for contents in promised.contents_of.values() for content in contents}
        assert len(tenant.object_keys()) == len(stored) == len(await tenant.rows("blobs"))
        await asyncio.gather(
            *(one.releaser.release_set(tenant.tenant_id, set_id) for set_id in promised.contents_of)
        )

    assert await tenant.left() == (0, 0, 0)
