"""StageSet, AttachSet and PrepareTenant: results, refusals, and what a refusal leaves."""

import asyncio
import hashlib
import json
from base64 import b64encode
from collections.abc import Mapping

import pytest
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh_attachment_blob.clients.objects import NotAllPut, ObjectStore
from spawnmesh_attachment_blob.domain import Encoding, InlineItem
from spawnmesh_attachment_blob.domain.sets import SetRequest
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import KIB, BlobService, Tenant, new_set_id, open_stager, refused
from tests.support.attachment_blob.inline import base64, raw, text

MARKER = json.dumps({"$redacted": "attachment", "sha256": "0" * 64, "bytes": 3})


async def test_StageSet__stores_each_file_once_and_returns_the_manifest(tenant: Tenant) -> None:
    session_id = new_id(IdKind.SESSION)

    staged = await tenant.stage(
        text("a.txt", "héllo"),
        base64("b.bin", b64encode(b"\x00\x01").decode()),
        text("c.txt", "héllo", "text/x-copy"),
        session_id=session_id,
    )

    a, b = (hashlib.sha256(data).hexdigest() for data in ("héllo".encode(), b"\x00\x01"))
    assert [(file.name, file.size_bytes, file.sha256, file.mime_type) for file in staged.files] == [
        ("a.txt", 6, a, "text/plain"),
        ("b.bin", 2, b, ""),
        ("c.txt", 6, a, "text/x-copy"),
    ]
    assert (staged.session_id, staged.state, staged.total_bytes) == (
        session_id,
        attachment_pb2.SET_STATE_STAGED,
        14,
    )
    assert [key.rpartition(".")[0] for key in tenant.object_keys()] == sorted(
        f"sha256/{one[:2]}/{one}" for one in (a, b)
    )
    assert await tenant.get(staged.set_id) == staged
    assert {row["state"] for row in await tenant.rows("blobs")} == {"STORED"}


async def test_StageSet__same_set_again(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "1"), session_id=new_id(IdKind.SESSION))
    again = {"set_id": staged.set_id, "session_id": staged.session_id}

    assert await tenant.stage(text("a", "1"), **again) == staged
    await tenant.prepare(2, max_file_bytes=0)
    assert await tenant.stage(text("a", "1"), **again) == staged

    await tenant.attach(staged.set_id)
    assert (await tenant.stage(text("a", "1"), **again)).state == attachment_pb2.SET_STATE_ATTACHED
    for items in (
        [text("a", "2")],
        [text("b", "1")],
        [text("a", "1", "x/y")],
        [text("a", "1"), text("b", "1")],
    ):
        with refused(Reason.ALREADY_EXISTS, set_id=staged.set_id):
            await tenant.stage(*items, **again)
    with refused(Reason.ALREADY_EXISTS):
        await tenant.stage(text("a", "1"), set_id=staged.set_id)
    assert await tenant.left() == (1, 1, 1)


async def test_StageSet__stored_bytes_are_not_put_again(tenant: Tenant) -> None:
    first = await tenant.stage(text("a", "same"))
    tenant.overwrite(first.files[0].sha256, b"changed")

    await tenant.stage(text("b", "same"))

    with refused(Reason.STORED_HASH_DIFFERS):
        await tenant.read(first.set_id, "a")


@pytest.mark.parametrize(
    ("items", "reason", "facts"),
    [
        (
            [text("1", ""), text("2", ""), text("3", ""), text("4", "")],
            "ATTACHMENTS_FILE_COUNT_EXCEEDED",
            {"limit": "3"},
        ),
        ([text("ok", "x"), text("../x", "x")], "ATTACHMENTS_INVALID_NAME", {"index": "1"}),
        ([text("a", "x"), text("A", "x")], "ATTACHMENTS_DUPLICATE_NAME", {"index": "1", "first_index": "0"}),
        (
            [text("ok", "x"), attachment_pb2.InlineAttachment(name="a", content="x")],
            "ATTACHMENTS_INVALID_ENCODING",
            {"index": "1"},
        ),
        (
            [text("ok", "x"), raw("a", b"x", attachment_pb2.ENCODING_BASE64)],
            "ATTACHMENTS_INVALID_ENCODING",
            {"index": "1"},
        ),
        (
            [raw("ok", b"x" * 16), raw("a", b"x" * 17)],
            "ATTACHMENTS_FILE_BYTES_EXCEEDED",
            {"limit_bytes": "16"},
        ),
        (
            [raw("a", b"x" * 16), text("b", "x" * 5)],
            "ATTACHMENTS_TOTAL_BYTES_EXCEEDED",
            {"limit_bytes": "20"},
        ),
        ([raw("../x", b"x")], "ATTACHMENTS_INVALID_NAME", {"index": "0"}),
        ([text("ok", "x"), base64("a", "YQ=")], "ATTACHMENTS_INVALID_BASE64_OR_TOO_LARGE", {"index": "1"}),
        ([text("ok", "x"), text("a", "x" * 17)], "ATTACHMENTS_FILE_BYTES_EXCEEDED", {"limit_bytes": "16"}),
        (
            [text("a", "x" * 16), text("b", "x" * 5)],
            "ATTACHMENTS_TOTAL_BYTES_EXCEEDED",
            {"limit_bytes": "20"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_StageSet__items_refused(
    blobs: BlobService, items: list[attachment_pb2.InlineAttachment], reason: str, facts: dict[str, str]
) -> None:
    tenant = blobs.tenant()
    await tenant.prepare(max_file_count=3, max_file_bytes=16, max_total_bytes=20)

    with refused(Reason(reason), **facts) as errors:
        await tenant.stage(*items)

    assert ".." not in str(errors[0])
    assert await tenant.left() == (0, 0, 0)
    assert await tenant.rows("sets") == []


async def test_StageSet__the_same_bytes_in_every_form_are_one_file(tenant: Tenant) -> None:
    forms = [text("a", "\u00e9\n"), base64("b", "w6kK"), raw("c", b"\xc3\xa9\n")]
    empty = [
        text("d", ""),
        raw("e", b""),
        attachment_pb2.InlineAttachment(name="f", encoding=attachment_pb2.ENCODING_UTF8),
    ]
    staged = await tenant.stage(*forms, *empty)
    assert [file.size_bytes for file in staged.files] == [3, 3, 3, 0, 0, 0]
    assert len({file.sha256 for file in staged.files}) == 2
    assert await tenant.read(staged.set_id, "c") == b"\xc3\xa9\n"
    for one in forms:
        one.encoding, one.data = attachment_pb2.ENCODING_UNSPECIFIED, b"\xc3\xa9\n"
    again = await tenant.stage(*forms, *empty, set_id=staged.set_id, session_id=staged.session_id)
    assert [file.sha256 for file in again.files] == [file.sha256 for file in staged.files]


async def test_StageSet__attachments_disabled(blobs: BlobService) -> None:
    tenant = blobs.tenant()
    await tenant.prepare(enabled=False)

    with refused(Reason.ATTACHMENTS_DISABLED):
        await tenant.stage(text("../x", "x"))


async def test_StageSet__tenant_not_prepared(blobs: BlobService) -> None:
    with refused(Reason.UNKNOWN_TENANT):
        await blobs.tenant().stage(text("a", "x"))


@pytest.mark.parametrize(
    "item",
    [
        text("a", MARKER),
        text("a", f" \n{MARKER}"),
        text("a", '{"\\u0024redacted": "attachment"}'),
        base64("a", b64encode(MARKER.encode()).decode()),
        base64("a", MARKER),
        raw("a", MARKER.encode()),
        text("a", "\ufeff" + MARKER),
        text("a", json.dumps([json.dumps(MARKER)])),
    ],
    ids=[
        "text",
        "padded",
        "escaped",
        "base64",
        "instead-of-base64",
        "bytes",
        "byte-order-mark",
        "listed-text",
    ],
)
async def test_StageSet__content_is_marker(tenant: Tenant, item: attachment_pb2.InlineAttachment) -> None:
    with refused(Reason.ATTACHMENT_CONTENT_IS_MARKER, index="1"):
        await tenant.stage(text("ok", '{"redacted": "attachment"}'), item)

    assert await tenant.left() == (0, 0, 0)


@pytest.mark.parametrize("mime_type", ["x" * 128, "text/\nplain", "text/\u202eplain"])
async def test_StageSet__mime_type_refused(tenant: Tenant, mime_type: str) -> None:
    with refused(Reason.INVALID_REQUEST) as errors:
        await tenant.stage(text("ok", "x"), text("a", "x", mime_type))

    assert [violation.field for violation in errors[0].violations] == ["items[1].mime_type"]
    assert mime_type not in str(errors[0])


@pytest.mark.parametrize(("set_id", "session_id"), [("att_" + "!" * 26, ""), ("", "ses_" + "\x00" * 26)])
async def test_StageSet__malformed_id(tenant: Tenant, set_id: str, session_id: str) -> None:
    with refused(Reason.INVALID_REQUEST):
        await tenant.stage(text("a", "x"), set_id=set_id, session_id=session_id)


async def test_StageSet__large_files_do_not_block_other_calls(tenant: Tenant) -> None:
    small = await tenant.stage(text("small", "x"))
    large = asyncio.ensure_future(
        tenant.stage(*(base64(f"{n}", b64encode(bytes([n]) * 1024 * KIB).decode()) for n in range(5)))
    )
    while not large.done():
        await tenant.get(small.set_id)

    assert (await large).total_bytes == 5 * 1024 * KIB


class BreaksOnePut(ObjectStore):
    """Puts all objects but one, and does not know the result of that one."""

    async def put_all(self, tenant_id: str, data_by_key: Mapping[str, bytes]) -> None:
        await super().put_all(tenant_id, dict(list(data_by_key.items())[1:]))
        raise NotAllPut(frozenset())


def items(*contents: str) -> list[InlineItem]:
    return [InlineItem(f"{index}.txt", content, Encoding.UTF8) for index, content in enumerate(contents)]


async def test_a_failed_put_leaves_neither_row_nor_object(tenant: Tenant) -> None:
    async with open_stager(tenant.service, BreaksOnePut) as (stager, _):
        with pytest.raises(MeshError) as refusal:
            await stager.stage_set(
                tenant.tenant_id, SetRequest(new_set_id(), new_id(IdKind.SESSION), items("a", "b", "c"))
            )

    assert refusal.value.reason is Reason.DEPENDENCY_UNAVAILABLE
    assert await tenant.left() == (0, 0, 0)
    assert await tenant.rows("sets") == []


async def test_a_failed_put_leaves_what_another_set_refers_to(tenant: Tenant) -> None:
    kept = await tenant.stage(text("kept", "b"))

    async with open_stager(tenant.service, BreaksOnePut) as (stager, _):
        with pytest.raises(MeshError):
            await stager.stage_set(
                tenant.tenant_id, SetRequest(new_set_id(), new_id(IdKind.SESSION), items("a", "b", "c"))
            )

    assert await tenant.read(kept.set_id, "kept") == b"b"
    assert await tenant.left() == (1, 1, 1)


async def test_AttachSet__in_each_state(tenant: Tenant) -> None:
    staged = await tenant.stage(text("a", "x"))

    for _ in range(2):
        attached = await tenant.attach(staged.set_id)
        assert (attached.state, attached.files) == (attachment_pb2.SET_STATE_ATTACHED, staged.files)
    await tenant.release(staged.set_id)
    with refused(Reason.ATTACHMENT_SET_STATE, set_id=staged.set_id, state="RELEASED"):
        await tenant.attach(staged.set_id)
    with refused(Reason.NOT_FOUND):
        await tenant.attach(new_set_id())


async def test_PrepareTenant__newest_version_holds(tenant: Tenant) -> None:
    assert await tenant.prepare(3, max_file_count=1) == 3
    assert await tenant.prepare(2, max_file_count=2) == 3
    assert await tenant.prepare(3, max_file_count=2) == 3

    with refused(Reason.ATTACHMENTS_FILE_COUNT_EXCEEDED, limit="1"):
        await tenant.stage(text("a", "x"), text("b", "x"))
