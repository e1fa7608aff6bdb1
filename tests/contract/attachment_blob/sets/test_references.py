"""StageSet with files of other sets: access, names, limits, repeats and the storage quota."""

from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import BlobService, Tenant, new_set_id, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.payloads import put
from tests.support.attachment_blob.references import file_of, publish, refusal_of, stage_references
from tests.support.attachment_blob.uploads import ref, upload

PARENT, CHILD, STRANGER = (new_id(IdKind.SESSION) for _ in range(3))


async def stored_bytes(tenant: Tenant) -> int:
    (row,) = await tenant.rows("attachment_tenants")
    return int(row["stored_bytes"])


async def test_StageSet__items_uploads_and_references(tenant: Tenant) -> None:
    source = await tenant.stage(text("r.txt", "report", "text/markdown"), text("unused", "u"))
    made = await publish(tenant, text("r.txt", "made"))
    done = await upload(tenant, b"uploaded", name="u.bin")
    before = tenant.object_keys()

    staged = await stage_references(
        tenant,
        file_of(made.set_id, "r.txt", "made.txt"),
        file_of(source.set_id, "r.txt"),
        file_of(source.set_id, "r.txt", "copy.txt"),
        items=[text("i.txt", "inline")],
        uploads=[ref(done.upload_id)],
    )

    contents = {
        "i.txt": b"inline",
        "u.bin": b"uploaded",
        "made.txt": b"made",
        "r.txt": b"report",
        "copy.txt": b"report",
    }
    assert [file.name for file in staged.files] == list(contents)
    assert {name: await tenant.read(staged.set_id, name) for name in contents} == contents
    assert staged.files[3] == source.files[0]
    assert staged.total_bytes == sum(map(len, contents.values()))
    assert len(tenant.object_keys()) == len(before) + 1


async def test_a_run_refers_to_the_files_that_it_may_read(tenant: Tenant) -> None:
    """The new set belongs to another session than that of the run, as in a spawn."""
    own = await tenant.stage(text("a", "own"), session_id=PARENT)
    made = await publish(tenant, text("a", "made"), session_id=CHILD, readers=[PARENT])
    references = [file_of(own.set_id, "a"), file_of(made.set_id, "a", "b")]

    staged = await stage_references(tenant, *references, session_id=STRANGER, uploader_session_id=PARENT)

    assert await tenant.read(staged.set_id, "b", token=tenant.run_token(STRANGER)) == b"made"
    with refused(Reason.NOT_FOUND):
        await tenant.get(made.set_id, token=tenant.run_token(STRANGER))
    # The session has the files in a set of its own now.
    again = file_of(staged.set_id, "b")
    await stage_references(tenant, again, uploader_session_id=STRANGER)


async def test_a_run_gets_the_same_refusal_for_foreign_sets_as_for_unknown_ones(
    tenant: Tenant, blobs: BlobService
) -> None:
    other = blobs.tenant()
    await other.prepare()
    foreign = [
        await tenant.stage(text("a", "x"), session_id=STRANGER),
        await publish(tenant, text("a", "x"), session_id=PARENT),
        await publish(tenant, text("a", "x"), session_id=STRANGER, readers=[PARENT]),
        await tenant.stage(text("a", "x"), session_id=PARENT),
        await other.stage(text("a", "x"), session_id=CHILD),
        await tenant.stage(text("b", "x"), session_id=PARENT),
        await tenant.stage(text("a", "x"), session_id=STRANGER),
    ]
    await tenant.release(foreign[-1].set_id)
    unknown, forgotten = new_set_id(), new_set_id()
    await tenant.release(forgotten)

    async def refusal(set_id: str) -> Any:
        asked = stage_references(
            tenant, file_of(set_id, "a"), items=[text("i", "x")], uploader_session_id=CHILD
        )
        return await refusal_of(asked, set_id)

    expected = await refusal(unknown)
    assert expected[0] is Reason.NOT_FOUND
    for set_id in [forgotten, *(one.set_id for one in foreign)]:
        assert await refusal(set_id) == expected
    assert {row["set_id"] for row in await tenant.rows("sets")} == {
        forgotten,
        *(one.set_id for one in foreign if one is not foreign[4]),
    }


async def test_a_client_refers_to_no_set_of_another_tenant_and_to_no_payload(
    tenant: Tenant, blobs: BlobService
) -> None:
    other = blobs.tenant()
    await other.prepare()
    foreign, blob_id = await other.stage(text("a", "x")), (await put(tenant, b"payload"))[0]

    with refused(Reason.NOT_FOUND):
        await stage_references(tenant, file_of(foreign.set_id, "a"))
    with refused(Reason.INVALID_REQUEST):
        await stage_references(tenant, file_of(blob_id, "blob"))
    assert [row["set_id"] for row in await tenant.rows("sets")] == [blob_id]


@pytest.mark.parametrize("uploader", ["", PARENT, CHILD], ids=["client", "parent", "child"])
async def test_a_reference_to_a_released_set_is_refused(tenant: Tenant, uploader: str) -> None:
    made = await publish(tenant, text("a", "made"), session_id=CHILD, readers=[PARENT])
    kept = await tenant.stage(text("a", "made"))
    await tenant.release(made.set_id)

    for name in ("a", "other", "\0"):
        with refused(Reason.ATTACHMENT_SET_STATE, set_id=made.set_id, state="RELEASED"):
            await stage_references(tenant, file_of(made.set_id, name), uploader_session_id=uploader)

    assert await tenant.read(kept.set_id, "a") == b"made"


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ({"name": "b"}, Reason.NOT_FOUND),
        ({"name": "A"}, Reason.NOT_FOUND),
        ({"name": "\0"}, Reason.NOT_FOUND),
        ({"name": "../a"}, Reason.NOT_FOUND),
        ({"name": ""}, Reason.INVALID_REQUEST),
        ({"name": 256 * "a"}, Reason.INVALID_REQUEST),
        ({"set_id": "att_1"}, Reason.INVALID_REQUEST),
        ({"set_id": ""}, Reason.INVALID_REQUEST),
        ({"set_id": "att_" + 25 * "0" + "\0"}, Reason.INVALID_REQUEST),
        ({"new_name": "\0"}, Reason.ATTACHMENTS_INVALID_NAME),
        ({"new_name": "../b"}, Reason.ATTACHMENTS_INVALID_NAME),
        ({"new_name": 256 * "a"}, Reason.ATTACHMENTS_INVALID_NAME),
        ({"new_name": "NUL"}, Reason.ATTACHMENTS_INVALID_NAME),
    ],
    ids=repr,
)
async def test_StageSet__malformed_references_are_refused(
    tenant: Tenant, reference: dict[str, str], reason: Reason
) -> None:
    source = await tenant.stage(text("a", "x"))
    changed = attachment_pb2.ReferencedFile(**{"set_id": source.set_id, "name": "a", **reference})
    facts = {"index": "2"} if reason is Reason.ATTACHMENTS_INVALID_NAME else {}

    with refused(reason, **facts):
        await stage_references(tenant, file_of(source.set_id, "a"), changed, items=[text("i", "x")])
    assert [row["set_id"] for row in await tenant.rows("sets")] == [source.set_id]


async def test_StageSet__too_many_references_are_refused(tenant: Tenant) -> None:
    source = await tenant.stage(text("a", "x"))
    many = [file_of(source.set_id, "a", f"{number}") for number in range(1001)]

    with refused(Reason.INVALID_REQUEST):
        await stage_references(tenant, *many)
    with refused(Reason.ATTACHMENTS_FILE_COUNT_EXCEEDED, count="1000"):
        await stage_references(tenant, *many[:1000])
    await tenant.prepare(2, max_file_count=1000)
    assert len((await stage_references(tenant, *many[:1000])).files) == 1000


@pytest.mark.parametrize(
    ("limits", "name", "reason", "facts"),
    [
        ({"max_file_count": 2}, "c", "ATTACHMENTS_FILE_COUNT_EXCEEDED", {"count": "3", "limit": "2"}),
        ({}, "A", "ATTACHMENTS_DUPLICATE_NAME", {"index": "2", "first_index": "0"}),
        ({}, "B", "ATTACHMENTS_DUPLICATE_NAME", {"index": "2", "first_index": "1"}),
        ({}, "x/y", "ATTACHMENTS_INVALID_NAME", {"index": "2"}),
        ({"max_file_bytes": 9}, "c", "ATTACHMENTS_FILE_BYTES_EXCEEDED", {"index": "2"}),
        (
            {"max_total_bytes": 11},
            "c",
            "ATTACHMENTS_TOTAL_BYTES_EXCEEDED",
            {"index": "2", "limit_bytes": "11"},
        ),
        ({"enabled": False}, "c", "ATTACHMENTS_DISABLED", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_StageSet__limits_apply_to_the_sum_of_items_uploads_and_references(
    tenant: Tenant, limits: dict[str, Any], name: str, reason: str, facts: dict[str, str]
) -> None:
    source, done = await tenant.stage(text("r", "0123456789")), await upload(tenant, b"u")
    files: dict[str, Any] = {"items": [text("a", "x")], "uploads": [ref(done.upload_id, "b")]}
    first = await stage_references(tenant, file_of(source.set_id, "r", "c"), **files)
    await tenant.prepare(2, **limits)

    with refused(Reason(reason), **facts):
        await stage_references(tenant, file_of(source.set_id, "r", name), **files)

    own = {"set_id": first.set_id, "session_id": first.session_id}
    assert await stage_references(tenant, file_of(source.set_id, "r", "c"), **files, **own) == first
    assert len(await tenant.rows("sets")) == 2


async def test_StageSet__two_references_with_one_name_are_refused(tenant: Tenant) -> None:
    one, other = await tenant.stage(text("a", "1")), await tenant.stage(text("a", "2"))

    with refused(Reason.ATTACHMENTS_DUPLICATE_NAME, index="1", first_index="0"):
        await stage_references(tenant, file_of(one.set_id, "a"), file_of(other.set_id, "a"))
    staged = await stage_references(tenant, file_of(one.set_id, "a"), file_of(other.set_id, "a", "b"))
    assert await tenant.read(staged.set_id, "b") == b"2"


async def test_StageSet__a_repeat_with_references_has_the_same_files(tenant: Tenant) -> None:
    source = await tenant.stage(text("a", "1"), text("b", "2"))
    own = {"set_id": new_set_id(), "session_id": CHILD}
    staged = await stage_references(tenant, file_of(source.set_id, "a"), **own)

    assert await stage_references(tenant, file_of(source.set_id, "a"), **own) == staged
    # The files count, whichever way they come.
    assert await stage_references(tenant, items=[text("a", "1")], **own) == staged
    for changed in (
        [file_of(source.set_id, "a", "c")],
        [file_of(source.set_id, "b", "a")],
        [file_of(source.set_id, "a"), file_of(source.set_id, "b")],
    ):
        with refused(Reason.ALREADY_EXISTS, set_id=staged.set_id):
            await stage_references(tenant, *changed, **own)
    await tenant.release(source.set_id)
    with refused(Reason.ATTACHMENT_SET_STATE, set_id=source.set_id):
        await stage_references(tenant, file_of(source.set_id, "a"), **own)
    assert await tenant.get(staged.set_id) == staged
    await tenant.release(staged.set_id)
    with refused(Reason.ATTACHMENT_SET_STATE, set_id=staged.set_id):
        await stage_references(tenant, file_of(source.set_id, "a"), **own)


async def test_references_need_no_room_in_the_storage_quota(tenant: Tenant) -> None:
    source = await tenant.stage(text("a", "a" * 100))
    await tenant.prepare(2, max_stored_bytes=100)

    staged = await stage_references(tenant, file_of(source.set_id, "a"))
    same = await stage_references(tenant, file_of(source.set_id, "a"), items=[text("i", "a" * 100)])
    with refused(Reason.ATTACHMENTS_STORED_BYTES_EXCEEDED, size_bytes="1"):
        await stage_references(tenant, file_of(source.set_id, "a"), items=[text("i", "x")])

    assert await stored_bytes(tenant) == 100
    await tenant.prepare(3, max_stored_bytes=1)
    await stage_references(tenant, file_of(same.set_id, "i", "j"))
    await tenant.release(source.set_id)
    assert await stored_bytes(tenant) == 100
    assert await tenant.read(staged.set_id, "a") == b"a" * 100


async def test_bytes_are_kept_as_long_as_a_set_refers_to_them(eager: BlobService) -> None:
    tenant = eager.tenant()
    await tenant.prepare()
    source = await publish(tenant, text("a", "kept"), text("b", "gone"))
    staged = await stage_references(tenant, file_of(source.set_id, "a"))
    await tenant.attach(staged.set_id)
    second = await stage_references(tenant, file_of(staged.set_id, "a", "c"))

    assert await tenant.release(source.set_id) == 1
    assert await tenant.collect() == {}
    assert await tenant.read(staged.set_id, "a") == b"kept"
    assert await tenant.release(staged.set_id) == 0
    assert await tenant.collect() == {}
    assert await tenant.read(second.set_id, "c") == b"kept"
    assert await tenant.release(second.set_id) == 1
    assert await tenant.left() == (0, 0, 0)


async def test_a_reference_to_lost_bytes_is_refused_until_they_are_sent_again(eager: BlobService) -> None:
    tenant = eager.tenant()
    await tenant.prepare()
    source = await tenant.stage(text("a", "lost"), text("b", "here"))
    (lost, _) = source.files
    tenant.lose(lost.sha256)
    assert (await tenant.collect())["missing_object_count"] == 1

    with refused(Reason.STORED_HASH_DIFFERS, sha256=lost.sha256):
        await stage_references(tenant, file_of(source.set_id, "a"))
    await stage_references(tenant, file_of(source.set_id, "b"))
    await tenant.stage(text("again", "lost"))

    staged = await stage_references(tenant, file_of(source.set_id, "a"))
    assert await tenant.read(staged.set_id, "a") == b"lost"


async def test_a_tenant_that_is_not_prepared_has_no_references(blobs: BlobService) -> None:
    with refused(Reason.UNKNOWN_TENANT):
        await stage_references(blobs.tenant(), file_of(new_set_id(), "a"))
