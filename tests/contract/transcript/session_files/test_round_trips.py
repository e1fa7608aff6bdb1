"""Every accepted entry can be exported and imported again."""

import json

import pytest
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2 as entry_pb
from spawnmesh_core.reasons import Reason
from spawnmesh_transcript.domain.line_parts import OWNED_TYPES
from spawnmesh_transcript.domain.storable_json import MAX_STORED_DEPTH

from tests.support.transcript.bodies import call_block, user
from tests.support.transcript.files import exported, send
from tests.support.transcript.fixtures import Session, refused


def _deep(depth: int, name: str) -> str:
    """Return a block of this depth."""
    lists = depth - 1
    return (
        f'{{"type":"toolCall","id":"c","name":"{name}","arguments":' + "[" * lists + "1" + "]" * lists + "}"
    )


def _bodies(block: str, name: str) -> list[entry_pb.EntryBody]:
    said = content_pb.Message(
        role=content_pb.ROLE_ASSISTANT, content=[call_block("c", block, name), call_block("d", block, name)]
    )
    return [
        entry_pb.EntryBody(message=said),
        entry_pb.EntryBody(custom=entry_pb.Custom(custom_type="t", data_json=block)),
        entry_pb.EntryBody(opaque=entry_pb.Opaque(type="novel", entry_json=block)),
    ]


@pytest.mark.parametrize("name", ["read", "sessions_spawn"])
async def test_AppendEntries__json_of_the_greatest_depth_round_trips_and_deeper_is_refused(
    session: Session, name: str
) -> None:
    assert MAX_STORED_DEPTH == 94, "as the contract says it"
    claim = await session.acquire(1)
    bodies = _bodies(_deep(MAX_STORED_DEPTH, name), name)
    await session.append(bodies, claim=claim)
    mirrored = entry_pb.EntryBody(mirror=entry_pb.Mirror(message=bodies[0].message))
    await session.append([mirrored], token=session.mirror_token())
    out = await exported(session)
    again = session.sibling()
    await send(again, out, chunk_bytes=100_000)
    assert await exported(again) == out
    for body in _bodies(_deep(MAX_STORED_DEPTH + 1, name), name):
        with refused(Reason.INVALID_REQUEST):
            await session.append([body], claim=claim)


async def test_AppendEntries__brackets_in_strings_do_not_count_as_depth(session: Session) -> None:
    claim = await session.acquire(1)
    text = json.dumps('[{"' * 500)
    block = f'{{"type":"toolCall","id":"c","name":"read","arguments":[{text},{",".join(["[1]"] * 300)}]}}'
    await session.append(_bodies(block, "read"), claim=claim)
    out = await exported(session)
    again = session.sibling()
    await send(again, out, chunk_bytes=100_000)
    assert await exported(again) == out


@pytest.mark.parametrize("kind", sorted(OWNED_TYPES))
async def test_AppendEntries__an_opaque_entry_of_a_reserved_type_is_refused(
    session: Session, kind: str
) -> None:
    claim = await session.acquire(1)
    opaque = entry_pb.Opaque(type=kind, entry_json='{"message":3,"targetId":"nowhere"}')
    with refused(Reason.INVALID_REQUEST):
        await session.append([user("before"), entry_pb.EntryBody(opaque=opaque)], claim=claim)
    assert (await session.page()).head.seq == 1
