"""Workers of the transcript service, opened in the test process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from spawnmesh_runtime.process import start_process
from spawnmesh_transcript.app import open_worker
from spawnmesh_transcript.jobs.worker import Worker
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.serving import shared_settings
from tests.support.transcript.fixtures import Service
from tests.support.transcript.tables import Superuser
from tests.support.transcript.tier_sessions import TierSession


@dataclass(frozen=True)
class Workers:
    """Opens workers on the database of the service."""

    service: Service
    blob_target: str
    keys: Path

    @asynccontextmanager
    async def open(self, *, blob_target: str = "", **more: Any) -> AsyncIterator[Worker]:
        settings = TranscriptSettings(
            **shared_settings("transcript", self.keys),
            database_url=self.service.dsn.app,
            attachment_blob_target=blob_target or self.blob_target,
            work_interval_seconds=0.001,
            **more,
        )
        async with (
            start_process("transcript", settings) as process,
            open_worker(process, settings, asyncio.Event()) as worker,
        ):
            yield worker


@pytest.fixture
def workers(service: Service, tier_session: TierSession, keys: Path) -> Workers:
    return Workers(service, tier_session.blobs.service.target, keys)


@pytest.fixture
async def only_tenant_with_work(tier_session: TierSession, superuser: Superuser) -> AsyncIterator[None]:
    """Keep the worker away from the tenants of earlier tests, of which there may be hundreds."""
    own = (tier_session.session.tenant_id,)
    await superuser.execute(
        "update tenant_work set work_time = now() + interval '1 day' where tenant_id <> %s", own
    )
    yield
    await superuser.execute("update tenant_work set work_time = null where work_time > now()")
