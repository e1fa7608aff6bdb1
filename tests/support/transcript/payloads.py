"""A replica of the transcript service whose blob store is unavailable."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from spawnmesh.attachment_blob.v1.blob_service_pb2_grpc import (
    BlobServiceServicer,
    add_BlobServiceServicer_to_server,
)
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_runtime.process import Process
from spawnmesh_runtime.server import MeshServer, build_server
from spawnmesh_runtime.settings import ProcessSettings
from spawnmesh_transcript.app import open_service
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.serving import caller_at, served, shared_settings
from tests.support.transcript.fixtures import (
    Service,
)
from tests.support.transcript.tier import (
    Tiered,
)


class _Away(BlobServiceServicer):
    """A blob store that refuses every blob."""

    async def PutBlob(self, request: Any, context: Any) -> Any:
        raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "away")

    async def ReleaseBlob(self, request: Any, context: Any) -> Any:
        raise MeshError(Reason.DEPENDENCY_UNAVAILABLE, "away")


@asynccontextmanager
async def _open_away(process: Process, settings: ProcessSettings) -> AsyncIterator[MeshServer]:
    server = build_server(process)
    add_BlobServiceServicer_to_server(_Away(), server)
    yield server


@pytest.fixture
async def cut_off(service: Service, tiered: Tiered, keys: Path) -> AsyncIterator[Tiered]:
    """The same session at a replica whose blob store is unavailable: appends commit, payloads are
    not put."""

    blob_settings = ProcessSettings(**shared_settings("attachment-blob", keys))
    async with served("attachment-blob", blob_settings, _open_away) as blob_target:
        settings = TranscriptSettings(
            **shared_settings("transcript", keys),
            database_url=service.dsn.app,
            attachment_blob_target=blob_target,
        )
        async with (
            served("transcript", settings, open_service) as target,
            caller_at(target, "transcript") as peer,
        ):
            broken = replace(service, peer=peer, target=target)
            yield tiered.on(replace(tiered.session, service=broken))
