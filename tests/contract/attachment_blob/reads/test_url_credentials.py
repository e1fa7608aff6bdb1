"""CreateDownloadUrl with credentials that expire soon: the promised expiry is right."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3
from google.protobuf.duration_pb2 import Duration
from spawnmesh.attachment_blob.v1 import attachment_blob_service_pb2 as pb
from spawnmesh_core.clock import utc_now
from spawnmesh_core.reasons import Reason
from spawnmesh_devstack.s3 import S3Endpoint
from spawnmesh_devstack.service_roles import ServiceDsn

from tests.support.attachment_blob.fixtures import Tenant, open_blob_service, refused
from tests.support.attachment_blob.gateway import Gateway, open_gateway
from tests.support.attachment_blob.inline import text

LIFETIME = timedelta(seconds=240)


@pytest.fixture
def gateway(s3: S3Endpoint) -> Iterator[Gateway]:
    """A gateway of one test."""
    with open_gateway(s3) as gateway:
        yield gateway


@pytest.fixture
async def tenant(databases: dict[str, ServiceDsn], gateway: Gateway, keys: Path) -> AsyncIterator[Tenant]:
    """A tenant with download URLs, of a service behind the gateway."""
    async with open_blob_service(databases["attachment_blob"], gateway.endpoint, keys) as service:
        tenant = service.tenant()
        await tenant.prepare(download_url_lifetime=Duration(seconds=int(LIFETIME.total_seconds())))
        yield tenant


async def url_of(tenant: Tenant, set_id: str) -> tuple[str, datetime]:
    """Return a URL of the file `a` and its promised expiry."""
    request = pb.CreateDownloadUrlRequest(set_id=set_id, name="a")
    answer: pb.CreateDownloadUrlResponse = await tenant.call(
        "CreateDownloadUrl", request, token=tenant.client_token()
    )
    return answer.url, answer.expire_time.ToDatetime(UTC)


def signed_until(url: str) -> datetime:
    """Return when S3 stops accepting the URL, from its signed parameters."""
    query = parse_qs(urlsplit(url).query)
    begin = datetime.strptime(query["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    return begin + timedelta(seconds=int(query["X-Amz-Expires"][0]))


async def works(url: str) -> bool:
    with urllib3.PoolManager() as http:
        return (await asyncio.to_thread(http.request, "GET", url)).status == 200


async def test_CreateDownloadUrl__expires_with_the_credentials(tenant: Tenant, gateway: Gateway) -> None:
    gateway.credentials_last = timedelta(seconds=150)
    staged = await tenant.stage(text("a", "x"))
    end_of_credentials = utc_now() + gateway.credentials_last
    gateway.sts_is_away = True

    url, expire_time = await url_of(tenant, staged.set_id)

    assert expire_time == signed_until(url)
    assert utc_now() + timedelta(seconds=60) < expire_time <= end_of_credentials
    assert gateway.sts_calls > 1, "it was tried to renew them"
    assert await works(url)


async def test_CreateDownloadUrl__renewed_credentials_give_the_full_lifetime(
    tenant: Tenant, gateway: Gateway
) -> None:
    gateway.credentials_last = timedelta(seconds=150)
    staged = await tenant.stage(text("a", "x"))
    gateway.credentials_last = None
    before = utc_now().replace(microsecond=0)

    url, expire_time = await url_of(tenant, staged.set_id)

    assert expire_time == signed_until(url)
    assert before + LIFETIME <= expire_time <= utc_now() + LIFETIME
    assert await works(url)


async def test_CreateDownloadUrl__refused_without_valid_credentials(tenant: Tenant, gateway: Gateway) -> None:
    gateway.credentials_last = timedelta(seconds=50)
    staged = await tenant.stage(text("a", "x"))
    gateway.sts_is_away = True

    with refused(Reason.DEPENDENCY_UNAVAILABLE, dependency="S3"):
        await url_of(tenant, staged.set_id)
