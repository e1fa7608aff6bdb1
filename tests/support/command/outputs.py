"""Published files of services in the test's own process."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as blob_rpc
from spawnmesh.attachment_blob.v1.attachment_blob_service_pb2_grpc import (
    AttachmentBlobServiceServicer,
    add_AttachmentBlobServiceServicer_to_server,
)
from spawnmesh.attachment_blob.v1.attachment_pb2 import (
    SET_STATE_ATTACHED,
    SET_STATE_RELEASED,
    AttachmentFile,
    AttachmentSet,
)
from spawnmesh.session.v1 import output_pb2
from spawnmesh_core.errors import MeshError, not_found
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.server import MeshServer

from tests.support.command.fake_mesh import RUN_ID, SESSION_ID, FakeMesh, served, write_mesh_file

TIME_SECONDS = 1_767_323_045


@dataclass
class FakeBlobs(AttachmentBlobServiceServicer):
    """Keep output sets. `reads` has the set and the name of each file that was read.

    Bytes of `damaged` names arrive as other bytes. The sets in `released` have no files left.
    `refusal` answers the lists of output sets.
    """

    sets: list[output_pb2.OutputSet] = field(default_factory=list)
    data: dict[tuple[str, str], bytes] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    reads: list[tuple[str, str]] = field(default_factory=list)
    refusal: MeshError | None = None

    def publish(self, *, run_id: str = RUN_ID, **files: bytes) -> str:
        """Publish files, `report_md` under the name `report.md`, and return the id of their set."""
        named = {name.replace("_", "."): data for name, data in files.items()}
        return self.publish_named(named, run_id=run_id)

    def publish_named(self, files: dict[str, bytes], *, run_id: str = RUN_ID) -> str:
        """Publish files under any names."""
        output = output_pb2.OutputSet(
            set_id=new_id(IdKind.ATTACHMENT_SET), session_id=SESSION_ID, run_id=run_id, request_id="r",
            total_bytes=sum(map(len, files.values())),
        )  # fmt: skip
        output.publish_time.FromSeconds(TIME_SECONDS + len(self.sets))
        for name, data in files.items():
            sha256 = hashlib.sha256(data).hexdigest()
            file = AttachmentFile(name=name, size_bytes=len(data), sha256=sha256, mime_type="text/plain")
            output.files.append(file)
            self.data[output.set_id, name] = data
        self.sets.append(output)
        return output.set_id

    def page(self, request: output_pb2.ListOutputSetsRequest) -> output_pb2.ListOutputSetsResponse:
        """Return one set a page, of the run if one is named."""
        if self.refusal is not None:
            raise self.refusal
        found = [one for one in self.sets if request.run_id in ("", one.run_id)]
        start = int(request.page_token or 0)
        more = str(start + 1) if start + 1 < len(found) else ""
        page = found[start : start + 1]
        return output_pb2.ListOutputSetsResponse(output_sets=page, next_page_token=more)

    async def GetSet(self, request: Any, context: Any) -> Any:
        for one in self.sets:
            if one.set_id == request.set_id:
                found = AttachmentSet(set_id=one.set_id, session_id=one.session_id, run_id=one.run_id)
                found.state = SET_STATE_RELEASED
                if one.set_id not in self.released:
                    found.state, found.total_bytes = SET_STATE_ATTACHED, one.total_bytes
                    found.files.extend(one.files)
                return blob_rpc.GetSetResponse(set=found)
        raise not_found("attachment set", request.set_id)

    async def ListSets(self, request: Any, context: Any) -> Any:
        sets = [
            (await self.GetSet(blob_rpc.GetSetRequest(set_id=one.set_id), context)).set for one in self.sets
        ]
        return blob_rpc.ListSetsResponse(sets=sets)

    async def ReadFile(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if request.set_id in self.released:
            raise MeshError(Reason.ATTACHMENT_SET_STATE, "released", facts={"set_id": request.set_id})
        self.reads.append((request.set_id, request.name))
        data = self.data[request.set_id, request.name]
        yield blob_rpc.ReadFileResponse(data=b"other" if request.name in self.damaged else data)


@pytest.fixture
async def blobs(mesh: FakeMesh, keys: Path) -> AsyncIterator[FakeBlobs]:
    """Add a service of files to the mesh, whose sets its session has published."""
    blobs = mesh.sessions.blobs = FakeBlobs()

    def add(server: MeshServer) -> None:
        add_AttachmentBlobServiceServicer_to_server(blobs, server)

    async with served("attachment-blob", keys, add) as target:
        mesh.targets["attachment-blob"] = target
        write_mesh_file(mesh.data, keys, mesh.targets)
        yield blobs
