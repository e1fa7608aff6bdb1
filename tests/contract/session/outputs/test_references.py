"""SpawnSession with references: files of one session are given to another."""

from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_pb2
from spawnmesh.session.v1 import output_pb2 as pb
from spawnmesh.session.v1 import session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.session.calls import another
from tests.support.session.harness import Mesh, attachment
from tests.support.session.interrupts import refusal_of
from tests.support.session.outputs import Blobs, delete, file, held_child, held_run, publish
from tests.support.session.remains import Remains


def reference(output_set: pb.OutputSet, number: int = 0, **fields: Any) -> attachment_pb2.ReferencedFile:
    return attachment_pb2.ReferencedFile(
        set_id=output_set.set_id, name=output_set.files[number].name, **fields
    )


async def test_SpawnSession__a_file_of_a_child_is_given_to_another_by_reference(
    mesh: Mesh, blobs: Blobs
) -> None:
    parent = await held_run(mesh)
    writer = await held_child(mesh, parent)
    published = await publish(mesh, writer, file("a.csv", b"1,2\n"), file("b.csv", b"3,4\n"))
    reader = await mesh.spawn_as(
        parent,
        attachments=[attachment("c.txt", "5")],
        references=[reference(published, 1), reference(published, 0, new_name="first.csv")],
    )
    assert [one.name for one in reader.receipt.files] == ["c.txt", "b.csv", "first.csv"]
    assert reader.receipt.total_bytes == 9
    held = await mesh.claim(reader.session_id)
    # The files stay when those of the writer are gone.
    await delete(mesh, writer.session.session_id)
    assert await refusal_of(blobs.read(published.set_id, "a.csv")) is Reason.ATTACHMENT_SET_STATE
    assert await blobs.read(reader.receipt.set_id, "first.csv", held.run_token) == b"1,2\n"
    assert await blobs.read(reader.receipt.set_id, "b.csv", held.run_token) == b"3,4\n"


async def test_SpawnSession__a_repeat_with_references_returns_the_same_session(mesh: Mesh) -> None:
    held = await held_run(mesh)
    published = await publish(mesh, held)
    fields = {"request_id": "r", "task": "t", "references": [reference(published)]}
    first = await mesh.spawn(**fields)
    assert (await mesh.spawn(**fields)).session_id == first.session_id
    fields["references"] = [reference(published, new_name="other.txt")]
    assert await refusal_of(mesh.spawn(**fields)) is Reason.REQUEST_ID_REUSED


async def test_SpawnSession__a_client_references_any_set_of_its_tenant(mesh: Mesh, blobs: Blobs) -> None:
    attached = await mesh.spawn(attachments=[attachment()])
    again = await mesh.spawn(
        references=[attachment_pb2.ReferencedFile(set_id=attached.receipt.set_id, name="a.txt")]
    )
    assert await blobs.read(again.receipt.set_id, "a.txt") == b"hello"


@pytest.mark.parametrize(
    "kind", ["unknown set", "unknown name", "a stranger's", "the parent's", "another tenant's"]
)
async def test_SpawnSession__a_reference_that_the_caller_may_not_see_is_not_found(
    mesh: Mesh, remains: Remains, kind: str
) -> None:
    parent = await held_run(mesh)
    caller = await held_child(mesh, parent)
    if kind == "unknown set":
        asked = attachment_pb2.ReferencedFile(set_id=new_id(IdKind.ATTACHMENT_SET), name="a")
    elif kind == "unknown name":
        asked = attachment_pb2.ReferencedFile(set_id=(await publish(mesh, caller)).set_id, name="other")
    elif kind == "a stranger's":
        asked = reference(await publish(mesh, await held_run(mesh)))
    elif kind == "the parent's":
        asked = reference(await publish(mesh, parent))
    else:
        other = another(mesh)
        await other.create_tenant()
        asked = reference(await publish(other, await held_run(other)))
    sets_before = await remains.count(mesh.tenant, "attachment_blob.sets where state <> 'RELEASED'")
    with pytest.raises(MeshError) as caught:
        await mesh.spawn_as(caller, attachments=[attachment()], references=[asked])
    assert (caught.value.reason, caught.value.facts["cause"]) == (Reason.SPAWN_FAILED, Reason.NOT_FOUND)
    assert caught.value.facts["index"] == "1", "it is the second file"
    sets_after = await remains.count(mesh.tenant, "attachment_blob.sets where state <> 'RELEASED'")
    assert sets_after == sets_before


async def test_SpawnSession__a_released_set_cannot_be_referenced(mesh: Mesh) -> None:
    held = await held_run(mesh)
    published = await publish(mesh, held)
    await delete(mesh, held.session.session_id)
    assert await refusal_of(mesh.spawn(references=[reference(published)])) is Reason.ATTACHMENT_SET_STATE


async def test_SpawnSession__an_external_runtime_takes_no_references(mesh: Mesh) -> None:
    published = await publish(mesh, await held_run(mesh))
    call = mesh.spawn(references=[reference(published)], runtime=session_pb2.RUNTIME_EXTERNAL)
    assert await refusal_of(call) is Reason.ATTACHMENTS_UNSUPPORTED_RUNTIME
