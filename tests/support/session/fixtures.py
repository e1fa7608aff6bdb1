"""Fixtures: the session service with the real other services, served in the process of the test."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from spawnmesh_attachment_blob.app import open_service as open_attachment_blob
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_core.errors import MeshError
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.postgres import Postgres
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn
from spawnmesh_hook.app import open_service as open_hook
from spawnmesh_hook.settings import HookSettings
from spawnmesh_model_router.app import open_service as open_model_router
from spawnmesh_model_router.settings import ModelRouterSettings
from spawnmesh_postgres.database import Database, open_database
from spawnmesh_postgres.migrations import migrate
from spawnmesh_session.app import open_service as open_session
from spawnmesh_session.settings import SessionSettings
from spawnmesh_transcript.app import open_service as open_transcript
from spawnmesh_transcript.settings import TranscriptSettings

from tests.support.serving import caller_at, served, shared_settings
from tests.support.session.harness import Mesh, OpenMesh
from tests.support.session.remains import Remains
from tests.support.session.tables import FORGET_SHARED_HOOKS, forget_shared_hooks, superuser
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:1"
ROUTER_CONFIG = {
    "primary": "nowhere/one",
    "providers": {
        "nowhere": {
            "kind": "openai_compatible",
            "base_url": f"http://{NOWHERE}/v1",
            "credentials": ["env:NO_KEY"],
        }
    },
    "models": {"nowhere/one": {"context_window": 1000, "max_output": 100}},
}


@pytest.fixture(scope="session")
async def migrated(databases: dict[str, ServiceDsn]) -> dict[str, ServiceDsn]:
    """Databases whose schemas are at their newest version."""
    for snake in ("session", "attachment_blob", "transcript", "hook", "model_router"):
        await asyncio.to_thread(migrate, databases[snake].owner, package=f"spawnmesh_{snake}", schema=snake)
    return databases


OpenPeers = Callable[..., AbstractAsyncContextManager[dict[str, str]]]
DatabaseOf = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def open_peers(
    s3: S3Endpoint, postgres: Postgres, keys: Path, tmp_path_factory: pytest.TempPathFactory
) -> OpenPeers:
    """Serve the four other services with these databases; return their targets.

    They follow the revocations of the session service if its target is given. It may start later:
    unless `revocations_wait_seconds` says so, they do not wait for it.
    """

    @asynccontextmanager
    async def opened(
        database_of: DatabaseOf,
        session_target: str | None = None,
        *,
        revocations_wait_seconds: float = 0.0,
        **more: Any,
    ) -> AsyncIterator[dict[str, str]]:
        follows = {
            "session_target": session_target,
            "revocations_wait_seconds": revocations_wait_seconds,
        }
        chosen = {
            **shared_settings("attachment-blob", keys),
            **follows,
            **database_of("attachment_blob"),
            "s3_endpoint": s3.endpoint,
            "s3_access_key": s3.access_key,
            "s3_secret_key": s3.secret_key,
            "sts_endpoint": s3.sts_endpoint,
            "sts_role_arn": s3.role_arn,
        }
        blob = AttachmentBlobSettings(**{**chosen, **more})
        transcript = TranscriptSettings(
            **shared_settings("transcript", keys), **database_of("transcript"), **follows
        )
        hook = HookSettings(
            **shared_settings("hook", keys), **database_of("hook"), **follows, allow_private_endpoints=True
        )
        config = tmp_path_factory.mktemp("router") / "router.json"
        config.write_text(json.dumps(ROUTER_CONFIG))
        router = ModelRouterSettings(
            **shared_settings("model-router", keys),
            **database_of("model_router"),
            **follows,
            config_file=config,
        )
        async with AsyncExitStack() as stack:
            if session_target:  # Other tests have hook services that tell no session service.
                stack.push_async_callback(forget_shared_hooks, postgres)
            yield {
                "attachment-blob": await stack.enter_async_context(
                    served("attachment-blob", blob, open_attachment_blob)
                ),
                "transcript": await stack.enter_async_context(
                    served("transcript", transcript, open_transcript)
                ),
                "hook": await stack.enter_async_context(served("hook", hook, open_hook)),
                "model-router": await stack.enter_async_context(
                    served("model-router", router, open_model_router)
                ),
            }

    return opened


@pytest.fixture(scope="session")
async def peers(open_peers: OpenPeers, migrated: dict[str, ServiceDsn]) -> AsyncIterator[dict[str, str]]:
    """attachment-blob, transcript, hook and model-router; where each is served."""
    async with open_peers(lambda snake: {"database_url": migrated[snake].app}) as targets:
        yield targets


@pytest.fixture(scope="session")
def open_mesh(
    migrated: dict[str, ServiceDsn], peers: dict[str, str], keys: Path, postgres: Postgres
) -> OpenMesh:
    """Serves session with its peers, some of them elsewhere than they are, and other settings."""

    @asynccontextmanager
    async def opened(
        *, elsewhere: dict[str, str] | None = None, port: int = 0, **settings: Any
    ) -> AsyncIterator[Mesh]:
        if "hook" not in (elsewhere or {}):  # That of `peers` tells the session service nothing.
            await forget_shared_hooks(postgres)
        targets = {**peers, **(elsewhere or {})}
        chosen = SessionSettings(
            attachment_blob_target=targets["attachment-blob"],
            transcript_target=targets["transcript"],
            hook_target=targets["hook"],
            model_router_target=targets["model-router"],
            **{
                **shared_settings("session", keys),
                "database_url": migrated["session"].app,
                "lease_ttl_seconds": 60.0,
                **settings,
            },
        )
        async with (
            served("session", chosen, open_session, port=port) as target,
            caller_at(target, "session") as peer,
        ):
            yield Mesh(peer, keys, chosen)

    return opened


@pytest.fixture(scope="session")
async def _served_mesh(open_mesh: OpenMesh) -> AsyncIterator[Mesh]:
    async with open_mesh() as mesh:
        yield mesh


@pytest.fixture(scope="session")
async def session_tables(
    postgres: Postgres, migrated: dict[str, ServiceDsn]
) -> AsyncIterator[psycopg.AsyncConnection]:
    """A superuser's connection to the mesh's database, for all tests."""
    async with superuser(postgres) as link:
        yield link


@pytest.fixture
async def mesh(_served_mesh: Mesh, session_tables: psycopg.AsyncConnection) -> Mesh:
    """The session service, and a tenant of this test's own."""
    await session_tables.execute(FORGET_SHARED_HOOKS)
    own = Mesh(_served_mesh.peer, _served_mesh.keys, _served_mesh.settings)
    await eventually(lambda: _is_created(own))
    return own


async def _is_created(own: Mesh) -> bool:
    """Create the tenant. A busy machine may make a service look silent for a moment."""
    try:
        await own.create_tenant()
    except MeshError as error:
        if error.reason not in (Reason.DEPENDENCY_UNAVAILABLE, Reason.DEADLINE_EXCEEDED):
            raise
        return False
    return True


@pytest.fixture(scope="session")
async def session_database(migrated: dict[str, ServiceDsn]) -> AsyncIterator[Database]:
    """The session service's own database, as its own role."""
    async with open_database(migrated["session"].app, name="test", max_connections=4) as database:
        yield database


@pytest.fixture
async def empty_queue(session_tables: psycopg.AsyncConnection) -> None:
    """Remove the runs of earlier tests from the queue, so that no claim gets them."""
    await session_tables.execute("delete from session.run_queue")


@pytest.fixture(scope="session")
async def remains(
    postgres: Postgres, s3: S3Endpoint, migrated: dict[str, ServiceDsn]
) -> AsyncIterator[Remains]:
    """Counts what a tenant has."""
    dsn = postgres.superuser_dsn.replace("/postgres?", "/spawnmesh?")
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as link:
        yield Remains(dsn, link, s3)
