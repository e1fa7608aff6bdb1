"""A tenant's masking policy, through the RPCs."""

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from psycopg import AsyncConnection
from spawnmesh.content.v1 import message_pb2 as content_pb
from spawnmesh.transcript.v1 import entry_pb2
from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh.transcript.v1.transcript_service_pb2_grpc import TranscriptServiceStub
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_transcript.app import open_service
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.serving import caller_at, served, shared_settings
from tests.support.transcript.bodies import bash, call_block, mirror, note, user
from tests.support.transcript.fixtures import Service, Session, refused, waits_for
from tests.support.transcript.tables import Superuser

SECRET = "ghp_" + "a1B2c3D4e5" * 4


def _bodies() -> list[entry_pb2.EntryBody]:
    call = call_block(
        "call_1", json.dumps({"id": "call_1", "name": "exec", "input": {"command": f"use {SECRET}"}}), "exec"
    )
    answer = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[call])
    return [entry_pb2.EntryBody(message=answer), bash(f"echo {SECRET}", SECRET)]


async def _holds(superuser: Superuser, tenant_id: str) -> bool:
    cursor = await superuser.execute(
        "select bool_or(position(%s::bytea in body) > 0) from entries where tenant_id = %s",
        (SECRET.encode(), tenant_id),
    )
    row = await cursor.fetchone()
    return bool(row and row[0])


async def test_PrepareTenant__secrets_are_masked_from_the_next_append(
    session: Session, superuser: Superuser
) -> None:
    await session.prepare_tenant(1, mask_secrets=True)
    claim = await session.acquire(1)
    await session.append([user(f"it is {SECRET}"), note(SECRET)])
    await session.append(_bodies(), claim=claim, key="k")
    assert not await _holds(superuser, session.tenant_id)
    entries = (await session.entries())[1:]
    assert entries[0].body.message.content[0].text.text == "it is [$redacted:provider_key]"
    block = json.loads(entries[2].body.message.content[0].tool_call.block_json)
    assert block == {"id": "call_1", "name": "exec", "input": {"command": "use [$redacted:provider_key]"}}
    assert (await session.append(_bodies(), claim=claim, key="k")).replayed


@pytest.mark.parametrize(
    ("command", "secret"),
    [
        (f"git clone https://{SECRET}@github.com/acme/app.git", SECRET),
        (f"pip install git+https://{SECRET}@github.com/acme/app.git", SECRET),
        ("psql postgres://app:S3cr3t$Pass9@db/x", "S3cr3t$Pass9"),
        ("psql postgres://app:it's-S3cr3t@db/x", "it's-S3cr3t"),
        ("curl smtp://me@acme.example:S3cretPass9@smtp.acme.example", "S3cretPass9"),
        ("curl https:/\\/me:S3cretPass9@acme.example", "S3cretPass9"),
    ],
)
async def test_AppendEntries__no_secret_of_a_url_is_stored(
    session: Session, command: str, secret: str
) -> None:
    await session.prepare_tenant(1, mask_secrets=True)
    claim = await session.acquire(1)
    call = call_block("c", json.dumps({"id": "c", "name": "exec", "input": {"command": command}}), "exec")
    message = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[call])
    await session.append([entry_pb2.EntryBody(message=message)], claim=claim)
    stored = (await session.entries())[-1].body.message.content[0].tool_call.block_json
    assert "[$redacted:" in stored
    assert secret not in stored


async def test_PrepareTenant__with_masking_off_bodies_are_stored_byte_for_byte(session: Session) -> None:
    claim = await session.acquire(1)
    await session.append(_bodies(), claim=claim)
    assert [entry.body for entry in await session.entries(after_seq=1)] == _bodies()
    await session.prepare_tenant(1, mask_secrets=True)
    await session.prepare_tenant(2, mask_secrets=False)
    await session.append(_bodies(), claim=claim)
    assert [entry.body for entry in await session.entries(after_seq=3)] == _bodies()


async def test_PrepareTenant__another_replica_masks_at_once(
    service: Service, session: Session, keys: Path
) -> None:
    """The replica has served the tenant before and was not notified of the change."""
    settings = TranscriptSettings(**shared_settings("transcript", keys), database_url=service.dsn.app)
    async with (
        served("transcript", settings, open_service) as target,
        caller_at(target, "transcript") as replica,
    ):
        stub = TranscriptServiceStub(replica.channel)
        for version, is_masked in ((0, False), (1, True), (2, False), (3, True)):
            if version:
                await session.prepare_tenant(version, mask_secrets=is_masked)
            request = pb.AppendEntriesRequest(
                session_id=session.session_id, request_id=str(version), entries=[user(SECRET)]
            )
            with use_token(session.service_token()):
                await replica.unary(stub.AppendEntries, request, timeout_seconds=60)
            stored = (await session.entries())[-1].body
            assert (stored == user(SECRET)) is not is_masked


async def test_PrepareTenant__a_redaction_marker_describes_the_unmasked_bytes(
    session: Session,
) -> None:
    await session.prepare_tenant(1, mask_secrets=True)
    claim = await session.acquire(1)
    handed = f"the key is {SECRET}"
    arguments = {"task": f"use {SECRET}", "attachments": [{"name": "a", "content": handed}]}
    call = call_block(
        "c", json.dumps({"id": "c", "name": "sessions_spawn", "arguments": arguments}), "sessions_spawn"
    )
    mirrored = mirror("m")
    mirrored.mirror.destination = "https://me:hunter2@chat.example/room"
    said = content_pb.Message(role=content_pb.ROLE_ASSISTANT, content=[call])
    await session.append([entry_pb2.EntryBody(message=said)], claim=claim)
    await session.append([mirrored], token=session.mirror_token())
    _, entry, copy = await session.entries()
    stored = json.loads(entry.body.message.content[0].tool_call.block_json)["arguments"]
    assert stored["task"] == "use [$redacted:provider_key]"
    content = stored["attachments"][0]["content"]
    assert (content["sha256"], content["bytes"]) == (hashlib.sha256(handed.encode()).hexdigest(), len(handed))
    assert copy.body.mirror.destination == "https://me:[$redacted:url_credentials]@chat.example/room"


async def test_CreateTranscript__a_fork_is_masked_by_the_current_policy(
    session: Session, superuser: Superuser
) -> None:
    claim = await session.acquire(1)
    await session.append([user("nothing in it"), user(f"it is {SECRET}")])
    await session.append(_bodies(), claim=claim)
    as_it_was = session.sibling()
    await as_it_was.create(fork_of=session)
    assert str(await as_it_was.entries()).count(SECRET) == 4
    await session.prepare_tenant(1, mask_secrets=True)
    fork, appended = session.sibling(), session.sibling()
    await fork.create(fork_of=session)
    await appended.create()
    bodies = [entry.body for entry in await session.entries(after_seq=1)]
    await appended.append(bodies[:2])
    await appended.append(bodies[2:], claim=await appended.acquire(1))
    copies, like = await fork.entries(after_seq=1), await appended.entries(after_seq=1)
    copies = [entry for entry in copies if entry.body.message.role != content_pb.ROLE_TOOL_RESULT]
    assert [(entry.body, entry.token_count) for entry in copies] == [
        (entry.body, entry.token_count) for entry in like
    ]
    assert SECRET not in str(copies)
    assert (await fork.context()).token_count == sum(entry.token_count for entry in await fork.entries())
    rows = await superuser.execute(
        "select bool_or(position(%s::bytea in body) > 0) from entries"
        " where tenant_id = %s and session_id = %s",
        (SECRET.encode(), session.tenant_id, fork.session_id),
    )
    assert await rows.fetchone() == (False,)


async def test_CreateTranscript__must_be_repeated_if_masking_was_switched_on_meanwhile(
    session: Session, superuser: Superuser
) -> None:
    await session.append([user(SECRET)])
    fork = session.sibling()
    async with await AsyncConnection.connect(session.service.dsn.owner) as other:
        await other.execute("set local search_path = transcript")
        await other.execute("select set_config('spawnmesh.tenant', %s, true)", (session.tenant_id,))
        await other.execute(
            "insert into transcripts"
            " select (jsonb_populate_record(t, jsonb_build_object('session_id', %s::text))).* from transcripts t"
            " where t.tenant_id = %s and t.session_id = %s",
            (fork.session_id, session.tenant_id, session.session_id),
        )
        forking = asyncio.create_task(fork.create(fork_of=session))
        async with asyncio.timeout(60):  # The call waits for the transcript's row.
            while not await waits_for(superuser, other):
                await asyncio.sleep(0.01)
        await session.prepare_tenant(1, mask_secrets=True)
        await other.rollback()
    with refused(Reason.CONFLICT):
        await forking
    await fork.create(fork_of=session)
    assert SECRET not in str(await fork.entries())


async def test_CreateTranscript__a_masked_fork_keeps_its_token_cap(session: Session) -> None:
    await session.append([user("oldest"), *(user("ab://b:c@d") for _ in range(9))])
    await session.prepare_tenant(1, mask_secrets=True)
    whole = sum(entry.token_count for entry in await session.entries())
    fork = session.sibling()
    await fork.create(fork_of=session, max_token_count=whole)
    copies = await fork.entries(after_seq=1)
    counts = [entry.token_count for entry in copies]
    assert whole - max(counts) < sum(counts) <= whole
    assert all("[$redacted:url_credentials]" in str(entry.body) for entry in copies)
