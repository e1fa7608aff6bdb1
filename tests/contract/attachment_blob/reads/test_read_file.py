"""GetSet and ReadFile check access and the hash of the bytes."""

import pytest
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import KIB, BlobService, Tenant, new_set_id, refused
from tests.support.attachment_blob.inline import text


@pytest.mark.parametrize("size", [0, 1, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, 700 * KIB])
async def test_ReadFile__pieces(tenant: Tenant, size: int) -> None:
    content = ("0123456789" * (size // 10 + 1))[:size]
    staged = await tenant.stage(text("a", content))

    pieces = await tenant.pieces(staged.set_id, "a")

    assert b"".join(pieces) == content.encode()
    assert len(pieces) == max(1, -(-size // (256 * KIB)))
    assert max(map(len, pieces)) <= 256 * KIB


@pytest.mark.parametrize(
    "stored",
    [b"y" * (300 * KIB), b"x", b"x" * (1200 * KIB), b""],
    ids=["same-size", "short", "long", "empty"],
)
async def test_ReadFile__stored_bytes_differ(tenant: Tenant, stored: bytes) -> None:
    staged = await tenant.stage(text("a", "x" * (300 * KIB)))
    tenant.overwrite(staged.files[0].sha256, stored)
    pieces: list[bytes] = []

    with refused(Reason.STORED_HASH_DIFFERS, sha256=staged.files[0].sha256):
        await tenant.pieces(staged.set_id, "a", into=pieces)

    # A reader that counts bytes notices that the file is incomplete.
    assert sum(map(len, pieces)) < 300 * KIB


async def test_ReadFile__object_lost(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"))
    tenant.lose(staged.files[0].sha256)

    with refused(Reason.STORED_HASH_DIFFERS):
        await tenant.read(staged.set_id, "a")


async def test_ReadFile__released(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"))
    await tenant.attach(staged.set_id)
    assert await tenant.read(staged.set_id, "a") == b"x"
    await tenant.release(staged.set_id)

    with refused(Reason.ATTACHMENT_SET_STATE, state="RELEASED"):
        await tenant.read(staged.set_id, "a")
    found = await tenant.get(staged.set_id)
    assert (found.state, list(found.files), found.total_bytes) == (attachment_pb2.SET_STATE_RELEASED, [], 0)


async def test_ReadFile__unknown_file(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"))

    for name in ("b", "A", "../a", "a\x00"):
        with refused(Reason.NOT_FOUND):
            await tenant.read(staged.set_id, name)


async def test_a_run_finds_only_the_set_of_its_session(tenant: Tenant) -> None:
    mine, theirs = [await tenant.stage(text("a", content)) for content in ("mine", "theirs")]
    token = tenant.run_token(mine.session_id)

    assert await tenant.get(mine.set_id, token=token) == mine
    assert await tenant.read(mine.set_id, "a", token=token) == b"mine"
    for set_id in (theirs.set_id, new_set_id()):
        with refused(Reason.NOT_FOUND, id=set_id):
            await tenant.get(set_id, token=token)
        with refused(Reason.NOT_FOUND, id=set_id):
            await tenant.read(set_id, "a", token=token)
    await tenant.release(theirs.set_id)
    with refused(Reason.NOT_FOUND):
        await tenant.read(theirs.set_id, "a", token=token)


async def test_a_tombstone_is_not_found_by_readers(tenant: Tenant) -> None:
    set_id = new_set_id()
    await tenant.release(set_id)

    with refused(Reason.NOT_FOUND):
        await tenant.get(set_id)
    with refused(Reason.NOT_FOUND):
        await tenant.get(set_id, token=tenant.run_token(new_id(IdKind.SESSION)))


async def test_another_tenants_set_is_not_found(tenant: Tenant, blobs: BlobService) -> None:
    staged = await tenant.stage(text("a", "x"))
    other = blobs.tenant()
    await other.prepare()

    for attempt in (
        lambda: other.get(staged.set_id),
        lambda: other.get(staged.set_id, token=other.run_token(staged.session_id)),
        lambda: other.read(staged.set_id, "a"),
        lambda: other.attach(staged.set_id),
    ):
        with refused(Reason.NOT_FOUND):
            await attempt()

    assert await other.release(staged.set_id) == 0
    assert await tenant.read(staged.set_id, "a") == b"x"
