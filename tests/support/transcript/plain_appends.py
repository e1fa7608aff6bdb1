"""Appends of one message, which one statement makes."""

import secrets

from spawnmesh.transcript.v1 import transcript_service_pb2 as pb
from spawnmesh_transcript.domain.appends import Append
from spawnmesh_transcript.domain.entries import EntryKind, NewEntry, WriterClaim
from spawnmesh_transcript.domain.transcripts import Key
from spawnmesh_transcript.domain.turns import Role
from spawnmesh_transcript.domain.writers import Writer

from tests.support.transcript.fixtures import Session


def new_append(session: Session, claim: pb.WriterClaim, *, key: str = "", body: bytes = b"") -> Append:
    body = body or secrets.token_bytes(16)
    entry = NewEntry(EntryKind.MESSAGE, body, token_count=3, role=Role.ASSISTANT)
    writer = Writer(claim=WriterClaim(claim.run_id, claim.epoch))
    return Append(
        Key(session.tenant_id, session.session_id), (entry,), key or secrets.token_hex(8), body, writer, 0
    )
