"""The states of S3 and STS, as the service's probes find them."""

import socket
from typing import Any

import pytest
from minio.credentials.credentials import Credentials
from spawnmesh_attachment_blob.clients.bucket_credentials import BucketCredentials
from spawnmesh_attachment_blob.clients.storage_probe import watching_storage
from spawnmesh_attachment_blob.settings import AttachmentBlobSettings
from spawnmesh_core.dependency_watch import DependencyFault, DependencyWatch
from spawnmesh_devstack.s3 import S3Endpoint


def settings_for(s3: S3Endpoint, **other: Any) -> AttachmentBlobSettings:
    given = {
        "database_url": "postgresql://",
        "s3_endpoint": s3.endpoint,
        "s3_access_key": s3.access_key,
        "s3_secret_key": s3.secret_key,
        "sts_endpoint": s3.sts_endpoint,
        "sts_role_arn": s3.role_arn,
    }
    return AttachmentBlobSettings(**(given | other))


async def faults(settings: AttachmentBlobSettings) -> dict[str, DependencyFault | None]:
    """Return the fault of each dependency that is down, and None for one that is up."""
    watch = DependencyWatch()
    with watching_storage(watch, settings):
        return {status.name: status.last_fault for status in await watch.look()}


async def test_storage_that_accepts_the_keys_is_up(s3: S3Endpoint) -> None:
    assert await faults(settings_for(s3)) == {"s3": None, "sts": None}


@pytest.mark.parametrize("wrong", ["s3_access_key", "s3_secret_key"])
async def test_s3_that_answers_and_refuses_the_keys_is_down(s3: S3Endpoint, wrong: str) -> None:
    assert await faults(settings_for(s3, **{wrong: "wrong"})) == {
        "s3": DependencyFault.CREDENTIALS_REFUSED,
        "sts": DependencyFault.FAILED,
    }


async def test_sts_that_gives_tenants_further_credentials_does_not_isolate(
    s3: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    administrator = Credentials(s3.access_key, s3.secret_key)
    monkeypatch.setattr(BucketCredentials, "retrieve", lambda held: administrator)
    assert await faults(settings_for(s3)) == {"s3": None, "sts": DependencyFault.NOT_ISOLATED}


async def test_a_role_that_cannot_be_assumed_leaves_s3_up(s3: S3Endpoint) -> None:
    found = await faults(settings_for(s3, sts_role_arn="arn:aws:iam::000000000000:role/none"))
    assert found == {"s3": None, "sts": DependencyFault.FAILED}


async def test_storage_that_does_not_answer_is_told_from_storage_that_is_away(s3: S3Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_address = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = settings_for(s3, s3_endpoint=silent_address, sts_endpoint="http://127.0.0.1:1")
        found = await faults(settings)
    assert found == {"s3": DependencyFault.TIMEOUT, "sts": DependencyFault.UNREACHABLE}
