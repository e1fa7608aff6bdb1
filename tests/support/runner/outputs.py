"""A session service that publishes files, as a script says."""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile
from spawnmesh.session.v1 import output_pb2 as pb
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason


@dataclass(slots=True)
class ScriptedOutputs:
    """The sets that were published, by request_id, and the requests for them."""

    requests: list[pb.PublishFilesRequest] = field(default_factory=list)
    lookups: list[pb.ListOutputSetsRequest] = field(default_factory=list)
    published: dict[str, pb.OutputSet] = field(default_factory=dict)
    uploads: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    """Name and bytes of complete uploads, by id."""
    always_listed: list[pb.OutputSet] = field(default_factory=list)
    """Sets that a listing finds under every request_id."""
    on_upload: Callable[[], object] = lambda: None
    """Called when an upload was announced, before its bytes come."""
    hold_upload: asyncio.Event | None = None
    """The answer to an announced upload comes once it is set."""
    stored_before: pb.OutputSet | None = None
    """The set that a lost runner has stored, with any request_id. The next call publishes it."""
    hold_answer: asyncio.Event | None = None
    """The answer to a publication comes once it is set, although the files are published before."""

    @property
    def file_count(self) -> int:
        return sum(len(one.files) for one in self.published.values())

    async def publish(self, request: pb.PublishFilesRequest) -> pb.PublishFilesResponse:
        self.requests.append(request)
        named = [(one.name, one.data) for one in request.files]
        named += [self.uploads[one.upload_id] for one in request.uploads]
        files = [
            AttachmentFile(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
            for name, data in named
        ]
        first = self.published.setdefault(
            request.request_id,
            self.stored_before
            or pb.OutputSet(
                set_id=new_id(IdKind.ATTACHMENT_SET),
                files=files,
                total_bytes=sum(file.size_bytes for file in files),
            ),
        )
        if list(first.files) != files:
            raise MeshError(Reason.REQUEST_ID_REUSED, "other files; use a new one")
        if self.hold_answer is not None:
            await self.hold_answer.wait()
        return pb.PublishFilesResponse(output_set=first)

    def list(self, request: pb.ListOutputSetsRequest) -> pb.ListOutputSetsResponse:
        self.lookups.append(request)
        found = [one for key, one in self.published.items() if key == request.request_id]
        return pb.ListOutputSetsResponse(output_sets=[*found, *self.always_listed])


class PublishFiles:
    """The RPC of the session service."""

    mesh: Any

    async def PublishFiles(self, request: pb.PublishFilesRequest, context: Any) -> pb.PublishFilesResponse:
        self.mesh.check_lease(request.epoch)
        self.mesh.refuse_if_scripted("PublishFiles")
        return await self.mesh.outputs.publish(request)
