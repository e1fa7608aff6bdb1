"""What replicas of the version before leave and find: they write sets down before their objects are put, and know uploads by their id alone."""

import hashlib

import pytest
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_attachment_blob.domain.sets import object_key, put_key
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.contract.attachment_blob_fixtures import BlobService, Tenant, eager, new_set_id, refused, repaired, text
from tests.contract.attachment_blob_uploads import (
    begin,
    chunks,
    content,
    finish,
    get_upload,
    ref,
    send,
    spec_of,
    stage_uploads,
)

__all__ = ["eager"]


@pytest.fixture
async def tenant(eager: BlobService) -> Tenant:
    """A tenant of a service without a grace period."""
    tenant = eager.tenant()
    await tenant.prepare()
    return tenant


async def left_by_the_version_before(tenant: Tenant, set_id: str, *contents: str, put: bool) -> None:
    """What a replica leaves that wrote down a set as it was done before, and ended before its objects were all there."""
    hashes = [hashlib.sha256(one.encode()).hexdigest() for one in contents]
    columns = (list(contents), [len(one) for one in contents], hashes, [""] * len(hashes))
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        cursor = await connection.execute(
            "select unstored from intend_set(%s, 1, %s, 'ses_x', %s::text[], %s::bigint[], %s::text[], %s::text[])",
            (tenant.tenant_id, set_id, *columns),
        )
        ((unstored,),) = [tuple(row.values()) for row in await cursor.fetchall()]
    for one, sha256 in zip(contents, hashes, strict=True):
        if put and sha256 in unstored:
            tenant.put(object_key(sha256), one.encode())


@pytest.mark.parametrize("put", [False, True])
async def test_what_a_replica_of_the_version_before_left_unfinished(tenant: Tenant, put: bool) -> None:
    kept, set_id = await tenant.stage(text("kept", "A")), new_set_id()
    await left_by_the_version_before(tenant, set_id, "A", "other", put=put)
    assert {row["state"] for row in await tenant.rows("blobs")} == {"STORED", "PENDING"}
    with refused(Reason.NOT_FOUND):
        await tenant.get(set_id)
    with refused(Reason.NOT_FOUND):
        await tenant.attach(set_id)

    await repaired(tenant, {"unremoved_set_count": 1})

    assert await tenant.read(kept.set_id, "kept") == b"A"
    assert await tenant.left() == (1, 1, 1)


@pytest.mark.parametrize("put", [False, True])
async def test_a_set_that_a_replica_of_the_version_before_left_is_staged_again(tenant: Tenant, put: bool) -> None:
    set_id = new_set_id()
    await left_by_the_version_before(tenant, set_id, "A", "other", put=put)

    await tenant.stage(text("b", "other"), text("c", "C"), set_id=set_id)

    assert await tenant.read(set_id, "b") == b"other"
    # What it put of the bytes that were put anew lies under another key.
    await repaired(tenant, {"unsettled_blob_count": 1} | ({"orphan_object_count": 1} if put else {}))
    assert await tenant.left() == (2, 2, 2)


async def test_a_set_that_a_replica_of_the_version_before_left_is_released(tenant: Tenant) -> None:
    set_id = new_set_id()
    await left_by_the_version_before(tenant, set_id, "A", "other", put=True)

    assert await tenant.release(set_id) == 2

    assert await tenant.left() == (0, 0, 0)


DATA = content(2000)
SESSION_ID = new_id(IdKind.SESSION)


def token_of(tenant: Tenant, owner: str) -> str:
    return tenant.run_token(owner) if owner else tenant.client_token()


async def begun_by_the_version_before(tenant: Tenant, spec: upload_pb2.UploadSpec, owner: str) -> str:
    """What a replica writes that knows uploads by their ids alone; whose the upload is that it finds then."""
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute(
            """insert into uploads
                   (tenant_id, upload_id, session_id, name, size_bytes, sha256, mime_type, state, object_key, expire_time)
               values (%s, %s, %s, %s, %s, %s, %s, 'OPEN', %s, now() + interval '1 day')
               on conflict (tenant_id, upload_id) do nothing""",
            (
                tenant.tenant_id,
                spec.upload_id,
                owner,
                spec.name,
                spec.size_bytes,
                spec.sha256,
                spec.mime_type,
                put_key(spec.sha256, new_id(IdKind.UPLOAD)),
            ),
        )
        cursor = await connection.execute(
            "select session_id from uploads where tenant_id = %s and upload_id = %s", (tenant.tenant_id, spec.upload_id)
        )
        (row,) = await cursor.fetchall()
    return str(row["session_id"])


@pytest.mark.parametrize(("first", "second"), [("", SESSION_ID), (SESSION_ID, "")], ids=["a-clients", "a-runs"])
async def test_an_upload_that_a_replica_of_the_version_before_began_is_its_owners(
    tenant: Tenant, first: str, second: str
) -> None:
    spec = spec_of(DATA)
    assert await begun_by_the_version_before(tenant, spec, first) == first

    with refused(Reason.NOT_FOUND):
        await get_upload(tenant, spec.upload_id, token=token_of(tenant, second))
    for owner in (second, first):
        done = await send(tenant, begin(spec), chunks(DATA), finish(), token=token_of(tenant, owner))
        assert done == await get_upload(tenant, spec.upload_id, token=token_of(tenant, owner))
        staged = await stage_uploads(tenant, ref(spec.upload_id), uploader_session_id=owner)
        assert await tenant.read(staged.set_id, "big.bin") == DATA
    assert len(await tenant.rows("uploads")) == 2


@pytest.mark.parametrize("owner", ["", SESSION_ID], ids=["a-clients", "a-runs"])
async def test_an_upload_is_found_by_a_replica_of_the_version_before(tenant: Tenant, owner: str) -> None:
    spec = spec_of(DATA)
    await send(tenant, begin(spec), token=token_of(tenant, owner))

    assert await begun_by_the_version_before(tenant, spec, owner) == owner
    assert len(await tenant.rows("uploads")) == 1


async def test_an_upload_of_a_replica_of_the_version_before_expires(tenant: Tenant) -> None:
    spec = spec_of(DATA)
    await begun_by_the_version_before(tenant, spec, SESSION_ID)
    await send(tenant, begin(spec), chunks(DATA), finish())
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("update uploads set expire_time = now()")

    await repaired(tenant, {"expired_upload_count": 2})

    assert (await tenant.rows("uploads"), await tenant.left()) == ([], (0, 0, 0))
