"""Output sets: the run that published them, and the sessions whose runs may read them."""

import random

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh.attachment_blob.v1 import upload_pb2
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason

from tests.support.attachment_blob.fixtures import BlobService, Tenant, new_set_id, refused
from tests.support.attachment_blob.inline import text
from tests.support.attachment_blob.references import publish, refusal_of, stage_references
from tests.support.attachment_blob.uploads import begin, send, spec_of

PARENT, CHILD, STRANGER = (new_id(IdKind.SESSION) for _ in range(3))
RUN = new_id(IdKind.RUN)


async def test_the_run_of_an_output_set_is_shown_wherever_the_set_is(tenant: Tenant) -> None:
    plain = await tenant.stage(text("a", "x"))
    staged = await stage_references(tenant, items=[text("a", "x")], run_id=RUN, reader_session_ids=[PARENT])
    attached = await tenant.attach(staged.set_id)

    listed = (await tenant.call("ListSets", pb.ListSetsRequest(), token=tenant.client_token())).sets
    of_session = pb.ListSetsRequest(session_id=staged.session_id)
    (found,) = (await tenant.call("ListSets", of_session, token=tenant.client_token())).sets

    assert [staged.run_id, attached.run_id] == [RUN, RUN]
    assert await tenant.get(staged.set_id) == attached == found
    assert {one.set_id: one.run_id for one in listed} == {plain.set_id: "", staged.set_id: RUN}


@pytest.mark.parametrize("seed", range(3))
async def test_a_run_reads_its_own_sets_and_the_output_sets_of_its_descendants(
    tenant: Tenant, seed: int
) -> None:
    """A random family. Each session has an attached set, and one that its run published."""
    rng = random.Random(seed)
    ancestors: dict[str, list[str]] = {}
    for _ in range(7):
        parent = rng.choice([None, *ancestors])
        ancestors[new_id(IdKind.SESSION)] = [] if parent is None else [parent, *ancestors[parent]]
    seen_by: dict[str, set[str]] = {}
    for session, above in ancestors.items():
        given = await tenant.stage(text("a", session), session_id=session)
        made = await publish(tenant, text("a", session), session_id=session, readers=above)
        seen_by[given.set_id], seen_by[made.set_id] = {session}, {session, *above}

    for session in ancestors:
        token = tenant.run_token(session)
        for set_id, readers in seen_by.items():
            if session in readers:
                assert (await tenant.get(set_id, token=token)).set_id == set_id
                assert (await tenant.read(set_id, "a", token=token)).startswith(b"ses_")
                continue
            unknown = new_set_id()
            for ask in (tenant.get, lambda one, token: tenant.read(one, "a", token=token)):
                refusal = await refusal_of(ask(set_id, token=token), set_id)
                assert refusal == await refusal_of(ask(unknown, token=token), unknown)
                assert refusal[0] is Reason.NOT_FOUND


async def test_a_client_reads_each_output_set(tenant: Tenant) -> None:
    made = await publish(tenant, text("a", "made"))
    assert await tenant.read(made.set_id, "a") == b"made"


async def test_a_released_output_set_is_shown_to_its_readers_alone(tenant: Tenant) -> None:
    made = await publish(tenant, text("a", "made"), session_id=CHILD, readers=[PARENT])
    await tenant.release(made.set_id)
    unknown = new_set_id()
    await tenant.release(unknown)

    for session in (PARENT, CHILD):
        assert not (await tenant.get(made.set_id, token=tenant.run_token(session))).files
        with refused(Reason.ATTACHMENT_SET_STATE):
            await tenant.read(made.set_id, "a", token=tenant.run_token(session))
    for set_id, session in ((made.set_id, STRANGER), (unknown, PARENT)):
        with refused(Reason.NOT_FOUND):
            await tenant.get(set_id, token=tenant.run_token(session))
        with refused(Reason.NOT_FOUND):
            await tenant.read(set_id, "a", token=tenant.run_token(session))


async def test_a_reader_of_another_tenant_reads_nothing(tenant: Tenant, blobs: BlobService) -> None:
    other = blobs.tenant()
    await other.prepare()
    made = await publish(tenant, text("a", "made"), session_id=CHILD, readers=[PARENT])

    for session in (PARENT, CHILD):
        with refused(Reason.NOT_FOUND):
            await other.get(made.set_id, token=other.run_token(session))
        with refused(Reason.NOT_FOUND):
            await other.read(made.set_id, "a", token=other.run_token(session))


async def test_a_reader_that_announces_bytes_of_an_output_set_has_to_send_them(tenant: Tenant) -> None:
    await publish(tenant, text("a", "made"), session_id=CHILD, readers=[PARENT])
    states = [
        (await send(tenant, begin(spec_of(b"made")), token=tenant.run_token(session))).state
        for session in (CHILD, PARENT)
    ]
    assert states == [upload_pb2.UPLOAD_STATE_COMPLETE, upload_pb2.UPLOAD_STATE_OPEN]


async def test_StageSet__a_repeat_has_the_same_run_and_readers(tenant: Tenant) -> None:
    first = {"set_id": new_set_id(), "session_id": CHILD, "items": [text("a", "x")]}
    same = {"run_id": RUN, "reader_session_ids": [PARENT, STRANGER]}
    staged = await stage_references(tenant, **first, **same)

    again = {**same, "reader_session_ids": [STRANGER, PARENT, STRANGER]}
    assert await stage_references(tenant, **first, **again) == staged
    for changed in (
        {"run_id": new_id(IdKind.RUN)},
        {"run_id": ""},
        {"reader_session_ids": [PARENT]},
        {"reader_session_ids": []},
        {"reader_session_ids": [PARENT, STRANGER, new_id(IdKind.SESSION)]},
    ):
        with refused(Reason.ALREADY_EXISTS, set_id=staged.set_id):
            await stage_references(tenant, **first, **{**same, **changed})
    assert await tenant.get(staged.set_id) == staged


@pytest.mark.parametrize(
    "fields",
    [
        {"run_id": "run_1"},
        {"run_id": "run_" + 25 * "0" + "\0"},
        {"run_id": CHILD},
        {"run_id": 65 * "r"},
        {"reader_session_ids": [PARENT, "ses_1"]},
        {"reader_session_ids": ["ses_" + 26 * "!"]},
        {"reader_session_ids": [""]},
        {"reader_session_ids": 1001 * [PARENT]},
    ],
    ids=["short_run", "nul", "session_as_run", "long_run", "short_reader", "odd_reader", "empty", "many"],
)
async def test_StageSet__malformed_runs_and_readers_are_refused(tenant: Tenant, fields: object) -> None:
    assert isinstance(fields, dict)
    with refused(Reason.INVALID_REQUEST):
        await stage_references(tenant, items=[text("a", "x")], **fields)
    assert await tenant.rows("sets") == []
