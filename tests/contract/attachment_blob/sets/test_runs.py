"""A run gets the files of its session's receipt, or it fails."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1.attachment_pb2 import AttachmentFile, AttachmentSet
from spawnmesh.session.v1 import run_service_pb2, session_pb2
from spawnmesh_core.errors import MeshError
from spawnmesh_core.ids import IdKind, new_id
from spawnmesh_core.reasons import Reason
from spawnmesh_runner.clients.peers import open_peers
from spawnmesh_runner.loop.assignment import Assignment
from spawnmesh_runner.loop.attachments import fetch_attachments
from spawnmesh_runner.settings import RunnerSettings
from spawnmesh_runtime.impersonation import use_token
from spawnmesh_runtime.process import start_process

from tests.support.attachment_blob.fixtures import BlobService, Tenant
from tests.support.attachment_blob.inline import text
from tests.support.serving import shared_settings

Run = Callable[..., Awaitable[dict[str, str]]]


@pytest.fixture
async def blobs(eager: BlobService) -> BlobService:
    return eager


@pytest.fixture
async def fetch(tenant: Tenant, tmp_path: Path) -> Run:
    """Run in a new workspace and return its files. `files` replaces those of the receipt."""
    peers = ("session", "transcript", "model_router", "attachment_blob", "hook")
    targets: dict[str, Any] = {f"{peer}_target": tenant.service.target for peer in peers}

    async def fetched(staged: AttachmentSet, *promised: AttachmentFile) -> dict[str, str]:
        run_id = new_id(IdKind.RUN)
        (workspace := tmp_path / run_id).mkdir()
        session = session_pb2.Session(session_id=staged.session_id)
        session.receipt.set_id = staged.set_id
        session.receipt.files.extend(promised or staged.files)
        run = session_pb2.Run(run_id=run_id, session_id=staged.session_id)
        claimed = run_service_pb2.ClaimedRun(run=run, session=session)
        settings = RunnerSettings(
            **shared_settings("runner", tenant.service.keys), **targets, workspace_root=workspace
        )
        async with start_process("runner", settings) as process, open_peers(process, settings) as mesh:
            with use_token(tenant.run_token(staged.session_id)):
                room_bytes = settings.max_workspace_bytes
                await fetch_attachments(
                    Assignment(claimed, mesh, workspace, room_bytes, tools={}, generate_timeout_seconds=1)
                )
        found = (workspace / ".spawnmesh/attachments" / staged.set_id).iterdir()
        return {file.name: file.read_text() for file in found if file.name != ".manifest.json"}

    return fetched


@pytest.mark.parametrize("is_attached", [True, False], ids=["attached", "staged"])
async def test_a_run_gets_the_files_of_its_receipt(tenant: Tenant, fetch: Run, is_attached: bool) -> None:
    staged = await tenant.stage(text("b.txt", "pay 200"), text("a.txt", "pay 100"))
    if is_attached:
        await tenant.attach(staged.set_id)

    assert await fetch(staged, *reversed(staged.files)) == {"a.txt": "pay 100", "b.txt": "pay 200"}


async def test_a_run_fails_if_the_retention_released_its_files(tenant: Tenant, fetch: Run) -> None:
    staged = await tenant.stage(text("contract.txt", "pay 100"))
    await tenant.attach(staged.set_id)
    assert await fetch(staged) == {"contract.txt": "pay 100"}
    await tenant.prepare(2, retention=Duration(seconds=60))
    async with tenant.service.database.transaction(tenant.tenant_id) as connection:
        await connection.execute("update sets set state_time = now() - interval '61 seconds'")
    await tenant.collect()

    with pytest.raises(MeshError) as failed:
        await fetch(staged)

    assert failed.value.reason is Reason.ATTACHMENT_SET_STATE
    assert failed.value.facts == {"set_id": staged.set_id, "state": "RELEASED"}
    assert "spawn a new session with them" in failed.value.message


@pytest.mark.parametrize("promised", ["another", "more", "fewer"])
async def test_a_run_fails_if_its_files_differ_from_the_receipt(
    tenant: Tenant, fetch: Run, promised: str
) -> None:
    staged = await tenant.stage(text("a.txt", "A"), text("b.txt", "B"))
    a, b = staged.files
    other = AttachmentFile(name="b.txt", size_bytes=b.size_bytes, sha256="0" * 64)
    of_receipt = {"another": (a, other), "more": (a, b, AttachmentFile(name="c.txt")), "fewer": (a,)}[
        promised
    ]

    with pytest.raises(MeshError) as failed:
        await fetch(staged, *of_receipt)

    assert failed.value.reason is Reason.ATTACHMENTS_MATERIALIZATION_FAILED
    assert staged.set_id in failed.value.message
