"""The files that the demo's runs have published, and the evidence that their bytes came back."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2 import ReadFileRequest
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import AttachmentBlobServiceStub
from spawnmesh.session.v1.session_pb2 import Session
from spawnmesh.transcript.v1.entry_pb2 import Entry
from spawnmesh_client.outputs import list_outputs
from spawnmesh_client.wire import WireMesh

_READ_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A published file. `read_sha256` is of the bytes that a client read."""

    session_id: str
    set_id: str
    name: str
    size_bytes: int
    sha256: str
    read_sha256: str


async def read_published(mesh: WireMesh, session: Session) -> list[PublishedFile]:
    """Read every file that the session has published."""
    return [
        PublishedFile(
            one.session_id,
            one.set_id,
            file.name,
            file.size_bytes,
            file.sha256,
            await _sha256_of(mesh, one.set_id, file.name),
        )
        async for one in list_outputs(mesh.service("session"), session.session_id)
        for file in one.files
    ]


def tool_files(entries: Sequence[Entry], tool: str) -> Iterator[dict[str, Any]]:
    """Yield the files, with `sha256`, that results of this tool in a transcript name.

    A file of a set has a `set_id`.
    """
    for entry in entries:
        message = entry.body.message
        if message.tool_name == tool and not message.is_error:
            first_line = message.content[0].text.text.partition("\n")[0]
            result = json.loads(first_line)
            for file in result.get("files", [result]):
                yield {"set_id": result.get("set_id", ""), **file}


async def _sha256_of(mesh: WireMesh, set_id: str, name: str) -> str:
    digest = hashlib.sha256()
    peer = mesh.service("attachment-blob")
    stub = AttachmentBlobServiceStub(peer.channel)
    request = ReadFileRequest(set_id=set_id, name=name)
    async with aclosing(peer.stream(stub.ReadFile, request, timeout_seconds=_READ_SECONDS)) as pieces:
        async for piece in pieces:
            digest.update(piece.data)
    return digest.hexdigest()
